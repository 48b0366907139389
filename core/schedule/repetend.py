"""Repetends: the blocks of a few micro-batches, repeated as often and held as little as possible.

Finding one is cyclic (modulo) scheduling: first the period is made as short as possible, then the
largest memory of a unit at that period, then the span at that memory. Tessel (section IV) searches
over assignments of micro-batches to blocks; here `order_search` searches over the orders of blocks
on units, which covers all assignments, and proves its results.

Feasibility is monotone in a limit of period, memory or span. So each minimum is found by bisection;
a schedule gives its own, often smaller, value, and a last search just below the best value proves
it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from dnnp.core.cost.load_formula import ROUNDING, common_divisor
from dnnp.core.model.errors import InfeasibleError, LimitError
from dnnp.core.model.graph import Floats, distinct
from dnnp.core.model.schedule import Repetend
from dnnp.core.model.search_context import PLAIN, SearchContext
from dnnp.core.schedule.bound import Residence, ends, memory_bound, rate_bound
from dnnp.core.schedule.list_schedules import list_schedules, too_many_to_list
from dnnp.core.schedule.order_search import (
    FINE,
    MOST_BLOCKS,
    Demand,
    FoundOrder,
    Meter,
    root_bounds,
    search_orders,
)
from dnnp.core.schedule.order_tables import OrderTables, order_tables
from dnnp.core.schedule.problem import TOLERANCE, ScheduleProblem, span_of, steady_memory
from dnnp.core.schedule.starts import merged, tightened

Probe = Callable[[float, Meter], tuple[Floats | None, bool]]
"""A schedule of at most that value, and whether the answer is proven."""

SHARE = 0.1
"""Of what may still be done, for one probe between bound and value."""

LOW = 0.3
"""Place of the next probe between bound and value."""

PROBES = 12
"""Probes before only the last one is left: just below the best value."""


class Steps(NamedTuple):
    """The values that are worth asking for."""

    above: Callable[[float], float]
    """The bound once it is proven that nothing has this value or a smaller one."""
    below: Callable[[float], float]
    """Nothing lies strictly between this and the value, or nothing worth looking for."""


def minimise(
    probe: Probe,
    worth: Callable[[Floats], float],
    steps: Steps,
    bound: float,
    start: Floats | None,
    most: float,
    meter: Meter,
) -> FoundOrder:
    """The least value with a schedule, where feasibility is monotone in the value.

    `bound`: proven lower bound. `start`: a known schedule; None: values up to `most` are tried.
    """
    value = worth(start) if start is not None else math.inf
    soft, probes, at = bound, 0, bound
    # Whether the best value is new: then the next question is whether there is a better one.
    fresh = start is not None
    # A value that is known needs no search where it equals the bound.
    while start is None or (value > bound and steps.below(value) >= bound):
        if meter.over:
            return FoundOrder(start, value, bound, False)
        top = most if start is None else steps.below(value)
        last = probes >= PROBES or soft >= top
        if last or (probes and fresh):
            at, fresh = top, False
        elif probes:
            at = max(steps.below(soft + LOW * (top - soft)), steps.above(soft))
            if at <= soft or at >= top:
                last, at = True, top
        with meter.part(1.0 if last else SHARE) as part:
            found, proven = probe(at, part)
        probes += 1
        if found is not None:
            mine = worth(found)
            if mine >= value:  # rounding: no schedule that is really better
                return FoundOrder(start, value, bound, False)
            start, value, fresh = found, mine, True
        elif proven:
            bound = max(bound, steps.above(at))
            soft = max(soft, bound)
            if at >= top:
                return FoundOrder(start, value, value, True)
        elif last:
            return FoundOrder(start, value, bound, False)
        elif at < top:
            soft = max(soft, steps.above(at))
    return FoundOrder(start, value, value, True)


def largest_memory(problem: ScheduleProblem, start: Floats, period: float) -> float:
    """The largest `steady_memory` over units where nothing is left behind."""
    held = steady_memory(problem, start, period)
    return float(np.where(problem.tracked(), held, problem.fixed).max(initial=0.0))


def least_memory(
    tables: OrderTables, period: float, meter: Meter, start: Floats | None = None
) -> FoundOrder:
    """The smallest `largest_memory` at this period within the limits.

    `start`: a schedule of this period that is known.
    """
    problem = tables.problem
    root = root_bounds(tables, Demand(period, problem.capacity))
    if root is None and start is None:
        return FoundOrder(None, math.inf, math.inf if tables.even else 0.0, tables.even)
    floor = problem.fixed.copy()
    if root is not None and tables.even:
        floor += np.where(tables.tracked, root[0], 0.0)
    weight = np.ones(len(tables.pairs.first))

    def probe(most: float, part: Meter) -> tuple[Floats | None, bool]:
        cap = np.minimum(problem.capacity, most - problem.fixed)
        if (cap < 0).any():
            return None, True
        return search_orders(tables, Demand(period, cap), part, weight)

    def worth(found: Floats) -> float:
        return largest_memory(problem, found, period)

    steps = _memory_steps(problem)
    bound = float(floor.max(initial=0.0))
    most = float((problem.fixed + np.abs(problem.memory).sum() * tables.periods).max(initial=0.0))
    return minimise(probe, worth, steps, bound, start, most, meter)


def _memory_steps(problem: ScheduleProblem) -> Steps:
    unit = common_divisor(problem.memory)
    if unit <= 0:
        # Limits are kept up to `TOLERANCE`; what is asked for must be less than that.
        fine = 4 * TOLERANCE * float(np.abs(problem.memory).sum() + problem.fixed.sum())
        return Steps(lambda x: x, lambda x: x - fine)
    fixed = distinct(problem.fixed)

    def above(x: float) -> float:
        return float((fixed + unit * np.floor((x - fixed) / unit + 1 + 1e-6)).min())

    def below(x: float) -> float:
        return float((fixed + unit * np.ceil((x - fixed) / unit - 1 - 1e-6)).max())

    return Steps(above, below)


def least_span(
    tables: OrderTables, period: float, cap: Floats, meter: Meter, start: Floats | None = None
) -> FoundOrder:
    """The shortest span at this period where units hold no more than `cap` f64[D]."""
    problem = tables.problem
    most = tables.far + tables.periods * period
    known = span_of(problem, start) if start is not None else most
    root = root_bounds(tables, Demand(period, cap, known))
    if root is None and start is None:
        return FoundOrder(None, math.inf, math.inf if tables.even else 0.0, tables.even)
    weight = np.ones(len(tables.pairs.first))

    def probe(most: float, part: Meter) -> tuple[Floats | None, bool]:
        return search_orders(tables, Demand(period, cap, most), part, weight)

    def worth(found: Floats) -> float:
        return span_of(problem, found)

    bound = root[1] if root is not None else 0.0
    unit = common_divisor(np.concatenate([problem.time, problem.delay, [period]]))
    steps = Steps(lambda x: x, lambda x: x * (1 - FINE))
    if unit > 0:
        steps = Steps(
            lambda x: unit * math.floor(x / unit + 1 + 1e-6),
            lambda x: unit * math.ceil(x / unit - 1 - 1e-6),
        )
        bound = unit * math.ceil(bound / unit - 1e-6)
    found = minimise(probe, worth, steps, bound, start, most, meter)
    if found.start is None and not tables.even:  # only `even` problems need no longer span
        return found._replace(bound=0.0, complete=False)
    return found


def least_period(
    tables: OrderTables, bound: float, meter: Meter, start: Floats | None, period: float
) -> FoundOrder:
    """The shortest period of at least `bound` within the limits, with its schedule.

    `start`: a known schedule of `period`; None: periods up to `period` are tried.
    """
    problem = tables.problem
    weight = np.ones(len(tables.pairs.first))
    periods: dict[bytes, float] = {}
    if start is not None:
        periods[start.tobytes()] = period

    def probe(most: float, part: Meter) -> tuple[Floats | None, bool]:
        found, proven = search_orders(tables, Demand(most, problem.capacity), part, weight)
        if found is None:
            return None, proven
        short = tightened(problem, found, most, bound)
        if short is not None and short[0] <= most:
            most, found = short
        periods[found.tobytes()] = most
        return found, proven

    def worth(found: Floats) -> float:
        return periods[found.tobytes()]

    whole = tables.whole
    unit = common_divisor(np.concatenate([problem.time, problem.delay]))

    def below(x: float) -> float:
        # Periods are p / q, where p is at most all times and q at most p / bound.
        step = x * bound / (2 * whole * whole) * unit if whole > 0 else 0.0
        return x - max(step, FINE * x)

    return minimise(probe, worth, Steps(lambda x: x, below), bound, start, period, meter)


WORK = 4e8
"""Entries of the matrix that may be visited at effort 1: some ten seconds."""

TINY = 1e-6
"""Of all delays: a period where blocks take no time."""

QUICK = 0.05
"""Share of the remaining work for a first search for memory and span."""

SHARES = (0.5, 0.6)
"""Shares of the remaining work for the period and for the memory; the span gets the rest."""


def find_repetend(
    problem: ScheduleProblem,
    known: tuple[Floats, float] | None = None,
    run: SearchContext = PLAIN,
) -> Repetend:
    """The repetend of the shortest period, then the least memory, then the shortest span.

    Memory and span get a short search; where that does not prove them, a longer one from its
    result. `known`: start times, f64[b], and period of a repetend, not necessarily a good one.

    Memory is the largest `steady_memory` of a unit; units without a limit on which micro-batches
    leave memory behind do not count. Each number is proven, or comes with a proven bound.

    Raises
    ------
    InfeasibleError
        There is no repetend of any period, naming a unit.
    LimitError
        None was found in the time given.
    """
    check_repeats(problem)
    if not problem.time.any() and not problem.delay.any():
        return _at_once(problem)
    problem = _without_dust(problem)
    meter = Meter(WORK * run.effort, run)
    load = float(problem.load().max(initial=0.0))
    # Without times there is no shortest period; any short one will do.
    least = load or TINY * float(problem.delay.sum())
    residence = Residence(problem)
    rate = rate_bound(problem, residence) * problem.unroll
    if math.isfinite(rate):
        least = max(least, rate)
    start, period = (None, math.inf) if known is None else known
    for length, times in list_schedules(problem, least, run):
        if length < period:
            period, start = length, times
    run.report_progress("shortest period", value=period / problem.unroll, what="period")
    if problem.b > MOST_BLOCKS:
        return _unproven(problem, residence, start, period, load, meter)
    tables = order_tables(problem)
    first = shortest(tables, least, start, period, meter)
    if first.start is None:
        raise LimitError("no repetend within the memory limits was found in the time given")
    if not load:
        first = first._replace(bound=0.0, complete=False)
    run.report_progress("least memory and span", value=first.value / problem.unroll, what="period")
    quick = meter.limited(meter.left * QUICK)
    second = _second(tables, residence, first, quick)
    third = _third(tables, first, second, quick)
    if not (second.complete and third.complete) and not quick.stopped:
        second = _second(tables, residence, first._replace(start=third.start), meter)
        third = _third(tables, first, second, meter)
    meter.stopped = meter.stopped or quick.stopped
    return replace(_made(problem, first, second, third, meter), method="orders")


def _without_dust(problem: ScheduleProblem) -> ScheduleProblem:
    """The same with times of 0 where they are below the rounding error of the sum of all."""
    least = ROUNDING * float(problem.time.sum() + problem.delay.sum())
    return replace(
        problem,
        time=np.where(problem.time < least, 0.0, problem.time),
        delay=np.where(problem.delay < least, 0.0, problem.delay),
    )


def check_repeats(problem: ScheduleProblem) -> None:
    """Refuse a problem without repetend.

    Raises InfeasibleError: every micro-batch leaves memory behind on a unit with a limit, or a
    limit is too small for what is always held.
    """
    left, tracked = problem.left_behind(), problem.tracked()
    for d in np.flatnonzero(np.isfinite(problem.capacity)).tolist():
        if problem.capacity[d] < 0:
            raise InfeasibleError(f"{problem.names[d]} may hold less than what it always holds")
        if not tracked[d]:
            what = "leave memory behind on" if left[d] > 0 else "release more than they took of"
            raise InfeasibleError(
                f"micro-batches {what} {problem.names[d]}, so no repetend keeps its limit"
            )


def shortest(
    tables: OrderTables, least: float, start: Floats | None, period: float, meter: Meter
) -> FoundOrder:
    """The shortest period of at least `least`; `start` has a `period` that is known, or is None.

    Raises InfeasibleError: no period keeps the limits.
    """
    problem = tables.problem
    if start is not None and period <= least:
        return FoundOrder(start, period, period, True)
    # Where orders allow any period at all, they allow that of one block after the other.
    most = max(tables.whole, least)
    if not np.isfinite(problem.capacity).any():
        return _packed(tables, least, start, min(period, most), meter)
    with meter.part(SHARES[0]) as part:
        found = least_period(tables, least, part, start, min(period, most))
    if found.start is None and found.complete:
        raise InfeasibleError(
            f"no repetend keeps the memory limit of {_culprit(tables, most, meter)}"
        )
    return found


def _packed(
    tables: OrderTables, least: float, start: Floats | None, period: float, meter: Meter
) -> FoundOrder:
    """The shortest period without limits of memory: waits do not bind, blocks may start later."""
    problem = tables.problem
    none = np.zeros(0, dtype=np.int64)
    loose = replace(problem, memory=np.zeros(problem.b), tail=none, head=none, delay=np.zeros(0))
    with meter.part(SHARES[0]) as part:
        found = least_period(order_tables(loose), least, part, start, period)
    if found.start is None:
        return found
    period = found.value
    phase = found.start - np.floor(found.start / period + TOLERANCE) * period
    late = np.maximum(phase, 0.0)
    eps = TOLERANCE * period
    for i in merged(problem, []).tolist():
        before = problem.head == i
        tails = problem.tail[before]
        ready = (late[tails] + problem.time[tails] + problem.delay[before]).max(initial=0.0)
        late[i] += max(math.ceil((ready - late[i] - eps) / period), 0) * period
    again = tightened(problem, late, period, period)
    return found._replace(start=late - late.min() if again is None else again[1])


def _culprit(tables: OrderTables, period: float, meter: Meter) -> str:
    """First unit with a limit that allows no schedule, alone or with those before it."""
    capacity = tables.problem.capacity
    limited = np.flatnonzero(np.isfinite(capacity)).tolist()
    for d in limited:
        alone = np.full(len(capacity), np.inf)
        alone[d], lent = capacity[d], meter.limited(meter.left * 0.1)
        found, proven = search_orders(tables, Demand(period, alone), lent)
        if found is None and proven:
            return tables.problem.names[d]
    return " and ".join(tables.problem.names[d] for d in limited)


def _second(
    tables: OrderTables, residence: Residence, first: FoundOrder, meter: Meter
) -> FoundOrder:
    """The least memory at the period found; a schedule is known."""
    with meter.part(SHARES[1]) as part:
        found = least_memory(tables, first.value, part, first.start)
    if found.complete:
        return found
    bound = memory_bound(tables.problem, first.value, residence)
    bound = min(max(found.bound, bound), found.value)
    return found._replace(bound=bound, complete=bound == found.value)


def _third(tables: OrderTables, first: FoundOrder, second: FoundOrder, meter: Meter) -> FoundOrder:
    """The shortest span at the period and the memory that were found."""
    problem = tables.problem
    cap = np.minimum(problem.capacity, second.value - problem.fixed)
    return least_span(tables, first.value, cap, meter, second.start)


def _made(
    problem: ScheduleProblem, first: FoundOrder, second: FoundOrder, third: FoundOrder, meter: Meter
) -> Repetend:
    """The repetend; a bound on what depends on a number that is not proven holds for it only."""
    start = third.start if third.start is not None else second.start
    if start is None:
        raise LimitError("no repetend was found in the time given")
    proven = first.complete and second.complete and third.complete
    status = "optimal" if proven else "interrupted" if meter.stopped else "feasible"
    return Repetend(
        unroll=problem.unroll,
        period_s=first.value,
        start_s=start.reshape(problem.unroll, problem.k),
        memory_bytes=steady_memory(problem, start, first.value),
        period_bound_s=first.bound,
        memory_bound_bytes=second.bound,
        span_bound_s=third.bound,
        status=status,
        span_s=span_of(problem, start),
    )


def _unproven(
    problem: ScheduleProblem,
    residence: Residence,
    start: Floats | None,
    period: float,
    load: float,
    meter: Meter,
) -> Repetend:
    """The repetend of list scheduling, with simple bounds: too many blocks to search."""
    if start is None:
        raise LimitError("list scheduling found no repetend within the memory limits")
    memory = memory_bound(problem, period, residence)
    span = float((ends(problem)[0] + problem.time).max())
    first = FoundOrder(start, period, load, load >= period)
    held = largest_memory(problem, start, period)
    second = FoundOrder(start, held, memory, memory >= held * (1 - TOLERANCE))
    took = span_of(problem, start)
    third = FoundOrder(start, took, span, span >= took * (1 - TOLERANCE))
    method = "sequential" if too_many_to_list(problem) else "list"
    return replace(_made(problem, first, second, third, meter), method=method)


def _at_once(problem: ScheduleProblem) -> Repetend:
    """Blocks that take no time: all at time 0, again and again."""
    start = np.zeros((problem.unroll, problem.k))
    return Repetend(
        problem.unroll,
        0.0,
        start,
        problem.fixed.copy(),
        0.0,
        float(problem.fixed.max(initial=0.0)),
        0.0,
        "optimal",
        0.0,
    )
