"""Groups that are wanted: layers of a model, or given ones, cut where they would make a cycle.

Exporters name a node by its path through the modules, as in `/encoder/layer.3/attn/MatMul`. A layer
is a path cut after a component with a number.

Groups in no cycle of the wanted quotient are kept whole. Those of a strongly connected
component are cut into runs of one topological order; runs are intervals of it, so every edge
between two of them goes forward, and edges between components go forward by themselves.
"""

from __future__ import annotations

import heapq
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from dnnp.core.coarsen.merge import NONE, lone_colors_freed, signatures
from dnnp.core.model.graph import (
    Bools,
    Clustering,
    Graph,
    Ints,
    contract,
    csr,
    csr_lists,
    distinct,
    strong,
)
from dnnp.core.model.text import scope_of_name


def acyclic_labels(graph: Graph, label: Ints) -> Ints:
    """Refine `label` (i64[n], any numbers) until the quotient graph is acyclic; i64[n].

    Which group a run continues is chosen so that groups stay whole: first one that waits for
    no other any more, then the one with the earliest node left. Time O((V + E) log V).
    """
    wanted, tangle = np.unique(label, return_inverse=True)[1], tangles(graph, label)
    inside = tangle >= 0
    if not inside.any():
        return wanted
    tail, head = graph.edges
    kept = inside[tail] & (tangle[tail] == tangle[head])
    run = _runs(graph, wanted, inside, tail[kept], head[kept])
    return np.unique(np.where(inside, run + graph.n, wanted), return_inverse=True)[1]


def tangles(graph: Graph, label: Ints) -> Ints:
    """Nodes whose groups lie on one cycle of the quotient get one number, others -1; i64[n]."""
    groups, wanted = np.unique(label, return_inverse=True)
    tail, head = wanted[np.array(graph.edges)]
    crossing = tail != head
    component = strong(len(groups), tail[crossing], head[crossing])
    return np.where(np.bincount(component)[component] > 1, component, -1)[wanted]


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
    """The rule that formed each group."""


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


RULE = "layer"


def levels(graph: Graph) -> list[int]:
    """Number of nodes on the longest path that ends before each node."""
    tail, head = graph.edges
    makers = csr_lists(*csr(head, tail, graph.n))
    level = [0] * graph.n
    for node in graph.order.tolist():
        level[node] = max((level[u] + 1 for u in makers[node]), default=0)
    return level


def paths_of(nodes: Sequence[Mapping[str, Any]], graph: Graph, depth: int | None) -> list[Path]:
    """Layer of each node record: its layer field, else by its scope, or what its name implies."""
    scopes = [scope_path(r.get("scope") or scope_of_name(r["name"])) for r in nodes]
    paths = layer_paths(scopes, levels(graph), depth)
    return [(r["layer"],) if r.get("layer") else p for r, p in zip(nodes, paths, strict=True)]


def fill_gaps(graph: Graph, paths: Sequence[Path]) -> list[Path]:
    """Give nodes without a layer that of all their consumers, or else of all their producers.

    Exporters leave the nodes that they make up themselves without a scope.
    """
    filled = list(paths)
    order = graph.order.tolist()
    tail, head = graph.edges
    makers, readers = (csr_lists(*csr(a, b, graph.n)) for a, b in ((head, tail), (tail, head)))
    for sequence, around in ((order[::-1], readers), (order, makers)):
        for node in sequence:
            if not filled[node]:
                found = {filled[v] for v in around[node]}
                if len(found) == 1:
                    filled[node] = found.pop()
    return filled


def join_layers(
    graph: Graph, clustering: Clustering, paths: Sequence[Path]
) -> tuple[Ints, list[Path]]:
    """Join groups of one layer, device classes and pass.

    The quotient of the groups so far is acyclic. `paths`: layer of each node, () for none; what
    stays without one after `fill_gaps` stays as it is. Returns the new label of each node, i64[n],
    and the layer of each old group: that of most of its members, of the earliest among equals.
    """
    paths = fill_gaps(graph, paths)
    layer_of: list[Path] = []
    wanted: list[int] = []
    numbers: dict[tuple[Path, int], int] = {}
    kinds = signatures(graph).tolist()
    for group in range(clustering.g):
        members = clustering.members(group).tolist()
        path = Counter(paths[v] for v in members).most_common(1)[0][0]
        layer_of.append(path)
        key = (path, kinds[members[0]]) if path else ((str(group),), -1)
        wanted.append(numbers.setdefault(key, len(numbers)))
    joined = acyclic_labels(contract(graph, clustering), np.array(wanted, dtype=np.int64))
    return joined[clustering.label], layer_of


Path = tuple[str, ...]

MIN_NODES = 4
"""Nodes that a layer holds on average, unless there are none so large."""

MIN_COVER = 0.2
"""Share of the nodes in their parents that layers cover; a block's two normalisations do not."""


def scope_path(scope: str) -> Path:
    """Components of a scope: parts between slashes or, if it has none, between dots.

    >>> scope_path("/encoder/layer.3/attn")
    ('encoder', 'layer.3', 'attn')
    >>> scope_path("encoder.layer.3.attn")
    ('encoder', 'layer.3', 'attn')
    """
    if "/" in scope:
        return tuple(part for part in scope.split("/") if part)
    parts: list[str] = []
    for part in scope.split("."):
        if part.isdigit() and parts:
            parts[-1] += f".{part}"
        elif part:
            parts.append(part)
    return tuple(parts)


def layer_paths(
    paths: Sequence[Path], levels: Sequence[int], depth: int | None = None
) -> list[Path]:
    """The layer of each node's path; () for a node without a path.

    Parameters
    ----------
    paths, levels
        Path of each node, and the length of the longest chain of nodes before it.
    depth
        Number of components that tell layers apart. None: cut each path after a component
        with a number, whose instances follow one another: the deepest that holds `MIN_NODES`
        nodes on average, else the first; a path without any, where it parts from the others.
    """
    if depth is not None:
        return [path[:depth] for path in paths]
    sizes = _serial_prefixes(paths, levels)
    cut_at = {path: _cut(path, sizes) for path in dict.fromkeys(paths)}
    above = {path[:i] for path, cut in cut_at.items() for i in range(cut)}
    result: dict[Path, Path] = {}
    for path, cut in cut_at.items():
        if not cut:
            cut = next((i for i in range(1, len(path)) if path[:i] not in above), len(path))
        result[path] = path[:cut]
    return [result[path] for path in paths]


def _serial_prefixes(paths: Sequence[Path], levels: Sequence[int]) -> dict[Path, float]:
    """Prefixes, numbers blanked, that stand for layers -> nodes in each layer on average.

    Of the instances in one parent, more than half must follow the one before: attention heads
    and the branches of a block run side by side and are no layers. And they must be a good
    part of it.
    """
    total = Counter(path[:i] for path in paths for i in range(len(path)))
    inside: dict[Path, list[int]] = {}
    for path, level in zip(paths, levels, strict=True):
        for i, part in enumerate(path, 1):
            if any(c.isdigit() for c in part):
                inside.setdefault(path[:i], []).append(level)
    siblings: dict[Path, dict[Path, list[list[int]]]] = {}
    for prefix, found in inside.items():
        parents = siblings.setdefault(_blank(prefix), {})
        parents.setdefault(prefix[:-1], []).append(sorted(found))
    serial: dict[Path, float] = {}
    for prefix, parents in siblings.items():
        pairs = [pair for family in parents.values() for pair in pairwise(sorted(family, key=_mid))]
        sizes = [len(found) for family in parents.values() for found in family]
        covers = sum(sizes) >= MIN_COVER * sum(total[parent] for parent in parents)
        if covers and 2 * sum(_follows(a, b) for a, b in pairs) > len(pairs):
            serial[prefix] = sum(sizes) / len(sizes)
    return serial


def _mid(levels: list[int]) -> int:
    return levels[len(levels) // 2]


def _follows(before: list[int], after: list[int]) -> bool:
    """True if one instance lies behind another: further than half of their middle halves."""
    spread = sum(x[3 * len(x) // 4] - x[len(x) // 4] for x in (before, after))
    return 4 * (_mid(after) - _mid(before)) > spread


def _cut(path: Path, sizes: dict[Path, float]) -> int:
    """Number of components that name the layer of a path; 0 if none does."""
    found = [(i, sizes.get(_blank(path[:i]), 0.0)) for i in range(1, len(path) + 1)]
    large = [i for i, size in found if size >= MIN_NODES]
    return large[-1] if large else next((i for i, size in found if size), 0)


def _blank(path: Path) -> Path:
    """A path with the numbers taken out, and a letter right behind one, as in Mixed_5b."""
    return tuple(re.sub(r"\d+([a-z](?![A-Za-z\d]))?", "#", part) for part in path)
