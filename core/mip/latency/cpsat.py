"""Least latency by constraint programming (CP-SAT, the optional extra `cpsat`).

The scheduling models of `blocks` and `moirai`, with intervals that do not overlap in
place of big-M. The solver runs in a process of its own and tells every better solution and bound
as soon as it has it, so that a limit, an interrupt or a crash loses nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from dnnp.core.cost.invocations import Invocations
from dnnp.core.cost.latency import LatencyProblem
from dnnp.core.cost.timeline import Placement
from dnnp.core.mip.child import SolverProcess, solver_process
from dnnp.core.mip.latency.block_model import BlockProgram
from dnnp.core.mip.latency.cpsat_program import TickProgram
from dnnp.core.mip.latency.loop import ExactResult, Formulation, Search
from dnnp.core.mip.latency.placement_model import PlacementProgram
from dnnp.core.mip.program import Outcome
from dnnp.core.mip.split.loop import COARSE, GRACE_S, MAX_ENTRIES, SAFETY
from dnnp.core.mip.split.solve import ATTEMPTS
from dnnp.core.model.errors import UnavailableError

S = TypeVar("S")

THREADS = 8
"""Searches that the solver runs side by side; fewer than that, and it leaves out kinds of them."""


def cpsat_blocks(
    problem: LatencyProblem,
    *,
    start: Invocations | None = None,
    bound: float = 0.0,
    seconds: float | None = None,
    threads: int = THREADS,
    seed: int = 0,
    stop: Callable[[], bool] = lambda: False,
) -> ExactResult[Invocations]:
    """Find the split into blocks with the least latency; see `solve_intervals`."""
    return solve_intervals(
        BlockProgram(problem),
        start=start,
        bound=bound,
        seconds=seconds,
        threads=threads,
        seed=seed,
        stop=stop,
    )


def cpsat_operators(
    problem: LatencyProblem,
    *,
    start: Placement | None = None,
    bound: float = 0.0,
    seconds: float | None = None,
    threads: int = THREADS,
    seed: int = 0,
    stop: Callable[[], bool] = lambda: False,
) -> ExactResult[Placement]:
    """Find the placement with the least latency; see `solve_intervals`."""
    return solve_intervals(
        PlacementProgram(problem),
        start=start,
        bound=bound,
        seconds=seconds,
        threads=threads,
        seed=seed,
        stop=stop,
    )


def solve_intervals(
    formulation: Formulation[S],
    *,
    start: S | None = None,
    bound: float = 0.0,
    seconds: float | None = None,
    threads: int = THREADS,
    seed: int = 0,
    stop: Callable[[], bool] = lambda: False,
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
    seconds
        Time limit; None: until it is solved.
    threads, seed
        Of the solver. The solution of least latency is found for any of them, if time allows;
        which one of several may depend on them.
    stop
        Asked about twenty times a second: whether to end with what there is.

    Raises
    ------
    InfeasibleError
        It is proven that there is no solution.
    LimitError
        The solver failed before any solution was known.
    UnavailableError
        ortools is not installed.
    """
    end = None if seconds is None else time.monotonic() + seconds
    search = Search(formulation, start, bound)
    closed = False
    for _ in range(ATTEMPTS):
        search.failure = ""
        with solver_process("cpsat") as process:
            closed = _run(search, process, end, threads, seed, stop)
        if not search.failure or stop():
            break
    return search.result("cpsat", closed)


def _run(
    search: Search[S],
    process: SolverProcess,
    end: float | None,
    threads: int,
    seed: int,
    stop: Callable[[], bool],
) -> bool:
    """Solve until nothing is left to find, or to the end; whether it is closed."""
    while search.value > search.low:
        model = search.formulation.model(search.upper)
        model.raise_least(search.low)
        if model.entries > MAX_ENTRIES:
            search.failure = (
                f"a constraint program with about {model.entries} numbers is too large; "
                "coarsen first, or offer fewer devices"
            )
            return False
        if model.hopeless:
            if search.best is not None:
                search.raise_bound(search.value * (1 - SAFETY))
            return True
        program = TickProgram(model, search.formulation.quantum)
        hint = None
        if search.best is not None:
            known = search.formulation.known(search.best)
            hint = None if known is None else program.start(*model.start(known))
        left = None if end is None else end - time.monotonic()
        if stop() or (left is not None and left <= 0):
            return False

        def take(outcome: Outcome, model=model, program=program) -> bool:  # type: ignore[no-untyped-def]
            """Take over what the solver says; whether its solution can be used."""
            if np.isfinite(outcome.bound):
                search.raise_bound(program.seconds(outcome.bound))
            if outcome.values is None:
                return True
            values = [round(value) for value in outcome.values]
            solution = search.formulation.solution(model, *program.split(values))
            if solution is None:
                return False
            search.offer(solution)
            return True

        search.asked = True
        outcome = process.cpsat(
            program.program,
            hint,
            left,
            threads,
            seed,
            news=take,
            patience=None if left is None else left + GRACE_S,
            stop=stop,
        )
        if outcome.status == "missing":
            raise UnavailableError("CP-SAT is not installed: pip install 'dnnp[cpsat]'")
        if outcome.status == "infeasible":
            if hint is not None:
                search.failure = "the solver CP-SAT finds no solution, but there is one"
                return False
            if search.best is not None:
                search.raise_bound(search.value * (1 - SAFETY))
            return True
        usable = outcome.status != "failed" and take(outcome)
        if outcome.status == "failed":
            search.failure = f"the solver CP-SAT failed: {outcome.reason}"
        if outcome.status == "optimal" and not usable:
            continue  # the model has learned why
        near = search.value <= search.low + 2 * SAFETY * search.value
        if outcome.status == "optimal" and not near and model.upper > COARSE * search.value:
            continue  # with finer ticks
        return outcome.status == "optimal" and near
    return True
