"""The split that the dynamic program of the 2020 paper returns, ties included (section 5.1.1).

Many splits have the least largest load; which of them a program returns decides what the split
is worth for anything else, such as the latency of one sample (section 7, table 4). The authors'
program walks ideals depth first: it adds the first item that can be added, by colour, those without
one before in the order of the stream, and numbers ideals as it meets them. Ideals to split off are
tried in the order of a depth-first walk downwards, from the parent that was completed last. CPUs
are given work before accelerators, none before some, and a later candidate must be strictly
better. Here the table holds what is within a load that some split is known to reach, so that most
pairs are never looked at; that changes no tie.

Method `max-load` loads `published_split` in the order `published`, from Python without `ties=`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from dnnp.core.cost.items import Items, LinearizedItems, ordered_items
from dnnp.core.cost.load_formula import MARGIN, ROOM
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.kernels.kernel import kernel, plain
from dnnp.core.model.errors import LimitError, UsageError
from dnnp.core.model.graph import Floats, Ints, csr
from dnnp.core.model.search_context import PLAIN, SearchContext

CHUNK = 64
"""Ideals between two questions whether to stop."""

MAX_IDEALS = 200_000
"""Ideals of a graph up to which the table is filled."""


def published_split(
    problem: SplitProblem, within: float, run: SearchContext = PLAIN
) -> tuple[LinearizedItems, Ints, Ints]:
    """The split of least largest load that the paper's program returns.

    Parameters
    ----------
    within
        A largest load that some ordered split is known to reach.

    Returns
    -------
    A line of items, the bounds of its blocks (i64[b + 1]), and the class of each (i64[b]).

    Raises
    ------
    UsageError
        More than one class of accelerators, or of CPUs, or a cost model that the paper has not.
    LimitError
        Too many ideals, or the run is to stop.
    """
    fast, slow = _classes(problem)
    items, rank = without_idle_ends(problem)
    line = problem.line(items, items.order)
    ideals = ideals_of(line, rank[items.order])
    price = _Prices(problem, line, fast, slow)
    table = _filled(price, ideals, within, run)
    bounds, classes, order = [0], [], []
    for block, is_cpu in reversed(list(_walked_back(price, ideals, table))):
        order += block
        bounds.append(len(order))
        classes.append(slow if is_cpu else fast)
    again = problem.line(items, items.order[np.array(order, dtype=np.int64)])
    return again, np.array(bounds, dtype=np.int64), np.array(classes, dtype=np.int64)


def _classes(problem: SplitProblem) -> tuple[int, int]:
    """Class of the accelerators and of the CPUs, -1: none; UsageError for what is not theirs."""
    options, kinds = problem.options, [d.is_cpu for d in problem.devices]
    limited = any(np.isfinite(d.memory_bytes) and not d.is_cpu for d in problem.devices)
    summed = (options.memory_model, options.memory_mode) == ("sum", "hard")
    simple = options.comm == "sum" and not options.charge_io and options.max_replicas == 1
    clusters = bool(problem.links) or any(d.cluster_size for d in problem.devices)
    plain_costs = simple and not clusters and (summed or not limited)
    if kinds.count(False) > 1 or kinds.count(True) > 1 or not plain_costs:
        raise UsageError(
            "--order published of method max-load is for one class of accelerators and one of "
            "CPUs, without links, and for the cost model of the 2020 paper"
        )
    return (
        kinds.index(False) if False in kinds else -1,
        kinds.index(True) if True in kinds else -1,
    )


class _Prices:
    """Costs of blocks of items; -1: there is no such class."""

    def __init__(self, problem: SplitProblem, line: LinearizedItems, fast: int, slow: int) -> None:
        never = np.full(line.n, np.inf)
        self.line = line
        self.counts = [line.devices[c].count if c >= 0 else 0 for c in (slow, fast)]
        self.fast, self.slow = (line.work[c] if c >= 0 else never for c in (fast, slow))
        self.moved = line.cost[fast] if fast >= 0 else np.zeros(line.nets.net_count)
        self.room = problem.devices[fast].memory_bytes * ROOM if fast >= 0 else 0.0
        self.pins = line.nets.sizes
        self.net = np.repeat(np.arange(line.nets.net_count), self.pins)

    def without_transfers(self, block: list[int], is_cpu: bool) -> float:
        """Compute time; inf where memory lacks or an item cannot run."""
        if not is_cpu and float(self.line.memory[block].sum()) > self.room:
            return np.inf
        return float((self.slow if is_cpu else self.fast)[block].sum())

    def load(self, block: list[int], is_cpu: bool) -> float:
        """The whole load."""
        alone = self.without_transfers(block, is_cpu)
        if is_cpu:
            return alone
        mine = np.zeros(self.line.n, dtype=np.bool_)
        mine[block] = True
        inside = np.bincount(self.net, mine[self.line.nets.pins], len(self.pins))
        return alone + float(self.moved[(inside > 0) & (inside < self.pins)].sum())


def _filled(price: _Prices, ideals: Ideals, within: float, run: SearchContext) -> Floats:
    """f64[ideals, CPUs + 1, accelerators + 1], least largest load with so many; inf: above."""
    line = price.line
    touch_ptr, touch = csr(line.nets.pins, price.net, line.n)
    child_ptr = np.cumsum([0, *map(len, ideals.children)])
    ends = np.array([pair for own in ideals.children for pair in sorted(own)], dtype=np.int64)
    item, child = ends.reshape(-1, 2).T
    arrays = plain(
        price.slow, price.fast, line.memory, price.moved, price.pins, touch_ptr, touch, child_ptr,
        item, child,
    )  # fmt: skip
    table = np.full((len(ideals.masks), *(count + 1 for count in price.counts)), np.inf)
    table[0] = 0.0
    sizes = np.array([mask.bit_count() for mask in ideals.masks])
    by_size = np.argsort(sizes, kind="stable")
    for first in range(0, len(by_size), CHUNK):
        if run.stop():
            raise LimitError("interrupted before the table was filled")
        some = plain(by_size[first : first + CHUNK])
        _extend(*(*arrays, price.room, within * (1 + MARGIN), table, *some))
    return table


@kernel
def _extend(  # type: ignore[no-untyped-def]
    slow, fast, memory, price, pins, touch_ptr, touch, child_ptr, item, child, room, limit,
    table, some,
):  # fmt: skip
    """Enter into `table` what begins with each of some ideals, whose own entries are complete.

    Supersets are walked by adding items in ascending order, so each comes once, and its cost
    follows from the one before.
    """
    n, cpus, accelerators = len(slow), table.shape[1], table.shape[2]
    at, edge, last = np.empty(n + 1, np.int64), np.empty(n + 1, np.int64), np.empty(n + 1, np.int64)
    work, cpu_work, held, moved = np.zeros(n + 1), np.zeros(n + 1), np.zeros(n + 1), np.zeros(n + 1)
    inside = np.zeros(len(price), np.int64)
    for s in range(len(some)):
        start = some[s]
        for a in range(cpus):
            for b in range(accelerators):
                if a > 0:
                    table[start, a, b] = min(table[start, a, b], table[start, a - 1, b])
                if b > 0:
                    table[start, a, b] = min(table[start, a, b], table[start, a, b - 1])
        if table[start, cpus - 1, accelerators - 1] > limit:
            continue
        depth = 0
        at[0], edge[0], last[0] = start, child_ptr[start], -1
        while depth >= 0:
            if edge[depth] == child_ptr[at[depth] + 1]:
                if depth > 0:
                    for t in range(touch_ptr[last[depth]], touch_ptr[last[depth] + 1]):
                        inside[touch[t]] -= 1
                depth -= 1
                continue
            q = edge[depth]
            edge[depth] += 1
            v, end, below = item[q], child[q], depth + 1
            if v < last[depth]:
                continue
            work[below] = work[depth] + fast[v]
            cpu_work[below] = cpu_work[depth] + slow[v]
            held[below] = held[depth] + memory[v]
            runs = work[below] <= limit and held[below] <= room
            if not runs and cpu_work[below] > limit:
                continue
            cost = moved[depth]
            for t in range(touch_ptr[v], touch_ptr[v + 1]):
                e = touch[t]
                if inside[e] == 0:
                    cost += price[e]
                inside[e] += 1
                if inside[e] == pins[e]:
                    cost -= price[e]
            moved[below] = cost
            depth = below
            at[depth], edge[depth], last[depth] = end, child_ptr[end], v
            if runs and work[depth] + cost <= limit:
                for a in range(cpus):
                    for b in range(1, accelerators):
                        load = max(table[start, a, b - 1], work[depth] + cost)
                        if load < table[end, a, b]:
                            table[end, a, b] = load
            if cpu_work[depth] <= limit:
                for a in range(1, cpus):
                    for b in range(accelerators):
                        load = max(table[start, a - 1, b], cpu_work[depth])
                        if load < table[end, a, b]:
                            table[end, a, b] = load


def _walked_back(price: _Prices, ideals: Ideals, table: Floats) -> Iterator[tuple[list[int], bool]]:
    """Blocks, last first, as ascending items, and whether each is on a CPU."""
    ideal = max(range(len(ideals.masks)), key=lambda i: ideals.masks[i].bit_count())
    cpus, accelerators = price.counts
    while ideal:
        most = float(table[ideal, cpus, accelerators]) * (1 + MARGIN)
        if not np.isfinite(most):
            raise LimitError("no split within the load that was said to be reached")
        for is_cpu in (True, False):
            a, b = cpus - is_cpu, accelerators - (not is_cpu)
            if a < 0 or b < 0:
                continue
            found = ideal
            if table[ideal, a, b] > most:
                found = _first_below(ideals, table[:, a, b], ideal, most, price, is_cpu)
            if found >= 0:
                break
        else:
            raise LimitError("the table contradicts itself")
        if found != ideal:
            yield _items(ideals.masks[ideal] & ~ideals.masks[found]), is_cpu
        ideal, cpus, accelerators = found, a, b


def _first_below(
    ideals: Ideals, before: Floats, top: int, most: float, price: _Prices, is_cpu: bool
) -> int:
    """The first ideal on the walk down from `top` that leaves a block, and a rest, within `most`.

    -1: there is none. Blocks that already exceed it but for their transfers are not walked below,
    since everything there does, too.
    """
    stack, seen = [top], {top}
    while stack:
        one = stack.pop()
        block = _items(ideals.masks[top] & ~ideals.masks[one])
        if price.without_transfers(block, is_cpu) > most:
            continue
        if one != top and before[one] <= most and price.load(block, is_cpu) <= most:
            return one
        for parent in ideals.parents[one]:
            if parent not in seen:
                seen.add(parent)
                stack.append(parent)
    return -1


def _items(mask: int) -> list[int]:
    """The items of a mask, ascending."""
    return [item for item, bit in enumerate(bin(mask)[:1:-1]) if bit == "1"]


class Ideals(NamedTuple):
    """All ideals, numbered as they are met."""

    masks: list[int]
    """Items of each ideal, a bit each."""
    parents: list[list[int]]
    """Ideals with one item less, in the order in which they were completed."""
    children: list[list[tuple[int, int]]]
    """Items that can be added, and the ideals that they lead to."""


def without_idle_ends(problem: SplitProblem) -> tuple[Items, Ints]:
    """Items, with those that take no time and have a single neighbour joined to that one.

    The program does so before it counts ideals, until there are none. Returned with the rank of
    each item, i64[count]: by colour, which for those that others were joined to is their own.
    """
    items, line = problem.items, problem.line()
    idle = np.empty(items.count, dtype=np.bool_)
    idle[items.order] = (line.work == 0).all(axis=0)
    into = list(range(items.count))
    beside: list[set[int]] = [set() for _ in into]
    for u, v in zip(items.tail.tolist(), items.head.tolist(), strict=True):
        beside[v].add(u)
        beside[u].add(v)
    ends = [v for v in into if idle[v] and len(beside[v]) == 1]
    while ends:
        u = ends.pop()
        if not beside[u]:  # its neighbour was joined to it
            continue
        (v,) = beside[u]
        into[u], beside[u] = v, set()
        beside[v].discard(u)
        if idle[v] and len(beside[v]) == 1:
            ends.append(v)
    for u in range(items.count):
        while into[into[u]] != into[u]:
            into[u] = into[into[u]]
    kept, at = np.unique(np.array(into, dtype=np.int64), return_inverse=True)
    label = at[items.label].astype(np.int64)
    joined = ordered_items(label, len(kept), at[items.tail], at[items.head])
    # Nodes without a colour come first, in the order of the stream.
    color = problem.graph.color
    key = np.where(color >= 0, color + problem.graph.n, np.arange(problem.graph.n))
    least = np.full(items.count, key.max(initial=0))
    np.minimum.at(least, items.label, key)
    return joined, least[kept]


def ideals_of(line: LinearizedItems, rank: Ints) -> Ideals:
    """Walk all ideals depth first; of several items, the one of least rank is added first.

    Raises
    ------
    LimitError
        There are more than `MAX_IDEALS`.
    """
    n = line.n
    needs = [0] * n
    for u, v in zip(line.tail.tolist(), line.head.tolist(), strict=True):
        needs[v] |= 1 << u
    by_rank = np.argsort(rank, kind="stable").tolist()
    found = Ideals([0], [[]], [[]])
    number = {0: 0}
    path = [(0, iter([v for v in by_rank if not needs[v]]), -1)]
    while path:
        ideal, choices, entered_from = path[-1]
        v = next(choices, -1)
        if v < 0:
            path.pop()
            if entered_from >= 0:
                found.parents[ideal].append(entered_from)
            continue
        mask = found.masks[ideal] | 1 << v
        child = number.get(mask)
        if child is None:
            child = number[mask] = len(found.masks)
            if child >= MAX_IDEALS:
                raise LimitError(f"the graph has more than {MAX_IDEALS} ideals")
            found.masks.append(mask)
            found.parents.append([])
            found.children.append([])
            free = [w for w in by_rank if not mask >> w & 1 and not needs[w] & ~mask]
            path.append((child, iter(free), ideal))
        else:
            found.parents[child].append(ideal)
        found.children[ideal].append((v, child))
    return found
