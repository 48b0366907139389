"""`auto`: the best repetend, a short warm-up and cool-down around it, and recipes."""

from __future__ import annotations

import math

from dnnp.core.methods import RECIPES
from dnnp.core.model.errors import InfeasibleError, LimitError, UsageError
from dnnp.core.model.graph import Floats
from dnnp.core.model.placement import Placement
from dnnp.core.model.run import Run
from dnnp.core.model.schedule import Repetend
from dnnp.core.pipeline.bound import rate_bound
from dnnp.core.pipeline.finish.complete import Completed, complete
from dnnp.core.pipeline.finish.ends import unrolled
from dnnp.core.pipeline.limits import within
from dnnp.core.pipeline.orders.search import MOST_BLOCKS
from dnnp.core.pipeline.problem import TOLERANCE, faults, problem_of, span_of
from dnnp.core.pipeline.recipes.classics import classic
from dnnp.core.pipeline.repetend import find_repetend
from dnnp.core.pipeline.wanted import Answer, Batch, Wanted

MOST_UNROLLED = 4
"""Micro-batches in a period (times the turns of replicas) that are tried where one leaves a gap."""

UNROLLED_EFFORT = 0.2
"""Share of the effort that more micro-batches in a period get."""

FOUND = 0.6
"""Share of the whole work that the search for the repetend is taken for."""

MOST_FOR_RECIPES = 50_000
"""Blocks of a schedule that recipes are compared with."""


def auto(batch: Batch, wanted: Wanted, run: Run) -> Answer:
    """A schedule around the best repetend, or a recipe that is shorter.

    Raises
    ------
    InfeasibleError
        No repetend keeps within the memory limits.
    LimitError
        None was found with the effort.
    """
    part = run.begin("looking for a repetend", 0.0, FOUND)
    repetend = best_repetend(batch.placement, wanted.unroll, part)
    completed, tight = _completed(batch, repetend, run.begin("warm-up and cool-down", FOUND, 1.0))
    start, method, bound = completed.start.ravel(), completed.method, batch.bound
    if not tight:
        bound = max(bound, completed.bound)
    if span_of(batch.problem, start) > bound * (1 + TOLERANCE):
        limits = within(batch.placement, repetend.memory_bytes) if tight else batch.placement
        run.stands("recipes")
        start, method = _recipe(limits, wanted.micro_batches, start, method, run)
    return Answer(start, method, bound, completed.status, repetend, repetend.rate_s)


def _recipe(
    placement: Placement, count: int, start: Floats, method: str, run: Run
) -> tuple[Floats, str]:
    """The shortest of a schedule that is known and of recipes that keep the limits; f64[b], name.

    `method` made the schedule that is known; the limits are those of `placement`.
    """
    problem = problem_of(placement, count)
    if problem.b > MOST_FOR_RECIPES:
        run.warn(f"{problem.b} blocks are above {MOST_FOR_RECIPES}: recipes were not tried")
        return start, method
    for name in RECIPES:
        try:
            other = classic(placement, name, count).start
        except (UsageError, LimitError):
            continue
        if span_of(problem, other) < span_of(problem, start) and not faults(problem, other):
            start, method = other, name
    return start, method


def _completed(batch: Batch, repetend: Repetend, run: Run) -> tuple[Completed, bool]:
    """All micro-batches, and whether their limits are tighter than those of the placement.

    The warm-up holds no more than the steady state does, if that is possible: where blocks
    release before others take, it need not be.
    """
    placement = batch.placement
    inner = within(placement, repetend.memory_bytes)
    for limits in [placement] if inner.units == placement.units else [inner, placement]:
        try:
            completed = complete(limits, repetend, batch.problem.unroll, batch.bound, run)
        except (InfeasibleError, LimitError):
            if limits is placement:
                raise
            run.tell("warm-up and cool-down may hold more than the repetend")
            continue
        return completed, limits is not placement
    raise LimitError("no schedule was found")


def best_repetend(placement: Placement, unroll: int | None, run: Run) -> Repetend:
    """The repetend of the unrolling asked for; or of several ones, that of the best rate.

    A search for more micro-batches begins where one for fewer ended, repeated.
    """
    turns = placement.turns
    goal = rate_bound(problem_of(placement, turns))
    asked = math.lcm(unroll or 1, turns)
    tried = {turns, asked} if unroll else {t * turns for t in range(1, MOST_UNROLLED + 1)}
    found: list[Repetend] = []
    run.stands(bound=goal, what="period")
    share = 0.0
    for u in sorted(tried):
        parts = [repetend for repetend in found if u % repetend.unroll == 0]
        known = None
        if parts:
            again = min(parts, key=_rate)
            known = unrolled(again, u).ravel(), u // again.unroll * again.period_s
        effort = 1.0 if u == asked else UNROLLED_EFFORT
        width = effort / (1 + UNROLLED_EFFORT * (len(tried) - 1))
        step = run.begin("looking for a repetend", share, share + width).scaled(effort)
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
        run.stands(value=one.rate_s, what="period")
        run.tell(
            f"{u} micro-batches in a period of {run.shown(one.period_s)} ({one.method}): "
            f"{run.shown(one.rate_s)} each, bound {run.shown(goal)}"
        )
        if not unroll and (one.rate_s <= goal * (1 + TOLERANCE) or run.stop()):
            break
    least = min(map(_rate, found))
    best = next(r for r in found if r.rate_s <= least * (1 + TOLERANCE))
    best = found[-1] if unroll else best
    name_fallback(best, run)
    return best


def name_fallback(found: Repetend, run: Run) -> None:
    """Say that a repetend was not searched for, as there are too many blocks."""
    how = {"list": "list scheduling", "sequential": "running one block after the other"}
    if found.method in how:
        run.warn(
            f"{found.start_s.size} blocks in a period are above {MOST_BLOCKS}: {how[found.method]} "
            "made the repetend, without search"
        )


def _rate(repetend: Repetend) -> float:
    return repetend.rate_s
