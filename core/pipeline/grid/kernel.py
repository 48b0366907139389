"""Kernels of `core.pipeline.grid`: all next states of given ones.

A state is a row of starts of the blocks that are kept, in ticks. The first one is 0; the first of
each other component is within [0, T). Of states with equal phases only those are stored that no
other one *dominates*: whatever completes the dominated one completes the other one as well, with
no longer a span. Moving a start the way that later steps wish for never hurts (`grid_plan.Step`).

Named tuples come in as plain ones: to tell the type of a named one takes numba some 30 us a call.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dnnp.core.cost.kernel import kernel
from dnnp.core.model.graph import Bools, Floats, Ints
from dnnp.core.pipeline.grid.plan import EARLY, FIXED, LATE

Rows = np.ndarray[tuple[int, ...], np.dtype[np.int32]]

NONE = -(1 << 40)
"""Distance of blocks without a bound."""

FULL = -1
"""No more room for states."""


class GridStep(NamedTuple):
    """A step (`grid_plan.Step`) whose state has w slots, and w + new once its block is placed."""

    new: int
    """1: a block is placed, in slot w; 0: none is."""
    time: Ints
    """i64[w + new], ticks."""
    conflict: Ints
    """As in `grid_plan.Step`; so are all others that it has, too."""
    anchor: Ints
    moved: Ints
    pick: int
    level: bool
    span: Ints
    is_first: Bools
    """bool[w + new], first blocks."""
    is_last: Bools
    """bool[w + new], last blocks."""
    unit: Ints
    """Units whose memory is complete."""
    unit_ptr: Ints
    """Slots and gains of the n-th of them are those from `unit_ptr[n]` to `unit_ptr[n + 1]`."""
    unit_slot: Ints
    unit_gain: Floats
    keep: Ints
    component: Ints
    wish: Ints


class GridRoom(NamedTuple):
    """Where the starts of a step may lie."""

    period: int
    """Ticks."""
    least: Ints
    """i64[w + new, w + new], least ticks from the start of one slot to another."""
    most: Ints
    """i64[w + new, w + new], most ticks."""
    most_span: int
    """The longest span that is allowed, ticks."""
    limit: Floats
    """f64 of `GridStep.unit`, most that each may hold."""


class GridLayer(NamedTuple):
    """n states after a step."""

    states: Rows
    """i32[n, kept slots]."""
    costs: Rows
    """i32[n], spans once they are known."""
    parent: Rows
    """i32[n], the state before the step."""
    phase: Rows
    """i32[n], of the new block."""
    shift: Rows
    """i32[n], the move of `GridStep.moved` in periods."""


class GridTable(NamedTuple):
    """Finds stored states by the hash of their phases, and counts."""

    chain: Rows
    """i32[n], the next one with an equal hash + 1; -1: the state is dropped."""
    heads: Rows
    """i32[slots], the first one + 1."""
    stored: Ints
    """i64[1], states that are stored."""
    work: Ints
    """i64[1], places that may still be tried, and states compared."""


@kernel
def close_paths(least):  # type: ignore[no-untyped-def]
    """Longest paths (Floyd and Warshall), i64[b, b] in place; whether there is no circle.

    Not `orders_gaps.close`, which is for floating-point numbers and has -inf where there is none.
    """
    b = len(least)
    for k in range(b):
        for i in range(b):
            first = least[i, k]
            if first <= NONE:
                continue
            for j in range(b):
                if least[k, j] > NONE and first + least[k, j] > least[i, j]:
                    least[i, j] = first + least[k, j]
        if least[k, k] > 0:
            return False
    return True


@kernel
def _peak(starts, period, slots, gain, begin, end):  # type: ignore[no-untyped-def]
    """Most that the unit of slots[begin:end] holds: see `problem.steady_memory`."""
    held, most = 0.0, 0.0
    for a in range(begin, end):
        held -= gain[a] * (starts[slots[a]] // period)
    for a in range(begin, end):
        phase = starts[slots[a]] % period
        level = held
        for c in range(begin, end):
            if starts[slots[c]] % period <= phase:
                level += gain[c]
        most = max(most, level)
    return most


@kernel
def _dominates(out, e, row, component, wish, sign):  # type: ignore[no-untyped-def]
    """Whether out[e], each component moved by some whole periods, is as good as a row.

    With a sign of -1: whether the row is as good as out[e].
    """
    s = 0
    while s < len(row):
        least, most = NONE, -NONE
        part = component[s]
        while s < len(row) and component[s] == part:
            ahead = sign * (out[e, s] - row[s])
            if wish[s] == LATE or wish[s] == FIXED:
                most = min(most, ahead)
            if wish[s] == EARLY or wish[s] == FIXED:
                least = max(least, ahead)
            s += 1
        if least > most:
            return False
    return True


@kernel
def _store(row, cost, period, step, out, table):  # type: ignore[no-untyped-def]
    """Store a row unless a stored one dominates it; whether it was. Drops those it dominates."""
    component, wish = step.component, step.wish
    states, costs = out.states, out.costs
    chain, heads = table.chain, table.heads
    w = len(row)
    key, part, base = 1, -1, 0
    for s in range(w):
        mark = row[s] % period
        if wish[s] == FIXED:  # among these, distances have to be equal, too
            if component[s] != part:
                part, base = component[s], row[s] - mark
            mark = row[s] - base
        key = (key * 1_000_003 + mark) % 2_147_483_647
    slot = key % len(heads)
    previous, e = -1, heads[slot] - 1
    while e >= 0:
        table.work[0] -= 1
        same = True
        for s in range(w):
            if (row[s] - states[e, s]) % period != 0:
                same = False
                break
        following = chain[e] - 1
        if same:
            if costs[e] <= cost and _dominates(states, e, row, component, wish, 1):
                return False
            if cost <= costs[e] and _dominates(states, e, row, component, wish, -1):
                if previous < 0:
                    heads[slot] = following + 1
                else:
                    chain[previous] = following + 1
                chain[e] = -1
                e = following
                continue
        previous, e = e, following
    n = table.stored[0]
    for s in range(w):
        states[n, s] = row[s]
    costs[n] = cost
    chain[n] = heads[slot]
    heads[slot] = n + 1
    table.stored[0] = n + 1
    return True


@kernel
def extend(before, first, step, room, out, table):  # type: ignore[no-untyped-def]
    """All next states of the rows from `first` on; returns the row to go on from, or `FULL`.

    `before` and `out` are layers; all of `out` are to be stored. Ends early once `table.work` is
    spent.
    """
    step, room, table = GridStep(*step), GridRoom(*room), GridTable(*table)
    before, out = GridLayer(*before), GridLayer(*out)
    states, stored, work = before.states, table.stored, table.work
    new, time, conflict = step.new, step.time, step.conflict
    anchor, moved, ends = step.anchor, step.moved, step.span
    is_first, is_last = step.is_first, step.is_last
    unit_ptr, unit_slot, unit_gain = step.unit_ptr, step.unit_slot, step.unit_gain
    keep, component = step.keep, step.component
    period, least, most, limit = room.period, room.least, room.most, room.limit
    w = states.shape[1]
    row = np.empty(w + new, dtype=np.int64)
    kept = np.empty(len(keep), dtype=np.int64)
    taken = np.zeros(period, dtype=np.bool_)
    for n in range(first, len(states)):
        if work[0] <= 0:
            return n
        for s in range(w):
            row[s] = states[n, s]
        for q in range(period):
            taken[q] = False
        for s in conflict:
            for q in range(time[s]):
                taken[(row[s] + q) % period] = True
        for r in range(period if new and w > 0 else 1):
            work[0] -= 1
            if new:
                free = True
                for q in range(time[w]):
                    if taken[(r + q) % period]:
                        free = False
                        break
                if not free:
                    continue
                row[w] = r
                for s in range(w):
                    if most[s, w] - least[s, w] < period - 1:
                        back = r - row[s]
                        if -((back - least[s, w]) // period) > (most[s, w] - back) // period:
                            free = False
                            break
                if not free:
                    continue
            low, high = 0, 0
            if len(moved) > 0:
                low, high = NONE, -NONE
                for a in anchor:
                    for c in moved:
                        back = row[c] - row[a]
                        low = max(low, -((back - least[a, c]) // period))
                        high = min(high, (most[a, c] - back) // period)
                if step.level:
                    begin, back = -NONE, -NONE
                    for a in anchor:
                        if is_first[a]:
                            begin = min(begin, row[a])
                    for c in moved:
                        if is_first[c]:
                            back = min(back, row[c])
                    low = max(low, (begin - back) // period)
                    high = min(high, -((back - begin) // period))
                if low > high:
                    continue
                if step.pick == LATE:
                    low = high
                elif step.pick != FIXED:
                    high = low
            for c in moved:
                row[c] += low * period
            for z in range(low, high + 1):
                work[0] -= 1
                if z > low:
                    for c in moved:
                        row[c] += period
                fits = True
                for d in range(len(unit_ptr) - 1):
                    held = _peak(row, period, unit_slot, unit_gain, unit_ptr[d], unit_ptr[d + 1])
                    if held > limit[d]:
                        fits = False
                        break
                if not fits:
                    continue
                cost = before.costs[n]
                if len(ends) > 0:
                    begin, end = -NONE, NONE
                    for s in ends:
                        if is_first[s]:
                            begin = min(begin, row[s])
                        if is_last[s]:
                            end = max(end, row[s] + time[s])
                    cost = end - begin
                    if cost > room.most_span:
                        continue
                for q in range(len(keep)):
                    kept[q] = row[keep[q]]
                if len(keep) > 0:
                    turn = kept[0]
                    q = 0
                    while q < len(keep):
                        part = component[q]
                        whole = (kept[q] - turn) // period * period
                        while q < len(keep) and component[q] == part:
                            kept[q] -= turn + whole
                            q += 1
                if stored[0] >= len(out.costs):
                    return FULL
                at = stored[0]
                if _store(kept, cost, period, step, out, table):
                    out.parent[at] = n
                    out.phase[at] = r
                    out.shift[at] = z
            for c in moved:
                row[c] -= high * period
    return len(states)
