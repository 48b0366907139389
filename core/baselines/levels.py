"""PipeDream's second level: clusters of devices, each with one segment of the chain.

A segment is cut into stages over the devices of one cluster with transfers inside it on the
inner link; then the chain is cut into segments over the clusters (and stages over devices that
form none). This is the hierarchical optimiser of the PipeDream paper, and Appendix C.3 of the
2020 paper, except that no stage spans clusters.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dnnp.core.baselines.chain import Chain, Stage, cut_chain, fill, loads_from, scratch_of
from dnnp.core.cost.kernel import kernel
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.graph import Floats, Ints


class _LevelPart(NamedTuple):
    """A segment or a stage of the outer level."""

    first: int
    end: int
    way: int


@kernel
def _inside(m, pin_first, pin_last, c, factor, a, b, into_cost, out_cost):  # type: ignore[no-untyped-def]
    """Costs of the nets for stages on a cluster (class c) that holds the items a..b-1."""
    for e in range(len(m.source)):
        price = m.cost[c, e]
        near = m.source[e] >= a and m.source[e] < b
        into_cost[c, e] = price * factor if near else price
        near = pin_first[e] >= a and pin_last[e] < b and not m.always[e]
        out_cost[c, e] = price * factor if near else price


@kernel
def _segments(m, pin_first, pin_last, c, factor, sizes, bound, scratch, table):  # type: ignore[no-untyped-def]
    """Fill table[kind, a, b]: the least largest load of the items a..b-1 on one cluster.

    `sizes` (i64[kinds], descending) are the devices of a cluster of each kind.
    """
    n, classes = m.work.shape[1], len(m.work)
    counts = np.zeros(classes, dtype=np.int64)
    counts[c] = sizes[0]
    into_cost, out_cost = m.cost.copy(), m.cost.copy()
    best = np.empty((n + 1, sizes[0] + 1))
    came = np.zeros((n + 1, sizes[0] + 1), dtype=np.int64)
    how = np.zeros((n + 1, sizes[0] + 1), dtype=np.int64)
    table[:] = np.inf
    for a in range(n):
        work = 0.0
        for b in range(a + 1, n + 1):
            work += m.work[c, b - 1]
            if not work <= bound * sizes[0]:
                break
            _inside(m, pin_first, pin_last, c, factor, a, b, into_cost, out_cost)
            fill(m, a, b, into_cost, out_cost, counts, bound, best, came, how, scratch)
            for kind in range(len(sizes)):
                table[kind, a, b] = best[b, : sizes[kind] + 1].min()


def cut_levels(
    m: Chain,
    pins: tuple[Ints, Ints],
    devices: tuple[DeviceClass, ...],
    clustered: int,
    bound: float,
) -> list[Stage] | None:
    """Best stages with loads up to `bound`, with their device numbers; None if there are none.

    Parameters
    ----------
    pins
        First and last item of each net, i64[p].
    clustered
        The class whose devices form clusters.

    O(n^2) segments, each with the work of `cut_chain` on its items.
    """
    device, n = devices[clustered], m.work.shape[1]
    inner = np.where(m.way_class == clustered, device.inner_factor, 1.0)
    m = m._replace(sync=m.sync * inner)  # no stage is in two clusters
    full, rest = divmod(device.count, device.cluster_size)
    kinds = [(size, count) for size, count in ((device.cluster_size, full), (rest, 1)) if size]
    kinds = [(size, count) for size, count in kinds if count]
    scratch = scratch_of(m)
    table = np.empty((len(kinds), n + 1, n + 1))
    sizes = np.array([size for size, _ in kinds], dtype=np.int64)
    factor = device.inner_factor
    _segments(m, *pins, clustered, factor, sizes, bound, scratch, table)
    # Ways of the outer level: a cluster of each kind, and the ways of all other classes.
    others = np.flatnonzero(m.way_class != clustered)
    digit = [*range(len(kinds)), *(len(kinds) + m.way_class[others]).tolist()]
    amount = [1] * len(kinds) + m.way_replicas[others].tolist()
    spare = [0 if c == clustered else d.count for c, d in enumerate(devices)]
    counts = np.array([*(count for _, count in kinds), *spare], dtype=np.int64)
    rows = np.full((n, len(digit), n + 1), np.inf)
    rows[:, : len(kinds)] = table[:, :n].transpose(1, 0, 2)
    for i in range(n if len(others) else 0):
        last = loads_from(m, i, n, m.cost, m.cost, bound, scratch)
        rows[i, len(kinds) :, i + 1 : last + 1] = scratch.row[others, i + 1 : last + 1]
    parts = _cover(rows, digit, amount, counts, bound)
    if parts is None:
        return None
    found: list[Stage] = []
    used = [0] * len(kinds)
    for first, end, way in parts:
        if way >= len(kinds):
            o = others[way - len(kinds)]
            found.append(Stage(first, end, int(m.way_class[o]), int(m.way_replicas[o])))
            continue
        into_cost, out_cost = m.cost.copy(), m.cost.copy()
        _inside(m, *pins, clustered, factor, first, end, into_cost, out_cost)
        inner = np.zeros(len(devices), dtype=np.int64)
        inner[clustered] = sizes[way]
        stages = cut_chain(m, first, end, (into_cost, out_cost), inner, bound) or []
        # The odd cluster is the last one.
        odd = sizes[way] < device.cluster_size
        number = device.cluster_size * (full if odd else used[way])
        used[way] += 1
        for stage in stages:
            found.append(stage._replace(number=number))
            number += stage.replicas
    return found


def _cover(
    rows: Floats, digit: list[int], amount: list[int], counts: Ints, bound: float
) -> list[_LevelPart] | None:
    """Cut the chain by the loads rows[first, way, end]; None if no value up to `bound`."""
    n = len(rows)
    stride = np.concatenate([[1], np.cumprod(counts + 1)]).astype(np.int64)
    best = np.full((int(stride[-1]), n + 1), np.inf)
    came = np.zeros((int(stride[-1]), n + 1), dtype=np.int64)
    how = np.zeros((int(stride[-1]), n + 1), dtype=np.int64)
    best[0, 0] = 0.0
    for i in range(n):
        for s in np.flatnonzero(best[:, i] < np.inf).tolist():
            for way, (d, r) in enumerate(zip(digit, amount, strict=True)):
                if (s // stride[d]) % (counts[d] + 1) + r > counts[d]:
                    continue
                to = s + r * stride[d]
                load = np.maximum(best[s, i], rows[i, way])
                better = (load < best[to]) & (load <= bound)
                best[to, better], came[to, better], how[to, better] = load[better], i, way
    state = int(best[:, n].argmin())
    if best[state, n] == np.inf:
        return None
    parts, end = [], n
    while end > 0:
        way, start = int(how[state, end]), int(came[state, end])
        parts.append(_LevelPart(start, end, way))
        state -= amount[way] * int(stride[digit[way]])
        end = start
    return parts[::-1]
