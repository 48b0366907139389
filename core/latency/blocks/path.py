"""A lower bound on the latency of blocks: the longest path of a game along the graph; kernels.

Follow the items of a path. Where the split puts the next one is for the split to say; which way
the path goes on is ours, knowing where everything so far was put. Whatever the split, some path
that we choose so takes at most its latency; so the value of this game is a lower bound:

    at the entry of item w from item u, with b blocks on the path so far,
        D(u, w, b) = min(P(t, b) for the worst task t of w that reads u, I(u, w, w, b + 1))
    in a block entered from u at s, at its item v,
        I(u, s, v, b) = max over the items w after v of
            min(I(u, s, w, b), cost of the block (u, s, v, w) + D(v, w, b))
    in the pool, at a task t,
        P(t, b) = time of t + max over the tasks after t, in the same item: P, else: D

The path visits no block twice and no more blocks than there are. A block that holds s and v and
neither u, from which s reads, nor w, which reads v, holds all H between s and v, nothing that u
depends on, and nothing that depends on w. So it takes at least the work of H, the flows that u and
what is before it make and H reads, and the flows that H makes and w or what is after it reads.
It does not exist where H is too large for every accelerator.

Another flow that H reads is read too, or its maker is in the block, with its work; another flow
that H makes is written, or all who read it are in the block, each of which may save as many flows
as it reads from H. Items that the block has no room for cannot be in it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dnnp.core.kernels.kernel import kernel
from dnnp.core.model.graph import Bools, Floats, Ints


@kernel
def reaches(after_ptr, after_idx, count):  # type: ignore[no-untyped-def]
    """bool[c, c]: whether there is a path from one item to another, or they are the same.

    Compiled, unlike `bounds.path_closure.closure`: it is small, and so is all that follows.
    """
    reach = np.zeros((count, count), np.bool_)
    for i in range(count - 1, -1, -1):
        reach[i, i] = True
        for q in range(after_ptr[i], after_ptr[i + 1]):
            row = reach[after_idx[q]]
            for j in range(after_idx[q], count):
                reach[i, j] |= row[j]
    return reach


class Game(NamedTuple):
    """What the game is played on, and the tables that it fills; `e` edges between items."""

    reach: Bools
    """bool[c, c], see `reaches`."""
    kinds: Ints
    """One accelerator of each class."""
    edge_of: Ints
    """i64[e], number in `before_idx` of each entry of `after_idx`."""
    entry_ptr: Ints
    entry_task: Ints
    """Tasks of an item that read the item before (CSR over `before_idx`)."""
    group_memory: Floats
    """Of each group."""
    pool: Floats
    """f64[n, most + 1], P; inf at first."""
    rest: Floats
    """f64[e + c, most + 1], I at the start of a block by entry, in the order of `before_idx`, or as
    the first; inf at first."""
    value: Floats
    """f64[c], value of the game from each item on, as the first of the path."""


@kernel
def path_game(fixed, game, most, loose, first_item, last_item):  # type: ignore[no-untyped-def]
    """Fill the tables of the game.

    The items are last_item - 1 down to first_item; those after them must be done. O(c^2) hulls,
    each looked at once for every entry and exit.

    most: blocks there may be; loose: or more, they are not counted.
    """
    reach, kinds, edge_of, group_memory = game.reach, game.kinds, game.edge_of, game.group_memory
    entry_ptr, entry_task, pool, rest = game.entry_ptr, game.entry_task, game.pool, game.rest
    value = game.value
    count, edges, classes = len(fixed.memory), len(fixed.before_idx), len(kinds)
    flows, groups = len(fixed.maker), len(group_memory)
    widest = 1
    for s in range(count):
        widest = max(widest, fixed.before_ptr[s + 1] - fixed.before_ptr[s] + 1)
    work = np.full((count, classes), np.inf)  # of the hull of s and v
    reads = np.zeros((widest, count, classes))
    writes = np.zeros((edges, classes))  # by entry in `after_idx`
    kept = np.zeros((count, classes))
    inside = np.zeros((count, most + 1))
    seen_flow = np.full(flows, -1, np.int64)
    seen_group = np.full(groups, -1, np.int64)
    seen_item = np.full(count, -1, np.int64)
    times_read = np.zeros(count, np.int64)
    saved = np.zeros((count, classes))
    within = np.zeros(classes)
    size = np.zeros(count)
    hull = np.zeros(count, np.int64)
    others = np.zeros(count, np.int64)
    stamp = 0
    for s in range(last_item - 1, first_item - 1, -1):
        _pool_tasks(fixed, pool, rest, edge_of, s, most, loose)
        first = fixed.before_ptr[s]
        entries = fixed.before_ptr[s + 1] - first + 1  # the last one: no item before
        for v in range(s, count):
            if reach[s, v]:
                size[v] = _size_of(fixed, reach, group_memory, s, v, seen_group, stamp + 1)
                stamp += 1
        for v in range(s, count):
            if not reach[s, v]:
                continue
            for k in range(classes):
                work[v, k] = np.inf
            members, bytes_held, one_pass = 0, size[v], True
            stamp += 1
            mine = stamp
            for i in range(s, v + 1):
                if reach[s, i] and reach[i, v]:
                    hull[members] = i
                    members += 1
                    one_pass = one_pass and fixed.late[i] == fixed.late[s]
                    seen_group[fixed.group[i]] = mine
            some = False
            for k in range(classes):
                d = kinds[k]
                if one_pass and bytes_held <= fixed.capacity[d]:
                    total = 0.0
                    for q in range(members):
                        total += fixed.time[d, hull[q]]
                    work[v, k] = total
                    some = some or total < np.inf
            if not some:
                continue
            for z in range(entries):
                u = fixed.before_idx[first + z] if z < entries - 1 else -1
                stamp += 1
                for k in range(classes):
                    reads[z, v, k] = 0.0
                makers = 0
                for q in range(members):
                    i = hull[q]
                    for y in range(fixed.in_ptr[i], fixed.in_ptr[i + 1]):
                        e = fixed.in_idx[y]
                        m = fixed.maker[e]
                        if seen_flow[e] == stamp or (m >= 0 and reach[s, m] and reach[m, v]):
                            continue
                        seen_flow[e] = stamp
                        if m < 0 or (u >= 0 and reach[m, u]):
                            for k in range(classes):
                                reads[z, v, k] += fixed.move[kinds[k], e]
                            continue
                        if seen_item[m] != stamp:
                            seen_item[m] = stamp
                            others[makers] = m
                            makers += 1
                            for k in range(classes):
                                saved[m, k] = 0.0
                        for k in range(classes):
                            saved[m, k] += fixed.move[kinds[k], e]
                for q in range(makers):
                    m = others[q]
                    for k in range(classes):
                        d = kinds[k]
                        free = fixed.late[m] == fixed.late[s] and (
                            seen_group[fixed.group[m]] == mine
                            or bytes_held + group_memory[fixed.group[m]] <= fixed.capacity[d]
                        )
                        cost = fixed.time[d, m] if free else np.inf
                        reads[z, v, k] += min(cost, saved[m, k])
            # How many of the flows of H each item outside reads.
            stamp += 1
            for q in range(members):
                i = hull[q]
                for y in range(fixed.out_ptr[i], fixed.out_ptr[i + 1]):
                    e = fixed.out_idx[y]
                    for x in range(fixed.use_ptr[e], fixed.use_ptr[e + 1]):
                        r = fixed.use_idx[x]
                        if not reach[r, v]:
                            if seen_item[r] != stamp:
                                seen_item[r] = stamp
                                times_read[r] = 0
                            times_read[r] += 1
            for z in range(fixed.after_ptr[v], fixed.after_ptr[v + 1] + 1):
                last = z == fixed.after_ptr[v + 1]
                w = -1 if last else fixed.after_idx[z]
                spent = kept[v] if last else writes[z]
                for k in range(classes):
                    spent[k] = 0.0
                for q in range(members):
                    i = hull[q]
                    for y in range(fixed.out_ptr[i], fixed.out_ptr[i + 1]):
                        e = fixed.out_idx[y]
                        leaves = fixed.leaves[e]
                        for k in range(classes):
                            within[k] = 0.0
                        for x in range(fixed.use_ptr[e], fixed.use_ptr[e + 1]):
                            r = fixed.use_idx[x]
                            if leaves or reach[r, v]:
                                continue
                            if (not last and reach[w, r]) or fixed.late[r] != fixed.late[s]:
                                leaves = True
                                break
                            for k in range(classes):
                                d = kinds[k]
                                if size[r] <= fixed.capacity[d] and (
                                    seen_group[fixed.group[r]] == mine
                                    or bytes_held + group_memory[fixed.group[r]]
                                    <= fixed.capacity[d]
                                ):
                                    within[k] += fixed.time[d, r] / times_read[r]
                                else:
                                    within[k] = np.inf
                        for k in range(classes):
                            cost = fixed.move[kinds[k], e]
                            spent[k] += cost if leaves else min(cost, within[k])
        for z in range(entries):
            for v in range(count - 1, s - 1, -1):
                if not reach[s, v]:
                    continue
                least = np.inf
                for k in range(classes):
                    least = min(least, work[v, k] + reads[z, v, k] + kept[v, k])
                for b in range(most + 1):
                    inside[v, b] = least
                if least == np.inf:
                    continue
                for y in range(fixed.after_ptr[v], fixed.after_ptr[v + 1]):
                    w = fixed.after_idx[y]
                    least = np.inf
                    for k in range(classes):
                        least = min(least, work[v, k] + reads[z, v, k] + writes[y, k])
                    for b in range(1, most + 1):
                        leave = least + _enter(
                            pool, rest, edge_of[y], entry_ptr, entry_task, b, most, loose
                        )
                        inside[v, b] = max(inside[v, b], min(leave, inside[w, b]))
            at = edges + s if z == entries - 1 else first + z
            for b in range(most + 1):
                rest[at, b] = inside[s, b]
        # As the first item of the path.
        pooled = 0.0
        for q in range(fixed.member_ptr[s], fixed.member_ptr[s + 1]):
            pooled = max(pooled, pool[fixed.member_idx[q], 0])
        value[s] = min(pooled, rest[edges + s, 1]) if most > 0 else pooled


@kernel
def _size_of(fixed, reach, group_memory, s, v, seen_group, stamp):  # type: ignore[no-untyped-def]
    """Bytes of what lies between two items, with what is tied to it."""
    size = 0.0
    for i in range(s, v + 1):
        if reach[s, i] and reach[i, v] and seen_group[fixed.group[i]] != stamp:
            seen_group[fixed.group[i]] = stamp
            size += group_memory[fixed.group[i]]
    return size


@kernel
def _enter(pool, rest, edge, entry_ptr, entry_task, b, most, loose):  # type: ignore[no-untyped-def]
    """D: what is to come at the entry of an item by an edge, after b blocks."""
    pooled = 0.0
    for q in range(entry_ptr[edge], entry_ptr[edge + 1]):
        pooled = max(pooled, pool[entry_task[q], b])
    if b < most:
        return min(pooled, rest[edge, b + 1])
    return min(pooled, rest[edge, most]) if loose else pooled


@kernel
def _pool_tasks(fixed, pool, rest, edge_of, s, most, loose):  # type: ignore[no-untyped-def]
    """P(t, b) of the tasks t of item s; inf where the CPU does not support all of it."""
    if not fixed.pooled[s]:
        return
    for q in range(fixed.member_ptr[s + 1] - 1, fixed.member_ptr[s] - 1, -1):
        t = fixed.member_idx[q]
        for b in range(most + 1):
            later = 0.0
            for z in range(fixed.task_after_ptr[t], fixed.task_after_ptr[t + 1]):
                x = fixed.task_after_idx[z]
                w = fixed.label[x]
                if w == s:
                    later = max(later, pool[x, b])
                    continue
                # Its item is in the pool or in a new block.
                least = pool[x, b]
                if (b < most or loose) and least > later:
                    for y in range(fixed.after_ptr[s], fixed.after_ptr[s + 1]):
                        if fixed.after_idx[y] == w:
                            least = min(least, rest[edge_of[y], min(b + 1, most)])
                later = max(later, least)
            pool[t, b] = fixed.pool[t] + later
