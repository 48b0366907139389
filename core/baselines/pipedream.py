"""PipeDream's optimiser: a chain of layers over accelerators, with replicated stages.

It plans over a linear chain; where the graph branches, everything between the fork and the join
becomes one layer (2020 paper, section 6). A branching is a biconnected component of the undirected
graph with more than one edge; all its nodes but the last, which only receives from it, are joined.
What is left is a tree, which a topological order lays out as a chain. Without replicas and clusters
it is sliced; otherwise the dynamic programs run.

With A(j, s) the least largest load when the first j items use the devices s (numbers of devices
of each class),

    A(j, s) = min over i < j, class c, r <= max_replicas of
              max(A(i, s - r of c), load(i..j-1 on r devices of class c))

as in section 3.1 of the PipeDream paper and Appendix C.2 of the 2020 paper. Where devices form
clusters, a segment of the chain is cut so over the devices of one cluster, with transfers inside it
on the inner link; then the chain is cut into segments over the clusters, and stages over devices
that form none. That is the hierarchical optimiser of the PipeDream paper, and Appendix C.3 of the
2020 paper, except that no stage spans clusters.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import replace
from typing import Annotated, NamedTuple

import numpy as np

from dnnp.core.baselines.blocks import checked, interval_blocks, sliced_orders
from dnnp.core.cost.items import Items, LinearizedItems, class_costs, ordered_items, steps_of
from dnnp.core.cost.load import Steps, memory_row, no_steps, tree_size, weights_stated
from dnnp.core.cost.load_formula import COMM, MARGIN, load_of, share_of
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.kernels.kernel import kernel, plain, scratch
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.graph import (
    PARAMETER,
    Bools,
    Floats,
    Graph,
    Ints,
    connected,
    csr,
    distinct,
    place_of,
    strong,
)
from dnnp.core.model.hypergraph import ClassCosts, Hypergraph
from dnnp.core.model.search_context import PLAIN, MethodOptions, SearchContext, Solution
from dnnp.core.split.slicing.orders import ORDERS

IDLE = 0.01
"""A node that takes no more than this share of the mean work computes nothing worth placing."""

SMALL = 0.05
"""A tensor that costs no more than this share of the largest transfer makes no branching."""

MAX_STEPS = 500_000_000
"""Stages times ways to run them that the programs may try; a second or two."""


class Chain(NamedTuple):
    """A chain of `n` items as the program reads it; `o` ways to run a stage."""

    comm: int
    streamed: bool
    """Memory above capacity costs time."""
    steps: Steps
    nets: Hypergraph
    costs: ClassCosts
    reach: Ints
    """i64[C, n]."""
    weight_ptr: Ints
    weight_bytes: Floats
    weight_before: Ints
    """Weights that replicas of an item synchronise (CSR): bytes, and the last item before that
    holds the same weights (-1: none)."""
    way_class: Ints
    way_replicas: Ints
    """i64[o], the class and the replicas of each way."""
    sync: Floats
    """f64[o], time to synchronise a byte."""


class Scratch(NamedTuple):
    """Scratch arrays of the kernels."""

    held: Annotated[Ints, "i64[nets]"]
    """0 between calls."""
    seen: Annotated[Ints, "i64[nets]"]
    trees: Annotated[Floats, "f64[2, nodes]"]
    memory: Annotated[Floats, "f64[items]"]
    row: Annotated[Floats, "unset f64[ways, ends]"]


class Stage(NamedTuple):
    """One stage: items first..end-1 on so many devices of a class."""

    first: int
    end: int
    device_class: int
    replicas: int
    number: int = -1
    """Number of the first device; -1: the next that is free."""


def chain_of(problem: SplitProblem, line: LinearizedItems) -> Chain:
    """Arrange a line of a problem."""
    graph, devices, options = problem.graph, problem.devices, problem.options
    ways = [
        (c, r)
        for c, d in enumerate(line.devices)
        for r in range(1, min(devices[c].count, options.max_replicas) + 1)
    ]
    way_class = np.array([c for c, _ in ways], dtype=np.int64)
    replicas = np.array([r for _, r in ways], dtype=np.int64)
    sync = np.zeros(len(ways))
    if graph.backward.any():
        band = np.array([d.bandwidth_bytes_per_s for d in devices])[way_class]
        sync = (replicas - 1) / (replicas * band)
    limited = any(not d.is_cpu and np.isfinite(d.memory_bytes) for d in devices)
    streamed = options.memory_mode == "overflow" and limited
    return Chain(
        COMM[options.comm],
        streamed,
        steps_of(graph, line, options) if streamed else no_steps(),
        line.nets,
        class_costs(line, replace(options, objective="throughput")),
        *plain(line.reach, *_weights(graph, line), way_class, replicas, sync),
    )


def _weights(graph: Graph, line: LinearizedItems) -> tuple[Ints, Floats, Ints]:
    """Weight bytes by item (CSR), each with the last earlier item that holds the same tensor."""
    item = line.item_of_node
    own = weights_stated(graph)
    stated = np.flatnonzero(own)
    read = ~own[graph.reader] & (graph.tensor_kind[graph.in_idx] == PARAMETER)
    pairs = distinct(graph.in_idx[read] * max(line.n, 1) + item[graph.reader[read]])
    tensor, at = pairs // max(line.n, 1), pairs % max(line.n, 1)
    before = np.full(len(pairs), -1, dtype=np.int64)
    again = np.flatnonzero(tensor[1:] == tensor[:-1]) + 1
    before[again] = at[again - 1]
    rows = np.concatenate([item[stated], at])
    ptr, index = csr(rows, np.arange(len(rows)), line.n)
    size = np.concatenate([graph.node_bytes[stated], graph.tensor_bytes[tensor]])
    last = np.concatenate([np.full(len(stated), -1, dtype=np.int64), before])
    return ptr, size[index], last[index]


def scratch_of(m: Chain) -> Scratch:
    """Scratch arrays for a chain."""
    n = m.reach.shape[1]
    sizes = {
        "nets": len(m.nets.source), "nodes": tree_size(m.steps), "items": n, "ends": n + 1,
        "ways": len(m.way_class),
    }  # fmt: skip
    return scratch(Scratch, sizes)


@kernel
def loads_from(m, first, end, into_cost, out_cost, bound, scratch):  # type: ignore[no-untyped-def]
    """Loads of the stages first..j-1, j <= end, for every way, into scratch.row[way, j].

    Returns the largest j that is filled; beyond it no way has a load up to `bound`. The costs
    (f64[C, p]) are those of a net that enters and that leaves a stage.
    """
    item_ptr, item_net, net_ptr = m.nets.item_ptr, m.nets.item_net, m.nets.net_ptr
    always, capacity, stream = m.nets.always, m.costs.capacity, m.costs.stream
    classes = m.reach.shape[0]
    held, seen, memory, row = scratch.held, scratch.seen, scratch.memory, scratch.row
    into, out, work = np.zeros(classes), np.zeros(classes), np.zeros(classes)
    if m.streamed:
        memory_row(m.steps, first, end - 1, scratch.trees[0], scratch.trees[1], memory)
    weight, touched, last = 0.0, 0, end
    for j in range(first, end):
        for t in range(item_ptr[j], item_ptr[j + 1]):
            e = item_net[t]
            size = net_ptr[e + 1] - net_ptr[e]
            source = m.nets.source[e]
            was_mine = source >= first and source < j
            is_mine = source >= first and source <= j
            was_out = was_mine and (held[e] < size or always[e])
            was_in = held[e] > 0 and not was_mine
            if held[e] == 0:
                seen[touched] = e
                touched += 1
            held[e] += 1
            is_out = is_mine and (held[e] < size or always[e])
            for c in range(classes):
                into[c] += into_cost[c, e] * (int(not is_mine) - int(was_in))
                out[c] += out_cost[c, e] * (int(is_out) - int(was_out))
        for t in range(m.weight_ptr[j], m.weight_ptr[j + 1]):
            if m.weight_before[t] < first:
                weight += m.weight_bytes[t]
        for c in range(classes):
            work[c] += m.costs.work[c, 0, j]
        hope = False
        for o in range(len(m.way_class)):
            c, r = m.way_class[o], m.way_replicas[o]
            row[o, j + 1] = np.inf
            if j > m.reach[c, first]:
                continue
            hope |= work[c] / r <= bound
            extra = 0.0
            if m.streamed and memory[j] > capacity[c]:
                extra = (memory[j] - capacity[c]) * stream[c]
            load = load_of(m.comm, into[c], work[c], extra, out[c])
            row[o, j + 1] = share_of(m.comm, load, r, weight * m.sync[o])
        if not hope:
            last = j + 1
            break
    for t in range(touched):
        held[seen[t]] = 0
    return last


@kernel
def extend(i, last, row, ways, counts, bound, best, came, how):  # type: ignore[no-untyped-def]
    """Put a part i..j-1 of load row[way, j] behind every state best[i], for all j up to `last`.

    A way takes `ways[1]` of the devices number `ways[0]`; arguments else as of `fill`.
    """
    stride = np.ones(len(counts) + 1, dtype=np.int64)
    for c in range(len(counts)):
        stride[c + 1] = stride[c] * (counts[c] + 1)
    for s in range(stride[-1]):
        if best[i, s] == np.inf:
            continue
        for way in range(len(ways[0])):
            c, r = ways[0][way], ways[1][way]
            if (s // stride[c]) % (counts[c] + 1) + r > counts[c]:
                continue
            to = s + r * stride[c]
            for j in range(i + 1, last + 1):
                load = max(best[i, s], row[way, j])
                if load <= bound and load < best[j, to]:
                    best[j, to], came[j, to], how[j, to] = load, i, way


@kernel
def fill(m, first, end, into_cost, out_cost, counts, bound, best, came, how, scratch):  # type: ignore[no-untyped-def]
    """Fill best[j, state] over the items first..end-1, with the start and way of the last stage.

    `counts` (i64[C]) are the devices there are; the states are their mixed-radix numbers.
    """
    best[first : end + 1] = np.inf
    best[first, 0] = 0.0
    for i in range(first, end):
        if best[i].min() < np.inf:
            last = loads_from(m, i, end, into_cost, out_cost, bound, scratch)
            ways = m.way_class, m.way_replicas
            extend(i, last, scratch.row, ways, counts, bound, best, came, how)


def cut_chain(
    m: Chain, first: int, end: int, costs: tuple[Floats, Floats], counts: Ints, bound: float
) -> list[Stage] | None:
    """Best stages for the items first..end-1 with loads up to `bound`; None if there are none.

    O(n^2) loads, each tried for every way and state.
    """
    states = int((counts + 1).prod())
    best = np.empty((end + 1, states))
    came, how = (np.zeros((end + 1, states), dtype=np.int64) for _ in range(2))
    fill(m, first, end, *costs, counts, bound, best, came, how, scratch_of(m))
    parts = _traced(best, came, how, first, end, (m.way_class, m.way_replicas), counts)
    if parts is None:
        return None
    return [Stage(a, b, int(m.way_class[way]), int(m.way_replicas[way])) for a, b, way in parts]


def _traced(
    best: Floats,
    came: Ints,
    how: Ints,
    first: int,
    end: int,
    ways: tuple[Ints, Ints],
    counts: Ints,
) -> list[tuple[int, int, int]] | None:
    """First item, end and way of the parts of first..end-1; None: there are none."""
    state = int(best[end].argmin())
    if best[end, state] == np.inf:
        return None
    stride = np.concatenate([[1], np.cumprod(counts + 1)])
    parts: list[tuple[int, int, int]] = []
    while end > first:
        way, start = int(how[end, state]), int(came[end, state])
        parts.append((start, end, way))
        state -= int(ways[1][way] * stride[ways[0][way]])
        end = start
    return parts[::-1]


@kernel
def _inside(m, pin_first, pin_last, c, factor, a, b, into_cost, out_cost):  # type: ignore[no-untyped-def]
    """Costs of the nets for stages on a cluster (class c) that holds the items a..b-1."""
    source, always = m.nets.source, m.nets.always
    for e in range(len(source)):
        price = m.costs.net_cost[c, e]
        near = source[e] >= a and source[e] < b
        into_cost[c, e] = price * factor if near else price
        near = pin_first[e] >= a and pin_last[e] < b and not always[e]
        out_cost[c, e] = price * factor if near else price


@kernel
def _segments(m, pin_first, pin_last, c, factor, sizes, bound, scratch, table):  # type: ignore[no-untyped-def]
    """Fill table[kind, a, b]: the least largest load of the items a..b-1 on one cluster.

    `sizes` (i64[kinds], descending) are the devices of a cluster of each kind.
    """
    classes, n = m.reach.shape
    counts = np.zeros(classes, dtype=np.int64)
    counts[c] = sizes[0]
    into_cost, out_cost = m.costs.net_cost.copy(), m.costs.net_cost.copy()
    best = np.empty((n + 1, sizes[0] + 1))
    came = np.zeros((n + 1, sizes[0] + 1), dtype=np.int64)
    how = np.zeros((n + 1, sizes[0] + 1), dtype=np.int64)
    table[:] = np.inf
    for a in range(n):
        work = 0.0
        for b in range(a + 1, n + 1):
            work += m.costs.work[c, 0, b - 1]
            if not work <= bound * sizes[0]:
                break
            _inside(m, pin_first, pin_last, c, factor, a, b, into_cost, out_cost)
            fill(m, a, b, into_cost, out_cost, counts, bound, best, came, how, scratch)
            for kind in range(len(sizes)):
                table[kind, a, b] = best[b, : sizes[kind] + 1].min()


def cut_levels(
    m: Chain,
    pins: tuple[Ints, Ints],
    devices: tuple[DeviceClass, ...],
    clustered: int,
    bound: float,
) -> list[Stage] | None:
    """Best stages with loads up to `bound`, with their device numbers; None if there are none.

    Parameters
    ----------
    pins
        First and last item of each net, i64[p].
    clustered
        The class whose devices form clusters.

    O(n^2) segments, each with the work of `cut_chain` on its items.
    """
    device, n = devices[clustered], m.reach.shape[1]
    inner = np.where(m.way_class == clustered, device.inner_factor, 1.0)
    m = m._replace(sync=m.sync * inner)  # no stage is in two clusters
    full, rest = divmod(device.count, device.cluster_size)
    pairs = ((device.cluster_size, full), (rest, 1))
    kinds = [(size, count) for size, count in pairs if size and count]
    scratch = scratch_of(m)
    table = np.empty((len(kinds), n + 1, n + 1))
    sizes = np.array([size for size, _ in kinds], dtype=np.int64)
    factor = device.inner_factor
    _segments(m, *pins, clustered, factor, sizes, bound, scratch, table)
    # Ways of the outer level: a cluster of each kind, and the ways of all other classes.
    others = np.flatnonzero(m.way_class != clustered)
    ways = (
        np.append(np.arange(len(kinds)), len(kinds) + m.way_class[others]),
        np.append(np.ones(len(kinds), dtype=np.int64), m.way_replicas[others]),
    )
    spare = [0 if c == clustered else d.count for c, d in enumerate(devices)]
    counts = np.array([*(count for _, count in kinds), *spare], dtype=np.int64)
    rows = np.full((n, len(ways[0]), n + 1), np.inf)
    rows[:, : len(kinds)] = table[:, :n].transpose(1, 0, 2)
    for i in range(n if len(others) else 0):
        last = loads_from(m, i, n, m.costs.net_cost, m.costs.net_cost, bound, scratch)
        rows[i, len(kinds) :, i + 1 : last + 1] = scratch.row[others, i + 1 : last + 1]
    parts = _cover(rows, ways, counts, bound)
    if parts is None:
        return None
    found: list[Stage] = []
    used = [0] * len(kinds)
    for first, end, way in parts:
        if way >= len(kinds):
            o = others[way - len(kinds)]
            found.append(Stage(first, end, int(m.way_class[o]), int(m.way_replicas[o])))
            continue
        into_cost, out_cost = m.costs.net_cost.copy(), m.costs.net_cost.copy()
        _inside(m, *pins, clustered, factor, first, end, into_cost, out_cost)
        inner = np.zeros(len(devices), dtype=np.int64)
        inner[clustered] = sizes[way]
        stages = cut_chain(m, first, end, (into_cost, out_cost), inner, bound) or []
        # The odd cluster is the last one.
        odd = sizes[way] < device.cluster_size
        number = device.cluster_size * (full if odd else used[way])
        used[way] += 1
        for stage in stages:
            found.append(stage._replace(number=number))
            number += stage.replicas
    return found


def _cover(
    rows: Floats, ways: tuple[Ints, Ints], counts: Ints, bound: float
) -> list[tuple[int, int, int]] | None:
    """Parts (`_traced`) by the loads rows[first, way, end]; None if no value up to `bound`."""
    n, states = len(rows), int((counts + 1).prod())
    best = np.full((n + 1, states), np.inf)
    came, how = (np.zeros((n + 1, states), dtype=np.int64) for _ in range(2))
    best[0, 0] = 0.0
    for i in range(n):
        extend(i, n, rows[i], ways, counts, bound, best, came, how)
    return _traced(best, came, how, 0, n, ways, counts)


def contract_branches(items: Items, line: LinearizedItems) -> Items:
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
    made = line.nets.source >= 0
    np.maximum.at(sent, line.nets.source[made], cost[made])
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
    name = place_of(np.argsort(least))
    new = name[label]
    return ordered_items(new[items.label], len(least), new[items.tail], new[items.head])


def pipedream(problem: SplitProblem, asked: MethodOptions, run: SearchContext = PLAIN) -> Solution:
    """Split the chain that is left of the graph when its branchings are contracted.

    Side branches that remain, such as inputs read here and there, are laid out by the
    topological order whose slicing is best. For stages with replicas, and for one class of
    devices in clusters, a chain too long for the programs is shortened by joining neighbours
    with little work. The `gpipe` objective is replaced by the largest load, as in PipeDream. The
    run is warned of both, and where the slicing alone is left.

    Raises InfeasibleError: no cut of the chain fits the memory of the devices.
    """
    devices, options = problem.devices, problem.options
    if options.objective == "gpipe":
        run.warn("pipedream: plans for the largest load, whatever gpipe would have")
    fine = problem.items
    line = problem.line(fine, np.arange(fine.count))
    chain = contract_branches(fine, line)
    stopped = "pipedream: stopped before all orders of its chain were tried"
    line, order, slicing = sliced_orders(problem, chain, [*ORDERS.values()], run, stopped)
    clusters = [c for c, d in enumerate(devices) if d.cluster_size and d.count]
    leveled = len(clusters) == 1 and not math.isnan(devices[clusters[0]].inner_factor)
    sliced = interval_blocks(problem, line, slicing.bounds, slicing.classes)
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
    blocks = interval_blocks(problem, program, bounds, classes)
    blocks = [
        block._replace(replicas=stage.replicas, number=stage.number)
        for block, stage in zip(blocks, stages, strict=True)
    ]
    return checked(problem, blocks)


def _cut(
    problem: SplitProblem, line: LinearizedItems, clusters: list[int], value: float
) -> list[Stage] | None:
    """The best stages with replicas and clusters, if they can reach `value`."""
    devices = problem.devices
    m = chain_of(problem, line)
    bound = value * (1 + MARGIN)
    if not clusters:
        counts = np.array([d.count for d in devices], dtype=np.int64)
        return cut_chain(m, 0, line.n, (m.costs.net_cost, m.costs.net_cost), counts, bound)
    if not devices[clusters[0]].inner_factor <= 1:
        bound = np.inf
    starts = line.nets.net_ptr[:-1]
    pins = line.nets.pins[starts], line.nets.pins[line.nets.net_ptr[1:] - 1]
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


def _shortened(chain: Items, line: LinearizedItems, order: Ints, longest: int) -> Items:
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
    return ordered_items(at[chain.label], left, at[chain.tail], at[chain.head])
