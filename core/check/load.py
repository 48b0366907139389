"""The load of a stage, recomputed slowly and plainly.

An accelerator stage S costs (MTPP, Eq. 3; `acc(S)` of the 2020 paper)

    in(S) + compute(S) + overflow(S) + out(S),

each tensor counted once a stage and direction, whatever its number of consumers (MTPP,
Eq. 1), and overflow = max(0, memory(S) - capacity) / bandwidth (MTPP, Eq. 2). A stage on a
CPU costs its compute time only (`cpu(S)` of the 2020 paper).

The r replicas of a stage take a sample in turn, so that one sample costs 1/r of that. Where
there is a backward pass they also agree on their weights, in (r - 1) / r * weights / bandwidth
(its Appendix C.2): after the rest, or beside it where transfers overlap with compute.

A tensor that stays among the stages of one cluster moves over the link of the smallest such
cluster (Appendix C.3); replicas in one cluster agree on their weights over that of the smallest.
Where links are stated, they say how long everything between stages takes.

The forward load is that of the forward nodes and of the tensors they make or the model is fed
with; the backward load is that of the other nodes, of the tensors they make, and of the
synchronisation (Section 5.3). Overflow is in neither.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from dnnp.core.check.devices import Alone, StageWires
from dnnp.core.check.graph import Tables
from dnnp.core.check.violation import Violation, differs
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.graph import ACTIVATION, CONSTANT, INPUT, PARAMETER, Clustering, Graph
from dnnp.core.model.plan import CostOptions, Stage


@dataclass(frozen=True)
class Units:
    """The units of a stream, in lists."""

    what: str
    of_node: list[int]
    ids: list[int]
    times: Mapping[str, list[float]]
    backward: list[bool]
    """Whether all members belong to the backward pass."""


def units_of(graph: Graph, clustering: Clustering | None, tables: Tables) -> Units:
    """Copy the groups, or the nodes, with their times."""
    if clustering is None:
        times = {name: array.tolist() for name, array in graph.times.items()}
        return Units("node", list(range(tables.n)), tables.ids, times, tables.backward)
    times = {name: array.tolist() for name, array in clustering.times.items()}
    of_node = clustering.label.tolist()
    backward = [True] * clustering.g
    for node, group in enumerate(of_node):
        backward[group] &= tables.backward[node]
    return Units("group", of_node, clustering.group_ids.tolist(), times, backward)


def compute_of(
    units: Units, stage: Stage, block: Sequence[int]
) -> tuple[tuple[float, float], list[str]]:
    """Compute time of a stage, forward and backward, and why it is infinite, if it is.

    A group counts once in every stage that holds a member.
    """
    held = sorted({units.of_node[node] for node in block})
    times = units.times.get(stage.device_class)
    if times is None:
        times = [math.inf] * len(units.ids)
        unsupported = [f"nothing is priced for device class '{stage.device_class}'"]
    else:
        unsupported = [
            f"{units.what} {units.ids[unit]} cannot run on '{stage.device_class}'"
            for unit in held
            if math.isinf(times[unit])
        ]
    early = math.fsum(times[unit] for unit in held if not units.backward[unit])
    late = math.fsum(times[unit] for unit in held if units.backward[unit])
    return (early, late), unsupported


Cluster = tuple[Collection[int], float]
"""The nodes whose stages a cluster holds wholly, and the bandwidth of its links."""


@dataclass(frozen=True)
class Cost:
    """Recomputed parts of one stage's load; times in the stream's unit, memory in bytes."""

    in_s: float
    compute_s: float
    overflow_s: float
    out_s: float
    memory_bytes: float
    load_s: float
    overflow_scale_s: float
    """Size of the terms whose difference is the overflow: memory / bandwidth."""
    sync_s: float = 0.0
    forward_s: float | None = None
    """Load of the forward pass; None unless the graph has a backward pass."""
    backward_s: float | None = None
    peak_bytes: float | None = None
    """Peak of live activations, which the memory includes; None if memory is summed."""


@dataclass(frozen=True)
class Footprint:
    """Transfers and memory of a set of nodes, whatever the device."""

    arriving: tuple[int, ...]
    leaving: tuple[int, ...]
    """Tensors that cross the boundary, each once a direction."""
    memory_bytes: float
    weight_bytes: float
    """Bytes that replicas synchronise; 0 without a backward pass."""
    peak_bytes: float | None = None
    """Peak of live activations, which the memory includes; None if memory is summed."""


def footprint_of(tables: Tables, nodes: Sequence[int], options: CostOptions) -> Footprint:
    """Tensors and memory of the stage that runs `nodes` (positions, in execution order)."""
    arriving, leaving = crossing(tables, nodes, options.charge_io)
    peak = None
    if options.memory_model == "peak":
        used, peak = peak_memory(tables, nodes)
    else:
        used = math.fsum(node_memory(tables, v) for v in nodes)
    weights = weight_bytes(tables, nodes) if tables.training else 0.0
    return Footprint(tuple(sorted(arriving)), tuple(sorted(leaving)), used, weights, peak)


def price(
    tables: Tables,
    footprint: Footprint,
    compute: tuple[float, float],
    device: DeviceClass,
    options: CostOptions,
    replicas: int = 1,
    near: Sequence[Cluster] = (),
    wires: StageWires | Alone | None = None,
) -> Cost:
    """Recompute the load of one stage, of the footprint of its nodes on a device.

    Parameters
    ----------
    compute
        Sum of the times of the stage's nodes or groups on the device class: of the forward
        ones, and of the backward ones.
    replicas
        Devices that share the samples.
    near
        The clusters that hold all devices of the stage, the smallest first.
    wires
        The links to other stages, where links are stated; clusters do not count then.
    """
    early: tuple[list[float], list[float]] = ([], [])
    late: tuple[list[float], list[float]] = ([], [])
    overflow_s = scale = 0.0
    used = footprint.memory_bytes
    if not device.is_cpu:
        for way, tensors in enumerate((footprint.arriving, footprint.leaving)):
            for t in tensors:
                time = tables.moving(t, device.bandwidth_bytes_per_s)
                for nodes, bandwidth in near:
                    if _stays_near(tables, t, nodes, options.charge_io, way == 1):
                        time = _inner(tables, t, device, bandwidth)
                        break
                writer = tables.writer.get(t)
                if wires is not None:
                    time = _over(wires, tables, t, options.charge_io, way == 1, time)
                of_pass = early if writer is None or not tables.backward[writer] else late
                of_pass[way].append(time)
        if options.memory_mode == "overflow" and used > device.memory_bytes:
            overflow_s = (used - device.memory_bytes) / device.bandwidth_bytes_per_s
            scale = used / device.bandwidth_bytes_per_s
    sync_s = 0.0
    if replicas > 1 and footprint.weight_bytes:
        share = (replicas - 1) / replicas
        bandwidth = near[0][1] if near else device.bandwidth_bytes_per_s
        bandwidth = bandwidth if wires is None else wires.bandwidth
        sync_s = share * footprint.weight_bytes / bandwidth if bandwidth else math.inf

    def load(parts: tuple[float, float, float, float], sync: float) -> float:
        alone = combined(options.comm, *parts) / replicas
        return alone + sync if options.comm == "sum" else max(alone, sync)

    in_s, out_s = math.fsum(early[0] + late[0]), math.fsum(early[1] + late[1])
    compute_s = compute[0] + compute[1]
    forward_s = backward_s = None
    if tables.training:
        forward_s = load((math.fsum(early[0]), compute[0], 0.0, math.fsum(early[1])), 0.0)
        backward_s = load((math.fsum(late[0]), compute[1], 0.0, math.fsum(late[1])), sync_s)
    whole = load((in_s, compute_s, overflow_s, out_s), sync_s)
    return Cost(
        in_s,
        compute_s,
        overflow_s,
        out_s,
        used,
        whole,
        scale,
        sync_s,
        forward_s,
        backward_s,
        footprint.peak_bytes,
    )


def check_parts(stage: Stage, cost: Cost, subject: str) -> Iterator[Violation]:
    """The parts of the load that a stage states."""
    for name in ("in_s", "compute_s", "overflow_s", "out_s", "memory_bytes", "load_s", "sync_s"):
        scale = cost.overflow_scale_s if name in ("overflow_s", "load_s") else 0.0
        yield from differs("load", subject, name, getattr(stage, name), getattr(cost, name), scale)


def combined(comm: str, in_s: float, compute_s: float, overflow_s: float, out_s: float) -> float:
    """Combine transfers and compute into a load."""
    if comm == "sum":
        return math.fsum([in_s, compute_s, overflow_s, out_s])
    if comm == "overlap":
        return max(compute_s, math.fsum([in_s, overflow_s, out_s]))
    return max(compute_s, in_s + overflow_s, out_s)


def node_memory(tables: Tables, node: int) -> float:
    """Memory of a node; bytes.

    What the source gives, else the weights that the node reads and the tensors it writes.
    """
    if not math.isnan(tables.memory[node]):
        return tables.memory[node]
    tables = tables.in_memory
    weights = [t for t in tables.reads[node] if tables.kind[t] in (PARAMETER, CONSTANT)]
    return math.fsum(tables.size[t] for t in [*weights, *tables.writes[node]])


def weight_bytes(tables: Tables, nodes: Sequence[int]) -> float:
    """Bytes of weights in a stage: its parameters, each once.

    In a graph without any, what the source gives for its nodes.
    """
    if PARAMETER not in tables.kind:
        return math.fsum(tables.memory[v] for v in nodes if not math.isnan(tables.memory[v]))
    parameters = {t for v in nodes for t in tables.reads[v] if tables.kind[t] == PARAMETER}
    return math.fsum(tables.size[t] for t in parameters)


def _inner(tables: Tables, tensor: int, device: DeviceClass, bandwidth: float) -> float:
    """Time to move one tensor inside a cluster of the device that has links of that bandwidth."""
    given = tables.transfer[tensor]
    if math.isnan(given):
        return tables.size[tensor] / bandwidth
    return given * device.bandwidth_bytes_per_s / bandwidth


def _over(
    wires: StageWires | Alone,
    tables: Tables,
    tensor: int,
    charge_io: bool,
    leaving: bool,
    host: float,
) -> float:
    """Time of one crossing of a tensor over links; `host`: what it takes to or from the host."""
    writer = tables.writer.get(tensor)
    if not leaving:
        return host if writer is None else wires.arriving(writer, tensor)
    time = wires.leaving(tables.users.get(tensor, ()), tensor)
    return max(time, host) if charge_io and tables.output[tensor] else time


def _stays_near(
    tables: Tables, tensor: int, near: Collection[int], charge_io: bool, leaving: bool
) -> bool:
    """Test whether a crossing of a tensor takes the link of a cluster, which holds `near`.

    Arriving it depends on the writer, leaving on all readers; the outside world is far away.
    """
    if not leaving:
        return tables.writer.get(tensor) in near
    if charge_io and tables.output[tensor]:
        return False
    return all(user in near for user in tables.users.get(tensor, ()))


def crossing(tables: Tables, nodes: Sequence[int], charge_io: bool) -> tuple[set[int], set[int]]:
    """Tensors that arrive at and leave a stage, each once."""
    inside = set(nodes)
    arriving, leaving = set(), set()
    for node in nodes:
        for tensor in tables.reads[node]:
            if tables.kind[tensor] == ACTIVATION and tables.writer[tensor] not in inside:
                arriving.add(tensor)
            if tables.kind[tensor] == INPUT and charge_io:
                arriving.add(tensor)
        for tensor in tables.writes[node]:
            if any(user not in inside for user in tables.users.get(tensor, ())):
                leaving.add(tensor)
            if tables.output[tensor] and charge_io:
                leaving.add(tensor)
    return arriving, leaving


def peak_memory(tables: Tables, nodes: Sequence[int]) -> tuple[float, float]:
    """Memory of a stage, and the peak of live activations over its steps; bytes.

    The memory is that peak plus all parameters, each once.

    A tensor from outside the stage is live from the first step to its last use; one made
    inside from its own step to its last use, or to the last step if it leaves the stage or
    the model. Parameters and constants are live throughout.
    """
    tables, inside = tables.in_memory, set(nodes)
    weights: set[int] = set()
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for step, node in enumerate(nodes):
        for tensor in tables.reads[node]:
            if tables.kind[tensor] in (PARAMETER, CONSTANT):
                weights.add(tensor)
                continue
            made_here = tables.writer.get(tensor) in inside
            first.setdefault(tensor, step if made_here else 0)
            last[tensor] = max(step, last.get(tensor, 0))
        for tensor in tables.writes[node]:
            first[tensor] = min(step, first.get(tensor, step))
            leaves = tables.output[tensor] or any(
                user not in inside for user in tables.users.get(tensor, ())
            )
            last[tensor] = max(len(nodes) - 1 if leaves else step, last.get(tensor, 0))
    starting: dict[int, list[int]] = {}
    ending: dict[int, list[int]] = {}
    for tensor in first:
        starting.setdefault(first[tensor], []).append(tensor)
        ending.setdefault(last[tensor], []).append(tensor)
    # Whole numbers of the finest unit among the sizes: adding and taking away is exact.
    ratios = {tensor: tables.size[tensor].as_integer_ratio() for tensor in first}
    unit = max((denominator for _, denominator in ratios.values()), default=1)
    size = {tensor: top * (unit // bottom) for tensor, (top, bottom) in ratios.items()}
    live = peak = 0
    for step in range(len(nodes)):
        live += sum(size[tensor] for tensor in starting.get(step, ()))
        peak = max(peak, live)
        live -= sum(size[tensor] for tensor in ending.get(step, ()))
    return math.fsum(tables.size[tensor] for tensor in weights) + peak / unit, peak / unit
