"""A scheduling model: times, flags, and precedence constraints between times.

It is written once for each way to run a graph, and solved by integer programming (every
conditional constraint gets a big-M of its own, from the windows of its times) or by constraint
programming. Every constraint on times reads

    later >= earlier + sum of seconds of flags,     where all of some flags hold

so that rounding all times and seconds down keeps a solution one: what is proven for whole
numbers holds for the others.

For a constraint solver it becomes a program in whole numbers, `TickProgram`. A tick is the unit of
time, times and seconds are rounded down to ticks, and so are the times of a solution.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dnnp.core.cost.load_formula import MARGIN, ROUNDING
from dnnp.core.solver.program import fails_empty

ORIGIN = -1
"""Stands for time 0 as the earlier of two times."""

NEVER = -1
"""Stands for a flag that is always 0."""

NEWS = "news"
"""Status of an outcome that is not the last one."""

TICKS = 2**30
"""Ticks that the upper limit has where times are not multiples of a number."""

MOST_TICKS = 2**36
"""Most ticks where they are."""

WEIGHTS = 2**40
"""The largest weight of a constraint with fractions is scaled to this."""


class After(NamedTuple):
    """`later` >= `earlier` + terms, if all `given` flags are 1."""

    later: int
    earlier: int
    terms: tuple[tuple[int, float], ...]
    """Flags and their seconds."""
    given: tuple[int, ...]


class FlagRow(NamedTuple):
    """A linear constraint on flags."""

    flags: tuple[int, ...]
    weights: tuple[float, ...]
    sense: str
    """`<`, `=` or `>`."""
    bound: float


class Turn(NamedTuple):
    """A span that uses a lane for some seconds, if its flag is 1."""

    span: int
    flag: int
    seconds: float


Rule = Callable[[Any], float]
"""Value of a time or a flag in a known solution."""


class Model:
    """Times within windows, flags, constraints; time number 0 is to be minimised.

    Parameters
    ----------
    upper
        Latency above which solutions are of no interest, seconds.
    """

    def __init__(self, upper: float) -> None:
        self.upper = upper
        self.low: list[float] = []
        self.high: list[float] = []
        self.time_rules: list[Rule] = []
        self.whole: list[bool] = []
        """True for flags to be branched on; the others follow from these."""
        self.flag_rules: list[Rule] = []
        self.afters: list[After] = []
        self.rows: list[FlagRow] = []
        self.spans: list[tuple[int, int]] = []
        """Times of start and end."""
        self.lanes: list[list[Turn]] = []
        """Turns of different spans in one lane do not overlap."""
        self.ordered: Callable[[int, int], bool] = lambda first, second: False
        """True if one span comes before another in any case, if both use a lane."""
        self.places: list[list[int]] = []
        """Flag of each thing that is placed in each of its places, or `NEVER`."""
        self.hopeless = False
        """A constraint without flags cannot hold."""

    def time(self, rule: Rule, low: float = 0.0, high: float | None = None) -> int:
        """Add a time; return its number."""
        high = self.upper if high is None else min(high, self.upper)
        self.hopeless |= low > high + MARGIN * self.upper
        self.low.append(min(low, high))
        self.high.append(high)
        self.time_rules.append(rule)
        return len(self.low) - 1

    def raise_least(self, low: float) -> None:
        """Take over a lower bound of the latency."""
        self.low[0] = max(self.low[0], min(low, self.high[0]))

    def flag(self, rule: Rule, *, whole: bool = False) -> int:
        """Add a flag; return its number."""
        self.whole.append(whole)
        self.flag_rules.append(rule)
        return len(self.whole) - 1

    def after(
        self,
        later: int,
        earlier: int,
        terms: Iterable[tuple[int, float]] = (),
        given: Sequence[int] = (),
    ) -> None:
        """One time comes after another, where the given flags are 1."""
        if NEVER not in given:
            kept = tuple((flag, s) for flag, s in terms if flag != NEVER and s)
            self.afters.append(After(later, earlier, kept, tuple(given)))

    def row(self, terms: Iterable[tuple[int, float]], sense: str, bound: float) -> None:
        """Add a linear constraint on flags; flags may repeat, `NEVER` stands for 0."""
        merged: dict[int, float] = {}
        for flag, weight in terms:
            if flag != NEVER:
                merged[flag] = merged.get(flag, 0.0) + weight
        kept = {flag: weight for flag, weight in merged.items() if weight}
        if kept:
            self.rows.append(FlagRow(tuple(kept), tuple(kept.values()), sense, bound))
        else:
            self.hopeless |= fails_empty(sense, bound)

    def room(self, held: Iterable[tuple[int, float]], limit: float) -> None:
        """Keep the sum of flags times bytes within `limit` bytes."""
        unit = max(limit, 1.0)
        terms = [(flag, size / unit) for flag, size in held]
        self.row(terms, "<", limit / unit * (1 + MARGIN))

    def break_symmetry(
        self,
        mine: Iterable[Sequence[int]],
        theirs: Iterable[Sequence[int]],
        used: Callable[[int], Rule],
    ) -> None:
        """Break the symmetry of two identical devices: the first one has the first thing.

        Parameters
        ----------
        mine, theirs
            For each thing, the flags of its places on the second device and on the first.
        used
            The rule for whether one of the first things, so many, is on the first device.
        """
        seen = NEVER
        for i, (second, first) in enumerate(zip(mine, theirs, strict=True)):
            self.row([*((flag, 1.0) for flag in second), (seen, -1.0)], "<", 0.0)
            now = self.flag(used(i + 1))
            self.row([(now, 1.0), (seen, -1.0), *((flag, -1.0) for flag in first)], "<", 0.0)
            seen = now

    def span(self, start: int, end: int) -> int:
        """Add a span between two times; return its number."""
        self.spans.append((start, end))
        return len(self.spans) - 1

    def start(self, solution: Any) -> tuple[list[float], list[float]]:
        """Times and flags of a known solution."""
        times = [float(rule(solution)) for rule in self.time_rules]
        return times, [float(rule(solution)) for rule in self.flag_rules]

    def placed(self, flags: Sequence[float]) -> list[int]:
        """The place of each thing in a solution."""
        shares = [[flags[c] if c != NEVER else -1.0 for c in row] for row in self.places]
        return [max(range(len(row)), key=row.__getitem__) for row in shares]

    @property
    def entries(self) -> int:
        """Numbers in the constraints, roughly."""
        count = sum(2 + len(a.terms) + len(a.given) for a in self.afters)
        count += sum(len(row.flags) for row in self.rows)
        return count + 3 * sum(len(lane) for lane in self.lanes)


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
    """Optional intervals that do not overlap: variable of the start, size, flag of presence."""


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
