"""Slices of solving the integer program of a scheduling model.

Each slice starts from the best solution so far, which also bounds the latency from above: the
windows of all times, and with them every big-M, get tighter. An interrupt or a crash costs the
last slice only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np

from dnnp.core.cost.combine import ROUNDING
from dnnp.core.cost.divisor import snapped
from dnnp.core.mip.child import SolverProcess, solver_process
from dnnp.core.mip.latency.model import Model
from dnnp.core.mip.latency.program import LatencyProgram
from dnnp.core.mip.program import TOLERANCES, Outcome
from dnnp.core.mip.split.loop import (
    BLIND_SLICE_S,
    COARSE,
    FIRST_SLICE_S,
    GRACE_S,
    GROWTH,
    MAX_ENTRIES,
    SAFETY,
    missing,
)
from dnnp.core.mip.split.solve import ATTEMPTS, SOLVERS
from dnnp.core.model.errors import (
    FormatError,
    InfeasibleError,
    LimitError,
    UnavailableError,
    UsageError,
)
from dnnp.core.model.run import PLAIN, Run

S = TypeVar("S")

PAIR_ENTRIES = 10
"""Numbers that two spans in a lane lead to."""

ASKED_TWICE = ("highs",)
"""Solvers whose proofs are checked by a second one: about one in 500 of HiGHS 1.15.1's for small
programs is wrong. The second is that of the tighter program around the solution found, without
presolve."""


class Formulation(Protocol[S]):
    """A kind of problem that has a scheduling model."""

    @property
    def crude(self) -> float:
        """A latency that some solution does not exceed, if there is one."""

    @property
    def least(self) -> float:
        """No solution has a smaller latency."""

    @property
    def quantum(self) -> float:
        """A number of which all latencies are multiples; 0: none is known."""

    def value(self, solution: S) -> float:
        """Latency of a solution; FormatError or InfeasibleError if it is not valid."""

    def model(self, upper: float) -> Model:
        """The model of all solutions with a latency of at most `upper`."""

    def known(self, solution: S) -> object | None:
        """A solution as the rules of the model take it; None if the model has no such one."""

    def solution(self, model: Model, times: Sequence[float], flags: Sequence[float]) -> S | None:
        """What values of the model stand for; None if it has to be solved again without them."""


@dataclass(frozen=True)
class ExactResult(Generic[S]):
    """What an exact model found."""

    split: S | None
    """The best solution known, be it the one that was given."""
    value: float
    """Its latency; inf if there is none."""
    bound: float
    """Proven lower bound of the latency."""
    status: str
    """`optimal`, `feasible`, or `limit`: no solution is known yet."""
    solver: str
    failure: str = ""
    """Why the search ended early, if it was no limit and no interrupt."""
    asked: bool = True
    """Whether the solver was given anything."""


class Search(Generic[S]):
    """The best solution so far, and what is proven."""

    def __init__(self, formulation: Formulation[S], start: S | None, bound: float = 0.0) -> None:
        self.formulation = formulation
        self.best: S | None = None
        self.value = np.inf
        self.low = max(formulation.least * (1 - ROUNDING), bound)
        self.failure = ""
        self.asked = False
        """Whether the solver was given anything."""
        if start is not None:
            self.offer(start)

    def offer(self, solution: S) -> float:
        """Take a solution if it is valid and better; its latency, inf if it is invalid."""
        try:
            value = self.formulation.value(solution)
        except (FormatError, InfeasibleError):
            return float("inf")
        if value < self.value:
            self.best, self.value = solution, value
        return value

    def raise_bound(self, low: float) -> None:
        """Take over a lower bound, rounded up where latencies are multiples of a number."""
        self.low = max(self.low, snapped(low, self.formulation.quantum))

    @property
    def upper(self) -> float:
        """A latency that the solutions of interest do not exceed."""
        return self.value if np.isfinite(self.value) else self.formulation.crude

    def result(self, solver: str, closed: bool) -> ExactResult[S]:
        """What there is to say; InfeasibleError if it is that there is nothing."""
        if self.best is None and closed:
            raise InfeasibleError("infeasible: no placement fits the devices offered")
        if self.best is None and self.failure:
            raise LimitError(self.failure)
        status = "limit" if self.best is None else "optimal" if closed else "feasible"
        bound = min(self.low, self.value)
        return ExactResult(self.best, self.value, bound, status, solver, self.failure, self.asked)


def solve_model(
    formulation: Formulation[S],
    *,
    solver: str = "cbc",
    start: S | None = None,
    bound: float = 0.0,
    run: Run = PLAIN,
) -> ExactResult[S]:
    """Solve a scheduling model by integer programming.

    Parameters
    ----------
    formulation
        The problem.
    solver
        `cbc` or `highs`.
    start
        A solution to start from; one that is invalid is not used.
    bound
        What is proven already: no solution has a smaller latency.
    run
        Asked about twenty times a second whether to end with what there is.

    Raises
    ------
    UsageError
        There is no such solver.
    InfeasibleError
        It is proven that there is no solution.
    LimitError
        The solver failed before any solution was known.
    UnavailableError
        The solver is not installed.
    """
    if solver not in SOLVERS:
        raise UsageError(f"'{solver}' is not a solver; there are {', '.join(SOLVERS)}")
    search = Search(formulation, start, bound)
    closed = False
    for _ in range(ATTEMPTS):
        search.failure = ""
        with solver_process() as process:
            closed = _Slices(search, solver, process, run).solve()
        if not search.failure or run.stop():
            break
    return search.result(solver, closed)


class _Slices(Generic[S]):
    def __init__(self, search: Search[S], solver: str, process: SolverProcess, run: Run) -> None:
        self.search, self.solver, self.process, self.run = search, solver, process, run
        self.slice = 0.0
        self.again = False
        """Whether a proof is checked."""

    def solve(self) -> bool:
        """Solve until nothing is left to find, or to the end; whether it is closed."""
        search = self.search
        while search.value > search.low:
            upper = search.upper
            model = search.formulation.model(upper)
            model.raise_least(search.low)
            size = model.entries + PAIR_ENTRIES * model.pairs
            if size > MAX_ENTRIES:
                search.failure = (
                    f"an integer program with about {size} numbers is too large; "
                    "coarsen first, or offer fewer devices"
                )
                return False
            program = LatencyProgram(model)
            if self.run.stop():
                return False
            outcome = Outcome("infeasible") if model.hopeless else self._solve(model, program)
            if outcome.status == "missing":
                raise UnavailableError(missing(self.solver, outcome.reason))
            if outcome.status == "infeasible":
                if search.best is not None:
                    search.raise_bound(search.value * (1 - SAFETY))
                return True
            proven = outcome.status == "optimal"
            trusted = not proven or self.again or self.solver not in ASKED_TWICE
            if trusted and outcome.bound <= 1 + SAFETY:
                search.raise_bound((outcome.bound - SAFETY) * program.scale)
            if outcome.values is not None:
                solution = search.formulation.solution(model, *program.split(outcome.values))
                if solution is not None:
                    value = search.offer(solution)
                    better = value < upper * (1 - SAFETY)
                    if proven and trusted and not (better and self._ask_again(program)):
                        least = min(value, search.value)
                        return least <= (outcome.bound + 2 * SAFETY) * program.scale
                    self.again = proven or (self.again and not better)
            if outcome.status == "failed":
                search.failure = f"the solver {self.solver} failed: {outcome.reason}"
            if outcome.status == "failed" or not self.process.alive:
                return False
        return True

    def _ask_again(self, program: LatencyProgram) -> bool:
        """Whether the proof of a better solution does not do: the solver's, or in this scale."""
        coarse = 0 < COARSE * self.search.value < program.scale
        return coarse or self.solver in ASKED_TWICE

    def _solve(self, model: Model, program: LatencyProgram) -> Outcome:
        """One slice. That there is no solution is asked twice, with other tolerances."""
        start = None
        if self.search.best is not None:
            known = self.search.formulation.known(self.search.best)
            start = None if known is None else program.start(*model.start(known))
        self.search.asked = True
        for tolerance in TOLERANCES:
            seconds, patience = self._times()
            outcome = self.process.solve(
                self.solver,
                program.program,
                start,
                seconds,
                tolerance,
                patience=patience,
                stop=self.run.stop,
                presolve=not self.again and tolerance == TOLERANCES[0],
            )
            if outcome.status != "infeasible":
                return outcome
            program.program.lower[0] = 0.0
        if start is not None:
            return Outcome("failed", reason="it finds no solution, but there is one")
        return outcome

    def _times(self) -> tuple[float | None, float | None]:
        """Seconds that the solver is given next, and after which it is killed."""
        first = FIRST_SLICE_S if np.isfinite(self.search.value) else BLIND_SLICE_S
        seconds = self.slice = max(self.slice * GROWTH, first)
        left = self.run.left()
        if left is None:
            return seconds, None
        if seconds > left / 2:
            seconds = max(left - min(GRACE_S, left / 3), 0.01)
        return seconds, left + GRACE_S
