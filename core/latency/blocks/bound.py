"""A lower bound on the latency of blocks: the longest adversarial path; kernels.

An adversary follows a path of items. The split puts each next item into a block or the pool; the
adversary chooses the successor, knowing where all items so far are. Every split takes at least as
long as the adversary's path, so the value of this two-player game is a lower bound:

    at the entry of item w from item u, with b blocks on the path so far,
        D(u, w, b) = min(P(t, b) for the worst task t of w that reads u, I(u, w, w, b + 1))
    in a block entered from u at s, at its item v,
        I(u, s, v, b) = max over the items w after v of
            min(I(u, s, w, b), cost of the block (u, s, v, w) + D(v, w, b))
    in the pool, at a task t,
        P(t, b) = time of t + max over the tasks after t, in the same item: P, else: D

The path visits no block twice and no more blocks than there are. A block that holds s and v and
neither u, from which s reads, nor w, which reads v, holds the hull H of all items between s and v,
no ancestor of u and no descendant of w. So it takes at least the work of H, the flows into H from u
and its ancestors, and the flows from H to w and its descendants. It does not exist where H is too
large for every accelerator.

Another flow into H is read too, or its maker is in the block, with its work; another flow out of H
is written, or all its readers are in the block, each of which may save as many flows as it reads
from H. Items beyond the memory of the block cannot be in it.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import numpy as np

from dnnp.core.cost.latency import LatencyProblem
from dnnp.core.kernels.kernel import callee, expect, kernel, lean, scratch
from dnnp.core.latency.blocks.items import BlockItems, block_items, kind_of_each
from dnnp.core.model.graph import Bools, Floats, Ints, csr, distinct, totals
from dnnp.core.model.search_context import PLAIN, SearchContext

MOST_ITEMS = 4000
"""Items above which hulls are not looked at: they are squared."""

MOST_VALUES = 20_000_000
"""Numbers that may be kept; where there are too many blocks to count, they are not counted."""

CHUNK = 16
"""Items between looks at the clock."""


@kernel
def reaches(after_ptr, after_idx, count):  # type: ignore[no-untyped-def]
    """Reflexive transitive closure of items, bool[c, c]; unlike `bounds.path_closure`, a kernel."""
    reach = np.zeros((count, count), np.bool_)
    for i in range(count - 1, -1, -1):
        reach[i, i] = True
        for q in range(after_ptr[i], after_ptr[i + 1]):
            row = reach[after_idx[q]]
            for j in range(after_idx[q], count):
                reach[i, j] |= row[j]
    return reach


class PathTables(NamedTuple):
    """Graph of adversarial paths, and their DP tables; `e` edges between items."""

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
    """f64[c], longest adversarial path from each item on."""


class HullScratch(NamedTuple):
    """Arrays in which the hulls of one item s with all items v after it are priced, by v."""

    size: Annotated[Floats, "f64[items]"]
    """Bytes."""
    work: Annotated[Floats, "f64[items, classes]"]
    """inf where no block of the class holds the hull."""
    reads: Annotated[Floats, "f64[entries, items, classes]"]
    writes: Annotated[Floats, "f64[edges, classes]"]
    kept: Annotated[Floats, "f64[items, classes]"]
    """Least time of what comes in by each entry of s, of what goes out at each entry of
    `after_idx`, and of what goes out where the path ends."""
    inside: Annotated[Floats, "f64[items, blocks]"]
    """I of each item after the entry."""
    members: Annotated[Ints, "i64[items]"]
    """The items of one hull."""
    others: Annotated[Ints, "i64[items]"]
    saved: Annotated[Floats, "f64[items, classes]"]
    """Items outside that make what it reads, and the time of what each of them makes."""
    times_read: Annotated[Ints, "i64[items]"]
    """Number of its flows that each item outside reads."""
    within: Annotated[Floats, "f64[classes]"]
    seen_flow: Annotated[Ints, "i64[flows]"]
    seen_group: Annotated[Ints, "i64[groups]"]
    seen_item: Annotated[Ints, "i64[items]"]
    clock: Annotated[Ints, "i64[1]"]
    """Stamps so far, and the last one of each flow, group and item."""


@lean
def adversarial_paths(items, tables, x, most, loose, first_item, last_item):  # type: ignore[no-untyped-def]
    """Fill the DP tables for items last_item - 1 down to first_item; later ones must be done.

    O(c^2) hulls, each visited once for every entry and exit. most: blocks at most; loose: there
    may be more, which are not counted.
    """
    reach, rest = tables.reach, tables.rest
    count, edges = len(items.memory), len(items.before_idx)
    for s in range(last_item - 1, first_item - 1, -1):
        _pool_tasks(items, tables, s, most, loose)
        first = items.before_ptr[s]
        entries = items.before_ptr[s + 1] - first + 1  # the last one: no item before
        for v in range(s, count):
            if reach[s, v]:
                x.size[v] = _size_of(items, tables, x, s, v)
        for v in range(s, count):
            if not reach[s, v]:
                continue
            x.clock[0] += 1
            mine = x.clock[0]
            members = _hull_of(items, tables, x, s, v, mine)
            if members == 0:
                continue
            for z in range(entries):
                u = items.before_idx[first + z] if z < entries - 1 else -1
                _count_reads(items, tables, x, s, v, u, z, members, mine)
            _count_readers(items, reach, x, v, members)
            for z in range(items.after_ptr[v], items.after_ptr[v + 1] + 1):
                _count_writes(items, tables, x, s, v, z, members, mine)
        for z in range(entries):
            _follow_blocks(items, tables, x, s, z, most, loose)
            at = edges + s if z == entries - 1 else first + z
            for b in range(most + 1):
                rest[at, b] = x.inside[s, b]
        # As the first item of the path.
        pooled = 0.0
        for q in range(items.member_ptr[s], items.member_ptr[s + 1]):
            pooled = max(pooled, tables.pool[items.member_idx[q], 0])
        tables.value[s] = min(pooled, rest[edges + s, 1]) if most > 0 else pooled


@callee
def _hull_of(items, tables, x, s, v, mine):  # type: ignore[no-untyped-def]
    """Find the hull of s and v and its work; number of its members, 0: no block holds it.

    Groups of its members get the stamp `mine`.
    """
    members, one_pass = 0, True
    for i in range(s, v + 1):
        if tables.reach[s, i] and tables.reach[i, v]:
            x.members[members] = i
            members += 1
            one_pass = one_pass and items.late[i] == items.late[s]
            x.seen_group[items.group[i]] = mine
    some = False
    for k in range(len(tables.kinds)):
        d, x.work[v, k] = tables.kinds[k], np.inf
        if one_pass and x.size[v] <= items.capacity[d]:
            total = 0.0
            for q in range(members):
                total += items.time[d, x.members[q]]
            x.work[v, k] = total
            some = some or total < np.inf
    return members if some else 0


@callee
def _fits_beside(items, tables, x, v, item, d, mine):  # type: ignore[no-untyped-def]
    """True if a device holds the group of an item besides the hull of v."""
    group = items.group[item]
    return (
        x.seen_group[group] == mine or x.size[v] + tables.group_memory[group] <= items.capacity[d]
    )


@callee
def _count_reads(items, tables, x, s, v, u, z, members, mine):  # type: ignore[no-untyped-def]
    """Set `reads` of the hull of s and v where the path comes from u (-1: from nowhere)."""
    reach, kinds, reads = tables.reach, tables.kinds, x.reads
    x.clock[0] += 1
    stamp = x.clock[0]
    for k in range(len(kinds)):
        reads[z, v, k] = 0.0
    makers = 0
    for q in range(members):
        i = x.members[q]
        for y in range(items.in_ptr[i], items.in_ptr[i + 1]):
            e = items.in_idx[y]
            m = items.maker[e]
            if x.seen_flow[e] == stamp or (m >= 0 and reach[s, m] and reach[m, v]):
                continue
            x.seen_flow[e] = stamp
            if m < 0 or (u >= 0 and reach[m, u]):
                for k in range(len(kinds)):
                    reads[z, v, k] += items.move[kinds[k], e]
                continue
            if x.seen_item[m] != stamp:
                x.seen_item[m] = stamp
                x.others[makers] = m
                makers += 1
                for k in range(len(kinds)):
                    x.saved[m, k] = 0.0
            for k in range(len(kinds)):
                x.saved[m, k] += items.move[kinds[k], e]
    for q in range(makers):
        m = x.others[q]
        for k in range(len(kinds)):
            d = kinds[k]
            free = items.late[m] == items.late[s]
            free = free and _fits_beside(items, tables, x, v, m, d, mine)
            cost = items.time[d, m] if free else np.inf
            reads[z, v, k] += min(cost, x.saved[m, k])


@callee
def _count_readers(items, reach, x, v, members):  # type: ignore[no-untyped-def]
    """Count how many of the flows of the hull each item outside reads."""
    x.clock[0] += 1
    stamp = x.clock[0]
    for q in range(members):
        i = x.members[q]
        for y in range(items.out_ptr[i], items.out_ptr[i + 1]):
            e = items.out_idx[y]
            for z in range(items.use_ptr[e], items.use_ptr[e + 1]):
                r = items.use_idx[z]
                if not reach[r, v]:
                    if x.seen_item[r] != stamp:
                        x.seen_item[r] = stamp
                        x.times_read[r] = 0
                    x.times_read[r] += 1


@callee
def _count_writes(items, tables, x, s, v, z, members, mine):  # type: ignore[no-untyped-def]
    """Set `writes` of the hull of s and v where the path leaves by entry z; after these, `kept`."""
    reach, kinds = tables.reach, tables.kinds
    last = z == items.after_ptr[v + 1]
    w = -1 if last else items.after_idx[z]
    spent = x.kept[v] if last else x.writes[z]
    for k in range(len(kinds)):
        spent[k] = 0.0
    for q in range(members):
        i = x.members[q]
        for y in range(items.out_ptr[i], items.out_ptr[i + 1]):
            e = items.out_idx[y]
            leaves = items.leaves[e]
            for k in range(len(kinds)):
                x.within[k] = 0.0
            for n in range(items.use_ptr[e], items.use_ptr[e + 1]):
                r = items.use_idx[n]
                if leaves or reach[r, v]:
                    continue
                if (not last and reach[w, r]) or items.late[r] != items.late[s]:
                    leaves = True
                    break
                for k in range(len(kinds)):
                    d = kinds[k]
                    fits = x.size[r] <= items.capacity[d]
                    if fits and _fits_beside(items, tables, x, v, r, d, mine):
                        x.within[k] += items.time[d, r] / x.times_read[r]
                    else:
                        x.within[k] = np.inf
            for k in range(len(kinds)):
                cost = items.move[kinds[k], e]
                spent[k] += cost if leaves else min(cost, x.within[k])


@callee
def _follow_blocks(items, tables, x, s, z, most, loose):  # type: ignore[no-untyped-def]
    """Set `inside`: I of the block that begins with s, by entry z, from its last item back to s."""
    classes = len(tables.kinds)
    for v in range(len(items.memory) - 1, s - 1, -1):
        if not tables.reach[s, v]:
            continue
        least = np.inf
        for k in range(classes):
            least = min(least, x.work[v, k] + x.reads[z, v, k] + x.kept[v, k])
        for b in range(most + 1):
            x.inside[v, b] = least
        if least == np.inf:
            continue
        for y in range(items.after_ptr[v], items.after_ptr[v + 1]):
            w = items.after_idx[y]
            least = np.inf
            for k in range(classes):
                least = min(least, x.work[v, k] + x.reads[z, v, k] + x.writes[y, k])
            for b in range(1, most + 1):
                leave = least + _enter(tables, tables.edge_of[y], b, most, loose)
                x.inside[v, b] = max(x.inside[v, b], min(leave, x.inside[w, b]))


@callee
def _size_of(items, tables, x, s, v):  # type: ignore[no-untyped-def]
    """Bytes of the hull of two items, with the groups of its members."""
    x.clock[0] += 1
    size = 0.0
    for i in range(s, v + 1):
        group = items.group[i]
        if tables.reach[s, i] and tables.reach[i, v] and x.seen_group[group] != x.clock[0]:
            x.seen_group[group] = x.clock[0]
            size += tables.group_memory[group]
    return size


@callee
def _enter(tables, edge, b, most, loose):  # type: ignore[no-untyped-def]
    """D: least time left at the entry of an item by an edge, after b blocks."""
    pooled = 0.0
    for q in range(tables.entry_ptr[edge], tables.entry_ptr[edge + 1]):
        pooled = max(pooled, tables.pool[tables.entry_task[q], b])
    if b < most or loose:
        return min(pooled, tables.rest[edge, min(b + 1, most)])
    return pooled


@callee
def _pool_tasks(items, tables, s, most, loose):  # type: ignore[no-untyped-def]
    """P(t, b) of the tasks t of item s; inf where the CPU does not support all of it."""
    pool, rest, edge_of = tables.pool, tables.rest, tables.edge_of
    if not items.pooled[s]:
        return
    for q in range(items.member_ptr[s + 1] - 1, items.member_ptr[s] - 1, -1):
        t = items.member_idx[q]
        for b in range(most + 1):
            later = 0.0
            for z in range(items.task_after_ptr[t], items.task_after_ptr[t + 1]):
                x = items.task_after_idx[z]
                w = items.label[x]
                if w == s:
                    later = max(later, pool[x, b])
                    continue
                # Its item is in the pool or in a new block.
                least = pool[x, b]
                if (b < most or loose) and least > later:
                    for y in range(items.after_ptr[s], items.after_ptr[s + 1]):
                        if items.after_idx[y] == w:
                            least = min(least, rest[edge_of[y], min(b + 1, most)])
                later = max(later, least)
            pool[t, b] = items.pool[t] + later


class SolvedPaths(NamedTuple):
    """Adversarial paths, and how blocks were counted on them."""

    tables: PathTables
    most: int
    """Blocks that were counted."""
    loose: bool
    """There may be more, which were not."""
    ended: bool
    """False: the search was stopped before."""

    @property
    def longest(self) -> float:
        """Lower bound of the latency of every split into blocks; inf: no split fits.

        It is weaker if it was stopped, and holds for any memory, any number of invocations and
        both passes; with a backward pass, blocks of both count as one kind.
        """
        return float(self.tables.value.max(initial=0.0))


def paths_of(problem: LatencyProblem, run: SearchContext = PLAIN) -> SolvedPaths | None:
    """The longest adversarial paths of a problem; None: it has none, or too many items."""
    items = block_items(problem)
    known = 0 < items.size <= MOST_ITEMS and not run.stop()
    return solve_paths(items, run) if known else None


def solve_paths(items: BlockItems, run: SearchContext = PLAIN) -> SolvedPaths:
    """Find the longest adversarial path from each item on."""
    count, edges = items.size, len(items.before_idx)
    most = min(len(items.slot_late), count)
    loose = (edges + count + len(items.pool)) * (most + 1) > MOST_VALUES
    if loose:
        most = 1
    reach = reaches(items.after_ptr, items.after_idx, count)
    head = np.repeat(np.arange(count), np.diff(items.before_ptr))
    tail = np.repeat(np.arange(count), np.diff(items.after_ptr))
    numbers = items.before_idx * count + head
    rank = np.argsort(numbers)
    edge_of = rank[np.searchsorted(numbers[rank], tail * count + items.after_idx)]
    entry_ptr, entry_task = _entries(items, numbers, rank)
    groups = int(items.group.max()) + 1
    tables = PathTables(
        reach,
        np.unique(kind_of_each(items), return_index=True)[1],
        edge_of,
        entry_ptr,
        entry_task,
        totals(items.group, items.memory, groups),
        pool=np.full((len(items.pool), most + 1), np.inf),
        rest=np.full((edges + count, most + 1), np.inf),
        value=np.zeros(count),
    )
    sizes = {"items": count, "edges": edges, "flows": len(items.maker), "groups": groups}
    entries = 1 + int(np.diff(items.before_ptr).max())
    sizes |= {"classes": len(tables.kinds), "entries": entries, "blocks": most + 1}
    room = scratch(HullScratch, sizes)
    first, second = np.nonzero(reach)
    expect(float((second - first).sum()), adversarial_paths)
    for last in range(count, 0, -CHUNK):
        run.report_progress(share=1 - last / count)
        adversarial_paths(items, tables, room, most, loose, max(last - CHUNK, 0), last)
        if run.stop():
            return SolvedPaths(tables, most, loose, last <= CHUNK)
    return SolvedPaths(tables, most, loose, ended=True)


def times_left(items: BlockItems, paths: SolvedPaths) -> Floats:
    """Least time from when a task is ready, on through one that reads it, until all is done.

    f64[z, most + 1] by the entries of `task_after_idx` and by the blocks that were used before,
    where the reader is in none of these; 0 between tasks of one item.
    """
    tables, count = paths.tables, items.size
    ends = np.repeat(np.arange(count), np.diff(items.after_ptr)) * count + items.after_idx
    rank = np.argsort(ends)
    maker = np.repeat(items.label, np.diff(items.task_after_ptr))
    reader = items.label[items.task_after_idx]
    apart = maker != reader
    left = np.zeros((len(reader), paths.most + 1))
    entry = rank[np.searchsorted(ends[rank], (maker * count + reader)[apart])]
    entered = tables.rest[tables.edge_of[entry]]
    if not paths.loose:
        entered = np.hstack([entered[:, 1:], np.full((len(entry), 1), np.inf)])
    left[apart] = np.minimum(tables.pool[items.task_after_idx[apart]], entered)
    return left


def _entries(items: BlockItems, numbers: Ints, rank: Ints) -> tuple[Ints, Ints]:
    """Tasks of an item that read from the item before, per entry of `before_idx` (CSR)."""
    reader = np.repeat(np.arange(len(items.label)), np.diff(items.task_before_ptr))
    a, b = items.label[items.task_before_idx], items.label[reader]
    outer = a != b
    pairs = distinct((a * items.size + b)[outer] * len(items.label) + reader[outer])
    key, task = pairs // max(len(items.label), 1), pairs % max(len(items.label), 1)
    edge = rank[np.searchsorted(numbers[rank], key)]
    return csr(edge, task, len(numbers))
