"""Kernels of `core.pipeline.grid`: all next states of given ones.

A state is a row of starts of the blocks that are kept, in ticks. The first one is 0; the first of
each other component is within [0, T). Of states with equal phases only those are stored that no
other one *dominates*: whatever completes the dominated one completes the other one as well, with
no longer a span. Moving a start the way that later steps wish for never hurts (`grid_plan.Step`).
"""

from __future__ import annotations

import numpy as np

from dnnp.core.cost.kernel import kernel
from dnnp.core.pipeline.grid.plan import EARLY, FIXED, LATE

NONE = -(1 << 40)
"""Distance of blocks without a bound."""

FULL = -1
"""No more room for states."""


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
def _store(row, cost, period, component, wish, out, out_cost, chain, heads, count, work):  # type: ignore[no-untyped-def]
    """Store a row unless a stored one dominates it; whether it was. Drops those it dominates.

    `chain` links stored rows with equal hashes of phases: the next one + 1; -1: dropped.
    """
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
        work[0] -= 1
        same = True
        for s in range(w):
            if (row[s] - out[e, s]) % period != 0:
                same = False
                break
        following = chain[e] - 1
        if same:
            if out_cost[e] <= cost and _dominates(out, e, row, component, wish, 1):
                return False
            if cost <= out_cost[e] and _dominates(out, e, row, component, wish, -1):
                if previous < 0:
                    heads[slot] = following + 1
                else:
                    chain[previous] = following + 1
                chain[e] = -1
                e = following
                continue
        previous, e = e, following
    n = count[0]
    for s in range(w):
        out[n, s] = row[s]
    out_cost[n] = cost
    chain[n] = heads[slot]
    heads[slot] = n + 1
    count[0] = n + 1
    return True


@kernel
def extend(  # type: ignore[no-untyped-def]
    states,
    costs,
    first,
    period,
    new,
    time,
    conflict,
    least,
    most,
    anchor,
    moved,
    pick,
    level,
    unit_ptr,
    unit_slot,
    unit_gain,
    unit_limit,
    ends,
    is_first,
    is_last,
    most_span,
    keep,
    component,
    wish,
    out,
    out_cost,
    parent,
    phase,
    shift,
    chain,
    heads,
    count,
    work,
):
    """All next states of the rows from `first` on; returns the row to go on from, or `FULL`.

    Ends early once `work[0]` places were tried and states compared.

    Parameters
    ----------
    states, costs
        i32[n, w] and i32[n], spans once they are known.
    new
        Whether a block is placed; it becomes slot w.
    time
        i64[w + new].
    conflict, anchor, moved, pick, level, ends, keep, component, wish
        See `grid_plan.Step`.
    least, most
        i64[w + new, w + new]: least and most ticks from the start of one slot to another.
    unit_ptr, unit_slot, unit_gain, unit_limit
        Units whose memory is complete: slots and gains by unit, f64 limits.
    is_first, is_last, most_span
        bool[w + new] of first and last blocks, and the longest span that is allowed.
    out, out_cost, parent, phase, shift, chain, heads, count
        Where to store: rows, spans, the row it came from, the phase of the new block, the move of
        `moved` in periods, and the hash table of `_store`.
    """
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
                if level:
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
                if pick == LATE:
                    low = high
                elif pick != FIXED:
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
                    if held > unit_limit[d]:
                        fits = False
                        break
                if not fits:
                    continue
                cost = costs[n]
                if len(ends) > 0:
                    begin, end = -NONE, NONE
                    for s in ends:
                        if is_first[s]:
                            begin = min(begin, row[s])
                        if is_last[s]:
                            end = max(end, row[s] + time[s])
                    cost = end - begin
                    if cost > most_span:
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
                if count[0] >= len(out):
                    return FULL
                at = count[0]
                if _store(
                    kept, cost, period, component, wish, out, out_cost, chain, heads, count, work
                ):
                    parent[at] = n
                    phase[at] = r
                    shift[at] = z
            for c in moved:
                row[c] -= high * period
    return len(states)
