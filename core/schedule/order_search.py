"""Exact search for repetends over the orders of blocks on units, for any times and placements.

Two blocks on one unit that repeat every T run one after the other: for some whole k the second one
starts between t_i + k T and (k + 1) T - t_j after the first one. With k fixed for all pairs,
difference constraints remain, and the memory of a unit depends on these k alone. So the search
branches on k. A matrix of longest paths bounds k; it is kept closed, and every gap in it is rounded
up to the next one with room for the blocks in between. Pairs of blocks that take and release the
same memory bound k by a limit of memory.

A schedule of some period has the same orders at any longer one, so that feasibility is monotone in
the period.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from dnnp.core.cost.load_formula import ROUNDING
from dnnp.core.model.graph import Floats, Ints, distinct, offsets
from dnnp.core.model.search_context import PLAIN, SearchContext
from dnnp.core.schedule import order_kernel
from dnnp.core.schedule.bound import window
from dnnp.core.schedule.order_tables import OrderTables, start_matrix
from dnnp.core.schedule.problem import TOLERANCE, ScheduleProblem, span_of, steady_memory
from dnnp.core.schedule.starts import tightened

MOST_BLOCKS = 400
"""The matrix takes time that grows with their cube."""

CHUNK = 4_000_000
"""Entries of the matrix that are visited between two calls of `stop`."""

MOST_TRAIL = 8_000_000
"""Saved entries of the matrix; a search that needs more ends without an answer."""

FIRST_NODES, MORE_NODES = 64, 2
"""Nodes before the first restart, and how many times more before each later one."""

MOST_HEADS = 64
"""Sets of blocks of a unit that bound the span, by when they start at the earliest."""

FINE = 1e-9
"""Smallest relative improvement that is looked for."""


@dataclass
class Meter:
    """The work that is left: entries of the matrix that searches look at."""

    left: float
    run: SearchContext = PLAIN
    stopped: bool = False
    given: float = 0.0
    """The work that was left at first."""

    def __post_init__(self) -> None:
        self.given = max(self.left, 1.0)

    @property
    def over(self) -> bool:
        """True once the search has to end."""
        self.run.report_progress(share=1 - max(self.left, 0.0) / self.given)
        self.stopped = self.stopped or self.run.stop()
        return self.stopped or self.left <= 0

    @contextmanager
    def part(self, share: float) -> Iterator[Meter]:
        """A meter with a share of what is left, whose use is subtracted here at the end."""
        given = self.left * share
        part = self.limited(given)
        yield part
        self.left -= given - part.left
        self.stopped = self.stopped or part.stopped

    def limited(self, left: float) -> Meter:
        """A meter with the limit `left`, and the share of the progress that goes with it."""
        done = 1 - max(self.left, 0.0) / self.given
        run = self.run.phase("", done, min(done + left / self.given, 1.0))
        return Meter(left, run, self.stopped)


class FoundOrder(NamedTuple):
    """Answer of one phase."""

    start: Floats | None
    """f64[b]; None: none was found, and if `complete` there is none."""
    value: float
    """The number that was minimised, of `start`; inf without one."""
    bound: float
    """Nothing smaller is possible; inf: proven that there is no schedule."""
    complete: bool
    """Proven: value equals bound."""


class Demand(NamedTuple):
    """The limits of a schedule that is looked for."""

    period: float
    cap: Floats
    """f64[D], what blocks may hold on each unit."""
    span: float | None = None


def search_orders(
    tables: OrderTables, asked: Demand, meter: Meter, weight: Floats | None = None
) -> tuple[Floats | None, bool]:
    """A schedule that meets the demand; True: the result is proven.

    Returns (start, True), (None, True): there is none, or (None, False). `weight` f64[P], how
    often pairs failed, is used and changed.
    """
    limits = limits_of(tables, asked.period, asked.cap)
    if limits is None:
        return None, True
    state = _new_state(tables, asked)
    if weight is not None:
        state = state._replace(weight=weight)
    count = state.counts
    proven = tables.even or asked.span is not None
    # What is found at the root is never undone: level 0 saves nothing.
    if not order_kernel.is_open(tables.pairs, limits, state):
        meter.left -= count[order_kernel.WORK]
        return None, proven
    count[order_kernel.LEVEL] += 1
    given, more = float(meter.left), FIRST_NODES
    count[order_kernel.LIMIT] = more
    while True:
        status = order_kernel.search(tables.pairs, limits, state, CHUNK)
        meter.left = given - float(count[order_kernel.WORK])
        if status == order_kernel.NONE:
            return None, proven
        if status == order_kernel.FOUND:
            start = _checked(tables.problem, state.gap, asked)
            if start is not None:
                return start, True
        if meter.over:
            return None, False
        if status == order_kernel.GROW:
            more_room = grown(state)
            if more_room is None:
                return None, False
            state = more_room
        if status == order_kernel.RESTART:
            more = more * MORE_NODES
            count[order_kernel.LIMIT] = count[order_kernel.NODES] + more
            order_kernel.undo(state, 0)
            count[order_kernel.DEPTH], count[order_kernel.MODE] = 0, order_kernel.SELECT
            count[order_kernel.LEVEL] += 1


def _new_state(tables: OrderTables, asked: Demand) -> order_kernel.OrderState:
    """The arrays of a search, with the gaps known before it."""
    return empty_state(tables)._replace(gap=start_matrix(tables, asked.period, asked.span))


def empty_state(tables: OrderTables) -> order_kernel.OrderState:
    """The arrays of a search, with room for some saved entries."""
    n, pairs = tables.problem.b, len(tables.pairs.first)
    room = 8 * (n**2 + pairs)
    return order_kernel.OrderState(
        gap=np.zeros((n, n)),
        stamp=np.zeros((n, n), dtype=np.int64),
        trail_at=np.zeros(room, dtype=np.int64),
        trail_old=np.zeros(room),
        queue=np.zeros(pairs + 1, dtype=np.int64),
        queued=np.zeros(pairs, dtype=np.bool_),
        dirty=np.zeros(tables.problem.units, dtype=np.bool_),
        box=np.zeros((pairs, 4), dtype=np.int64),
        boxed=np.zeros(pairs, dtype=np.int64),
        weight=np.ones(pairs),
        stack=np.zeros((4 * pairs + 16, 5), dtype=np.int64),
        counts=np.zeros(order_kernel.COUNTS, dtype=np.int64),
    )


def grown(state: order_kernel.OrderState) -> order_kernel.OrderState | None:
    """The same with more room; None: there is no more."""
    size = 2 * len(state.trail_at)
    if size > MOST_TRAIL:
        return None
    return state._replace(
        trail_at=np.resize(state.trail_at, size),
        trail_old=np.resize(state.trail_old, size),
        stack=np.resize(state.stack, (2 * len(state.stack), 5)),
    )


def _checked(problem: ScheduleProblem, gap: Floats, asked: Demand) -> Floats | None:
    """Earliest starts by a matrix where all orders are known; None: rounding got in the way."""
    rough = gap.max(axis=0)
    found = tightened(problem, rough - rough.min(), asked.period, asked.period)
    if found is None or found[0] > asked.period * (1 + ROUNDING):
        return None
    start = found[1]
    slack = 4 * TOLERANCE * asked.period
    if asked.span is not None and span_of(problem, start) > asked.span + slack:
        return None
    held = steady_memory(problem, start, asked.period) - problem.fixed
    scale = TOLERANCE * float(np.abs(problem.memory).sum())
    return start if (held <= asked.cap + scale).all() else None


def root_bounds(tables: OrderTables, asked: Demand) -> tuple[Floats, float] | None:
    """Least memory of each unit, f64[D], and the shortest span, before any branching.

    None: no schedule meets the demand.
    """
    limits = limits_of(tables, asked.period, asked.cap)
    if limits is None:
        return None
    state = _new_state(tables, asked)
    if not order_kernel.is_open(tables.pairs, limits, state):
        return None
    units = range(tables.problem.units)
    least = [order_kernel.memory_lower_bound(tables.pairs, state.box, d) for d in units]
    return np.array(least, dtype=np.float64), _shortest_span(tables.problem, state.gap)


def _shortest_span(problem: ScheduleProblem, gap: Floats) -> float:
    """Lower bound of the span: the longest path, or blocks of one unit with head and tail."""
    heads = gap.max(axis=0)
    tails = (gap + problem.time[None, :]).max(axis=1) - problem.time
    best = float((heads + problem.time + tails).max())
    for mine in problem.by_unit():
        best = max(best, window(heads[mine], problem.time[mine], tails[mine], MOST_HEADS))
    return best


MOST_SUMS = 64
"""Distinct sums of times of other blocks, at most."""

MOST_SUMMED = 32
"""Blocks of a unit beyond which no sums are made."""

MOST_INTERVALS = 8
"""Intervals of a pair; those with the smallest gaps between them are merged beyond."""


def limits_of(tables: OrderTables, period: float, cap: Floats) -> order_kernel.OrderLimits | None:
    """Intervals of all pairs at a period; None: some pair finds no place.

    `cap` f64[D]: memory of each unit beyond its fixed memory.
    """
    problem = tables.problem
    if period not in tables.known:
        tables.known.clear()
        tables.known[period] = _intervals(tables, period)
    intervals = tables.known[period]
    if intervals is None:
        return None
    slack = TOLERANCE * float(np.abs(problem.memory).sum())
    limit = np.where(tables.tracked, cap + slack, np.inf)
    finite = np.isfinite(limit).tolist()
    active = tables.shared.copy()
    for p in np.flatnonzero(~active).tolist():
        active[p] = any(finite[d] for d in tables.units[p])
    return order_kernel.OrderLimits(period, tables.eps(period), *intervals, limit, active)


def _intervals(tables: OrderTables, period: float) -> tuple[Ints, Floats, Floats] | None:
    """`OrderLimits.ptr`, `low` and `high`."""
    problem, eps = tables.problem, tables.eps(period)
    load = problem.load()
    times = [
        tuple(sorted(t for t in problem.time[mine].tolist() if t > 0)) for mine in problem.by_unit()
    ]
    # A second block without time starts before the first one starts again.
    loose = (np.zeros(1), np.array([period - 8 * eps]))
    known: dict[object, tuple[Floats, Floats]] = {}
    parts = []
    pairs = tables.pairs
    for p, (i, j) in enumerate(zip(pairs.first.tolist(), pairs.second.tolist(), strict=True)):
        if not tables.shared[p]:
            parts.append(loose)
            continue
        own = (float(problem.time[i]), float(problem.time[j]))
        key = (own, tables.units[p])
        if key not in known:
            low, high = np.array([own[0]]), np.array([period - own[1]])
            for d in tables.units[p]:
                if len(times[d]) > MOST_SUMMED:
                    continue
                sums = _sums_without(times[d], own)
                free = max(period - float(load[d]), 0.0)
                if len(sums) and len(low):
                    low, high = _meet(low, high, own[0] + sums, free, eps)
            known[key] = _few(low, high)
        parts.append(known[key])
        if not len(parts[-1][0]) or parts[-1][1][-1] < parts[-1][0][-1] - eps:
            return None
    if not parts:
        return np.zeros(1, dtype=np.int64), np.zeros(0), np.zeros(0)
    ends = offsets([len(low) for low, _ in parts])
    return ends, np.concatenate([x[0] for x in parts]), np.concatenate([x[1] for x in parts])


@lru_cache(maxsize=4096)
def _sums_without(times: tuple[float, ...], own: tuple[float, float]) -> Floats:
    """Ascending sums of all sets of `times` without `own`; empty: too many."""
    rest = list(times)
    for t in own:
        rest.remove(t)
    sums = np.zeros(1)
    for t in rest:
        sums = distinct(np.concatenate([sums, sums + t]))
        if len(sums) > MOST_SUMS:
            return np.zeros(0)
    return sums


def _meet(
    low: Floats, high: Floats, begin: Floats, free: float, eps: float
) -> tuple[Floats, Floats]:
    """Intervals cut down to where a unit that is idle for `free` may start the second block.

    Between two starts a unit runs the first block and a set of others, `begin` in all, and idles
    for `free` at most.
    """
    new = np.flatnonzero(np.diff(begin) > free + 4 * eps) + 1
    first = begin[np.concatenate([[0], new])]
    last = begin[np.concatenate([new - 1, [len(begin) - 1]])] + free
    left = np.maximum(low[:, None], first[None, :])
    right = np.minimum(high[:, None], last[None, :])
    some = left <= right + eps
    return left[some], np.maximum(left, right)[some]


def _few(low: Floats, high: Floats) -> tuple[Floats, Floats]:
    """At most `MOST_INTERVALS`: those with the smallest gaps between them are merged."""
    if len(low) <= MOST_INTERVALS:
        return low, high
    gaps = low[1:] - high[:-1]
    kept = np.sort(np.argsort(-gaps, kind="stable")[: MOST_INTERVALS - 1])
    return np.concatenate([low[:1], low[kept + 1]]), np.concatenate([high[kept], high[-1:]])
