"""Split wanted groups where they would make the graph of groups cyclic.

Groups in no cycle of the wanted quotient are kept whole. Those of a strongly connected
component are cut into runs of one topological order; runs are intervals of it, so every edge
between two of them goes forward, and edges between components go forward by themselves.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dnnp.core.coarsen.merge import NONE, lone_colors_freed, signatures
from dnnp.core.model.graph import Bools, Graph, Ints, csr, distinct, strong


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


@dataclass(frozen=True)
class Given:
    """Groups by node positions; no node twice. Nodes in none stay alone."""

    groups: Sequence[Sequence[int]]
    rules: Sequence[str]
    """What formed each group."""


MAX_FILLED = 64
"""Nodes of a group that takes in what lies between its members; a larger one is cut."""


def given_labels(graph: Graph, given: Given) -> Ints:
    """Label of each node: groups as given, as far as they can be; i64[n].

    Members of a group run on the same device classes, in the same pass, and have at most one
    colour; a group is cut where they do not. Where groups wait for one another in a circle,
    what lies between their members joins them, up to `MAX_FILLED` nodes; larger circles are
    cut (see `acyclic_labels`).
    """
    label = np.arange(graph.n, dtype=np.int64)
    kinds, colors = signatures(graph).tolist(), lone_colors_freed(graph).tolist()
    for group in given.groups:
        parts: dict[tuple[int, int], int] = {}
        seen = {colors[v] for v in group} - {NONE}
        for v in group:
            key = (kinds[v], colors[v] if len(seen) > 1 else NONE)
            label[v] = parts.setdefault(key, v)
    return acyclic_labels(graph, _filled(label, tangles(graph, label), kinds, colors))


def _filled(label: Ints, tangle: Ints, kinds: list[int], colors: list[int]) -> Ints:
    """One label for each tangle that is small and may be one group."""
    result = label.copy()
    for number in distinct(tangle[tangle >= 0]).tolist():
        members = np.flatnonzero(tangle == number).tolist()
        plain = len({kinds[v] for v in members}) == 1
        plain = plain and len({colors[v] for v in members} - {NONE}) <= 1
        if plain and len(members) <= MAX_FILLED:
            result[members] = label[members[0]]
    return result


def rules_of(given: Given, label: Ints) -> dict[int, str]:
    """Rule of each label that holds a node of a given group."""
    return {
        int(label[v]): rule
        for group, rule in zip(given.groups, given.rules, strict=True)
        for v in group
    }
