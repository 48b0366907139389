"""Load and memory of one stage: what every algorithm here optimises.

How the parts of a load combine is said in `dnnp.core.cost.load_formula`.

A stage replicated over r devices (2020 paper, Appendix C.2) costs load / r; in training it also
synchronises its weights, (r - 1) * weight bytes / (r * bandwidth), which is added for `sum` and
overlaps, as a maximum, for the other two. Two stages in one cluster are joined by its link
(Appendix C.3), that of the smallest cluster that holds all devices of both: a tensor that comes in
takes the link from the stage that makes it, one that goes out the slowest of those to its readers,
and replicas synchronise over the link of the smallest cluster that holds them.

Where links are stated (`Linked`), a transfer takes the latency of the link and the bytes over its
bandwidth, or, where the tensor states a transfer time, that time; sender and receiver are both
busy with it, a CPU is not. Of replicas the slowest pair counts: any of them may send to any; they
synchronise their weights over the slowest link among them. Model inputs and outputs and what
overflows come from the host, over the bandwidth of the class. Two devices without a link have the
widest path between them, see `dnnp.core.model.device`.

In training, FW(S) and BW(S) are the loads of the forward and of the backward nodes; a transfer
belongs to the pass of the tensor's producer, the synchronisation to the backward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dnnp.core.cost.load_formula import COMM, combine, shared_load
from dnnp.core.model.device import DeviceClass, Link, Machine, device_numbers
from dnnp.core.model.graph import (
    ACTIVATION,
    CONSTANT,
    INPUT,
    PARAMETER,
    Bools,
    Clustering,
    Floats,
    Graph,
    Ints,
    csr_rows,
    distinct,
    place_of,
    row_of,
    totals,
)
from dnnp.core.model.plan import Block, CostOptions


@dataclass(frozen=True, eq=False)
class Linked:
    """Links that join one stage of a split to the others."""

    machine: Machine
    homes: Sequence[Ints]
    """Numbers in the machine of the devices of each stage."""
    stage: Ints
    """i64[n], stage of each node."""
    here: int
    """The stage that this is about."""

    @property
    def slowest_inside(self) -> float:
        """Seconds a byte over the slowest link between two devices of the stage."""
        mine = self.homes[self.here]
        return float(self.machine.rate[np.ix_(mine, mine)].max())

    def arriving(self, graph: Graph, tensors: Ints) -> Floats:
        """Time of each of these tensors from the stage that makes it; f64[tensors]."""
        time = np.zeros(len(tensors))
        source = self.stage[graph.producer[tensors]]
        for other in distinct(source).tolist():
            mine = source == other
            time[mine] = self.between(graph, tensors[mine], other, self.here)
        return time

    def leaving(self, graph: Graph, tensors: Ints) -> Floats:
        """Time of each of these tensors to the slowest of the other stages that read it."""
        time = np.zeros(len(tensors))
        ptr, readers = csr_rows(graph.use_ptr, graph.use_idx, tensors)
        owner = np.repeat(np.arange(len(tensors)), np.diff(ptr))
        target = self.stage[readers]
        for other in distinct(target[target != self.here]).tolist():
            mine = distinct(owner[target == other])
            there = self.between(graph, tensors[mine], self.here, other)
            time[mine] = np.maximum(time[mine], there)
        return time

    def between(self, graph: Graph, tensors: Ints, source: int, target: int) -> Floats:
        """Time of tensors from one stage to another, over the slowest pair of their devices."""
        pairs = np.ix_(self.homes[source], self.homes[target])
        rate, latency = self.machine.rate[pairs].ravel(), self.machine.latency[pairs].ravel()
        stated = graph.transfer_s[tensors][:, None]
        by_size = graph.tensor_bytes[tensors][:, None] * rate
        slowest: Floats = (latency + np.where(np.isnan(stated), by_size, stated)).max(axis=1)
        return slowest


def linked_stages(nodes: int, machine: Machine, blocks: Sequence[Block]) -> list[Linked]:
    """Links that join each of the (numbered) blocks of a split of so many nodes to the others."""
    stage = row_of((block.nodes for block in blocks), nodes)
    homes = []
    for block in blocks:
        first = int(device_numbers(machine, block.device.name)[0]) + block.number
        homes.append(np.arange(first, first + block.replicas))
    return [Linked(machine, homes, stage, b) for b in range(len(blocks))]


def at_best_links(
    devices: Sequence[DeviceClass], links: Sequence[Link], options: CostOptions
) -> tuple[DeviceClass, ...]:
    """Classes whose stages cost at most what they do with the links, wherever they stand.

    Every device of a class has the bandwidth of the best link that any of them has, in either
    direction: no path is wider than the links at its ends, and latencies only add. Where a load
    has parts that move over the bandwidth of the class, it is not below that. There are no
    clusters left.
    """
    best: dict[str, float] = {}
    for link in links:
        for end in (link.source, link.target):
            name = end.rpartition("/")[0]
            best[name] = max(best.get(name, 0.0), link.bandwidth_bytes_per_s)
    found = []
    for device in devices:
        band = best.get(device.name, device.bandwidth_bytes_per_s)
        if options.charge_io or options.memory_mode == "overflow":
            band = max(band, device.bandwidth_bytes_per_s)
        found.append(
            replace(
                device,
                bandwidth_bytes_per_s=band,
                cluster_size=0,
                inner_bandwidth_bytes_per_s=float("inf"),
                larger_clusters=(),
            )
        )
    return tuple(found)


@dataclass(frozen=True)
class StageLoad:
    """Parts of a stage's load, in the stream's time unit; memory in bytes."""

    in_s: float
    compute_s: float
    overflow_s: float
    out_s: float
    memory_bytes: float
    load_s: float
    sync_s: float = 0.0
    forward_s: float | None = None
    """Load of the forward nodes; None unless the graph has a backward pass."""
    backward_s: float | None = None
    peak_bytes: float | None = None
    """Peak of live activations, the part of the memory that depends on the order of the nodes;
    None with the `sum` model."""


def sync_time(weight_bytes: float, bandwidth: float, replicas: int) -> float:
    """Time to synchronise the weights of `replicas` copies after a backward pass."""
    return (replicas - 1) * weight_bytes / (replicas * bandwidth)


def transfer_times(graph: Graph, device: DeviceClass) -> Floats:
    """Time to move each tensor once over the device's link; f64[m]."""
    by_size = graph.tensor_bytes / device.bandwidth_bytes_per_s
    return np.where(np.isnan(graph.transfer_s), by_size, graph.transfer_s)


def link_times(graph: Graph, devices: Sequence[DeviceClass], tensors: Ints) -> Floats:
    """Time to move some tensors over the link of each device; f64[devices, tensors], CPUs 0."""
    none = np.zeros(len(tensors))
    return np.stack([none if d.is_cpu else transfer_times(graph, d)[tensors] for d in devices])


def node_memory(graph: Graph) -> Floats:
    """Memory of each node for the `sum` model; f64[n], bytes.

    Where the source does not give it: the parameters a node reads and the tensors it writes.
    """
    graph = graph.in_memory
    reader = np.repeat(np.arange(graph.n), np.diff(graph.in_ptr))
    writer = np.repeat(np.arange(graph.n), np.diff(graph.out_ptr))
    static = np.where(graph.tensor_kind >= PARAMETER, graph.tensor_bytes, 0.0)
    own = totals(reader, static[graph.in_idx], graph.n)
    own += totals(writer, graph.tensor_bytes[graph.out_idx], graph.n)
    return np.where(np.isnan(graph.node_bytes), own, graph.node_bytes)


def weights_stated(graph: Graph) -> Bools:
    """Nodes whose stated memory is one of weights (m_v of the 2020 paper, Appendix C.2); bool[n].

    Where there are parameters, these are the weights, and what nodes state holds more.
    """
    if (graph.tensor_kind == PARAMETER).any():
        return np.zeros(graph.n, dtype=np.bool_)
    return np.asarray(~np.isnan(graph.node_bytes))


def weight_bytes(graph: Graph, nodes: Ints) -> float:
    """Bytes of weights that replicas of a stage synchronise.

    The parameters that its nodes read, each once; in a graph without any, the memory that they
    state.
    """
    stated = weights_stated(graph)[nodes]
    read = distinct(_gather(graph.in_ptr, graph.in_idx, nodes[~stated]))
    parameters = read[graph.tensor_kind[read] == PARAMETER]
    own = graph.node_bytes[nodes[stated]].sum()
    return float(own + graph.tensor_bytes[parameters].sum())


def stage_load(
    graph: Graph,
    units: Clustering,
    nodes: Sequence[int] | Ints,
    device: DeviceClass,
    options: CostOptions,
    replicas: int = 1,
    near: Ints | Linked | None = None,
) -> StageLoad:
    """Load of a stage that runs `nodes` (positions, in execution order) on `device`.

    Compute time is the sum of the times of the groups in `units`, each wholly in the stage.
    `near` (i64[n]) is the level of the smallest cluster that holds the stage and that of each node,
    the number of levels where none does; or it says what links join the stage to the others.
    """
    nodes = np.asarray(nodes, dtype=np.int64)
    step = place_of(nodes, graph.n)
    groups = distinct(units.label[nodes])
    times = units.times.get(device.name)
    time = np.full(len(groups), np.inf) if times is None else times[groups]
    compute = float(time.sum())
    memory, peak = stage_memory(graph, nodes, step, options)
    training = bool(graph.backward.any())
    sync = 0.0
    if training and replicas > 1:
        held = weight_bytes(graph, nodes)
        if isinstance(near, Linked):
            sync = (replicas - 1) / replicas * held * near.slowest_inside
        else:
            bands = [*(level.bandwidth_bytes_per_s for level in device.levels)]
            bands.append(device.bandwidth_bytes_per_s)
            sync = sync_time(held, bands[-1 if near is None else near[nodes[0]]], replicas)
    incoming, outgoing = crossing_times(graph, nodes, step, device, options, near)
    comm, overflow = COMM[options.comm], 0.0
    if not device.is_cpu and options.memory_mode == "overflow" and memory > device.memory_bytes:
        overflow = (memory - device.memory_bytes) / device.bandwidth_bytes_per_s

    def load(
        in_s: float, compute_s: float, overflow_s: float, out_s: float, sync_s: float
    ) -> float:
        alone = combine(comm, in_s, compute_s, overflow_s, out_s)
        return shared_load(comm, alone, replicas, sync_s)

    passes: list[float | None] = [None, None]
    if training:
        # A group runs in the backward pass if all its members do.
        ahead = totals(units.label, ~graph.backward, units.g)[groups] > 0
        made = graph.producer >= 0
        late = made & graph.backward[graph.producer]
        for i, (group, tensor) in enumerate(((ahead, ~late), (~ahead, late))):
            passes[i] = load(
                float(incoming[tensor].sum()),
                float(time[group].sum()),
                0.0,
                float(outgoing[tensor].sum()),
                sync if i else 0.0,
            )
    in_s, out_s = float(incoming.sum()), float(outgoing.sum())
    return StageLoad(
        in_s,
        compute,
        overflow,
        out_s,
        memory,
        load(in_s, compute, overflow, out_s, sync),
        sync,
        passes[0],
        passes[1],
        peak,
    )


def crossing_times(
    graph: Graph,
    nodes: Ints,
    step: Ints,
    device: DeviceClass,
    options: CostOptions,
    near: Ints | Linked | None,
) -> tuple[Floats, Floats]:
    """Time that every tensor spends moving into and out of a stage; f64[m] each.

    `step` (i64[n]) is the place of a node in the stage, -1 outside; `near` as in `stage_load`.
    """
    incoming, outgoing = np.zeros(graph.m), np.zeros(graph.m)
    if device.is_cpu:
        return incoming, outgoing
    cost = transfer_times(graph, device)
    read = distinct(_gather(graph.in_ptr, graph.in_idx, nodes))
    enters = (graph.producer[read] >= 0) & (step[graph.producer[read]] < 0)
    if options.charge_io:
        enters |= graph.tensor_kind[read] == INPUT
    written = _gather(graph.out_ptr, graph.out_idx, nodes)
    leaves = leaves_stage(graph, written, step)
    if options.charge_io:
        leaves |= graph.is_output[written]
    incoming[read[enters]] = cost[read[enters]]
    outgoing[written[leaves]] = cost[written[leaves]]
    if isinstance(near, Linked):
        made = read[enters & (graph.producer[read] >= 0)]
        incoming[made] = near.arriving(graph, made)
        sent = written[leaves_stage(graph, written, step)]
        to_host = graph.is_output[sent] if options.charge_io else np.zeros(len(sent), np.bool_)
        over = near.leaving(graph, sent)
        outgoing[sent] = np.where(to_host, np.maximum(cost[sent], over), over)
    elif near is not None:
        factors = np.array(device.link_factors)
        made = read[graph.producer[read] >= 0]
        incoming[made] *= factors[near[graph.producer[made]]]
        level = furthest_reader(graph, written, near)
        if options.charge_io:
            level[graph.is_output[written]] = len(factors) - 1
        outgoing[written] *= factors[level]
    return incoming, outgoing


def furthest_reader(graph: Graph, tensors: Ints, near: Ints) -> Ints:
    """The largest of `near` (i64[n]) among the readers of each tensor, 0 without any."""
    ptr, readers = csr_rows(graph.use_ptr, graph.use_idx, tensors)
    level = np.zeros(len(tensors), dtype=np.int64)
    np.maximum.at(level, np.repeat(np.arange(len(tensors)), np.diff(ptr)), near[readers])
    return level


def leaves_stage(graph: Graph, tensors: Ints, step: Ints) -> np.ndarray:
    """bool: some reader of the tensor has step -1, that is, lies outside the stage."""
    counts = graph.use_ptr[tensors + 1] - graph.use_ptr[tensors]
    outside = step[_gather(graph.use_ptr, graph.use_idx, tensors)] < 0
    owner = np.repeat(np.arange(len(tensors)), counts)
    return totals(owner, outside, len(tensors)) > 0


def stage_memory(
    graph: Graph, nodes: Ints, step: Ints, options: CostOptions
) -> tuple[float, float | None]:
    """Memory of a stage in bytes; and how much of it are live activations, with `peak`.

    `sum` adds up node memory. `peak` counts every parameter once, plus the largest total of
    live activations over the steps: inputs of the stage live from its start to their last use,
    a node's outputs from its step to their last use, or to the end if they leave the stage.
    """
    if options.memory_model == "sum":
        return float(node_memory(graph)[nodes].sum()), None
    graph = graph.in_memory
    read = _gather(graph.in_ptr, graph.in_idx, nodes)
    at = np.repeat(np.arange(len(nodes)), graph.in_ptr[nodes + 1] - graph.in_ptr[nodes])
    kind = graph.tensor_kind[read]
    static = distinct(read[(kind == PARAMETER) | (kind == CONSTANT)])
    live = (kind == INPUT) | (kind == ACTIVATION)
    last_use = np.full(graph.m, -1, dtype=np.int64)
    np.maximum.at(last_use, read[live], at[live])
    written = _gather(graph.out_ptr, graph.out_idx, nodes)
    stays = leaves_stage(graph, written, step) | graph.is_output[written]
    born = step[graph.producer[written]]
    entered = distinct(read[live])
    entered = entered[(graph.producer[entered] < 0) | (step[graph.producer[entered]] < 0)]
    start = np.concatenate([born, np.zeros(len(entered), dtype=np.int64)])
    until = np.where(stays, len(nodes) - 1, np.maximum(last_use[written], born))
    end = np.concatenate([until, last_use[entered]])
    size = graph.tensor_bytes[np.concatenate([written, entered])]
    change = totals(start, size, len(nodes) + 1)
    change -= totals(end + 1, size, len(nodes) + 1)
    peak = float(np.cumsum(change)[: len(nodes)].max(initial=0.0))
    return float(graph.tensor_bytes[static].sum()) + peak, peak


def _gather(ptr: Ints, idx: Ints, rows: Ints) -> Ints:
    return csr_rows(ptr, idx, rows)[1]
