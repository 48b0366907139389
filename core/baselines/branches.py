"""Contract branchings, so that what is left is a chain for PipeDream's optimiser.

PipeDream plans over a chain of layers; where the graph branches, everything between the fork and
the join becomes one layer (2020 paper, section 6). A branching is a biconnected component of the
undirected graph with more than one edge; all its nodes but the last, which only receives from
it, are joined. What is left is a tree, which a topological order lays out as a chain.
"""

from __future__ import annotations

import numpy as np

from dnnp.core.cost.items import Items
from dnnp.core.cost.line import Line
from dnnp.core.model.components import connected, strong
from dnnp.core.model.graph import Bools, Ints, csr, distinct

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
