"""A mixed-integer program of splits in numbered blocks, written in sums of columns.

What the paper eliminates (MTPP Eq. 11) never becomes a column: x[v, b] is the difference of two
columns y, some of which may be fixed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from dnnp.core.model.graph import Ints
from dnnp.core.solver.program import SLACK, Program

CLOSE = 1e-9
"""By how much a starting solution may violate a row of numbers about 1."""

Rule = Callable[[Ints], float]
"""Value of a column, given the block of every cell."""


class Sum(NamedTuple):
    """A weighted sum of columns, and a constant."""

    terms: Mapping[int, float]
    constant: float = 0.0

    def __sub__(self, other: Sum) -> Sum:
        return total([(self, 1.0), (other, -1.0)])


ZERO, ONE = Sum({}), Sum({}, 1.0)


def total(parts: Iterable[tuple[Sum, float]]) -> Sum:
    """A weighted sum of sums."""
    terms: dict[int, float] = {}
    constant = 0.0
    for part, weight in parts:
        constant += weight * part.constant
        for column, share in part.terms.items():
            terms[column] = terms.get(column, 0.0) + weight * share
    return Sum({c: w for c, w in terms.items() if w}, constant)


class Formulas:
    """Minimise the largest load: the column `top`, between two limits; a load of 1 is about 1.

    Parameters
    ----------
    lower
        No load that is looked for is smaller.
    upper
        None that is of interest is greater.
    """

    def __init__(self, lower: float, upper: float) -> None:
        self.program = Program()
        self.upper = upper * (1 + SLACK)
        self.top = self.program.column(self.upper, lower=min(lower, self.upper), cost=1.0)
        self.hopeless = False
        """Whether a constraint without columns cannot hold."""
        self._rules: list[Rule] = [lambda at: 0.0]
        self._loads: list[tuple[Sum, float]] = []

    def column(self, rule: Rule, *, upper: float = 1.0, integer: bool = False) -> Sum:
        """Add a column from 0 to `upper` that depends on where the cells are."""
        self._rules.append(rule)
        return Sum({self.program.column(upper, integer=integer): 1.0})

    def not_below(self, more: Sum, less: Sum = ZERO) -> None:
        """more >= less."""
        terms, constant = more - less
        if terms:
            self.program.row(list(terms), list(terms.values()), ">", -constant)
        elif constant < -CLOSE:
            self.hopeless = True

    def equal(self, one: Sum, other: Sum) -> None:
        """one = other."""
        terms, constant = one - other
        if terms:
            self.program.row(list(terms), list(terms.values()), "=", -constant)
        elif abs(constant) > CLOSE:
            self.hopeless = True

    def load(self, load: Sum, share: float = 1.0) -> None:
        """The largest load is at least `share` of this one."""
        self._loads.append((load, share))
        self.not_below(Sum({self.top: 1.0}), total([(load, share)]))

    def start(self, at: Ints) -> list[float] | None:
        """All columns for given blocks of the cells; None if the program rules them out."""
        values = [float(rule(at)) for rule in self._rules]
        loads = [share * value_of(load, values) for load, share in self._loads]
        values[self.top] = max([self.program.lower[self.top], *loads])
        return values if self.admits(values, CLOSE) else None

    def admits(self, values: Sequence[float], tolerance: float) -> bool:
        """Whether values of the columns meet all constraints."""
        program = self.program
        if len(values) != len(program.upper):
            return False
        x = np.array(values)
        if (x > np.array(program.upper) + tolerance).any():
            return False
        for columns, weights, sense, bound in program.rows:
            left = sum(w * values[c] for c, w in zip(columns, weights, strict=True))
            low, high = left < bound - tolerance, left > bound + tolerance
            if (sense != "<" and low) or (sense != ">" and high):
                return False
        return True


def value_of(formula: Sum, values: Sequence[float]) -> float:
    """A sum where the columns have these values."""
    return formula.constant + sum(w * values[c] for c, w in formula.terms.items())
