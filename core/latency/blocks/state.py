"""A split into blocks as labels, and its latency kept up to date: kernels.

Blocks have slots, each of one accelerator and one pass, at positions 0..S-1. An item has a label
0..2S: 2p + 1 is the slot at position p, 2p is the CPU pool between the slots at p - 1 and p. Labels
never fall along an edge. Every split whose blocks do not wait for each other has this form, and
everything of this form is such a split.

What a label breaks beside that - memory, support, colours - is counted, not forbidden.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dnnp.core.kernels.kernel import callee, inlined, lean, plain
from dnnp.core.latency.blocks.items import BlockItems
from dnnp.core.model.graph import Floats, Ints, csr

POOL_SLOT = -1
"""Slot of an item that runs on the pool."""


class Fixed(NamedTuple):
    """What a search does not change; `a` accelerators, `c` items, `f` flows, `n` tasks."""

    time: Floats
    memory: Floats
    capacity: Floats
    pool: Floats
    pooled: np.ndarray
    late: Ints
    mixed: np.ndarray
    group: Ints
    group_ptr: Ints
    group_idx: Ints
    maker: Ints
    leaves: np.ndarray
    move: Floats
    use_ptr: Ints
    use_idx: Ints
    in_ptr: Ints
    in_idx: Ints
    out_ptr: Ints
    out_idx: Ints
    before_ptr: Ints
    before_idx: Ints
    after_ptr: Ints
    after_idx: Ints
    member_ptr: Ints
    member_idx: Ints
    task_before_ptr: Ints
    task_before_idx: Ints
    task_after_ptr: Ints
    task_after_idx: Ints
    label: Ints
    """As in `BlockItems`; `late` is `backward`, `group_*` the items of each group (CSR)."""
    slot_late: Ints
    """i64[S], pass of each slot."""


class BlockState(NamedTuple):
    """A split and sums over it, changed in place."""

    at: Ints
    """i64[c], label of each item."""
    home: Ints
    """i64[c], slot of each item, or `POOL_SLOT`."""
    slot: Ints
    """i64[S], slot at each position."""
    place: Ints
    """i64[S], position of each slot."""
    device: Ints
    """i64[S], accelerator (0..a-1) of each slot."""
    size: Ints
    """i64[S], items in each slot."""
    readers: Ints
    """i64[f, S], items in each slot that read a flow, its maker excluded."""
    needs: Ints
    """i64[S, S], pairs of a flow made in one slot and an item that reads it in another."""
    spent: Floats
    """f64[S], in, compute and out of each slot together."""
    used: Floats
    """f64[a], bytes on each accelerator."""
    spread: Ints
    """i64[g, a + 1], items of each group on each accelerator and in the pool."""
    wrong: Ints
    """i64[2]: items where they are not supported; devices of groups beyond the first."""
    pool: Ints
    """i64[c], the items in the pool by (label, item)."""
    counts: Ints
    """i64[2]: items in the pool; entries of the log."""
    log_item: Ints
    log_from: Ints
    """i64[L], items moved since the log was cleared, and their labels before."""
    start: Floats
    end: Floats
    """f64[S], scratch: start and end of each slot."""
    last: Floats
    """f64[a], scratch: end of the last block of each accelerator."""
    ready: Floats
    """f64[n], scratch: end of each task of the pool."""


def fixed_of(items: BlockItems, most: int) -> Fixed:
    """Lay out items for the kernels; `most` slots a pass for each accelerator."""
    count = len(items.devices) * most
    passes = [late for late in (0, 1) if (items.backward == bool(late)).any() or not late]
    groups = int(items.group.max(initial=-1)) + 1
    group_ptr, group_idx = csr(items.group, np.arange(items.count), groups)
    integers = (
        items.maker,
        items.use_ptr,
        items.use_idx,
        items.in_ptr,
        items.in_idx,
        items.out_ptr,
        items.out_idx,
        items.before_ptr,
        items.before_idx,
        items.after_ptr,
        items.after_idx,
        items.member_ptr,
        items.member_idx,
        items.task_before_ptr,
        items.task_before_idx,
        items.task_after_ptr,
        items.task_after_idx,
        items.label,
    )
    maker, *rest = plain(*(x.astype(np.int64) for x in integers))
    return Fixed._make(
        [
            *plain(
                items.time,
                items.memory,
                items.capacity,
                items.pool,
                items.pooled,
                items.backward.astype(np.int64),
                items.mixed,
                items.group,
                group_ptr,
                group_idx,
            ),
            maker,
            *plain(items.leaves, items.move),
            *rest,
            np.repeat(np.array(passes, dtype=np.int64), count),
        ]
    )


def devices_of(items: BlockItems, fixed: Fixed, *, along: bool = False) -> Ints:
    """Accelerator of each slot at first: each pass runs through all of them, `most` times.

    The backward pass takes them the other way round, unless it is to run along the forward pass.
    """
    count = len(items.devices)
    slots = len(fixed.slot_late)
    forward = int((fixed.slot_late == 0).sum())
    turns = np.arange(slots) % max(count, 1)
    if not along:
        turns[forward:] = turns[forward:][::-1]
    return turns


def new_state(fixed: Fixed, at: Ints, slot: Ints, device: Ints) -> BlockState:
    """State with these labels, order of the slots and devices of the slots."""
    slots, count, flows = len(fixed.slot_late), len(fixed.memory), len(fixed.maker)
    accelerators, groups = len(fixed.capacity), len(fixed.group_ptr) - 1
    state = BlockState(
        at=at.copy(),
        home=np.zeros(count, np.int64),
        slot=slot.copy(),
        place=np.zeros(slots, np.int64),
        device=device.copy(),
        size=np.zeros(slots, np.int64),
        readers=np.zeros((flows, slots), np.int64),
        needs=np.zeros((slots, slots), np.int64),
        spent=np.zeros(slots),
        used=np.zeros(accelerators),
        spread=np.zeros((groups, accelerators + 1), np.int64),
        wrong=np.zeros(2, np.int64),
        pool=np.zeros(count, np.int64),
        counts=np.zeros(2, np.int64),
        log_item=np.zeros(8 * count + 64, np.int64),
        log_from=np.zeros(8 * count + 64, np.int64),
        start=np.zeros(slots),
        end=np.zeros(slots),
        last=np.zeros(accelerators),
        ready=np.zeros(len(fixed.pool)),
    )
    rebuild(fixed, state)
    return state


@lean
def rebuild(fixed, state):  # type: ignore[no-untyped-def]
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
    for e in range(len(fixed.maker)):
        for s in range(len(slot)):
            state.readers[e, s] = 0
    for d in range(accelerators):
        state.used[d] = 0.0
    for g in range(len(state.spread)):
        for d in range(accelerators + 1):
            state.spread[g, d] = 0
    for k in range(2):
        state.wrong[k] = 0
        state.counts[k] = 0
    for i in range(len(at)):
        s = home[i]
        if s >= 0:
            d = state.device[s]
            state.size[s] += 1
            state.used[d] += fixed.memory[i]
            if fixed.time[d, i] < np.inf:
                state.spent[s] += fixed.time[d, i]
            else:
                state.wrong[0] += 1
            state.spread[fixed.group[i], d] += 1
        else:
            if not fixed.pooled[i]:
                state.wrong[0] += 1
            state.spread[fixed.group[i], accelerators] += 1
            pool_insert(state, i)
    for g in range(len(state.spread)):
        homes = 0
        for d in range(accelerators + 1):
            homes += state.spread[g, d] > 0
        state.wrong[1] += homes - 1
    for e in range(len(fixed.maker)):
        m = fixed.maker[e]
        s = home[m] if m >= 0 else POOL_SLOT
        first, stop = fixed.use_ptr[e], fixed.use_ptr[e + 1]
        for q in range(first, stop):
            t = home[fixed.use_idx[q]]
            if t >= 0:
                if state.readers[e, t] == 0 and t != s:
                    state.spent[t] += fixed.move[state.device[t], e]
                state.readers[e, t] += 1
                if s >= 0:
                    state.needs[s, t] += 1
        if s >= 0 and (fixed.leaves[e] or state.readers[e, s] < stop - first):
            state.spent[s] += fixed.move[state.device[s], e]


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
