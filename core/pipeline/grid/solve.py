"""Repetends on whole ticks, exactly, by dynamic programming.

Where all times, delays and the period are whole multiples of a tick, some best repetend starts
every block on a whole tick: once it is known which block follows which, and how many periods lie
between, all that is left are differences of starts with whole bounds. A start is a *phase* within
the period and a number of whole periods. Units look at phases alone; what a unit holds at most is
linear in the whole periods.

`core.pipeline.grid.plan` finds an order of the blocks where few of them have to be kept in mind
at a time (a path decomposition), and `core.pipeline.grid.run` goes through all states of those.
Chains through devices, nested ones included, take time linear in devices. The number of states
is exponential in the number of blocks on a unit, and grows with the ticks of a period; where it
gets too large the search gives up.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dnnp.core.model.graph import Floats, distinct
from dnnp.core.model.run import PLAIN, Run
from dnnp.core.pipeline.bound import memory_bound
from dnnp.core.pipeline.grid.run import GridProgram, Pass, Ticks
from dnnp.core.pipeline.problem import TOLERANCE, ScheduleProblem, span_of, steady_memory

MOST_TICKS = 64
"""Ticks of a period."""

MOST_TIME = 1e6
"""Ticks of a block or a delay."""

MOST_BLOCKS = 600
"""Blocks: distances of all pairs are looked at."""


class GridAnswer(NamedTuple):
    """What is known of the repetends of a period."""

    start: Floats | None
    """f64[b], s, the least is 0. None: it is proven that there is none within the capacities."""
    memory: float
    """Largest steady memory of a unit, `fixed` included: the smallest possible if `complete`.
    Units where something is left behind count with `fixed` alone."""
    span: float
    """First start to last end, s: the least with that memory if `complete`."""
    memory_bound: float
    """No repetend of this period has a smaller largest memory."""
    complete: bool
    """Whether all of it is proven; else the run ended the search."""


IMPOSSIBLE = GridAnswer(None, np.inf, np.inf, np.inf, True)


def ticks_of(problem: ScheduleProblem, period: float) -> Ticks | None:
    """The coarsest tick that divides everything; None if the period has too many of them."""
    values = distinct(np.concatenate([problem.time, problem.delay, [period]]))
    values = values[values > 0]
    if not np.isfinite(values).all() or period <= 0:
        return None
    for parts in range(1, int(MOST_TICKS * values[0] / period + TOLERANCE) + 1):
        tick = float(values[0]) / parts
        counts = values / tick
        if counts[-1] < MOST_TIME and (np.abs(counts - np.rint(counts)) < TOLERANCE * counts).all():
            time, delay = np.rint(problem.time / tick), np.rint(problem.delay / tick)
            whole = int(np.rint(period / tick))
            return Ticks(tick, whole, time.astype(np.int64), delay.astype(np.int64))
    return None


def on_grid(
    problem: ScheduleProblem,
    period: float,
    run: Run = PLAIN,
) -> GridAnswer | None:
    """Repetend of a period with the smallest largest memory, then the shortest span.

    The limits of memory are raised until a pass finds one: first faster and faster, then by
    halving. Values that a unit cannot hold at most are left out.

    Parameters
    ----------
    period
        Of all `problem.unroll` micro-batches, s.
    run
        Its effort scales how many states are gone through; `stop` ends the search with the best
        repetend so far.

    Returns
    -------
    GridAnswer
        None: there is no common tick, or the period has too many; something is released before it
        is taken, or left behind on a unit with a limit; or there are too many states to find
        anything.
    """
    ticks = ticks_of(problem, period)
    if ticks is None or not 0 < problem.b <= MOST_BLOCKS:
        return None
    if (problem.load() > period * (1 + TOLERANCE)).any():
        return IMPOSSIBLE
    left = np.abs(problem.left_behind()) > TOLERANCE * np.abs(problem.memory).sum()
    if (left & np.isfinite(problem.capacity)).any():
        return None
    program = GridProgram(problem, ticks, run)
    if not program.plan.steps or program.unmatched:
        return None
    return _Passes(problem, period, program).answer()


class _Passes:
    """Passes with different limits of memory for one problem and period."""

    def __init__(self, problem: ScheduleProblem, period: float, program: GridProgram) -> None:
        self.problem, self.period, self.program = problem, period, program
        self.units = np.array([d for d, _ in program.plan.links.memory], dtype=np.int64)
        self.fixed = problem.fixed[self.units]
        self.quantum = np.array([h.quantum for h in program.holdings], dtype=np.float64)

    def answer(self) -> GridAnswer | None:
        """See `on_grid`."""
        slack = self.program.slack
        low, most = memory_bound(self.problem, self.period), self._most()
        if low > most + slack:
            return IMPOSSIBLE
        best, high = Pass(None), np.inf
        failed, halve = 0, True
        while low < high - slack:
            limit = low
            if best.start is not None:
                middle = self._below((low + high) / 2)
                limit = max(middle if halve else self._below(high), low)
                halve = not halve
            elif failed > 1:
                reach = 2 ** (failed - 1) * float(np.abs(self.problem.memory).max())
                limit = max(self._below(low + reach), low)
            run = self.program.run(min(limit, most))
            if run.start is not None:
                best, high = run, self._held(self._seconds(run))
            elif run.unknown:
                break
            elif limit >= most:
                return IMPOSSIBLE
            else:
                failed += 1
                low = high if limit >= self._below(high) else self._above(limit)
        if best.start is None:
            return None
        proven = low >= high - slack
        if best.limit > high + slack:  # its span is the least within a wider limit
            run = self.program.run(high)
            best, proven = (run, proven) if run.start is not None else (best, False)
        start = self._seconds(best)
        span = span_of(self.problem, start)
        return GridAnswer(start, self._held(start), span, min(low, high), proven)

    def _seconds(self, run: Pass) -> Floats:
        start: Floats = np.asarray(run.start, dtype=np.float64) * self.program.ticks.tick
        return start

    def _held(self, start: Floats) -> float:
        """Largest steady memory of all units; where something is left behind only `fixed`."""
        held = steady_memory(self.problem, start, self.period)[self.units]
        return max(float(held.max(initial=0.0)), float(self.problem.fixed.max(initial=0.0)))

    def _most(self) -> float:
        """What no unit needs to hold more than: all that is taken within the longest span."""
        problem, program = self.problem, self.program
        taken = np.repeat(np.maximum(problem.memory, 0.0), np.diff(problem.ptr))
        rounds = program.most_span // program.ticks.period + 2
        most = rounds * np.bincount(problem.unit, taken, problem.units)
        return float((np.minimum(problem.capacity, most) + problem.fixed).max())

    def _above(self, limit: float) -> float:
        """The next value above a limit that what some unit holds at most may have."""
        whole = self.quantum > 0
        if not whole.all() or not len(whole):
            return limit
        steps = np.floor((limit - self.fixed) / self.quantum + 1 + TOLERANCE)
        return max(float((self.fixed + steps * self.quantum).min()), limit)

    def _below(self, limit: float) -> float:
        """The last value below a limit that what some unit holds at most may have."""
        values = np.full(len(self.units), limit - 4 * self.program.slack)
        whole = self.quantum > 0
        if np.isfinite(limit):
            steps = np.ceil((limit - self.fixed[whole]) / self.quantum[whole] - 1 - TOLERANCE)
            values[whole] = self.fixed[whole] + steps * self.quantum[whole]
        return float(values.max(initial=-np.inf))
