"""Join the groups of one layer, as far as the graph of groups stays acyclic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dnnp.core.coarsen.merge import signatures
from dnnp.core.coarsen.scopes import Path, layer_paths, scope_of_name, scope_path
from dnnp.core.coarsen.segments import acyclic_labels
from dnnp.core.model.cluster import Clustering, contract
from dnnp.core.model.graph import Graph, Ints

RULE = "layer"


def levels(graph: Graph) -> list[int]:
    """Number of nodes on the longest path that ends before each node."""
    makers, _ = _neighbours(graph)
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
    makers, readers = _neighbours(graph)
    for sequence, around in ((order[::-1], readers), (order, makers)):
        for node in sequence:
            if not filled[node]:
                found = {filled[v] for v in around[node]}
                if len(found) == 1:
                    filled[node] = found.pop()
    return filled


def _neighbours(graph: Graph) -> tuple[list[list[int]], list[list[int]]]:
    """Producers and consumers of each node."""
    tail, head = graph.edges
    makers: list[list[int]] = [[] for _ in range(graph.n)]
    readers: list[list[int]] = [[] for _ in range(graph.n)]
    for u, v in zip(tail.tolist(), head.tolist(), strict=True):
        makers[v].append(u)
        readers[u].append(v)
    return makers, readers


def join_layers(
    graph: Graph, clustering: Clustering, paths: Sequence[Path]
) -> tuple[Ints, list[Path]]:
    """Join groups of one layer, device classes and pass.

    Parameters
    ----------
    graph, clustering
        The graph and its groups so far; their quotient is acyclic.
    paths
        Layer of each node; () for none. What stays without one after `fill_gaps` stays as it
        is.

    Returns
    -------
    tuple
        New label of each node, i64[n], and the layer of each old group: that of most of its
        members, of the earliest among equals.
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
