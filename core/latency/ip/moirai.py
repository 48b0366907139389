"""Moirai's integer program: every task on one device, one at a time (Section III.D, Eq. 4 to 8).

What is different from the paper makes the relaxation tighter and changes no solution: the flags u
are the transport of the maker's device to the reader's; every conditional constraint has a
constant of its own (M^s, M^l and M^r are one number each in the paper); `delta` is shared by all
devices on which two tasks, or two moves, can meet.
"""

from __future__ import annotations

from dnnp.core.cost.latency import LatencyProblem, Placement
from dnnp.core.latency.ip.loop import ExactResult, solve_model
from dnnp.core.latency.ip.placement_model import PlacementProgram
from dnnp.core.model.search_context import PLAIN, Run


def moirai(
    problem: LatencyProblem,
    *,
    solver: str = "cbc",
    start: Placement | None = None,
    bound: float = 0.0,
    run: Run = PLAIN,
) -> ExactResult[Placement]:
    """Find the placement with the least latency by Moirai's program; see `solve_model`."""
    return solve_model(PlacementProgram(problem), solver=solver, start=start, bound=bound, run=run)
