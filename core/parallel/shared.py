"""The best parallel plan with stages that all devices share.

A plan has two numbers: the largest load of a device's own stage, and the time of all shared stages.
For a limit of the first, and memory divided in two, `share` finds the least of the second. That
falls as the limit rises, so an interval of limits holds no plan better than its low end plus the
least shared time at its high end. Intervals are halved, those of the least such bound first; where
the plan found does not fit into memory, it is the memory of shared stages that is divided.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from dnnp.core.cost.load_formula import MARGIN, ROOM
from dnnp.core.model.errors import InfeasibleError, LimitError
from dnnp.core.model.graph import Ints
from dnnp.core.model.hybrid import HybridBlock, HybridProblem
from dnnp.core.model.plan import CLOSED
from dnnp.core.model.search_context import PLAIN as PLAIN_RUN
from dnnp.core.model.search_context import Run
from dnnp.core.parallel.cover import AGAIN, PLAIN
from dnnp.core.parallel.family import all_ends, ends_of_orders
from dnnp.core.parallel.problem import (
    METHOD,
    costs_of,
    memory_of,
    shared_memory,
    shared_time,
    value_of,
)
from dnnp.core.parallel.search import (
    HybridSolution,
    Space,
    fastest,
    items_between,
    plan_hybrid,
    simple_bound,
    space_of,
)
from dnnp.core.parallel.share import Labels, Share, share_cover, way_to

MOST_SETS = 1200
"""Sets of items up to which all are taken."""

MOST_LABELS = 2_000_000
"""Labels of one search, at most."""

FEW_LABELS = 4096
"""Labels that there is room for at first."""

SEARCHES = 400
"""Pairs of limits that are tried, times the effort."""

ORDER_SEARCHES = 24
"""The same along one order."""

SHOWN = 8
"""Labels of a search that are made into plans."""


class _Box(NamedTuple):
    """Limits of plans: own loads and shared memory are in these ranges."""

    bound: float
    """No plan in it has a smaller value."""
    number: int
    low: float
    high: float
    least_memory: float
    most_memory: float


@dataclass
class _State:
    """What is known so far."""

    best: HybridSolution | None = None
    boxes: list[_Box] = field(default_factory=list)
    given_up: float = np.inf
    """Least bound of boxes that could not be searched."""
    number: int = 0

    @property
    def top(self) -> float:
        """Value that a plan must be below to be of use."""
        return np.inf if self.best is None else self.best.value * (1 - CLOSED)

    def add(self, bound: float, low: float, high: float, least: float, most: float) -> None:
        """Look at a box later, unless there is nothing to be found."""
        if low < high and least <= most and bound < self.top:
            self.number += 1
            heapq.heappush(self.boxes, _Box(bound, self.number, low, high, least, most))


def plan_shared(
    problem: HybridProblem, orders: Sequence[Ints], run: Run = PLAIN_RUN
) -> HybridSolution:
    """Find stages, those that are shared, and how many devices each of the others takes.

    `orders`: topological orders of the items to cut where the sets are too many to take all.

    Raises
    ------
    InfeasibleError
        It is proven that nothing fits.
    LimitError
        Nothing was found that fits, and nothing is proven.
    """
    low = simple_bound(problem)
    state = _State(_without_shared(problem, orders, run))
    every = all_ends(problem, MOST_SETS)
    complete = every is not None
    if every is not None:
        _search(space_of(problem, every, complete=True), low, state, SEARCHES, run)
    else:
        run.tell("too many sets in which stages may end: cut along orders")
        for order in orders:
            space = space_of(problem, ends_of_orders([order]), complete=False)
            state = _State(state.best)
            _search(space, low, state, ORDER_SEARCHES, run)
    if state.best is None:
        if complete and not state.boxes and state.given_up == np.inf:
            raise InfeasibleError(
                "infeasible: no parallel plan fits into the memory of the devices"
            )
        raise LimitError(
            "no parallel plan was found that fits, and it is not proven that none does"
        )
    bound = low
    if complete:
        left = min([box.bound for box in state.boxes], default=np.inf)
        bound = max(low, min(left, state.given_up, state.best.value))
    return replace(state.best, bound=min(bound, state.best.value))


def _without_shared(
    problem: HybridProblem, orders: Sequence[Ints], run: Run
) -> HybridSolution | None:
    """The best plan that has no shared stages; None: there is none, or none was found."""
    if problem.shared_only is not None and problem.shared_only.any():
        return None
    alone = replace(
        problem, whole=-1, shared_only=None, options=replace(problem.options, shared_stages=0)
    )
    try:
        return plan_hybrid(alone, orders, run.without_bounds())
    except (InfeasibleError, LimitError):
        return None


def _search(space: Space, low: float, state: _State, most: int, run: Run) -> None:
    """Look at boxes until none is left, or as many as `most` times the effort."""
    state.add(low, -1.0, space.top, 0.0, space.rules.room)
    for _ in range(max(int(most * run.effort), 1)):
        if not state.boxes or run.stop():
            break
        box = heapq.heappop(state.boxes)
        if box.bound >= state.top:
            state.boxes.clear()
            break
        if space.complete:
            run.stands(bound=box.bound)
        _look_into(space, box, low, state, run)
    state.boxes = [box for box in state.boxes if box.bound < state.top]


def _look_into(space: Space, box: _Box, floor: float, state: _State, run: Run) -> None:
    """Find the least shared time in a box, and what that leaves of it."""
    budget = min(state.top - max(box.low, 0.0), space.top)
    if budget < 0:
        return
    found = _labels(space, box, budget)
    if found is None:
        state.given_up = min(state.given_up, box.bound)
        return
    labels, ends, known = found
    if not known:
        state.given_up = min(state.given_up, box.bound)
    if not len(ends):
        return
    first: list[HybridBlock] = []
    for end in ends[:SHOWN]:
        blocks = _blocks(space, labels, int(end), box)
        first = first or blocks
        costs = costs_of(space.problem, blocks)
        value = value_of(blocks, costs)
        fits = memory_of(blocks, costs) <= space.problem.memory * ROOM
        if fits and (state.best is None or value < state.best.value):
            state.best = HybridSolution(blocks, value, 0.0)
            run.keep(blocks, value, METHOD)
            run.stands(value=value)
    costs = costs_of(space.problem, first)
    shared = float(labels.load[ends[0]]) - space.rules.slack * space.problem.options.shared_stages
    bound = max(box.bound, floor, max(box.low, 0.0) + shared)
    if memory_of(first, costs) <= space.problem.memory * ROOM:
        _halve(box, bound, value_of(first, costs) - shared_time(first, costs), shared, state)
        return
    # It takes more memory than there is: other plans share less, or have smaller stages.
    memory = shared_memory(first, costs)
    if not box.least_memory < memory <= box.most_memory * (1 + MARGIN):
        state.given_up = min(state.given_up, bound)  # rounding: neither part would be smaller
        return
    state.add(bound, box.low, box.high, box.least_memory, memory * (1 - MARGIN))
    state.add(bound, box.low, box.high, memory, box.most_memory)


def _halve(box: _Box, bound: float, own: float, shared: float, state: _State) -> None:
    """Divide what is left of a box: limits below the largest own load of the plan found.

    Of larger limits, and of those that the best value does not allow, there is no better plan.
    """
    high = min(own * (1 - CLOSED), state.top - shared, box.high)
    low = max(box.low, 0.0)
    if high <= low * (1 + CLOSED):
        return
    middle = (low + high) / 2
    memory = box.least_memory, box.most_memory
    state.add(bound, box.low, middle, *memory)  # of which the low end may be below 0
    state.add(max(bound, middle + shared), middle, high, *memory)


def _labels(space: Space, box: _Box, budget: float) -> tuple[Labels, Ints, bool] | None:
    """Labels of all items below the limits of a box, least shared time first; None: too many."""
    problem, rules = space.problem, space.rules
    first, last = (PLAIN, AGAIN) if rules.partwise else (rules.first, rules.last)
    weighed = bool(np.isfinite(rules.room))
    holds = bool((problem.held > 0).any() or (problem.kept > 0).any())
    most = problem.devices + problem.options.shared_stages
    only = np.zeros(len(space.member), dtype=np.int64)
    if problem.shared_only is not None:
        only = space.member[:, problem.shared_only].sum(axis=1).astype(np.int64)
    share = Share(
        degree=problem.whole,
        most=problem.options.shared_stages,
        budget=budget,
        room=box.most_memory,
        first=first,
        last=last,
        weighed=weighed,
        counted=(weighed and holds) or problem.options.micro_batches < most,
        only=only,
    )
    own = rules._replace(room=rules.room - box.least_memory)
    size = FEW_LABELS
    while True:
        found = share_cover(
            space.family, space.nets, space.swaps, space.teams, own, share, box.high, size
        )
        *arrays, _, first_end, enough, known = found
        if enough:
            break
        if size >= MOST_LABELS:
            return None
        size *= 8
    labels = Labels(*(np.asarray(values) for values in arrays))
    ends, end = [], int(first_end)
    while end >= 0:
        ends.append(end)
        end = int(labels.following[end])
    ends.sort(key=lambda e: (labels.load[e], labels.memory[e], labels.devices[e], e))
    return labels, np.array(ends, dtype=np.int64), bool(known)


def _blocks(space: Space, labels: Labels, end: int, box: _Box) -> list[HybridBlock]:
    """The stages of a label in the order of the pipeline."""
    ways = way_to(labels, end)
    later = [0] * len(ways)
    for w in range(len(ways) - 2, -1, -1):
        team = ways[w + 1][2]
        later[w] = later[w + 1] + (1 if team < 0 else int(space.teams.replicas[team]))
    room = space.problem.memory * ROOM - box.least_memory
    blocks = []
    for (small, large, team), after in zip(ways, later, strict=True):
        items, bits = items_between(space, small, large)
        if team < 0:
            again = space.problem.parts(items if -1 - team == AGAIN else items[:0])
            blocks.append(HybridBlock(items, space.problem.whole, 1, again, shared=True))
            continue
        degree, replicas = int(space.teams.degree[team]), int(space.teams.replicas[team])
        block = HybridBlock(items, degree, replicas, items[:0])
        blocks.append(fastest(space, items, bits, block, after, room))
    return blocks
