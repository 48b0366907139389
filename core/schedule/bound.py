"""Lower bounds of periods, memory and makespans of all schedules.

Load: a unit runs one block at a time, and so do blocks of which every two share a unit.

Residence: memory held on a unit, integrated over time. Every release of memory can be matched with
memory taken before it, along dependencies; the longest path between the two is the least time that
it is held (`matching`, a transport problem: any feasible matching is a bound, by weak duality).
Within a limit of M no more than M times the length of the schedule fits. Besides, while a block
that releases m runs, the unit holds at most M - m: it held at most M before that block started, and
no other block of a positive time may start meanwhile. So M minus the memory held is at least m, and
m times the time of the block adds to the residence. (Not where blocks without time take memory:
those may start at any time.)

Contraction: while a block on all units runs, no other does. Cutting these intervals out of a
schedule leaves one of the other blocks, without delays; all bounds hold for that one, and the time
cut out is added.

Bounds are exact sums and quotients of the given numbers, up to rounding of the last digits.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from dnnp.core.cost.load_formula import ROUNDING, exact_divisor
from dnnp.core.model.graph import Bools, Floats, Ints, distinct, place_of
from dnnp.core.model.schedule import Placement
from dnnp.core.schedule.problem import TOLERANCE, ScheduleProblem, problem_of
from dnnp.core.schedule.starts import topological_order

MOST_BLOCKS = 2_000
"""Blocks of a micro-batch above which residence is not computed: it takes their square."""

MOST_TURNS = 64
"""Micro-batches with different homes that a makespan bound distinguishes."""

CLIQUE_STEPS = 2_000
"""Steps of the search for blocks of which every two share a unit."""


def left_out(placement: Placement) -> list[str]:
    """Warnings about parts of a placement too large for the bounds."""
    found = []
    if len(placement.blocks) > MOST_BLOCKS:
        found.append(
            f"{len(placement.blocks)} blocks a micro-batch are above {MOST_BLOCKS}: no bound "
            "counts how long memory is held"
        )
    if placement.turns > MOST_TURNS:
        found.append(
            f"replicas take turns for {placement.turns} micro-batches, above {MOST_TURNS}: the "
            "bound of the makespan counts the first ones only"
        )
    return found


def load_bound(problem: ScheduleProblem) -> float:
    """Period: the largest total time of blocks that cannot overlap, s.

    On one unit, or on several of which every two blocks share some (found by a search of bounded
    effort; the bound holds wherever it ends).
    """
    if not problem.b:
        return 0.0
    return max(float(problem.load().max(initial=0.0)), _clique(problem))


def rate_bound(problem: ScheduleProblem, known: Residence | None = None) -> float:
    """Least time per micro-batch within `problem.capacity`, for any unrolling, s.

    `max(load, residence / memory)` (see the module); inf if one block does not fit.
    """
    bound, held = load_bound(problem), known or Residence(problem)
    if held.too_small():
        return math.inf
    for cut, work in zip(held.cut, held.work, strict=True):
        total = work.sum(axis=0)
        some = total > 0
        with np.errstate(divide="ignore"):
            time = total[some] / problem.capacity[some]
        bound = max(bound, float(time.max(initial=0.0)) + float(cut.sum()))
    return bound / problem.unroll


def memory_bound(problem: ScheduleProblem, period: float, known: Residence | None = None) -> float:
    """No repetend of this period holds less on its fullest unit; `fixed` included.

    Residence over the period, rounded up to a multiple of the quantum of all memories of a unit;
    none where something is left behind.
    """
    held = known or Residence(problem)
    least = held.single.copy()
    for cut, work in zip(held.cut, held.work, strict=True):
        left = period - float(cut.sum())
        if left > 0:
            least = np.maximum(least, work.sum(axis=0) / left)
    least[~problem.tracked()] = 0.0
    mine = problem.by_unit()
    for d in np.flatnonzero(least > 0).tolist():
        quantum = exact_divisor(problem.memory[mine[d]])
        if quantum:
            least[d] = math.ceil(least[d] / quantum * (1 - TOLERANCE)) * quantum
    return float((least + problem.fixed).max(initial=0.0))


def makespan_bound(placement: Placement, micro_batches: int) -> float:
    """No schedule of so many micro-batches within the limits of memory ends earlier, s.

    For every unit and any of its blocks: the earliest start, all the work, and the shortest tail
    (with and without contraction); the residence of all micro-batches within the limit; and the
    longest path. inf if one block does not fit.
    """
    turns = placement.turns
    if turns > MOST_TURNS:  # the bound of some of the micro-batches
        micro_batches = min(micro_batches, MOST_TURNS)
    problem = problem_of(placement, min(turns, micro_batches))
    if not problem.b:
        return 0.0
    held = Residence(problem)
    if held.too_small():
        return math.inf
    u = problem.unroll
    count = np.array([(micro_batches - j + u - 1) // u for j in range(u)], dtype=np.float64)
    best = 0.0
    for one, cut, work in zip(held.versions, held.cut, held.work, strict=True):
        aside = float(count @ cut)
        head, tail = ends(one)
        best = max(best, aside + float((head + one.time + tail).max()))
        total = count @ work
        for d, mine in enumerate(one.by_unit()):
            busy = mine[one.time[mine] > 0]
            if len(busy):
                load = count[busy // one.k] * one.time[busy]
                best = max(best, aside + window(head[busy], load, tail[busy]))
            if total[d] > 0:
                first = float(head[mine[one.memory[mine] > 0]].min())
                last = float(tail[mine[one.memory[mine] < 0]].min())
                room = float(one.capacity[d])
                best = max(best, aside + first + (total[d] / room if room else math.inf) + last)
    return best


def longest_paths(problem: ScheduleProblem) -> Floats:
    """Least time from the start of i to that of j, by dependencies; f64[b, b], -inf: none."""
    into = np.full((problem.b, problem.b), -np.inf)
    np.fill_diagonal(into, 0.0)
    for e in by_depth(problem).tolist():
        i, j = problem.tail[e], problem.head[e]
        np.maximum(into[j], into[i] + (problem.time[i] + problem.delay[e]), out=into[j])
    return into.T


def by_depth(problem: ScheduleProblem) -> Ints:
    """Dependencies in an order where all that lead to a block come before those that leave it."""
    place = place_of(topological_order(problem.b, problem.tail, problem.head))
    return np.argsort(place[problem.tail], kind="stable")


def ends(problem: ScheduleProblem) -> tuple[Floats, Floats]:
    """Longest path that leads to the start of each block, and that follows its end; f64[b]."""
    head, tail = np.zeros(problem.b), np.zeros(problem.b)
    order = by_depth(problem).tolist()
    for e in order:
        i, j = problem.tail[e], problem.head[e]
        head[j] = max(head[j], head[i] + problem.time[i] + problem.delay[e])
    for e in reversed(order):
        i, j = problem.tail[e], problem.head[e]
        tail[i] = max(tail[i], problem.delay[e] + problem.time[j] + tail[j])
    return head, tail


def window(head: Floats, load: Floats, tail: Floats, most_heads: int | None = None) -> float:
    """Lower bound of the last end on one unit that runs its blocks one after the other.

    None of a set of blocks starts before the least of their heads, and at least the least of their
    tails follows them. Of all sets head + load + tail is largest for one of those with a
    head and a tail of at least some numbers (Carlier and Pinson, 1989). Of the heads the first
    `most_heads` are tried (None: all).
    """
    best = 0.0
    for h in distinct(head)[:most_heads].tolist():
        late = head >= h
        order = np.argsort(-tail[late], kind="stable")
        ends = np.cumsum(load[late][order]) + tail[late][order]
        best = max(best, h + float(ends.max()))
    return best


class Residence:
    """Least memory of units, of a problem and of its contraction if it has one.

    Attributes
    ----------
    versions
        The problem, and its contraction: the same blocks, less time.
    cut
        Of each version the time that was cut out, f64[u].
    work
        Of each version the residence of each micro-batch on each unit, f64[u, D]. 0 where a release
        may come before the memory is taken: the memory held might be negative.
    single
        Largest memory that one block takes, f64[D]; 0 where it might be released at once.
    """

    def __init__(self, problem: ScheduleProblem) -> None:
        self.problem = problem
        shared = _on_all(problem)
        self.versions, self.cut = [problem], [np.zeros(problem.unroll)]
        if (shared & (problem.time > 0)).any():
            device = np.bincount(problem.owner(), ~problem.is_link[problem.unit], problem.b) > 0
            time = np.where(shared | ~device, 0.0, problem.time)
            less = replace(problem, time=time, delay=np.zeros(len(problem.delay)))
            self.versions.append(less)
            self.cut.append(np.where(shared, problem.time, 0.0).reshape(problem.unroll, -1).sum(1))
        self.work = [np.zeros((problem.unroll, problem.units)) for _ in self.versions]
        self.single = np.zeros(problem.units)
        known = (problem.tail // max(problem.k, 1) == problem.head // max(problem.k, 1)).all()
        if known and problem.k <= MOST_BLOCKS and problem.memory.any():
            self._measure()

    def too_small(self) -> bool:
        """True if some unit cannot hold what it must."""
        slack = TOLERANCE * float(np.abs(self.problem.memory).sum() + self.problem.fixed.sum())
        return bool((self.problem.capacity < self.single - slack).any())

    def _measure(self) -> None:
        """Set `work` and `single`."""
        problem, k = self.problem, self.problem.k
        timeless = (problem.time == 0) & (problem.memory > 0)
        moves = [mine[problem.memory[mine] != 0] for mine in problem.by_unit()]
        for j in range(problem.unroll):
            for version, work in zip(self.versions, self.work, strict=True):
                paths = longest_paths(_part(version, j))
                for d, here in enumerate(moves):
                    mine = here[here // k == j]
                    work[j, d] = _residence(
                        problem.memory[mine], paths[np.ix_(mine - j * k, mine - j * k)]
                    )
                    if not timeless[here].any():
                        freed = np.maximum(-problem.memory[mine], 0.0)
                        work[j, d] += float(freed @ version.time[mine])
        for d, here in enumerate(moves):
            if all(np.isfinite(work[:, d]).all() for work in self.work):
                takes = here[(problem.memory[here] > 0) & (problem.time[here] > 0)]
                self.single[d] = problem.memory[takes].max(initial=0.0)
            else:
                for work in self.work:
                    work[:, d] = 0.0


def _residence(gain: Floats, between: Floats) -> float:
    """Least holding time weighted by memory; -inf: no matching."""
    if not len(gain):
        return 0.0
    flow = matching(gain, between)
    if flow is None:
        return -math.inf
    used = flow > 0
    return float((flow[used] * between[used]).sum())


def _part(problem: ScheduleProblem, j: int) -> ScheduleProblem:
    """Times and dependencies of micro-batch j alone."""
    k = problem.k
    mine = problem.tail // k == j
    return replace(
        problem,
        unroll=1,
        time=problem.time[j * k : (j + 1) * k],
        tail=problem.tail[mine] - j * k,
        head=problem.head[mine] - j * k,
        delay=problem.delay[mine],
    )


def _on_all(problem: ScheduleProblem) -> Bools:
    """Blocks that run on all devices that have anything to do, if there are several; bool[b]."""
    used = (problem.load() > 0) & ~problem.is_link
    if used.sum() < 2:
        return np.zeros(problem.b, dtype=np.bool_)
    hits = np.bincount(problem.owner(), used[problem.unit], problem.b)
    everywhere: Bools = hits == used.sum()
    return everywhere


def matching(gain: Floats, between: Floats) -> Floats | None:
    """Match taken memory (gain > 0) with releases; amounts f64[n, n], by taker and releaser.

    Of all matchings along `between`, the longest paths, f64[n, n], the one with the longest holding
    time, by successive longest augmenting paths. None: a release may come before its memory is
    taken, or not all is released.
    """
    whole = np.zeros(between.shape)
    take, give = np.flatnonzero(gain > 0), np.flatnonzero(gain < 0)
    supply, demand = gain[take].copy(), -gain[give]
    small = TOLERANCE * float(np.abs(gain).sum())
    if abs(supply.sum() - demand.sum()) > small:
        return None
    length = between[np.ix_(take, give)]
    flow = np.zeros(length.shape)
    small /= 1 + len(take) + len(give)
    while supply.max(initial=0.0) > small:
        # Longest paths from supplies, over releases and back along flow (Bellman-Ford).
        at_take = np.where(supply > small, 0.0, -np.inf)
        at_give = np.full(len(give), -np.inf)
        via_take, via_give = np.zeros(len(give), dtype=np.int64), np.full(len(take), -1)
        for _ in range(len(take) + 1):
            reach = at_take[:, None] + length
            best = reach.max(axis=0)
            better = _above(best, at_give)
            at_give[better], via_take[better] = best[better], reach.argmax(axis=0)[better]
            back = np.full(flow.shape, -np.inf)
            used = flow > 0  # only where there is a path
            back[used] = np.broadcast_to(at_give, flow.shape)[used] - length[used]
            most = back.max(axis=1)
            higher = _above(most, at_take)
            at_take[higher], via_give[higher] = most[higher], back.argmax(axis=1)[higher]
            if not higher.any():
                break
        goal = int(np.where(demand > small, at_give, -np.inf).argmax())
        if not (demand[goal] > small and at_give[goal] > -np.inf):
            return None
        route, r = [], goal
        amount = float(demand[goal])
        while True:
            a = int(via_take[r])
            route.append((a, r, 1.0))
            if via_give[a] < 0:
                amount = min(amount, float(supply[a]))
                break
            r = int(via_give[a])
            route.append((a, r, -1.0))
            amount = min(amount, float(flow[a, r]))
        for a, r, sign in route:
            flow[a, r] = max(flow[a, r] + sign * amount, 0.0)
        supply[route[-1][0]] -= amount
        demand[goal] -= amount
    whole[np.ix_(take, give)] = flow
    return whole


def _above(new: Floats, old: Floats) -> Bools:
    """Longer paths, by more than rounding: without that they could go in circles."""
    known = new > -np.inf
    longer = np.zeros(len(new), dtype=np.bool_)
    longer[known] = new[known] > old[known] + ROUNDING * (1.0 + np.abs(new[known]))
    return longer


def _clique(problem: ScheduleProblem) -> float:
    """Largest total time found of blocks of which every two share a unit, but not all the same.

    Such blocks run on several units each.
    """
    wide = np.flatnonzero((np.diff(problem.ptr) > 1) & (problem.time > 0)).tolist()
    homes: dict[frozenset[int], float] = {}
    for i in wide:
        home = frozenset(problem.unit[problem.ptr[i] : problem.ptr[i + 1]].tolist())
        homes[home] = homes.get(home, 0.0) + float(problem.time[i])
    ranked = sorted(homes.items(), key=lambda item: -item[1])[:CLIQUE_STEPS]
    best, steps = 0.0, 0
    stack: list[tuple[float, list[tuple[frozenset[int], float]]]] = [(0.0, ranked)]
    while stack and steps < CLIQUE_STEPS:
        weight, rest = stack.pop()
        best = max(best, weight)
        steps += 1
        if rest and weight + sum(w for _, w in rest) > best:
            (home, time), others = rest[0], rest[1:]
            stack.append((weight, others))
            stack.append((weight + time, [o for o in others if o[0] & home]))
    return best
