"""Mixed-integer programs as they travel to the process that solves them: in lists, or in arrays.

A `Program` has a Python object for every number, which takes gigabytes and minutes where there are
millions. A `SparseProgram` gets columns and rows many at a time, for the HiGHS of scipy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from dnnp.core.model.graph import Bools, Floats, Ints

TOLERANCES = (1e-9, 1e-7)
"""Feasibility tolerance of the solvers; the second one is for programs they call infeasible."""

SLACK = 1e-7
"""Relative widening of limits: more than rounding and the solvers' tolerances, which cannot tell
a limit from a value that close to it."""

Row = tuple[list[int], list[float], str, float]
"""Columns, their weights, one of `<`, `=`, `>`, and the right-hand side."""

OPTIMAL, LIMIT, INFEASIBLE = range(3)
"""Status codes of scipy; there are others."""


def fails_empty(sense: str, bound: float) -> bool:
    """True if a row without columns cannot hold."""
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
    """Result of one run of a solver."""

    status: str
    """`optimal`, `feasible`, `infeasible`, `limit` (nothing found), `failed` or `missing`."""
    bound: float = float("-inf")
    """Lower bound of the objective, as far as the solver's tolerances go."""
    values: tuple[float, ...] | None = None
    """The best solution found."""
    reason: str = ""
    """The reason why it failed, or the missing package."""
    duals: tuple[float, ...] | None = None
    """Dual of each row, where the program has no integers."""


@dataclass(frozen=True, eq=False)
class SparseProgram:
    """Minimise objective @ x over lower <= x <= upper and low <= A x <= high; some x are integers.

    Entry e of A is `weight[e]`, in row `row[e]` and column `column[e]`; those that meet add up.
    """

    objective: Floats
    lower: Floats
    upper: Floats
    integer: Bools
    row: Ints
    column: Ints
    weight: Floats
    low: Floats
    high: Floats


class Sparse:
    """A sparse program that grows by blocks of columns and rows."""

    def __init__(self) -> None:
        self._columns: list[tuple[Floats, Floats, Floats, Bools]] = []
        self._entries: list[tuple[Ints, Ints, Floats]] = []
        self._limits: list[tuple[Floats, Floats]] = []
        self.width = self.height = 0
        """Columns and rows so far."""

    def columns(
        self, count: int, upper: float = 1.0, *, cost: float = 0.0, integer: bool = False
    ) -> Ints:
        """Add columns from 0 to `upper`; their numbers, i64[count]."""
        self._columns.append(
            (
                np.full(count, cost),
                np.zeros(count),
                np.full(count, upper),
                np.full(count, integer, dtype=np.bool_),
            )
        )
        self.width += count
        return np.arange(self.width - count, self.width)

    def rows(self, count: int, low: ArrayLike, high: ArrayLike) -> Ints:
        """Add empty rows with limits (one for all, or f64[count]); their numbers, i64[count]."""
        limits = np.broadcast_arrays(np.zeros(count), low, high)
        self._limits.append((limits[1].astype(np.float64), limits[2].astype(np.float64)))
        self.height += count
        return np.arange(self.height - count, self.height)

    def put(self, row: ArrayLike, column: ArrayLike, weight: ArrayLike) -> None:
        """Add entries; arrays of one shape, or what is broadcast to one."""
        row, column, weight = np.broadcast_arrays(row, column, np.asarray(weight, np.float64))
        self._entries.append((row.ravel(), column.ravel(), weight.ravel()))

    def program(self) -> SparseProgram:
        """The whole program."""
        objective, lower, upper, integer = map(np.concatenate, zip(*self._columns, strict=True))
        row, column, weight = map(np.concatenate, zip(*self._entries, strict=True))
        low, high = map(np.concatenate, zip(*self._limits, strict=True))
        return SparseProgram(objective, lower, upper, integer, row, column, weight, low, high)


def solve_sparse(
    program: SparseProgram, seconds: float | None, options: Mapping[str, float]
) -> Outcome:
    """Run HiGHS for some seconds; None: until it is done. Runs in the solver's process.

    `options`: further ones of `scipy.optimize.milp`.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csc_array

    shape = len(program.low), len(program.objective)
    matrix = csc_array((program.weight, (program.row, program.column)), shape=shape)
    done = milp(
        program.objective,
        integrality=program.integer,
        bounds=Bounds(program.lower, program.upper),
        constraints=LinearConstraint(matrix, program.low, program.high),
        options={**options, **({} if seconds is None else {"time_limit": seconds})},
    )
    if done.status == INFEASIBLE:
        return Outcome("infeasible")
    if done.status not in (OPTIMAL, LIMIT):
        return Outcome("failed", reason=str(done.message))
    bound = done.fun if done.status == OPTIMAL and not program.integer.any() else None
    bound = getattr(done, "mip_dual_bound", None) if bound is None else bound
    low = float("-inf") if bound is None else float(bound)
    if done.x is None:
        return Outcome("limit", low)
    status = "optimal" if done.status == OPTIMAL else "feasible"
    return Outcome(status, low, tuple(done.x.tolist()))
