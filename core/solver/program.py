"""A mixed-integer program in plain lists, as it travels to the process that solves it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

TOLERANCES = (1e-9, 1e-7)
"""Feasibility tolerance of the solvers; the second one is for programs they call infeasible."""

SLACK = 1e-7
"""By how much limits are widened, relatively: more than rounding and the solvers' tolerances,
which cannot tell a limit from a value that close to it."""

Row = tuple[list[int], list[float], str, float]
"""Columns, their weights, one of `<`, `=`, `>`, and the right-hand side."""


def fails_empty(sense: str, bound: float) -> bool:
    """Whether a row without columns cannot hold."""
    return (bound < 0 and sense != ">") or (bound > 0 and sense != "<")


@dataclass
class Program:
    """Minimise objective * x over lower <= x <= upper and the rows; some x are integers."""

    objective: list[float] = field(default_factory=list)
    lower: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)
    integer: list[bool] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)

    def column(
        self,
        upper: float = 1.0,
        *,
        lower: float = 0.0,
        cost: float = 0.0,
        integer: bool = False,
    ) -> int:
        """Add a variable; return its number."""
        self.objective.append(cost)
        self.lower.append(lower)
        self.upper.append(upper)
        self.integer.append(integer)
        return len(self.objective) - 1

    def row(
        self, columns: Sequence[int], weights: Sequence[float], sense: str, bound: float
    ) -> None:
        """Add a constraint. Columns may repeat; their weights add up."""
        merged: dict[int, float] = {}
        for column, weight in zip(columns, weights, strict=True):
            merged[column] = merged.get(column, 0.0) + weight
        self.rows.append((list(merged), list(merged.values()), sense, bound))


@dataclass(frozen=True)
class Outcome:
    """What a solver says after one run."""

    status: str
    """`optimal`, `feasible`, `infeasible`, `limit` (nothing found), `failed` or `missing`."""
    bound: float = float("-inf")
    """Lower bound of the objective, as far as the solver's tolerances go."""
    values: tuple[float, ...] | None = None
    """The best solution found."""
    reason: str = ""
    """Why it failed, or what is missing."""
    duals: tuple[float, ...] | None = None
    """Of each row, where the program has no integers."""
