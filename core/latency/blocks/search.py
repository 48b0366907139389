"""Annealing of splits into blocks at one temperature: a kernel.

The energy of a split is its latency and a price of all that it breaks: memory above a capacity,
items where they are not supported, colours on several devices.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dnnp.core.cost.load_formula import ROUNDING
from dnnp.core.kernels.kernel import callee, lean
from dnnp.core.latency.blocks.moves import (
    border,
    follow,
    merge,
    open_slot,
    pass_by,
    push,
    single,
    undo,
)
from dnnp.core.latency.blocks.state import Fixed, rebuild
from dnnp.core.latency.blocks.update import excess, fits, latency
from dnnp.core.model.graph import Floats, Ints
from dnnp.core.split.annealing.random import below, exponential_table, generator

BORDER, SINGLE, JUMP, OPEN, MERGE, PASS, SWAP, TWICE = range(8)
"""Entries of `BlockMemory.mix`: kinds of moves; the last is the share of moves that are two."""

REACH = 4
"""A share REACH / s of the moves may take along s items: all sizes cost about the same."""


class BlockMemory(NamedTuple):
    """What annealing remembers beside the state, changed in place."""

    rng: np.ndarray
    """u64[1]."""
    dice: Floats
    """Exponential draws."""
    mix: Ints
    """i64[8], thousandths of the moves that are of each kind; they add up to 1000 or less, the
    rest is `BORDER`."""
    price: Floats
    """f64[3], what a full capacity of excess memory, any excess, and each wrong item cost."""
    tied: Ints
    """i64[1], whether groups must be brought together after a move."""
    value: Floats
    """f64[2]: least latency of a valid split so far, inf while there is none; energy now."""
    best_at: Ints
    """i64[c], its labels."""
    best_slot: Ints
    best_device: Ints
    """i64[S], its slots by position, and their devices."""
    stack: Ints
    """i64[2, L], scratch."""


def new_search(fixed: Fixed, seed: int, mix: tuple[int, ...], *, tied: bool) -> BlockMemory:
    """Memory for annealing."""
    count, slots = len(fixed.memory), len(fixed.slot_late)
    return BlockMemory(
        rng=generator(seed),
        dice=exponential_table(),
        mix=np.array(mix, dtype=np.int64),
        price=np.zeros(3),
        tied=np.array([int(tied)]),
        value=np.full(2, np.inf),
        best_at=np.zeros(count, np.int64),
        best_slot=np.zeros(slots, np.int64),
        best_device=np.zeros(slots, np.int64),
        stack=np.zeros((2, 8 * count + 4 * len(fixed.after_idx) + 64), np.int64),
    )


@callee
def energy_of(fixed, state, search):  # type: ignore[no-untyped-def]
    """Energy of the state; keeps it if it is the best valid one so far."""
    value = latency(fixed, state)
    over = excess(fixed, state)
    wrong = state.wrong[0] + state.wrong[1]
    if over == 0.0 and wrong == 0:
        if value < search.value[0] * (1 - ROUNDING) and fits(fixed, state):
            search.value[0] = value
            for i in range(len(state.at)):
                search.best_at[i] = state.at[i]
            for p in range(len(state.slot)):
                search.best_slot[p] = state.slot[p]
                search.best_device[p] = state.device[p]
        return value
    price = search.price
    return value + price[0] * over + (price[1] if over > 0.0 else 0.0) + price[2] * wrong


@callee
def exchange(state, one, other, whole):  # type: ignore[no-untyped-def]
    """Let two slots of a pass, or with them all others of their accelerators, change devices."""
    device = state.device
    a, b = device[one], device[other]
    for s in range(len(device)):
        if s == one or (whole and device[s] == a):
            device[s] = b
        elif s == other or (whole and device[s] == b):
            device[s] = a


@lean
def anneal_step(fixed, state, search, temperature, moves):  # type: ignore[no-untyped-def]
    """Try some moves at one temperature."""
    rng, dice, mix, stack = search.rng, search.dice, search.mix, search.stack
    items, slots, accelerators = len(state.at), len(state.slot), len(state.used)
    rebuild(fixed, state)
    energy = energy_of(fixed, state, search)
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
                pass_by(state, below(rng, slots - 1))
            continue
        if kind == SWAP:
            if accelerators < 2:
                continue
            one, other = below(rng, slots), below(rng, slots)
            if (
                state.device[one] == state.device[other]
                or fixed.slot_late[one] != fixed.slot_late[other]
                or (state.size[one] == 0 and state.size[other] == 0)
            ):
                continue
            whole = search.tied[0] > 0 or below(rng, 2) == 0
            exchange(state, one, other, whole)
            rebuild(fixed, state)
            after = energy_of(fixed, state, search)
            if after - energy > temperature * dice[below(rng, len(dice))]:
                exchange(state, one, other, whole)
                rebuild(fixed, state)
            else:
                energy = after
            continue
        done = True
        twice = below(rng, 1000) < mix[TWICE]
        filled, logged = -1, 0
        for part in range(1 + twice):
            item = below(rng, items)
            limit = logged + REACH * items // (1 + below(rng, items))
            if filled >= 0 and below(rng, 4):
                for _ in range(4 * slots):  # out of the slot that the first part filled
                    if state.home[item] == filled:
                        break
                    item = below(rng, items)
            if kind == SINGLE:
                done = single(fixed, state, rng, item)
            elif kind == JUMP:
                label = 2 * below(rng, slots) + 1 if slots > 0 else 0
                if below(rng, 4) == 0:
                    label = state.at[item] - 1 + 2 * below(rng, 2)
                done = 0 <= label <= 2 * slots and push(fixed, state, stack, item, label, limit)
            elif kind == OPEN:
                done = slots > 0 and open_slot(fixed, state, stack, rng, item, limit)
                if state.counts[1] == 0:
                    done = False
            else:
                i, j = border(fixed, state, rng, item if filled >= 0 else -1)
                if i < 0:
                    done = False
                elif kind == MERGE and state.home[i] >= 0 and state.at[j] % 2:
                    done = merge(fixed, state, stack, state.home[i], state.at[j])
                else:
                    done = push(fixed, state, stack, i, state.at[j], limit)
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
            done = search.tied[0] == 0 or follow(fixed, state, stack, rng)
        if not done:
            undo(fixed, state)
            continue
        after = energy_of(fixed, state, search)
        if after - energy > temperature * dice[below(rng, len(dice))]:
            undo(fixed, state)
        else:
            energy = after
    search.value[1] = energy
