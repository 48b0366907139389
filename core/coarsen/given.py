"""Groups that are known from elsewhere, such as what a runtime reports to fuse."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dnnp.core.coarsen.merge import NONE, lone_colors_freed, signatures
from dnnp.core.coarsen.segments import acyclic_labels, tangles
from dnnp.core.model.graph import Graph, Ints, distinct


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
