"""Rules as the searches take them.

Nodes that share a device get one colour, and nodes that are pinned run on no other class; so every
method heeds these. For the others each node has labels: a stage holds at most one label a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from dnnp.core.model.device import DeviceClass
from dnnp.core.model.errors import InfeasibleError
from dnnp.core.model.graph import INPUT, STATE, Bools, Clustering, Graph, Ints, connected
from dnnp.core.model.placing import Rule


@dataclass(frozen=True, eq=False)
class StageRules:
    """Rules about what stages hold."""

    graph: Graph
    rules: tuple[Rule, ...]

    @cached_property
    def labels(self) -> Ints:
        """i64[rules, n], label of each node from 1 on; 0: it goes with all."""
        found = np.zeros((len(self.rules), self.graph.n), dtype=np.int64)
        for row, rule in zip(found, self.rules, strict=True):
            parts = [positions(self.graph, part) for part in rule.parts if rule.by_stage]
            sides = cut_parts(self.graph, *parts) if rule.rule == "cut-before" else parts
            for number, part in enumerate(sides, 1):
                row[part] = number
        return found

    def labels_of(self, item: Ints, count: int) -> Ints:
        """i64[rules, count], labels of items; -1: an item holds two. `item`: i64[n]."""
        found = np.zeros((len(self.rules), count), dtype=np.int64)
        for mine, row in zip(found, self.labels, strict=True):
            np.maximum.at(mine, item, row)
            mine[item[(row > 0) & (row < mine[item])]] = -1
        return found

    def refuse(self, home: Ints) -> None:
        """Raise an InfeasibleError if stages break a rule; `home`: i64[n], stage of each node."""
        used, stage = np.unique(home, return_inverse=True)
        for rule, row in zip(self.rules, self.labels_of(stage, len(used)), strict=True):
            if (row < 0).any() or rule.stages not in (0, len(used)):
                raise InfeasibleError(f"infeasible: {len(used)} stages break {rule.words}")


def positions(graph: Graph, ids: Iterable[int]) -> Ints:
    """Positions of the nodes with some ids; i64[...], ascending."""
    return np.flatnonzero(np.isin(graph.node_ids, [*ids]))


def fewest_stages(labels: Ints, rules: Sequence[Rule]) -> tuple[int, str]:
    """Number of stages that labels (i64[rules, items]) need, by a greedy clique, and for what."""
    kinds = np.unique(labels, axis=1).T
    kinds = kinds[np.argsort(-(kinds > 0).sum(axis=1), kind="stable")[:200]]  # some are enough
    parted = (kinds[:, None] != kinds) & (kinds[:, None] > 0) & (kinds > 0)
    apart, best = parted.any(axis=2), list[int]()
    for first in range(len(kinds)):
        found = [first]
        for v in range(len(kinds)):
            found += [v] * bool(apart[v, found].all())
        best = max(best, found, key=len)
    part = parted[np.ix_(best, best)].any(axis=(0, 1))
    return len(best), " and ".join(rules[row].words for row in np.flatnonzero(part).tolist())


def cut_parts(graph: Graph, part: Ints) -> list[Ints]:
    """Nodes before a cut, and those that it is before; see `dnnp.core.model.placing`."""
    fed = fed_nodes(graph)
    tail, head = graph.edges
    kept = fed[tail] & fed[head]
    tail, head = tail[kept], head[kept]
    matched = np.zeros(graph.n, dtype=np.bool_)
    matched[part] = fed[part]
    before = reached(head, tail, matched, -graph.rank)
    behind = reached(tail, head, matched, graph.rank)
    return [np.flatnonzero(before & ~behind), np.flatnonzero(matched)]


def fed_nodes(graph: Graph) -> Bools:
    """Nodes of the forward pass that follow from an input of the model, or a state; bool[n]."""
    given = np.isin(graph.tensor_kind[graph.in_idx], (INPUT, STATE))
    fed = np.zeros(graph.n, dtype=np.bool_)
    fed[np.repeat(np.arange(graph.n), np.diff(graph.in_ptr))[given]] = True
    return reached(*graph.edges, fed, graph.rank) & ~graph.backward


def reached(tail: Ints, head: Ints, first: Bools, rank: Ints) -> Bools:
    """Nodes that edges lead to from the first ones, these included; ranks grow along edges."""
    found = first.copy()
    order = np.argsort(rank[tail], kind="stable")
    for u, v in zip(tail[order].tolist(), head[order].tolist(), strict=True):
        found[v] |= found[u]
    return found


def with_rules(
    graph: Graph, units: Clustering, devices: Sequence[DeviceClass], rules: Sequence[Rule],
    *, by_stage: bool = True,
) -> tuple[Graph, Clustering]:  # fmt: skip
    """Graph and units where colours and times hold what nodes share a device, and which.

    `by_stage`: each device has one stage, so that what is pinned to it is together.
    """
    times, single = dict(units.times), dict[str, list[int]]()
    together = [p for r in rules if r.rule in ("together", "layers-per-stage") for p in r.parts]
    for rule in (rule for rule in rules if rule.rule == "pin"):
        able = {d.name for d in devices if rule.device in d.places}
        for name in times.keys() - able:
            times[name] = times[name].copy()
            times[name][units.label[positions(graph, rule.parts[0])]] = np.inf
        if by_stage and "/" in rule.device:
            single.setdefault(rule.device, []).extend(rule.parts[0])
    for ids in (*together, *map(tuple, single.values())):
        graph = replace(graph, color=_joined(graph, positions(graph, ids)))
    return graph, replace(units, times=times) if rules else units


def _joined(graph: Graph, part: Ints) -> Ints:
    """Colours where some nodes share one with all that share theirs; i64[n]."""
    n, colored = graph.n, np.flatnonzero(graph.color >= 0)
    names, number = np.unique(graph.color[colored], return_inverse=True)
    tail = np.concatenate([colored, part])
    head = np.concatenate([n + number, np.full(len(part), part[0])])
    group = connected(n + len(names), tail, head)[:n]
    return np.where(np.bincount(group)[group] > 1, group, -1)
