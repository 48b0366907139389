"""Groups of a backward pass as the mirror image of those of the forward pass.

What a runtime fuses in the forward pass it differentiates as a whole. So rules look at the forward
pass alone, as if nobody kept anything of it, and gradients of the nodes of a group are a group too.
Edges between gradients are those of the forward pass turned around, and all others lead from the
forward pass to the backward pass: without a cycle before, there is none after.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dnnp.core.coarsen.coarsen import Coarsening
from dnnp.core.model.graph import Graph, Ints, clustering_of_labels

ALONE = -1


def twins_of(nodes: Sequence[Mapping[str, Any]]) -> Ints | None:
    """Position of the node whose gradient each node computes, i64[n]; -1: of none.

    None: no node says so, as in graphs without a backward pass and those made by others.
    """
    position = {record["id"]: i for i, record in enumerate(nodes)}
    twins = np.array([position.get(r.get("of"), ALONE) for r in nodes], dtype=np.int64)
    return twins if (twins >= 0).any() else None


def mirrored(graph: Graph, twins: Ints, found: Coarsening) -> Coarsening:
    """Groups of a graph, from those of its forward pass.

    `found`: groups of the nodes that are not of the backward pass; `twins`: see `twins_of`.
    """
    before = found.clustering
    label = np.full(graph.n, ALONE, dtype=np.int64)
    label[~graph.backward] = before.label
    label = np.where(twins >= 0, label[twins] + before.g, label)
    alone = np.flatnonzero(label < 0)
    label[alone] = 2 * before.g + np.arange(len(alone))
    names = [*before.names, *(f"{name}.grad" for name in before.names)]
    names += [graph.node_names[v] for v in alone.tolist()]
    rules = [*found.rules, *found.rules, *[""] * len(alone)]
    kept, label = np.unique(label, return_inverse=True)
    label = label.reshape(-1)
    single = np.bincount(label) == 1
    return replace(
        found,
        clustering=clustering_of_labels(graph, label, tuple(names[i] for i in kept.tolist())),
        rules=tuple(
            "" if one else rules[i] for i, one in zip(kept.tolist(), single.tolist(), strict=True)
        ),
    )


def mirrored_units(
    graph: Graph, twins: Ints, unit: Ints, rules: Sequence[str]
) -> tuple[Ints, tuple[str, ...]]:
    """Units of a graph, each a position of one of its nodes, and the rule at that position.

    `unit`, `rules`: the same of the forward pass, by positions in that; `twins`: see `twins_of`.
    """
    early = np.flatnonzero(~graph.backward)
    own = np.arange(graph.n, dtype=np.int64)
    own[early] = early[unit]
    named = dict(zip(early.tolist(), rules, strict=True))
    late = np.flatnonzero(twins >= 0)
    first: dict[int, int] = {}
    for v, leader in zip(late.tolist(), own[twins[late]].tolist(), strict=True):
        own[v] = first.setdefault(leader, v)
    named |= {v: named[leader] for leader, v in first.items()}
    return own, tuple(named.get(v, "") for v in range(graph.n))
