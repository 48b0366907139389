"""A split into blocks as labels, and its latency kept up to date: kernels.

Blocks have slots, each of one accelerator and one pass, at positions 0..S-1. An item has a label
0..2S: 2p + 1 is the slot at position p, 2p is the CPU pool between the slots at p - 1 and p. Labels
never fall along an edge. Splits whose blocks do not wait for each other are exactly those with such
labels.

Violations of memory, support, colours and rules are counted, not forbidden.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import numpy as np

from dnnp.core.kernels.kernel import callee, inlined, lean, scratch
from dnnp.core.latency.blocks.items import BlockItems
from dnnp.core.model.graph import Floats, Ints
from dnnp.core.split.annealing.state import broken

POOL_SLOT = -1
"""Slot of an item that runs on the pool."""


class BlockState(NamedTuple):
    """A split and sums over it, changed in place."""

    at: Annotated[Ints, "i64[c]"]
    """Label of each item."""
    home: Annotated[Ints, "i64[c]"]
    """Slot of each item, or `POOL_SLOT`."""
    slot: Annotated[Ints, "i64[S]"]
    """Slot at each position."""
    place: Annotated[Ints, "i64[S]"]
    """Position of each slot."""
    device: Annotated[Ints, "i64[S]"]
    """Accelerator (0..a-1) of each slot."""
    size: Annotated[Ints, "i64[S]"]
    """Items in each slot."""
    readers: Annotated[Ints, "i64[f, S]"]
    """Items in each slot that read a flow, its maker excluded."""
    needs: Annotated[Ints, "i64[S, S]"]
    """Pairs of a flow made in one slot and an item that reads it in another."""
    spent: Annotated[Floats, "f64[S]"]
    """In, compute and out of each slot together."""
    used: Annotated[Floats, "f64[a]"]
    """Bytes on each accelerator."""
    group_size: Annotated[Ints, "i64[g, b]"]
    """Items of each group on each accelerator and in the pool."""
    marked: Annotated[Ints, "i64[rules, marks, b]"]
    """Items of each label by rules on each accelerator and in the pool."""
    wrong: Annotated[Ints, "i64[2]"]
    """Items where they are not supported; devices of groups beyond the first."""
    pool: Annotated[Ints, "i64[c]"]
    """The items in the pool by (label, item)."""
    counts: Annotated[Ints, "i64[2]"]
    """Items in the pool; entries of the log."""
    log_item: Annotated[Ints, "i64[L]"]
    log_from: Annotated[Ints, "i64[L]"]
    """Items moved since the log was cleared, and their labels before."""
    start: Annotated[Floats, "f64[S]"]
    end: Annotated[Floats, "f64[S]"]
    """Scratch: start and end of each slot."""
    last: Annotated[Floats, "f64[a]"]
    """Scratch: end of the last block of each accelerator."""
    ready: Annotated[Floats, "f64[n]"]
    """Scratch: end of each task of the pool."""


def devices_of(items: BlockItems, *, along: bool = False) -> Ints:
    """Accelerator of each slot at first: each pass runs through all of them, `most` times.

    The backward pass takes them the other way round, unless it is to run along the forward pass.
    """
    count = len(items.devices)
    slots = len(items.slot_late)
    forward = int((items.slot_late == 0).sum())
    turns = np.arange(slots) % max(count, 1)
    if not along:
        turns[forward:] = turns[forward:][::-1]
    return turns


def new_state(items: BlockItems, at: Ints, slot: Ints, device: Ints) -> BlockState:
    """State with these labels, order of the slots and devices of the slots."""
    count, accelerators = len(items.memory), len(items.capacity)
    sizes = {
        "c": count, "S": len(items.slot_late), "f": len(items.maker), "a": accelerators,
        "b": accelerators + 1, "g": len(items.group_ptr) - 1, "n": len(items.pool),
        "L": 8 * count + 64, "rules": len(items.marks),
        "marks": int(items.marks.max(initial=0)) + 1,
    }  # fmt: skip
    state = scratch(BlockState, sizes, at=at.copy(), slot=slot.copy(), device=device.copy())
    rebuild(items, state)
    return state


@lean
def rebuild(items, state):  # type: ignore[no-untyped-def]
    """Compute all sums anew from labels, slots and devices."""
    home, at, slot = state.home, state.at, state.slot
    for p in range(len(slot)):
        state.place[slot[p]] = p
    for i in range(len(at)):
        home[i] = slot[at[i] // 2] if at[i] % 2 else POOL_SLOT
    accelerators = len(state.used)
    for s in range(len(slot)):
        state.size[s] = 0
        state.spent[s] = 0.0
        for t in range(len(slot)):
            state.needs[s, t] = 0
    for e in range(len(items.maker)):
        for s in range(len(slot)):
            state.readers[e, s] = 0
    for d in range(accelerators):
        state.used[d] = 0.0
    for g in range(len(state.group_size)):
        for d in range(accelerators + 1):
            state.group_size[g, d] = 0
    state.marked[:] = 0
    for k in range(2):
        state.wrong[k] = 0
        state.counts[k] = 0
    for i in range(len(at)):
        s = home[i]
        for r in range(len(items.marks)):
            state.marked[r, items.marks[r, i], state.device[s] if s >= 0 else accelerators] += 1
        if s >= 0:
            d = state.device[s]
            state.size[s] += 1
            state.used[d] += items.memory[i]
            if items.time[d, i] < np.inf:
                state.spent[s] += items.time[d, i]
            else:
                state.wrong[0] += 1
            state.group_size[items.group[i], d] += 1
        else:
            if not items.pooled[i]:
                state.wrong[0] += 1
            state.group_size[items.group[i], accelerators] += 1
            pool_insert(state, i)
    for g in range(len(state.group_size)):
        homes = 0
        for d in range(accelerators + 1):
            homes += state.group_size[g, d] > 0
        state.wrong[1] += homes - 1
    for e in range(len(items.maker)):
        m = items.maker[e]
        s = home[m] if m >= 0 else POOL_SLOT
        first, stop = items.use_ptr[e], items.use_ptr[e + 1]
        for q in range(first, stop):
            t = home[items.use_idx[q]]
            if t >= 0:
                if state.readers[e, t] == 0 and t != s:
                    state.spent[t] += items.move[state.device[t], e]
                state.readers[e, t] += 1
                if s >= 0:
                    state.needs[s, t] += 1
        if s >= 0 and (items.leaves[e] or state.readers[e, s] < stop - first):
            state.spent[s] += items.move[state.device[s], e]


@callee
def pool_insert(state, i):  # type: ignore[no-untyped-def]
    """Add an item to the sorted items of the pool."""
    pool, at = state.pool, state.at
    k = state.counts[0]
    while k > 0 and (at[pool[k - 1]] > at[i] or (at[pool[k - 1]] == at[i] and pool[k - 1] > i)):
        pool[k] = pool[k - 1]
        k -= 1
    pool[k] = i
    state.counts[0] += 1


@inlined
def pool_remove(state, i):  # type: ignore[no-untyped-def]
    """Take an item out of those of the pool."""
    pool = state.pool
    k = 0
    while pool[k] != i:
        k += 1
    state.counts[0] -= 1
    for q in range(k, state.counts[0]):
        pool[q] = pool[q + 1]


@callee
def relocate(items, state, i, label):  # type: ignore[no-untyped-def]
    """Give an item another label; O(its flows and their readers). The caller keeps the order."""
    home, readers, needs = state.home, state.readers, state.needs
    spent, move = state.spent, items.move
    a = home[i]
    b = state.slot[label // 2] if label % 2 else POOL_SLOT
    if a < 0:
        pool_remove(state, i)
    state.at[i] = label
    if b < 0:
        pool_insert(state, i)
    if a == b:
        return
    da = state.device[a] if a >= 0 else len(state.used)
    db = state.device[b] if b >= 0 else len(state.used)
    if a >= 0:
        state.size[a] -= 1
        state.used[da] -= items.memory[i]
        if items.time[da, i] < np.inf:
            spent[a] -= items.time[da, i]
        else:
            state.wrong[0] -= 1
    elif not items.pooled[i]:
        state.wrong[0] -= 1
    if b >= 0:
        state.size[b] += 1
        state.used[db] += items.memory[i]
        if items.time[db, i] < np.inf:
            spent[b] += items.time[db, i]
        else:
            state.wrong[0] += 1
    elif not items.pooled[i]:
        state.wrong[0] += 1
    if da != db:
        group_size, g = state.group_size, items.group[i]
        group_size[g, da] -= 1
        state.wrong[1] -= group_size[g, da] == 0
        state.wrong[1] += group_size[g, db] == 0
        group_size[g, db] += 1
        for r in range(len(items.marks)):
            state.marked[r, items.marks[r, i], da] -= 1
            state.marked[r, items.marks[r, i], db] += 1
    for q in range(items.in_ptr[i], items.in_ptr[i + 1]):
        e = items.in_idx[q]
        m = items.maker[e]
        s = home[m] if m >= 0 else POOL_SLOT
        total = items.use_ptr[e + 1] - items.use_ptr[e]
        if a >= 0:
            if s == a:
                if readers[e, a] == total and not items.leaves[e]:
                    spent[a] += move[da, e]
                readers[e, a] -= 1
            else:
                readers[e, a] -= 1
                if readers[e, a] == 0:
                    spent[a] -= move[da, e]
            if s >= 0:
                needs[s, a] -= 1
        if b >= 0:
            if s == b:
                readers[e, b] += 1
                if readers[e, b] == total and not items.leaves[e]:
                    spent[b] -= move[db, e]
            else:
                if readers[e, b] == 0:
                    spent[b] += move[db, e]
                readers[e, b] += 1
            if s >= 0:
                needs[s, b] += 1
    for q in range(items.out_ptr[i], items.out_ptr[i + 1]):
        e = items.out_idx[q]
        first, stop = items.use_ptr[e], items.use_ptr[e + 1]
        if a >= 0:
            if items.leaves[e] or readers[e, a] < stop - first:
                spent[a] -= move[da, e]
            if readers[e, a] > 0:
                spent[a] += move[da, e]
        if b >= 0:
            if items.leaves[e] or readers[e, b] < stop - first:
                spent[b] += move[db, e]
            if readers[e, b] > 0:
                spent[b] -= move[db, e]
        for z in range(first, stop):
            t = home[items.use_idx[z]]
            if t >= 0:
                if a >= 0:
                    needs[a, t] -= 1
                if b >= 0:
                    needs[b, t] += 1
    home[i] = b


@lean
def latency(items, state):  # type: ignore[no-untyped-def]
    """Latency of the split: as `time_invocations`, where every item is supported.

    O(S^2 + flows of the pool). What is not supported takes no time.
    """
    start, end, last = state.start, state.end, state.last
    ready, home, device = state.ready, state.home, state.device
    for s in range(len(start)):
        start[s] = 0.0
    for d in range(len(last)):
        last[d] = 0.0
    value = 0.0
    k, slots, pooled = 0, len(state.slot), state.counts[0]
    for p in range(slots + 1):
        while k < pooled and state.at[state.pool[k]] == 2 * p:
            i = state.pool[k]
            k += 1
            for q in range(items.member_ptr[i], items.member_ptr[i + 1]):
                v = items.member_idx[q]
                begin = 0.0
                for z in range(items.task_before_ptr[v], items.task_before_ptr[v + 1]):
                    u = items.task_before_idx[z]
                    s = home[items.label[u]]
                    begin = max(begin, end[s] if s >= 0 else ready[u])
                if items.pool[v] < np.inf:
                    begin += items.pool[v]
                ready[v] = begin
                value = max(value, begin)
                for z in range(items.task_after_ptr[v], items.task_after_ptr[v + 1]):
                    s = home[items.label[items.task_after_idx[z]]]
                    if s >= 0:
                        start[s] = max(start[s], begin)
        if p == slots:
            break
        s = state.slot[p]
        if state.size[s] == 0:
            continue
        begin = max(start[s], last[device[s]])
        for r in range(p):
            t = state.slot[r]
            if state.needs[t, s] > 0:
                begin = max(begin, end[t])
        start[s] = begin
        end[s] = begin + max(state.spent[s], 0.0)  # rounding may leave it below zero
        last[device[s]] = end[s]
        value = max(value, end[s])
    return value


@lean
def excess(items, state):  # type: ignore[no-untyped-def]
    """Bytes above the capacities, relative to the largest: one figure for all accelerators."""
    over = 0.0
    for d in range(len(state.used)):
        capacity = items.capacity[d]
        if state.used[d] > capacity:
            over += (state.used[d] - capacity) / max(capacity, 1.0)
    return over


@callee
def held_excess(items, state, held):  # type: ignore[no-untyped-def]
    """Bytes of parameters and live tensors above the capacities, as in `excess`; O(S N + uses)."""
    over = 0.0
    home, change, marked, item = state.home, held.change, held.marked, held.node_item
    nodes = len(item)
    for s in range(len(state.slot)):
        marked[s] = -1
        if state.size[s] > 0:
            for k in range(nodes + 1):
                change[s, k] = 0.0
    for t in range(len(held.size)):
        born, size, leaves = held.born[t], held.size[t], held.lasts[t] > 0
        if size == 0.0:
            continue
        maker = home[item[born]] if born >= 0 else POOL_SLOT
        until = born
        for q in range(held.reader_ptr[t], held.reader_ptr[t + 1]):
            at = held.reader_at[q]
            s = home[item[at]]
            if maker >= 0 and s == maker:
                until = max(until, at)
            else:
                leaves = True
                if s >= 0 and marked[s] != t:  # the last that reads it there comes first
                    marked[s] = t
                    change[s, 0] += size
                    change[s, at + 1] -= size
        if maker >= 0:
            change[maker, born] += size
            change[maker, nodes if leaves else until + 1] -= size
    peak = state.last
    for d in range(len(peak)):
        peak[d] = 0.0
    for s in range(len(state.slot)):
        if state.size[s] > 0:
            d = state.device[s]
            running = 0.0
            for k in range(nodes):
                running += change[s, k]
                peak[d] = max(peak[d], running)
    for d in range(len(peak)):
        used = state.used[d] + peak[d]
        if used > held.room[d]:
            over += (used - held.room[d]) / max(held.room[d], 1.0)
    return over


@lean
def fits(items, state):  # type: ignore[no-untyped-def]
    """True if the split is valid; memory is summed anew."""
    if state.wrong[0] > 0 or state.wrong[1] > 0 or broken(state.marked, items.exactly) > 0:
        return False
    for d in range(len(state.used)):
        state.used[d] = 0.0
    for i in range(len(state.home)):
        if state.home[i] >= 0:
            state.used[state.device[state.home[i]]] += items.memory[i]
    fit = True
    for d in range(len(state.used)):
        fit = fit and state.used[d] <= items.capacity[d]
    return fit
