"""The best solution so far and what is proven, by programs that are solved slice after slice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic
from typing import Generic, Protocol, TypeVar

import numpy as np

from dnnp.core.cost.divisor import snapped
from dnnp.core.model.errors import FormatError, InfeasibleError, LimitError, UnavailableError
from dnnp.core.solver.program import Outcome, Program
from dnnp.core.solver.slices import MAX_ENTRIES, SAFETY, Slices, missing

S = TypeVar("S")


HASTE = 2.0
"""No further program is written in less time than this many times that of the one before."""


class Best(Generic[S]):
    """The best solution so far.

    Parameters
    ----------
    judge
        What the cost model says of a solution; FormatError or InfeasibleError if it is not valid.
    """

    def __init__(self, judge: Callable[[S], float]) -> None:
        self.judge = judge
        self.solution: S | None = None
        self.value = np.inf

    def offer(self, solution: S) -> float:
        """Take a solution if it is valid and better; return its value, inf if it is invalid."""
        try:
            value = self.judge(solution)
        except (FormatError, InfeasibleError):
            return np.inf
        if value < self.value:
            self.solution, self.value = solution, value
        return value


class SliceSearch(Generic[S]):
    """What is known of the least value of a problem.

    Parameters
    ----------
    best
        Which solutions there are; it may belong to several searches.
    quantum
        A number of which all values are multiples; 0: none is known.
    low
        What is proven already: no solution has a smaller value.
    """

    def __init__(self, best: Best[S], quantum: float, low: float = 0.0) -> None:
        self.best, self.quantum, self.low = best, quantum, low
        self.failure = ""
        """Why it ended early, if it was no limit and no interrupt."""
        self.asked = False
        """Whether the solver was given anything."""

    def raise_bound(self, low: float) -> None:
        """Take over a lower bound, rounded up where values are multiples of a number."""
        self.low = max(self.low, snapped(low, self.quantum))

    def take_bound(self, bound: float, scale: float) -> None:
        """Take over what a solver says in units of `scale`; above the upper limit, which is 1, it
        means nothing."""
        if bound <= 1 + SAFETY:
            self.raise_bound((bound - SAFETY) * scale)

    def exhausted(self) -> None:
        """Take over that no solution is as good as the best one, or that there is none."""
        self.raise_bound(self.best.value * (1 - SAFETY))

    def refuses(
        self, size: int, kind: str = "an integer program", *, most: int | None = None
    ) -> bool:
        """Whether a program with so many numbers is too large: more than `most`, or the usual."""
        too_large = size > (MAX_ENTRIES if most is None else most)
        if too_large:
            self.failure = (
                f"{kind} with about {size} numbers is too large; coarsen first, "
                "or offer fewer devices"
            )
        return too_large


def status_of(best: Best[S], failure: str, *, closed: bool, nothing: str) -> str:
    """`optimal`, `feasible`, or `limit`: no solution is known yet.

    Raises
    ------
    InfeasibleError
        It is proven that there is `nothing`.
    LimitError
        The solver failed before any solution was known.
    """
    if best.solution is None and closed:
        raise InfeasibleError(f"infeasible: {nothing}")
    if best.solution is None and failure:
        raise LimitError(failure)
    return "limit" if best.solution is None else "optimal" if closed else "feasible"


class Written(Protocol):
    """A program, written for a search."""

    @property
    def program(self) -> Program:
        """What the solver is given."""

    @property
    def tops(self) -> Sequence[int]:
        """Columns whose sum is minimised."""

    @property
    def hopeless(self) -> bool:
        """Whether it is seen without a solver that there is no solution."""


W = TypeVar("W", bound=Written)


class Sliced(Protocol[S, W]):
    """A `SliceSearch` that writes the programs it needs."""

    best: Best[S]
    low: float
    failure: str
    asked: bool

    @property
    def presolve(self) -> tuple[bool, ...]:
        """For HiGHS, with each of the tolerances."""

    def write(self) -> W | None:
        """The program of all that is not worse than the best solution; None: it is too large."""

    def start(self, written: W) -> list[float] | None:
        """The best solution in columns of a program; None if there is none."""

    def take(self, written: W, outcome: Outcome) -> bool | None:
        """Learn from an outcome; whether the search is closed by it, None if it goes on."""

    def exhausted(self) -> None:
        """Take over that no solution is as good as the best one, or that there is none."""


def solve_slices(search: Sliced[S, W], slices: Slices) -> bool:
    """Solve until nothing is left to find, or to the end; whether it is closed.

    Raises
    ------
    UnavailableError
        The solver is not installed.
    """
    took = 0.0
    while search.best.value > search.low:
        left = slices.run.left()
        if left is not None and left < HASTE * took:
            return False
        begin = monotonic()
        written = search.write()
        took = monotonic() - begin
        if written is None or slices.run.stop():
            return False
        outcome = Outcome("infeasible")
        if not written.hopeless:
            search.asked = True
            outcome = slices.solve(
                written.program,
                search.start(written),
                written.tops,
                blind=not np.isfinite(search.best.value),
                presolve=search.presolve,
            )
        if outcome.status == "missing":
            raise UnavailableError(missing(slices.solver, outcome.reason))
        if outcome.status == "infeasible":
            search.exhausted()
            return True
        closed = search.take(written, outcome)
        best, run = search.best, slices.run
        if best.solution is not None:
            run.keep(best.solution, best.value, "ip")
        run.stands(value=best.value, bound=search.low, by=slices.solver)
        if closed is not None:
            return closed
        if outcome.status == "failed":
            search.failure = f"the solver {slices.solver} failed: {outcome.reason}"
        if outcome.status == "failed" or not slices.process.alive:
            return False
    return True
