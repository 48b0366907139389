"""The shortest schedule of few micro-batches (Tessel's time-optimal search, section III.A)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dnnp.core.model.errors import InfeasibleError, LimitError
from dnnp.core.model.graph import Floats
from dnnp.core.model.search_context import PLAIN, Run
from dnnp.core.schedule.finish.beam import Beamed, beam, widest_of, work_of
from dnnp.core.schedule.finish.shop import releases_early, root_bound, shop_of
from dnnp.core.schedule.problem import (
    TOLERANCE,
    Answer,
    Batch,
    ScheduleProblem,
    Wanted,
    faults,
    span_of,
)
from dnnp.core.schedule.shift import left_shift

WORK = 1e9
"""Work of all beams at effort 1 (`Beamed.work`)."""

WIDTH = 32
"""Of the first beam."""

WIDER = 4
"""How much wider the next one is."""

MOST_FULL = 16
"""Beams are tried if a full one of width 1 took at most this many times the work that is left."""


IN_TURN = "in-turn"
"""Name of what `in_turn` makes."""


class Finite(NamedTuple):
    """A schedule in which every block runs once."""

    start: Floats
    """f64[b]; the least is 0."""
    bound: float
    """No schedule within the memory limits is shorter."""
    status: str
    """`optimal`, `feasible` (the effort was spent, or see `widest`) or `interrupted`."""
    method: str
    """What made `start`: `optimal`, the beams; `in-turn`; or `known`, it is what was given."""
    widest: int = 0
    """Width of the last beam, where no memory for a wider one ended the search, whatever the
    effort; else 0."""

    def named(self, known: str) -> str:
        """What made `start`; `known` made what was given."""
        return known if self.method == "known" else self.method


def optimal(problem: ScheduleProblem, upper: Floats | None = None, run: Run = PLAIN) -> Finite:
    """Find start times with the least last end, by wider and wider beams.

    Parameters
    ----------
    upper
        f64[b], a schedule that is known; it is not looked at if it is not valid.
    run
        Its effort scales the work; `stop` is asked every 0.2 s or so.

    Raises
    ------
    InfeasibleError
        It is proven that blocks wait for each other's memory in every schedule.
    LimitError
        No schedule was found.
    """
    if not problem.b:
        return Finite(np.zeros(0), 0.0, "optimal", IN_TURN)
    best, value, method = _first(problem, upper)
    shop = shop_of(problem)
    bound = root_bound(shop)
    slack = TOLERANCE * float(problem.time.sum() + problem.delay.sum())
    run.stands(value=value, bound=bound, what="makespan")
    left, width, careful, lost = WORK * run.effort, WIDTH, False, True
    most, widest = widest_of(shop), 0
    while bound < value - slack and work_of(shop, 1) <= MOST_FULL * left and not run.stop():
        done, work = 1 - left / (WORK * run.effort), min(work_of(shop, width), left)
        part = run.begin("", done, min(done + work / (WORK * run.effort), 1.0))
        found = beam(shop, width, upper=value - slack, careful=careful, most=left, run=part)
        left -= found.work
        if found.start is not None:
            best, value, lost, method = found.start, found.value, False, "optimal"
            run.keep(best, value, method)
        # Nothing ends before the bound of the beam, unless it is what is known already.
        bound = max(bound, min(found.bound, value))
        if np.isfinite(bound):
            run.stands(value=value, bound=bound, what="makespan")
        if np.isinf(bound):
            raise InfeasibleError(_stuck(problem, found))
        if found.interrupted or found.bound >= value:
            break
        if width >= most:
            widest = most
            break
        # Before it gets wider a beam that found nothing yet is told to avoid dead ends.
        careful = lost and not careful
        width *= 1 if careful else WIDER
    if best is None:
        raise LimitError("no schedule was found within the memory limits")
    if bound >= value - slack:
        return Finite(best, span_of(problem, best), "optimal", method)
    return Finite(best, bound, "interrupted" if run.stop() else "feasible", method, widest)


def shortest_schedule(batch: Batch, wanted: Wanted, run: Run) -> Answer:
    """Method `optimal` for all micro-batches; errors as `optimal`."""
    found = optimal(batch.problem, run=run)
    if found.widest:
        run.warn(
            f"optimal: ended with {found.widest} partial schedules, for which there is memory; a "
            "larger --effort does not help"
        )
    return Answer(found.start, found.method, max(batch.bound, found.bound), found.status)


def in_turn(problem: ScheduleProblem) -> Floats:
    """Start times, f64[b], where units run all blocks of a micro-batch before those of the next.

    Valid if a micro-batch alone is.
    """
    order = releases_early(problem)
    sequence = np.arange(problem.unroll)[:, None] * problem.k + order
    return left_shift(problem, sequence.ravel())


def _first(problem: ScheduleProblem, upper: Floats | None) -> tuple[Floats | None, float, str]:
    """The better one of two schedules, its last end, and its name."""
    best, value, method = None, np.inf, ""
    for start, name in ((upper, "known"), (in_turn(problem), IN_TURN)):
        if start is not None and span_of(problem, start) < value and not faults(problem, start):
            best, value, method = start - start.min(), span_of(problem, start), name
    return best, value, method


def _stuck(problem: ScheduleProblem, found: Beamed) -> str:
    """Why there is no schedule."""
    where = f"the memory of {problem.names[found.stuck]}" if found.stuck >= 0 else "the memory"
    return f"infeasible: {where} is too small: whatever the order, blocks wait for each other"
