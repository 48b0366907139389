"""Coarsening: rules or given groups, constants, series, layers, a number of groups."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

import numpy as np

from dnnp.core.coarsen.balance import RULE as BALANCED
from dnnp.core.coarsen.balance import contract_to
from dnnp.core.coarsen.gcof import fuse_sequences
from dnnp.core.coarsen.layers import Path
from dnnp.core.coarsen.merge import NONE, Shape, Units
from dnnp.core.coarsen.patterns import fuse_pattern
from dnnp.core.coarsen.segments import Given, given_labels, rules_of
from dnnp.core.model import rules as model
from dnnp.core.model.cluster import Clustering, clustering_of_labels, contract
from dnnp.core.model.graph import Bools, Floats, Graph, Ints, totals
from dnnp.core.model.rules import Absorb, Fold, RuleSet

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


def absorb(units: Units, rule: Absorb) -> None:
    """Merge operators that do nothing into their only consumer, or their producer into them.

    The consumer reads through them: later rules see it connected to what they read.
    """
    for unit in units.having(rule.ops):
        if units.find(unit) != unit or not units.reads[unit]:
            continue
        source = units.reads[unit][0]
        consumer, maker = units.consumer(unit), units.maker(source)
        if consumer != NONE and units.merge(unit, consumer):
            outputs = units.writes[unit]
            reads = [source if t in outputs else t for t in units.reads[consumer]]
            units.reads[consumer] = list(dict.fromkeys(reads))
            units.rules[consumer] = units.rules[consumer] or rule.name
        elif maker != NONE and units.merge(maker, unit):
            units.rename(unit, units.ops[maker])
            units.reads[unit] = units.reads[maker]
            units.rules[unit] = units.rules[maker] or rule.name


def fold(units: Units, rule: Fold, shapes: Sequence[Shape]) -> None:
    """Mark tensors known in advance, and merge what makes them into the only consumer.

    From here on they count as constants, also when several consumers keep their maker apart.
    The consumer keeps its operand, so that later rules see a constant in its place.
    """
    folded = [False] * units.graph.n
    for node in units.order:
        op = units.ops[node]
        reads = units.reads[node]
        if op in rule.shape_ops:
            known = bool(reads) and all(shapes[t] is not None for t in reads)
        else:
            known = (
                bool(reads) and op not in rule.excluded and all(units.constant[t] for t in reads)
            )
        if known:
            folded[node] = True
            for tensor in units.writes[node]:
                units.constant[tensor] = True
    for node in reversed(units.order):
        if folded[node] and units.find(node) == node:
            consumer = units.consumer(node)
            if consumer != NONE and units.merge(node, consumer):
                units.rules[consumer] = units.rules[consumer] or rule.name


CHAIN = "chain"


def contract_chains(units: Units, share: Floats, max_share: float = 1.0) -> None:
    """Merge u into v when v is all that reads u and u is all that v waits for.

    Constants and model inputs count for nothing here. Merging changes neither what a chain's
    head waits for nor who reads its tail, so one pass in topological order is a fixpoint.
    Time O(V + E).

    Parameters
    ----------
    units
        The units to merge.
    share
        Share of each node of their graph in the work; f64[n].
    max_share
        Share of the model's work that a chain may hold besides its heaviest unit, so that
        a model that is one long chain can still be split evenly. From 1 on, no limit.
    """
    work = np.bincount(units.label(), weights=share, minlength=len(share)).tolist()
    heaviest = work[:]
    for unit in units.order:
        if units.find(unit) != unit:
            continue
        v = units.consumer(unit)
        if v == NONE or not _waits_only_for(units, v, unit):
            continue
        total, top = work[unit] + work[v], max(heaviest[unit], heaviest[v])
        if (max_share >= 1 or total - top <= max_share) and units.merge(unit, v):
            work[v], heaviest[v] = total, top
            units.rules[v] = CHAIN


def _waits_only_for(units: Units, consumer: int, unit: int) -> bool:
    """Whether everything `consumer` reads is known in advance, an input, or made by `unit`."""
    allowed = (NONE, unit, consumer)
    return all(units.constant[t] or units.maker(t) in allowed for t in units.reads[consumer])


def work_shares(graph: Graph) -> Floats:
    """Share of each node in the work of the model; f64[n].

    The largest over device classes of its share of the time; for a graph without times, the
    share of the bytes it reads and writes.
    """
    columns = [np.where(np.isfinite(t), t, 0.0) for t in graph.times.values()]
    if not columns:
        touched = np.zeros(graph.n)
        for ptr, idx in ((graph.in_ptr, graph.in_idx), (graph.out_ptr, graph.out_idx)):
            node = np.repeat(np.arange(graph.n), np.diff(ptr))
            touched += np.bincount(node, weights=graph.tensor_bytes[idx], minlength=graph.n)
        columns = [touched]
    shares = [column / (column.sum() or 1.0) for column in columns]
    return np.max(shares, axis=0)


def fused_units(
    graph: Graph, shapes: Sequence[Shape], rules: RuleSet
) -> tuple[Ints, tuple[str, ...], Bools]:
    """Units by fusion rules.

    Returns
    -------
    tuple
        Unit of each node, a position of a node, i64[n]; the rule that formed each unit, by
        that position, empty for none; whether each tensor is known before the model runs, bool[m].
    """
    units = Units(graph)
    apply_rules(units, rules, shapes)
    return units.label(), tuple(units.rules), np.array(units.constant, dtype=np.bool_)
