"""Search by programs that are solved slice after slice, each time for longer.

Each slice starts from the best solution so far, which also bounds the objective from above; an
interrupt or a crash costs the last slice only. `ask` is for one program; a `Relaxation` is a linear
program that grows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from dnnp.core.cost.load_formula import snapped
from dnnp.core.model.errors import (
    FormatError,
    InfeasibleError,
    LimitError,
    UnavailableError,
    UsageError,
)
from dnnp.core.model.search_context import PLAIN, SearchContext
from dnnp.core.solver.child import SolverProcess, solver_process
from dnnp.core.solver.program import TOLERANCES, Outcome, Program, Row, SparseProgram

T = TypeVar("T")

SOLVERS = ("cbc", "highs")

ATTEMPTS = 2
"""A solver that crashed is asked once more: CBC aborts now and then on a busy machine."""

SAFETY = 1e-6
"""Share of the reference load by which a solver's bound may be wrong."""

FIRST_SLICE_S = 5.0
BLIND_SLICE_S = 1.0
"""The first slice when no solution is known: any one makes the next one faster."""

GROWTH = 3.0
"""Ratio of the lengths of a slice and the one before."""

GRACE_S, GRACE = 0.5, 0.05
"""Time before the limit at which a solver is told to end, and as a share of what is left; at
the limit it is killed, so that what is known gets out in time."""

MAX_ENTRIES = 2_000_000
"""Size of a program that may take a minute to build and to read."""

COARSE = 4.0
"""A reference this many times the value found is too coarse for the bound."""

S = TypeVar("S")

HASTE = 2.0
"""No further program is written in less time than this many times that of the one before."""

KILL_S = 2.0
"""Time after its limit at which a solver is killed."""

SHARE = 0.8


class Slices:
    """Slices of one solver, `cbc` or `highs`, in one process."""

    def __init__(self, solver: str, process: SolverProcess, run: SearchContext) -> None:
        self.solver, self.process, self.run = solver, process, run
        self.slice_s = 0.0
        """The last one."""

    def solve(
        self,
        program: Program,
        start: list[float] | None,
        tops: Sequence[int],
        *,
        blind: bool,
        presolve: tuple[bool, ...] = (True, True),
    ) -> Outcome:
        """Solve one slice; an infeasible program is solved twice, with other tolerances.

        Parameters
        ----------
        start
            Values of all columns in a solution that is known.
        tops
            Columns whose sum is minimised; the second time they may be 0.
        blind
            Whether no solution of the problem is known.
        presolve
            For HiGHS, each time.
        """
        outcome = Outcome("limit")
        for tolerance, presolved in zip(TOLERANCES, presolve, strict=True):
            seconds, patience = self.times(blind=blind)
            request = self.solver, program, start, seconds, tolerance, presolved
            outcome = self.process.ask(
                "solve", *request, patience=patience, stop=self.run.interrupted
            )
            if outcome.status != "infeasible":
                return outcome
            for top in tops:
                program.lower[top] = 0.0
        if start is not None:
            return Outcome("failed", reason="it finds no solution, but there is one")
        return outcome

    def times(self, *, blind: bool) -> tuple[float | None, float | None]:
        """Seconds that the solver is given next, and after which it is killed."""
        first = BLIND_SLICE_S if blind else FIRST_SLICE_S
        seconds = self.slice_s = max(self.slice_s * GROWTH, first)
        left = self.run.time_left()
        if left is None:
            return seconds, None
        if seconds > left / 2:
            seconds = max(left - min(max(GRACE_S, GRACE * left), left / 3), 0.01)
        return seconds, left


def refuse_unknown(solver: str) -> None:
    """Raise UsageError if there is no such solver."""
    if solver not in SOLVERS:
        raise UsageError(f"'{solver}' is not a solver; there are {', '.join(SOLVERS)}")


def attempted(
    work: Callable[[SolverProcess], T],
    failed: Callable[[T], object],
    run: SearchContext,
    kind: str = "mip",
) -> T:
    """Work with a solver process; a second time if it `failed`."""
    for _ in range(ATTEMPTS):
        with solver_process(kind) as process:
            result = work(process)
        if not failed(result) or run.stop():
            break
    return result


def missing(solver: str, reason: str) -> str:
    """Say what to install where a worker lacks what it gives as the reason."""
    if solver != "highs":
        return f"the solver CBC cannot be loaded: {reason}"
    fault = "is not installed"
    if reason.startswith("highspy"):
        fault = f"cannot be called: {reason} does not export its C functions, 1.9 to 1.15 do"
    return f"the solver HiGHS {fault}: pip install 'dnnp[highs]'"


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


class Written(Protocol):
    """A program, written for a search."""

    @property
    def program(self) -> Program:
        """The program for the solver."""

    @property
    def tops(self) -> Sequence[int]:
        """Columns whose sum is minimised."""

    @property
    def hopeless(self) -> bool:
        """True if there is no solution, which is seen without a solver."""


class SliceSearch(Generic[S]):
    """Search for the least value of a problem.

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
        """The reason why it ended early, if it was no limit and no interrupt."""
        self.asked = False
        """The solver was given a program."""

    @property
    def presolve(self) -> tuple[bool, ...]:
        """Presolve of HiGHS with each of the tolerances."""
        return True, True

    def write(self) -> Written | None:
        """The program of all that is not worse than the best solution; None: it is too large."""
        raise NotImplementedError

    def start(self, written: Any) -> list[float] | None:
        """The best solution in columns of a program; None if there is none."""
        raise NotImplementedError

    def take(self, written: Any, outcome: Outcome) -> bool | None:
        """Learn from an outcome; whether the search is closed by it, None if it goes on."""
        raise NotImplementedError

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

    def refuses(self, size: int, kind: str = "an integer program") -> bool:
        """Refuse a program with more than `MAX_ENTRIES` numbers; true if it is too large."""
        too_large = size > MAX_ENTRIES
        if too_large:
            self.failure = (
                f"{kind} with about {size} numbers is too large; coarsen first, "
                "or offer fewer devices"
            )
        return too_large


@dataclass(frozen=True)
class SearchResult(Generic[S]):
    """Result of a search by programs."""

    solution: S | None
    """The best solution known, perhaps the given one."""
    value: float
    """Its value; inf if there is none."""
    bound: float
    """Proven lower bound of the values of all solutions."""
    status: str
    """`optimal`, `feasible`, or `limit`: no solution is known yet."""
    solver: str
    failure: str = ""
    """Reason for an early end other than a limit or an interrupt."""
    asked: bool = True
    """True: the solver was given a program; otherwise the given solution did not need one, or the
    program was too large or too late."""


def result_of(
    best: Best[S], bound: float, solver: str, failure: str, *, asked: bool, closed: bool, what: str
) -> SearchResult[S]:
    """Result of a search for the least value of `what`, which is `closed` or ended early.

    Raises
    ------
    InfeasibleError
        It is proven that there is no solution.
    LimitError
        The solver failed before any solution was known.
    """
    if best.solution is None and closed:
        raise InfeasibleError(f"infeasible: no {what} fits the devices offered")
    if best.solution is None and failure:
        raise LimitError(failure)
    status = "limit" if best.solution is None else "optimal" if closed else "feasible"
    low = min(bound, best.value)
    return SearchResult(best.solution, best.value, low, status, solver, failure, asked)


def solve_slices(search: SliceSearch[S], slices: Slices) -> bool:
    """Solve until nothing is left to find, or to the end; whether it is closed.

    Raises UnavailableError: the solver is not installed.
    """
    took = 0.0
    while search.best.value > search.low:
        left = slices.run.time_left()
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
            run.report_incumbent(best.solution, best.value, "ip")
        run.report_progress(value=best.value, bound=search.low, by=slices.solver)
        if closed is not None:
            return closed
        if outcome.status == "failed":
            search.failure = f"the solver {slices.solver} failed: {outcome.reason}"
        if outcome.status == "failed" or not slices.process.alive:
            return False
    return True


def ask(
    program: Program,
    *,
    seconds: float | None = None,
    patience: float,
    tolerance: float = TOLERANCES[0],
    run: SearchContext = PLAIN,
) -> Outcome:
    """Solve a program with CBC.

    It is told to end after `seconds` (None: never, so that the answer does not depend on time), and
    killed a little after `patience`.
    """

    def work(process: SolverProcess) -> Outcome:
        request = "cbc", program, None, seconds, tolerance
        return process.ask("solve", *request, patience=patience + KILL_S, stop=run.stop)

    return attempted(work, lambda outcome: outcome.status == "failed", run)


def ask_sparse(
    program: SparseProgram,
    *,
    seconds: float | None = None,
    patience: float,
    run: SearchContext = PLAIN,
    **options: float,
) -> Outcome:
    """Solve a sparse program with scipy's HiGHS and options of its `milp`; see `ask`.

    Of the time that the run has left it may take `SHARE`: what goes on from its answer, or does
    without, needs the rest.
    """
    run = run.part(SHARE)

    def work(process: SolverProcess) -> Outcome:
        return process.ask(
            "sparse", program, seconds, options, patience=patience + KILL_S, stop=run.stop
        )

    return attempted(work, lambda outcome: outcome.status == "failed", run, "sparse")


class Relaxation:
    """One linear program.

    Parameters
    ----------
    process
        The process that solves it, and nothing else meanwhile.
    solver
        `cbc` or `highs`.
    run
        When to give up.
    """

    def __init__(self, process: SolverProcess, solver: str, run: SearchContext) -> None:
        self.process, self.solver, self.run = process, solver, run
        self.outcome = Outcome("limit")
        """Result of the last solve."""

    def begin(self, program: Program) -> Outcome:
        """Solve a program, and forget the one before.

        Raises UnavailableError: the solver is not installed.
        """
        self.outcome = self.process.ask("relax", self.solver, program, stop=self.run.stop)
        if self.outcome.status == "missing":
            raise UnavailableError(missing(self.solver, self.outcome.reason))
        return self.outcome

    def refine(
        self, rows: Sequence[Row], closed: Sequence[int] = (), dropped: Sequence[int] = ()
    ) -> Outcome:
        """Solve it with more rows, with the `closed` columns at 0, without the rows `dropped`."""
        self.outcome = self.process.ask("refine", rows, closed, dropped, stop=self.run.stop)
        return self.outcome

    @property
    def solved(self) -> bool:
        """True if there is a solution."""
        return self.outcome.status == "optimal"

    @property
    def failure(self) -> str:
        """The reason why the solver gave no answer, if it was no limit."""
        if self.outcome.status in ("optimal", "limit"):
            return ""
        return f"the solver {self.solver}: {self.outcome.reason or self.outcome.status}"
