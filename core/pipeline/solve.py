"""The schedule of a placement: by which method, and what is proven about it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from dnnp.core.model.beside import beside
from dnnp.core.model.errors import InfeasibleError, LimitError, UsageError
from dnnp.core.model.graph import Floats
from dnnp.core.model.placement import Placement
from dnnp.core.model.schedule import Point, Repetend, Schedule
from dnnp.core.pipeline.bound import left_out, makespan_bound, rate_bound
from dnnp.core.pipeline.finish.complete import Completed, complete
from dnnp.core.pipeline.finish.ends import unrolled
from dnnp.core.pipeline.finish.kernel import expand
from dnnp.core.pipeline.finish.optimal import optimal
from dnnp.core.pipeline.orders.kernel import search
from dnnp.core.pipeline.orders.search import MOST_BLOCKS
from dnnp.core.pipeline.problem import (
    TOLERANCE,
    ScheduleProblem,
    faults,
    limited,
    peak_memory,
    problem_of,
    span_of,
)
from dnnp.core.pipeline.repetend import find_repetend

MOST_UNROLLED = 4
"""Micro-batches in a period (times the turns of replicas) that are tried where one leaves a gap."""

UNROLLED_EFFORT = 0.2
"""Share of the effort that more micro-batches in a period get."""

MOST_FOR_RECIPES = 50_000
"""Blocks of a schedule that recipes are compared with."""

MOST_POINTS = 1000
"""Points of a trade-off."""


@dataclass(frozen=True)
class Request:
    """What is asked for."""

    micro_batches: int
    method: str = "auto"
    """`auto`, `tessel`, `optimal`, or a recipe of `core.pipeline.recipes.classics`."""
    unroll: int | None = None
    """Micro-batches in a period; None: 1, and more where that leaves a gap to the bound."""
    most_in_flight: int | None = None
    """`tessel`: micro-batches that a repetend may be made of (N_R)."""
    lazy: bool = True
    """`tessel`: complete the best repetend only, not every better one."""
    effort: float = 1.0
    stop: Callable[[], bool] = lambda: False
    tell: Callable[[str], None] = lambda message: None
    """Told what was found on the way."""
    warn: Callable[[str], None] = lambda message: None
    """Told what was cut short, or could not be kept to."""


def kernels(method: str) -> list[Callable[..., object]]:
    """What must be compiled before the method finds anything."""
    if method == "tessel":
        from dnnp.core.pipeline.tessel.kernel import scan

        return [scan, expand]
    return [search, expand] if method == "auto" else [expand]


def solve(placement: Placement, request: Request) -> Schedule:
    """Find a schedule; one micro-batch after the other where it is stopped before there is any.

    Raises
    ------
    InfeasibleError
        No schedule keeps within the memory limits, or the recipe does not.
    UsageError
        The recipe does not fit the placement.
    """
    return beside(
        lambda: _found(placement, request), request.stop, lambda: _one_by_one(placement, request)
    )


def _one_by_one(placement: Placement, request: Request) -> Schedule | None:
    """The schedule that needs no search, and the least memory; None: it does not fit."""
    from dnnp.core.pipeline.recipes.classics import sequential

    count = request.micro_batches
    problem = problem_of(placement, count)
    start = sequential(placement, count, compiled=False).start
    if faults(problem, start):
        return None
    bound = min(makespan_bound(placement, count), span_of(problem, start))
    rate = float(rate_bound(problem_of(placement, placement.turns)))
    return Schedule(
        placement,
        start.reshape(count, -1),
        "sequential",
        float(bound),
        "interrupted",
        rate_bound_s=rate,
    )


def _found(placement: Placement, request: Request) -> Schedule:
    """What the method finds."""
    count = request.micro_batches
    problem = problem_of(placement, count)
    repetend, status, bound = None, "feasible", makespan_bound(placement, count)
    reached: float | None = None
    method = request.method
    for message in left_out(placement):
        request.warn(message)
    if request.method == "optimal":
        finite = optimal(problem, effort=request.effort, stop=request.stop)
        start, bound, status = finite.start, max(bound, finite.bound), finite.status
        method = finite.method
        if finite.widest:
            request.warn(
                f"optimal: ended with {finite.widest} partial schedules, for which there is "
                "memory; a larger --effort does not help"
            )
    elif request.method == "tessel":
        from dnnp.core.pipeline.tessel.solve import tessel, tessel_starts

        found = tessel(
            placement,
            lazy=request.lazy,
            most=request.most_in_flight,
            effort=request.effort,
            stop=request.stop,
        )
        repetend, (starts, method) = found.repetend, tessel_starts(placement, found, count)
        start = starts.ravel()
        if not found.complete and not request.stop():
            request.warn("tessel: not all was tried; a larger --effort may find a shorter period")
    elif request.method == "auto":
        repetend = best_repetend(placement, request)
        completed, tight = _completed(placement, repetend, request, bound)
        start, status, method = completed.start.ravel(), completed.status, completed.method
        if not tight:
            bound = max(bound, completed.bound)
        if span_of(problem, start) > bound * (1 + TOLERANCE):
            most = within(placement, repetend.memory_bytes) if tight else placement
            start, method = _recipe(most, request, start, method)
    else:
        from dnnp.core.pipeline.recipes.classics import classic
        from dnnp.core.pipeline.recipes.rate import classic_rate

        start = classic(placement, request.method, count).start
        _check_memory(placement, problem, start, request.method)
        reached = classic_rate(placement, request.method)
    start = start - start.min(initial=0.0)
    makespan, bound = span_of(problem, start), float(bound)
    if makespan <= bound * (1 + TOLERANCE):
        status, bound = "optimal", makespan
    elif status == "optimal" or request.stop():
        status = "interrupted" if request.stop() else "feasible"
    rate = float(rate_bound(problem_of(placement, placement.turns)))
    reached = reached if repetend is None else repetend.rate_s
    return Schedule(
        placement,
        start.reshape(count, -1),
        method,
        bound,
        status,
        repetend,
        reached,
        rate if reached is None else min(rate, reached),
    )


def _recipe(
    placement: Placement, request: Request, start: Floats, method: str
) -> tuple[Floats, str]:
    """The shortest of a schedule that is known and of recipes that keep the limits; f64[b], name.

    `method` made the schedule that is known.
    """
    from dnnp.core.pipeline.recipes.classics import CLASSICS, classic

    count = request.micro_batches
    problem = problem_of(placement, count)
    if problem.b > MOST_FOR_RECIPES:
        request.warn(f"{problem.b} blocks are above {MOST_FOR_RECIPES}: recipes were not tried")
        return start, method
    for name in CLASSICS:
        try:
            other = classic(placement, name, count).start
        except (UsageError, LimitError):
            continue
        if span_of(problem, other) < span_of(problem, start) and not faults(problem, other):
            start, method = other, name
    return start, method


def _completed(
    placement: Placement, repetend: Repetend, request: Request, bound: float
) -> tuple[Completed, bool]:
    """All micro-batches, and whether their limits are tighter than those of the placement.

    The warm-up holds no more than the steady state does, if that is possible: where blocks
    release before others take, it need not be.
    """
    inner = within(placement, repetend.memory_bytes)
    for limits in [placement] if inner.units == placement.units else [inner, placement]:
        try:
            completed = complete(
                limits,
                repetend,
                request.micro_batches,
                effort=request.effort,
                stop=request.stop,
                bound=bound,
            )
        except (InfeasibleError, LimitError):
            if limits is placement:
                raise
            request.tell("warm-up and cool-down may hold more than the repetend")
            continue
        return completed, limits is not placement
    raise LimitError("no schedule was found")


def best_repetend(placement: Placement, request: Request) -> Repetend:
    """The repetend of the unrolling asked for; or of several ones, that of the best rate.

    A search for more micro-batches begins where one for fewer ended, repeated.
    """
    turns = placement.turns
    goal = rate_bound(problem_of(placement, turns))
    asked = math.lcm(request.unroll or 1, turns)
    tried = {turns, asked} if request.unroll else {t * turns for t in range(1, MOST_UNROLLED + 1)}
    found: list[Repetend] = []
    for u in sorted(tried):
        parts = [repetend for repetend in found if u % repetend.unroll == 0]
        known = None
        if parts:
            again = min(parts, key=_rate)
            known = unrolled(again, u).ravel(), u // again.unroll * again.period_s
        effort = request.effort * (1.0 if u == asked else UNROLLED_EFFORT)
        try:
            one = find_repetend(
                problem_of(placement, u), known=known, effort=effort, stop=request.stop
            )
        except LimitError:
            if u == max(tried) and not found:
                raise
            if not request.stop():
                request.warn(f"no repetend of {u} micro-batches was found with this effort")
            continue
        found.append(one)
        request.tell(
            f"{u} micro-batches in a period of {one.period_s:.6g} ({one.method}): "
            f"{one.rate_s:.6g} each, bound {goal:.6g}"
        )
        if not request.unroll and (one.rate_s <= goal * (1 + TOLERANCE) or request.stop()):
            break
    least = min(map(_rate, found))
    best = next(r for r in found if r.rate_s <= least * (1 + TOLERANCE))
    best = found[-1] if request.unroll else best
    _name_fallback(request, best)
    return best


def _name_fallback(request: Request, found: Repetend) -> None:
    """Say that a repetend was not searched for, as there are too many blocks."""
    how = {"list": "list scheduling", "sequential": "running one block after the other"}
    if found.method in how:
        request.warn(
            f"{found.start_s.size} blocks in a period are above {MOST_BLOCKS}: {how[found.method]} "
            "made the repetend, without search"
        )


def _rate(repetend: Repetend) -> float:
    return repetend.rate_s


def trade_off(placement: Placement, request: Request) -> list[Point]:
    """The least period for every limit of memory that makes a difference, ascending by memory.

    The limits of the placement hold besides. A search that is interrupted, or finds nothing with
    its effort, ends the list.
    """
    points: list[Point] = []
    whole = beside(lambda: _add_points(placement, request, points), request.stop, lambda: False)
    if not whole:
        request.warn(f"the trade-off ends after {len(points)} points; there may be more below")
    return points[::-1]


def _add_points(placement: Placement, request: Request, points: list[Point]) -> bool:
    """Append the points of the trade-off, descending by memory, as they are found.

    Returns whether these are all.
    """
    u = math.lcm(request.unroll or 1, placement.turns)
    problem = problem_of(placement, u)
    scale = TOLERANCE * float(np.abs(problem.memory).sum() + problem.fixed.sum())
    while len(points) < MOST_POINTS and not request.stop():
        try:
            found = find_repetend(problem, effort=request.effort, stop=request.stop)
        except InfeasibleError:
            if not points:
                raise
            return True
        except LimitError:
            if not points:
                raise
            break
        if not points:
            _name_fallback(request, found)
        memory = float(found.memory_bytes[np.isfinite(found.memory_bytes)].max(initial=0.0))
        point = Point(memory, found.rate_s, found.period_bound_s / u, found.start_s, found.method)
        request.tell(f"memory {memory:.6g}: period {point.period_s:.6g}")
        if points and point.period_s <= points[-1].period_s * (1 + TOLERANCE):
            points.pop()
        points.append(point)
        if memory <= float(problem.fixed.max(initial=0.0)) + scale:
            return True
        problem = limited(problem, memory - 2 * scale)
    return False


def _check_memory(
    placement: Placement, problem: ScheduleProblem, start: Floats, method: str
) -> None:
    """Refuse a recipe that exceeds a limit."""
    peak = peak_memory(problem, start)
    limit = np.array([unit.memory_bytes for unit in placement.units])
    over = np.flatnonzero(peak > limit * (1 + TOLERANCE))
    if len(over):
        d = int(over[0])
        raise InfeasibleError(
            f"{method} holds {peak[d]:g} bytes on {placement.units[d].name}, its limit is "
            f"{limit[d]:g}"
        )


def with_limit(placement: Placement, memory_bytes: float) -> Placement:
    """The same placement where every device may hold so much."""
    units = tuple(u if u.link else replace(u, memory_bytes=memory_bytes) for u in placement.units)
    return replace(placement, units=units)


def within(placement: Placement, memory_bytes: Floats) -> Placement:
    """The same placement where no device may hold more than any does now, nor more than before.

    `memory_bytes` (f64[units]) is what they hold; inf where it grows without end.
    """
    ends = np.isfinite(memory_bytes)
    most = float(memory_bytes[ends].max(initial=0.0))
    units = tuple(
        replace(unit, memory_bytes=min(unit.memory_bytes, most)) if end else unit
        for unit, end in zip(placement.units, ends.tolist(), strict=True)
    )
    return replace(placement, units=units)
