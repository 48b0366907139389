"""Methods `ip` and `cpsat`: exact models of either execution, started from a little annealing.

For CP-SAT (the optional extra `cpsat`) intervals that do not overlap take the place of big-M. The
solver runs in a process of its own and tells every better solution and bound as soon as it has it,
so that a limit, an interrupt or a crash loses nothing.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np

from dnnp.core.cost.latency import LatencyProblem, LatencySolution, Split
from dnnp.core.latency.ip.formulation import Formulation
from dnnp.core.latency.ip.loop import ExactResult, ModelSearch, solve_model
from dnnp.core.latency.quick import quick, quick_split, simple_bound
from dnnp.core.model.errors import LimitError, UnavailableError
from dnnp.core.model.plan import CLOSED
from dnnp.core.model.request import Request
from dnnp.core.model.search_context import PLAIN, Run
from dnnp.core.solver.child import SolverProcess
from dnnp.core.solver.program import Outcome
from dnnp.core.solver.slices import COARSE, GRACE_S, SAFETY, attempted

S = TypeVar("S", bound=Split)

THREADS = 8
"""Searches that CP-SAT runs side by side; fewer than that, and it leaves out kinds of them."""


def formulation_of(problem: LatencyProblem) -> Formulation[Any]:
    """The formulation of the execution asked for."""
    if problem.options.execution == "blocks":
        from dnnp.core.latency.ip.block_model import BlockProgram

        return BlockProgram(problem)
    from dnnp.core.latency.ip.placement_model import PlacementProgram

    return PlacementProgram(problem)


def ip(problem: LatencyProblem, asked: Request, run: Run) -> LatencySolution:
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
    model = formulation_of(problem)
    found = solve_model(model, solver=asked.solver, start=start, bound=bound[0], run=run)
    return _answer(problem, found, start, bound, run)


def cpsat(problem: LatencyProblem, asked: Request, run: Run) -> LatencySolution:
    """Solve the same models as intervals, by CP-SAT; for the errors see `ip`."""
    run = run.without_shares()
    start, bound = _begun(problem, run)
    run.stands("constraint program")
    found = solve_intervals(formulation_of(problem), start=start, bound=bound[0], run=run)
    return _answer(problem, found, start, bound, run)


def _begun(problem: LatencyProblem, run: Run) -> tuple[Split | None, tuple[float, str]]:
    """Find a split to start from, a bound and its argument, with little work."""
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


def _answer(
    problem: LatencyProblem,
    found: ExactResult[Any],
    start: Split | None,
    bound: tuple[float, str],
    run: Run,
) -> LatencySolution:
    """Answer with what a solver found, and the better of two bounds."""
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
    from dnnp.core.solver.cpsat_program import TickProgram

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
