"""The policy of Placeto: from a placement and a group to the chance of each device (section 3.2).

Features of every group go through a first network. Then messages pass along the edges, `hops`
times, in both directions (Eq. 1): x' = x0 + g(sum of f(x) of the neighbours), x0 where there is
none. For the group that is to be placed, all groups before it, after it and parallel to it are
pooled, each by h(mean of h'(x)), and all that, beside its own x, gives a number for each device.

Details that the paper leaves open. Features are times over the mean time of a group, as log(1 + .),
the size of the output as its time on the mean link; a time for each device, as they may differ;
memory as share of the smallest device (an option of the authors). x0 is added in each round, as
the authors do. Pools take means, so that graphs of other sizes look alike. Devices that do not run
a group have no chance.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from dnnp.core.baselines.placeto.groups import Groups
from dnnp.core.baselines.placeto.layers import (
    BEGIN,
    CHOOSE,
    INSIDE,
    OUTSIDE,
    SEND,
    TAKE,
    apply,
    rectify,
)
from dnnp.core.baselines.placeto.tape import Tape, claimed, rewind
from dnnp.core.cost.kernel import callee
from dnnp.core.model.graph import Floats, Ints


class Weights(NamedTuple):
    """The weights of a policy, and where they are."""

    shape: Ints
    """As in `layers.shape_of`."""
    hops: int
    flat: Floats
    """f64[p]."""


class State(NamedTuple):
    """A state of the decision process."""

    home: Ints
    """i64[q], device of each group."""
    flags: Floats
    """f64[q, 2]: it is the current one; it was visited."""


@callee
def begin(groups: Groups, state: State) -> None:
    """An episode begins: no group was visited, and the first one is the current one."""
    for u in range(len(state.home)):
        state.flags[u, 0] = 0.0
        state.flags[u, 1] = 0.0
    state.flags[groups.visits[0], 0] = 1.0


@callee
def advance(groups: Groups, tape: Tape, state: State, step: int, taken: int) -> None:
    """Place the current group, and go on to the next; both are then in `tape.seen`."""
    v = groups.visits[step]
    state.home[v] = taken
    state.flags[v, 0] = 0.0
    state.flags[v, 1] = 1.0
    tape.seen[0] = v
    if step + 1 < len(groups.visits):
        tape.seen[1] = groups.visits[step + 1]
        state.flags[tape.seen[1], 0] = 1.0


@callee
def start(groups: Groups, weights: Weights, tape: Tape, state: State) -> None:
    """Compute everything, in the first row of each place."""
    rewind(tape.base)
    rewind(tape.low)
    rewind(tape.top)
    for u in range(len(state.home)):
        tape.seen[u] = u
    refresh(groups, weights, tape, state, len(state.home), False)


@callee
def refresh(
    groups: Groups, weights: Weights, tape: Tape, state: State, count: int, kept: bool
) -> None:
    """Compute what follows from the features of the first `count` groups of `tape.seen`."""
    for a in range(count):
        _say(groups, weights, tape, state, tape.seen[a], kept)
    touched = 0
    for direction in range(2):
        found = _pass(groups, weights, tape, direction, count, kept)
        for a in range(found):
            u = tape.seen[a]
            if direction == 0 or tape.mark[1, u] != tape.stamp[0] - 1:
                tape.mark[1, u] = tape.stamp[0]
                tape.touched[touched] = u
                touched += 1
    for a in range(touched):
        _add_to_pools(weights, tape, tape.touched[a], kept)


@callee
def _say(groups: Groups, weights: Weights, tape: Tape, state: State, u: int, kept: bool) -> None:
    """Put the features of a group together, and begin with them."""
    row = claimed(tape.base, u, kept)
    devices, at = groups.able.shape[1], groups.features.shape[1]
    for i in range(at):
        tape.said[row, i] = groups.features[u, i]
    for d in range(devices):
        tape.said[row, at + d] = 1.0 if state.home[u] == d else 0.0
    tape.said[row, at + devices] = state.flags[u, 0]
    tape.said[row, at + devices + 1] = state.flags[u, 1]
    flat, hidden = weights.flat, tape.said_hidden
    apply(weights.shape, BEGIN, flat, tape.said, row, hidden, tape.begin, row)
    for i in range(tape.by_begin.shape[1]):
        tape.by_begin[row, i] = 0.0


@callee
def _pass(
    groups: Groups, weights: Weights, tape: Tape, direction: int, count: int, kept: bool
) -> int:
    """Pass messages in one direction; how many groups of `tape.seen` have new rows then."""
    ptr = groups.out_ptr if direction == 0 else groups.in_ptr
    idx = groups.out_idx if direction == 0 else groups.in_idx
    tape.stamp[0] += 1
    stamp = tape.stamp[0]
    for a in range(count):
        tape.mark[0, tape.seen[a]] = stamp
    found, told = count, 0
    for hop in range(weights.hops + 1):
        for a in range(found):
            _hop(groups, weights, tape, direction, hop, tape.seen[a], kept)
        if hop == weights.hops:
            break
        # All that are told something new in the next round.
        end = found
        for a in range(told, end):
            u = tape.seen[a]
            for b in range(ptr[u], ptr[u + 1]):
                v = idx[b]
                if tape.mark[0, v] != stamp:
                    tape.mark[0, v] = stamp
                    tape.seen[found] = v
                    found += 1
        told = end
    return found


@callee
def place_of(tape: Tape, hops: int, direction: int, hop: int, u: int) -> int:
    """Where a group is in a round of a direction, among all of `tape.low`."""
    return (direction * (hops + 1) + hop) * len(tape.seen) + u


@callee
def _hop(
    groups: Groups, weights: Weights, tape: Tape, direction: int, hop: int, u: int, kept: bool
) -> None:
    """A row of messages: what a group makes of those of the round before, and sends on."""
    hops, flat, width = weights.hops, weights.flat, tape.x.shape[1]
    ptr = groups.in_ptr if direction == 0 else groups.out_ptr
    idx = groups.in_idx if direction == 0 else groups.out_idx
    row = claimed(tape.low, place_of(tape, hops, direction, hop, u), kept)
    begin = tape.base.row[u]
    for i in range(width):
        tape.x[row, i] = tape.begin[begin, i]
        tape.by_x[row, i] = 0.0
        tape.by_sent[row, i] = 0.0
    if hop > 0 and ptr[u + 1] > ptr[u]:
        for i in range(width):
            tape.got[row, i] = 0.0
        for a in range(ptr[u], ptr[u + 1]):
            other = tape.low.row[place_of(tape, hops, direction, hop - 1, idx[a])]
            for i in range(width):
                tape.got[row, i] += tape.sent[other, i]
        part = TAKE + 2 * direction
        apply(weights.shape, part, flat, tape.got, row, tape.taken_hidden, tape.taken, row)
        rectify(tape.taken, row)
        for i in range(width):
            tape.x[row, i] += tape.taken[row, i]
    if hop < hops:
        part = SEND + 2 * direction
        apply(weights.shape, part, flat, tape.x, row, tape.sent_hidden, tape.sent, row)
        rectify(tape.sent, row)


@callee
def _add_to_pools(weights: Weights, tape: Tape, u: int, kept: bool) -> None:
    """What a group would add to each of the three pools."""
    hops, width = weights.hops, tape.x.shape[1]
    row = claimed(tape.top, u, kept)
    for direction in range(2):
        low = tape.low.row[place_of(tape, hops, direction, hops, u)]
        for i in range(width):
            tape.both[row, direction * width + i] = tape.x[low, i]
            tape.by_both[row, direction * width + i] = 0.0
    for pool in range(3):
        at, part = 3 * row + pool, INSIDE + pool
        hidden = tape.inside_hidden
        apply(weights.shape, part, weights.flat, tape.both, row, hidden, tape.inside, at)
        rectify(tape.inside, at)
        for i in range(2 * width):
            tape.by_inside[at, i] = 0.0


@callee
def choose(groups: Groups, weights: Weights, tape: Tape, v: int) -> None:
    """The chances of all devices for a group, in `tape.chance`."""
    q, both = len(tape.seen), tape.both.shape[1]
    for pool in range(3):
        for i in range(both):
            tape.pool[pool, i] = 0.0
        count = 0
        for u in range(q):
            if groups.relation[v, u] == pool + 1:
                count += 1
                at = 3 * tape.top.row[u] + pool
                for i in range(both):
                    tape.pool[pool, i] += tape.inside[at, i]
        for i in range(both):
            tape.pool[pool, i] /= max(count, 1)
        hidden, part = tape.outside_hidden, OUTSIDE + pool
        apply(weights.shape, part, weights.flat, tape.pool, pool, hidden, tape.outside, pool)
        rectify(tape.outside, pool)
        for i in range(both):
            tape.joined[0, pool * both + i] = tape.outside[pool, i]
    for i in range(both):
        tape.joined[0, 3 * both + i] = tape.both[tape.top.row[v], i]
    hidden = tape.choose_hidden
    apply(weights.shape, CHOOSE, weights.flat, tape.joined, 0, hidden, tape.logits, 0)
    high = -math.inf
    for d in range(groups.able.shape[1]):
        if groups.able[v, d]:
            high = max(high, tape.logits[0, d])
    whole = 0.0
    for d in range(groups.able.shape[1]):
        tape.chance[0, d] = math.exp(tape.logits[0, d] - high) if groups.able[v, d] else 0.0
        whole += tape.chance[0, d]
    for d in range(groups.able.shape[1]):
        tape.chance[0, d] /= whole


@callee
def entropy_of(tape: Tape) -> float:
    """Entropy of the chances of `choose`."""
    total = 0.0
    for d in range(tape.chance.shape[1]):
        p = tape.chance[0, d]
        if p > 0.0:
            total -= p * math.log(p)
    return total
