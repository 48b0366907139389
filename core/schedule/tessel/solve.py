"""Tessel's own schedule search (Lin et al. 2024, Algorithm 1), for comparison.

For more and more micro-batches N_R, every assignment of their indices to the blocks of a repetend
that Properties 4.1 and 4.2 allow is tried: an index set. For each of them the order of blocks on
every unit is searched for the least period at which the repetend can be repeated (Eq. 4, with
compaction), by a branch and bound in place of the paper's Z3. The first repetend that reaches the
largest load ends the search. Warm-up and cool-down are made time-optimal at the end (`lazy`), or
for every better repetend.

Unlike the paper's, times need not be whole, and a period may be a fraction. Blocks of no time wait
for the end of others on their unit, which a schedule need not do. Neither memory nor span is
minimised.
"""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter

import numpy as np

from dnnp.core.model.errors import InfeasibleError, LimitError
from dnnp.core.model.graph import Bools, Floats, Ints, connected, csr
from dnnp.core.model.schedule import Placement
from dnnp.core.model.search_context import PLAIN, Run
from dnnp.core.schedule.problem import TOLERANCE, Answer, Batch, ScheduleProblem, Wanted, faults
from dnnp.core.schedule.starts import Arcs, max_cycle_ratio, topological
from dnnp.core.schedule.tessel.kernel import (
    ALONE,
    BACK,
    BEGIN,
    DEPTH,
    ENDED,
    FOUND,
    GAVE_UP,
    LEFT,
    LEVEL,
    LITTLE,
    NEXT,
    PAUSED,
    SLACK,
    SOLVED,
    STAGE,
    TARGET,
    TRIED,
    Scan,
    TesselBlocks,
    scan,
)
from dnnp.core.schedule.tessel.result import (
    LEAST_PERIOD,
    Chosen,
    TesselResult,
    answered,
    first,
    phases,
    repeatable,
    result_of,
    shortest,
)

MOST_BLOCKS = 256
"""Of a micro-batch; all longest ways are kept."""

STEPS = 4_000_000_000
"""Steps that the search may take for an effort of 1; some 1e9 take a second."""

SLICE = 2_000_000
"""Steps after which it is asked whether to stop."""

CHECK_EFFORT = 0.01
"""For finding out whether warm-up and cool-down can run at all."""


def tessel(
    placement: Placement,
    *,
    lazy: bool = True,
    most: int | None = None,
    run: Run = PLAIN,
) -> TesselResult:
    """Search for a repetend of one micro-batch.

    At most `most` micro-batches make a repetend (N_R); absent: as many as there are blocks, or
    fewer if memory runs out.

    Raises
    ------
    InfeasibleError
        No repetend keeps within the memory limits.
    LimitError
        None was found with the effort, or before the end.
    UsageError
        There are no blocks, or too many, or replicas that take turns.
    """
    problem = repeatable(placement, "tessel", MOST_BLOCKS)
    search = _TesselSearch(problem, lazy, run)
    search.try_all(problem.b if most is None else most)
    best = search.best
    if best is None and search.complete:
        raise InfeasibleError(
            f"Tessel's search finds no repetend of placement '{placement.name}' within the limits"
        )
    if best is None:
        raise LimitError("Tessel's search was stopped before it found a repetend")
    times = search.shortened(best) if lazy else best.times
    status = "interrupted" if run.stop() and not search.complete else "feasible"
    found = result_of(problem, replace(best, times=times), "tessel", status)
    return replace(
        found,
        tried=tuple(search.tried),
        improved=search.improved,
        complete=search.complete,
        repetend_s=search.seconds[0],
        warmup_s=search.seconds[1],
        cooldown_s=search.seconds[2],
    )


def tessel_schedule(batch: Batch, wanted: Wanted, run: Run) -> Answer:
    """Method `tessel` for all micro-batches; errors as `tessel` and `tessel_starts`."""
    found = tessel(batch.placement, lazy=wanted.lazy, most=wanted.most_in_flight, run=run)
    if not found.complete and not run.stop():
        run.warn("tessel: not all was tried; a larger --effort may find a shorter period")
    return answered(found, batch, wanted.micro_batches, run)


class _TesselSearch:
    """The state of Algorithm 1."""

    def __init__(self, problem: ScheduleProblem, lazy: bool, run: Run) -> None:
        self.problem, self.lazy, self.run = problem, lazy, run
        self.whole = float(problem.time.sum() + problem.delay.sum())
        self.low = float(problem.load().max())
        if self.low <= LEAST_PERIOD * self.whole:
            self.low = LEAST_PERIOD * self.whole or 1.0
        self.slack = TOLERANCE * max(self.whole, self.low)
        self.left = int(min(STEPS * run.effort, 2**62))
        self.most = max(self.left, 1)
        self.blocks = blocks_of(problem)
        self.search = search_of(problem, self.blocks)
        self.search.numbers[SLACK] = self.slack / 4
        self.search.numbers[LITTLE] = TOLERANCE * float(
            np.abs(problem.memory).sum() + problem.fixed.sum()
        )
        self.best: Chosen | None = None
        self.tried: list[int] = []
        self.improved = 0
        self.complete = False
        self.seconds = [0.0, 0.0, 0.0]

    def try_all(self, most: int) -> None:
        """Try N_R = 1, 2, ..., most."""
        self._aim(max(self.whole, self.low))
        for top in range(most):
            began, before = perf_counter(), sum(self.seconds)
            answer = self._sets(top)
            self.seconds[0] += perf_counter() - began - (sum(self.seconds) - before)
            if answer == PAUSED:
                return
            if self._reached() or (top > 0 and not self.tried[-1]):
                break
        self.complete = self._reached() or int(self.search.state[GAVE_UP]) == 0

    def shortened(self, best: Chosen) -> tuple[Floats, ...]:
        """Time-optimal warm-up and cool-down."""
        times = []
        self.run.stands("warm-up and cool-down")
        for i, (part, known) in enumerate(zip(best.parts, best.times, strict=True)):
            began = perf_counter()
            times.append(shortest(part, known, self.run.alone()))
            self.seconds[i + 1] += perf_counter() - began
        return tuple(times)

    def _sets(self, top: int) -> int:
        """Try all index sets whose largest index is `top`; `ENDED` or `PAUSED`."""
        state, index = self.search.state, self.search.micro
        state[STAGE], state[DEPTH], state[ALONE], state[TRIED] = NEXT, 0, 0, 0
        index[:] = 0
        index[self.blocks.topo[0]] = top + 1
        self.tried.append(0)
        found: Chosen | None = None
        while True:
            answer = self._scan(top)
            self.tried[-1] = int(state[TRIED])
            if answer == FOUND:
                found = self._tightened(found)
                continue
            if found is not None:
                # A search that is cut short completes what it has.
                self._take(found)
                found = None
            if answer != SOLVED or self._reached():
                return ENDED if answer == SOLVED else answer
            state[ALONE] = 0

    def _scan(self, top: int) -> int:
        """Continue until there is something to say."""
        state = self.search.state
        value = np.inf if self.best is None else self.best.period
        self.run.stands("index sets", value=value, bound=self.low, what="period")
        while self.left > 0 and not self.run.stop():
            self.run.stands(share=1 - self.left / self.most)
            state[LEFT] = given = min(SLICE, self.left)
            answer = int(scan(self.blocks, self.search, top))
            self.left -= given - int(state[LEFT])
            if answer != PAUSED:
                return answer
        return PAUSED

    def _tightened(self, known: Chosen | None) -> Chosen | None:
        """The order that was found at its least period; aims below that, for the same set."""
        state, index = self.search.state, self.search.micro.copy()
        before = before_of(self.blocks, self.search.level[state[LEVEL]], self.slack / 4)
        period, begin = period_of(self.problem, index, before, self.low, self.slack)
        if period > self.search.numbers[TARGET] + self.slack / 2:
            state[STAGE] = BACK
            return known
        start = begin - index * period
        start -= start.min()
        if faults(self.problem, start, period):
            state[STAGE] = BACK
            return known
        order = sequence_of(self.problem, index, before, begin)
        state[STAGE], state[ALONE] = BEGIN, 1
        self._aim(period - self.slack)
        return Chosen(period, start, index, order, phases(self.problem, index, order))

    def _take(self, found: Chosen) -> None:
        """Keep a better repetend if warm-up and cool-down exist."""
        times = tuple(
            first(part, replace(self.run.alone(), effort=CHECK_EFFORT)) for part in found.parts
        )
        known = tuple(start for start in times if start is not None)
        if len(known) == len(times):
            self.best = replace(found, times=known)
            self.improved += 1
            if not self.lazy:
                self.best = replace(self.best, times=self.shortened(self.best))
        self._aim(self.best.period - self.slack if self.best else max(self.whole, self.low))

    def _aim(self, period: float) -> None:
        self.search.numbers[TARGET] = period

    def _reached(self) -> bool:
        """Whether no repetend can be better."""
        return self.best is not None and self.best.period <= self.low + self.slack


FINE = 1e-4
"""Part of the slack of a search that rounding may take."""

MOST_NUMBERS = 4_000_000
"""In all matrices of longest ways."""


def blocks_of(problem: ScheduleProblem) -> TesselBlocks:
    """Arrays of the kernels."""
    on_ptr, on = problem.on_unit()
    before_ptr, by_head = csr(problem.head, np.arange(len(problem.head)), problem.b)
    gap = problem.time[problem.tail] + problem.delay
    shared = {
        (int(i), int(j))
        for d in range(problem.units)
        for n, i in enumerate(on[on_ptr[d] : on_ptr[d + 1]])
        for j in on[on_ptr[d] + n + 1 : on_ptr[d + 1]]
    }
    return TesselBlocks(
        time=problem.time,
        memory=problem.memory,
        ptr=problem.ptr,
        unit=problem.unit,
        on_ptr=on_ptr,
        on=on,
        before_ptr=before_ptr,
        before=problem.tail[by_head],
        gap=gap[by_head],
        topo=topological(problem.b, problem.tail, problem.head),
        pairs=np.array(sorted(shared), dtype=np.int64).reshape(-1, 2),
        room=problem.capacity,
        part=connected(problem.b, problem.tail, problem.head),
    )


def search_of(problem: ScheduleProblem, blocks: TesselBlocks) -> Scan:
    """A search that has not begun."""
    b = problem.b
    levels = max(min(len(blocks.pairs) + 1, MOST_NUMBERS // b**2), 1)
    return Scan(
        state=np.zeros(7, dtype=np.int64),
        numbers=np.zeros(3),
        micro=np.zeros(b, dtype=np.int64),
        most=np.zeros(b, dtype=np.int64),
        held=np.zeros(problem.units),
        least=np.zeros(int(blocks.part.max()) + 1, dtype=np.int64),
        level=np.zeros((levels, b, b)),
        choice=np.zeros((levels, 3), dtype=np.int64),
    )


def before_of(blocks: TesselBlocks, ways: Floats, slack: float) -> Bools:
    """bool[b, b]: whether one block is to run before another one on a common unit."""
    before = np.zeros(ways.shape, dtype=np.bool_)
    i, j = blocks.pairs.T
    before[i, j] = ways[i, j] >= blocks.time[i] - slack
    before[j, i] = ways[j, i] >= blocks.time[j] - slack
    return before


def period_of(
    problem: ScheduleProblem, index: Ints, before: Bools, low: float, slack: float
) -> tuple[float, Floats]:
    """Least period of an index set with an order on every unit, and starts in the repetend."""
    i, j = np.nonzero(before)
    time, none = problem.time, np.zeros(len(i), dtype=np.int64)
    arcs = Arcs(
        np.concatenate([problem.tail, i, j]),
        np.concatenate([problem.head, j, i]),
        np.concatenate([time[problem.tail] + problem.delay, time[i], time[j]]),
        np.concatenate([index[problem.head] - index[problem.tail], none, none - 1]),
    )
    return max_cycle_ratio(arcs, problem.b, low, slack * FINE)


def sequence_of(problem: ScheduleProblem, index: Ints, before: Bools, begin: Floats) -> Ints:
    """All blocks by start; where starts are equal, as the order and dependencies say."""
    inside = index[problem.tail] == index[problem.head]
    # Blocks of no time that start together may be before each other.
    i, j = np.nonzero(before & ~(before.T & np.tri(problem.b, dtype=np.bool_)))
    tail = np.concatenate([problem.tail[inside], i])
    return topological(problem.b, tail, np.concatenate([problem.head[inside], j]), begin)
