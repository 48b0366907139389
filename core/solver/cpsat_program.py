"""A scheduling model in whole numbers, for a constraint solver.

A tick is the unit of time. Times and seconds are rounded down to ticks. Every constraint says
that one time is not before another plus some seconds, so that a solution with its times rounded
down is a solution of the rounded model: what the solver proves holds for the problem.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from dnnp.core.cost.load_formula import MARGIN, ROUNDING
from dnnp.core.solver.scheduling_model import ORIGIN, Model

NEWS = "news"
"""Status of an outcome that is not the last one."""

TICKS = 2**30
"""Ticks that the upper limit has where times are not multiples of a number."""

MOST_TICKS = 2**36
"""Most ticks where they are."""

WEIGHTS = 2**40
"""What the largest weight of a constraint with fractions becomes."""


@dataclass
class CpProgram:
    """Minimise variable 0 over integers within limits, rows, and lanes."""

    lower: list[int] = field(default_factory=list)
    upper: list[int] = field(default_factory=list)
    rows: list[tuple[list[int], list[int], int | None, int | None, list[int]]] = field(
        default_factory=list
    )
    """Variables, weights, least and largest sum, and the flags that must be 1 for it to hold."""
    lanes: list[list[tuple[int, int, int]]] = field(default_factory=list)
    """Intervals that do not overlap: start, size, and the flag of whether it is there."""


class TickProgram:
    """The program of a model, and the way back."""

    def __init__(self, model: Model, quantum: float) -> None:
        self.model = model
        self.exact = 0 < model.upper <= quantum * MOST_TICKS
        upper = model.upper if model.upper > 0 else 1.0
        self.tick = quantum if self.exact else upper / TICKS
        self.program = program = CpProgram()
        for low, high in zip(model.low, model.high, strict=True):
            program.lower.append(self.ticks(low))
            program.upper.append(max(math.ceil(high / self.tick * (1 + MARGIN)), 0))
        self.first_flag = len(model.low)
        program.lower += [0] * len(model.whole)
        program.upper += [1] * len(model.whole)
        for after in model.afters:
            variables, weights = [after.later], [1]
            if after.earlier != ORIGIN:
                variables.append(after.earlier)
                weights.append(-1)
            for flag, seconds in after.terms:
                variables.append(self.first_flag + flag)
                weights.append(-self.signed(seconds))
            given = [self.first_flag + flag for flag in after.given]
            program.rows.append((variables, weights, 0, None, given))
        for row in model.rows:
            variables = [self.first_flag + flag for flag in row.flags]
            self._row(variables, row.weights, row.sense, row.bound)
        for lane in model.lanes:
            program.lanes.append(
                [
                    (
                        model.spans[turn.span][0],
                        self.ticks(turn.seconds),
                        self.first_flag + turn.flag,
                    )
                    for turn in lane
                ]
            )

    def ticks(self, seconds: float) -> int:
        """A time in ticks, rounded down."""
        count = seconds / self.tick
        if self.exact:
            return math.floor(count + 1e-6)
        return math.floor(count * (1 - MARGIN))

    def signed(self, seconds: float) -> int:
        """A time that may be negative in ticks, rounded towards 0."""
        return self.ticks(seconds) if seconds >= 0 else -self.ticks(-seconds)

    def seconds(self, ticks: float) -> float:
        """A proven number of ticks as a lower bound."""
        return ticks * self.tick * (1 - (ROUNDING if self.exact else MARGIN))

    def split(self, values: list[int]) -> tuple[list[float], list[float]]:
        """Times in seconds, and flags, of a solution."""
        flags = values[self.first_flag : self.first_flag + len(self.model.whole)]
        return [t * self.tick for t in values[: self.first_flag]], [float(f) for f in flags]

    def start(self, times: list[float], flags: list[float]) -> list[int]:
        """All variables for known times and flags."""
        return [*(self.ticks(t) for t in times), *(round(f) for f in flags)]

    def _row(
        self, variables: list[int], weights: tuple[float, ...], sense: str, bound: float
    ) -> None:
        """A constraint on flags; fractions are rounded so that nothing is excluded."""
        if any(w != int(w) for w in weights):
            unit = max(abs(w) for w in weights) / WEIGHTS
            whole = [math.floor(w / unit) for w in weights]
            limit = math.ceil(bound / unit * (1 + MARGIN))
        else:
            whole, limit = [int(w) for w in weights], math.floor(bound + 1e-6)
        low = None if sense == "<" else limit
        high = None if sense == ">" else limit
        self.program.rows.append((variables, whole, low, high, []))
