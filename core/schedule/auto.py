"""Solve for a schedule by one method; for `auto` its steps in order.

1. The best repetend of one micro-batch a period; of two, three, four while the rate is above its
   bound (`best_repetend`).
2. All micro-batches, within the limits of memory; a device without one may hold as much as in the
   repetend: the repetend unrolled, and every recipe, each with its idle time filled (`justify`).
3. Where that is above the bound of the makespan, a search from the shortest one (`complete`).

A search that is stopped returns its best schedule, or one micro-batch after the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from dnnp.core.methods.schedules import RECIPES, SEARCHES
from dnnp.core.model.errors import InfeasibleError, LimitError, UsageError
from dnnp.core.model.graph import Floats
from dnnp.core.model.schedule import Placement, Point, Repetend, Schedule
from dnnp.core.model.search_context import (
    NOTHING,
    PLAIN,
    Incumbent,
    SearchContext,
    run_with_fallback,
)
from dnnp.core.model.text import counted, shown_bytes
from dnnp.core.schedule.bound import left_out, makespan_bound, rate_bound
from dnnp.core.schedule.complete import complete, unrolled
from dnnp.core.schedule.order_search import MOST_BLOCKS
from dnnp.core.schedule.problem import (
    TOLERANCE,
    Answer,
    Batch,
    Wanted,
    limited,
    peak_memory,
    problem_of,
    span_of,
    violations,
    within,
)
from dnnp.core.schedule.recipes import classic, classic_rate, sequential
from dnnp.core.schedule.repetend import find_repetend


def solve(placement: Placement, wanted: Wanted, run: SearchContext = PLAIN) -> Schedule:
    """Find a schedule; one micro-batch after the other where it is stopped before there is any.

    Raises
    ------
    InfeasibleError
        No schedule keeps within the memory limits, or the recipe does not.
    UsageError
        The recipe does not fit the placement.
    """
    # What it imports does not count as its time.
    search = SEARCHES[wanted.method].function() if wanted.method in SEARCHES else _by_recipe
    kept: Incumbent[Floats] = Incumbent("makespan")
    told = kept.told_by(run)

    def instead() -> Schedule | None:
        problem = problem_of(placement, wanted.micro_batches)
        known, method = kept.split, kept.method
        if known is None or len(known) != problem.b or violations(problem, known):
            if wanted.method != "auto":
                run.warn(f"{wanted.method}: {NOTHING}; this schedule is sequential")
            known = sequential(placement, wanted.micro_batches, compiled=False).start
            method = "sequential"
        if violations(problem, known):
            return None
        bound = max(makespan_bound(placement, wanted.micro_batches), kept.bound)
        bound = min(bound, span_of(problem, known))
        return _made(placement, problem.unroll, Answer(known, method, bound, "interrupted"))

    return run_with_fallback(lambda: _found(placement, wanted, search, told), run.stop, instead)


def _found(
    placement: Placement,
    wanted: Wanted,
    search: Callable[[Batch, Wanted, SearchContext], Answer],
    run: SearchContext,
) -> Schedule:
    """Run a search; its schedule, bound and status."""
    count = wanted.micro_batches
    problem = problem_of(placement, count)
    batch = Batch(placement, problem, makespan_bound(placement, count))
    for message in left_out(placement):
        run.warn(message)
    answer = search(batch, wanted, run)
    start = answer.start - answer.start.min(initial=0.0)
    makespan, bound, status = span_of(problem, start), float(answer.bound), answer.status
    if makespan <= bound * (1 + TOLERANCE):
        status, bound = "optimal", makespan
    elif status == "optimal" or run.stop():
        status = "interrupted" if run.stop() else "feasible"
    return _made(placement, count, answer._replace(start=start, bound=bound, status=status))


def _made(placement: Placement, count: int, answer: Answer) -> Schedule:
    """A schedule as the model has it."""
    rate = float(rate_bound(problem_of(placement, placement.turns)))
    return Schedule(
        placement,
        answer.start.reshape(count, -1),
        answer.method,
        float(answer.bound),
        answer.status,
        answer.repetend,
        answer.rate_s,
        rate if answer.rate_s is None else min(rate, answer.rate_s),
    )


def _by_recipe(batch: Batch, wanted: Wanted, run: SearchContext) -> Answer:
    """Run a recipe, which is refused where it exceeds a limit."""
    name = wanted.method
    start = classic(batch.placement, name, batch.problem.unroll).start
    peak = peak_memory(batch.problem, start)
    limit = batch.problem.capacity + batch.problem.fixed
    for d in np.flatnonzero(peak > limit * (1 + TOLERANCE)).tolist():
        raise InfeasibleError(
            f"{name} holds {shown_bytes(peak[d], 6)} on {batch.problem.names[d]}, its limit is "
            f"{shown_bytes(limit[d], 6)}"
        )
    return Answer(start, name, batch.bound, rate_s=classic_rate(batch.placement, name))


MOST_UNROLLED = 4
"""Micro-batches in a period (times the turns of replicas) that are tried where one leaves a gap."""

UNROLLED_EFFORT = 0.2
"""Share of the effort that more micro-batches in a period get."""

FOUND = 0.6
"""Share of the whole work that the search for the repetend is taken for."""

MOST_FOR_RECIPES = 50_000
"""Blocks of a schedule that recipes are compared with."""


def auto(batch: Batch, wanted: Wanted, run: SearchContext) -> Answer:
    """A schedule around the best repetend, or from a recipe; no longer than any that fits.

    Raises
    ------
    InfeasibleError
        No repetend keeps within the memory limits.
    LimitError
        None was found with the effort.
    """
    part = run.phase("looking for a repetend", 0.0, FOUND)
    repetend = best_repetend(batch.placement, wanted.unroll, part)
    completed, tight = _completed(batch, repetend, run.phase("warm-up and cool-down", FOUND, 1.0))
    bound = batch.bound if tight else max(batch.bound, completed.bound)
    return completed._replace(bound=bound, repetend=repetend, rate_s=repetend.rate_s)


def _recipes(placement: Placement, count: int, run: SearchContext) -> Iterator[tuple[str, Floats]]:
    """Names of recipes that fit the placement, and their schedules, f64[b]."""
    blocks = count * len(placement.blocks)
    if blocks > MOST_FOR_RECIPES:
        run.warn(f"{blocks} blocks are above {MOST_FOR_RECIPES}: recipes were not tried")
        return
    run.report_progress("recipes")
    for name in RECIPES:
        try:
            start = classic(placement, name, count).start
        except (UsageError, LimitError):
            continue
        yield name, start


def _completed(batch: Batch, repetend: Repetend, run: SearchContext) -> tuple[Answer, bool]:
    """All micro-batches; True: their limits are tighter than those of the placement.

    A device without a limit may hold as much as the fullest one in the steady state, if that is
    possible: it may not be where blocks release memory before others take it.
    """
    placement = batch.placement
    inner = tuple(
        mine if math.isinf(unit.memory_bytes) else unit
        for unit, mine in zip(
            placement.units, within(placement, repetend.memory_bytes).units, strict=True
        )
    )
    tighter = replace(placement, units=inner)
    count = batch.problem.unroll
    for limits in [placement] if inner == placement.units else [tighter, placement]:
        try:
            # What is proven below tighter limits is not proven of all schedules.
            step = run if limits is placement else run.without_bounds()
            recipes = _recipes(limits, count, step)
            completed = complete(limits, repetend, count, batch.bound, step, recipes)
        except (InfeasibleError, LimitError):
            if limits is placement:
                raise
            run.log("warm-up and cool-down may hold more than the repetend")
            continue
        return completed, limits is not placement
    raise LimitError("no schedule was found")


def best_repetend(placement: Placement, unroll: int | None, run: SearchContext) -> Repetend:
    """The repetend of the given unrolling; of several ones if none is given, that of the best rate.

    A search for more micro-batches begins where one for fewer ended, repeated.
    """
    turns = placement.turns
    goal = rate_bound(problem_of(placement, turns))
    asked = math.lcm(unroll or 1, turns)
    tried = {turns, asked} if unroll else {t * turns for t in range(1, MOST_UNROLLED + 1)}
    found: list[Repetend] = []
    run.report_progress(bound=goal, what="period")
    share = 0.0
    for u in sorted(tried):
        parts = [repetend for repetend in found if u % repetend.unroll == 0]
        known = None
        if parts:
            again = min(parts, key=lambda repetend: repetend.rate_s)
            known = unrolled(again, u).ravel(), u // again.unroll * again.period_s
        effort = 1.0 if u == asked else UNROLLED_EFFORT
        width = effort / (1 + UNROLLED_EFFORT * (len(tried) - 1))
        step = run.phase("looking for a repetend", share, share + width).scaled(effort)
        share += width
        try:
            one = find_repetend(problem_of(placement, u), known, step)
        except LimitError:
            if u == max(tried) and not found:
                raise
            if not run.stop():
                run.warn(f"no repetend of {u} micro-batches was found with this effort")
            continue
        found.append(one)
        run.report_progress(value=one.rate_s, what="period")
        run.log(
            f"{u} micro-batches in a period of {run.shown(one.period_s)} ({one.method}): "
            f"{run.shown(one.rate_s)} each, bound {run.shown(goal)}"
        )
        enough = one.rate_s <= goal * (1 + TOLERANCE) or run.gap_reached(one.rate_s, goal)
        if not unroll and (enough or run.stop()):
            break
    least = min(repetend.rate_s for repetend in found)
    best = next(r for r in found if r.rate_s <= least * (1 + TOLERANCE))
    best = found[-1] if unroll else best
    name_fallback(best, run)
    return best


def name_fallback(found: Repetend, run: SearchContext) -> None:
    """Warn that there are too many blocks to search for a repetend."""
    how = {"list": "list scheduling", "sequential": "running one block after the other"}
    if found.method in how:
        run.warn(
            f"{found.start_s.size} blocks in a period are above {MOST_BLOCKS}: {how[found.method]} "
            "made the repetend, without search"
        )


MOST_POINTS = 1000
"""Points of a trade-off."""


def trade_off(
    placement: Placement, unroll: int | None = None, run: SearchContext = PLAIN
) -> list[Point]:
    """The least period for every limit of memory that makes a difference, ascending by memory.

    The limits of the placement hold besides. A search that is interrupted, or finds nothing with
    its effort, ends the list. `unroll`: micro-batches in a period; None: 1.
    """
    points: list[Point] = []
    whole = run_with_fallback(
        lambda: _add_points(placement, unroll, run, points), run.stop, lambda: False
    )
    if not whole:
        run.warn(f"the trade-off ends after {len(points)} points; there may be more below")
    return points[::-1]


def _add_points(
    placement: Placement, unroll: int | None, run: SearchContext, points: list[Point]
) -> bool:
    """Append the points of the trade-off, descending by memory, as they are found.

    Returns whether these are all.
    """
    u = math.lcm(unroll or 1, placement.turns)
    problem = problem_of(placement, u)
    scale = TOLERANCE * float(np.abs(problem.memory).sum() + problem.fixed.sum())
    while len(points) < MOST_POINTS and not run.stop():
        try:
            run.report_progress(
                "trade-off" if not points else f"trade-off, {counted(len(points), 'point')}"
            )
            found = find_repetend(problem, run=run.alone())
        except InfeasibleError:
            if not points:
                raise
            return True
        except LimitError:
            if not points:
                raise
            break
        if not points:
            name_fallback(found, run)
        memory = found.held(placement.units)
        point = Point(memory, found.rate_s, found.period_bound_s / u, found.start_s, found.method)
        held = shown_bytes(memory) if run.in_seconds else f"{memory:.6g}"
        run.log(f"memory {held}: period {run.shown(point.period_s)}")
        if points and point.period_s <= points[-1].period_s * (1 + TOLERANCE):
            points.pop()
        points.append(point)
        if memory <= float(problem.fixed.max(initial=0.0)) + scale:
            return True
        problem = limited(problem, memory - 2 * scale)
    return False
