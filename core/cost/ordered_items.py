"""A line: items in a fixed order, with everything that the cost of an interval needs.

The transfer cost of an interval is that of the tensors it cuts: a tensor is a net whose pins
are the items that make or read it, and an interval pays for a net with pins both inside and
outside. This holds wherever the producer stands, so one form serves inference and training.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dnnp.core.cost.items import Items
from dnnp.core.cost.load import node_memory, transfer_times
from dnnp.core.cost.machine import Given
from dnnp.core.cost.memory import Steps, peak_reach, peak_steps, summed_steps
from dnnp.core.model.cluster import Clustering
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.graph import INPUT, Floats, Graph, Ints, csr, distinct, offsets, totals
from dnnp.core.model.plan import CostOptions


@dataclass(frozen=True, eq=False)
class Line:
    """`n` items in order, `p` nets, for `C` device classes."""

    devices: tuple[DeviceClass, ...]
    node_ptr: Ints
    nodes: Ints
    """Node positions of each item (CSR) in execution order."""
    work: Floats
    """f64[C, n], compute time; inf: unsupported."""
    pin_ptr: Ints
    pins: Ints
    """Item positions of each net (CSR), ascending."""
    source: Ints
    """i64[p], position of the item that makes the tensor; -1: a model input."""
    always: np.ndarray
    """bool[p]: paid by every interval with a pin, cut or not (`--charge-io`)."""
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
    backward_net: np.ndarray
    """bool[p]: the tensor's producer belongs to the backward pass."""

    @property
    def n(self) -> int:
        """Number of items."""
        return self.work.shape[1]


def make_line(problem: Given, items: Items, order: Ints) -> Line:
    """Lay the items out in `order` (a topological order of `items`).

    The line knows of no more devices of a class than the items can use.
    """
    graph, units, options = problem.graph, problem.units, problem.options
    most = items.count * options.max_replicas
    devices = tuple(replace(d, count=min(d.count, most)) for d in problem.devices)
    place = np.empty(items.count, dtype=np.int64)
    place[order] = np.arange(items.count)
    where = place[items.label]
    sequence = execution_order(graph, units, where)
    node_ptr, nodes = csr(where[sequence], sequence, items.count)
    first = units.member_idx[units.member_ptr[:-1]]
    absent = np.full(units.g, np.inf)
    work = np.stack(
        [totals(where[first], units.times.get(d.name, absent), items.count) for d in devices]
    )
    pin_ptr, pins, tensor, always = nets_of(graph, where, options)
    costs = np.stack(
        [np.zeros(len(tensor)) if d.is_cpu else transfer_times(graph, d)[tensor] for d in devices]
    )
    made = graph.producer[tensor] >= 0
    late = totals(units.label, ~graph.backward, units.g) == 0
    line = Line(
        devices=devices,
        node_ptr=node_ptr,
        nodes=nodes,
        work=work,
        pin_ptr=pin_ptr,
        pins=pins,
        source=np.where(made, where[graph.producer[tensor]], -1),
        always=always,
        cost=costs,
        reach=np.zeros((0, 0), dtype=np.int64),
        tail=place[items.tail],
        head=place[items.head],
        memory=totals(where, node_memory(graph), items.count),
        backward_work=np.stack(
            [
                totals(
                    where[first],
                    np.where(late, np.nan_to_num(units.times.get(d.name, absent), posinf=0.0), 0.0),
                    items.count,
                )
                for d in devices
            ]
        ),
        backward_net=made & graph.backward[graph.producer[tensor]],
    )
    return _with_reach(graph, line, options)


def execution_order(graph: Graph, units: Clustering, where: Ints) -> Ints:
    """Nodes by item, then in an order that keeps units whole where that is possible.

    An item of several units may interleave them; there the graph's own order decides.
    """
    single = np.bincount(where[units.member_idx[units.member_ptr[:-1]]]) == 1
    within = np.empty(graph.n, dtype=np.int64)
    within[units.member_idx] = np.arange(graph.n)
    key = np.where(single[where], within, graph.rank)
    return np.lexsort((key, where))


def nets_of(graph: Graph, where: Ints, options: CostOptions) -> tuple[Ints, Ints, Ints, np.ndarray]:
    """Pins of every tensor that can cost a transfer: (ptr, pins, tensor, always)."""
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
    return offsets(counts[chosen]), pin[kept[tensor]], chosen, always[chosen]


def _with_reach(graph: Graph, line: Line, options: CostOptions) -> Line:
    """Fill `reach`: how far an interval can go before a node is unsupported or memory is full."""
    n = line.n
    reach = np.empty((len(line.devices), n), dtype=np.int64)
    steps: Steps | None = None
    for c, device in enumerate(line.devices):
        blocked = np.flatnonzero(~np.isfinite(line.work[c]))
        stop = np.append(blocked, n)[np.searchsorted(blocked, np.arange(n))] - 1
        limited = options.memory_mode == "hard" and not device.is_cpu
        if limited and np.isfinite(device.memory_bytes):
            steps = steps or steps_of(graph, line, options)
            stop = np.minimum(stop, peak_reach(steps, device.memory_bytes))
        reach[c] = stop
    return replace(line, reach=reach)


def steps_of(graph: Graph, line: Line, options: CostOptions) -> Steps:
    """The line's nodes as steps that hold memory, by the memory model of `options`."""
    if options.memory_model == "sum":
        return summed_steps(line.node_ptr, node_memory(graph)[line.nodes])
    return peak_steps(graph, line.node_ptr, line.nodes)
