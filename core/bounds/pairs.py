"""A bound from pairs of items that no stage holds both of, and the cuts that they force.

For one class of accelerators under `sum`, without replicas. A block that holds items u and v
holds everything between them; its load is at least the minimum cut
around these (`dnnp.core.split.cuts`). If that is B or more, u and v share no stage of a split
with all loads below B. Nor do they where what lies between them exceeds the memory of a device
(`hard`, memory added up).

If q >= 2 pins of a net are such pairs, all of them, they are in q stages, each of which has
another pin outside: the net is paid q times at least. One that is always paid is paid once at
least. Loads of whole numbers below B are at most B - 1; so if

    work + cost of all nets, each times what it is paid at least > k (B - 1)

for k stages at most, no split is better than B. For `gpipe` the load of a stage is that of both
passes, which together are no more than the objective; the same holds.

A larger B leaves fewer pairs, so the largest B is found by bisection. Cliques are searched
greedily; what is found is a clique, so each B that is reached is proven.

What lies between: if a block of a split holds items u and v, it holds

`ordered`
    every item on a path of the item graph between them: each lies in one stage, and the stages
    have an order that all edges respect.
`convex`
    every item with a node on a path of nodes of one pass between nodes of u and v, in either
    direction (Definition 3.1 of the 2020 paper, each pass by itself). Splits that are `ordered`
    are convex; so this serves them too where there is a backward pass.
`free`
    nothing else.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dnnp.core.bounds.lower_bound import (
    LIMIT,
    SOLVED,
    BoundTask,
    LowerBound,
    Whole,
    flows_of,
    one_class,
    refused,
)
from dnnp.core.cost.items import Items, ordered_edges
from dnnp.core.cost.load import node_memory
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.kernels.kernel import kernel, plain
from dnnp.core.model.graph import Bools, Floats, Graph, Ints, distinct, totals
from dnnp.core.model.hypergraph import Hypergraph
from dnnp.core.model.search_context import PLAIN, SearchContext
from dnnp.core.split.cuts import flow_from, max_flow, network_of, pin_flows


class Between(NamedTuple):
    """Item label[x] lies between u and v if x is after one of them and before one of them."""

    label: Ints
    """i64[m], item of each thing that paths are made of: items, or nodes."""
    after: Bools
    """bool[n, m]: what each item reaches, itself included."""
    before: Bools
    """bool[n, m]: what reaches each item, itself included."""
    nested: bool
    """True: two items of such a set have nothing between them that is not in it."""

    def holds(self, u: int, v: int) -> Ints:
        """Items that share a stage with u and v if these share one, both included; ascending."""
        inside = (self.after[u] | self.after[v]) & (self.before[u] | self.before[v])
        return distinct(np.append(self.label[inside], [u, v]))


def between_of(graph: Graph, items: Items, validity: str) -> Between:
    """Find what lies between the items of `items_for`. O(items * edges)."""
    if validity == "free":
        own = np.eye(items.count, dtype=np.bool_)
        return Between(np.arange(items.count), own, own, True)
    nested = validity == "ordered" and not graph.backward.any()
    if nested:
        label = np.arange(items.count, dtype=np.int64)
        order, tail, head = items.order, items.tail, items.head
    else:
        label = items.label
        order = graph.order
        tail, head = ordered_edges(graph, along=True)
    rank = np.argsort(order)
    ahead = np.argsort(rank[tail], kind="stable")
    after = closure(items.count, label, tail[ahead], head[ahead])
    back = np.argsort(-rank[head], kind="stable")
    before = closure(items.count, label, head[back], tail[back])
    return Between(label, after, before, nested)


def closure(count: int, label: Ints, tail: Ints, head: Ints) -> Bools:
    """bool[count, m]: from which items each thing is reached, itself included.

    Of the edges, those into a thing come before those out of it.
    """
    reached = np.zeros((len(label), count), dtype=np.bool_)
    reached[np.arange(len(label)), label] = True
    for u, v in zip(tail.tolist(), head.tolist(), strict=True):
        reached[v] |= reached[u]
    return np.ascontiguousarray(reached.T)


MOST_ITEMS = 600
"""Items up to which all pairs are looked at: some seconds."""

PAIRS_AT_ONCE = 20_000
"""Pairs between two looks at the clock."""

MOST_THINGS = 6_000
"""Nodes up to which paths of nodes are looked at."""

STARTS = 32
"""Pins from which a clique is grown."""

ROOM = 1e-8
"""Relative tolerance above a capacity, since plans are judged with one for rounding."""


def pair_costs(
    work: Floats,
    nets: Hypergraph,
    cost: Floats,
    between: Between,
    *,
    enough: float = np.inf,
    memory: Floats | None = None,
    capacity: float = np.inf,
    run: SearchContext = PLAIN,
) -> Floats:
    """f64[n, n]: no stage that holds items u and v has a smaller load; the diagonal: that holds u.

    For accelerators of one class under `sum`. Exact, up to rounding in the sums, unless it is
    `enough` or more: then it is a bound of at least that. `work` is f64[n], `cost` f64[p]; with
    `memory`, f64[n], pairs whose items exceed `capacity` are inf. n^2 flows, each from the last;
    pairs that are not reached before the run stops get 0.
    """
    network = network_of(work, nets, cost)
    held = np.zeros(len(work)) if memory is None else memory
    label, after, before, held = plain(between.label, between.after, between.before, held)
    laid = between._replace(label=label, after=after, before=before)
    n = len(work)
    costs = np.full((n, n), -1.0)
    step = max(1, PAIRS_AT_ONCE // max(n, 1))
    for first in range(0, n, step):
        if run.stop():
            break
        run.report_progress(share=first / n)
        all_pairs(
            network.arcs,
            network.capacity,
            laid,
            held,
            float(capacity) * (1 + ROOM),
            float(enough),
            first,
            min(first + step, n),
            costs,
        )
    costs[costs < 0] = 0.0
    return costs


def pairs_claim(problem: SplitProblem, known: BoundTask, run: SearchContext = PLAIN) -> LowerBound:
    """The bound with a certificate; 0 if it is not above the floor."""
    graph = problem.graph
    if graph.n > MOST_THINGS:
        return refused(f"more than {MOST_THINGS} nodes")
    whole = one_class(
        problem, known.validity, most_items=MOST_ITEMS, objectives=("throughput", "gpipe")
    )
    if isinstance(whole, LowerBound):
        return whole
    between = between_of(graph, whole.items, known.validity)
    nets = whole.nets
    memory = None
    if problem.options.memory_mode == "hard" and problem.options.memory_model == "sum":
        memory = totals(whole.items.label, node_memory(graph), whole.items.count)
    stages = whole.stages
    work = int(whole.work[0].sum())
    cost = whole.cost[0].astype(np.int64)
    most = (work + int((cost * nets.sizes).sum())) // stages + 2
    room = whole.devices[0].memory_bytes
    costs = pair_costs(
        whole.work[0],
        nets,
        whole.cost[0],
        between,
        enough=float(most),
        memory=memory,
        capacity=room,
        run=run,
    )
    status = LIMIT if run.stop() else SOLVED

    def proves(bound: int) -> bool:
        more = int(forced(nets, cost, costs, float(bound)))
        return work + more > stages * (bound - 1)

    lower, upper = int(known.floor / whole.quantum) + 1, most
    if not proves(lower):
        return LowerBound(0.0, status)
    while upper - lower > 1:
        middle = (lower + upper) // 2
        if proves(middle):
            lower = middle
        else:
            upper = middle
    return whole.claim("pairs", lower, _proof(whole, between, costs, lower), status)


def _proof(whole: Whole, between: Between, costs: Floats, bound: int) -> dict[str, Any]:
    """Cliques that `bound` needs, and cuts for the least sets that make their pairs."""
    nets = whole.nets
    cliques = []
    pairs: set[tuple[int, int]] = set()
    clique = np.empty(len(nets.pins), dtype=np.int64)
    for e in np.flatnonzero(whole.cost[0]).tolist():
        first, last = int(nets.net_ptr[e]), int(nets.net_ptr[e + 1])
        size = grow(nets.pins, first, last, costs, float(bound), clique)
        if size >= 2:
            members = sorted(clique[:size].tolist())
            cliques.append([int(whole.tensors[e]), [int(whole.names[v]) for v in members]])
            pairs.update((u, v) for u in members for v in members if u < v)
    cuts = [
        {"items": [int(whole.names[u]), int(whole.names[v])], **proof}
        for (u, v), proof in sorted(cuts_of(whole, between, costs, bound, pairs).items())
    ]
    return {"cliques": cliques, "cuts": cuts}


def cuts_of(
    whole: Whole, between: Between, costs: Floats, bound: int, pairs: set[tuple[int, int]]
) -> dict[tuple[int, int], dict[str, Any]]:
    """Proofs that no stage with a load below `bound` holds any of these pairs of items.

    Of the pairs that lie between one, the one with the least between it is proven: all larger
    ones follow.
    """
    n = whole.items.count
    sizes = np.empty((n, n))
    for u in range(n):
        inside = (between.after[u] | between.after) & (between.before[u] | between.before)
        sizes[u] = inside.sum(axis=1)
    sizes[costs < bound] = np.inf
    network = network_of(whole.work[0], whole.nets, whole.cost[0])
    found: dict[tuple[int, int], dict[str, Any]] = {}
    for u, v in sorted(pairs):
        held = between.holds(u, v)
        place = int(np.argmin(sizes[np.ix_(held, held)]))
        a, b = sorted((int(held[place // len(held)]), int(held[place % len(held)])))
        if (a, b) in found:
            continue
        if np.isinf(costs[a, b]):
            found[a, b] = {"memory": True}
            continue
        capacity = network.capacity.copy()
        flow_from(network, capacity, between.holds(a, b), bound)
        found[a, b] = {"flows": flows_of(whole, pin_flows(network, capacity))}
    return found


@kernel
def grow(pins, first, last, costs, bound, clique):  # type: ignore[no-untyped-def]
    """Write into `clique` pins that are all pairs of `bound` or more; return how many."""
    trial = np.empty(last - first, np.int64)
    best = 0
    for start in range(first, min(last, first + STARTS)):
        trial[0] = pins[start]
        size = 1
        for q in range(first, last):
            fits = True
            for i in range(size):
                if pins[q] == trial[i] or costs[pins[q], trial[i]] < bound:
                    fits = False
                    break
            if fits:
                trial[size] = pins[q]
                size += 1
        if size > best:
            best = size
            clique[:size] = trial[:size]
    return best


@kernel
def forced(nets, cost, costs, bound):  # type: ignore[no-untyped-def]
    """Cost of all nets, each as often as it is surely paid if all loads are below `bound`."""
    ptr, pins, always = nets.net_ptr, nets.pins, nets.always
    total = 0
    clique = np.empty(len(pins), np.int64)
    for e in range(len(cost)):
        if cost[e] > 0:
            size = grow(pins, ptr[e], ptr[e + 1], costs, bound, clique)
            if size >= 2 or always[e]:
                total += cost[e] * size
    return total


@kernel
def all_pairs(  # type: ignore[no-untyped-def]
    arcs, free, between, memory, capacity, enough, first, last, costs
):
    """Fill rows `first` to `last` of `costs`, negative where it is open.

    Larger sets come later and are known once a pair in them is `enough`.
    """
    label, after, before = between.label, between.after, between.before
    n = len(costs)
    inside = np.zeros(n, np.bool_)
    sources = np.empty(n, np.int64)
    sizes = np.empty(n, np.int64)
    for u in range(first, last):
        base = free.copy()
        alone = 0.0
        for v in range(n):
            sizes[v] = 1
            for x in range(len(label)):
                if (after[u, x] or after[v, x]) and (before[u, x] or before[v, x]):
                    sizes[v] += 1
        sizes[u] = 0  # a part of all others
        for v in np.argsort(sizes, kind="mergesort"):
            if costs[u, v] >= 0.0:
                continue
            inside[:] = False
            for x in range(len(label)):
                if (after[u, x] or after[v, x]) and (before[u, x] or before[v, x]):
                    inside[label[x]] = True
            inside[u] = True
            inside[v] = True
            count = 0
            held = 0.0
            known = -1.0
            for w in range(n):
                if inside[w]:
                    sources[count] = w
                    count += 1
                    held += memory[w]
                    if between.nested:
                        known = max(known, costs[w, w], costs[u, w], costs[w, v])
            if v == u:
                alone = max_flow(arcs, base, sources[:count], enough)
                known = alone
            elif known < enough:
                rest = base.copy()
                further = max_flow(arcs, rest, sources[:count], enough - alone)
                known = max(known, alone + further)
            if held > capacity:
                known = np.inf
            costs[u, v] = known
            costs[v, u] = known
