"""A linear program that grows: solved again and again, each time from the last basis."""

from __future__ import annotations

from collections.abc import Sequence

from dnnp.core.model.errors import UnavailableError
from dnnp.core.model.search_context import Run
from dnnp.core.solver.child import SolverProcess
from dnnp.core.solver.program import Outcome, Program, Row
from dnnp.core.solver.slices import missing


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

    def __init__(self, process: SolverProcess, solver: str, run: Run) -> None:
        self.process, self.solver, self.run = process, solver, run
        self.outcome = Outcome("limit")
        """What the last solve gave."""

    def begin(self, program: Program) -> Outcome:
        """Solve a program, and forget the one before.

        Raises
        ------
        UnavailableError
            The solver is not installed.
        """
        self.outcome = self.process.relax(self.solver, program, stop=self.run.stop)
        if self.outcome.status == "missing":
            raise UnavailableError(missing(self.solver, self.outcome.reason))
        return self.outcome

    def refine(
        self, rows: Sequence[Row], closed: Sequence[int] = (), dropped: Sequence[int] = ()
    ) -> Outcome:
        """Solve it with more rows, with the `closed` columns at 0, without the rows `dropped`."""
        self.outcome = self.process.refine(rows, closed, dropped, stop=self.run.stop)
        return self.outcome

    @property
    def solved(self) -> bool:
        """Whether there is a solution."""
        return self.outcome.status == "optimal"

    @property
    def failure(self) -> str:
        """Why the solver gave no answer, if it was no limit."""
        if self.outcome.status in ("optimal", "limit"):
            return ""
        return f"the solver {self.solver}: {self.outcome.reason or self.outcome.status}"
