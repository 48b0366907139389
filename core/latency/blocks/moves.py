"""Moves of a search among splits into blocks: kernels. Each keeps labels from falling along edges.

Moves of items are logged and can be undone; moves of slots that change no block need not be.
"""

from __future__ import annotations

import numpy as np

from dnnp.core.kernels.kernel import callee, inlined
from dnnp.core.latency.blocks.state import POOL_SLOT, pool_insert
from dnnp.core.latency.blocks.update import relocate
from dnnp.core.split.annealing.random import below

EVERYTHING = 1 << 60
"""No limit."""

TRIES = 8
"""Random items that are looked at for one with a neighbour elsewhere."""


@inlined
def welcome(fixed, state, i, label):  # type: ignore[no-untyped-def]
    """Whether an item may have a label: pass and support."""
    if label % 2 == 0:
        return fixed.pooled[i]
    s = state.slot[label // 2]
    return (
        not fixed.mixed[i]
        and fixed.slot_late[s] == fixed.late[i]
        and fixed.time[state.device[s], i] < np.inf
    )


@inlined
def settle_label(fixed, state, i, label, up):  # type: ignore[no-untyped-def]
    """The first label from `label` on, up or down, that welcomes an item; else one of the pool."""
    step = 1 if up else -1
    found = label
    while 0 <= found <= 2 * len(state.slot):
        if welcome(fixed, state, i, found):
            return found
        found += step
    return label if label % 2 == 0 else label + step


@callee
def put(fixed, state, i, label):  # type: ignore[no-untyped-def]
    """Relocate an item and log it; False if the log is full."""
    k = state.counts[1]
    if k == len(state.log_item):
        return False
    state.log_item[k] = i
    state.log_from[k] = state.at[i]
    state.counts[1] = k + 1
    relocate(fixed, state, i, label)
    return True


@callee
def undo(fixed, state):  # type: ignore[no-untyped-def]
    """Take back what the log holds."""
    k = state.counts[1]
    while k > 0:
        k -= 1
        relocate(fixed, state, state.log_item[k], state.log_from[k])
    state.counts[1] = 0


@callee
def push(fixed, state, stack, i, label, limit):  # type: ignore[no-untyped-def]
    """Move an item to a label, and along what would break the order.

    stack: i64[2, L], scratch. False if the log would have more than `limit` entries: then the
    order is broken.
    """
    at = state.at
    if label == at[i]:
        return True
    up = label > at[i]
    ptr, others = (fixed.after_ptr, fixed.after_idx) if up else (fixed.before_ptr, fixed.before_idx)
    stack[0, 0], stack[1, 0] = i, label
    top = 1
    while top > 0:
        top -= 1
        j, target = stack[0, top], stack[1, top]
        if (at[j] >= target) if up else (at[j] <= target):
            continue
        target = settle_label(fixed, state, j, target, up)
        if state.counts[1] >= limit or not put(fixed, state, j, target):
            return False
        for q in range(ptr[j], ptr[j + 1]):
            other = others[q]
            if (at[other] < target) if up else (at[other] > target):
                if top == stack.shape[1]:
                    return False
                stack[0, top], stack[1, top] = other, target
                top += 1
    return True


@inlined
def follow(fixed, state, stack, rng):  # type: ignore[no-untyped-def]
    """Bring the groups of all logged items together again, where those are now; may fail."""
    k = 0
    while k < state.counts[1] and state.wrong[1] > 0:
        i = state.log_item[k]
        k += 1
        g = fixed.group[i]
        if fixed.group_ptr[g + 1] - fixed.group_ptr[g] == 1:
            continue
        s = state.home[i]
        d = state.device[s] if s >= 0 else len(state.used)
        for q in range(fixed.group_ptr[g], fixed.group_ptr[g + 1]):
            j = fixed.group_idx[q]
            t = state.home[j]
            if (state.device[t] if t >= 0 else len(state.used)) == d:
                continue
            label = -1
            if s < 0:
                label = state.at[j] - 1 + 2 * below(rng, 2)
            else:
                for p in range(len(state.slot)):
                    r = state.slot[p]
                    if state.device[r] == d and fixed.slot_late[r] == fixed.late[j]:
                        far = abs(2 * p + 1 - state.at[j])
                        if label < 0 or far < abs(label - state.at[j]):
                            label = 2 * p + 1
            if label >= 0 and not push(fixed, state, stack, j, label, EVERYTHING):
                return False
    return True


@inlined
def border(fixed, state, rng, item):  # type: ignore[no-untyped-def]
    """An item (a given one, or a random one) and a neighbour with another label; -1: none seen."""
    at = state.at
    for _ in range(TRIES if item < 0 else 1):
        i = item if item >= 0 else below(rng, len(at))
        first = fixed.before_ptr[i + 1] - fixed.before_ptr[i]
        last = fixed.after_ptr[i + 1] - fixed.after_ptr[i]
        seen, found = 0, -1
        for q in range(first + last):
            j = (
                fixed.before_idx[fixed.before_ptr[i] + q]
                if q < first
                else fixed.after_idx[fixed.after_ptr[i] + q - first]
            )
            if at[j] != at[i]:
                seen += 1
                if below(rng, seen) == 0:
                    found = j
        if found >= 0:
            return i, found
    return -1, -1


@inlined
def single(fixed, state, rng, i):  # type: ignore[no-untyped-def]
    """Give an item another label that breaks no order; False if there is none."""
    at = state.at
    low, high = 0, 2 * len(state.slot)
    for q in range(fixed.before_ptr[i], fixed.before_ptr[i + 1]):
        low = max(low, at[fixed.before_idx[q]])
    for q in range(fixed.after_ptr[i], fixed.after_ptr[i + 1]):
        high = min(high, at[fixed.after_idx[q]])
    if low == high:
        return False
    label = low + below(rng, high - low)
    if label >= at[i]:
        label += 1
    if label % 2 and below(rng, 2):
        label = low if below(rng, 2) else high  # with a neighbour, not in between
    if label == at[i] or not welcome(fixed, state, i, label):
        return False
    return put(fixed, state, i, label)


@inlined
def lift(state, source, target):  # type: ignore[no-untyped-def]
    """Move an empty slot from one position to another; the blocks stay the same."""
    slot, at = state.slot, state.at
    s = slot[source]
    step = 1 if target > source else -1
    for p in range(source, target, step):
        slot[p] = slot[p + step]
    slot[target] = s
    for p in range(len(slot)):
        state.place[slot[p]] = p
    for i in range(len(at)):
        # Pools on both sides of where the slot was become one.
        if step > 0 and 2 * source + 1 < at[i] <= 2 * target + 1:
            at[i] -= 2
        elif step < 0 and 2 * target + 1 <= at[i] < 2 * source + 1:
            at[i] += 2
    state.counts[0] = 0
    for i in range(len(at)):
        if state.home[i] == POOL_SLOT:
            pool_insert(state, i)


@inlined
def open_slot(fixed, state, stack, rng, i, limit):  # type: ignore[no-untyped-def]
    """Move an item, with all before or all after it in its block, into an empty slot beside it."""
    slots, empty, seen = len(state.slot), -1, 0
    for p in range(slots):
        s = state.slot[p]
        if state.size[s] == 0 and fixed.slot_late[s] == fixed.late[i]:
            seen += 1
            if below(rng, seen) == 0:
                empty = p
    if empty < 0 or fixed.mixed[i]:
        return False
    up = below(rng, 2) == 0
    p = state.at[i] // 2  # of its slot; or of the one after its pool
    target = p + 1 if up and state.at[i] % 2 else p
    if empty < target:
        target -= 1
    if target != empty:
        lift(state, empty, target)
    return push(fixed, state, stack, i, 2 * target + 1, limit)


@inlined
def merge(fixed, state, stack, a, label):  # type: ignore[no-untyped-def]
    """Push all items of a slot to a label."""
    for i in range(len(state.at)):
        if state.home[i] == a and not push(fixed, state, stack, i, label, EVERYTHING):
            return False
    return state.counts[1] > 0


@inlined
def pass_by(state, p):  # type: ignore[no-untyped-def]
    """Let the slots at positions p and p + 1 change places, if no block notices."""
    slot, at = state.slot, state.at
    a, b = slot[p], slot[p + 1]
    if state.needs[a, b] > 0 or (
        state.device[a] == state.device[b] and state.size[a] > 0 and state.size[b] > 0
    ):
        return
    for k in range(state.counts[0]):
        if at[state.pool[k]] == 2 * p + 2:
            return
    for i in range(len(at)):
        if at[i] == 2 * p + 1:
            at[i] = 2 * p + 3
        elif at[i] == 2 * p + 3:
            at[i] = 2 * p + 1
    slot[p], slot[p + 1] = b, a
    state.place[a], state.place[b] = p + 1, p
