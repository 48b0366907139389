"""Coarsening: rules or given groups, series, layers, a number of groups; one clustering."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

import numpy as np

from dnnp.core.coarsen.balance import RULE as BALANCED
from dnnp.core.coarsen.balance import contract_to
from dnnp.core.coarsen.chains import RULE as CHAIN
from dnnp.core.coarsen.chains import contract_chains, work_shares
from dnnp.core.coarsen.constants import absorb, fold
from dnnp.core.coarsen.gcof import fuse_sequences
from dnnp.core.coarsen.given import Given, given_labels, rules_of
from dnnp.core.coarsen.merge import Shape, Units
from dnnp.core.coarsen.patterns import fuse_pattern
from dnnp.core.coarsen.scopes import Path
from dnnp.core.model import rules as model
from dnnp.core.model.cluster import Clustering, clustering_of_labels, contract
from dnnp.core.model.graph import Floats, Graph, Ints, totals

MAX_NAMED = 6
"""A group of more operators is named by its first and last one and their number."""


@dataclass(frozen=True, eq=False)
class Coarsening:
    """A clustering with an acyclic quotient graph, and what formed each group."""

    clustering: Clustering
    rules: tuple[str, ...]
    """Rule that formed each group; empty for a node alone."""
    stuck: bool = False
    """There are more groups than asked for, because no two of them may be one."""


def coarsen(
    graph: Graph,
    shapes: Sequence[Shape],
    rules: model.RuleSet | None = None,
    chains: float | None = None,
    paths: Sequence[Path] | None = None,
    given: Given | None = None,
    to: int | None = None,
    max_share: float = math.inf,
) -> Coarsening:
    """Group the nodes of a graph.

    Parameters
    ----------
    graph
        The graph; the members of a group run on the same device classes and in the same pass.
    shapes
        Dimensions of each tensor, None where they are not known.
    rules
        Fusion rules to apply first.
    chains
        Contract series next, with this limit on the share of the work that a chain may hold
        besides its heaviest part; None: do not.
    paths
        Layer of each node, () for none, to group by next; None: no such grouping.
    given
        Groups to start from, in place of rules.
    to
        Contract down to this number of groups at last; None: do not.
    max_share
        With `to`: share of the work that a group may hold besides its heaviest part.
    """
    share = work_shares(graph) if chains is not None or to is not None else np.zeros(graph.n)
    if given is not None:
        result = _given(graph, given, share, chains)
    else:
        units = Units(graph)
        if rules is not None:
            apply_rules(units, rules, shapes)
        if chains is not None:
            contract_chains(units, share, chains)
        label, exits = _numbered(graph, units.label())
        result = _made(graph, label, [units.rules[e] for e in exits])
    if paths is not None:
        result = _layered(graph, result, paths)
    if to is not None and result.clustering.g > to:
        before = result.clustering
        quotient = contract(graph, before)
        loads = totals(before.label, share, before.g)
        joined, stuck = contract_to(quotient, loads, to, max_share)
        result = replace(_joined(graph, result, joined[before.label], BALANCED), stuck=stuck)
    return result


def _made(graph: Graph, label: Ints, formed: Sequence[str]) -> Coarsening:
    """A coarsening from labels 0..g-1 and the rule of each group."""
    clustering = clustering_of_labels(graph, label)
    ptr, flat = clustering.member_ptr.tolist(), clustering.member_idx.tolist()
    members = [flat[a:b] for a, b in pairwise(ptr)]
    return Coarsening(
        replace(clustering, names=tuple(_name(graph, part) for part in members)),
        tuple("" if len(m) == 1 else rule for m, rule in zip(members, formed, strict=True)),
    )


def _given(graph: Graph, given: Given, share: Floats, chains: float | None) -> Coarsening:
    """Given groups, and series of them."""
    label = given_labels(graph, given)
    rule_of = rules_of(given, label)
    label, kept = _numbered(graph, label)
    result = _made(graph, label, [rule_of.get(g, "") for g in kept])
    if chains is None:
        return result
    before = result.clustering
    units = Units(contract(graph, before))
    contract_chains(units, totals(label, share, before.g), chains)
    return _joined(graph, result, units.label()[label], CHAIN)


def _joined(graph: Graph, before: Coarsening, wanted: Ints, rule: str) -> Coarsening:
    """Groups joined by `rule`; `wanted` is the new label of each node."""
    label, _ = _numbered(graph, wanted)
    parts = _parts(before.clustering, label)
    return _made(graph, label, [before.rules[p[0]] if len(p) == 1 else rule for p in parts])


def _layered(graph: Graph, before: Coarsening, paths: Sequence[Path]) -> Coarsening:
    """Groups joined by layer, and named after it."""
    from dnnp.core.coarsen.layers import RULE, join_layers

    wanted, layer_of = join_layers(graph, before.clustering, paths)
    result = _joined(graph, before, wanted, RULE)
    parts = _parts(before.clustering, result.clustering.label)
    old = before.clustering.names
    names = (old[p[0]] if len(p) == 1 else "/".join(layer_of[p[0]]) for p in parts)
    return replace(result, clustering=replace(result.clustering, names=tuple(names)))


def apply_rules(units: Units, rules: model.RuleSet, shapes: Sequence[Shape]) -> None:
    """Apply rules in their order; neighbouring sequences together."""
    for kind, batch in groupby(rules.rules, type):
        if kind is model.Sequence:
            fuse_sequences(units, [r for r in batch if isinstance(r, model.Sequence)])
            continue
        for rule in batch:
            if isinstance(rule, model.Pattern):
                fuse_pattern(units, rule, shapes)
            elif isinstance(rule, model.Fold):
                fold(units, rule, shapes)
            elif isinstance(rule, model.Absorb):
                absorb(units, rule)


def _numbered(graph: Graph, label: Ints) -> tuple[Ints, list[int]]:
    """Labels 0..g-1 by the first node of each group in the graph's order, and the old ones."""
    found, first = np.unique(label[graph.order], return_index=True)
    by_first = np.argsort(first, kind="stable")
    rank = np.empty(len(found), dtype=np.int64)
    rank[by_first] = np.arange(len(found))
    return rank[np.searchsorted(found, label)], found[by_first].tolist()


def _parts(before: Clustering, label: Ints) -> list[list[int]]:
    """Groups of `before` that make up each new group; `label` is that of each node."""
    parts: list[list[int]] = [[] for _ in range(int(label.max(initial=-1)) + 1)]
    first = label[before.member_idx[before.member_ptr[:-1]]]
    for group, part in enumerate(first.tolist()):
        parts[part].append(group)
    return parts


def _name(graph: Graph, members: list[int]) -> str:
    """The operators of a group, or the name of its only node."""
    if len(members) == 1:
        return graph.node_names[members[0]]
    ops = [graph.ops[v] for v in members]
    if len(ops) <= MAX_NAMED:
        return "+".join(ops)
    return f"{ops[0]}+...+{ops[-1]} ({len(ops)} nodes)"
