"""The best parallel plan with stages that all devices share.

A plan has two numbers: the largest load of a device's own stage, and the time of all shared stages.
For a limit of the first, and memory divided in two, `share_cover` finds the least of the second.
That falls as the limit rises, so that low end plus least shared time at the high end of an interval
of limits is a lower bound of its plans. Intervals are bisected, those of the least bound first;
where the plan found does not fit into memory, the memory of shared stages is bisected.

A device has one stage of its own at most, and its part of every shared stage: its load is the sum,
and so is its memory. Stages are added from the end of the pipeline on, as in `cover`. The state of
a set of items are labels: ways to hold its items in stages, each with its use of

    the time and the memory of every device, by shared stages
    shared stages, replicas in all, and devices with own stages

Dominated labels are dropped. Loads of own stages are below one limit, the sum of shared ones below
another.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from dnnp.core.cost.load_formula import MARGIN, ROOM, load_of
from dnnp.core.kernels.kernel import callee, lean
from dnnp.core.model.errors import InfeasibleError, LimitError
from dnnp.core.model.graph import Floats, Ints
from dnnp.core.model.plan import CLOSED
from dnnp.core.model.search_context import PLAIN as PLAIN_RUN
from dnnp.core.model.search_context import SearchContext
from dnnp.core.parallel.cover import (
    AGAIN,
    PLAIN,
    all_ends,
    ends_of_orders,
    gather,
    holds,
    keeps,
    kind_in,
    most_in_flight,
)
from dnnp.core.parallel.problem import (
    METHOD,
    HybridBlock,
    HybridProblem,
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


class Share(NamedTuple):
    """Limits of stages on all devices."""

    degree: int
    """Position of the tensor-parallel degree of all devices."""
    most: int
    """Stages, at most."""
    budget: float
    """Time of all of them together, at most."""
    room: float
    """Bytes of all of them together, at most."""
    first: int
    last: int
    """Kinds of sums to try: `PLAIN`, `AGAIN` or both."""
    weighed: bool
    """True: memory is limited; else it is not counted."""
    counted: bool
    """True: replicas are counted, as they are limited."""
    only: Ints
    """i64[I], items of each set that cannot be in other stages."""


class Labels(NamedTuple):
    """Ways to divide sets into stages, in arrays with room for more."""

    load: Floats
    memory: Floats
    """Time and bytes of shared stages."""
    stages: Ints
    """Shared stages."""
    replicas: Ints
    """Of all stages."""
    devices: Ints
    """With stages of their own."""
    team: Ints
    """Team of the first stage; -1 - kind: it is shared, and of that kind of sums."""
    before: Ints
    """Label of what follows the first stage; -1: nothing does."""
    held: Ints
    """The set."""
    following: Ints
    """The next label of the same set; -1: there is none."""


class LabelTable(NamedTuple):
    """Labels while they are made."""

    labels: Labels
    head: Ints
    """i64[I], the first label of each set; -1: there is none."""
    made: Ints
    """i64[1], labels."""
    new: Ints
    """i64[5], of a label to be added: stages, replicas, devices, team, label before."""


@callee
def _add(table, at, load, memory):  # type: ignore[no-untyped-def]
    """Insert a label of a set unless it is dominated; drop dominated ones. False: full."""
    labels, head, new = table.labels, table.head, table.new
    e = head[at]
    while e >= 0:
        if (
            labels.load[e] <= load
            and labels.memory[e] <= memory
            and labels.stages[e] <= new[0]
            and labels.replicas[e] <= new[1]
            and labels.devices[e] <= new[2]
        ):
            return True
        e = labels.following[e]
    last, e = -1, head[at]
    while e >= 0:
        then = labels.following[e]
        if (
            labels.load[e] >= load
            and labels.memory[e] >= memory
            and labels.stages[e] >= new[0]
            and labels.replicas[e] >= new[1]
            and labels.devices[e] >= new[2]
        ):
            if last < 0:
                head[at] = then
            else:
                labels.following[last] = then
        else:
            last = e
        e = then
    i = table.made[0]
    if i == len(labels.load):
        return False
    table.made[0] = i + 1
    labels.load[i], labels.memory[i] = load, memory
    labels.stages[i], labels.replicas[i], labels.devices[i] = new[0], new[1], new[2]
    labels.team[i], labels.before[i], labels.held[i] = new[3], new[4], at
    labels.following[i] = head[at]
    head[at] = i
    return True


@callee
def _exceeds_capacity(rules, share, limit, rest, devices, load):  # type: ignore[no-untyped-def]
    """True if the remaining work exceeds the remaining capacity of all devices."""
    own = (rules.devices - devices) * (limit + rules.slack)
    return rest > own + rules.devices * (share.budget + rules.slack - load)


@callee
def _add_shared(a, share, limit, small, large, table):  # type: ignore[no-untyped-def]
    """Add labels of a set with a shared first stage; False: the table is full."""
    family, rules, sums = a.family, a.rules, a.scratch.sums
    labels, new = table.labels, table.new
    i, rest = share.degree, family.work[len(family.work) - 1] - family.work[large]
    room = True
    for asked in range(share.first, share.last + 1):
        kind = kind_in(family, small, large, asked)
        if family.unfit[large, kind, i] > family.unfit[small, kind, i]:
            continue
        compute = family.time[large, kind, i] - family.time[small, kind, i]
        load = load_of(rules.comm, sums[0, i], compute, 0.0, sums[1, i])
        fixed = family.fixed[large, kind, i] - family.fixed[small, kind, i]
        each = family.held[large, kind, i] - family.held[small, kind, i]
        if kind == 1:
            each += sums[2, 0]
        e = table.head[small]
        while e >= 0:
            now, total = labels.load[e] + load, labels.replicas[e] + (1 if share.counted else 0)
            memory = labels.memory[e]
            if share.weighed:
                memory += fixed + total * each
            if (
                labels.stages[e] < share.most
                and total <= rules.most_replicas
                and now <= share.budget + rules.slack
                and memory <= share.room
                and not _exceeds_capacity(rules, share, limit, rest, labels.devices[e], now)
            ):
                new[0], new[1], new[2] = labels.stages[e] + 1, total, labels.devices[e]
                new[3], new[4] = -1 - kind, e
                room = _add(table, large, now, memory) and room
            e = labels.following[e]
    return room


@callee
def _add_own(a, share, limit, small, large, table):  # type: ignore[no-untyped-def]
    """Add labels of a set with an own first stage; 1: exact, 0: a limit was met, -1: full."""
    family, teams, rules = a.family, a.teams, a.rules
    labels, new, known = table.labels, table.new, 1
    rest = family.work[len(family.work) - 1] - family.work[large]
    mine = family.work[large] - family.work[small]
    for c in range(len(teams.degree)):
        d, devices = teams.replicas[c], teams.devices[c]
        if mine > devices * (limit + rules.slack):
            continue
        y = most_in_flight(a, limit, small, large, c)
        if y < 0:
            y, known = -1 - y, 0
        if y == 0:
            continue
        e = table.head[small]
        while e >= 0:
            total, used = labels.replicas[e], labels.devices[e] + devices
            if share.counted:
                total += d
            if (
                used <= rules.devices
                and total <= min(y * d, rules.most_replicas)
                and not _exceeds_capacity(rules, share, limit, rest, used, labels.load[e])
            ):
                new[0], new[1], new[2], new[3], new[4] = labels.stages[e], total, used, c, e
                if not _add(table, large, labels.load[e], labels.memory[e]):
                    return -1
            e = labels.following[e]
    return known


@lean
def share_cover(a, share, limit, table):  # type: ignore[no-untyped-def]
    """Find labels of all sets, with own stages below `limit`, from that of no items on.

    Returns
    -------
    int
        1: exact; 0: the search for recomputed parts met its limit; -1: the table is full.
    """
    family, rules = a.family, a.rules
    sets, known = len(family.work), 1
    widest = rules.devices * (max(limit, share.budget) + rules.slack)
    _add(table, 0, 0.0, 0.0)
    for small in range(sets - 1):
        if table.head[small] < 0:
            continue
        q = np.searchsorted(family.sorted_work, family.work[small] - rules.slack)
        while q < sets and family.sorted_work[q] <= family.work[small] + widest:
            large = family.by_work[q]
            q += 1
            if large <= small or not holds(family.words, small, large):
                continue
            if not keeps(family.labels, small, large):
                continue
            gather(a, small, large)
            if share.most > 0 and not _add_shared(a, share, limit, small, large, table):
                return -1
            if share.only[large] > share.only[small]:
                continue
            answer = _add_own(a, share, limit, small, large, table)
            if answer < 0:
                return -1
            known = min(known, answer)
    return known


def new_table(sets: int, most: int) -> LabelTable:
    """An empty table for so many labels."""
    whole = [np.empty(most, dtype=np.int64) for _ in Labels._fields[2:]]
    labels = Labels(np.empty(most), np.empty(most), *whole)
    new = np.array([0, 0, 0, -1, -1])
    return LabelTable(labels, np.full(sets, -1), np.zeros(1, dtype=np.int64), new)


def way_to(labels: Labels, label: int) -> list[tuple[int, int, int]]:
    """Stages of a label in the order of the pipeline: the set before, the set with, the team."""
    found = []
    while labels.before[label] >= 0:
        before = int(labels.before[label])
        found.append((int(labels.held[before]), int(labels.held[label]), int(labels.team[label])))
        label = before
    return found


MOST_SETS = 1200
"""Sets of items up to which all are taken."""

MOST_LABELS = 2_000_000
"""Labels of one search, at most."""

FEW_LABELS = 4096
"""Initial capacity of the label table."""

SEARCHES = 400
"""Pairs of limits that are tried, times the effort."""

ORDER_SEARCHES = 24
"""The same along one order."""

SETTLED = 24
"""Pairs of limits after which a small gap need not be closed."""

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
    """Best plan and boxes that are left."""

    best: HybridSolution | None = None
    boxes: list[_Box] = field(default_factory=list)
    given_up: float = np.inf
    """Least bound of boxes that could not be searched."""
    number: int = 0

    @property
    def top(self) -> float:
        """Upper limit of the value of useful plans."""
        return np.inf if self.best is None else self.best.value * (1 - CLOSED)

    def add(self, bound: float, low: float, high: float, least: float, most: float) -> None:
        """Add a box to the queue, unless it is empty or holds no better plan."""
        if low < high and least <= most and bound < self.top:
            self.number += 1
            heapq.heappush(self.boxes, _Box(bound, self.number, low, high, least, most))


def plan_shared(
    problem: HybridProblem, orders: Sequence[Ints], run: SearchContext = PLAIN_RUN
) -> HybridSolution:
    """Find stages, those that are shared, and how many devices each of the others takes.

    `orders`: topological orders of the items to cut where the sets are too many to take all.
    Raises what `solve_hybrid` does.
    """
    low = simple_bound(problem)
    state = _State(_without_shared(problem, orders, run))
    every = all_ends(problem, MOST_SETS)
    complete = every is not None
    if every is not None:
        _search(space_of(problem, every, complete=True), low, state, SEARCHES, run)
    else:
        run.log("too many sets in which stages may end: cut along orders")
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
    problem: HybridProblem, orders: Sequence[Ints], run: SearchContext
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


def _search(space: Space, low: float, state: _State, most: int, run: SearchContext) -> None:
    """Look at boxes until none is left, or as many as `most` times the effort."""
    state.add(low, -1.0, space.top, 0.0, space.arrays.rules.room)
    for number in range(max(int(most * run.effort), 1)):
        if not state.boxes or run.stop():
            break
        if number >= SETTLED and run.gap_reached(state.top, state.boxes[0].bound):
            break
        box = heapq.heappop(state.boxes)
        if box.bound >= state.top:
            state.boxes.clear()
            break
        if space.complete:
            run.report_progress(bound=box.bound)
        _look_into(space, box, low, state, run)
    state.boxes = [box for box in state.boxes if box.bound < state.top]


def _look_into(space: Space, box: _Box, floor: float, state: _State, run: SearchContext) -> None:
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
            run.report_incumbent(blocks, value, METHOD)
            run.report_progress(value=value)
    costs = costs_of(space.problem, first)
    shared = (
        float(labels.load[ends[0]]) - space.arrays.rules.slack * space.problem.options.shared_stages
    )
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
    """Bisect the rest of a box: limits below the largest own load of the plan found.

    Larger limits, and those excluded by the best value, hold no better plan.
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
    problem, rules = space.problem, space.arrays.rules
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
        table = new_table(len(only), size)
        known = share_cover(space.arrays._replace(rules=own), share, box.high, table)
        if known >= 0:
            break
        if size >= MOST_LABELS:
            return None
        size *= 8
    labels, ends, end = table.labels, list[int](), int(table.head[-1])
    while end >= 0:
        ends.append(end)
        end = int(labels.following[end])
    ends.sort(key=lambda e: (labels.load[e], labels.memory[e], labels.devices[e], e))
    return labels, np.array(ends, dtype=np.int64), bool(known)


def _blocks(space: Space, labels: Labels, end: int, box: _Box) -> list[HybridBlock]:
    """The stages of a label in the order of the pipeline."""
    ways, teams = way_to(labels, end), space.arrays.teams
    copies = [1 if team < 0 else int(teams.replicas[team]) for *_, team in ways]
    later = sum(copies)
    room = space.problem.memory * ROOM - box.least_memory
    blocks = []
    for (small, large, team), d in zip(ways, copies, strict=True):
        items = items_between(space, small, large)
        later -= d
        if team < 0:
            again = space.problem.parts(items if -1 - team == AGAIN else items[:0])
            blocks.append(HybridBlock(items, space.problem.whole, 1, again, shared=True))
            continue
        block = HybridBlock(items, int(teams.degree[team]), d, items[:0])
        blocks.append(fastest(space, block, later, room))
    return blocks
