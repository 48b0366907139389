"""Kernels of the search over hierarchies: which parts of a pipeline one cluster can hold.

A pipeline is a chain of ideals, its stages are edges between them
(`dnnp.core.split.clusters.edges`). A cluster's segment from A to B needs the fewest devices
of a path over the edges that stay within the target when the transfers over its boundary are priced
(`dnnp.core.split.clusters.segment`); `probe` chains segments from the empty ideal to the full one.
A stage that runs in several clusters takes whole ones. The cheapest loads give lower bounds of the
devices in any part, which prune both.

`least_load` is a bound: the first and the last stage of each cluster pay for their outer side.
The first stage of a cluster in the order of the pipeline takes nothing that comes before it from
its own cluster, the last one leaves nothing that comes after it there: these transfers take the
outer link, wherever the cluster's other stages are. All other transfers take the inner one here,
and devices within open clusters, begun and not ended, are counted together, which only lowers
loads. With one open cluster at a time the bound is of splits with contiguous clusters.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dnnp.core.cost.load_formula import load_of
from dnnp.core.kernels.kernel import callee, kernel, lean, part
from dnnp.core.model.graph import Ints
from dnnp.core.split.clusters.edges import Arcs
from dnnp.core.split.clusters.segment import (
    BUCKETS,
    NONE,
    NOTHING,
    Scratch,
    copies_of,
    cover,
    extra,
    list_end,
    list_start,
    look_back,
    moved_by,
)
from dnnp.core.split.ideals.problem import PricedGraph

ON_CPUS, IN_CLUSTER, IN_CLUSTERS = 0, 1, 2
"""Parts of a pipeline."""


class Platform(NamedTuple):
    """Numbers of devices."""

    size: int
    """Devices of a full cluster."""
    full: int
    """Full clusters."""
    rest: int
    """Devices of the one cluster that is not full; 0: none."""
    cpus: int


@kernel
def fewest(p, a, goal, least, s):  # type: ignore[no-untyped-def]
    """Fewest accelerators for what follows each ideal, by CPUs allowed; i64[I, cpus + 1].

    Every transfer takes the inner link. Fills `copies` and `cpu_copies` first.
    """
    count, width = least.shape
    comm, copies, one = p.comm, p.copies[0], np.int64(1)
    for e in range(len(a.head)):
        wait, moved = a.sync[0] * a.weight[e], moved_by(a.parts[e])
        s.copies[e] = copies_of(comm, goal, one, copies, wait, a.parts[e], moved, NOTHING)
    parts = np.zeros((2, 3))
    most = min(p.copies[len(p.copies) - 1], width - 1)
    for e in range(len(a.cpu_head)):
        parts[:, 0] = a.cpu_load[e]
        wait = a.sync[2] * a.cpu_weight[e]
        s.cpu_copies[e] = copies_of(comm, goal, one, most, wait, parts, NOTHING, NOTHING)
    least[:] = NONE
    least[count - 1] = 0
    for y in range(count - 1, 0, -1):
        if least[y, width - 1] == NONE:
            continue
        for e in range(a.into_ptr[y], a.into_ptr[y + 1]):
            if s.copies[e] < NONE:
                for c in range(width):
                    least[a.tail[e], c] = min(least[a.tail[e], c], least[y, c] + s.copies[e])
        for i in range(a.cpu_into_ptr[y], a.cpu_into_ptr[y + 1]):
            x, taken = a.cpu_tail[a.cpu_into[i]], s.cpu_copies[a.cpu_into[i]]
            for c in range(width - min(taken, width)):
                least[x, c + taken] = min(least[x, c + taken], least[y, c])


@part
def _improved(platform, after, clusters, start, end, kind, c, inside):  # type: ignore[no-untyped-def]
    """Full clusters up to `end` if a segment follows `start`; NONE if that is of no use.

    Kind 0 and 1: the segment takes a full cluster, and the other one is free or taken; kind 2: it
    takes the other one. c CPUs were used before, `inside` are in the segment.
    """
    taken = min(kind, 1)
    full = clusters[start, kind % 2, c] + (1 if kind < 2 else 0)
    if full > platform.full or full >= clusters[end, taken, c + inside]:
        return NONE
    left = (platform.full - full) * platform.size + (1 - taken) * platform.rest
    return full if after[end, platform.cpus - c - inside] <= left else NONE


@callee
def _add_cpus(a, platform, clusters, came, how, end, s):  # type: ignore[no-untyped-def]
    """Reach an ideal by a CPU block that no cluster surrounds."""
    for i in range(a.cpu_into_ptr[end], a.cpu_into_ptr[end + 1]):
        e = a.cpu_into[i]
        used = s.cpu_copies[e]
        for taken in range(2):
            for c in range(platform.cpus + 1 - min(used, platform.cpus + 1)):
                full = clusters[a.cpu_tail[e], taken, c]
                if full < clusters[end, taken, c + used]:
                    clusters[end, taken, c + used] = full
                    came[end, taken, c + used] = a.cpu_tail[e]
                    how[end, taken, c + used] = 4 * used + ON_CPUS


@kernel
def _add_spans(p, a, goal, platform, after, clusters, came, how, end, s):  # type: ignore[no-untyped-def]
    """Reach an ideal by a stage in several clusters."""
    size, rest = platform.size, platform.rest
    for e in range(a.into_ptr[end], a.into_ptr[end + 1]):
        start = a.tail[e]
        if s.copies[e] == NONE or clusters[start].min() == NONE:
            continue
        wait = a.sync[1] * a.weight[e]
        far = (a.far[e, 0, 0], a.far[e, 0, 1], a.far[e, 1, 0], a.far[e, 1, 1])
        most = min(p.copies[0], platform.full * size + rest)
        first = np.int64(size + 1)
        used = copies_of(p.comm, goal, first, most, wait, a.parts[e], far, NOTHING)
        if used == NONE:
            continue
        for odd in range(1 + (rest > 0)):
            whole = (used - odd * rest + size - 1) // size
            for before in range(2 - odd):
                taken = before + odd
                for c in range(platform.cpus + 1):
                    full = clusters[start, before, c] + whole
                    left = (platform.full - full) * size + (1 - taken) * rest
                    if full >= clusters[end, taken, c] or full > platform.full:
                        continue
                    if after[end, platform.cpus - c] > left:
                        continue
                    clusters[end, taken, c], came[end, taken, c] = full, start
                    how[end, taken, c] = 4 * used + IN_CLUSTERS + odd


@callee
def _useful(platform, after, clusters, start, end, inside):  # type: ignore[no-untyped-def]
    """Devices that a segment may have to be of use; 0: it is not."""
    most = np.int64(0)  # lest numba compile what follows for the constant 0 too
    for kind in range(3):
        for c in range(platform.cpus + 1 - inside):
            if _improved(platform, after, clusters, start, end, kind, c, inside) < NONE:
                most = max(most, platform.rest if kind == 2 else platform.size)
    return most


@callee
def _enter(platform, after, clusters, came, how, start, end, inside, devices):  # type: ignore[no-untyped-def]
    """Reach an ideal by a segment of so many devices."""
    for kind in range(3):
        if devices > (platform.rest if kind == 2 else platform.size):
            continue
        for c in range(platform.cpus + 1 - inside):
            full = _improved(platform, after, clusters, start, end, kind, c, inside)
            if full < NONE:
                clusters[end, min(kind, 1), c + inside] = full
                came[end, min(kind, 1), c + inside] = start
                how[end, min(kind, 1), c + inside] = 8 * inside + 4 * (kind // 2) + IN_CLUSTER


@callee
def _reach(a, x, least, s):  # type: ignore[no-untyped-def]
    """Lower the devices of an ideal, by CPUs so far, to those over one block more."""
    width = least.shape[1]
    for e in range(a.into_ptr[x], a.into_ptr[x + 1]):
        if s.copies[e] < NONE:
            for c in range(width):
                least[x, c] = min(least[x, c], least[a.tail[e], c] + s.copies[e])
    for i in range(a.cpu_into_ptr[x], a.cpu_into_ptr[x + 1]):
        used = s.cpu_copies[a.cpu_into[i]]
        for c in range(width - min(used, width)):
            least[x, c + used] = min(least[x, c + used], least[a.cpu_tail[a.cpu_into[i]], c])


@kernel
def _sort(a, x, s):  # type: ignore[no-untyped-def]
    """Fill `order` and `bucket` for the blocks into an ideal."""
    cpus = s.reach.shape[1] - 1
    sizes = np.zeros(BUCKETS, np.int64)
    for e in range(a.into_ptr[x], a.into_ptr[x + 1]):
        if s.copies[e] < NONE and s.reach[a.tail[e], cpus] < NONE:
            sizes[min(s.reach[a.tail[e], cpus], BUCKETS - 1)] += 1
    s.bucket[x, 0] = a.into_ptr[x]
    for i in range(BUCKETS):
        s.bucket[x, i + 1] = s.bucket[x, i] + sizes[i]
    for e in range(a.into_ptr[x + 1] - 1, a.into_ptr[x] - 1, -1):
        if s.copies[e] < NONE and s.reach[a.tail[e], cpus] < NONE:
            i = min(s.reach[a.tail[e], cpus], BUCKETS - 1)
            sizes[i] -= 1
            s.order[s.bucket[x, i] + sizes[i]] = e


@callee
def _promising(platform, before, after, x):  # type: ignore[no-untyped-def]
    """True if a cluster may end at an ideal, by the least devices of either side."""
    size, rest = platform.size, platform.rest
    for c in range(platform.cpus + 1):
        full = (before[x, c] + size - 1) // size
        spent = full * size if rest == 0 or full == 0 else (full - 1) * size + rest
        if after[x, platform.cpus - c] <= platform.full * size + rest - spent:
            return True
    return False


@kernel
def probe(p, a, platform, goal, after, clusters, came, how, first, chunk, s):  # type: ignore[no-untyped-def]
    """Chain segments and CPU blocks up to each ideal, from ideal `first` on.

    Parameters
    ----------
    after
        i64[I, cpus + 1], fewest accelerators for what follows an ideal (`fewest`).
    clusters
        i64[I, 2, cpus + 1], out: fewest full clusters, by use of the other one and by CPUs.
    came, how
        i64, out: the ideal before the last part; ON_CPUS + 4 * CPUs, or IN_CLUSTER + (4 if it is
        the one that is not full) + 8 * CPU blocks inside, or, of a stage in several clusters,
        IN_CLUSTERS + (1 if the one that is not full is among them) + 4 * devices.
    chunk
        Steps after which to pause.

    Returns
    -------
    (ideal to continue with, or their number; steps)
    """
    count, cpus = len(after), platform.cpus
    steps = 0
    if first == 0:
        clusters[0] = 0
        s.reach[0] = 0
        s.before[0] = 0
    for end in range(max(first, 1), count):
        s.before[end] = NONE
        s.reach[end] = NONE
        _reach(a, end, s.before, s)
        _reach(a, end, s.reach, s)
        _sort(a, end, s)
        if not _promising(platform, s.before, after, end):
            continue
        _add_cpus(a, platform, clusters, came, how, end, s)
        if len(a.far):
            _add_spans(p, a, goal, platform, after, clusters, came, how, end, s)
        listed = 0
        if s.reach[end].min() <= platform.size:
            steps += look_back(p, a, end, goal, platform.size, s)
            listed = s.sizes[0]
        for i in range(listed - 1, -1, -1):
            start = s.listed[i]
            if start == end or clusters[start].min() == NONE:
                continue
            for inside in range(cpus + 1):
                if s.ahead[start, inside] > platform.size:
                    continue
                tried = _useful(platform, after, clusters, start, end, inside)
                while s.ahead[start, inside] <= tried:
                    devices, more = cover(p, a, start, end, goal, tried, inside, s)
                    _enter(platform, after, clusters, came, how, start, end, inside, devices)
                    steps += more
                    # Other CPU blocks than the first that fit may do with the smaller cluster.
                    again = inside > 0 and platform.rest < devices <= tried
                    tried = platform.rest if again else np.int64(-1)
        for c in range(cpus + 1):
            if clusters[end, :, : c + 1].min() < NONE:
                s.reach[end, c] = 0
        if steps > chunk:
            return end + 1, steps
    return count, steps


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
