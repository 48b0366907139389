"""Kernels of the search over hierarchies: the fewest devices for one cluster's segment.

A shortest path over the blocks that `dnnp.core.split.clusters.boundary` lists, with the CPU blocks
inside the segment chosen first.
"""

from __future__ import annotations

import numpy as np

from dnnp.core.kernels.kernel import kernel
from dnnp.core.split.clusters.boundary import NONE, copies_of, extra, list_start, subset


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
def _screen(p, a, start, end, goal, most, cpus, s):  # type: ignore[no-untyped-def]
    """As if CPUs in the segment took the inner link: fill `screened`, `behind` and `front`.

    Returns (whether the segment is possible then, steps).
    """
    list_start(p, a, start, end, np.int64(0), s)
    made, made_cost = s.made[: s.counts[0]], s.made_cost
    read, read_cost = s.read[: s.counts[1]], s.read_cost
    bits, pins, low_word, high_word = a.bits, a.pins, a.low_word, a.high_word
    parts, tail, head, listed = a.parts, a.tail, a.head, s.listed
    edges, priced, screened = s.edges, s.priced, s.screened
    behind, front, most_copies = s.behind, s.front, min(p.copies, most)
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
            screened[at] = NONE
            if x >= start and behind[y, cpus] + s.taken[at] <= most:
                more = extra(
                    bits, pins, low_word, high_word, x, y, made, made_cost, read, read_cost
                )
                screened[at] = copies_of(
                    p, goal, s.taken[at], most_copies, p.sync[0] * a.weight[e], parts[e],
                    priced[at, 0] + more[0], priced[at, 1] + more[1], priced[at, 2] + more[2],
                    priced[at, 3] + more[3],
                )  # fmt: skip
                if screened[at] < NONE:
                    for c in range(cpus + 1):
                        behind[x, c] = min(behind[x, c], behind[y, c] + screened[at])
            at += 1
        if behind[y, cpus] <= most:
            for i in range(a.cpu_into_ptr[y], a.cpu_into_ptr[y + 1]):
                x = a.cpu_tail[a.cpu_into[i]]
                if s.cpu_copies[a.cpu_into[i]] == 1 and x >= start:
                    for c in range(cpus):
                        behind[x, c + 1] = min(behind[x, c + 1], behind[y, c])
    if behind[start, cpus] > most:
        return False, steps
    front[start] = 0
    for i in range(lowest, -1, -1):
        if screened[i] < NONE:
            y, devices = head[edges[i]], front[tail[edges[i]]] + screened[i]
            front[y] = min(front[y], devices)
    return True, steps + lowest


@kernel
def _cover(p, a, start, end, goal, most, cpus, s):  # type: ignore[no-untyped-def]
    """Fewest accelerators for a segment with the CPU blocks inner[:cpus]; (devices, steps).

    Follows `look_back` at `end` and, if there are CPU blocks, `_screen`.
    """
    list_start(p, a, start, end, cpus, s)
    made, made_cost = s.made[: s.counts[0]], s.made_cost
    read, read_cost = s.read[: s.counts[1]], s.read_cost
    bits, pins, low_word, high_word = a.bits, a.pins, a.low_word, a.high_word
    parts, tail, head, listed = a.parts, a.tail, a.head, s.listed
    edges, priced = s.edges, s.priced
    need, came, most_copies = s.need, s.came, min(p.copies, most)
    ahead = s.behind if cpus else s.ahead
    least = s.screened if cpus else s.taken
    everything = (read_cost[0, : len(read)].sum(), made_cost[0, : len(made)].sum(),
                  read_cost[1, : len(read)].sum(), made_cost[1, : len(made)].sum())  # fmt: skip
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
            taken = least[at]
            devices = need[x] + taken
            if devices >= need[y] or devices + ahead[y, left] > most:
                continue
            if left > 0 and not subset(a, y, final):
                continue
            more, wait, above = everything, p.sync[0] * a.weight[e], goal.above[0]
            found = copies_of(
                p, goal, taken, taken, wait, parts[e], priced[at, 0] + more[0],
                priced[at, 1] + more[1], priced[at, 2] + more[2], priced[at, 3] + more[3],
            )  # fmt: skip
            if found == NONE:
                # It does not pay for everything.
                goal.above[0] = above
                more = extra(
                    bits, pins, low_word, high_word, x, y, made, made_cost, read, read_cost
                )
                steps += len(made) + len(read)
                found = copies_of(
                    p, goal, taken, most_copies, wait, parts[e], priced[at, 0] + more[0],
                    priced[at, 1] + more[1], priced[at, 2] + more[2], priced[at, 3] + more[3],
                )  # fmt: skip
            devices = need[x] + found
            if devices >= need[y] or devices + ahead[y, left] > most:
                continue
            need[y], came[y], s.spent[y] = devices, e, found
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
    return need[end], steps


@kernel
def cover(p, a, start, end, goal, most, cpus, s):  # type: ignore[no-untyped-def]
    """Fewest accelerators, up to `most`, for a segment with `cpus` CPU blocks strictly inside.

    The first CPU blocks that fit are taken, in the order of their ideals. Follows `look_back` at
    `end`; returns (devices or NONE, steps).
    """
    steps, level = 0, 0
    if cpus > 0:
        possible, steps = _screen(p, a, start, end, goal, most, cpus, s)
        if not possible:
            return NONE, steps
        s.inner[0] = a.cpu_ptr[start + 1] - 1
    while level >= 0:
        if cpus == 0:
            devices, steps = _cover(p, a, start, end, goal, most, cpus, s)
            return (devices if devices <= most else NONE), steps
        s.inner[level] += 1
        e = s.inner[level]
        if e >= a.cpu_ptr[end]:
            level -= 1
            continue
        steps += 1
        x, y, left = a.cpu_tail[e], a.cpu_head[e], cpus - level - 1
        if s.cpu_copies[e] != 1 or y == end or s.ahead[y, left] > most:
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
        devices, more = _cover(p, a, start, end, goal, most, cpus, s)
        steps += more
        if devices <= most:
            return devices, steps
    return NONE, steps
