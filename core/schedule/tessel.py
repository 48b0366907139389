"""Tessel's own searches for a repetend of one micro-batch (Lin et al. 2024), for comparison.

An index set gives block i of a repetend micro-batch index[i]; repetend r runs block i of
micro-batch index[i] + r. `tessel` is Algorithm 1: for more and more micro-batches N_R it tries
every index set that Properties 4.1 and 4.2 allow, and searches the orders of each for the least
period at which it can be repeated (Eq. 4, with compaction). The search over orders does so in
place of the paper's Z3: within a repetend the blocks i and j of one unit are less than a period
apart, so that their starts s keep

    s_j - s_i >= time_i + (index_i - index_j - 1) * period

The first repetend that reaches a lower bound of the period ends the search. Neither memory nor
span is minimised.

`tessel_fast` is the reduced search of the authors' later version (TPDS). A repetend is made at
once: the blocks of one micro-batch are packed on the units as if none waited for another, in the
order of a micro-batch alone and, on every other unit, in the opposite one. Then each block gets the
smallest micro-batch index with which it ends before its successors start. If that exceeds a limit
of memory, there is no result. The published search checks a unit of each block
alone when it packs; here all of them are.

Unlike the paper's, times need not be whole, and a period may be a fraction. Warm-up and cool-down
are those of `core.schedule.complete`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from dnnp.core.kernels.kernel import callee, lean
from dnnp.core.model.errors import InfeasibleError, LimitError, UsageError
from dnnp.core.model.graph import Floats, Ints, connected, csr, place_of
from dnnp.core.model.schedule import Placement, Repetend
from dnnp.core.model.search_context import PLAIN, SearchContext
from dnnp.core.model.text import shown_bytes
from dnnp.core.schedule.bound import makespan_bound, rate_bound
from dnnp.core.schedule.complete import around
from dnnp.core.schedule.list_schedules import listed
from dnnp.core.schedule.optimal import optimal
from dnnp.core.schedule.order_kernel import (
    FOUND,
    GROW,
    LEVEL,
    LIMIT,
    MODE,
    MORE,
    ROOT,
    WORK,
    close,
    search,
)
from dnnp.core.schedule.order_search import empty_state, grown, limits_of
from dnnp.core.schedule.order_tables import order_tables
from dnnp.core.schedule.problem import (
    TOLERANCE,
    Answer,
    Batch,
    BlockArrays,
    ScheduleProblem,
    Wanted,
    problem_of,
    span_of,
    steady_memory,
    violations,
)
from dnnp.core.schedule.repetend import check_repeats
from dnnp.core.schedule.starts import left_shift, tightened, topological_order

MOST_BLOCKS, MOST_PACKED = 256, 4096
"""Of a micro-batch, for `tessel` and `tessel_fast`."""

STEPS = 3_000_000_000
"""Steps that the search may take for an effort of 1; some 6e8 take a second."""

SLICE = 2_000_000
"""Steps between two calls of `stop`."""

END_EFFORT = 0.1
"""For warm-up and cool-down."""

CHECK_EFFORT = 0.01
"""For finding out whether warm-up and cool-down can run at all."""

LEAST_PERIOD = 1e-6
"""Over all times and delays: the period where units have nothing to do."""


@dataclass(frozen=True)
class TesselResult:
    """The best repetend, and how it was found."""

    repetend: Repetend
    index: Ints
    """i64[k], micro-batch of each block of the repetend."""
    tried: tuple[int, ...] = ()
    """Index sets, for N_R = 1, 2, ..."""
    improved: int = 1
    """Number of times that a better repetend was found."""
    complete: bool = True
    """True if the search ended by itself: all was tried, or the bound of the period was reached."""

    @property
    def micro_batches(self) -> int:
        """N_R of the repetend."""
        return int(self.index.max()) + 1


def tessel_schedule(batch: Batch, wanted: Wanted, run: SearchContext) -> Answer:
    """Method `tessel` for all micro-batches; errors as `tessel` and `answered`."""
    found = tessel(batch.placement, lazy=wanted.lazy, most=wanted.most_in_flight, run=run)
    if not found.complete and not run.stop():
        run.warn("tessel: not all was tried; a larger --effort may find a shorter period")
    return answered(found, batch, run)


def tessel_fast_schedule(batch: Batch, wanted: Wanted, run: SearchContext) -> Answer:
    """Method `tessel-fast` for all micro-batches; errors as `tessel_fast` and `answered`."""
    return answered(tessel_fast(batch.placement, run), batch, run)


def answered(found: TesselResult, batch: Batch, run: SearchContext) -> Answer:
    """A schedule around the repetend; of few micro-batches, or where it holds too much, any.

    Raises LimitError: none was found within the memory limits.
    """
    problem, repetend = batch.problem, found.repetend
    count, method = problem.unroll, repetend.method
    run.report_progress("warm-up and cool-down", value=repetend.period_s, what="period")
    enough = batch.bound * (1 + TOLERANCE)
    part = run.alone().scaled(END_EFFORT)
    start = around(batch.placement, repetend, count, enough, part)
    if start is None:
        run.warn(f"{method}: {count} micro-batches in the order of the repetend hold too much")
    if start is None or (count <= found.micro_batches and span_of(problem, start) > enough):
        made = optimal(problem, start, part)
        start, method = made.start, made.named(method)
    return Answer(start, method, batch.bound, repetend=repetend, rate_s=repetend.rate_s)


def tessel(
    placement: Placement, *, lazy: bool = True, most: int | None = None, run: SearchContext = PLAIN
) -> TesselResult:
    """Search for a repetend by Algorithm 1.

    At most `most` micro-batches make a repetend (N_R); absent: as many as there are blocks, or
    fewer if memory runs out. Not `lazy`: every better one gets its best warm-up and cool-down.

    Raises
    ------
    InfeasibleError
        No repetend keeps within the memory limits.
    LimitError
        None was found with the effort, or before the end.
    UsageError
        There are no blocks, or too many, or replicas that take turns.
    """
    problem = _repeatable(placement, "tessel", MOST_BLOCKS)
    tries = _TesselSearch(placement, problem, lazy, run)
    tries.try_all(problem.b if most is None else most)
    if tries.best is None and tries.complete:
        raise InfeasibleError(
            f"Tessel's search finds no repetend of placement '{placement.name}' within the limits"
        )
    if tries.best is None:
        raise LimitError("Tessel's search was stopped before it found a repetend")
    status = "interrupted" if run.stop() and not tries.complete else "feasible"
    return replace(
        tries.best,
        repetend=replace(tries.best.repetend, status=status),
        tried=tuple(tries.tried),
        improved=tries.improved,
        complete=tries.complete,
    )


class _TesselSearch:
    """The state of Algorithm 1."""

    def __init__(
        self, placement: Placement, problem: ScheduleProblem, lazy: bool, run: SearchContext
    ) -> None:
        self.placement, self.problem, self.lazy, self.run = placement, problem, lazy, run
        self.whole = float(problem.time.sum() + problem.delay.sum())
        self.low = rate_bound(problem)
        if not LEAST_PERIOD * self.whole < self.low < np.inf:
            self.low = LEAST_PERIOD * self.whole or 1.0
        self.slack = TOLERANCE * max(self.whole, self.low)
        self.left = int(min(STEPS * run.effort, 2**62))
        self.most = max(self.left, 1)
        self.tables = order_tables(problem)
        self.sets = _sets_of(problem, self.tables.path)
        self.orders = empty_state(self.tables)
        self.best: TesselResult | None = None
        self.tried: list[int] = []
        self.improved = 0
        self.complete = False

    def try_all(self, most: int) -> None:
        """Try N_R = 1, 2, ..., most."""
        self._aim(max(self.whole, self.low))
        for top in range(most):
            if self._try(top) == PAUSED:
                return
            if self._reached() or (top > 0 and not self.tried[-1]):
                break
        self.complete = self._reached() or int(self.sets.state[GAVE_UP]) == 0

    def _try(self, top: int) -> int:
        """Try all index sets whose largest index is `top`; `ENDED` or `PAUSED`."""
        state = self.sets.state
        state[STAGE], state[DEPTH], state[ALONE], state[TRIED] = NEXT, 0, 0, 0
        self.sets.micro[:] = 0
        self.sets.micro[self.sets.topo[0]] = top + 1
        self.tried.append(0)
        found: TesselResult | None = None
        while True:
            answer = self._scan(top)
            self.tried[-1] = int(state[TRIED])
            if answer == IS_FOUND:
                found = self._tightened() or found
                continue
            if found is not None:
                # A search that is cut short completes what it has.
                self._take(found)
                found = None
            if answer != SOLVED or self._reached():
                return ENDED if answer == SOLVED else answer
            state[ALONE] = 0

    def _scan(self, top: int) -> int:
        """Continue the scan to its next result."""
        state = self.sets.state
        value = np.inf if self.best is None else self.best.repetend.period_s
        self.run.report_progress("index sets", value=value, bound=self.low, what="period")
        while self.left > 0 and not self.run.stop():
            self.run.report_progress(share=1 - self.left / self.most)
            if self.limits is None:  # whatever the set, no order has the period aimed at
                return SOLVED if state[ALONE] else ENDED
            state[LEFT] = given = min(SLICE, self.left)
            answer = int(scan(self.sets, self.tables.pairs, self.limits, self.orders, top))
            self.left -= given - int(state[LEFT])
            if answer == CRAMPED:
                more = grown(self.orders)
                self.orders = more or self.orders
                if more is None:
                    state[GAVE_UP] += 1
                    state[STAGE] = NEXT
            elif answer != PAUSED:
                return answer
        return PAUSED

    def _tightened(self) -> TesselResult | None:
        """The order that was found at its least period; aims below that, for the same set."""
        rough = self.orders.gap.max(axis=0)
        short = tightened(self.problem, rough - rough.min(), self.target, self.low)
        if short is None or short[0] > self.target + self.slack / 2:
            return None
        period, start = short
        if violations(self.problem, start, period):
            return None
        self.sets.state[STAGE], self.sets.state[ALONE] = BEGIN, 1
        self._aim(period - self.slack)
        return _made(self.problem, "tessel", period, start, self.sets.micro.copy(), self.low)

    def _take(self, found: TesselResult) -> None:
        """Keep a better repetend if warm-up and cool-down exist."""
        if _completes(self.placement, found, self.lazy, self.run):
            self.best = found
            self.improved += 1
        best = self.best
        self._aim(best.repetend.period_s - self.slack if best else max(self.whole, self.low))

    def _aim(self, period: float) -> None:
        self.target = period
        self.limits = limits_of(self.tables, period, self.problem.capacity)

    def _reached(self) -> bool:
        """True if no repetend can be better."""
        return self.best is not None and self.best.repetend.period_s <= self.low + self.slack


def _repeatable(placement: Placement, name: str, most: int) -> ScheduleProblem:
    """The blocks of one micro-batch, at most `most`; refuses what search `name` is not for."""
    count = len(placement.blocks)
    if not 0 < count <= most:
        raise UsageError(f"method {name} takes 1 to {most} blocks, not {count}")
    if placement.turns > 1:
        raise UsageError(f"method {name} takes no blocks whose replicas take turns")
    problem = problem_of(placement, 1)
    check_repeats(problem)
    return problem


def _made(
    problem: ScheduleProblem, name: str, period: float, start: Floats, index: Ints, low: float
) -> TesselResult:
    """A repetend of search `name`, which no period is below `low`."""
    repetend = Repetend(
        unroll=1,
        period_s=period,
        start_s=start[None, :],
        memory_bytes=steady_memory(problem, start, period),
        period_bound_s=min(low, period),
        status="feasible",
        span_s=span_of(problem, start),
        method=name,
    )
    return TesselResult(repetend, index)


def _completes(placement: Placement, found: TesselResult, lazy: bool, run: SearchContext) -> bool:
    """True if warm-up and cool-down are found that keep the limits of memory.

    `lazy`: any will do, and the order of the repetend almost always has some.
    """
    count = 2 * found.micro_batches
    enough = np.inf if lazy else makespan_bound(placement, count)
    for most, effort in ((enough, END_EFFORT), (0.0, CHECK_EFFORT)):
        part = run.alone().scaled(effort)
        if around(placement, found.repetend, count, most, part) is not None:
            return True
    return False


# Index sets

IS_FOUND, SOLVED, ENDED, PAUSED, CRAMPED = range(1, 6)
"""Answers of `scan`: an order that meets the target; the index set has no other; there are no more
index sets; the work of this call is done; the arrays of the search over orders are full."""

STAGE, DEPTH, ALONE, LEFT, TRIED, GAVE_UP = range(6)
"""Entries of the state that a scan is continued from.

ALONE: stay with the current index set; LEFT: steps that this call may take; TRIED and GAVE_UP
count index sets, and those that took more memory than there is."""

NEXT, BEGIN, WITHIN = range(3)
"""Stages: go to the next index set, begin with the current one, go on with its orders."""

NEVER = 1 << 62
"""Nodes before the search over orders starts again."""


class IndexSets(NamedTuple):
    """b blocks of one micro-batch on D units, and the index set that a scan has come to."""

    blocks: BlockArrays
    topo: Ints
    """i64[b], all blocks, each after those that it comes after."""
    part: Ints
    """i64[b], number of the part that a block is in; parts do not wait for each other."""
    room: Floats
    """f64[D], most that the blocks may hold, a tolerance included."""
    path: Floats
    """f64[b, b], longest path of waits between two blocks."""
    micro: Ints
    """i64[b], the current index set."""
    most: Ints
    """i64[b], scratch: largest index of each block."""
    least: Ints
    """i64[parts], scratch: smallest index in each."""
    held: Floats
    """f64[D], scratch."""
    state: Ints


def _sets_of(problem: ScheduleProblem, path: Floats) -> IndexSets:
    """Arrays of a scan that has not begun."""
    part = connected(problem.b, problem.tail, problem.head)
    little = TOLERANCE * float(np.abs(problem.memory).sum() + problem.fixed.sum())
    return IndexSets(
        blocks=problem.arrays,
        topo=topological_order(problem.b, problem.tail, problem.head),
        part=part,
        room=problem.capacity + little,
        path=path,
        micro=np.zeros(problem.b, dtype=np.int64),
        most=np.zeros(problem.b, dtype=np.int64),
        least=np.zeros(int(part.max()) + 1, dtype=np.int64),
        held=np.zeros(problem.units),
        state=np.zeros(6, dtype=np.int64),
    )


@callee
def _possible(sets, p, top):  # type: ignore[no-untyped-def]
    """True if indices of the first p + 1 blocks could belong to a new set that fits.

    New: some index is `top`, and every part has a 0, as its micro-batches could be renumbered.
    Blocks that have no index yet get at most what Property 4.2 allows, and a unit holds at entry
    what earlier repetends have left there.
    """
    most, least, held, blocks = sets.most, sets.least, sets.held, sets.blocks
    for d in range(len(held)):
        held[d] = 0.0
    for n in range(len(least)):
        least[n] = top
    highest = 0
    for q in range(len(most)):
        v = sets.topo[q]
        if q <= p:
            most[v] = sets.micro[v]
            least[sets.part[v]] = min(least[sets.part[v]], most[v])
        else:
            most[v] = top
            for k in range(blocks.before_ptr[v], blocks.before_ptr[v + 1]):
                most[v] = min(most[v], most[blocks.before[k]])
            least[sets.part[v]] = 0
        highest = max(highest, most[v])
        if q <= p or blocks.memory[v] < 0:
            for k in range(blocks.ptr[v], blocks.ptr[v + 1]):
                held[blocks.unit[k]] += blocks.memory[v] * most[v]
    fits = highest == top
    for n in range(len(least)):
        fits = fits and least[n] == 0
    for d in range(len(held)):
        fits = fits and held[d] <= sets.room[d]
    return fits


@callee
def _next_set(sets, top):  # type: ignore[no-untyped-def]
    """Go to the next index set; False if there is none, or no work left to find one.

    Depth first along the topological order, large indices first.
    """
    state, index, blocks = sets.state, sets.micro, sets.blocks
    b, p = len(index), state[DEPTH]
    while p >= 0 and state[LEFT] > 0:
        v = sets.topo[p]
        index[v] -= 1
        if index[v] < 0:
            p -= 1
            continue
        state[LEFT] -= b + len(blocks.before) + len(blocks.unit)
        if not _possible(sets, p, top):
            continue
        if p == b - 1:
            state[DEPTH] = p
            return True
        p += 1
        v = sets.topo[p]
        most = top
        for k in range(blocks.before_ptr[v], blocks.before_ptr[v + 1]):
            most = min(most, index[blocks.before[k]])
        index[v] = most + 1
    state[DEPTH] = p
    return False


@callee
def _begin(sets, pairs, limits, orders):  # type: ignore[no-untyped-def]
    """Set the gaps of an index set before any branching."""
    gap, index, counts = orders.gap, sets.micro, orders.counts
    for i in range(len(gap)):
        for j in range(len(gap)):
            gap[i, j] = sets.path[i, j]
            orders.stamp[i, j] = 0
    for p in range(len(pairs.first)):
        i, j = pairs.first[p], pairs.second[p]
        for _ in range(2):
            within = sets.blocks.time[i] + (index[i] - index[j] - 1) * limits.period
            gap[i, j] = max(gap[i, j], within)
            i, j = j, i
        orders.boxed[p] = 0
        for n in range(4):
            orders.box[p, n] = 0
    close(gap)
    for n in range(len(counts)):
        counts[n] = 0
    counts[LIMIT], counts[MODE] = NEVER, ROOT


@lean
def scan(sets, pairs, limits, orders, top):  # type: ignore[no-untyped-def]
    """Look for an order of an index set whose largest index is `top`, at the period of `limits`.

    Continues at the stage of the state; `IS_FOUND` leaves the set in `sets.micro` and its gaps in
    `orders.gap`.
    """
    state, counts = sets.state, orders.counts
    b = len(sets.micro)
    while state[LEFT] > 0:
        if state[STAGE] == NEXT:
            if state[ALONE]:
                return SOLVED
            if _next_set(sets, top):
                state[TRIED] += 1
                state[STAGE] = BEGIN
            elif state[DEPTH] < 0:
                return ENDED
            continue
        if state[STAGE] == BEGIN:
            _begin(sets, pairs, limits, orders)
            state[LEFT] -= b * b * b
            state[STAGE] = WITHIN
        before, mode = counts[WORK], counts[MODE]
        answer = search(pairs, limits, orders, state[LEFT])
        state[LEFT] -= counts[WORK] - before
        if answer == FOUND:
            return IS_FOUND
        if answer == GROW:
            return CRAMPED
        if answer != MORE:
            state[STAGE] = NEXT
        elif mode == ROOT:
            counts[LEVEL] += 1
    return PAUSED


# The reduced search


def tessel_fast(placement: Placement, run: SearchContext = PLAIN) -> TesselResult:
    """Make a repetend without a search.

    Raises
    ------
    InfeasibleError
        The repetend exceeds a memory limit; others may not.
    LimitError
        No warm-up or cool-down within the limits was found.
    UsageError
        There are no blocks, or too many, or replicas that take turns.
    """
    name = "tessel-fast"
    problem = _repeatable(placement, name, MOST_PACKED)
    whole = float(problem.time.sum() + problem.delay.sum())
    step = packed(problem)
    period = float((step + problem.time).max()) or LEAST_PERIOD * whole or 1.0
    index = indices(problem, step, period)
    start = step - index * period
    made = _made(problem, name, period, start - start.min(), index, float(problem.load().max()))
    limit = problem.capacity + problem.fixed
    held = made.repetend.memory_bytes
    over = np.flatnonzero(held > limit + TOLERANCE * np.abs(problem.memory).sum())
    if len(over):
        d = int(over[0])
        raise InfeasibleError(
            f"the repetend of {name} holds {shown_bytes(held[d], 6)} on {problem.names[d]}, its "
            f"limit is {shown_bytes(limit[d], 6)}; other searches may find one"
        )
    if not _completes(placement, made, True, run):
        raise LimitError(f"{name} finds no warm-up or cool-down within the memory limits")
    status = "interrupted" if run.stop() else "feasible"
    return replace(made, repetend=replace(made.repetend, status=status))


def packed(problem: ScheduleProblem) -> Floats:
    """Start of each block where units run their blocks without waiting; f64[b].

    Unit by unit each block that has no start yet gets the first that is free on all of its units.
    """
    whole = topological_order(problem.b, problem.tail, problem.head)
    alone = left_shift(problem, whole)
    place = place_of(whole)
    turns: dict[int, None] = {}
    for d, mine in enumerate(problem.by_unit()):
        mine = mine[np.lexsort((place[mine], alone[mine]))]
        turns |= dict.fromkeys((mine[::-1] if d % 2 else mine).tolist())
    none = np.zeros(0, dtype=np.int64)
    free = replace(problem, memory=np.zeros(problem.b), tail=none, head=none, delay=np.zeros(0))
    start = listed(free, np.array([*turns], dtype=np.int64), 2 * float(problem.time.sum()) + 1.0)
    if start is None:
        raise LimitError("the blocks do not fit one after the other")
    return start


def indices(problem: ScheduleProblem, step: Floats, period: float) -> Ints:
    """Micro-batch of each block: the least with which it ends before blocks after it start; i64[b].

    Repetend r runs block i of micro-batch index[i] + r, from r * period + step[i] on.
    """
    index = np.zeros(problem.b, dtype=np.int64)
    ptr, after = csr(problem.tail, np.arange(len(problem.head)), problem.b)
    late = step[problem.tail] + problem.time[problem.tail] + problem.delay - step[problem.head]
    turns = np.maximum(np.ceil(late / period - TOLERANCE), 0).astype(np.int64)
    for i in topological_order(problem.b, problem.tail, problem.head)[::-1].tolist():
        waits = after[ptr[i] : ptr[i + 1]]
        index[i] = (index[problem.head[waits]] + turns[waits]).max(initial=0)
    return index
