"""The schedule of a placement: by which method, and what is proven about it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dnnp.core.methods import SEARCHES
from dnnp.core.model.deadline import NOTHING, Kept, beside
from dnnp.core.model.errors import InfeasibleError
from dnnp.core.model.graph import Floats
from dnnp.core.model.placement import Placement
from dnnp.core.model.schedule import Schedule
from dnnp.core.model.search_context import PLAIN, Run
from dnnp.core.model.text import shown_bytes
from dnnp.core.schedule.bound import left_out, makespan_bound, rate_bound
from dnnp.core.schedule.problem import (
    TOLERANCE,
    Answer,
    Batch,
    ScheduleProblem,
    Wanted,
    faults,
    peak_memory,
    problem_of,
    span_of,
)
from dnnp.core.schedule.recipes.classics import classic, classic_rate, sequential


def solve(placement: Placement, wanted: Wanted, run: Run = PLAIN) -> Schedule:
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
    kept: Kept[Floats] = Kept("makespan")
    told = kept.told_by(run)

    def instead() -> Schedule | None:
        problem = problem_of(placement, wanted.micro_batches)
        known, method = kept.split, kept.method
        if known is None or len(known) != problem.b or faults(problem, known):
            if wanted.method != "auto":
                run.warn(f"{wanted.method}: {NOTHING}; this schedule is sequential")
            known = sequential(placement, wanted.micro_batches, compiled=False).start
            method = "sequential"
        return _as_known(placement, problem, known, method, kept.bound)

    return beside(lambda: _found(placement, wanted, search, told), run.stop, instead)


def _found(
    placement: Placement, wanted: Wanted, search: Callable[[Batch, Wanted, Run], Answer], run: Run
) -> Schedule:
    """What a search finds, and what is proven about it."""
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
    rate = float(rate_bound(problem_of(placement, placement.turns)))
    return Schedule(
        placement,
        start.reshape(count, -1),
        answer.method,
        bound,
        status,
        answer.repetend,
        answer.rate_s,
        rate if answer.rate_s is None else min(rate, answer.rate_s),
    )


def _by_recipe(batch: Batch, wanted: Wanted, run: Run) -> Answer:
    """What a recipe makes, without any search; refused where it exceeds a limit."""
    name = wanted.method
    start = classic(batch.placement, name, batch.problem.unroll).start
    _check_memory(batch.placement, batch.problem, start, name)
    return Answer(start, name, batch.bound, rate_s=classic_rate(batch.placement, name))


def _as_known(
    placement: Placement, problem: ScheduleProblem, start: Floats, method: str, bound: float
) -> Schedule | None:
    """A schedule that is there without the search, and a bound; None: it does not fit."""
    if faults(problem, start):
        return None
    count = problem.unroll
    bound = min(max(makespan_bound(placement, count), bound), span_of(problem, start))
    rate = float(rate_bound(problem_of(placement, placement.turns)))
    return Schedule(
        placement,
        start.reshape(count, -1),
        method,
        float(bound),
        "interrupted",
        rate_bound_s=rate,
    )


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
            f"{method} holds {shown_bytes(peak[d], 6)} on {placement.units[d].name}, its limit is "
            f"{shown_bytes(limit[d], 6)}"
        )
