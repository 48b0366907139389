"""One pass of the dynamic program of `core.pipeline.grid`: all states, step by step."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dnnp.core.cost.divisor import exact_divisor
from dnnp.core.model.graph import Floats, Ints, offsets
from dnnp.core.model.run import Run
from dnnp.core.pipeline.bound import matching
from dnnp.core.pipeline.grid.kernel import (
    FULL,
    NONE,
    GridLayer,
    GridRoom,
    GridStep,
    GridTable,
    close_paths,
    extend,
)
from dnnp.core.pipeline.grid.order import best_order, links_of, members
from dnnp.core.pipeline.grid.plan import steps_of
from dnnp.core.pipeline.problem import TOLERANCE, ScheduleProblem

MOST_STATES = 1_000_000
"""After one step, at effort 1."""

MOST_KEPT = 4_000_000
"""After all steps of one pass, at effort 1."""

MOST_WORK = 20_000_000
"""Places tried and states compared in all passes, at effort 1."""

CHUNK = 500_000
"""Of these between two looks at `Run.stop`."""


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
                    new=int(step.block >= 0),
                    time=ticks.time[names],
                    conflict=step.conflict,
                    anchor=step.anchor,
                    moved=step.moved,
                    pick=step.pick,
                    level=step.level,
                    span=step.span,
                    is_first=first[names],
                    is_last=last[names],
                    unit=np.array([d for d, _ in step.units], dtype=np.int64),
                    unit_ptr=offsets([len(s) for s in slots]),
                    unit_slot=slot,
                    unit_gain=problem.memory[names[slot]],
                    keep=step.keep,
                    component=step.component,
                    wish=step.wish,
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

    def __init__(self, problem: ScheduleProblem, ticks: Ticks, run: Run) -> None:
        self.problem, self.ticks, self.stop = problem, ticks, run.stop
        self.most_states = int(MOST_STATES * run.effort)
        self.most_kept = int(MOST_KEPT * run.effort)
        self.left = int(MOST_WORK * run.effort)
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
            layer = self._layer(step.names, arrays, layers[-1], least, limit)
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
        self, names: list[int], step: GridStep, before: GridLayer, least: Ints, limit: Floats
    ) -> GridLayer | None:
        """All states after a step on blocks `names`; None: too many."""
        near = np.ascontiguousarray(least[np.ix_(names, names)])
        far = np.ascontiguousarray(-near.T)
        room = GridRoom(self.ticks.period, near, far, self.most_span, limit[step.unit])
        n, most = len(before.costs), self.most_states
        states = np.empty((most, len(step.keep)), dtype=np.int32)
        cost, parent, phase, shift, chain = np.empty((5, most), dtype=np.int32)
        out = GridLayer(states, cost, parent, phase, shift)
        heads = np.zeros(1 << max(10, (4 * n).bit_length()), dtype=np.int32)
        count, work = np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64)
        table = GridTable(chain, heads, count, work)
        tables = [tuple(named) for named in (step, room, out, table)]
        row = 0
        while row < n:
            work[0] = CHUNK
            self.left -= CHUNK
            row = extend(tuple(before), row, *tables)
            self.left += int(work[0])
            if row == FULL or self.left <= 0 or self.stop():
                return None
        alive = np.flatnonzero(chain[: count[0]] >= 0)
        return GridLayer(*(a[alive] for a in out))

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
