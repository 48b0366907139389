"""An integer program under construction: items, places, and the columns that depend on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from dnnp.core.cost.capacity import spread
from dnnp.core.model.graph import Floats, Ints
from dnnp.core.solver.program import SLACK, Program, fails_empty
from dnnp.core.split.ip.task import Place, Task, places_of

NEGLIGIBLE = 1e-13
"""Shares of the reference load that are left out; without them a bound is still a bound."""

Term = tuple[int, float]
"""A column and its weight."""

Rule = Callable[[Ints], float]
"""Value of a column, given the place of every item."""

Rules = Callable[[Ints], Iterable[float]]
"""Values of several columns."""


class Draft:
    """The columns x[v, p], 1 if item v is in place p, and one or two for the largest loads.

    Parameters
    ----------
    task
        Items, devices and options.
    reference
        The load that counts as 1.
    upper
        Objective above which solutions are of no interest, in units of the reference.
    """

    def __init__(self, task: Task, reference: float, upper: float) -> None:
        self.task, self.reference = task, reference
        self.upper = upper * (1 + SLACK)
        self.program = Program()
        self.hopeless = False
        """Whether a constraint without columns cannot hold."""
        self.places = places_of(task)
        self._rules: list[tuple[list[int], Rules]] = []
        self._loads: list[tuple[list[Term], int]] = []
        self._works: dict[tuple[int, int], list[Floats]] = {}
        self.tops = [
            self.program.column(self.upper, lower=min(low, self.upper), cost=1.0)
            for low in self._least_loads()
        ]
        """Columns of the largest loads; their sum is minimised."""
        if len(self.tops) > 1:
            self.row([(top, 1.0) for top in self.tops], "<", self.upper)
        alone = task.storage.alone()
        self.x = [
            [self._item_column(v, p, float(alone[v])) for p in self.places]
            for v in range(task.line.n)
        ]
        """Column of item v in place p; -1: never there."""
        for row in self.x:
            self.row([(c, 1.0) for c in row], "=", 1.0)

    def work(self, place: Place) -> list[Floats]:
        """Shares of the reference load that items compute in a place, for each load."""
        key = place.device, place.replicas
        if key not in self._works:
            line = self.task.line
            scale = place.replicas * self.reference
            work = line.work[place.device] / scale
            if self.task.passes > 1:
                late = line.backward_work[place.device] / scale
                self._works[key] = [work - late, late]
            else:
                self._works[key] = [work]
        return self._works[key]

    def price(self, place: Place, seconds: float) -> float:
        """Share of the reference load that a time makes in a place."""
        return seconds / (place.replicas * self.reference)

    def row(self, terms: Iterable[Term], sense: str, bound: float) -> None:
        """Add a constraint; columns -1 stand for 0."""
        kept = [(c, w) for c, w in terms if c >= 0]
        if kept:
            self.program.row([c for c, _ in kept], [w for _, w in kept], sense, bound)
        else:
            self.hopeless |= fails_empty(sense, bound)

    def column(self, rule: Rule, *, upper: float = 1.0, integer: bool = False) -> int:
        """Add a column from 0 to `upper` that depends on where the items are."""
        column = self.program.column(upper, integer=integer)
        self._rules.append(([column], lambda at: (rule(at),)))
        return column

    def columns(self, count: int, rules: Rules) -> list[int]:
        """Add several columns from 0 to 1."""
        columns = [self.program.column() for _ in range(count)]
        self._rules.append((columns, rules))
        return columns

    def load(self, terms: Iterable[Term], top: int) -> None:
        """Something that a largest load is at least."""
        kept = [(c, w) for c, w in terms if c >= 0 and w > NEGLIGIBLE]
        if kept:
            self.row([*kept, (top, -1.0)], "<", 0.0)
            self._loads.append((kept, top))

    def assignment(self, values: Sequence[float]) -> Ints:
        """Place of every item in a solution; i64[items]."""
        shares = [[values[c] if c >= 0 else -1.0 for c in row] for row in self.x]
        return np.array(shares).argmax(axis=1)

    def start(self, place: Ints) -> list[float] | None:
        """All columns for places of the items; None if the program rules them out."""
        values = [0.0] * len(self.program.objective)
        for v, p in enumerate(place.tolist()):
            if self.x[v][p] < 0 or self.program.upper[self.x[v][p]] < 1:
                return None
            values[self.x[v][p]] = 1.0
        for columns, rules in self._rules:
            for column, value in zip(columns, rules(place), strict=True):
                values[column] = float(value)
        for top in self.tops:
            values[top] = self.program.lower[top]
        for terms, top in self._loads:
            values[top] = max(values[top], sum(weight * values[c] for c, weight in terms))
        return values

    def _least_loads(self) -> list[float]:
        """What the largest loads are at least: single items, and the mean over devices."""
        works = [self.work(p) for p in self.places]
        counts = np.array([d.count for d in self.task.devices], dtype=np.float64)
        first = [self.work(Place(d, 1, -1)) for d in range(len(counts))]
        result = []
        for part in range(self.task.passes):
            least = np.min([w[part] for w in works], axis=0)
            finite = least[np.isfinite(least)]
            mean = spread(np.stack([w[part] for w in first]), counts)[0]
            bounds = [float(finite.max(initial=0.0)), mean if np.isfinite(mean) else 0.0]
            result.append(max(bounds) * (1 - SLACK))
        return result

    def _item_column(self, v: int, place: Place, bytes_needed: float) -> int:
        work = sum(float(part[v]) for part in self.work(place))
        if not work <= self.upper or bytes_needed > self.task.capacity(place) * (1 + SLACK):
            return -1
        return self.program.column(integer=True)
