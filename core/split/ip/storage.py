"""Bytes of a set of items, as far as they add up.

Memory in the `sum` model adds up item by item. In the `peak` model, and for the weights that
replicas synchronise, a parameter counts once however many items read it; live activations do
not add up at all, and only a lower bound enters the integer program.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from dnnp.core.cost.items import Line
from dnnp.core.model.graph import PARAMETER, Bools, Floats, Graph, Ints, distinct, totals
from dnnp.core.model.plan import CostOptions


@dataclass(frozen=True)
class Bytes:
    """Bytes that items bring along: each its own, and some that count once for several."""

    own: Floats
    """f64[items]."""
    shared: tuple[tuple[float, tuple[int, ...]], ...]
    """Bytes, and the items that need them."""

    def of(self, members: Bools) -> float:
        """Bytes of a set of items (bool[items])."""
        shared = sum(size for size, items in self.shared if members[list(items)].any())
        return float(self.own[members].sum() + shared)


@dataclass(frozen=True)
class Storage:
    """What items hold of a device's memory, at least."""

    held: Bytes
    live: Floats
    """f64[items], bytes of the activations at the item's busiest node; 0 if `held` is all."""
    most: float
    """Bytes that no set of items exceeds."""
    exact: bool
    """Whether `held` is all there is."""

    def fits(self, capacity: float) -> bool:
        """Whether any set of items fits."""
        return self.most <= capacity

    def least(self, members: Bools) -> float:
        """Bytes that a set of items (bool[items]) takes at least."""
        return self.held.of(members) + float(self.live[members].max(initial=0.0))

    def alone(self) -> Floats:
        """Bytes at least where an item is; f64[items]."""
        need = self.held.own + self.live
        for size, items in self.held.shared:
            need[list(items)] += size
        return need


def storage_of(graph: Graph, line: Line, options: CostOptions) -> Storage:
    """Memory of the line's items in the model of `options`."""
    nothing = np.zeros(line.n)
    if options.memory_model == "sum":
        return Storage(Bytes(line.memory, ()), nothing, float(line.memory.sum()), exact=True)
    item = item_of_node(graph, line)
    static = graph.tensor_kind >= PARAMETER
    reader = np.repeat(np.arange(graph.n), np.diff(graph.in_ptr))
    writer = np.repeat(np.arange(graph.n), np.diff(graph.out_ptr))
    moving = np.where(static, 0.0, graph.tensor_bytes)
    live = totals(reader, moving[graph.in_idx], graph.n)
    live += totals(writer, moving[graph.out_idx], graph.n)
    most = np.zeros(line.n)
    np.maximum.at(most, item, live)
    every = np.ones(graph.n, dtype=np.bool_)
    held = _read_by(graph, item, np.flatnonzero(static), every)
    return Storage(held, most, float(graph.tensor_bytes.sum()), exact=False)


def synchronised(graph: Graph, line: Line) -> Bytes:
    """Weights of the line's items: stated memory, else the parameters that are read."""
    item = item_of_node(graph, line)
    stated = ~np.isnan(graph.node_bytes)
    parameters = np.flatnonzero(graph.tensor_kind == PARAMETER)
    read = _read_by(graph, item, parameters, ~stated)
    own = read.own + totals(item[stated], graph.node_bytes[stated], line.n)
    return Bytes(own, read.shared)


def item_of_node(graph: Graph, line: Line) -> Ints:
    """Position on the line of every node's item; i64[n]."""
    item = np.empty(graph.n, dtype=np.int64)
    item[line.nodes] = np.repeat(np.arange(line.n), np.diff(line.node_ptr))
    return item


def _read_by(graph: Graph, item: Ints, tensors: Ints, counted: Bools) -> Bytes:
    """Bytes of tensors, by the items whose `counted` nodes (bool[n]) read them."""
    own = np.zeros(int(item.max()) + 1)
    shared: dict[tuple[int, ...], float] = defaultdict(float)
    for t in tensors.tolist():
        readers = graph.readers(t)
        items = distinct(item[readers[counted[readers]]]).tolist()
        if len(items) == 1:
            own[items[0]] += graph.tensor_bytes[t]
        elif items:
            shared[tuple(items)] += graph.tensor_bytes[t]
    return Bytes(own, tuple((size, items) for items, size in shared.items() if size > 0))
