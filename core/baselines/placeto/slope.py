"""Derivatives of the policy by its weights, for all steps of an episode at once.

The steps of an episode are taken back one after the other (`Tape`): a row that many steps have
used is derived once, when the step that made it is taken back.
"""

from __future__ import annotations

import math

import numpy as np

from dnnp.core.baselines.placeto.groups import Groups
from dnnp.core.baselines.placeto.layers import (
    BEGIN,
    CHOOSE,
    INSIDE,
    OUTSIDE,
    SEND,
    TAKE,
    Uphill,
    turn,
    unapply,
    unrectify,
)
from dnnp.core.baselines.placeto.policy import (
    State,
    Weights,
    advance,
    begin,
    choose,
    entropy_of,
    place_of,
    refresh,
    start,
)
from dnnp.core.baselines.placeto.tape import Tape, forget, has_room
from dnnp.core.cost.kernel import callee, kernel
from dnnp.core.model.graph import Floats, Ints


@kernel
def add_slopes(
    groups: Groups,
    weights: Weights,
    tape: Tape,
    state: State,
    taken: Ints,
    gain: Floats,
    spread: float,
    slopes: Floats,
) -> None:
    """Add the derivative of an episode's sum of gain * log(chance taken) + spread * entropy.

    Parameters
    ----------
    tape
        Of those that keep rows.
    state
        Where the episode starts; it ends where that one ended.
    taken
        i64[q], the device that each step took.
    gain
        f64[q], of each step.
    slopes
        f64[p], to which the derivatives by the weights are added.
    """
    marks = np.zeros((len(taken), 3), dtype=np.int64)
    up = Uphill(weights.shape, np.empty(len(slopes)), slopes, np.empty(tape.nothing.shape[1]))
    _add_slopes(groups, weights, tape, state, taken, gain, spread, up, marks)


@callee
def _add_slopes(
    groups: Groups,
    weights: Weights,
    tape: Tape,
    state: State,
    taken: Ints,
    gain: Floats,
    spread: float,
    up: Uphill,
    marks: Ints,
) -> None:
    """`add_slopes`; `marks`: i64[q, 3], rows of each kind before each step."""
    q = len(taken)
    turn(up.shape, weights.flat, up.turned)
    begin(groups, state)
    first = 0
    while first < q:
        start(groups, weights, tape, state)
        step = first
        while step + 1 < q and has_room(tape):
            advance(groups, tape, state, step, taken[step])
            step += 1
            marks[step, 0] = tape.base.used[0]
            marks[step, 1] = tape.low.used[0]
            marks[step, 2] = tape.top.used[0]
            refresh(groups, weights, tape, state, 2, True)
        for back in range(step, first - 1, -1):
            _derive_choice(groups, weights, tape, up, back, taken[back], gain[back], spread)
            if back > first:
                base, low, top = marks[back, 0], marks[back, 1], marks[back, 2]
                _take_back(groups, weights, tape, up, base, low, top)
        _take_back(groups, weights, tape, up, 0, 0, 0)
        advance(groups, tape, state, step, taken[step])
        first = step + 1


@callee
def _derive_choice(
    groups: Groups,
    weights: Weights,
    tape: Tape,
    up: Uphill,
    step: int,
    taken: int,
    gain: float,
    spread: float,
) -> None:
    """Derive what one step adds, by the rows of all groups."""
    v, q, both = groups.visits[step], len(tape.seen), tape.both.shape[1]
    choose(groups, weights, tape, v)
    entropy = entropy_of(tape)
    for d in range(tape.chance.shape[1]):
        p = tape.chance[0, d]
        tape.by_logits[0, d] = -gain * p
        if d == taken:
            tape.by_logits[0, d] += gain
        if p > 0.0:
            tape.by_logits[0, d] -= spread * p * (math.log(p) + entropy)
    for i in range(4 * both):
        tape.by_joined[0, i] = 0.0
    hidden = tape.choose_hidden
    unapply(
        up, CHOOSE, tape.joined, 0, hidden, 0,
        tape.by_logits, 0, tape.by_joined, 0,
    )  # fmt: skip
    for i in range(both):
        tape.by_both[tape.top.row[v], i] += tape.by_joined[0, 3 * both + i]
    for pool in range(3):
        for i in range(both):
            tape.by_outside[pool, i] = tape.by_joined[0, pool * both + i]
            tape.by_pool[pool, i] = 0.0
        unrectify(tape.outside, pool, tape.by_outside, pool)
        unapply(
            up, OUTSIDE + pool, tape.pool, pool, tape.outside_hidden, pool,
            tape.by_outside, pool, tape.by_pool, pool,
        )  # fmt: skip
        count = 0
        for u in range(q):
            if groups.relation[v, u] == pool + 1:
                count += 1
        for i in range(both):
            tape.by_pool[pool, i] /= max(count, 1)
        for u in range(q):
            if groups.relation[v, u] == pool + 1:
                at = 3 * tape.top.row[u] + pool
                for i in range(both):
                    tape.by_inside[at, i] += tape.by_pool[pool, i]


@callee
def _take_back(
    groups: Groups, weights: Weights, tape: Tape, up: Uphill, base: int, low: int, top: int
) -> None:
    """Derive and forget the last rows, down to so many of each kind."""
    for row in range(tape.top.used[0] - 1, top - 1, -1):
        _derive_pools(weights, tape, up, row)
        forget(tape.top, row)
    for row in range(tape.low.used[0] - 1, low - 1, -1):
        _derive_hop(groups, weights, tape, up, row)
        forget(tape.low, row)
    for row in range(tape.base.used[0] - 1, base - 1, -1):
        unapply(
            up, BEGIN, tape.said, row, tape.said_hidden, row,
            tape.by_begin, row, tape.nothing, 0,
        )  # fmt: skip
        forget(tape.base, row)


@callee
def _derive_pools(weights: Weights, tape: Tape, up: Uphill, row: int) -> None:
    """From what a group adds to the pools to its last rows of messages."""
    u, width = tape.top.place[row], tape.x.shape[1]
    for pool in range(3):
        at = 3 * row + pool
        unrectify(tape.inside, at, tape.by_inside, at)
        unapply(
            up, INSIDE + pool, tape.both, row, tape.inside_hidden, at,
            tape.by_inside, at, tape.by_both, row,
        )  # fmt: skip
    for direction in range(2):
        low = tape.low.row[place_of(tape, weights.hops, direction, weights.hops, u)]
        for i in range(width):
            tape.by_x[low, i] += tape.by_both[row, direction * width + i]


@callee
def _derive_hop(groups: Groups, weights: Weights, tape: Tape, up: Uphill, row: int) -> None:
    """From a row of messages to those of the round before, and to where all begins."""
    hops, width, q = weights.hops, tape.x.shape[1], len(tape.seen)
    place = tape.low.place[row]
    u, hop = place % q, place // q % (hops + 1)
    direction = place // q // (hops + 1)
    ptr = groups.in_ptr if direction == 0 else groups.out_ptr
    idx = groups.in_idx if direction == 0 else groups.out_idx
    if hop < hops:
        unrectify(tape.sent, row, tape.by_sent, row)
        unapply(
            up, SEND + 2 * direction, tape.x, row, tape.sent_hidden, row,
            tape.by_sent, row, tape.by_x, row,
        )  # fmt: skip
    begin_row = tape.base.row[u]
    for i in range(width):
        tape.by_begin[begin_row, i] += tape.by_x[row, i]
    if hop == 0 or ptr[u + 1] == ptr[u]:
        return
    for i in range(width):
        tape.by_taken[0, i] = tape.by_x[row, i]
        tape.by_got[0, i] = 0.0
    unrectify(tape.taken, row, tape.by_taken, 0)
    unapply(
        up, TAKE + 2 * direction, tape.got, row, tape.taken_hidden, row,
        tape.by_taken, 0, tape.by_got, 0,
    )  # fmt: skip
    for a in range(ptr[u], ptr[u + 1]):
        other = tape.low.row[place_of(tape, hops, direction, hop - 1, idx[a])]
        for i in range(width):
            tape.by_sent[other, i] += tape.by_got[0, i]
