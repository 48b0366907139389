"""Validity of splits; items of contiguous splits (2020 paper, Appendix B); their linearisations.

Nodes of one colour share a device, and so do all nodes on paths between two of them. Contracting
colours and then strongly connected components gives items whose graph is acyclic. In a training
graph an item also carries the backward nodes of its forward nodes; orphaned backward nodes get an
item of their own, the image that the paper adds. Backward edges order items too, mirrored, so that
both passes of a split are contiguous.

Linearised items are items in a fixed topological order, with all that the cost of an interval
needs. An interval pays for the nets that it cuts, those with pins both inside and outside. This
holds wherever the producer stands, so one form serves inference and training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from dnnp.core.cost.load import Steps, node_memory, peak_steps, summed_steps
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.graph import (
    INPUT,
    Bools,
    Clustering,
    Floats,
    Graph,
    Ints,
    connected,
    contract,
    csr,
    csr_rows,
    distinct,
    kahn,
    offsets,
    place_of,
    strong,
)
from dnnp.core.model.hypergraph import ClassCosts, Hypergraph, hypergraph
from dnnp.core.model.plan import CostOptions


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


def ordered_items(label: Ints, count: int, tail: Ints, head: Ints) -> Items:
    """Items of nodes, with the precedence of the pairs `tail`, `head` of items that differ."""
    pairs, most = distinct((tail * count + head)[tail != head]), max(count, 1)
    return Items(label, count, pairs // most, pairs % most)


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
    label = joined_by(np.where(coarse.color >= 0, 2 * coarse.color + coarse.backward, -1))
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
    none = np.zeros(0, dtype=np.int64)
    return _number(graph, units, joined_by(contract(graph, units).color), none, none)


def joined_by(key: Ints) -> Ints:
    """Label, 0.., that joins what has one key (i64[n]); what has one below 0 is alone."""
    own = np.where(key >= 0, key, -1 - np.arange(len(key)))
    return np.unique(own, return_inverse=True)[1].astype(np.int64)


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
    return place_of(np.argsort(first, kind="stable"))


def _number(graph: Graph, units: Clustering, label: Ints, tail: Ints, head: Ints) -> Items:
    """Renumber items by first member; keep distinct precedence pairs."""
    names = by_first(label[units.label][graph.order])
    item = names[label]
    return ordered_items(item[units.label], len(names), item[tail], item[head])


@dataclass(frozen=True, eq=False)
class LinearizedItems:
    """`n` items in a topological order, and `p` nets, for `C` device classes."""

    devices: tuple[DeviceClass, ...]
    node_ptr: Ints
    nodes: Ints
    """Node positions of each item (CSR) in execution order."""
    work: Floats
    """f64[C, n], compute time; inf: unsupported."""
    nets: Hypergraph
    """Items, named by their positions, and nets."""
    cost: Floats
    """f64[C, p], time to move the tensor once; 0 on a CPU."""
    reach: Ints
    """i64[C, n], last item an interval that starts here may hold; start - 1: none."""
    tail: Ints
    head: Ints
    """Precedence pairs between positions, tail < head."""
    memory: Floats
    """f64[n], node memory added up, bytes: the `sum` model."""
    backward_work: Floats
    """f64[C, n], the part of `work` that belongs to the backward pass."""
    backward_net: Bools
    """bool[p]: the tensor's producer belongs to the backward pass."""
    labels: Ints
    """i64[rows, n], labels by rules (`StageRules`): a stage holds at most one a row, besides 0."""
    exactly: int = 0
    """Number of stages; 0: any."""

    @property
    def n(self) -> int:
        """Number of items."""
        return self.work.shape[1]

    def counted(self) -> LinearizedItems:
        """The line with a last class without devices: all that are in use are in the state then."""
        none = DeviceClass("", kind="cpu", count=0)
        inf, zero = np.full((1, self.n), np.inf), np.zeros((1, self.n))
        counts = (replace(d, count=min(d.count, self.exactly)) for d in self.devices)
        return replace(
            self,
            devices=(*counts, none),
            work=np.concatenate([self.work, inf]),
            cost=np.concatenate([self.cost, np.zeros((1, self.cost.shape[1]))]),
            reach=np.concatenate([self.reach, np.arange(self.n)[None] - 1]),
            backward_work=np.concatenate([self.backward_work, zero]),
        )

    def ends(self, strides: Ints) -> Bools:
        """States of `counted` with as many devices as there are to be stages; bool[states]."""
        states = np.arange(strides[-1])
        digits = states[:, None] // strides[:-1] % (strides[1:] // strides[:-1])
        return digits.sum(axis=1) == self.exactly

    @cached_property
    def item_of_node(self) -> Ints:
        """Position of every node's item; i64[nodes]."""
        found = np.empty(len(self.nodes), dtype=np.int64)
        found[self.nodes] = np.repeat(np.arange(self.n), np.diff(self.node_ptr))
        return found

    def passes(self, options: CostOptions) -> list[tuple[Floats, Bools]]:
        """Passes with a target each: work f64[C, n], and which nets are theirs, bool[p]."""
        if options.objective != "gpipe":
            return [(self.work, np.ones(self.nets.net_count, dtype=np.bool_))]
        late = self.backward_work
        return [(self.work - late, ~self.backward_net), (late, self.backward_net)]

    def nodes_of(self, graph: Graph, items: Sequence[int] | Ints) -> Ints:
        """Nodes of a stage of these items, in execution order."""
        _, nodes = csr_rows(self.node_ptr, self.nodes, np.asarray(items))
        # An item may hold nodes of both passes, which run far apart in time.
        return nodes[np.argsort(graph.rank[nodes])] if graph.backward.any() else nodes


def execution_order(graph: Graph, units: Clustering, where: Ints) -> Ints:
    """Nodes by item, then in an order that keeps units whole where that is possible.

    An item of several units may interleave them; there the graph's own order decides.
    """
    single = np.bincount(where[units.first]) == 1
    within = place_of(units.member_idx)
    key = np.where(single[where], within, graph.rank)
    return np.lexsort((key, where))


def nets_of(graph: Graph, where: Ints, count: int, options: CostOptions) -> tuple[Hypergraph, Ints]:
    """Tensors that can cost a transfer, as nets of `count` items, and the tensor of each net.

    `where` is i64[n], the item of each node.
    """
    made = graph.producer >= 0
    always = np.zeros(graph.m, dtype=np.bool_)
    if options.charge_io:
        always = (graph.tensor_kind == INPUT) | (made & graph.is_output)
    relevant = made | always
    tensor_of_use = np.repeat(np.arange(graph.m, dtype=np.int64), np.diff(graph.use_ptr))
    tensors = np.concatenate([tensor_of_use[relevant[tensor_of_use]], np.flatnonzero(made)])
    at = np.concatenate(
        [where[graph.use_idx[relevant[tensor_of_use]]], where[graph.producer[made]]]
    )
    width = max(len(graph.node_ids), 1)
    pairs = distinct(tensors * width + at)
    tensor, pin = pairs // width, pairs % width
    counts = np.bincount(tensor, minlength=graph.m)
    kept = (counts > 1) | (always & (counts > 0))
    chosen = np.flatnonzero(kept)
    source = np.where(made[chosen], where[graph.producer[chosen]], -1)
    nets = hypergraph(count, offsets(counts[chosen]), pin[kept[tensor]], source, always[chosen])
    return nets, chosen


def same_nets(nets: Hypergraph, *marks: np.ndarray) -> tuple[Ints, Ints]:
    """Count nets with the same pins and marks as one: the number of each, and the first of each."""
    numbers: dict[tuple[object, ...], int] = {}
    pins, marked = nets.pins, zip(*(mark.tolist() for mark in marks), strict=True)
    rows = zip(pairwise(nets.net_ptr.tolist()), marked, strict=True)
    keys = ((pins[a:b].tobytes(), *m) for (a, b), m in rows)
    number = np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)
    return number, np.unique(number, return_index=True)[1]


def class_costs(line: LinearizedItems, options: CostOptions) -> ClassCosts:
    """Costs of the items and nets on each class, for the passes with a target each.

    Over an infinitely fast link memory above the capacity costs nothing.
    """
    passes = line.passes(options)
    streamed = options.memory_mode == "overflow"
    stream = [1 / d.bandwidth_bytes_per_s if streamed else 0.0 for d in line.devices]
    capacity = [
        np.inf if d.is_cpu or (streamed and not rate) else d.memory_bytes
        for d, rate in zip(line.devices, stream, strict=True)
    ]
    late = line.backward_net if len(passes) > 1 else np.zeros_like(line.backward_net)
    return ClassCosts(
        np.stack([work for work, _ in passes], axis=1),
        line.cost.copy(),
        late.astype(np.int64),
        np.array(capacity, dtype=np.float64),
        np.array(stream, dtype=np.float64),
    )


def steps_of(graph: Graph, line: LinearizedItems, options: CostOptions) -> Steps:
    """The line's nodes as steps that hold memory, by the memory model of `options`."""
    if options.memory_model == "sum":
        return summed_steps(line.node_ptr, node_memory(graph)[line.nodes])
    return peak_steps(graph, line.node_ptr, line.nodes)


def quotient_order(graph: Graph, block: Ints, n_blocks: int) -> Ints | None:
    """Pipeline order of the blocks; None if there is none.

    The forward pass runs along it. A backward pass runs against it, or, in graphs whose backward
    edges copy the forward ones, along it. Ties go to the block with the least number.
    """
    for along in (False, True) if graph.backward.any() else (False,):
        tail, head = ordered_edges(graph, along)
        order = block_order(block[tail], block[head], n_blocks)
        if order is not None:
            return order
    return None


def ordered_edges(graph: Graph, along: bool) -> tuple[Ints, Ints]:
    """Edges inside a pass (tail, head); backward ones are reversed unless `along`."""
    tail, head = graph.edges
    same = graph.backward[tail] == graph.backward[head]
    tail, head = tail[same], head[same]
    turned = graph.backward[tail] & (not along)
    return np.where(turned, head, tail), np.where(turned, tail, head)


def block_order(tail: Ints, head: Ints, n_blocks: int) -> Ints | None:
    """Kahn order of blocks, by the blocks of the ends of edges (i64[e] each); None if cyclic."""
    apart = tail != head
    pairs = distinct(tail[apart] * n_blocks + head[apart])
    order, _ = kahn(pairs // n_blocks, pairs % n_blocks, n_blocks)
    return order if len(order) == n_blocks else None


def validity_of(graph: Graph, block: Ints, n_blocks: int) -> str:
    """Strongest promise that a split keeps; `block` is i64[n].

    `ordered`: the blocks have a pipeline order (MTPP, section 2.2; `quotient_order`). `convex`: no
    path leaves a block and returns to it (2020 paper, Definition 3.1), each pass judged alone.
    """
    if quotient_order(graph, block, n_blocks) is not None:
        return "ordered"
    passes = [~graph.backward, graph.backward] if graph.backward.any() else [~graph.backward]
    if all(_convex(graph, block == b, part) for part in passes for b in range(n_blocks)):
        return "convex"
    return "free"


def _convex(graph: Graph, members: np.ndarray, part: np.ndarray) -> bool:
    """No path inside `part` leaves `members` and comes back."""
    tail, head = graph.edges
    ptr, successors = csr(tail, head, graph.n)
    left = np.zeros(graph.n, dtype=np.bool_)
    for u in graph.order.tolist():
        if not part[u] or not (members[u] or left[u]):
            continue
        for v in successors[ptr[u] : ptr[u + 1]].tolist():
            if not part[v]:
                continue
            if members[v] and left[u]:
                return False
            if not members[v]:
                left[v] = True
    return True
