"""Slices of solving the integer program of a scheduling model.

Where pairs of spans that may meet are too many, rows that keep them apart are lazy: each solution
says which ones are missing, and every program without them is a relaxation, whose bound holds.

Each slice starts from the best solution so far, which also bounds the latency from above: the
windows of all times, and with them every big-M, get tighter. An interrupt or a crash costs the
last slice only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from dnnp.core.cost.combine import ROUNDING
from dnnp.core.cost.latency import Split
from dnnp.core.mip.child import SolverProcess
from dnnp.core.mip.latency.formulation import Formulation
from dnnp.core.mip.latency.meetings import Pair, count_meetings, overlaps
from dnnp.core.mip.latency.program import LatencyProgram
from dnnp.core.mip.program import Outcome
from dnnp.core.mip.search import Best, SliceSearch, solve_slices, status_of
from dnnp.core.mip.slices import COARSE, SAFETY, Slices, attempted, refuse_unknown
from dnnp.core.model.run import PLAIN, Run

S = TypeVar("S", bound=Split)

PAIR_ENTRIES = 10
"""Numbers that two spans in a lane lead to."""

EAGER_ENTRIES = 2_000_000
"""Numbers up to which a program has rows for all pairs."""

MOST_ENTRIES = 20_000_000
"""Numbers of the largest program that is built. With lazy rows it stands for one of any number of
pairs. 68,661 operators on four devices, the largest graph of Moirai's paper, make 19.2 million:
45 s of processor time and five gigabytes in this process, before the solver's own begin."""

ASKED_TWICE = ("highs",)
"""Solvers whose proofs are checked by a second one: about one in 500 of HiGHS 1.15.1's for small
programs is wrong. The second is that of the tighter program around the solution found, without
presolve."""


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


class ModelSearch(SliceSearch[S]):
    """The search for the solution of least latency."""

    def __init__(self, formulation: Formulation[S], start: S | None, bound: float = 0.0) -> None:
        low = max(formulation.least * (1 - ROUNDING), bound)
        super().__init__(Best(formulation.value), formulation.quantum, low)
        self.formulation = formulation
        if start is not None:
            self.best.offer(start)

    @property
    def upper(self) -> float:
        """A latency that the solutions of interest do not exceed."""
        return self.best.value if np.isfinite(self.best.value) else self.formulation.crude

    def known(self) -> object | None:
        """The best solution as the rules of the model take it; None if there is none."""
        solution = self.best.solution
        return None if solution is None else self.formulation.known(solution)

    def result(self, solver: str, *, closed: bool) -> ExactResult[S]:
        """What there is to say; for the errors see `status_of`."""
        best, nothing = self.best, "no placement fits the devices offered"
        status = status_of(best, self.failure, closed=closed, nothing=nothing)
        bound = min(self.low, best.value)
        return ExactResult(
            best.solution, best.value, bound, status, solver, self.failure, self.asked
        )


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
    refuse_unknown(solver)
    search = _Programs(formulation, start, bound, solver)

    def work(process: SolverProcess) -> bool:
        search.failure, search.again = "", False
        return solve_slices(search, Slices(solver, process, run))

    closed = attempted(work, lambda _: search.failure, run)
    return search.result(solver, closed=closed)


class _Programs(ModelSearch[S]):
    """The search by integer programs."""

    def __init__(
        self, formulation: Formulation[S], start: S | None, bound: float, solver: str
    ) -> None:
        super().__init__(formulation, start, bound)
        self.solver = solver
        self.again = False
        """Whether a proof is checked."""
        self.lazy: set[Pair] = set()
        """Pairs that a program with lazy rows keeps apart."""

    @property
    def presolve(self) -> tuple[bool, ...]:
        return not self.again, False

    def write(self) -> LatencyProgram | None:
        model = self.formulation.model(self.upper)
        model.raise_least(self.low)
        entries = model.entries
        if entries + PAIR_ENTRIES * count_meetings(model) <= EAGER_ENTRIES:
            return LatencyProgram(model)
        entries += PAIR_ENTRIES * len(self.lazy)
        too_large = self.refuses(entries, most=MOST_ENTRIES)
        return None if too_large else LatencyProgram(model, self.lazy)

    def start(self, written: LatencyProgram) -> list[float] | None:
        known = self.known()
        return None if known is None else written.start(*written.model.start(known))

    def take(self, written: LatencyProgram, outcome: Outcome) -> bool | None:
        proven = outcome.status == "optimal"
        trusted = not proven or self.again or self.solver not in ASKED_TWICE
        if trusted:
            self.take_bound(outcome.bound, written.scale)
        if outcome.values is None:
            return None
        solution = self.formulation.solution(written.model, *written.split(outcome.values))
        if solution is None:
            return None
        value = self.best.offer(solution)
        if written.kept is not None:
            times, flags = written.split(outcome.values)
            missing = overlaps(written.model, times, flags, SAFETY * written.scale) - self.lazy
            if missing:
                self.lazy |= missing
                return None
        better = value < written.model.upper * (1 - SAFETY)
        if proven and trusted and not (better and self._ask_again(written)):
            least = min(value, self.best.value)
            return least <= (outcome.bound + 2 * SAFETY) * written.scale
        self.again = proven or (self.again and not better)
        return None

    def _ask_again(self, written: LatencyProgram) -> bool:
        """Whether the proof of a better solution does not do: the solver's, or in this scale."""
        coarse = 0 < COARSE * self.best.value < written.scale
        return coarse or self.solver in ASKED_TWICE
