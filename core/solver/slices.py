"""Slices of solving: how a solver is asked again and again, each time for longer.

Each slice starts from the best solution so far, which also bounds the objective from above; an
interrupt or a crash costs the last slice only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from dnnp.core.model.errors import UsageError
from dnnp.core.model.search_context import Run
from dnnp.core.solver.child import SolverProcess, solver_process
from dnnp.core.solver.program import TOLERANCES, Outcome, Program

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
"""How much longer each slice is than the one before."""

GRACE_S, GRACE = 0.5, 0.05
"""How long before the limit a solver is told to end, at least, and as a share of what is left; at
the limit it is killed, so that what is known gets out in time."""

MAX_ENTRIES = 2_000_000
"""Size of a program that may take a minute to build and to read."""

COARSE = 4.0
"""A reference this many times the value found is too coarse for the bound."""


class Slices:
    """Slices of one solver, `cbc` or `highs`, in one process."""

    def __init__(self, solver: str, process: SolverProcess, run: Run) -> None:
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
        """One slice. That there is no solution is asked twice, with other tolerances.

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
            outcome = self.process.solve(
                self.solver,
                program,
                start,
                seconds,
                tolerance,
                patience=patience,
                stop=self.run.interrupted,
                presolve=presolved,
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
        left = self.run.left()
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
    work: Callable[[SolverProcess], T], failed: Callable[[T], object], run: Run, kind: str = "mip"
) -> T:
    """What comes of work with a solver process; where it `failed`, of a second attempt."""
    for _ in range(ATTEMPTS):
        with solver_process(kind) as process:
            result = work(process)
        if not failed(result) or run.stop():
            break
    return result


def missing(solver: str, reason: str) -> str:
    """What to install, where a worker lacks what it gives as the reason."""
    if solver != "highs":
        return f"the solver CBC cannot be loaded: {reason}"
    fault = "is not installed"
    if reason.startswith("highspy"):
        fault = f"cannot be called: {reason} does not export its C functions, 1.9 to 1.15 do"
    return f"the solver HiGHS {fault}: pip install 'dnnp[highs]'"
