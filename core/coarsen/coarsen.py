"""Coarsening: rules or given groups, constants, series, layers, a number of groups.

A number of groups of about equal work (`contract_to`) comes of multilevel matching along heavy
edges, as in acyclic graph partitioning (Herrmann et al., "Multilevel algorithms for acyclic
partitioning of directed acyclic graphs", SIAM J. Sci. Comput. 2019, Section 4.1). The top level of
a node is the length of the longest path to it. A pass matches edges (u, v) with top(v) = top(u) +
1, which are the only path between their ends. Suppose that the pairs of a pass made a cycle. Levels
grow along edges, so all pairs on it have their tails at one level, and the cycle runs from the tail
of each pair to the head of the next one. So a pair is taken only if, among the pairs at its level
that were taken before, its tail points to none of the heads, or its head is reached from none of
the tails: adding a source or a sink to an acyclic graph of pairs leaves it acyclic.

Nodes at one level have no path between them: where edges run out, neighbours at one level
that read the same producer are joined too. At last, groups that follow one another in a
topological order are joined, the lightest pair first; that reaches any number. A pair of
average weight among more than N groups weighs at most two N-th parts of the work, so no group
gets above twice the mean, unless a single unit is that heavy.

Groups of a backward pass are the mirror image of those of the forward pass (`mirrored`): what a
runtime fuses in the forward pass it differentiates as a whole. So rules look at the forward pass
alone, as if nothing of it were kept, and gradients of the nodes of a group are a group too.
Edges between gradients are those of the forward pass turned around, and all others lead from the
forward pass to the backward pass: without a cycle before, there is none after.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np

from dnnp.core.coarsen.layers import RULE, Given, Path, given_labels, join_layers, rules_of
from dnnp.core.coarsen.merge import NONE, Shape, Units, lone_colors_freed, signatures
from dnnp.core.coarsen.patterns import fuse_pattern, fuse_sequences
from dnnp.core.model import rules as model
from dnnp.core.model.graph import (
    Bools,
    Clustering,
    Floats,
    Graph,
    Ints,
    clustering_of_labels,
    contract,
    csr,
    csr_lists,
    place_of,
    totals,
)
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
        formed = [units.rules[e] for e in exits]
        del units  # as large as the graph, and the groups are still to come
        result = _made(graph, label, formed)
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
    members = csr_lists(clustering.member_ptr, clustering.member_idx)
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
    wanted, layer_of = join_layers(graph, before.clustering, paths)
    result = _joined(graph, before, wanted, RULE)
    parts = _parts(before.clustering, result.clustering.label)
    old = before.clustering.names
    names = (old[p[0]] if len(p) == 1 else "/".join(layer_of[p[0]]) for p in parts)
    return replace(result, clustering=replace(result.clustering, names=tuple(names)))


def apply_rules(units: Units, rules: model.RuleSet, shapes: Sequence[Shape]) -> None:
    """Apply rules in their order; neighbouring sequences together."""
    for kind, batch in groupby(rules.rules, type):
        if kind is model.SequenceRule:
            fuse_sequences(units, [r for r in batch if isinstance(r, model.SequenceRule)])
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
    rank = place_of(by_first)
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
    head waits for nor the readers of its tail, so one pass in topological order is a fixpoint.
    Time O(V + E). `share`: share of each node of their graph in the work, f64[n]; `max_share`: what
    a chain may hold besides its heaviest unit, so that a model that is one long chain can still be
    split evenly; from 1 on, no limit.
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
    """True if everything `consumer` reads is known in advance, an input, or made by `unit`."""
    allowed = (NONE, unit, consumer)
    return all(units.constant[t] or units.maker(t) in allowed for t in units.reads[consumer])


def work_shares(graph: Graph) -> Floats:
    """Share of each node in the work of the model; f64[n].

    The largest over device classes of its share of the time; for a graph without times, the
    share of the bytes it reads and writes.
    """
    columns = [np.where(np.isfinite(t), t, 0.0) for t in graph.times.values()]
    if not columns:
        columns = [graph.touched(graph.tensor_bytes)]
    shares = [column / (column.sum() or 1.0) for column in columns]
    return np.max(shares, axis=0)


def fused_units(
    graph: Graph, shapes: Sequence[Shape], rules: RuleSet
) -> tuple[Ints, tuple[str, ...], Bools]:
    """Units by fusion rules.

    Returns the unit of each node, a position of a node, i64[n]; the rule that formed each unit, by
    that position, empty for none; whether each tensor is known before the model runs, bool[m].
    """
    units = Units(graph)
    apply_rules(units, rules, shapes)
    return units.label(), tuple(units.rules), np.array(units.constant, dtype=np.bool_)


BALANCED = "balanced"

SLACK = 1.5
"""Work of a group over the mean that matching allows."""

STALLED = 0.05
"""Share of the units below which a pass has removed too few to go on."""


@dataclass(frozen=True, eq=False)
class _Level:
    """A contracted graph of units."""

    tail: Ints
    head: Ints
    weight: Floats
    """Distinct edges, and the bytes that move along each."""
    share: Floats
    """Share of each unit in the work."""
    heaviest: Floats
    """Share of the heaviest part of each unit."""
    kind: Ints
    """Units of one kind run on the same device classes, in the same pass."""
    color: Ints
    """Colour, or -1."""

    @property
    def n(self) -> int:
        return len(self.share)


def contract_to(
    graph: Graph, share: Floats, target: int, max_share: float = np.inf
) -> tuple[Ints, bool]:
    """Contract `graph` to `target` groups.

    `share`: share of each node in the work, f64[n]; `max_share`: what a group may hold besides its
    heaviest node. Returns the label of each node, i64[n], of which the graph is acyclic, and
    whether there are more than `target` because no two groups may be joined any more.
    """
    level = _first_level(graph, share)
    label = np.arange(graph.n, dtype=np.int64)
    cap = SLACK * float(level.share.sum()) / target
    while level.n > target:
        top, main = _top_levels(level)
        room = level.n - target
        group = _matched(level, top, cap, max_share, room)
        merged = level.n - int(group.max()) - 1
        if merged < 2 * STALLED * level.n:
            level, label = _contracted(level, group), group[label]
            top, main = _top_levels(level)
            group = _siblings(level, top, main, cap, max_share, room - merged)
            merged += level.n - int(group.max()) - 1
        level, label = _contracted(level, group), group[label]
        if merged < STALLED * level.n:
            break
    while level.n > target:
        group = _in_sequence(level, target, max_share)
        if int(group.max()) + 1 == level.n:
            break
        level, label = _contracted(level, group), group[label]
    return label, level.n > target


def _first_level(graph: Graph, share: Floats) -> _Level:
    """The graph as it is; parameters and inputs of the model are on no edge."""
    counts = np.diff(graph.use_ptr)
    tail = np.repeat(graph.producer, counts)
    made = tail >= 0
    weight = np.repeat(graph.tensor_bytes, counts)[made] + 1.0
    tail, head, weight = _summed(tail[made], graph.use_idx[made], weight, graph.n)
    return _Level(tail, head, weight, share, share, signatures(graph), lone_colors_freed(graph))


def _summed(tail: Ints, head: Ints, weight: Floats, n: int) -> tuple[Ints, Ints, Floats]:
    """Distinct edges, sorted, without loops; the weights of equal ones add up."""
    kept = tail != head
    pairs, place = np.unique(tail[kept] * n + head[kept], return_inverse=True)
    total = totals(place.reshape(-1), weight[kept], len(pairs))
    return pairs // max(n, 1), pairs % max(n, 1), total


def _contracted(level: _Level, group: Ints) -> _Level:
    """The graph of groups; `group` numbers them from 0, i64[n]."""
    n = int(group.max()) + 1
    tail, head, weight = _summed(group[level.tail], group[level.head], level.weight, n)
    heaviest, kind, color = np.zeros(n), np.zeros(n, np.int64), np.full(n, NONE)
    np.maximum.at(heaviest, group, level.heaviest)
    np.maximum.at(color, group, level.color)
    kind[group] = level.kind
    share = totals(group, level.share, n)
    return _Level(tail, head, weight, share, heaviest, kind, color)


def _top_levels(level: _Level) -> tuple[Ints, Ints]:
    """Length of the longest path to each unit, and the producer of its heaviest edge or -1."""
    ptr, idx = csr(level.tail, level.head, level.n)
    starts, heads = ptr.tolist(), idx.tolist()
    missing = np.bincount(level.head, minlength=level.n).tolist()
    top = [0] * level.n
    ready = [v for v, count in enumerate(missing) if not count]
    for u in ready:
        after = top[u] + 1
        for v in heads[starts[u] : starts[u + 1]]:
            if top[v] < after:
                top[v] = after
            missing[v] -= 1
            if not missing[v]:
                ready.append(v)
    main = np.full(level.n, NONE)
    by_weight = np.argsort(level.weight, kind="stable")
    main[level.head[by_weight]] = level.tail[by_weight]
    return np.array(top, dtype=np.int64), main


def _fits(level: _Level, u: Ints, v: Ints, cap: float, max_share: float) -> Bools:
    """True if units u and v may be one; bool, elementwise."""
    total = level.share[u] + level.share[v]
    besides = total - np.maximum(level.heaviest[u], level.heaviest[v])
    cu, cv = level.color[u], level.color[v]
    fits: Bools = (
        (level.kind[u] == level.kind[v])
        & ((cu == cv) | (cu == NONE) | (cv == NONE))
        & (total <= cap)
        & (besides <= max_share)
    )
    return fits


def _matched(level: _Level, top: Ints, cap: float, max_share: float, room: int) -> Ints:
    """Match heavy edges, `room` at most; number of the group of each unit, i64[n]."""
    next_level = top[level.head] == top[level.tail] + 1
    tail, head, weight = level.tail[next_level], level.head[next_level], level.weight[next_level]
    fits = _fits(level, tail, head, cap, max_share)
    u, v = tail[fits], head[fits]
    order = np.lexsort((v, u, level.share[u] + level.share[v], -weight[fits]))
    out_ptr, out_idx = (x.tolist() for x in csr(tail, head, level.n))
    in_ptr, in_idx = (x.tolist() for x in csr(head, tail, level.n))
    mate = list(range(level.n))
    free = [True] * level.n
    # Heads that a tail points to, and tails that point to a head, among the pairs taken.
    heads_taken = [0] * level.n
    tails_taken = [0] * level.n
    for a, b in zip(u[order].tolist(), v[order].tolist(), strict=True):
        if free[a] and free[b] and not (heads_taken[a] and tails_taken[b]):
            free[a] = free[b] = False
            mate[b] = a
            for x in in_idx[in_ptr[b] : in_ptr[b + 1]]:
                heads_taken[x] += 1
            for x in out_idx[out_ptr[a] : out_ptr[a + 1]]:
                tails_taken[x] += 1
            room -= 1
            if not room:
                break
    return _renumbered(np.array(mate, dtype=np.int64))


def _siblings(
    level: _Level, top: Ints, main: Ints, cap: float, max_share: float, room: int
) -> Ints:
    """Pair units at one level that read the same producer, light with light."""
    mate = np.arange(level.n, dtype=np.int64)
    order = np.lexsort((mate, level.share, level.color, level.kind, main, top))
    a, b = order[:-1], order[1:]
    same = (top[a] == top[b]) & (main[a] == main[b])
    same &= _fits(level, a, b, cap, max_share)
    # Every second one of a run of neighbours that fit.
    place = np.arange(len(same))
    start = np.maximum.accumulate(np.where(same, -1, place)) if len(same) else place
    taken = np.flatnonzero(same & ((place - start) % 2 == 1))[:room]
    mate[b[taken]] = a[taken]
    return _renumbered(mate)


def _renumbered(mate: Ints) -> Ints:
    """Numbers 0, 1, ... in place of representatives."""
    return np.unique(mate, return_inverse=True)[1].reshape(-1).astype(np.int64)


def _in_sequence(level: _Level, target: int, max_share: float) -> Ints:
    """Join neighbours in a topological order, the lightest pair first; see `_matched`."""
    order = _sequence(level)
    n = len(order)
    share, heaviest = level.share[order].tolist(), level.heaviest[order].tolist()
    kind, color = level.kind[order].tolist(), level.color[order].tolist()
    after = list(range(1, n + 1))
    before = list(range(-1, n - 1))
    version = [0] * n
    heap: list[tuple[float, int, int, int, int]] = []

    def offer(i: int) -> None:
        j = after[i]
        if j == n or kind[i] != kind[j]:
            return
        if color[i] != color[j] and NONE not in (color[i], color[j]):
            return
        total = share[i] + share[j]
        if total - max(heaviest[i], heaviest[j]) <= max_share:
            heapq.heappush(heap, (total, i, j, version[i], version[j]))

    for i in range(n):
        offer(i)
    group = list(range(n))
    count = n
    while heap and count > target:
        total, i, j, at_i, at_j = heapq.heappop(heap)
        if version[i] != at_i or version[j] != at_j or after[i] != j:
            continue
        group[j] = i
        version[j] = -1
        version[i] += 1
        share[i], heaviest[i] = total, max(heaviest[i], heaviest[j])
        color[i] = max(color[i], color[j])
        after[i] = after[j]
        if after[i] < n:
            before[after[i]] = i
        count -= 1
        offer(i)
        if before[i] >= 0:
            offer(before[i])
    mate = np.empty(n, dtype=np.int64)
    for i in range(n):
        group[i] = group[group[i]]
        mate[order[i]] = order[group[i]]
    return _renumbered(mate)


def _sequence(level: _Level) -> list[int]:
    """A topological order that stays with one kind, and with what was just made, if it can."""
    ptr, idx = csr(level.tail, level.head, level.n)
    starts, heads = ptr.tolist(), idx.tolist()
    missing = np.bincount(level.head, minlength=level.n).tolist()
    kind = level.kind.tolist()
    ready: dict[int, list[int]] = {k: [] for k in sorted(set(kind))}
    for v in range(level.n - 1, -1, -1):
        if not missing[v]:
            ready[kind[v]].append(v)
    order: list[int] = []
    current = next((k for k, units in ready.items() if units), 0)
    while len(order) < level.n:
        if not ready[current]:
            current = next(k for k, units in ready.items() if units)
        u = ready[current].pop()
        order.append(u)
        for v in reversed(heads[starts[u] : starts[u + 1]]):
            missing[v] -= 1
            if not missing[v]:
                ready[kind[v]].append(v)
    return order


ALONE = -1


def mirror_nodes(nodes: Sequence[Mapping[str, Any]]) -> Ints | None:
    """Position of the node whose gradient each node computes, i64[n]; -1: of none.

    None: no node says so, as in graphs without a backward pass and those made by others.
    """
    position = {record["id"]: i for i, record in enumerate(nodes)}
    mirror = np.array([position.get(r.get("of"), ALONE) for r in nodes], dtype=np.int64)
    return mirror if (mirror >= 0).any() else None


def mirrored(graph: Graph, mirror: Ints, found: Coarsening) -> Coarsening:
    """Groups of a graph, from those of its forward pass.

    `found`: groups of the nodes that are not of the backward pass; `mirror`: see `mirror_nodes`.
    """
    before = found.clustering
    label = np.full(graph.n, ALONE, dtype=np.int64)
    label[~graph.backward] = before.label
    label = np.where(mirror >= 0, label[mirror] + before.g, label)
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
    graph: Graph, mirror: Ints, unit: Ints, rules: Sequence[str]
) -> tuple[Ints, tuple[str, ...]]:
    """Units of a graph, each a position of one of its nodes, and the rule at that position.

    `unit`, `rules`: those of the forward pass, by positions in it; `mirror`: see `mirror_nodes`.
    """
    early = np.flatnonzero(~graph.backward)
    own = np.arange(graph.n, dtype=np.int64)
    own[early] = early[unit]
    named = dict(zip(early.tolist(), rules, strict=True))
    late = np.flatnonzero(mirror >= 0)
    first: dict[int, int] = {}
    for v, leader in zip(late.tolist(), own[mirror[late]].tolist(), strict=True):
        own[v] = first.setdefault(leader, v)
    named |= {v: named[leader] for leader, v in first.items()}
    return own, tuple(named.get(v, "") for v in range(graph.n))
