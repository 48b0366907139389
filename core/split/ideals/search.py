"""The exact search over order ideals (2020 paper, sections 5.1.1 and 5.3, Appendices B and C).

Optimal ordered splits, with proof, for any classes of devices, capacities, replicas and both
objectives of training. Instead of the paper's table over pairs of ideals a target is decided
(`dnnp.core.split.ideals.decide`): the least number of devices that cover each ideal at loads up to
the target. A feasible target gives a better split; an infeasible one returns the least load above
it that it met, below which no split can be, so the search ends with a certificate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dnnp.core.cost.items import Items, LinearizedItems
from dnnp.core.cost.load import stage_load
from dnnp.core.cost.load_formula import LARGEST, ROUNDING
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.graph import Floats, Ints
from dnnp.core.model.plan import Block
from dnnp.core.model.search_context import PLAIN, SearchContext
from dnnp.core.split.ideals.contract import chained, contract_items, joined
from dnnp.core.split.ideals.decide import Goal, decide, new_walk
from dnnp.core.split.ideals.decide_simple import decide_plain, is_plain, new_plain_walk
from dnnp.core.split.ideals.lattice import Lattice, make_lattice
from dnnp.core.split.ideals.problem import (
    NONE,
    DPTable,
    PricedGraph,
    is_weighty,
    least_devices,
    may_bind,
    new_table,
    priced_graph,
    symmetry_chains,
    turned,
    with_rest,
)

MAX_IDEALS = 1_500_000
MAX_BLOCKS = 1_000_000_000
"""Blocks to walk at effort 1; some tens of nanoseconds each."""
SLOWER = 5
"""Time of a block in the general kernel over that in the plain one."""
SLOWER_PEAK = 12
"""Time of a block whose peak memory has to be known, over that in the general kernel."""

FIRST_BLOCKS, FIRST_BLOCKS_PLAIN = 10_000_000, 1_000_000
"""Blocks that deciding a target may take at first; fewer for the plain kernel."""
MORE_BLOCKS, MANY_BLOCKS = 1.5, 4
"""Growth of that number for the next target where it was too few; and near the bound."""
CLOSE, CLOSE_PLAIN = 0.003, 0.015
"""Relative width between bound and value from which the bound is tried to be the value; wider for
the plain kernel, whose splits are seldom far above the optimum."""
NEAR = 0.002
"""Relative width between a bound and an undecided target from which that one is tried again."""
BEYOND = 0.015
"""Relative distance of the next target from the expected optimum; then 1.3 times that."""
CHUNK = 4_000_000
"""Blocks between two looks at the clock."""
MAX_STATES = 40_000_000
"""Ideals times mixes of device classes; 18 bytes each."""


@dataclass(frozen=True)
class IdealResult:
    """Result of the search."""

    blocks: list[Block] | None
    """The best split if it beats the incumbent."""
    value: float
    """Its objective, or the incumbent's."""
    bound: float
    """No ordered split has a smaller objective."""
    ideals: int
    """Ideals of the contracted graph; 0: too many."""
    walked: int
    """Blocks that were walked."""


@dataclass(frozen=True, eq=False)
class _Side:
    """Items and their ideals from one end, and what is known of the other."""

    arrays: PricedGraph
    lattice: Lattice
    behind: Ints
    """See `Goal`."""
    known: float


class _OutError(Exception):
    """The budget of blocks is spent, or the run is to stop."""


def ideal_search(
    problem: SplitProblem, *, incumbent: float = np.inf, floor: float = 0.0, near: float = 0.0,
    run: SearchContext = PLAIN,
) -> IdealResult:  # fmt: skip
    """Find an ordered split below `incumbent`, or prove that there is none.

    Parameters
    ----------
    incumbent
        Objective of the best split known.
    floor
        A proven bound.
    near
        Where the optimum is expected: it begins there, without small budgets; 0: unknown.
    run
        Its effort scales the number of blocks that may be walked, of which its share is taken.
        What there is is returned once it is to stop.
    """
    best: list[Block] | None = None
    bound, ideals, walked = np.inf, 0, 0
    if len(problem.item_choices) > 1:
        run = run.without_bounds()
    for items in problem.item_choices:
        choice = _Choice(problem, items, incumbent, floor, run)
        choice.near = near
        choice.search()
        if choice.blocks is not None:
            best, incumbent = choice.blocks, choice.value
        bound = min(bound, choice.bound)
        ideals = max(ideals, choice.ideals)
        walked += choice.walked
    return IdealResult(best, incumbent, min(bound, incumbent), ideals, walked)


def window_search(
    problem: SplitProblem,
    blocks: Sequence[Block],
    *,
    incumbent: float,
    width: int,
    run: SearchContext = PLAIN,
) -> IdealResult:
    """Search the splits near a given one, where all of them are too many.

    Two items that are `width` or more places apart in the order of `blocks` keep that order, so
    there are at most n * 2^(width - 1) ideals. The bound holds for these splits alone.
    """
    kept = problem.kept_items(blocks)
    if kept is None:
        return IdealResult(None, incumbent, 0.0, 0, 0)
    items, at = kept
    rank = np.argsort(items.order)
    order = np.lexsort((rank, at))
    tail = np.concatenate([items.tail, order[:-width]])
    head = np.concatenate([items.head, order[width:]])
    near = replace(items, tail=tail, head=head)
    return _within(problem, near, incumbent, run)


def coarse_search(
    problem: SplitProblem, *, incumbent: float, share: float, run: SearchContext = PLAIN
) -> IdealResult:
    """Search the splits that cut no chain of items, up to `share` of the work a chain.

    The bound holds for these splits alone.
    """
    items = problem.item_choices[0]
    line = problem.line(items)
    coarse = chained(line, items, items.order, share)
    return _within(problem, coarse, incumbent, run)


def _within(
    problem: SplitProblem, items: Items, incumbent: float, run: SearchContext
) -> IdealResult:
    """Search the splits that some items allow, which are not all."""
    heard = run.without_bounds()

    def report(found: list[Block], value: float, _: str) -> None:
        run.report_incumbent(found, value, "heuristic")

    part = replace(heard, max_gap=0.0, report_incumbent=report)
    choice = _Choice(problem, items, incumbent, 0.0, part)
    choice.search()
    return IdealResult(choice.blocks, choice.value, choice.bound, choice.ideals, choice.walked)


class _Choice:
    """The search for one direction of the backward pass."""

    def __init__(
        self,
        problem: SplitProblem,
        items: Items,
        incumbent: float,
        floor: float,
        run: SearchContext,
    ) -> None:
        self.problem, self.items, self.run = problem, items, run
        self.value, self.bound, self.floor = incumbent, floor, floor
        self.blocks: list[Block] | None = None
        self.ideals = self.walked = 0
        self.low, self.refused, self.near = floor, False, 0.0

    def search(self) -> None:
        """Search until optimal or out of budget; leaves value, bound and blocks."""
        effort = self.run.effort
        self.left, self.chunk = int(MAX_BLOCKS * effort), CHUNK
        line = self._reduced_line()
        if not np.isfinite(line.work).any(axis=0).all():
            self.bound = np.inf
            return
        if line.exactly:
            line = line.counted()
        counts = [d.count for d in line.devices]
        main = len(counts) - 1 if line.exactly else counts.index(max(counts))
        self.classes = [c for c in range(len(counts)) if c != main] + [main]
        most = int(MAX_IDEALS * min(max(effort, 1.0), 4.0))
        lattice = make_lattice(line.n, line.tail, line.head, most)
        if lattice is None and not (len(line.labels) or self.run.stop()):
            line = symmetry_chains(self.problem.graph, line, self.problem.options)
            # Where copies are the reason there are few without them: a look that costs little.
            lattice = make_lattice(line.n, line.tail, line.head, most // 10 + 1)
        if lattice is None or self.run.stop():
            return
        self.ideals = lattice.size
        arrays = priced_graph(self.problem.graph, line, self.classes, self.problem.options)
        arrays = with_rest(arrays, lattice)
        if lattice.size * int(arrays.strides[-1]) > MAX_STATES:
            return
        self.line, self.lattice = line, lattice
        self.second: _Side | None = None
        self.first = self.next = _Side(arrays, lattice, np.zeros(lattice.size, np.int16), 0.0)
        self.kernel = decide_plain if is_plain(arrays) else decide
        # What is proven of a pass, or of one order of a block's nodes, is not proven of splits.
        self.whole = self.problem.options.objective != "gpipe"
        if self.kernel is decide:
            self.left //= SLOWER
        if arrays.peak:
            self.left //= SLOWER_PEAK
            self.whole = False
            self.chunk //= SLOWER_PEAK
        self.most = max(self.left, 1)
        try:
            if self.problem.options.objective == "gpipe":
                self._least_sum(arrays)
            else:
                gap = max(self.run.wide_gap, ROUNDING)
                low, high = self._least(arrays, 0, np.array([np.inf]), self.bound, self.value, gap)
                self.bound = max(self.bound, low if low < high * (1 - ROUNDING) else high)
                self._certify(arrays)
        except _OutError:
            # Peak memory in one order of a block's nodes proves nothing about other orders.
            if self.problem.options.objective != "gpipe" and not (arrays.peak and self.refused):
                self.bound = max(self.bound, self.low)

    def _reduced_line(self) -> LinearizedItems:
        """Lay the items out after all contractions that are safe below the incumbent."""
        items, options = self.items, self.problem.options
        order = items.order
        # Replicas share what a stage costs.
        below = self.value * options.max_replicas
        line = self.problem.line(items)
        fewer = joined(line, items, order, below)
        if fewer.count < items.count:
            items, order = fewer, fewer.order
            line = self.problem.line(items)
        weighty = np.zeros(line.n, dtype=np.bool_)
        if options.max_replicas > 1 and self.problem.graph.backward.any():
            weighty = is_weighty(self.problem.graph, line, options)
        if line.exactly:  # fewer blocks are no better then
            return line
        weighty |= (line.labels != 0).any(axis=0)
        fewer = contract_items(
            line,
            items,
            order,
            options,
            below=below,
            binding=may_bind(self.problem.graph, line, options),
            weighty=weighty,
        )
        if fewer.count < items.count:
            line = self.problem.line(fewer)
        return line

    def _least(
        self, arrays: PricedGraph, vary: int, target: Floats, low: float, high: float,
        gap: float = ROUNDING,
    ) -> tuple[float, float]:  # fmt: skip
        """Least target of pass `vary` between a bound and a value to a gap, the others as given.

        Improves `self.blocks`. Returns (bound, least value that was reached). On `_OutError` the
        bound proven so far is in `self.low`.
        """
        self.low = low
        guess = 1.5 * low if low > 0 else np.inf
        # Targets from `unknown` on take more blocks than are allowed at present.
        unknown, halve, plain = np.inf, False, self.kernel is decide_plain
        close = CLOSE_PLAIN if plain else CLOSE
        allowed = FIRST_BLOCKS_PLAIN if plain else FIRST_BLOCKS
        near, self.near, further = self.near, 0.0, BEYOND
        if near:
            allowed, close = self.left, np.inf
        while low < np.inf and (high == np.inf or high - low > gap * high):
            if low < near < high:
                goal = near
            elif high == np.inf and unknown == np.inf:
                goal = guess
            elif unknown < np.inf or (halve and high - low > close * high):
                goal = low + (min(high, unknown) - low) / 2
            else:
                goal = min(high * (1 - ROUNDING), float(np.nextafter(high, 0.0)))
            goal = max(goal, low)
            limits = target.copy()
            limits[vary] = goal
            found, above = self._pass(arrays, vary, limits, allowed)
            if found is None:
                unknown, halve, allowed = goal, True, int(MORE_BLOCKS * allowed)
                if goal == np.inf or goal - low <= NEAR * goal:
                    unknown, allowed = 2 * goal - low, MANY_BLOCKS * allowed
            elif found:
                high = min(goal, self._take(arrays, found, vary), LARGEST)
                unknown, halve, near = np.inf, True, 0.0
            else:
                near, further = near * (1 + further), 1.3 * further
                low = max(above, float(np.nextafter(goal, np.inf)))
                self.low = low
                self.run.report_progress(bound=min(low, high) if self.whole else 0.0)
                guess = max(2 * goal, low)
                if unknown - low <= NEAR * low:
                    unknown = np.inf
        return low, high

    def _pass(
        self, arrays: PricedGraph, vary: int, target: Floats, allowed: int
    ) -> tuple[list[tuple[int, int, int, int]] | None, float]:
        """Decide a target: (blocks as (from, to, class, replicas), or [], or None: no budget)."""
        side = self.next if target[vary] <= self.next.known * (1 + ROUNDING) else self.first
        if self.kernel is decide_plain:
            arrays = side.arrays
        lattice = side.lattice
        # Finite, so that what a device cannot run stays above it.
        target = np.minimum(target, LARGEST)
        states = int(arrays.strides[-1])
        table = new_table(lattice.size, states)
        known = side.known or np.inf
        goal = Goal(target, vary, np.array([np.inf, 0.0]), side.behind, known)
        first = 0
        while first < lattice.size - 1:
            step, chunk = self.kernel, min(self.chunk, allowed, self.left)
            stopped = self.run.stop() or self.left <= 0
            if stopped or chunk <= 0:
                if table.min_devices[-1].min() < NONE:
                    break  # what is left could only better the split that is found
                if stopped:
                    raise _OutError
                return None, 0.0
            # A pass may be one of many; all together walk no more than is left.
            self.run.report_progress(share=1 - self.left / self.most)
            new = new_walk if self.kernel is decide else new_plain_walk
            walk = new(arrays, lattice.size)
            first, walked = step(arrays, lattice, goal, table, walk, first, chunk)
            self.walked += walked
            self.left -= walked
            allowed -= walked
        self.refused |= goal.above[1] > 0
        last = lattice.size - 1
        largest = np.where(table.min_devices[last] == NONE, np.inf, table.max_load[last])
        state = int(np.lexsort((table.min_devices[last], largest))[0]) if lattice.size > 1 else 0
        if table.min_devices[last, state] == NONE:
            return [], float(goal.above[0])
        if self.kernel is decide_plain and first >= lattice.size > 1:
            self._turn(side, table, float(target[0]))
        path = []
        ideal = last
        n_classes = len(self.classes)
        while ideal > 0:
            c, more = int(table.choice[ideal, state]) % n_classes, int(table.choice[ideal, state])
            replicas = more // n_classes + 1
            before = int(table.parent[ideal, state])
            path.append((before, ideal, c, replicas))
            if c < n_classes - 1:
                state -= replicas * int(arrays.strides[c])
            ideal = before
        if lattice is self.lattice:
            return path[::-1], float(goal.above[0])
        return [(last - b, last - a, c, r) for a, b, c, r in path], float(goal.above[0])

    def _turn(self, side: _Side, table: DPTable, target: float) -> None:
        """Go on from the other end, with what a whole pass has found below its target."""
        behind = least_devices(side.lattice, table)[::-1].copy()
        if self.second is None:
            lattice = self.lattice.turned()
            self.second = replace(self.first, arrays=turned(side.arrays, lattice), lattice=lattice)
        other = self.second if side.lattice is self.lattice else self.first
        self.next = replace(other, behind=behind, known=target)

    def _take(self, arrays: PricedGraph, path: list[tuple[int, int, int, int]], vary: int) -> float:
        """Keep a split if it beats the incumbent; return the largest load of pass `vary`."""
        line, blocks, loads = self.line, [], []
        for before, after, c, replicas in path:
            nodes = line.nodes_of(self.problem.graph, self.lattice.between(before, after))
            device = next(
                d for d in self.problem.devices if d.name == line.devices[self.classes[c]].name
            )
            blocks.append(Block(nodes, device, replicas))
            load = stage_load(
                self.problem.graph,
                self.problem.units,
                nodes,
                device,
                self.problem.options,
                replicas,
            )
            loads.append((load.load_s, load.forward_s or 0.0, load.backward_s or 0.0))
        largest = np.array(loads).max(axis=0)
        gpipe = self.problem.options.objective == "gpipe"
        value = float(largest[1] + largest[2] if gpipe else largest[0])
        if value < self.value * (1 - ROUNDING):
            self.value, self.blocks = value, blocks
            self.run.report_incumbent(blocks, value, "exact")
            self.run.report_progress(value=value)
        return float(largest[1 + vary] if gpipe else largest[0])

    def _certify(self, arrays: PricedGraph) -> None:
        """Prove for any order of nodes what was proven for one.

        Peak memory was that of one order; here a lower bound of it for all orders stands in.
        """
        if not (arrays.peak and self.refused):
            return
        claimed, self.bound = self.bound, self.floor
        relaxed = arrays._replace(relaxed=1)
        found, _ = self._pass(relaxed, 0, np.array([claimed * (1 - ROUNDING)]), self.left)
        if found == []:
            self.bound = claimed

    def _least_sum(self, arrays: PricedGraph) -> None:
        """Least largest forward load plus least largest backward load.

        Walks the Pareto front: the least backward load for each limit of the forward load.
        """
        endless = np.array([np.inf, np.inf])
        least_ahead, _ = self._least(arrays, 0, endless, 0.0, np.inf)
        limit, behind = np.inf, 0.0
        while True:
            self.bound = max(self.bound, min(self.value, least_ahead + behind))
            cutoff = self.value - least_ahead
            if behind >= cutoff * (1 - ROUNDING):
                break
            found, _ = self._pass(arrays, 1, np.array([limit, cutoff * (1 - ROUNDING)]), self.left)
            if not found:
                if found is None:
                    raise _OutError
                break
            reached = self._take(arrays, found, 1)
            _, behind = self._least(arrays, 1, np.array([limit, np.inf]), behind, reached)
            _, ahead = self._least(
                arrays, 0, np.array([np.inf, behind * (1 + ROUNDING)]), least_ahead, np.inf
            )
            if not ahead * (1 - ROUNDING) < limit:
                raise _OutError  # the front goes on, but rounding hides where
            limit = ahead * (1 - ROUNDING)
            if limit < least_ahead * (1 - ROUNDING):
                break
        self.bound = self.value
