"""Least latency by constraint programming (CP-SAT, the optional extra `cpsat`).

The scheduling models of `blocks` and `moirai`, with intervals that do not overlap in
place of big-M. The solver runs in a process of its own and tells every better solution and bound
as soon as it has it, so that a limit, an interrupt or a crash loses nothing.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from dnnp.core.cost.latency import Invocations, LatencyProblem, Placement, Split
from dnnp.core.latency.ip.block_model import BlockProgram
from dnnp.core.latency.ip.formulation import Formulation
from dnnp.core.latency.ip.loop import ExactResult, ModelSearch
from dnnp.core.latency.ip.placement_model import PlacementProgram
from dnnp.core.model.errors import UnavailableError
from dnnp.core.model.search_context import PLAIN, Run
from dnnp.core.solver.child import SolverProcess
from dnnp.core.solver.cpsat_program import TickProgram
from dnnp.core.solver.program import Outcome
from dnnp.core.solver.slices import COARSE, GRACE_S, SAFETY, attempted

S = TypeVar("S", bound=Split)

THREADS = 8
"""Searches that the solver runs side by side; fewer than that, and it leaves out kinds of them."""


def cpsat_blocks(
    problem: LatencyProblem,
    *,
    start: Invocations | None = None,
    bound: float = 0.0,
    threads: int = THREADS,
    run: Run = PLAIN,
) -> ExactResult[Invocations]:
    """Find the split into blocks with the least latency; see `solve_intervals`."""
    return solve_intervals(
        BlockProgram(problem), start=start, bound=bound, threads=threads, run=run
    )


def cpsat_operators(
    problem: LatencyProblem,
    *,
    start: Placement | None = None,
    bound: float = 0.0,
    threads: int = THREADS,
    run: Run = PLAIN,
) -> ExactResult[Placement]:
    """Find the placement with the least latency; see `solve_intervals`."""
    return solve_intervals(
        PlacementProgram(problem), start=start, bound=bound, threads=threads, run=run
    )


def solve_intervals(
    formulation: Formulation[S],
    *,
    start: S | None = None,
    bound: float = 0.0,
    threads: int = THREADS,
    run: Run = PLAIN,
) -> ExactResult[S]:
    """Solve a scheduling model by CP-SAT.

    Parameters
    ----------
    formulation
        The problem.
    start
        A solution to start from; one that is invalid is not used.
    bound
        What is proven already: no solution has a smaller latency.
    threads
        Of the solver. The solution of least latency is found for any number and any seed, if time
        allows; which one of several may depend on them.
    run
        Asked about twenty times a second whether to end with what there is.

    Raises
    ------
    InfeasibleError
        It is proven that there is no solution.
    LimitError
        The solver failed before any solution was known.
    UnavailableError
        ortools is not installed.
    """
    search = ModelSearch(formulation, start, bound)

    def work(process: SolverProcess) -> bool:
        search.failure = ""
        return _solved(search, process, threads, run)

    closed = attempted(work, lambda _: search.failure, run, "cpsat")
    return search.result("cpsat", closed=closed)


def _solved(search: ModelSearch[S], process: SolverProcess, threads: int, run: Run) -> bool:
    """Solve until nothing is left to find, or to the end; whether it is closed."""
    while search.best.value > search.low:
        model = search.formulation.model(search.upper)
        model.raise_least(search.low)
        if search.refuses(model.entries, "a constraint program"):
            return False
        if model.hopeless:
            search.exhausted()
            return True
        program = TickProgram(model, search.formulation.quantum)
        known = search.known()
        hint = None if known is None else program.start(*model.start(known))
        if run.stop():
            return False
        left = run.left()

        def take(outcome: Outcome, model=model, program=program) -> bool:  # type: ignore[no-untyped-def]
            """Take over what the solver says; whether its solution can be used."""
            if np.isfinite(outcome.bound):
                search.raise_bound(program.seconds(outcome.bound))
                run.stands(bound=search.low, by="cpsat")
            if outcome.values is None:
                return True
            values = [round(value) for value in outcome.values]
            solution = search.formulation.solution(model, *program.split(values))
            if solution is None:
                return False
            run.keep(solution, search.best.offer(solution), "cpsat")
            run.stands(value=search.best.value)
            return True

        search.asked = True
        outcome = process.cpsat(
            program.program,
            hint,
            left,
            threads,
            run.seed,
            news=take,
            patience=None if left is None else left + GRACE_S,
            stop=run.stop,
        )
        if outcome.status == "missing":
            raise UnavailableError("CP-SAT is not installed: pip install 'dnnp[cpsat]'")
        if outcome.status == "infeasible":
            if hint is not None:
                search.failure = "the solver CP-SAT finds no solution, but there is one"
                return False
            search.exhausted()
            return True
        usable = outcome.status != "failed" and take(outcome)
        if outcome.status == "failed":
            search.failure = f"the solver CP-SAT failed: {outcome.reason}"
        if outcome.status == "optimal" and not usable:
            continue  # the model has learned why
        value = search.best.value
        near = value <= search.low + 2 * SAFETY * value
        if outcome.status == "optimal" and not near and model.upper > COARSE * value:
            continue  # with finer ticks
        return outcome.status == "optimal" and near
    return True
