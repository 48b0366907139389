"""Split wanted groups where they would make the graph of groups cyclic.

Groups in no cycle of the wanted quotient are kept whole. Those of a strongly connected
component are cut into runs of one topological order; runs are intervals of it, so every edge
between two of them goes forward, and edges between components go forward by themselves.
"""

from __future__ import annotations

import heapq

import numpy as np

from dnnp.core.model.components import strong
from dnnp.core.model.graph import Bools, Graph, Ints, csr


def acyclic_labels(graph: Graph, label: Ints) -> Ints:
    """Refine `label` (i64[n], any numbers) until the quotient graph is acyclic; i64[n].

    Which group a run continues is chosen so that groups stay whole: first one that waits for
    no other any more, then the one with the earliest node left. Time O((V + E) log V).
    """
    wanted, groups = _numbered(label)
    component = _components(graph, wanted, groups)
    inside = (np.bincount(component)[component] > 1)[wanted]
    if not inside.any():
        return wanted
    tail, head = graph.edges
    kept = inside[tail] & (component[wanted[tail]] == component[wanted[head]])
    run = _runs(graph, wanted, inside, tail[kept], head[kept])
    return _numbered(np.where(inside, run + groups, wanted))[0]


def tangles(graph: Graph, label: Ints) -> Ints:
    """Nodes whose groups lie on one cycle of the quotient get one number, others -1; i64[n]."""
    wanted, groups = _numbered(label)
    component = _components(graph, wanted, groups)
    return np.where(np.bincount(component)[component] > 1, component, -1)[wanted]


def _numbered(label: Ints) -> tuple[Ints, int]:
    """Labels 0, 1, ... in place of any, and their number."""
    wanted = np.unique(label, return_inverse=True)[1].reshape(-1).astype(np.int64)
    return wanted, int(wanted.max(initial=-1)) + 1


def _components(graph: Graph, wanted: Ints, groups: int) -> Ints:
    """Strongly connected component of each group."""
    tail, head = graph.edges
    crossing = wanted[tail] != wanted[head]
    return strong(groups, wanted[tail[crossing]], wanted[head[crossing]])


def _runs(graph: Graph, wanted: Ints, inside: Bools, tail: Ints, head: Ints) -> Ints:
    """Number of the run of each node that is `inside`; edges as given."""
    ptr, idx = csr(tail, head, graph.n)
    starts, targets = ptr.tolist(), idx.tolist()
    group = wanted.tolist()
    order = [v for v in graph.order.tolist() if inside[v]]
    place = {v: i for i, v in enumerate(order)}
    missing = np.bincount(head, minlength=graph.n).tolist()
    # Edges into a group from others that are not over yet.
    waiting = dict.fromkeys((group[v] for v in order), 0)
    for u, v in zip(tail.tolist(), head.tolist(), strict=True):
        waiting[group[v]] += group[u] != group[v]
    ready: dict[int, list[int]] = {g: [] for g in waiting}
    for v in order:
        if not missing[v]:
            heapq.heappush(ready[group[v]], place[v])
    first = {g: place[v] for v in reversed(order) for g in (group[v],)}
    free = [(first[g], g) for g in waiting if not waiting[g]]
    heapq.heapify(free)
    run = np.zeros(graph.n, dtype=np.int64)
    done = [False] * len(order)
    number = earliest = 0
    while True:
        while earliest < len(order) and done[earliest]:
            earliest += 1
        if earliest == len(order):
            return run
        current = heapq.heappop(free)[1] if free else group[order[earliest]]
        number += 1
        while ready[current]:
            i = heapq.heappop(ready[current])
            u = order[i]
            done[i], run[u] = True, number
            for v in targets[starts[u] : starts[u + 1]]:
                missing[v] -= 1
                if not missing[v]:
                    heapq.heappush(ready[group[v]], place[v])
                if group[v] != current:
                    waiting[group[v]] -= 1
                    if not waiting[group[v]]:
                        heapq.heappush(free, (first[group[v]], group[v]))
