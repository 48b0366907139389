"""Large programs as arrays, solved by the HiGHS that comes with scipy.

A `Program` has a Python object for every number, which takes gigabytes and minutes where there are
millions. Here columns and rows are added many at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from dnnp.core.model.graph import Bools, Floats, Ints
from dnnp.core.solver.program import Outcome

OPTIMAL, LIMIT, INFEASIBLE = range(3)
"""What scipy says; there are others."""


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
        """What there is, as one."""
        objective, lower, upper, integer = map(np.concatenate, zip(*self._columns, strict=True))
        row, column, weight = map(np.concatenate, zip(*self._entries, strict=True))
        low, high = map(np.concatenate, zip(*self._limits, strict=True))
        return SparseProgram(objective, lower, upper, integer, row, column, weight, low, high)


def solve_sparse(program: SparseProgram, seconds: float | None) -> Outcome:
    """Run HiGHS for some seconds; None: until it is done. Runs in the solver's process."""
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csc_array

    shape = len(program.low), len(program.objective)
    matrix = csc_array((program.weight, (program.row, program.column)), shape=shape)
    done = milp(
        program.objective,
        integrality=program.integer,
        bounds=Bounds(program.lower, program.upper),
        constraints=LinearConstraint(matrix, program.low, program.high),
        options={} if seconds is None else {"time_limit": seconds},
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
