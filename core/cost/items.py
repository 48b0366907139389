"""Items: what a contiguous split moves as one (2020 paper, Appendix B).

Nodes of one colour share a device, and whatever lies on a path between two of them must come
along. Contracting colours and then strongly connected components gives items whose graph is
acyclic. In a training graph an item also carries the backward nodes of its forward nodes;
orphaned backward nodes get an item of their own, the image that the paper adds. Backward edges
order items too, mirrored, so that both passes of a split are contiguous.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dnnp.core.cost.validity import ordered_edges
from dnnp.core.model.cluster import Clustering, contract
from dnnp.core.model.graph import Graph, Ints, connected, distinct, kahn, strong


@dataclass(frozen=True, eq=False)
class Items:
    """Items of a unit graph and the precedence among them."""

    label: Ints
    """i64[n], item of each node of the graph (not of the unit graph)."""
    count: int
    tail: Ints
    head: Ints
    """Distinct precedence pairs between items; acyclic."""

    @cached_property
    def order(self) -> Ints:
        """Kahn order with the least item first; i64[count]."""
        return kahn(self.tail, self.head, self.count)[0]


def items_of(graph: Graph, units: Clustering) -> Items:
    """Contract units, colours and strongly connected components of `graph` into items.

    Items are numbered by their first member in the graph's order. Of the two directions that a
    backward pass may take, this is the one that leaves more items.
    """
    return item_choices(graph, units)[0]


def item_choices(graph: Graph, units: Clustering) -> list[Items]:
    """Items for each direction of a backward pass; every ordered split is one of these items.

    Most items first. Without a backward pass there is one choice; a direction that leaves a
    single item adds no split.
    """
    coarse = contract(graph, units)
    label = _merge_colors(coarse)
    if not graph.backward.any():
        tail, head = coarse.edges
        return [_number(graph, units, components(label, tail, head), tail, head)]
    image = _mirror(graph, units, coarse, label)
    choices = []
    for along in (False, True):
        # Edges between nodes: a unit may have some in each pass.
        tail, head = (units.label[ends] for ends in ordered_edges(graph, along))
        choices.append(_number(graph, units, components(image, tail, head), tail, head))
    choices.sort(key=lambda items: -items.count)
    return [items for items in choices if items.count > 1] or choices[:1]


def free_items_of(graph: Graph, units: Clustering) -> Items:
    """Items of a split without order: what a colour joins, through units too.

    There is no precedence among them.
    """
    coarse = contract(graph, units)
    color = coarse.color
    key = np.where(color >= 0, color, -1 - np.arange(coarse.n))
    label = np.unique(key, return_inverse=True)[1]
    none = np.zeros(0, dtype=np.int64)
    return _number(graph, units, label, none, none)


def _merge_colors(coarse: Graph) -> Ints:
    """Label that joins units of one colour and pass."""
    n = coarse.n
    key = np.where(coarse.color >= 0, 2 * coarse.color + coarse.backward, -1 - np.arange(n))
    label: Ints = np.unique(key, return_inverse=True)[1]
    return label


def _mirror(graph: Graph, units: Clustering, coarse: Graph, label: Ints) -> Ints:
    """Join the backward units of a colour to its forward units.

    Components within a pass are contracted first, so that an item is contiguous in each.
    """
    tail, head = graph.edges
    part = label
    for late in (False, True):
        inside = (graph.backward[tail] == late) & (graph.backward[head] == late)
        part = components(part, units.label[tail[inside]], units.label[head[inside]])
    colored = np.flatnonzero(coarse.color >= 0)
    colors, index = np.unique(coarse.color[colored], return_inverse=True)
    base = int(part.max()) + 1
    joined = connected(base + len(colors), part[colored], base + index)
    return np.unique(joined[part], return_inverse=True)[1]


def components(label: Ints, tail: Ints, head: Ints) -> Ints:
    """Strongly connected components of the graph contracted by `label`, per vertex; i64[n].

    Every split contracts so what has to move as one. Which edges count, and how items are
    numbered, is up to the split.
    """
    a, b = label[tail], label[head]
    forward, backward = a < b, a > b
    if not forward.any() or not backward.any():  # as in most graphs: all edges go one way
        return label.astype(np.int64)
    return strong(int(label.max()) + 1, a, b)[label]


def by_first(seen: Ints) -> Ints:
    """Number of each label by where it is first in `seen`, which has all of 0..; i64[labels]."""
    first = np.unique(seen, return_index=True)[1]
    number = np.empty(len(first), dtype=np.int64)
    number[np.argsort(first, kind="stable")] = np.arange(len(first))
    return number


def _number(graph: Graph, units: Clustering, label: Ints, tail: Ints, head: Ints) -> Items:
    """Renumber items by first member; keep distinct precedence pairs."""
    names = by_first(label[units.label][graph.order])
    item, count = names[label], len(names)
    a, b = item[tail], item[head]
    pairs = distinct(a[a != b] * count + b[a != b])
    return Items(label=item[units.label], count=count, tail=pairs // count, head=pairs % count)
