"""Blocks of the least latency by integer programming (2020 paper, Fig. 3, Fig. 4, Section 4.2)."""

from __future__ import annotations

from dnnp.core.cost.latency import Invocations, LatencyProblem
from dnnp.core.latency.ip.block_model import BlockProgram
from dnnp.core.latency.ip.loop import ExactResult, solve_model
from dnnp.core.model.search_context import PLAIN, Run


def latency_ip(
    problem: LatencyProblem,
    *,
    solver: str = "cbc",
    start: Invocations | None = None,
    bound: float = 0.0,
    run: Run = PLAIN,
) -> ExactResult[Invocations]:
    """Find the split into blocks with the least latency; see `solve_model`."""
    return solve_model(BlockProgram(problem), solver=solver, start=start, bound=bound, run=run)
