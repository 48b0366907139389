"""The problem of an integer program: items, places for them, tensors, bytes, and contiguity.

A block is contiguous if no path leaves it and returns (2020 paper, Definition 3.1), each pass
judged alone. The program has a variable for every cell and edges between cells: a cell is a node,
or a whole unit where that makes no difference.

Memory in the `sum` model adds up item by item. In the `peak` model, and for the weights that
replicas synchronise, a parameter counts once however many items read it; live activations do
not add up at all, and only a lower bound enters the program.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dnnp.core.cost.items import LinearizedItems, ordered_edges
from dnnp.core.cost.load_formula import common_divisor
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.graph import (
    PARAMETER,
    Bools,
    Clustering,
    Floats,
    Graph,
    Ints,
    csr,
    distinct,
    kahn,
    offsets,
    place_of,
    totals,
)
from dnnp.core.model.plan import CostOptions

MAX_REDUCED = 20_000
"""Most vertices for which edges that follow from others are looked for."""


class Cells(NamedTuple):
    """Cells and the edges between them; every path of a pass is a path of cells."""

    node: Ints
    """i64[cells], a node of each cell."""
    tail: Ints
    head: Ints


def cells_of(graph: Graph, units: Clustering) -> Cells:
    """Cells of the nodes that edges inside a pass touch.

    The nodes that a unit has in one pass are one cell if a path that enters the unit at any of
    them can leave it at any of them.
    """
    tail, head = ordered_edges(graph, along=True)
    part = 2 * units.label + graph.backward
    inside = part[tail] == part[head]
    ptr, after = csr(tail[inside], head[inside], graph.n)
    entered = np.zeros(graph.n, dtype=np.bool_)
    entered[head[~inside]] = True
    left = np.zeros(graph.n, dtype=np.bool_)
    left[tail[~inside]] = True
    name = np.arange(graph.n)
    first = np.full(2 * units.g, -1, dtype=np.int64)
    first[part[::-1]] = np.arange(graph.n)[::-1]
    crowded = np.bincount(part, minlength=2 * units.g) > 1
    members = csr(part, np.arange(graph.n), 2 * units.g)
    for p in np.flatnonzero(crowded).tolist():
        nodes = members[1][members[0][p] : members[0][p + 1]]
        ends = {v for v in nodes.tolist() if left[v]}
        if all(ends <= _reached(v, ptr, after) for v in nodes.tolist() if entered[v]):
            name[nodes] = first[p]
    a, b = name[tail], name[head]
    pairs = distinct(a[a != b] * graph.n + b[a != b])
    a, b = pairs // max(graph.n, 1), pairs % max(graph.n, 1)
    used = distinct(np.concatenate([a, b]))
    a, b = np.searchsorted(used, a), np.searchsorted(used, b)
    return Cells(used, *without_shortcuts(len(used), a, b))


def _reached(start: int, ptr: Ints, after: Ints) -> set[int]:
    """Nodes reached from a node over the edges given as CSR, itself included."""
    seen = {start}
    pending = [start]
    while pending:
        u = pending.pop()
        for v in after[ptr[u] : ptr[u + 1]].tolist():
            if v not in seen:
                seen.add(v)
                pending.append(v)
    return seen


def without_shortcuts(n: int, tail: Ints, head: Ints) -> tuple[Ints, Ints]:
    """Edges of an acyclic graph without those that follow from others; else all of them."""
    order = kahn(tail, head, n)[0]
    if len(order) < n or n > MAX_REDUCED:
        return tail, head
    ptr = offsets(np.bincount(tail, minlength=n))
    rank = place_of(order)
    reach = [0] * n
    kept: Bools = np.zeros(len(tail), dtype=np.bool_)
    edge = np.argsort(tail, kind="stable")
    for u in order[::-1].tolist():
        mine = edge[ptr[u] : ptr[u + 1]]
        known = 0
        for e in mine[np.argsort(rank[head[mine]], kind="stable")].tolist():
            v = int(head[e])
            if not known >> v & 1:
                kept[e] = True
                known |= reach[v] | 1 << v
        reach[u] = known
    return tail[kept], head[kept]


def reaching(tail: Ints, head: Ints, members: Bools) -> Bools:
    """Vertices from which some of the `members` (bool[n]) can be reached, these included."""
    ptr, before = csr(head, tail, len(members))
    found = members.copy()
    pending = np.flatnonzero(members).tolist()
    while pending:
        v = pending.pop()
        for u in before[ptr[v] : ptr[v + 1]].tolist():
            if not found[u]:
                found[u] = True
                pending.append(u)
    return found


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
    """Memory of items on a device, at least."""

    held: Bytes
    live: Floats
    """f64[items], bytes of the activations at the item's busiest node; 0 if `held` is all."""
    most: float
    """Bytes that no set of items exceeds."""
    exact: bool
    """`held` is all there is."""

    def fits(self, capacity: float) -> bool:
        """True if any set of items fits."""
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


def storage_of(graph: Graph, line: LinearizedItems, options: CostOptions) -> Storage:
    """Memory of the line's items in the model of `options`."""
    nothing = np.zeros(line.n)
    if options.memory_model == "sum":
        return Storage(Bytes(line.memory, ()), nothing, float(line.memory.sum()), exact=True)
    graph, item = graph.in_memory, line.item_of_node
    static = graph.tensor_kind >= PARAMETER
    most = np.zeros(line.n)
    np.maximum.at(most, item, graph.touched(np.where(static, 0.0, graph.tensor_bytes)))
    every = np.ones(graph.n, dtype=np.bool_)
    held = _read_by(graph, item, np.flatnonzero(static), every)
    return Storage(held, most, float(graph.tensor_bytes.sum()), exact=False)


def synchronised(graph: Graph, line: LinearizedItems) -> Bytes:
    """Weights of the line's items: stated memory, else the parameters that are read."""
    item = line.item_of_node
    stated = ~np.isnan(graph.node_bytes)
    parameters = np.flatnonzero(graph.tensor_kind == PARAMETER)
    read = _read_by(graph, item, parameters, ~stated)
    own = read.own + totals(item[stated], graph.node_bytes[stated], line.n)
    return Bytes(own, read.shared)


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


class Place(NamedTuple):
    """A place for items: a device, or several that share the samples of one stage.

    In the program of ordered splits a step of the pipeline is one place for every class of
    devices, and every number of them, that can run it.
    """

    device: int
    """Position of the device's class."""
    replicas: int
    step: int
    """Step of the pipeline; -1: no order."""


@dataclass(frozen=True, eq=False)
class Task:
    """One problem, apart from what is known of its solution."""

    line: LinearizedItems
    devices: tuple[DeviceClass, ...]
    options: CostOptions
    ordered: bool
    cells: Cells | None
    """Precedence that each block of a contiguous split respects."""
    cell_item: Ints
    """i64[cells], item of each cell."""
    storage: Storage
    """Memory that counts against capacities."""
    weights: Bytes | None
    """Weights that replicas synchronise; None: none."""

    @property
    def passes(self) -> int:
        """Loads that are optimised: one, or those of the two passes."""
        return 2 if self.options.objective == "gpipe" else 1

    @property
    def kinds(self) -> list[tuple[int, int]]:
        """Positions of the classes, and numbers of their devices, that may run a stage."""
        most = self.options.max_replicas
        counts = enumerate(device.count for device in self.devices)
        return [(d, r) for d, count in counts for r in range(1, min(most, count) + 1)]

    @property
    def quantum(self) -> float:
        """A number of which all loads are multiples; 0: none is known."""
        if self.options.max_replicas > 1 or self.options.memory_mode == "overflow":
            return 0.0
        work = self.line.work
        return common_divisor(np.concatenate([work[np.isfinite(work)], self.line.cost.ravel()]))

    def capacity(self, place: Place) -> float:
        """Bytes that a place may hold."""
        device = self.devices[place.device]
        hard = self.options.memory_mode == "hard" and not device.is_cpu
        return device.memory_bytes if hard else np.inf


def places_of(task: Task) -> list[Place]:
    """All places; like ones follow each other."""
    n, kinds = task.line.n, task.kinds
    if task.ordered:
        steps = min(n, sum(device.count for device in task.devices))
        return [Place(d, r, s) for s in range(steps) for d, r in kinds]
    return [Place(d, r, -1) for d, r in kinds for _ in range(min(n, task.devices[d].count // r))]


def count_places(task: Task) -> int:
    """Number of places, without making them."""
    n, kinds = task.line.n, task.kinds
    if task.ordered:
        return len(kinds) * min(n, sum(d.count for d in task.devices))
    return sum(min(n, task.devices[d].count // r) for d, r in kinds)


def alike(places: list[Place]) -> list[list[int]]:
    """Positions of the places that can be exchanged for each other."""
    groups: dict[Place, list[int]] = defaultdict(list)
    for i, p in enumerate(places):
        groups[p].append(i)
    return list(groups.values())


class Net(NamedTuple):
    """A tensor, or all tensors that the same items make and read."""

    source: int
    """Item that makes it; -1: a model input."""
    readers: tuple[int, ...]
    """The other items that read it."""
    always: bool
    """Paid wherever it is made or read."""
    backward: bool
    cost: float


def nets_of(task: Task, device: int) -> list[Net]:
    """Tensors that can cost a transfer on a class; those that join the same items are added up.

    Where both directions share a link, the direction of a tensor between two items is nothing.
    """
    both = task.options.comm != "duplex"
    merged: dict[tuple[int, tuple[int, ...], bool, bool], float] = defaultdict(float)
    for source, readers, always, backward, cost in _nets(task.line, device):
        if both and len(readers) == 1 and not always and source > readers[0]:
            source, readers = readers[0], (source,)
        merged[source, readers, always, backward and task.passes > 1] += cost
    return [Net(*key, cost) for key, cost in merged.items() if cost > 0]


def _nets(line: LinearizedItems, device: int) -> Iterator[Net]:
    pins = line.nets.pins.tolist()
    for e, source in enumerate(line.nets.source.tolist()):
        mine = pins[line.nets.net_ptr[e] : line.nets.net_ptr[e + 1]]
        yield Net(
            source,
            tuple(v for v in mine if v != source),
            bool(line.nets.always[e]),
            bool(line.backward_net[e]),
            float(line.cost[device, e]),
        )
