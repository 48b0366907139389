"""Kernels of Tessel's repetend search: index sets, orders of one of them, and the least period.

An index set gives block i of a repetend micro-batch `micro[i]`; repetend r runs block i of
micro-batch `micro[i] + r`. With a fixed period everything is a system of differences (Tessel,
IV.B, with compaction), where d[i, j] is a lower bound of s_j - s_i:

    s_j - s_i >= time_i + delay - (micro_i - micro_j) * period   block j comes after block i
    s_j - s_i >= time_i - period                                 both run on one unit
    s_j - s_i >= time_i                                          i runs there before j

Only the last kind is open: the branch and bound decides it pair by pair. What a unit holds follows
from the order: the blocks of earlier repetends at entry, then one block after the other.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dnnp.core.kernels.kernel import kernel
from dnnp.core.model.graph import Floats, Ints
from dnnp.core.schedule.orders.kernel import close

FOUND, SOLVED, ENDED, PAUSED = 1, 2, 3, 4
"""Answers of `scan`: an order that meets the target; the index set has no other; there are no more
index sets; the work of this call is done."""

STAGE, DEPTH, LEVEL, ALONE, LEFT, TRIED, GAVE_UP = range(7)
"""Entries of the state that a scan is continued from.

ALONE: stay with the current index set; LEFT: steps that this call may take; TRIED and GAVE_UP
count index sets, and nodes that were not looked at for want of levels."""

NEXT, BEGIN, NODE, BACK = range(4)
"""Stages: go to the next index set, begin with the current one, look at a node, leave it."""

TARGET, SLACK, LITTLE = range(3)
"""Entries of the numbers: the period to reach, and how far times and memories may be off."""

UNFINISHED, FAILED, LEAF = -3, -2, -1
"""What `_spread` says in place of a pair."""


class TesselBlocks(NamedTuple):
    """b blocks of one micro-batch on D units."""

    time: Floats
    memory: Floats
    ptr: Ints
    """Units of block i: `unit[ptr[i]:ptr[i + 1]]`."""
    unit: Ints
    on_ptr: Ints
    """Blocks of unit d: `on[on_ptr[d]:on_ptr[d + 1]]`."""
    on: Ints
    before_ptr: Ints
    """Blocks that i comes after: `before[before_ptr[i]:before_ptr[i + 1]]`."""
    before: Ints
    gap: Floats
    """From the start of each of those to the earliest start of block i."""
    topo: Ints
    """i64[b], all blocks, each after those that it comes after."""
    pairs: Ints
    """i64[p, 2], blocks that share a unit."""
    room: Floats
    """f64[D], most that the blocks may hold."""
    part: Ints
    """i64[b], number of the part that a block is in; parts do not wait for each other."""


class Scan(NamedTuple):
    """What a scan works on and is continued from."""

    state: Ints
    numbers: Floats
    micro: Ints
    """i64[b], the current index set."""
    most: Ints
    """i64[b], scratch: largest index of each block."""
    held: Floats
    """f64[D], scratch."""
    least: Ints
    """i64[parts], scratch: smallest index in each."""
    level: Floats
    """f64[levels, b, b], longest ways, one matrix for each decision on the way to a node."""
    choice: Ints
    """i64[levels, 3], the pair that was decided at each level, the first side, sides left."""


@kernel
def _possible(c, s, p, top):  # type: ignore[no-untyped-def]
    """Whether indices of the first p + 1 blocks could belong to a new set that fits.

    New: some index is `top`, and every part has a 0, as its micro-batches could be renumbered.
    Blocks that have no index yet get at most what Property 4.2 allows, and a unit holds at entry
    what earlier repetends have left there.
    """
    b = len(c.time)
    s.held[:] = 0.0
    s.least[:] = top
    highest = 0
    for q in range(b):
        v = c.topo[q]
        if q <= p:
            s.most[v] = s.micro[v]
            s.least[c.part[v]] = min(s.least[c.part[v]], s.micro[v])
        else:
            s.most[v] = top
            for k in range(c.before_ptr[v], c.before_ptr[v + 1]):
                s.most[v] = min(s.most[v], s.most[c.before[k]])
            s.least[c.part[v]] = 0
        highest = max(highest, s.most[v])
        if q <= p or c.memory[v] < 0:
            for k in range(c.ptr[v], c.ptr[v + 1]):
                s.held[c.unit[k]] += c.memory[v] * s.most[v]
    if highest < top or s.least.max() > 0:
        return False
    fits = True
    for d in range(len(s.held)):
        fits = fits and s.held[d] <= c.room[d] + s.numbers[LITTLE]
    return fits


@kernel
def _next_set(c, s, top):  # type: ignore[no-untyped-def]
    """Go to the next index set; False if there is none, or no work left to find one.

    Depth first along the topological order, large indices first.
    """
    b, p = len(c.time), s.state[DEPTH]
    while p >= 0 and s.state[LEFT] > 0:
        v = c.topo[p]
        s.micro[v] -= 1
        if s.micro[v] < 0:
            p -= 1
            continue
        s.state[LEFT] -= b + len(c.before) + len(c.unit)
        if not _possible(c, s, p, top):
            continue
        if p == b - 1:
            s.state[DEPTH] = p
            return True
        p += 1
        v = c.topo[p]
        most = top
        for k in range(c.before_ptr[v], c.before_ptr[v + 1]):
            most = min(most, s.micro[c.before[k]])
        s.micro[v] = most + 1
    s.state[DEPTH] = p
    return False


@kernel
def _root(c, s):  # type: ignore[no-untyped-def]
    """Longest ways without any order; False if the target cannot be met."""
    b, target, d = len(c.time), s.numbers[TARGET], s.level[0]
    d[:] = -np.inf
    for v in range(b):
        d[v, v] = 0.0
        for k in range(c.before_ptr[v], c.before_ptr[v + 1]):
            u = c.before[k]
            d[u, v] = max(d[u, v], c.gap[k] - (s.micro[u] - s.micro[v]) * target)
    for p in range(len(c.pairs)):
        i, j = c.pairs[p, 0], c.pairs[p, 1]
        d[i, j] = max(d[i, j], c.time[i] - target)
        d[j, i] = max(d[j, i], c.time[j] - target)
    close(d)
    for i in range(b):
        if d[i, i] > s.numbers[SLACK]:
            return False
        d[i, i] = 0.0
    return True


@kernel
def _put(d, i, j, length):  # type: ignore[no-untyped-def]
    """Add s_j - s_i >= length, which closes no way of positive length, to all longest ways."""
    b = len(d)
    for u in range(b):
        if d[u, i] > -np.inf:
            base = d[u, i] + length
            for v in range(b):
                if u != v and base + d[j, v] > d[u, v]:
                    d[u, v] = base + d[j, v]


@kernel
def _fits(c, s, d):  # type: ignore[no-untyped-def]
    """Whether no unit must hold too much right after some block starts."""
    slack = s.numbers[SLACK]
    for e in range(len(c.room)):
        if c.room[e] == np.inf:
            continue
        first, last = c.on_ptr[e], c.on_ptr[e + 1]
        entry = 0.0
        for k in range(first, last):
            entry += c.memory[c.on[k]] * s.micro[c.on[k]]
        for k in range(first, last):
            i = c.on[k]
            held = entry + c.memory[i]
            for q in range(first, last):
                j = c.on[q]
                if j == i:
                    continue
                if d[j, i] >= c.time[j] - slack:
                    held += c.memory[j]
                elif d[i, j] < c.time[i] - slack:
                    held += min(c.memory[j], 0.0)
            if held > c.room[e] + s.numbers[LITTLE]:
                return False
    return True


@kernel
def _spread(c, s, d):  # type: ignore[no-untyped-def]
    """Decide all pairs that have one side left; a pair to branch on, or what became of it."""
    b, slack = len(d), s.numbers[SLACK]
    changed = True
    while changed:
        changed = False
        best, chosen = np.inf, LEAF
        for p in range(len(c.pairs)):
            i, j = c.pairs[p, 0], c.pairs[p, 1]
            if d[i, j] >= c.time[i] - slack or d[j, i] >= c.time[j] - slack:
                continue
            forth, back = d[j, i] + c.time[i], d[i, j] + c.time[j]
            if forth > slack and back > slack:
                return FAILED
            if forth > slack or back > slack:
                if forth > slack:
                    _put(d, j, i, c.time[j])
                else:
                    _put(d, i, j, c.time[i])
                changed = True
                s.state[LEFT] -= b * b
                if s.state[LEFT] <= 0:
                    return UNFINISHED
            elif -forth - back < best:
                best, chosen = -forth - back, p
    return chosen if _fits(c, s, d) else FAILED


@kernel
def _open(c, s, here):  # type: ignore[no-untyped-def]
    """Go to the next side of the pair that was chosen at level `here`."""
    side = s.choice[here, 1] if s.choice[here, 2] == 2 else 1 - s.choice[here, 1]
    s.choice[here, 2] -= 1
    i, j = c.pairs[s.choice[here, 0], 0], c.pairs[s.choice[here, 0], 1]
    if side == 1:
        i, j = j, i
    old, new = s.level[here], s.level[here + 1]
    for u in range(len(old)):
        for v in range(len(old)):
            new[u, v] = old[u, v]
    _put(new, i, j, c.time[i])
    s.state[LEVEL] = here + 1
    s.state[STAGE] = NODE


@kernel
def scan(c, s, top):  # type: ignore[no-untyped-def]
    """Look for an order of an index set whose largest index is `top`, at the target period.

    Continues at the stage of the state; `FOUND` leaves the set in `micro` and the longest ways in
    `level[state[LEVEL]]`.
    """
    b, state = len(c.time), s.state
    while True:
        if state[LEFT] <= 0:
            return PAUSED
        if state[STAGE] == NEXT:
            if state[ALONE]:
                return SOLVED
            if _next_set(c, s, top):
                state[TRIED] += 1
                state[STAGE] = BEGIN
            elif state[DEPTH] < 0:
                return ENDED
        elif state[STAGE] == BEGIN:
            state[LEFT] -= b * b * b
            state[LEVEL] = 0
            state[STAGE] = NODE if _root(c, s) else NEXT
        elif state[STAGE] == NODE:
            state[LEFT] -= 4 * b * b
            here = state[LEVEL]
            pair = _spread(c, s, s.level[here])
            if pair == UNFINISHED:
                continue
            state[STAGE] = BACK
            if pair == LEAF:
                return FOUND
            if pair == FAILED:
                continue
            if here + 1 == len(s.level):
                state[GAVE_UP] += 1
                continue
            i, j = c.pairs[pair, 0], c.pairs[pair, 1]
            d = s.level[here]
            # The side that leaves more room first.
            s.choice[here, 0] = pair
            s.choice[here, 1] = d[j, i] + c.time[i] > d[i, j] + c.time[j]
            s.choice[here, 2] = 2
            _open(c, s, here)
        else:
            here = state[LEVEL] - 1
            while here >= 0 and s.choice[here, 2] == 0:
                here -= 1
            if here < 0:
                state[STAGE] = NEXT
            else:
                _open(c, s, here)
