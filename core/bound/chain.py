"""A bound from the heaviest path: an ordered split can only be cut in certain places.

Let b1 < b2 < ... be items on a path. Every ideal holds a first part of the path, b1..bi, so its
work lies between that of the ancestors of bi and what the descendants of b(i+1) leave. Boundaries
of stages are ideals: their works lie in the union of these intervals. A target T is infeasible
if the devices, each going as far as T and the intervals allow, do not get to the end; going less
far never helps. With several classes, work is weighed as in `dnnp.core.cost.spread`. Transfers
do not count.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import product

import numpy as np

from dnnp.core.cost.items import Items, item_choices
from dnnp.core.cost.spread import spread
from dnnp.core.model.cluster import Clustering
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.graph import Floats, Graph, csr, totals
from dnnp.core.model.plan import CostOptions

MOST_ITEMS = 20_000
"""Items up to which the bound is computed; what is reachable takes items^2 / 8 bytes."""

MOST_STATES = 2_000
"""Mixes of device classes."""

SLACK = 1e-9
"""Relative, against rounding in the sums."""


def chain_bound(
    graph: Graph,
    units: Clustering,
    devices: tuple[DeviceClass, ...],
    options: CostOptions,
) -> float:
    """Lower bound of the largest load of any ordered split; 0 where it is no use."""
    if options.objective != "throughput" or not graph.n:
        return 0.0
    return min(
        _bound(graph, units, items, devices, options) for items in item_choices(graph, units)
    )


def _bound(
    graph: Graph,
    units: Clustering,
    items: Items,
    devices: tuple[DeviceClass, ...],
    options: CostOptions,
) -> float:
    offered = [d for d in devices if d.count > 0]
    counts = [min(d.count, units.g * options.max_replicas) for d in offered]
    if items.count > MOST_ITEMS or np.prod([float(c + 1) for c in counts]) > MOST_STATES:
        return 0.0
    first = units.member_idx[units.member_ptr[:-1]]
    nowhere = np.full(units.g, np.inf)
    work = np.stack([
        totals(items.label[first], units.times.get(d.name, nowhere), items.count) for d in offered
    ])  # fmt: skip
    weights = spread(work, np.array(counts, dtype=np.float64))[1]
    share = (weights[:, None] * work).min(axis=0)
    if not np.isfinite(share).all():
        return 0.0
    low, high = _places(items, share)
    total = float(share.sum())

    def feasible(target: float) -> bool:
        steps = [w * target for w in weights.tolist()]
        return _covers(low, high, steps, counts, options.max_replicas, total * (1 - SLACK))

    # The weighted target of all devices is the work: no split is below `lower`.
    lower, upper = total * (1 - SLACK), total / float(weights.max())
    if feasible(lower):
        return 0.0
    while upper - lower > SLACK * upper:
        middle = (lower + upper) / 2
        if feasible(middle):
            upper = middle
        else:
            lower = middle
    return lower


def _places(items: Items, share: Floats) -> tuple[list[float], list[float]]:
    """Disjoint intervals, ascending, that hold the work of every ideal."""
    order, n = items.order, items.count
    place = np.empty(n, dtype=np.int64)
    place[order] = np.arange(n)
    weight = share[order]
    ptr, before = csr(place[items.head], place[items.tail], n)
    starts, pred = ptr.tolist(), before.tolist()
    ancestors = [0] * n
    above, below = weight.copy(), weight.copy()
    longest, came = weight.tolist(), [-1] * n
    width = (n + 7) // 8
    for v in range(n):
        bits, own = 0, longest[v]
        for u in pred[starts[v] : starts[v + 1]]:
            bits |= ancestors[u] | 1 << u
            if longest[u] + own > longest[v]:
                longest[v], came[v] = longest[u] + own, u
        ancestors[v] = bits
        packed = np.frombuffer(bits.to_bytes(width, "little"), dtype=np.uint8)
        inside = np.unpackbits(packed, count=n, bitorder="little").view(np.bool_)
        above[v] += weight[inside].sum()
        below[inside] += weight[v]
    path = [int(np.argmax(longest))]
    while came[path[-1]] >= 0:
        path.append(came[path[-1]])
    path.reverse()
    total = float(weight.sum())
    # The empty ideal, then a first part of the path of 1, 2, ... items.
    least = np.append(0.0, above[path]) - SLACK * total
    most = total - np.append(below[path], 0.0) + SLACK * total
    low, high = [float(least[0])], [float(max(most[0], least[0]))]
    for a, b in zip(least[1:].tolist(), most[1:].tolist(), strict=True):
        if a > high[-1]:
            low.append(a)
            high.append(max(a, b))
        else:
            high[-1] = max(high[-1], b)
    return low, high


def _covers(
    low: list[float],
    high: list[float],
    steps: list[float],
    counts: list[int],
    max_replicas: int,
    end: float,
) -> bool:
    """Whether the devices, `counts` of each class, get to the end in these steps of work."""
    furthest = {(0,) * len(counts): high[0]}
    # Mixes of devices come before those with one device more.
    for used in product(*(range(c + 1) for c in counts)):
        reached = furthest.get(used)
        if reached is None:
            continue
        if reached >= end:
            return True
        for c, step in enumerate(steps):
            for r in range(1, min(max_replicas, counts[c] - used[c]) + 1):
                far = reached + r * step
                # The furthest place that is not beyond it.
                at = min(far, high[bisect_right(low, far) - 1])
                mix = (*used[:c], used[c] + r, *used[c + 1 :])
                furthest[mix] = max(furthest.get(mix, 0.0), at)
    return False
