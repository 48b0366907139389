"""What a contiguous block must respect, as few edges as possible.

A block is contiguous if no path leaves it and returns (2020 paper, Definition 3.1), each pass
judged alone. The integer program has a variable for every cell and edges between cells: a cell
is a node, or a whole unit where that makes no difference.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dnnp.core.model.cluster import Clustering
from dnnp.core.model.graph import Bools, Graph, Ints, csr, distinct, totals

MAX_REDUCED = 20_000
"""Most vertices for which edges that follow from others are looked for."""


class Cells(NamedTuple):
    """Cells and the edges between them; every path of a pass is a path of cells."""

    node: Ints
    """i64[cells], a node of each cell."""
    tail: Ints
    head: Ints


def cells_of(graph: Graph, units: Clustering) -> Cells:
    """Cells of the nodes that edges inside a pass touch.

    The nodes that a unit has in one pass are one cell if a path that enters the unit at any of
    them can leave it at any of them.
    """
    tail, head = graph.edges
    same = graph.backward[tail] == graph.backward[head]
    tail, head = tail[same], head[same]
    part = 2 * units.label + graph.backward
    inside = part[tail] == part[head]
    ptr, after = csr(tail[inside], head[inside], graph.n)
    entered = np.zeros(graph.n, dtype=np.bool_)
    entered[head[~inside]] = True
    left = np.zeros(graph.n, dtype=np.bool_)
    left[tail[~inside]] = True
    name = np.arange(graph.n)
    first = np.full(2 * units.g, -1, dtype=np.int64)
    first[part[::-1]] = np.arange(graph.n)[::-1]
    crowded = np.bincount(part, minlength=2 * units.g) > 1
    members = csr(part, np.arange(graph.n), 2 * units.g)
    for p in np.flatnonzero(crowded).tolist():
        nodes = members[1][members[0][p] : members[0][p + 1]]
        ends = {v for v in nodes.tolist() if left[v]}
        if all(ends <= _reached(v, ptr, after) for v in nodes.tolist() if entered[v]):
            name[nodes] = first[p]
    a, b = name[tail], name[head]
    pairs = distinct(a[a != b] * graph.n + b[a != b])
    a, b = pairs // max(graph.n, 1), pairs % max(graph.n, 1)
    used = distinct(np.concatenate([a, b]))
    a, b = np.searchsorted(used, a), np.searchsorted(used, b)
    return Cells(used, *without_shortcuts(len(used), a, b))


def _reached(start: int, ptr: Ints, after: Ints) -> set[int]:
    """Nodes reached from a node over the edges given as CSR, itself included."""
    seen = {start}
    pending = [start]
    while pending:
        u = pending.pop()
        for v in after[ptr[u] : ptr[u + 1]].tolist():
            if v not in seen:
                seen.add(v)
                pending.append(v)
    return seen


def without_shortcuts(n: int, tail: Ints, head: Ints) -> tuple[Ints, Ints]:
    """Edges of an acyclic graph without those that follow from others; else all of them."""
    ptr, after = csr(tail, head, n)
    order = _kahn(n, ptr, after, head)
    if len(order) < n or n > MAX_REDUCED:
        return tail, head
    rank = np.empty(n, dtype=np.int64)
    rank[order] = np.arange(n)
    reach = [0] * n
    kept: Bools = np.zeros(len(tail), dtype=np.bool_)
    edge = np.argsort(tail, kind="stable")
    for u in reversed(order):
        mine = edge[ptr[u] : ptr[u + 1]]
        known = 0
        for e in mine[np.argsort(rank[head[mine]], kind="stable")].tolist():
            v = int(head[e])
            if not known >> v & 1:
                kept[e] = True
                known |= reach[v] | 1 << v
        reach[u] = known
    return tail[kept], head[kept]


def _kahn(n: int, ptr: Ints, after: Ints, head: Ints) -> list[int]:
    """A topological order, or a part of one if there is a cycle."""
    indegree = totals(head, np.ones(len(head)), n).astype(np.int64).tolist()
    ready = [v for v in range(n) if not indegree[v]]
    order: list[int] = []
    while ready:
        u = ready.pop()
        order.append(u)
        for v in after[ptr[u] : ptr[u + 1]].tolist():
            indegree[v] -= 1
            if not indegree[v]:
                ready.append(v)
    return order


def reaching(cells: Cells, members: Bools) -> Bools:
    """Cells from which some of the `members` (bool[cells]) can be reached, these included."""
    ptr, before = csr(cells.head, cells.tail, len(cells.node))
    found = members.copy()
    pending = np.flatnonzero(members).tolist()
    while pending:
        v = pending.pop()
        for u in before[ptr[v] : ptr[v + 1]].tolist():
            if not found[u]:
                found[u] = True
                pending.append(u)
    return found
