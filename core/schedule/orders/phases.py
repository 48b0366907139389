"""Least period, memory and span by the search over orders: three minima over monotone questions.

Whether there is a schedule of at most some period, memory or span is monotone in that number. So
each minimum is closed in on from both sides; a schedule that is found gives its own, often
smaller, value, and a last search just below the best value proves it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from dnnp.core.cost.divisor import common_divisor
from dnnp.core.model.graph import Floats, distinct
from dnnp.core.schedule.orders.board import OrderField
from dnnp.core.schedule.orders.cycle import tightened
from dnnp.core.schedule.orders.search import (
    FINE,
    Demand,
    FoundOrder,
    Meter,
    root_floor,
    search_orders,
)
from dnnp.core.schedule.problem import TOLERANCE, ScheduleProblem, span_of, steady_memory

Probe = Callable[[float, Meter], tuple[Floats | None, bool]]
"""A schedule of at most that value, and whether the answer is proven."""

SHARE = 0.1
"""Of what may still be done, for one probe between bound and value."""

LOW = 0.3
"""Where the next probe lies between bound and value."""

PROBES = 12
"""Probes before only the last one is left: just below the best value."""


class Steps(NamedTuple):
    """Which values are worth asking for."""

    above: Callable[[float], float]
    """The bound once it is proven that nothing has this value or a smaller one."""
    below: Callable[[float], float]
    """Nothing lies strictly between this and the value, or nothing worth looking for."""


def closed_in(
    probe: Probe,
    worth: Callable[[Floats], float],
    steps: Steps,
    bound: float,
    start: Floats | None,
    most: float,
    meter: Meter,
) -> FoundOrder:
    """The least value of a monotone question.

    `bound` is proven. `start` is a schedule that is known, or None: then nothing above `most` is
    asked for.
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
        given = meter.left if last else meter.left * SHARE
        part = meter.limited(given)
        found, proven = probe(at, part)
        meter.settle(part, given)
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


def largest_memory(field: OrderField, start: Floats, period: float) -> float:
    """The largest `steady_memory` over units where nothing is left behind."""
    held = steady_memory(field.problem, start, period)
    return float(np.where(field.tracked, held, field.problem.fixed).max(initial=0.0))


def least_memory(
    field: OrderField, period: float, meter: Meter, start: Floats | None = None
) -> FoundOrder:
    """The smallest `largest_memory` at this period within the limits.

    `start`: a schedule of this period that is known.
    """
    problem = field.problem
    root = root_floor(field, Demand(period, problem.capacity))
    if root is None and start is None:
        return FoundOrder(None, math.inf, math.inf if field.even else 0.0, field.even)
    floor = problem.fixed.copy()
    if root is not None and field.even:
        floor += np.where(field.tracked, root[0], 0.0)
    weight = np.ones(len(field.board.first))

    def probe(most: float, part: Meter) -> tuple[Floats | None, bool]:
        cap = np.minimum(problem.capacity, most - problem.fixed)
        if (cap < 0).any():
            return None, True
        return search_orders(field, Demand(period, cap), part, weight)

    def worth(found: Floats) -> float:
        return largest_memory(field, found, period)

    steps = _memory_steps(problem)
    bound = float(floor.max(initial=0.0))
    most = float((problem.fixed + np.abs(problem.memory).sum() * field.periods).max(initial=0.0))
    return closed_in(probe, worth, steps, bound, start, most, meter)


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
    field: OrderField, period: float, cap: Floats, meter: Meter, start: Floats | None = None
) -> FoundOrder:
    """The shortest span at this period where units hold no more than `cap` f64[D]."""
    problem = field.problem
    most = field.far + field.periods * period
    known = span_of(problem, start) if start is not None else most
    root = root_floor(field, Demand(period, cap, known))
    if root is None and start is None:
        return FoundOrder(None, math.inf, math.inf if field.even else 0.0, field.even)
    weight = np.ones(len(field.board.first))

    def probe(most: float, part: Meter) -> tuple[Floats | None, bool]:
        return search_orders(field, Demand(period, cap, most), part, weight)

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
    found = closed_in(probe, worth, steps, bound, start, most, meter)
    if found.start is None and not field.even:  # only `even` problems need no longer span
        return found._replace(bound=0.0, complete=False)
    return found


def least_period(
    field: OrderField, bound: float, meter: Meter, start: Floats | None, period: float
) -> FoundOrder:
    """The shortest period of at least `bound` within the limits, with its schedule.

    `start` is a schedule of `period` that is known; without it nothing above `period` is asked
    for.
    """
    problem = field.problem
    weight = np.ones(len(field.board.first))
    periods: dict[bytes, float] = {}
    if start is not None:
        periods[start.tobytes()] = period

    def probe(most: float, part: Meter) -> tuple[Floats | None, bool]:
        found, proven = search_orders(field, Demand(most, problem.capacity), part, weight)
        if found is None:
            return None, proven
        short = tightened(problem, found, most, bound)
        if short is not None and short[0] <= most:
            most, found = short
        periods[found.tobytes()] = most
        return found, proven

    def worth(found: Floats) -> float:
        return periods[found.tobytes()]

    whole = field.whole
    unit = common_divisor(np.concatenate([problem.time, problem.delay]))

    def below(x: float) -> float:
        # Periods are p / q, where p is at most all times and q at most p / bound.
        step = x * bound / (2 * whole * whole) * unit if whole > 0 else 0.0
        return x - max(step, FINE * x)

    return closed_in(probe, worth, Steps(lambda x: x, below), bound, start, period, meter)
