"""Kernels of the search over hierarchies: which parts of a pipeline one cluster can hold.

A pipeline is a chain of ideals, its stages are edges between them (`dnnp.core.dp.arcs`). A
cluster's segment from A to B needs the fewest devices of a path over the edges that stay within
the target when the transfers over its boundary are priced (`dnnp.core.dp.boundary`); `probe`
chains segments from the empty ideal to the full one. The cheapest loads give lower bounds of the
devices in any part, which prune both.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dnnp.core.cost.kernel import kernel
from dnnp.core.cost.load_kernel import load_of
from dnnp.core.dp.boundary import BUCKETS, NONE, extra, list_start, look_back, subset


class Platform(NamedTuple):
    """How many devices there are."""

    size: int
    """Devices of a full cluster."""
    full: int
    """Full clusters."""
    rest: int
    """Devices of the one cluster that is not full; 0: none."""
    cpus: int


@kernel
def fewest(a, target, least):  # type: ignore[no-untyped-def]
    """Fewest accelerators for what follows each ideal, by CPUs allowed; i64[I, cpus + 1].

    Every transfer takes the inner link.
    """
    count, width = least.shape
    least[:] = NONE
    least[count - 1] = 0
    for y in range(count - 1, 0, -1):
        if least[y, width - 1] == NONE:
            continue
        for e in range(a.into_ptr[y], a.into_ptr[y + 1]):
            if a.load[e] <= target:
                for c in range(width):
                    least[a.tail[e], c] = min(least[a.tail[e], c], least[y, c] + 1)
        for i in range(a.cpu_into_ptr[y], a.cpu_into_ptr[y + 1]):
            if a.cpu_load[a.cpu_into[i]] <= target:
                x = a.cpu_tail[a.cpu_into[i]]
                for c in range(width - 1):
                    least[x, c + 1] = min(least[x, c + 1], least[y, c])


@kernel
def _first_edge(a, start, s):  # type: ignore[no-untyped-def]
    """Place in `edges` of the lowest head above `start`."""
    lo, hi = 0, s.sizes[1]
    while lo < hi:
        middle = (lo + hi) // 2
        if a.head[s.edges[middle]] > start:
            lo = middle + 1
        else:
            hi = middle
    return lo - 1


@kernel
def _screen(p, a, start, end, target, most, cpus, s):  # type: ignore[no-untyped-def]
    """As if CPUs in the segment took the inner link: fill `fits`, `behind` and `front`.

    Returns (whether the segment is possible then, steps).
    """
    list_start(p, a, start, end, np.int64(0), s)
    made, made_cost = s.made[: s.counts[0]], s.made_cost[: s.counts[0]]
    read, read_cost = s.read[: s.counts[1]], s.read_cost[: s.counts[1]]
    bits, pins, low_word, high_word = a.bits, a.pins, a.low_word, a.high_word
    parts, tail, head, listed = a.parts, a.tail, a.head, s.listed
    edges, priced, fits, comm = s.edges, s.priced, s.fits, p.comm
    behind, front = s.behind, s.front
    above = s.above[0]
    steps = s.sizes[0]
    for i in range(s.sizes[0]):
        behind[listed[i]] = NONE
        front[listed[i]] = NONE
    behind[end] = 0
    lowest = _first_edge(a, start, s)
    at = 0
    for k in range(s.sizes[0]):
        y = listed[k]
        if y <= start:
            break
        while at <= lowest and head[edges[at]] > y:
            at += 1
        while at <= lowest and head[edges[at]] == y:
            e = edges[at]
            x = tail[e]
            steps += 1
            fits[at] = x >= start and behind[y, cpus] < most
            if fits[at]:
                more_in, more_out = extra(
                    bits, pins, low_word, high_word, x, y, made, made_cost, read, read_cost
                )
                value = load_of(
                    comm, priced[at, 1] + more_in, parts[e, 0], 0.0, priced[at, 2] + more_out
                )
                if value > target:
                    fits[at] = False
                    above = min(above, value)
                else:
                    for c in range(cpus + 1):
                        behind[x, c] = min(behind[x, c], behind[y, c] + 1)
            at += 1
        if behind[y, cpus] <= most:
            for i in range(a.cpu_into_ptr[y], a.cpu_into_ptr[y + 1]):
                x = a.cpu_tail[a.cpu_into[i]]
                if a.cpu_load[a.cpu_into[i]] <= target and x >= start:
                    for c in range(cpus):
                        behind[x, c + 1] = min(behind[x, c + 1], behind[y, c])
    s.above[0] = above
    if behind[start, cpus] > most:
        return False, steps
    front[start] = 0
    for i in range(lowest, -1, -1):
        if fits[i]:
            front[head[edges[i]]] = min(front[head[edges[i]]], front[tail[edges[i]]] + 1)
    return True, steps + lowest


@kernel
def _cover(p, a, start, end, target, most, cpus, s):  # type: ignore[no-untyped-def]
    """Fewest accelerators for a segment with the CPU blocks inner[:cpus]; (devices, steps).

    Follows `look_back` at `end` and, if there are CPU blocks, `_screen`.
    """
    list_start(p, a, start, end, cpus, s)
    made, made_cost = s.made[: s.counts[0]], s.made_cost[: s.counts[0]]
    read, read_cost = s.read[: s.counts[1]], s.read_cost[: s.counts[1]]
    bits, pins, low_word, high_word = a.bits, a.pins, a.low_word, a.high_word
    parts, tail, head, listed = a.parts, a.tail, a.head, s.listed
    edges, priced, fits, comm = s.edges, s.priced, s.fits, p.comm
    need, came = s.need, s.came
    ahead = s.behind if cpus else s.ahead
    most_in, most_out = read_cost.sum(), made_cost.sum()
    above = s.above[0]
    for i in range(s.sizes[0]):
        need[listed[i]] = NONE
    need[start] = 0
    came[start] = -1
    steps = s.sizes[0]
    i = _first_edge(a, start, s)
    for phase in range(cpus + 1):
        final = end if phase == cpus else a.cpu_tail[s.inner[phase]]
        left = cpus - phase
        while i >= 0 and head[edges[i]] <= final:
            at = i
            i -= 1
            steps += 1
            e = edges[at]
            x, y = tail[e], head[e]
            devices = need[x] + 1
            if devices >= need[y] or devices + ahead[y, left] > most:
                continue
            if cpus > 0 and (not fits[at] or (left > 0 and not subset(a, y, final))):
                continue
            arriving, leaving = priced[at, 1], priced[at, 2]
            value = load_of(comm, arriving + most_in, parts[e, 0], 0.0, leaving + most_out)
            if value > target:
                more_in, more_out = extra(
                    bits, pins, low_word, high_word, x, y, made, made_cost, read, read_cost
                )
                steps += len(made) + len(read)
                value = load_of(comm, arriving + more_in, parts[e, 0], 0.0, leaving + more_out)
                if value > target:
                    above = min(above, value)
                    continue
            need[y] = devices
            came[y] = e
        if left > 0:
            devices = need[final]
            if devices == NONE:
                break
            # Only paths through the CPU block go on.
            for k in range(s.sizes[0]):
                need[listed[k]] = NONE
            after = a.cpu_head[s.inner[phase]]
            need[after] = devices
            came[after] = -2 - s.inner[phase]
            while i >= 0 and head[edges[i]] <= after:
                i -= 1
    s.above[0] = above
    return need[end], steps


@kernel
def cover(p, a, start, end, target, most, cpus, s):  # type: ignore[no-untyped-def]
    """Fewest accelerators, up to `most`, for a segment with `cpus` CPU blocks strictly inside.

    The first CPU blocks that fit are taken, in the order of their ideals. Follows `look_back` at
    `end`; returns (devices or NONE, steps).
    """
    steps, level = 0, 0
    if cpus > 0:
        possible, steps = _screen(p, a, start, end, target, most, cpus, s)
        if not possible:
            return NONE, steps
        s.inner[0] = a.cpu_ptr[start + 1] - 1
    while level >= 0:
        if cpus == 0:
            devices, steps = _cover(p, a, start, end, target, most, cpus, s)
            return (devices if devices <= most else NONE), steps
        s.inner[level] += 1
        e = s.inner[level]
        if e >= a.cpu_ptr[end]:
            level -= 1
            continue
        steps += 1
        x, y, left = a.cpu_tail[e], a.cpu_head[e], cpus - level - 1
        if a.cpu_load[e] > target or y == end or s.ahead[y, left] > most:
            continue
        if s.behind[y, left] > most:
            continue
        if level == 0:
            if s.front[x] + s.behind[y, left] > most:
                continue
        elif not subset(a, a.cpu_head[s.inner[level - 1]], x):
            continue
        if left:
            level += 1
            s.inner[level] = max(a.cpu_ptr[y], e + 1) - 1
            continue
        devices, more = _cover(p, a, start, end, target, most, cpus, s)
        steps += more
        if devices <= most:
            return devices, steps
    return NONE, steps


@kernel
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


@kernel
def _add_cpus(a, platform, target, after, clusters, came, how, end):  # type: ignore[no-untyped-def]
    """Reach an ideal by a CPU block that no cluster surrounds."""
    for i in range(a.cpu_into_ptr[end], a.cpu_into_ptr[end + 1]):
        e = a.cpu_into[i]
        if a.cpu_load[e] > target:
            continue
        for taken in range(2):
            for c in range(platform.cpus):
                full = clusters[a.cpu_tail[e], taken, c]
                if full < clusters[end, taken, c + 1]:
                    clusters[end, taken, c + 1] = full
                    came[end, taken, c + 1] = a.cpu_tail[e]
                    how[end, taken, c + 1] = 0


@kernel
def _useful(platform, after, clusters, start, end, inside):  # type: ignore[no-untyped-def]
    """Devices that a segment may have to be of use; 0: it is not."""
    most = np.int64(0)  # lest numba compile what follows for the constant 0 too
    for kind in range(3):
        for c in range(platform.cpus + 1 - inside):
            if _improved(platform, after, clusters, start, end, kind, c, inside) < NONE:
                most = max(most, platform.rest if kind == 2 else platform.size)
    return most


@kernel
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
                how[end, min(kind, 1), c + inside] = 1 + 2 * inside + kind // 2


@kernel
def _reach(a, target, x, least):  # type: ignore[no-untyped-def]
    """Lower the devices that an ideal takes, by CPUs so far, to what it takes by one block more."""
    width = least.shape[1]
    for e in range(a.into_ptr[x], a.into_ptr[x + 1]):
        if a.load[e] <= target:
            for c in range(width):
                least[x, c] = min(least[x, c], least[a.tail[e], c] + 1)
    for i in range(a.cpu_into_ptr[x], a.cpu_into_ptr[x + 1]):
        if a.cpu_load[a.cpu_into[i]] <= target:
            for c in range(width - 1):
                least[x, c + 1] = min(least[x, c + 1], least[a.cpu_tail[a.cpu_into[i]], c])


@kernel
def _sort(a, target, x, s):  # type: ignore[no-untyped-def]
    """Fill `order` and `bucket` for the blocks into an ideal."""
    cpus = s.reach.shape[1] - 1
    sizes = np.zeros(BUCKETS, np.int64)
    for e in range(a.into_ptr[x], a.into_ptr[x + 1]):
        if a.load[e] <= target and s.reach[a.tail[e], cpus] < NONE:
            sizes[min(s.reach[a.tail[e], cpus], BUCKETS - 1)] += 1
    s.bucket[x, 0] = a.into_ptr[x]
    for i in range(BUCKETS):
        s.bucket[x, i + 1] = s.bucket[x, i] + sizes[i]
    for e in range(a.into_ptr[x + 1] - 1, a.into_ptr[x] - 1, -1):
        if a.load[e] <= target and s.reach[a.tail[e], cpus] < NONE:
            i = min(s.reach[a.tail[e], cpus], BUCKETS - 1)
            sizes[i] -= 1
            s.order[s.bucket[x, i] + sizes[i]] = e


@kernel
def _promising(platform, before, after, x):  # type: ignore[no-untyped-def]
    """Whether a cluster may end at an ideal, by the devices that either side takes at least."""
    size, rest = platform.size, platform.rest
    for c in range(platform.cpus + 1):
        full = (before[x, c] + size - 1) // size
        spent = full * size if rest == 0 or full == 0 else (full - 1) * size + rest
        if after[x, platform.cpus - c] <= platform.full * size + rest - spent:
            return True
    return False


@kernel
def probe(p, a, platform, target, after, clusters, came, how, first, chunk, s):  # type: ignore[no-untyped-def]
    """Chain segments and CPU blocks up to each ideal, from ideal `first` on.

    Parameters
    ----------
    after
        i64[I, cpus + 1], fewest accelerators for what follows an ideal (`fewest`).
    clusters
        i64[I, 2, cpus + 1], out: fewest full clusters, by use of the other one and by CPUs.
    came, how
        i64, out: the ideal before the last part; 0: it is a CPU block, else
        1 + (1 if it is on the cluster that is not full) + 2 * (CPU blocks inside).
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
        _reach(a, target, end, s.before)
        _reach(a, target, end, s.reach)
        _sort(a, target, end, s)
        if s.reach[end].min() > platform.size or not _promising(platform, s.before, after, end):
            continue
        _add_cpus(a, platform, target, after, clusters, came, how, end)
        steps += look_back(p, a, end, target, platform.size, s)
        for i in range(s.sizes[0] - 1, -1, -1):
            start = s.listed[i]
            if start == end or clusters[start].min() == NONE:
                continue
            for inside in range(cpus + 1):
                if s.ahead[start, inside] > platform.size:
                    continue
                tried = _useful(platform, after, clusters, start, end, inside)
                while s.ahead[start, inside] <= tried:
                    devices, more = cover(p, a, start, end, target, tried, inside, s)
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
