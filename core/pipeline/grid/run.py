"""One pass of the dynamic program of `core.pipeline.grid`: all states, step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from dnnp.core.cost.divisor import exact_divisor
from dnnp.core.model.graph import Bools, Floats, Ints, offsets
from dnnp.core.pipeline.bound import matching
from dnnp.core.pipeline.grid.kernel import FULL, NONE, close_paths, extend
from dnnp.core.pipeline.grid.order import best_order, links_of, members
from dnnp.core.pipeline.grid.plan import Step, steps_of
from dnnp.core.pipeline.problem import TOLERANCE, ScheduleProblem

MOST_STATES = 1_000_000
"""After one step, at effort 1."""

MOST_KEPT = 4_000_000
"""After all steps of one pass, at effort 1."""

MOST_WORK = 20_000_000
"""Places tried and states compared in all passes, at effort 1."""

CHUNK = 500_000
"""Of these between two looks at `stop`."""

Rows = np.ndarray[tuple[int, ...], np.dtype[np.int32]]


class Ticks(NamedTuple):
    """A problem in ticks."""

    tick: float
    """s."""
    period: int
    time: Ints
    delay: Ints


class Pass(NamedTuple):
    """Result of one pass."""

    start: Ints | None
    """Ticks; of all within the limit one with the shortest span. None: there is none."""
    unknown: bool = False
    """There may still be one: there were too many states, or it was told to stop."""
    limit: float = 0.0


class Holding(NamedTuple):
    """What a unit holds."""

    unit: int
    pairs: list[tuple[float, int, int]]
    """How much from the start of one block to that of another."""
    freed: float
    """Memory that blocks release, times their ticks; see `core.pipeline.bound`."""
    quantum: float
    """`exact_divisor` of what its blocks take and release."""


class GridStep(NamedTuple):
    """Of one step what kernels take; see `grid_kernel.extend`."""

    time: Ints
    unit_ptr: Ints
    unit_slot: Ints
    unit_gain: Floats
    unit: Ints
    is_first: Bools
    is_last: Bools


class GridLayer(NamedTuple):
    """All states after a step; see `grid_kernel.extend`."""

    states: Rows
    costs: Rows
    parent: Rows
    phase: Rows
    shift: Rows


class _GridPlan:
    """Steps, and the parts of them that kernels take."""

    def __init__(self, problem: ScheduleProblem, ticks: Ticks) -> None:
        self.links = links = links_of(problem)
        width, memory = np.diff(problem.ptr).tolist(), problem.memory.tolist()
        found = best_order(links, memory, width, ticks.time.tolist(), ticks.period)
        self.cost, order = found or (np.inf, [])
        self.steps = steps_of(links, memory, order)
        first = np.array([not b for b in links.before], dtype=np.bool_)
        last = np.array([not a for a in links.after], dtype=np.bool_)
        self.first, self.last = np.flatnonzero(first), np.flatnonzero(last)
        self.arrays = []
        for step in self.steps:
            names = np.array(step.names, dtype=np.int64)
            slots = [s for _, s in step.units]
            slot = np.concatenate([np.zeros(0, dtype=np.int64), *slots])
            self.arrays.append(
                GridStep(
                    ticks.time[names],
                    offsets([len(s) for s in slots]),
                    slot,
                    problem.memory[names[slot]],
                    np.array([d for d, _ in step.units], dtype=np.int64),
                    first[names],
                    last[names],
                )
            )


class GridProgram:
    """The dynamic program for one problem and period.

    Attributes
    ----------
    slack
        Memory this far above a limit counts as equal to it.
    unmatched
        Whether something may be released before it is taken.
    most_span
        Ticks. Some best repetend is no longer: with a gap of `far` periods between the starts of
        two sets of blocks the later ones can be moved down by a period. No dependency is longer;
        all that is taken before the gap and released after it is held for less time.
    """

    def __init__(
        self, problem: ScheduleProblem, ticks: Ticks, effort: float, stop: Callable[[], bool]
    ) -> None:
        self.problem, self.ticks, self.stop = problem, ticks, stop
        self.most_states = int(MOST_STATES * effort)
        self.most_kept = int(MOST_KEPT * effort)
        self.left = int(MOST_WORK * effort)
        self.slack = TOLERANCE * float(np.abs(problem.memory).sum() + problem.fixed.sum())
        self.plan = _GridPlan(problem, ticks)
        self.least = np.full((problem.b, problem.b), NONE, dtype=np.int64)
        np.fill_diagonal(self.least, 0)
        links = ticks.time[problem.tail] + ticks.delay
        np.maximum.at(self.least, (problem.tail, problem.head), links)
        close_paths(self.least)
        far = 2 + max(int(links.max(initial=0)) - 1, 0) // ticks.period
        self.most_span = (far * problem.b + 1) * ticks.period + int(ticks.time.max())
        found = [self._holding(d, members(blocks)) for d, blocks in self.plan.links.memory]
        self.holdings = [h for h in found if h is not None]
        self.unmatched = len(self.holdings) < len(found)

    def run(self, most: float) -> Pass:
        """Whether some repetend keeps to a limit on all units; one of the shortest span."""
        limit = np.minimum(self.problem.capacity, most - self.problem.fixed) + self.slack
        least = self._bounded(limit)
        if least is None:
            return Pass(None)
        layers = [GridLayer(*(np.zeros(s, dtype=np.int32) for s in ((1, 0), 1, 1, 1, 1)))]
        kept = 0
        for step, arrays in zip(self.plan.steps, self.plan.arrays, strict=True):
            layer = self._layer(step, arrays, layers[-1], least, limit)
            if layer is None:
                return Pass(None, True)
            layers.append(layer)
            kept += len(layer.costs)
            if not len(layer.costs):
                return Pass(None)
            if kept > self.most_kept:
                return Pass(None, True)
        return Pass(self._starts(layers), limit=most)

    def _holding(self, unit: int, blocks: list[int]) -> Holding | None:
        """What a unit holds; None: some release needs not come after what it releases."""
        mine = np.array(blocks, dtype=np.int64)
        gain, time = self.problem.memory[mine], self.ticks.time[mine]
        between = self.least[np.ix_(mine, mine)].astype(np.float64)
        between[between <= NONE] = -np.inf
        flow = matching(gain, between)
        if flow is None:
            return None
        timeless = ((gain > 0) & (time == 0)).any()
        freed = 0.0 if timeless else float(np.maximum(-gain, 0.0) @ time)
        used = np.argwhere(flow > 0).tolist()
        pairs = [(float(flow[a, c]), blocks[a], blocks[c]) for a, c in used]
        return Holding(unit, pairs, freed, exact_divisor(gain))

    def _bounded(self, limit: Floats) -> Ints | None:
        """Least distances of starts, with what limits of memory mean; None: a contradiction.

        A unit cannot hold more than the limit times the period (see `core.pipeline.bound`); what
        all others hold at least leaves the most that one may.
        """
        base, least = self.least, self.least.copy()
        first, last = self.plan.first, self.plan.last
        back = self.ticks.time[last][:, None] - self.most_span
        least[np.ix_(last, first)] = np.maximum(least[np.ix_(last, first)], back)
        for d, pairs, freed, quantum in self.holdings:
            most = float(limit[d])
            if not np.isfinite(most):
                continue
            if quantum:
                most = float(np.floor(most / quantum + TOLERANCE)) * quantum
            room = most * self.ticks.period - freed - sum(m * base[i, j] for m, i, j in pairs)
            for m, i, j in pairs:
                furthest = min(room / m + base[i, j] + TOLERANCE, self.most_span)
                least[j, i] = max(least[j, i], -int(np.floor(furthest)))
        return least if close_paths(least) else None

    def _layer(
        self, step: Step, arrays: GridStep, before: GridLayer, least: Ints, limit: Floats
    ) -> GridLayer | None:
        """All states after a step; None: too many."""
        names = np.array(step.names)
        near = np.ascontiguousarray(least[np.ix_(names, names)])
        far = np.ascontiguousarray(-near.T)
        n = len(before.costs)
        room = self.most_states
        out = np.empty((room, len(step.keep)), dtype=np.int32)
        cost, parent, phase, shift, chain = np.empty((5, room), dtype=np.int32)
        heads = np.zeros(1 << max(10, (4 * n).bit_length()), dtype=np.int32)
        count, work = np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64)
        row = 0
        while row < n:
            work[0] = CHUNK
            self.left -= CHUNK
            row = extend(
                before.states,
                before.costs,
                row,
                self.ticks.period,
                int(step.block >= 0),
                arrays.time,
                step.conflict,
                near,
                far,
                step.anchor,
                step.moved,
                step.pick,
                step.level,
                arrays.unit_ptr,
                arrays.unit_slot,
                arrays.unit_gain,
                limit[arrays.unit],
                step.span,
                arrays.is_first,
                arrays.is_last,
                self.most_span,
                step.keep,
                step.component,
                step.wish,
                out,
                cost,
                parent,
                phase,
                shift,
                chain,
                heads,
                count,
                work,
            )
            self.left += int(work[0])
            if row == FULL or self.left <= 0 or self.stop():
                return None
        alive = np.flatnonzero(chain[: count[0]] >= 0)
        return GridLayer(*(a[alive] for a in (out, cost, parent, phase, shift)))

    def _starts(self, layers: list[GridLayer]) -> Ints:
        """Starts of all blocks from the best last state, by going back."""
        period = self.ticks.period
        at = int(layers[-1].costs.argmin())
        route = []
        for layer in reversed(layers[1:]):
            route.append((at, int(layer.phase[at]), int(layer.shift[at])))
            at = int(layer.parent[at])
        start = np.zeros(self.problem.b, dtype=np.int64)
        # Equal for blocks whose distance is settled, whether they are still kept or not.
        group = np.arange(self.problem.b)
        at = 0
        for step, before, (after, phase, shift) in zip(
            self.plan.steps, layers, reversed(route), strict=False
        ):
            row = before.states[at].tolist()
            names = step.names
            if step.block >= 0:
                start[step.block] = phase + (start[names[0]] if row else 0)
                row.append(phase)
            if len(step.moved):
                a, c = int(step.anchor[0]), int(step.moved[0])
                there = start[names[a]] + row[c] - row[a] + shift * period
                mine = group == group[names[c]]
                start[mine] += there - start[names[c]]
                group[mine] = group[names[a]]
            at = after
        return start - start.min()
