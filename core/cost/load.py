"""Load and memory of one stage, and peak memory of every interval of a line.

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

Peak memory: for an interval [l, r] of a fixed order, a tensor made inside lives until its last
reader, or to the end if that lies outside; so it is live at step p exactly when its last reader is
at p or later, whatever r is. A tensor that enters lives until its last reader inside. Hence peak
memory never falls when an interval grows, and the live set of the whole order bounds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from dnnp.core.cost.load_formula import COMM, ROOM, combine, shared_load
from dnnp.core.kernels.kernel import callee, inlined, kernel, lean, plain
from dnnp.core.model.device import DeviceClass, Link, Machine, device_numbers
from dnnp.core.model.graph import (
    ACTIVATION,
    INPUT,
    PARAMETER,
    Bools,
    Clustering,
    Floats,
    Graph,
    Ints,
    csr,
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
    static = np.where(graph.tensor_kind >= PARAMETER, graph.tensor_bytes, 0.0)
    own = totals(graph.reader, static[graph.in_idx], graph.n)
    own += totals(graph.writer, graph.tensor_bytes[graph.out_idx], graph.n)
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
            band = bands[-1 if near is None else near[nodes[0]]]
            sync = (replicas - 1) * held / (replicas * band)
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
    ptr, readers = csr_rows(graph.use_ptr, graph.use_idx, tensors)
    owner = np.repeat(np.arange(len(tensors)), np.diff(ptr))
    return totals(owner, step[readers] < 0, len(tensors)) > 0


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
    static = distinct(read[kind >= PARAMETER])
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


class Steps(NamedTuple):
    """Nodes in execution order, with what each step reads and makes.

    Steps are 0..n-1. Uses are grouped by step (`use_ptr`); each knows the step of the previous
    use of its tensor (-1: none) and the tensor's birth (-1: before the start).
    """

    bounds: Ints
    """i64[items + 1], first step of each item."""
    use_ptr: Ints
    use_previous: Ints
    use_next: Ints
    """Next use of the tensor; n: none."""
    use_birth: Ints
    use_bytes: Floats
    made_ptr: Ints
    made_bytes: Floats
    made_last: Ints
    """Last use of a tensor made here; n if it is a model output, the step itself if unused."""
    param_ptr: Ints
    param_previous: Ints
    param_next: Ints
    param_bytes: Floats
    live: Floats
    """f64[n], bytes live at each step when the whole order is one interval."""
    own: Floats
    """f64[n], bytes of the activations a step reads and makes; a floor of any interval's peak."""


def peak_steps(graph: Graph, bounds: Ints, nodes: Ints) -> Steps:
    """Steps of `nodes` (positions in execution order) for the `peak` model."""
    graph = graph.in_memory
    n = len(nodes)
    step = place_of(nodes)
    static = graph.tensor_kind >= PARAMETER
    tensor = np.repeat(np.arange(graph.m, dtype=np.int64), np.diff(graph.use_ptr))
    at = step[graph.use_idx]
    order = np.lexsort((at, tensor))
    tensor, at = tensor[order], at[order]
    same_before = np.append(False, tensor[1:] == tensor[:-1]) if len(tensor) else np.zeros(0, bool)
    previous = np.where(same_before, np.roll(at, 1), -1)
    same_after = np.append(tensor[1:] == tensor[:-1], False) if len(tensor) else np.zeros(0, bool)
    following = np.where(same_after, np.roll(at, -1), n)
    last = np.full(graph.m, -1, dtype=np.int64)
    np.maximum.at(last, tensor, at)
    birth = np.where(graph.producer >= 0, step[graph.producer], -1)
    made = np.flatnonzero(graph.producer >= 0)
    made_ptr, made = csr(birth[made], made, n)
    ends = np.where(graph.is_output[made], n, np.maximum(last[made], birth[made]))
    use, param = ~static[tensor], static[tensor]
    use_ptr, use_order = csr(at[use], np.flatnonzero(use), n)
    param_ptr, param_order = csr(at[param], np.flatnonzero(param), n)
    size = graph.tensor_bytes
    entered = np.flatnonzero((graph.producer < 0) & ~static & (last >= 0))
    starts = np.concatenate([birth[made], np.zeros(len(entered), dtype=np.int64)])
    stops = np.concatenate([np.minimum(ends, n - 1), last[entered]]) + 1
    weights = size[np.concatenate([made, entered])]
    change = totals(starts, weights, n + 1)
    change -= totals(stops, weights, n + 1)
    own = totals(at[use], size[tensor[use]], n)
    own += totals(birth[made], size[made], n)
    steps = Steps(
        bounds=bounds,
        use_ptr=use_ptr,
        use_previous=previous[use_order],
        use_next=following[use_order],
        use_birth=birth[tensor[use_order]],
        use_bytes=size[tensor[use_order]],
        made_ptr=made_ptr,
        made_bytes=size[made],
        made_last=ends,
        param_ptr=param_ptr,
        param_previous=previous[param_order],
        param_next=following[param_order],
        param_bytes=size[tensor[param_order]],
        live=np.cumsum(change)[:n],
        own=own,
    )
    return Steps(*plain(*steps))


def summed_steps(bounds: Ints, memory: Floats) -> Steps:
    """Steps for the `sum` model: each holds `memory` (f64[n], bytes) to itself."""
    n = len(memory)
    none, nothing = np.zeros(0, dtype=np.int64), np.zeros(0)
    empty, index = np.zeros(n + 1, dtype=np.int64), np.arange(n + 1, dtype=np.int64)
    steps = Steps(
        bounds=bounds,
        use_ptr=empty,
        use_previous=none,
        use_next=none,
        use_birth=none,
        use_bytes=nothing,
        made_ptr=empty,
        made_bytes=nothing,
        made_last=none,
        param_ptr=index,
        param_previous=np.full(n, -1, dtype=np.int64),
        param_next=np.full(n, n, dtype=np.int64),
        param_bytes=memory,
        live=np.zeros(n),
        own=np.zeros(n),
    )
    return Steps(*plain(*steps))


def no_steps() -> Steps:
    """No steps at all; for kernels that must be given some."""
    return summed_steps(np.zeros(1, dtype=np.int64), np.zeros(0))


def most_memory(steps: Steps) -> float:
    """Bytes that no interval of these steps can exceed."""
    unique = steps.param_bytes[steps.param_previous < 0]
    return float(unique.sum() + steps.live.max(initial=0.0))


def peak_reach(steps: Steps, capacity: float) -> Ints:
    """Last item of the longest interval from each item that fits `capacity` bytes; i64[items].

    An item that alone does not fit gives its own position minus one.
    """
    reach: Ints = _peak_reach(steps, capacity * ROOM)
    return reach


@inlined
def _peak(steps, left, right, change):  # type: ignore[no-untyped-def]
    """Peak of live activations over the steps left..right run as one interval."""
    for p in range(right - left + 2):
        change[p] = 0.0
    for p in range(left, right + 1):
        for i in range(steps.made_ptr[p], steps.made_ptr[p + 1]):
            change[p - left] += steps.made_bytes[i]
            change[min(steps.made_last[i], right) - left + 1] -= steps.made_bytes[i]
        for i in range(steps.use_ptr[p], steps.use_ptr[p + 1]):
            # A tensor that enters: its last use inside ends its life.
            if steps.use_birth[i] < left and steps.use_next[i] > right:
                change[0] += steps.use_bytes[i]
                change[p - left + 1] -= steps.use_bytes[i]
    best = 0.0
    total = 0.0
    for p in range(right - left + 1):
        total += change[p]
        best = max(best, total)
    return best


@kernel
def _peak_reach(steps, capacity):  # type: ignore[no-untyped-def]
    bounds = steps.bounds
    items = len(bounds) - 1
    reach = np.empty(items, np.int64)
    change = np.zeros(bounds[items] + 2)
    item_live = np.zeros(items)
    item_own = np.zeros(items)
    for i in range(items):
        for p in range(bounds[i], bounds[i + 1]):
            item_live[i] = max(item_live[i], steps.live[p])
            item_own[i] = max(item_own[i], steps.own[p])
    # Queues of items whose values fall from the left; the oldest holds the window's maximum.
    live_queue, own_queue = np.empty(items, np.int64), np.empty(items, np.int64)
    live_old, live_new, own_old, own_new = 0, -1, 0, -1
    params = 0.0
    last = items - 1
    for first in range(items - 1, -1, -1):
        left = bounds[first]
        right = bounds[last + 1] - 1
        for p in range(bounds[first + 1] - 1, left - 1, -1):
            for i in range(steps.param_ptr[p], steps.param_ptr[p + 1]):
                if steps.param_next[i] > right:
                    params += steps.param_bytes[i]
        live_new = _push(live_queue, live_old, live_new, item_live, first)
        own_new = _push(own_queue, own_old, own_new, item_own, first)
        while last >= first:
            while live_queue[live_old] > last:
                live_old += 1
            while own_queue[own_old] > last:
                own_old += 1
            if params + item_live[live_queue[live_old]] <= capacity:
                break
            if params + item_own[own_queue[own_old]] <= capacity and (
                params + _peak(steps, left, right, change) <= capacity
            ):
                break
            for p in range(bounds[last], bounds[last + 1]):
                for i in range(steps.param_ptr[p], steps.param_ptr[p + 1]):
                    if steps.param_previous[i] < left:
                        params -= steps.param_bytes[i]
            last -= 1
            right = bounds[last + 1] - 1
        if last < first:
            live_old, live_new, own_old, own_new = 0, -1, 0, -1
        reach[first] = last
    return reach


@callee
def _push(queue, oldest, newest, values, item):  # type: ignore[no-untyped-def]
    """Put `item` in front of a queue of window maxima; return the new front."""
    while newest >= oldest and values[queue[newest]] <= values[item]:
        newest -= 1
    queue[newest + 1] = item
    return newest + 1


@lean
def memory_row(steps, first, last, tree_sum, tree_best, row):  # type: ignore[no-untyped-def]
    """Memory of the intervals [first, r] for r = first..last, into row[first..last].

    Live bytes are prefix sums of the changes at each step; a tree over the steps keeps the
    largest prefix sum under point updates. `tree_size` says how long the trees must be.
    """
    bounds = steps.bounds
    left = bounds[first]
    width = 1
    while width < bounds[last + 1] - left + 1:
        width *= 2
    for i in range(2 * width):
        tree_sum[i] = 0.0
        tree_best[i] = 0.0
    params = 0.0
    for item in range(first, last + 1):
        for p in range(bounds[item], bounds[item + 1]):
            for i in range(steps.param_ptr[p], steps.param_ptr[p + 1]):
                if steps.param_previous[i] < left:
                    params += steps.param_bytes[i]
            for i in range(steps.made_ptr[p], steps.made_ptr[p + 1]):
                size = steps.made_bytes[i]
                _add(tree_sum, tree_best, width, p - left, size)
                if steps.made_last[i] + 1 - left < width:
                    _add(tree_sum, tree_best, width, steps.made_last[i] + 1 - left, -size)
            for i in range(steps.use_ptr[p], steps.use_ptr[p + 1]):
                if steps.use_birth[i] < left:
                    size = steps.use_bytes[i]
                    since = max(steps.use_previous[i] + 1, left)
                    _add(tree_sum, tree_best, width, since - left, size)
                    _add(tree_sum, tree_best, width, p + 1 - left, -size)
        row[item] = params + tree_best[1]


@lean
def tree_size(steps):  # type: ignore[no-untyped-def]
    """Length of the trees that `memory_row` works in."""
    size = 4
    while size < 2 * (steps.bounds[-1] + 1):
        size *= 2
    return size


@callee
def _add(tree_sum, tree_best, width, place, value):  # type: ignore[no-untyped-def]
    i = width + place
    tree_sum[i] += value
    tree_best[i] = max(tree_sum[i], 0.0)
    i //= 2
    while i:
        tree_sum[i] = tree_sum[2 * i] + tree_sum[2 * i + 1]
        tree_best[i] = max(tree_best[2 * i], tree_sum[2 * i] + tree_best[2 * i + 1])
        i //= 2
