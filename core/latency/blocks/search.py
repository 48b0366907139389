"""Annealing of splits into blocks at one temperature: its moves, and the kernel that tries them.

Each move keeps labels from falling along edges. Moves of items are logged and can be undone; moves
of slots that change no block need not be. The energy of a split is its latency plus penalties for
violations: memory above a capacity, items on devices without support, colours on several devices,
rules that are broken.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dnnp.core.cost.load_formula import ROUNDING
from dnnp.core.kernels.kernel import callee, inlined, lean
from dnnp.core.latency.blocks.items import BlockItems
from dnnp.core.latency.blocks.state import (
    POOL_SLOT,
    excess,
    fits,
    held_excess,
    latency,
    pool_insert,
    rebuild,
    relocate,
)
from dnnp.core.model.graph import Floats, Ints
from dnnp.core.split.annealing.state import below, broken, exponential_table, generator

EVERYTHING = 1 << 60
"""No limit."""

TRIES = 8
"""Random items that are looked at for one with a neighbour elsewhere."""

BORDER, SINGLE, JUMP, OPEN, MERGE, PASS, SWAP, TWICE = range(8)
"""Entries of `BlockMemory.mix`: kinds of moves; the last is the share of moves that are two."""

REACH = 4
"""A share REACH / s of the moves may take along s items: all sizes cost about the same."""


@inlined
def is_allowed(items, state, i, label):  # type: ignore[no-untyped-def]
    """True if an item may have a label: pass and support."""
    if label % 2 == 0:
        return items.pooled[i]
    s = state.slot[label // 2]
    return (
        not items.mixed[i]
        and items.slot_late[s] == items.late[i]
        and items.time[state.device[s], i] < np.inf
    )


@inlined
def nearest_allowed(items, state, i, label, up):  # type: ignore[no-untyped-def]
    """First label from `label` on, up or down, that an item may have; else one of the pool."""
    step = 1 if up else -1
    found = label
    while 0 <= found <= 2 * len(state.slot):
        if is_allowed(items, state, i, found):
            return found
        found += step
    return label if label % 2 == 0 else label + step


@callee
def move_logged(items, state, i, label):  # type: ignore[no-untyped-def]
    """Relocate an item and log it; False if the log is full."""
    k = state.counts[1]
    if k == len(state.log_item):
        return False
    state.log_item[k] = i
    state.log_from[k] = state.at[i]
    state.counts[1] = k + 1
    relocate(items, state, i, label)
    return True


@callee
def undo(items, state):  # type: ignore[no-untyped-def]
    """Undo all logged moves."""
    k = state.counts[1]
    while k > 0:
        k -= 1
        relocate(items, state, state.log_item[k], state.log_from[k])
    state.counts[1] = 0


@callee
def move_chain(items, state, stack, i, label, limit):  # type: ignore[no-untyped-def]
    """Move an item to a label, with its ancestors or descendants that would violate the order.

    stack: i64[2, L], scratch. False if the log would exceed `limit` entries: the order is violated.
    """
    at = state.at
    if label == at[i]:
        return True
    up = label > at[i]
    ptr, others = (items.after_ptr, items.after_idx) if up else (items.before_ptr, items.before_idx)
    stack[0, 0], stack[1, 0] = i, label
    top = 1
    while top > 0:
        top -= 1
        j, target = stack[0, top], stack[1, top]
        if (at[j] >= target) if up else (at[j] <= target):
            continue
        target = nearest_allowed(items, state, j, target, up)
        if state.counts[1] >= limit or not move_logged(items, state, j, target):
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
def rejoin_groups(items, state, stack, rng):  # type: ignore[no-untyped-def]
    """Move the groups of all logged items to the devices of these; may fail."""
    k = 0
    while k < state.counts[1] and state.wrong[1] > 0:
        i = state.log_item[k]
        k += 1
        g = items.group[i]
        if items.group_ptr[g + 1] - items.group_ptr[g] == 1:
            continue
        s = state.home[i]
        d = state.device[s] if s >= 0 else len(state.used)
        for q in range(items.group_ptr[g], items.group_ptr[g + 1]):
            j = items.group_idx[q]
            t = state.home[j]
            if (state.device[t] if t >= 0 else len(state.used)) == d:
                continue
            label = -1
            if s < 0:
                label = state.at[j] - 1 + 2 * below(rng, 2)
            else:
                for p in range(len(state.slot)):
                    r = state.slot[p]
                    if state.device[r] == d and items.slot_late[r] == items.late[j]:
                        far = abs(2 * p + 1 - state.at[j])
                        if label < 0 or far < abs(label - state.at[j]):
                            label = 2 * p + 1
            if label >= 0 and not move_chain(items, state, stack, j, label, EVERYTHING):
                return False
    return True


@inlined
def cut_edge(items, state, rng, item):  # type: ignore[no-untyped-def]
    """Random edge between labels, at a given item or a random one; -1: none found."""
    at = state.at
    for _ in range(TRIES if item < 0 else 1):
        i = item if item >= 0 else below(rng, len(at))
        first = items.before_ptr[i + 1] - items.before_ptr[i]
        last = items.after_ptr[i + 1] - items.after_ptr[i]
        seen, found = 0, -1
        for q in range(first + last):
            j = (
                items.before_idx[items.before_ptr[i] + q]
                if q < first
                else items.after_idx[items.after_ptr[i] + q - first]
            )
            if at[j] != at[i]:
                seen += 1
                if below(rng, seen) == 0:
                    found = j
        if found >= 0:
            return i, found
    return -1, -1


@inlined
def move_single(items, state, rng, i):  # type: ignore[no-untyped-def]
    """Give an item another label that keeps the order; False if there is none."""
    at = state.at
    low, high = 0, 2 * len(state.slot)
    for q in range(items.before_ptr[i], items.before_ptr[i + 1]):
        low = max(low, at[items.before_idx[q]])
    for q in range(items.after_ptr[i], items.after_ptr[i + 1]):
        high = min(high, at[items.after_idx[q]])
    if low == high:
        return False
    label = low + below(rng, high - low)
    if label >= at[i]:
        label += 1
    if label % 2 and below(rng, 2):
        label = low if below(rng, 2) else high  # with a neighbour, not in between
    if label == at[i] or not is_allowed(items, state, i, label):
        return False
    return move_logged(items, state, i, label)


@inlined
def move_slot(state, source, target):  # type: ignore[no-untyped-def]
    """Move an empty slot to another position; the blocks stay the same."""
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
def open_slot(items, state, stack, rng, i, limit):  # type: ignore[no-untyped-def]
    """Move an item, with all before or all after it in its block, into an adjacent empty slot."""
    slots, empty, seen = len(state.slot), -1, 0
    for p in range(slots):
        s = state.slot[p]
        if state.size[s] == 0 and items.slot_late[s] == items.late[i]:
            seen += 1
            if below(rng, seen) == 0:
                empty = p
    if empty < 0 or items.mixed[i]:
        return False
    up = below(rng, 2) == 0
    p = state.at[i] // 2  # of its slot; or of the one after its pool
    target = p + 1 if up and state.at[i] % 2 else p
    if empty < target:
        target -= 1
    if target != empty:
        move_slot(state, empty, target)
    return move_chain(items, state, stack, i, 2 * target + 1, limit)


@inlined
def merge_slot(items, state, stack, a, label):  # type: ignore[no-untyped-def]
    """Move all items of a slot to a label."""
    for i in range(len(state.at)):
        if state.home[i] == a and not move_chain(items, state, stack, i, label, EVERYTHING):
            return False
    return state.counts[1] > 0


@inlined
def swap_adjacent_slots(state, p):  # type: ignore[no-untyped-def]
    """Swap the slots at positions p and p + 1 if that changes no block."""
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


class BlockAnnealing(NamedTuple):
    """Annealing state without the labels, changed in place."""

    rng: np.ndarray
    """u64[1]."""
    dice: Floats
    """Exponential draws."""
    mix: Ints
    """i64[8], thousandths of the moves that are of each kind; they add up to 1000 or less, the
    rest is `BORDER`."""
    price: Floats
    """f64[3], penalties of a full capacity of excess memory, of any excess, of each wrong item."""
    tied: Ints
    """i64[1], 1: groups must be rejoined after a move."""
    value: Floats
    """f64[2]: least latency of a valid split so far, inf while there is none; energy now."""
    best_at: Ints
    """i64[c], its labels."""
    best_slot: Ints
    best_device: Ints
    """i64[S], its slots by position, and their devices."""
    stack: Ints
    """i64[2, L], scratch."""


def new_annealing(items: BlockItems, seed: int, mix: tuple[int, ...]) -> BlockAnnealing:
    """New annealing state."""
    count, slots = len(items.memory), len(items.slot_late)
    return BlockAnnealing(
        rng=generator(seed),
        dice=exponential_table(),
        mix=np.array(mix, dtype=np.int64),
        price=np.zeros(3),
        tied=np.array([int(items.tied)]),
        value=np.full(2, np.inf),
        best_at=np.zeros(count, np.int64),
        best_slot=np.zeros(slots, np.int64),
        best_device=np.zeros(slots, np.int64),
        stack=np.zeros((2, 8 * count + 4 * len(items.after_idx) + 64), np.int64),
    )


@callee
def energy_of(items, state, search, held, most):  # type: ignore[no-untyped-def]
    """Energy of the state; the best valid one so far is recorded.

    Live tensors take a pass over all of them: they are skipped where it is above `most` already.
    """
    value = latency(items, state)
    over = excess(items, state)
    wrong = state.wrong[0] + state.wrong[1]
    if len(items.marks) > 0:
        wrong += broken(state.marked, items.exactly)
    price = search.price
    if held is not None:
        if value + price[0] * over + (price[1] if over > 0.0 else 0.0) + price[2] * wrong > most:
            return np.inf
        over = held_excess(items, state, held)
    if over == 0.0 and wrong == 0:
        if value < search.value[0] * (1 - ROUNDING) and fits(items, state):
            search.value[0] = value
            for i in range(len(state.at)):
                search.best_at[i] = state.at[i]
            for p in range(len(state.slot)):
                search.best_slot[p] = state.slot[p]
                search.best_device[p] = state.device[p]
        return value
    return value + price[0] * over + (price[1] if over > 0.0 else 0.0) + price[2] * wrong


@callee
def swap_devices(state, one, other, whole):  # type: ignore[no-untyped-def]
    """Swap the devices of two slots of a pass, or of all slots of their accelerators."""
    device = state.device
    a, b = device[one], device[other]
    for s in range(len(device)):
        if s == one or (whole and device[s] == a):
            device[s] = b
        elif s == other or (whole and device[s] == b):
            device[s] = a


@lean
def anneal_step(items, state, search, temperature, moves):  # type: ignore[no-untyped-def]
    """Try some moves at one temperature."""
    _moves(items, state, search, None, temperature, moves)


@lean
def anneal_held(items, state, search, held, temperature, moves):  # type: ignore[no-untyped-def]
    """Try some moves at one temperature where live tensors count; the excess memory then."""
    _moves(items, state, search, held, temperature, moves)
    return held_excess(items, state, held)


@callee
def _moves(items, state, search, held, temperature, moves):  # type: ignore[no-untyped-def]
    """Try some moves; `held`: None if live tensors do not count."""
    rng, dice, mix, stack = search.rng, search.dice, search.mix, search.stack
    count, slots, accelerators = len(state.at), len(state.slot), len(state.used)
    rebuild(items, state)
    energy = energy_of(items, state, search, held, np.inf)
    for _ in range(moves):
        state.counts[1] = 0
        draw = below(rng, 1000)
        kind = BORDER
        for k in range(SINGLE, TWICE):
            if draw < mix[k]:
                kind = k
                break
            draw -= mix[k]
        one, other = -1, -1
        if kind == PASS:
            if slots > 1:
                swap_adjacent_slots(state, below(rng, slots - 1))
            continue
        if kind == SWAP:
            if accelerators < 2:
                continue
            one, other = below(rng, slots), below(rng, slots)
            if (
                state.device[one] == state.device[other]
                or items.slot_late[one] != items.slot_late[other]
                or (state.size[one] == 0 and state.size[other] == 0)
            ):
                continue
            whole = search.tied[0] > 0 or below(rng, 2) == 0
            swap_devices(state, one, other, whole)
            rebuild(items, state)
            worse = temperature * dice[below(rng, len(dice))]
            after = energy_of(items, state, search, held, energy + worse)
            if after - energy > worse:
                swap_devices(state, one, other, whole)
                rebuild(items, state)
            else:
                energy = after
            continue
        done = True
        twice = below(rng, 1000) < mix[TWICE]
        filled, logged = -1, 0
        for part in range(1 + twice):
            item = below(rng, count)
            limit = logged + REACH * count // (1 + below(rng, count))
            if filled >= 0 and below(rng, 4):
                for _ in range(4 * slots):  # out of the slot that the first part filled
                    if state.home[item] == filled:
                        break
                    item = below(rng, count)
            if kind == SINGLE:
                done = move_single(items, state, rng, item)
            elif kind == JUMP:
                label = 2 * below(rng, slots) + 1 if slots > 0 else 0
                if below(rng, 4) == 0:
                    label = state.at[item] - 1 + 2 * below(rng, 2)
                done = 0 <= label <= 2 * slots and move_chain(
                    items, state, stack, item, label, limit
                )
            elif kind == OPEN:
                done = slots > 0 and open_slot(items, state, stack, rng, item, limit)
                if state.counts[1] == 0:
                    done = False
            else:
                i, j = cut_edge(items, state, rng, item if filled >= 0 else -1)
                if i < 0:
                    done = False
                elif kind == MERGE and state.home[i] >= 0 and state.at[j] % 2:
                    done = merge_slot(items, state, stack, state.home[i], state.at[j])
                else:
                    done = move_chain(items, state, stack, i, state.at[j], limit)
            if not done:
                if part > 0 and state.counts[1] == logged:
                    done = True  # the first part stands
                break
            logged = state.counts[1]
            if logged > 0:
                filled = state.home[state.log_item[state.counts[1] - 1]]
            kind = BORDER if below(rng, 2) else SINGLE
        if state.counts[1] == 0:
            continue
        if done:
            done = search.tied[0] == 0 or rejoin_groups(items, state, stack, rng)
        if not done:
            undo(items, state)
            continue
        worse = temperature * dice[below(rng, len(dice))]
        after = energy_of(items, state, search, held, energy + worse)
        if after - energy > worse:
            undo(items, state)
        else:
            energy = after
    search.value[1] = energy
