"""Method `anneal` for operators: annealing, and a bound that ends it."""

from __future__ import annotations

from dataclasses import replace

from dnnp.core.cost.latency import LatencyProblem, LatencySolution, Placement
from dnnp.core.latency.operators.anneal import anneal_operators
from dnnp.core.latency.operators.bound import operators_bound
from dnnp.core.latency.quick import EFFORT
from dnnp.core.model.plan import CLOSED
from dnnp.core.model.request import Asked
from dnnp.core.model.search_context import Run

ANNEALED = 0.7
"""Share of a time limit that annealing before the last bound may take."""

WARM, BOUNDED, COLD = 0.1, 0.2, 0.9
"""Shares of the whole work at the ends of a little annealing, of the first bound, and of all
annealing; the second bound is the rest."""


def anneal(problem: LatencyProblem, asked: Asked, run: Run) -> LatencySolution:
    """Anneal placements; for the errors see `anneal_operators`."""
    return annealed(problem, None, run)


def annealed(problem: LatencyProblem, start: Placement | None, run: Run) -> LatencySolution:
    """Anneal from a placement, if there is one: a little, then as asked or as long as there is
    time.

    The bound comes after a little annealing, since a good value sharpens it, and ends the search
    where it meets the value. For the errors see `anneal_operators`.
    """
    run.tell("annealing")
    part = run.begin("annealing", 0.0, WARM).scaled(EFFORT)
    found = anneal_operators(problem, start=start, run=part)
    part = run.begin("bounding", WARM, BOUNDED)
    value, bound, name = _bounded(problem, found, 0.0, "critical path", part)
    limited = run.left() is not None
    if not _is_over(value, bound, run):
        step = run.begin("annealing", BOUNDED, COLD)
        step = replace(step, effort=1.0).part(ANNEALED) if limited else step
        found = anneal_operators(problem, start=found, endless=limited, run=step)
        part = run.begin("bounding", COLD, 1.0)
        value, bound, name = _bounded(problem, found, bound, name, part)
    if limited and not _is_over(value, bound, run):
        run.stands("annealing")
        last = replace(run, effort=1.0, seed=run.seed + 1)
        found = anneal_operators(problem, start=found, endless=True, run=last)
    return LatencySolution(found, bound, name)


def _bounded(
    problem: LatencyProblem, found: Placement, bound: float, name: str, run: Run
) -> tuple[float, float, str]:
    """Keep a placement; its latency, and the best bound, which that sharpens."""
    value = problem.value(found)
    run.keep(found, value, "anneal")
    if bound < value * (1 - CLOSED):
        run.tell("bounding")
        proven, argument = operators_bound(problem, upper=value, run=run)
        if proven > bound:
            bound, name = proven, argument
        run.stands(bound=bound, by=name)
    return value, bound, name


def _is_over(value: float, bound: float, run: Run) -> bool:
    """Whether nothing is left to find, or no time to find it."""
    return run.stop() or value <= bound * (1 + CLOSED)
