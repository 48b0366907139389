"""Verify the bound of a latency plan: recompute simple bounds, else search for a better plan."""

from __future__ import annotations

from dnnp.core.certificates.exact import Budget, UncheckedError, UnprovenError
from dnnp.core.certificates.invocations import Blocks
from dnnp.core.certificates.placements import Operators, Placements
from dnnp.core.certificates.tasks import simple_bounds, tasks_of
from dnnp.core.check.latency import LatencyCase
from dnnp.core.check.violation import TOLERANCE, above

MOST_UNITS = 200
"""Units from which a search is not begun."""


def prove_latency(case: LatencyCase, claim: float, budget: Budget) -> str:
    """Prove that no plan has a latency below a claim; return the argument.

    Raises
    ------
    UnprovenError
        There is a plan with less.
    UncheckedError
        It takes too many steps, or the search does not cover it.
    """
    if claim <= 0:
        return "simple"
    options = case.plan.options
    blocks = options.execution == "blocks"
    if options.charge_io and (case.edge or not blocks):
        raise UncheckedError("no check covers its charged inputs and outputs")
    devices = case.plan.devices
    coarse = tasks_of(case, devices, budget, by_class=True)
    for bound, name in simple_bounds(coarse, budget):
        if not above(claim, bound):
            return name
    if coarse.n > MOST_UNITS:
        raise UncheckedError(f"a search is for up to {MOST_UNITS} units, there are {coarse.n}")
    pools = [d for d in devices if d.is_cpu] if blocks else []
    for pool in pools or devices[:1]:
        tasks = tasks_of(case, [d for d in devices if d not in pools or d is pool], budget)
        problem = Blocks(case, tasks, budget) if blocks else Operators(tasks, options.congestion)
        found = Placements(problem, claim * (1 - TOLERANCE), case.plan.k, budget).below()
        if found is None:
            continue
        if options.memory_model == "peak" and any(room < float("inf") for room in tasks.room):
            raise UncheckedError(f"a plan of {found!r} may not fit with its live tensors")
        raise UnprovenError(f"there is a plan with the latency {found!r}")
    return "search"
