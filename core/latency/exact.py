"""Methods `ip` and `cpsat`: exact models of either execution, started from a little annealing."""

from __future__ import annotations

import numpy as np

from dnnp.core.cost.latency import Invocations, LatencyProblem, LatencySolution, Placement, Split
from dnnp.core.latency.ip.loop import ExactResult
from dnnp.core.latency.quick import quick, quick_split, simple_bound
from dnnp.core.model.errors import LimitError
from dnnp.core.model.plan import CLOSED
from dnnp.core.model.request import Asked
from dnnp.core.model.search_context import PLAIN, Run

Exact = ExactResult[Invocations] | ExactResult[Placement]


def ip(problem: LatencyProblem, asked: Asked, run: Run) -> LatencySolution:
    """Solve the integer program, with CBC or HiGHS.

    Raises
    ------
    InfeasibleError
        It is proven that nothing fits.
    LimitError
        The time was over before there was any split.
    UnavailableError
        The solver is not installed.
    """
    run = run.without_shares()
    start, bound = _begun(problem, run)
    run.stands("integer program")
    found = by_program(problem, start, solver=asked.solver, bound=bound[0], run=run)
    return _answer(problem, found, start, bound, run)


def cpsat(problem: LatencyProblem, asked: Asked, run: Run) -> LatencySolution:
    """Solve the same models as intervals, by CP-SAT; for the errors see `ip`."""
    run = run.without_shares()
    start, bound = _begun(problem, run)
    run.stands("constraint program")
    found: Exact
    if problem.options.execution == "blocks":
        from dnnp.core.latency.ip.cpsat import cpsat_blocks

        found = cpsat_blocks(problem, start=_blocks(start), bound=bound[0], run=run)
    else:
        from dnnp.core.latency.ip.cpsat import cpsat_operators

        found = cpsat_operators(problem, start=_placement(start), bound=bound[0], run=run)
    return _answer(problem, found, start, bound, run)


def _begun(problem: LatencyProblem, run: Run) -> tuple[Split | None, tuple[float, str]]:
    """What takes little work: a split to start from, a bound and its argument."""
    run.stands("annealing")
    start = quick_split(problem, run)
    value = np.inf
    if start is not None:
        value = problem.value(start)
        run.keep(start, value, "anneal")
    run.stands("bounding", value=value)
    bound = simple_bound(problem, run=quick(run))
    run.stands(bound=bound[0], by=bound[1])
    return start, bound


def by_program(
    problem: LatencyProblem,
    start: Split | None = None,
    *,
    solver: str = "cbc",
    bound: float = 0.0,
    run: Run = PLAIN,
) -> Exact:
    """Solve the integer program of the execution asked for.

    `bound` is a lower bound that is proven already. For the errors see `solve_model`.
    """
    if problem.options.execution == "blocks":
        from dnnp.core.latency.ip.ip import latency_ip

        return latency_ip(problem, solver=solver, start=_blocks(start), bound=bound, run=run)
    from dnnp.core.latency.ip.moirai import moirai

    return moirai(problem, solver=solver, start=_placement(start), bound=bound, run=run)


def _answer(
    problem: LatencyProblem, found: Exact, start: Split | None, bound: tuple[float, str], run: Run
) -> LatencySolution:
    """What a solver found, with the better of two bounds."""
    if found.failure:
        run.warn(f"the solver ended early: {found.failure}")
    if found.split is None:
        raise LimitError("a limit came before the solver found any split")
    if found.bound > bound[0] * (1 + CLOSED):
        bound = found.bound, found.solver
    ran = found.asked
    if found.failure and start is not None:
        ran = found.value < problem.value(start)
    return LatencySolution(found.split, *bound, "" if ran else "anneal")


def _blocks(split: Split | None) -> Invocations | None:
    return split if isinstance(split, Invocations) else None


def _placement(split: Split | None) -> Placement | None:
    return split if isinstance(split, Placement) else None
