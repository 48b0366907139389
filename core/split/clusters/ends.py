"""Bounds over clusters: the first and the last stage of each cluster pay for their outer side.

The first stage of a cluster in the order of the pipeline takes nothing that comes before it from
its own cluster, the last one leaves nothing that comes after it there: these transfers take the
outer link, wherever the cluster's other stages are. All other transfers take the inner one here,
and devices within open clusters, begun and not ended, are counted together, which only lowers
loads. With one open cluster at a time the bound is of splits with contiguous clusters.
"""

from __future__ import annotations

import numpy as np

from dnnp.core.cost.load_formula import load_of
from dnnp.core.kernels.kernel import lean
from dnnp.core.model.graph import Ints
from dnnp.core.split.clusters.edges import Arcs
from dnnp.core.split.clusters.segment import Scratch, extra, list_end, list_start
from dnnp.core.split.clusters.segments import Platform
from dnnp.core.split.ideals.problem import PricedGraph

State = tuple[int, int, int, int]
"""Full clusters begun, whether the one that is not full is, open clusters, devices left in them."""


def least_load(
    p: PricedGraph,
    arcs: Arcs,
    platform: Platform,
    s: Scratch,
    limit: float,
    most_open: int,
    steps: float,
) -> float:
    """Least largest load, or `limit` if that is less; 0: it would take more than `steps`.

    Of one pass, and of stages without replicas; up to `most_open` clusters are open at a time.
    """
    first, moves, ends = _moves(platform, most_open, steps / max(len(arcs.head), 1))
    if not len(moves) or len(ends) * len(arcs.bits) * (platform.cpus + 1) > MOST_VALUES:
        return 0.0
    best = np.full((len(arcs.bits), platform.cpus + 1, len(ends)), np.inf)
    best[0, 0, 0] = 0.0
    reach(p, arcs, first, moves, limit, best, s)
    return min(limit, float(best[-1][:, ends].min()))


MOST_VALUES = 50_000_000
"""Loads of ideals and states that are kept, 8 bytes each."""


def _moves(platform: Platform, most_open: int, most: float) -> tuple[Ints, Ints, Ints]:
    """(first of each kind i64[5], states before and after i64[M, 2], whether one may be the end).

    Kinds of stages: in the middle of a cluster, first, last, and alone in it. All are empty if
    there are more than `most`.
    """
    size, rest = platform.size, platform.rest
    number: dict[State, int] = {(0, 0, 0, 0): 0}
    moves: list[tuple[int, int, int]] = []
    for state in (waiting := list(number)):
        full, odd, opened, left = state
        after: list[tuple[int, State]] = []
        if left > opened:
            after.append((0, (full, odd, opened, left - 1)))
        if opened:
            kept = min(left - 1, (opened - 1) * (size - 1))
            after.append((2, (full, odd, opened - 1, kept)))
        begun = [(full + 1, odd, size)] * (full < platform.full)
        begun += [(full, 1, rest)] * (odd < (rest > 0))
        for f, o, room in begun:
            if opened < most_open:
                after.append((3, (f, o, opened, left)))
                if room > 1:
                    after.append((1, (f, o, opened + 1, left + room - 1)))
        for kind, to in after:
            if to not in number:
                number[to] = len(number)
                waiting.append(to)
            moves.append((kind, number[state], number[to]))
        if len(moves) > most:
            return (np.zeros(0, dtype=np.int64),) * 3
    table = np.array(sorted(moves), dtype=np.int64).reshape(-1, 3)
    ends = np.array([not state[2] for state in number])
    return np.searchsorted(table[:, 0], np.arange(5)), np.ascontiguousarray(table[:, 1:]), ends


@lean
def reach(p, a, first, moves, limit, best, s):  # type: ignore[no-untyped-def]
    """Fill in the least largest load up to each ideal, by CPUs and state, where below `limit`."""
    cpus = best.shape[1] - 1
    for y in range(1, len(a.bits)):
        list_end(p, a, y, s)
        for e in range(a.into_ptr[y], a.into_ptr[y + 1]):
            arriving, leaving, _, _ = extra(a, s, a.tail[e], y)
            s.priced[e, 0], s.priced[e, 1] = arriving, leaving
        for e in range(a.into_ptr[y], a.into_ptr[y + 1]):
            x = a.tail[e]
            list_start(p, a, x, y, np.int64(0), s)
            arriving, leaving, _, _ = extra(a, s, x, y)
            for kind in range(4):
                into, out = a.parts[e, 0, 1], a.parts[e, 0, 2]
                if kind & 1:
                    into, out = into + arriving, out + leaving
                if kind & 2:
                    into, out = into + s.priced[e, 0], out + s.priced[e, 1]
                load = load_of(p.comm, into, a.parts[e, 0, 0], 0.0, out)
                if load >= limit:
                    continue
                for i in range(first[kind], first[kind + 1]):
                    for c in range(cpus + 1):
                        value = max(best[x, c, moves[i, 0]], load)
                        if value < best[y, c, moves[i, 1]]:
                            best[y, c, moves[i, 1]] = value
        for i in range(a.cpu_into_ptr[y], a.cpu_into_ptr[y + 1]):
            e = a.cpu_into[i]
            for c in range(cpus):
                for state in range(best.shape[2]):
                    value = max(best[a.cpu_tail[e], c, state], a.cpu_load[e, 0])
                    if value < best[y, c + 1, state]:
                        best[y, c + 1, state] = value
