"""Shorter finite schedules by filling idle time: double justification within limits of memory.

Block by block, in the order of their starts, each goes to the earliest idle time of its units where
their memory until its old start stays within the limits; then the same backwards in time
(Valls, Ballestin and Quintanilla 2005, forward-backward improvement of project schedules). So
memory that is left over during warm-up and cool-down is used, and no schedule gets longer.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dnnp.core.cost.load_formula import ROUNDING
from dnnp.core.kernels.kernel import callee, lean
from dnnp.core.model.errors import FormatError
from dnnp.core.model.graph import Floats, Ints, csr_rows, offsets, place_of
from dnnp.core.model.search_context import PLAIN, SearchContext
from dnnp.core.schedule.problem import TOLERANCE, ScheduleProblem, span_of, violations
from dnnp.core.schedule.shop import releases_early
from dnnp.core.schedule.starts import left_shift, merged

ROUNDS = 8
"""Times that a schedule is justified in both directions, at most."""


@callee
def _place(row, start, low, high, block):  # type: ignore[no-untyped-def]
    """Position of a block in `row[low:high]`, which is sorted by starts."""
    at = start[block]
    while low < high:
        middle = (low + high) // 2
        if start[row[middle]] < at:
            low = middle + 1
        else:
            high = middle
    while row[low] != block:
        low += 1
    return low


@lean
def _fill(sequence, blocks, rows, cap, start, slack):  # type: ignore[no-untyped-def]
    """Kernel of `filled`.

    `rows` are row_ptr, row and held: `row[row_ptr[u]:row_ptr[u + 1]]` are the blocks of unit u by
    their starts, `held` its memory from each of them on; they, and `start`, are changed.
    """
    row_ptr, row, held = rows
    ptr, unit, time, memory = blocks.ptr, blocks.unit, blocks.time, blocks.memory
    before_ptr, before, delay = blocks.before_ptr, blocks.before, blocks.delay
    for q in range(len(sequence)):
        block = sequence[q]
        old, took, gain = start[block], time[block], memory[block]
        at = 0.0
        for i in range(before_ptr[block], before_ptr[block + 1]):
            at = max(at, start[before[i]] + time[before[i]] + delay[i])
        if at >= old - slack:
            continue
        for x in range(ptr[block], ptr[block + 1]):  # where limits allow it
            u = unit[x]
            p = _place(row, start, row_ptr[u], row_ptr[u + 1], block) - 1
            while gain > 0 and p >= row_ptr[u]:
                if held[p] + gain > cap[u]:
                    at = max(at, start[row[p + 1]])
                    break
                if start[row[p]] <= at:
                    break
                p -= 1
        moved = took > 0
        while moved and at < old - slack:  # where all units idle
            moved = False
            for x in range(ptr[block], ptr[block + 1]):
                u = unit[x]
                p = _place(row, start, row_ptr[u], row_ptr[u + 1], block) - 1
                until = at
                while p >= row_ptr[u] and (
                    time[row[p]] == 0 or start[row[p]] + time[row[p]] > at + slack
                ):
                    p -= 1
                p += 1
                while row[p] != block and start[row[p]] < until + took - slack:
                    if time[row[p]] > 0:
                        until = max(until, start[row[p]] + time[row[p]])
                    p += 1
                if until > at + slack:
                    at = until
                    moved = True
        if at >= old - slack:
            continue
        for x in range(ptr[block], ptr[block + 1]):
            u = unit[x]
            p = _place(row, start, row_ptr[u], row_ptr[u + 1], block)
            while p > row_ptr[u] and start[row[p - 1]] > at:
                row[p] = row[p - 1]
                held[p] = held[p - 1] + gain
                p -= 1
            row[p] = block
            held[p] = gain
            if p > row_ptr[u]:
                held[p] += held[p - 1]
        start[block] = at


def filled(problem: ScheduleProblem, start: Floats) -> Floats:
    """Start times, f64[b], where blocks moved to earlier idle times of their units.

    `start` is a schedule within the limits. The result keeps them if blocks of equal starts keep
    them one after the other; `violations` checks it.
    """
    start = start - start.min(initial=np.inf)
    sequence = np.argsort(start, kind="stable")
    place = place_of(sequence)
    rows = [mine[np.argsort(place[mine])] for mine in problem.by_unit()]
    row = np.concatenate(rows)
    row_ptr = offsets([len(mine) for mine in rows])
    held = np.concatenate([np.cumsum(problem.memory[mine]) for mine in rows])
    slack = TOLERANCE * float(problem.time.sum() + problem.delay.sum())
    scale = TOLERANCE * float(np.abs(problem.memory).sum())
    cap = problem.capacity + scale
    _fill(sequence, problem.arrays, (row_ptr, row, held), cap, start, slack)
    return start


def justified(
    problem: ScheduleProblem, start: Floats, enough: float = 0.0, run: SearchContext = PLAIN
) -> Floats:
    """A schedule that is no longer than `start`, f64[b], which keeps the limits.

    Ends with one no longer than `enough`, or where both directions bring nothing.
    """
    best, value = start, span_of(problem, start)
    now, back = start, reversed_problem(problem)
    for turn in range(2 * ROUNDS):
        if value <= enough or run.stop():
            break
        # Backwards, then forwards: the end of one is the start of the other.
        here = problem if turn % 2 else back
        if turn % 2 == 0:
            before = value
        now = shifted(here, filled(here, _turned(problem, now)))
        there = now if turn % 2 else _turned(problem, now)
        if span_of(problem, there) < value and not violations(problem, there):
            best, value = there - there.min(), span_of(problem, there)
        if turn % 2 and value >= before:
            break
    return best


def _turned(problem: ScheduleProblem, start: Floats) -> Floats:
    """The same schedule backwards, of `reversed_problem`, or forwards again."""
    time = problem.time.reshape(problem.unroll, -1)
    ends = start.reshape(problem.unroll, -1)
    return (-(ends[::-1] + time)).ravel()


def shifted(problem: ScheduleProblem, start: Floats) -> Floats:
    """Earliest start times in the order of the given ones, f64[b]; that order keeps all waits."""
    rank = np.empty(problem.k)
    rank[_at_once(problem)] = np.arange(problem.k)
    grain = ROUNDING * max(float(np.ptp(start)), 1e-300)
    sequence = np.lexsort((np.tile(rank, problem.unroll), np.round(start / grain)))
    place = place_of(sequence)
    if (place[problem.tail] > place[problem.head]).any():
        # Rounding put a block that takes no time behind one that waits for it.
        try:
            rows = [row[np.argsort(place[row])] for row in problem.by_unit()]
            sequence = merged(problem, rows)
        except FormatError:
            return start
    return left_shift(problem, sequence)


def _at_once(problem: ScheduleProblem) -> Ints:
    """Order, i64[k], of blocks that start at the same time: memory is released before it is held.

    Blocks that come after one that takes no time and holds memory come after it all the same.
    """
    k = problem.k
    time, memory = problem.time[:k], problem.memory[:k]
    holds = np.where(memory > 0, np.where(time > 0, 2, 1), 0)
    order = releases_early(problem)
    first = problem.tail < k
    for i in order[time[order] == 0].tolist():
        after = problem.head[first & (problem.tail == i)]
        holds[after] = np.maximum(holds[after], holds[i])
    place = place_of(order)
    return np.lexsort((place, holds))


def reversed_problem(problem: ScheduleProblem) -> ScheduleProblem:
    """The problem whose schedules are those of `problem` backwards; the last micro-batch first.

    Between two blocks a unit holds the same as in the schedule itself if no memory is left behind
    after all blocks.
    """
    k = problem.k
    old = (np.arange(problem.unroll)[::-1, None] * k + np.arange(k)).ravel()
    new = np.empty_like(old)
    new[old] = np.arange(problem.b)
    ptr, unit = csr_rows(problem.ptr, problem.unit, old)
    return replace(
        problem,
        time=problem.time[old],
        memory=-problem.memory[old],
        ptr=ptr,
        unit=unit,
        tail=new[problem.head],
        head=new[problem.tail],
    )
