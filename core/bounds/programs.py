"""The least optimum of several mixed-integer programs, bounded from below in a common time.

The program with the least bound so far is solved next, for a while: only that raises the least
bound of all. When it is solved to the end its optimum is the least one. Solutions of one program
limit the others from above.

A solver's bound is kept when it does not finish. It is lowered by a margin for the tolerances that
the solver works with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import monotonic

from dnnp.core.cost.divisor import snapped
from dnnp.core.cost.load_formula import ROUNDING
from dnnp.core.model.errors import UnavailableError
from dnnp.core.model.graph import Ints
from dnnp.core.model.search_context import Run
from dnnp.core.solver.child import solver_process
from dnnp.core.solver.program import TOLERANCES, Outcome
from dnnp.core.solver.slices import ATTEMPTS, GRACE_S, SAFETY, missing
from dnnp.core.split.ip.formulas import Formulas

FIRST_SLICE_S = 5.0
"""How long a program is solved at first, where there is one; an interrupt costs the last slice."""

SHORT_SLICE_S = 1.0
"""The same where there are several."""

GROWTH = 5.0
"""How much longer each slice of a program is than the one before."""

EARLY = 0.5
"""Share of a slice before which a solver has no reason to give up."""

LOOSE = 1e-6
"""By how much a solver's own solution may violate a row and still be a start."""


@dataclass
class Candidate:
    """One of the programs; loads are in units of the reference."""

    make: Callable[[float], Formulas]
    """The program of what is at most a load."""
    starts: Sequence[Ints] = ()
    """Blocks of the cells of known solutions."""
    low: float = 0.0
    """No solution is better."""
    best: list[float] | None = None
    """Values of the columns in the best solution found by the solver."""
    slice_s: float = 0.0
    closed: bool = False
    """Whether there is nothing left to learn."""
    failures: int = 0


@dataclass
class CandidateSearch:
    """Solve the candidates of a call.

    Parameters
    ----------
    solver
        `cbc` or `highs`.
    reference
        The load that counts as 1, seconds.
    upper
        Solutions above this are of no interest; in units of the reference.
    quantum
        A number of which all loads are multiples, seconds; 0: none is known.
    run
        When to end.
    found
        Told of every solution: the candidate, its program, the values of the columns. Returns
        what it is worth, or inf; that limits the programs from above.
    """

    solver: str
    reference: float
    upper: float
    quantum: float
    run: Run
    found: Callable[[Candidate, Formulas, Sequence[float]], float] | None = None
    failure: str = ""
    """What went wrong with the solver."""
    last: str = "none"
    """What the solver said last of the program with the least bound."""

    def least(self, candidates: Sequence[Candidate]) -> tuple[float, bool]:
        """Lower bound of the least optimum, seconds, and whether it is the optimum.

        It is at most `upper`.
        """
        while True:
            chosen = min(range(len(candidates)), key=lambda i: (candidates[i].low, i))
            c = candidates[chosen]
            if c.low >= self.upper * (1 - ROUNDING):
                return self.upper * self.reference, True
            if c.closed:
                return c.low * self.reference, c.failures < ATTEMPTS
            self.run.stands(bound=c.low * self.reference)
            if self.run.stop():
                return c.low * self.reference, False
            self._advance(c, len(candidates) == 1)

    def _advance(self, c: Candidate, single: bool) -> None:
        formulas = c.make(self.upper)
        if self.run.stop():
            return
        outcome = Outcome("infeasible")
        begun = monotonic()
        if not formulas.hopeless:
            outcome = self._solve(c, formulas, single)
        early = monotonic() - begun < c.slice_s * EARLY
        if outcome.status in ("limit", "feasible") and early and not self.run.stop():
            c.failures += 1
            c.closed = c.failures >= ATTEMPTS
            self.failure = f"the solver {self.solver} ended before its time"
        self.last = outcome.status
        if outcome.status == "missing":
            raise UnavailableError(missing(self.solver, outcome.reason))
        if outcome.status == "failed":
            c.failures += 1
            c.closed = c.failures >= ATTEMPTS
            self.failure = f"the solver {self.solver} failed: {outcome.reason}"
            return
        if outcome.status == "infeasible":
            # There is nothing up to the limit, which is a split that is known.
            low = self._snapped(self.upper - SAFETY)
            c.low, c.closed = max(c.low, min(low, self.upper)), True
            return
        if outcome.bound <= self.upper + SAFETY:
            low = self._snapped(outcome.bound - SAFETY)
            c.low = max(c.low, min(low, self.upper))
        if outcome.values is not None:
            c.best = list(outcome.values)
            top = outcome.values[formulas.top]
            worth = top if self.found is None else self.found(c, formulas, outcome.values)
            self.upper = min(self.upper, max(worth, c.low))
        c.closed |= outcome.status == "optimal"
        if outcome.status == "optimal" and _is_open(outcome, formulas):
            c.failures = ATTEMPTS
            self.failure = f"the solver {self.solver} calls optimal what is above its bound"

    def _solve(self, c: Candidate, formulas: Formulas, single: bool) -> Outcome:
        """One slice. What cannot be is asked twice, with other tolerances.

        That is no solution, or an optimum above the bound: HiGHS says so now and then.
        """
        known = [at for at in map(formulas.start, c.starts) if at is not None]
        starts = known if c.best is None else [*known, c.best]
        starts = [at for at in starts if formulas.admits(at, LOOSE)]
        start = min(starts, key=lambda at: at[formulas.top], default=None)
        outcome, doubtful = Outcome("limit"), None
        for tolerance in TOLERANCES:
            seconds, patience = self._times(c, single)
            with solver_process() as process:
                outcome = process.solve(
                    self.solver,
                    formulas.program,
                    start,
                    seconds,
                    tolerance,
                    patience=patience,
                    stop=self.run.interrupted,
                )
            outcome = _with_bound(outcome, formulas)
            if outcome.status == "infeasible":
                formulas.program.lower[formulas.top] = 0.0
            elif _is_open(outcome, formulas):
                doubtful = outcome
            else:
                break
        if doubtful is not None and doubtful.bound >= outcome.bound:
            return doubtful
        if known and outcome.status == "infeasible":
            return Outcome("failed", reason="it finds no solution, but there is one")
        return outcome

    def _times(self, c: Candidate, single: bool) -> tuple[float | None, float | None]:
        """Seconds that the solver is given next, and after which it is killed."""
        first = FIRST_SLICE_S if single else SHORT_SLICE_S
        c.slice_s = seconds = max(c.slice_s * GROWTH, first)
        left = self.run.left()
        if left is None:
            return seconds, None
        if single and seconds > left / 2:
            seconds = left
        c.slice_s = max(min(seconds, left - min(GRACE_S, left / 3)), 0.01)
        return c.slice_s, left + GRACE_S

    def _snapped(self, low: float) -> float:
        return snapped(low * self.reference, self.quantum) / self.reference


def _with_bound(outcome: Outcome, formulas: Formulas) -> Outcome:
    """Without integers the optimum is the bound; HiGHS states none."""
    if outcome.status != "optimal" or outcome.values is None or any(formulas.program.integer):
        return outcome
    return replace(outcome, bound=outcome.values[formulas.top])


def _is_open(outcome: Outcome, formulas: Formulas) -> bool:
    """Whether a solution that is called optimal is above the bound."""
    if outcome.status != "optimal" or outcome.values is None:
        return False
    return outcome.bound < outcome.values[formulas.top] - SAFETY
