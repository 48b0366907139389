"""Repetends by modulo list scheduling: quick, good, without any proof.

Blocks are placed one after the other, each at the earliest time after its predecessors at which
its units are free in every period (Rau, Iterative Modulo Scheduling, 1994; without eviction). The
resulting orders are kept and the period is shortened as far as they allow.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dnnp.core.cost.load_formula import ROUNDING
from dnnp.core.kernels.kernel import callee, lean
from dnnp.core.model.graph import Floats, Ints, csr, place_of
from dnnp.core.model.search_context import PLAIN, SearchContext
from dnnp.core.schedule.bound import ends
from dnnp.core.schedule.problem import TOLERANCE, ScheduleProblem, span_of, steady_memory
from dnnp.core.schedule.starts import merged, tightened

STRETCH = (1.0, 1.01, 1.03, 1.06, 1.1, 1.15, 1.25, 1.4, 1.6, 2.0, 3.0, 5.0, 10.0, 30.0)
"""Periods that are tried, in multiples of the largest load; then that of one after the other."""

MOST_CHECKS = 2e8
"""Pairs of blocks on a unit beyond which blocks just run one after the other."""


@callee
def _overlap(lists, i, at, period, eps, blocks, phase):  # type: ignore[no-untyped-def]
    """Delay of block i beyond `at` for the first block in its way; 0: none is."""
    time, ptr, unit = blocks.time, blocks.ptr, blocks.unit
    last, earlier, owner = lists
    for n in range(ptr[i], ptr[i + 1]):
        other = last[unit[n]]
        while other >= 0:
            j = owner[other]
            ahead = phase[j] - at
            ahead -= np.floor((ahead + eps) / period) * period
            # The next run of j begins `ahead` later, the one before ends `over` later.
            over = ahead - period + time[j]
            if over > eps:
                return over
            if ahead < time[i] - eps:
                return ahead + time[j]
            other = earlier[other]
    return 0.0


@lean
def _place(order, first, snug, period, eps, blocks, wait, lists, place):  # type: ignore[no-untyped-def]
    """Starts of blocks placed in `order`; the first is NaN if a block found no room.

    Room for the blocks in `first` is reserved before. `snug`: blocks start right after, or end
    right before, another block of a unit. `wait` is the time from the starts of `blocks.before`.
    `lists` are the blocks on each unit, linked: the last of each unit, and of each entry of `unit`
    the one before, -1 while there is none, and the block. `place` are start, phase and whether it
    is reserved, of each block: zeros.
    """
    time, ptr, unit = blocks.time, blocks.ptr, blocks.unit
    near_ptr, near = blocks.before_ptr, blocks.before
    b = len(time)
    last, earlier, owner = lists
    start, phase, reserved = place
    for turn in range(len(first) + b):
        i = first[turn] if turn < len(first) else order[turn - len(first)]
        at = 0.0
        if turn >= len(first):
            for n in range(near_ptr[i], near_ptr[i + 1]):
                at = max(at, start[near[n]] + wait[n])
        if reserved[i]:
            start[i] = phase[i] + np.ceil((at - phase[i] - eps) / period) * period
            continue
        ready, touches = at, False
        if snug and time[i] > 0.0:
            at = np.inf
            for n in range(ptr[i], ptr[i + 1]):
                other = last[unit[n]]
                while other >= 0:
                    touches = True
                    j = owner[other]
                    for side in range(2):
                        base = phase[j] - time[i] if side else phase[j] + time[j]
                        new = base + np.ceil((ready - base - eps) / period) * period
                        new = max(new, ready)
                        if new < at and (
                            _overlap(lists, i, new, period, eps, blocks, phase) == 0.0
                        ):
                            at = new
                    other = earlier[other]
        if not touches:
            at = ready
            while time[i] > 0.0 and at <= ready + period + eps:
                over = _overlap(lists, i, at, period, eps, blocks, phase)
                if over == 0.0:
                    break
                # Times may be too small to move a start at all.
                at = at + over if at + over > at else np.inf
        if at > ready + period + eps:
            start[0] = np.nan
            return
        start[i], phase[i] = at, at
        reserved[i] = turn < len(first)
        if time[i] > 0.0:
            for n in range(ptr[i], ptr[i + 1]):
                owner[n] = i
                earlier[n] = last[unit[n]]
                last[unit[n]] = n


@lean
def _delay(order, period, eps, start, memory, tail_ptr, head, wait):  # type: ignore[no-untyped-def]
    """Move blocks that take memory later by whole periods, last ones first, in place."""
    for n in range(len(order) - 1, -1, -1):
        i = order[n]
        if memory[i] <= 0.0:
            continue
        room = np.inf
        for m in range(tail_ptr[i], tail_ptr[i + 1]):
            room = min(room, start[head[m]] - start[i] - wait[m])
        if room < np.inf:
            start[i] += np.floor((room + eps) / period) * period


def listed(
    problem: ScheduleProblem, order: Ints, period: float, tight: bool = False
) -> Floats | None:
    """Starts f64[b] at this period, blocks placed in `order`; None: some block found no room.

    `tight`: blocks on several units find their places first, and all leave no gaps.
    """
    homes = np.diff(problem.ptr)
    wide = np.flatnonzero((homes > 1) & (problem.time > 0))
    first = wide[np.argsort(-homes[wide], kind="stable")] if tight else wide[:0]
    eps = ROUNDING * (period + float(problem.time.sum() + problem.delay.sum()))
    waits = problem.time[problem.tail] + problem.delay
    tail_ptr, by_tail = csr(problem.tail, np.arange(len(waits)), problem.b)
    blocks = problem.arrays
    b, uses = problem.b, len(problem.unit)
    start = np.zeros(b)
    last, earlier = (np.full(size, -1, dtype=np.int64) for size in (problem.units, uses))
    lists = last, earlier, np.zeros(uses, dtype=np.int64)
    place = start, np.zeros(b), np.zeros(b, dtype=np.bool_)
    wait = problem.time[blocks.before] + blocks.delay
    _place(order, first, tight, period, eps, blocks, wait, lists, place)
    if np.isnan(start).any():
        return None
    after = tail_ptr, problem.head[by_tail], waits[by_tail]
    _delay(order, period, eps, start, problem.memory, *after)
    return start - start.min()


def _sequential_starts(problem: ScheduleProblem) -> Floats:
    """Starts f64[b] where every block waits for all before it."""
    order = merged(problem, [])
    took = problem.time.copy()
    np.maximum.at(took, problem.tail, problem.time[problem.tail] + problem.delay)
    start = np.zeros(problem.b)
    start[order[1:]] = np.cumsum(took[order])[:-1]
    return start


def orders_to_try(problem: ScheduleProblem) -> list[Ints]:
    """Blocks by number, and those with the longest way to the end first; predecessors first."""
    plain = merged(problem, [])
    tail = problem.time + ends(problem)[1]
    place = place_of(plain)
    longest = np.lexsort((place, -tail)).astype(np.int64)
    return [plain] if (plain == longest).all() else [plain, longest]


def too_many_to_list(problem: ScheduleProblem) -> bool:
    """True where there are too many blocks: they just run one after the other."""
    homes = np.bincount(problem.unit, minlength=problem.units).astype(np.float64)
    return float((homes**2).sum()) > MOST_CHECKS


def list_schedules(
    problem: ScheduleProblem, least: float, run: SearchContext = PLAIN
) -> Iterator[tuple[float, Floats]]:
    """Periods and starts of schedules that keep the limits, each better than those before.

    Better: a shorter period, then a smaller largest memory, then a shorter span. Periods are at
    least `least`.
    """
    whole = float(problem.time.sum() + problem.delay.sum())
    slack = TOLERANCE * float(np.abs(problem.memory).sum())
    if too_many_to_list(problem):
        turn, period = _sequential_starts(problem), max(whole, least)
        held = steady_memory(problem, turn, period) - problem.fixed
        if (held <= problem.capacity + slack).all():
            yield period, turn
        return
    best: tuple[float, float, float] | None = None
    ways = [(order, tight) for order in orders_to_try(problem) for tight in (False, True)]
    for order, tight in ways:
        for period in (*(least * stretch for stretch in STRETCH), whole):
            if best is not None and (period > best[0] * (1 + TOLERANCE) or run.stop()):
                break
            if not 0 < period <= max(whole, least):
                continue
            start = listed(problem, order, period, tight)
            found = None if start is None else tightened(problem, start, period, least)
            if found is None or found[0] > period * (1 + TOLERANCE):
                continue
            held = steady_memory(problem, found[1], found[0])
            if (held - problem.fixed > problem.capacity + slack).any():
                continue
            finite = held[np.isfinite(held)]
            mine = (found[0], float(finite.max(initial=0.0)), span_of(problem, found[1]))
            if best is None or mine < best:
                best = mine
                yield found
