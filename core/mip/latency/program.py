"""A scheduling model as an integer program.

Everything is divided by the upper limit, so that the objective is at most about 1. A constraint
that holds only where some flags are 1 gets the least big-M that the windows of its two times
allow (Lemma 4.1 of the 2020 paper and Eq. 6 and 8 of Moirai have one constant for all of them).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from dnnp.core.cost.combine import ROUNDING
from dnnp.core.mip.latency.meetings import Pair, meetings
from dnnp.core.mip.latency.model import ORIGIN, After, Model
from dnnp.core.mip.program import SLACK, Program


class LatencyProgram:
    """The program of a model; columns are its times, its flags, and two for each pair of spans
    that may meet in a lane: `delta`, the first one goes first, and whether they do meet.

    Where only some pairs are `kept` apart, it is a relaxation.
    """

    tops = (0,)
    """The latency is minimised."""

    def __init__(self, model: Model, kept: Collection[Pair] | None = None) -> None:
        self.model, self.kept = model, kept
        self.scale = model.upper if model.upper > 0 else 1.0
        self.program = Program()
        self.low = [max(low / self.scale - SLACK, 0.0) for low in model.low]
        self.high = [high / self.scale + SLACK for high in model.high]
        for t, (low, high) in enumerate(zip(self.low, self.high, strict=True)):
            self.program.column(high, lower=low, cost=float(t == 0))
        self.first_flag = len(model.low)
        for whole in model.whole:
            self.program.column(integer=whole)
        for after in model.afters:
            self._after(after)
        for row in model.rows:
            columns = [self.first_flag + flag for flag in row.flags]
            self.program.row(columns, row.weights, row.sense, row.bound)
        self.deltas: list[tuple[Pair, int, int, list[Sequence[Sequence[int]]]]] = []
        for pair, lanes in self._meetings().items():
            self._apart(pair, lanes)

    @property
    def hopeless(self) -> bool:
        """Whether a constraint without flags cannot hold."""
        return self.model.hopeless

    def split(self, values: Sequence[float]) -> tuple[list[float], list[float]]:
        """Times in seconds, and flags, of a solution."""
        times = [value * self.scale for value in values[: self.first_flag]]
        return times, list(values[self.first_flag : self.first_flag + len(self.model.whole)])

    def start(self, times: Sequence[float], flags: Sequence[float]) -> list[float]:
        """All columns for known times and flags."""
        values = [*(t / self.scale for t in times), *flags]
        values += [0.0] * (len(self.program.objective) - len(values))
        for (a, b), delta, meet, lanes in self.deltas:
            end, start = self.model.spans[a][1], self.model.spans[b][0]
            if delta >= 0:
                values[delta] = float(times[end] <= times[start] + ROUNDING * self.scale)
            values[meet] = float(
                any(all(any(flags[f] for f in own) for own in both) for both in lanes)
            )
        return values

    def _after(self, after: After) -> None:
        """later - earlier - terms - M * (given - 1) >= 0."""
        most = sum(max(s, 0.0) for _, s in after.terms) / self.scale
        if after.earlier != ORIGIN:
            most += self.high[after.earlier]
        big = max(most - self.low[after.later], 0.0) if after.given else 0.0
        if after.given and not big:
            return
        columns = [after.later, *(self.first_flag + f for f, _ in after.terms)]
        weights = [1.0, *(-s / self.scale for _, s in after.terms)]
        if after.earlier != ORIGIN:
            columns.append(after.earlier)
            weights.append(-1.0)
        columns += [self.first_flag + f for f in after.given]
        weights += [-big] * len(after.given)
        self.program.row(columns, weights, ">", -big * len(after.given))

    def _meetings(self) -> dict[Pair, list[Sequence[Sequence[int]]]]:
        """Pairs of spans, and for each lane where they may meet the flags of both."""
        found: dict[Pair, list[Sequence[Sequence[int]]]] = {}
        for lane in self.model.lanes:
            flags: dict[int, list[int]] = {}
            for turn in lane:
                flags.setdefault(turn.span, []).append(turn.flag)
            pairs = meetings(self.model, lane) if self.kept is None else sorted(self.kept)
            for a, b in pairs:
                if a in flags and b in flags:
                    found.setdefault((a, b), []).append((flags[a], flags[b]))
        return found

    def _apart(self, pair: Pair, lanes: list[Sequence[Sequence[int]]]) -> None:
        """Of two spans that meet in a lane one goes first."""
        (begin, end), (start, finish) = (self.model.spans[i] for i in pair)
        before = self.high[end] - self.low[start]
        behind = self.high[finish] - self.low[begin]
        if before <= 2 * SLACK or behind <= 2 * SLACK:
            return
        program = self.program
        meet = program.column()
        for both in lanes:
            flags = [self.first_flag + f for own in both for f in own]
            program.row([meet, *flags], [1.0] + [-1.0] * len(flags), ">", -1.0)
        late = self.low[end] > self.high[start]
        early = self.low[finish] > self.high[begin]
        delta = -1
        if not late and not early:
            delta = program.column(integer=True)
            program.row([start, end, delta], [1.0, -1.0, -before], ">", -before)
            program.row([begin, finish, delta, meet], [1.0, -1.0, behind, -behind], ">", -behind)
        else:
            if not late:
                program.row([start, end, meet], [1.0, -1.0, -before], ">", -before)
            if not early:
                program.row([begin, finish, meet], [1.0, -1.0, -behind], ">", -behind)
            if late and early:
                program.row([meet], [1.0], "<", 0.0)
        self.deltas.append((pair, delta, meet, lanes))
