"""PipeDream's optimiser: a chain of layers over accelerators, with replicated stages.

It plans over a linear chain; where the graph branches, everything between the fork and the join
becomes one layer (2020 paper, section 6). A branching is a biconnected component of the undirected
graph with more than one edge; all its nodes but the last, which only receives from it, are joined.
What is left is a tree, which a topological order lays out as a chain. Without replicas and clusters
it is sliced; otherwise the dynamic programs of `chain` run.
"""

from __future__ import annotations

import heapq
import math

import numpy as np

from dnnp.core.baselines.blocks import checked, interval_blocks, sliced_orders
from dnnp.core.baselines.chain import Stage, chain_of, cut_chain, cut_levels
from dnnp.core.cost.items import Items, Line
from dnnp.core.cost.load_formula import MARGIN
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.graph import Bools, Ints, connected, csr, distinct, strong
from dnnp.core.model.request import Request, Solution
from dnnp.core.model.search_context import PLAIN, Run
from dnnp.core.split.slicing.orders import ORDERS

IDLE = 0.01
"""A node that takes no more than this share of the mean work computes nothing worth placing."""

SMALL = 0.05
"""A tensor that costs no more than this share of the largest transfer makes no branching."""


def contract_branches(items: Items, line: Line) -> Items:
    """Join the items of each branching, and idle side leaves to the item they hang on.

    The edges of an idle item that sends only small tensors, such as a mask that all layers read,
    do not count as branchings, as PipeDream leaves input layers out of its graph. `line` holds
    the same items, in their own order. Cycles that joining makes are joined.
    """
    fast = [c for c, d in enumerate(line.devices) if not d.is_cpu] or [0]
    work = np.nan_to_num(line.work[fast], posinf=0.0).max(axis=0)
    idle = np.isfinite(line.work[fast]).any(axis=0) & (work <= IDLE * work.mean())
    cost = line.cost[fast].max(axis=0)
    sent = np.zeros(items.count)
    made = line.source >= 0
    np.maximum.at(sent, line.source[made], cost[made])
    counts = ~(idle & (sent <= SMALL * cost.max(initial=0.0)))[items.tail]
    component = biconnected(items.count, items.tail[counts], items.head[counts])
    # Items that send within one component are joined through a node that stands for it.
    many = np.bincount(component) > 1
    inside = np.flatnonzero(many[component])
    joins = (items.tail[counts][inside], items.count + component[inside])
    label = connected(items.count + len(many), *joins)[: items.count]
    size = int(label.max()) + 1
    label = strong(size, label[items.tail], label[items.head])[label]
    busy = np.bincount(label, weights=~idle) > 0
    label = _without_leaves(label[items.tail], label[items.head], busy)[label]
    return _renumbered(items, label)


def _without_leaves(tail: Ints, head: Ints, busy: Bools) -> Ints:
    """Class of each node after side leaves that are not busy have joined their neighbour: i64[n].

    A side leaf hangs on a node with two more neighbours at least; the ends of a chain stay.
    """
    beside: list[set[int]] = [set() for _ in range(len(busy))]
    for u, v in zip(tail.tolist(), head.tolist(), strict=True):
        if u != v:
            beside[u].add(v)
            beside[v].add(u)
    into = list(range(len(busy)))
    for u in [u for u in range(len(busy)) if not busy[u] and len(beside[u]) == 1]:
        (v,) = beside[u]
        if len(beside[v]) < 3:
            continue
        into[u] = v
        beside[u].clear()
        beside[v].discard(u)
    return np.array(into, dtype=np.int64)


def biconnected(n: int, tail: Ints, head: Ints) -> Ints:
    """Biconnected component of every edge of an undirected graph without parallel edges: i64[e].

    Hopcroft and Tarjan's search for articulation points, O(n + e), without recursion.
    """
    edges = len(tail)
    ptr, slot = csr(np.concatenate([tail, head]), np.tile(np.arange(edges), 2), n)
    other = (tail + head).tolist()
    starts, incident = ptr.tolist(), slot.tolist()
    component = [-1] * edges
    entered, low = [-1] * n, [0] * n
    clock = found = 0
    for root in range(n):
        if entered[root] >= 0:
            continue
        entered[root] = low[root] = clock
        clock += 1
        pending: list[int] = []
        path = [(root, -1, starts[root])]
        while path:
            u, by, at = path[-1]
            if at < starts[u + 1]:
                path[-1] = (u, by, at + 1)
                e = incident[at]
                v = other[e] - u
                if e == by:
                    continue
                if entered[v] < 0:
                    pending.append(e)
                    entered[v] = low[v] = clock
                    clock += 1
                    path.append((v, e, starts[v]))
                elif entered[v] < entered[u]:
                    pending.append(e)
                    low[u] = min(low[u], entered[v])
                continue
            path.pop()
            if not path:
                continue
            parent = path[-1][0]
            low[parent] = min(low[parent], low[u])
            if low[u] >= entered[parent]:
                while True:
                    e = pending.pop()
                    component[e] = found
                    if e == by:
                        break
                found += 1
    return np.array(component, dtype=np.int64)


def _renumbered(items: Items, label: Ints) -> Items:
    """Items of the classes of `label` (i64[items]), numbered by their least member."""
    label = np.unique(label, return_inverse=True)[1]
    least = np.full(int(label.max()) + 1, items.count, dtype=np.int64)
    np.minimum.at(least, label, np.arange(items.count))
    name = np.empty(len(least), dtype=np.int64)
    name[np.argsort(least)] = np.arange(len(least))
    new, count = name[label], len(least)
    a, b = new[items.tail], new[items.head]
    pairs = distinct(a[a != b] * count + b[a != b])
    return Items(label=new[items.label], count=count, tail=pairs // count, head=pairs % count)


MAX_STEPS = 500_000_000
"""Stages times ways to run them that the programs may try; a second or two."""


def pipedream(problem: SplitProblem, asked: Request, run: Run = PLAIN) -> Solution:
    """Split the chain that is left of the graph when its branchings are contracted.

    Side branches that remain, such as inputs read here and there, are laid out by the
    topological order whose slicing is best. For stages with replicas, and for one class of
    devices in clusters, a chain too long for the programs is shortened by joining neighbours
    with little work. The `gpipe` objective is replaced by the largest load, as in PipeDream. The
    run is warned of both, and where the slicing alone is left.

    Raises
    ------
    InfeasibleError
        No cut of the chain fits the memory of the devices.
    """
    graph, devices, options = problem.graph, problem.devices, problem.options
    if options.objective == "gpipe":
        run.warn("pipedream: plans for the largest load, whatever gpipe would have")
    fine = problem.items
    line = problem.line(fine, np.arange(fine.count))
    chain = contract_branches(fine, line)
    stopped = "pipedream: stopped before all orders of its chain were tried"
    line, order, slicing = sliced_orders(problem, chain, ORDERS.values(), run, stopped)
    clusters = [c for c, d in enumerate(devices) if d.cluster_size and d.count]
    leveled = len(clusters) == 1 and not math.isnan(devices[clusters[0]].inner_factor)
    sliced = interval_blocks(graph, line, slicing.bounds, slicing.classes, devices)
    if options.max_replicas == 1 and not leveled:
        return checked(problem, sliced)
    if run.stop():
        run.warn("pipedream: stopped before replicas and clusters were tried")
        return checked(problem, sliced)
    level = clusters if leveled else []
    short = _shortened(chain, line, order, _longest(problem, level))
    program = line
    if short is not chain:
        run.warn(
            f"pipedream: a chain of {chain.count} was shortened to {short.count} by joining "
            "neighbours"
        )
        program = problem.line(short, np.arange(short.count))
    stages = _cut(problem, program, level, slicing.value)
    if stages is None:
        if leveled or short is not chain:
            run.warn("pipedream: its program found nothing better than a slicing without replicas")
        return checked(problem, sliced)
    bounds = np.array([0, *(stage.end for stage in stages)], dtype=np.int64)
    classes = np.array([stage.device_class for stage in stages], dtype=np.int64)
    blocks = interval_blocks(graph, program, bounds, classes, devices)
    blocks = [
        block._replace(replicas=stage.replicas, number=stage.number)
        for block, stage in zip(blocks, stages, strict=True)
    ]
    return checked(problem, blocks)


def _cut(
    problem: SplitProblem, line: Line, clusters: list[int], value: float
) -> list[Stage] | None:
    """The best stages with replicas and clusters, if they can reach `value`."""
    devices = problem.devices
    m = chain_of(problem, line)
    bound = value * (1 + MARGIN)
    if not clusters:
        counts = np.array([d.count for d in devices], dtype=np.int64)
        return cut_chain(m, 0, line.n, (m.cost, m.cost), counts, bound)
    if not devices[clusters[0]].inner_factor <= 1:
        bound = np.inf
    starts = line.pin_ptr[:-1]
    pins = line.pins[starts], line.pins[line.pin_ptr[1:] - 1]
    return cut_levels(m, pins, devices, clusters[0], bound)


def _longest(problem: SplitProblem, clusters: list[int]) -> int:
    """Items for which the programs stay within MAX_STEPS."""
    devices = problem.devices
    ways = sum(min(d.count, problem.options.max_replicas) for d in devices)
    if clusters:
        size = devices[clusters[0]].cluster_size
        return max(8, min(300, int((24 * MAX_STEPS / (ways * (size + 1))) ** 0.25)))
    states = math.prod(d.count + 1 for d in devices)
    return max(8, int((2 * MAX_STEPS / (ways * states)) ** 0.5))


def _shortened(chain: Items, line: Line, order: Ints, longest: int) -> Items:
    """Join the neighbours in `order` with the least work until `longest` items are left.

    The items that come out are numbered along the order.
    """
    if chain.count <= longest:
        return chain
    work = np.where(np.isfinite(line.work), line.work, 0.0).max(axis=0).tolist()
    after, before = [*range(1, line.n), -1], [-1, *range(line.n - 1)]
    heap = [(work[i] + work[i + 1], i, i + 1) for i in range(line.n - 1)]
    heapq.heapify(heap)
    heads = np.ones(line.n, dtype=np.bool_)
    left = line.n
    while left > longest:
        total, i, j = heapq.heappop(heap)
        if not (heads[i] and after[i] == j and total == work[i] + work[j]):
            continue
        heads[j] = False
        work[i] = total
        after[i] = after[j]
        if after[j] >= 0:
            before[after[j]] = i
            heapq.heappush(heap, (work[i] + work[after[i]], i, after[i]))
        if before[i] >= 0:
            heapq.heappush(heap, (work[before[i]] + work[i], before[i], i))
        left -= 1
    place = np.cumsum(heads) - 1
    at = np.empty(chain.count, dtype=np.int64)
    at[order] = place
    tail, head = at[chain.tail], at[chain.head]
    pairs = distinct((tail * left + head)[tail != head])
    return Items(at[chain.label], left, pairs // left, pairs % left)
