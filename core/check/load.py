"""The load of a stage, recomputed slowly and plainly, and times of transfers over links.

An accelerator stage S costs (MTPP, Eq. 3; `acc(S)` of the 2020 paper)

    in(S) + compute(S) + overflow(S) + out(S),

each tensor counted once a stage and direction, for any number of consumers (MTPP, Eq. 1), and
overflow = max(0, memory(S) - capacity) / bandwidth (MTPP, Eq. 2). A stage on a CPU costs its
compute time only (`cpu(S)` of the 2020 paper).

The r replicas of a stage take a sample in turn, so that one sample costs 1/r of that. Where there
is a backward pass they also agree on their weights, in (r - 1) / r * weights / bandwidth (its
Appendix C.2): after the rest, or beside it where transfers overlap with compute.

A tensor that stays among the stages of one cluster moves over the link of the smallest such cluster
(Appendix C.3); replicas in one cluster agree on their weights over that of the smallest.

The forward load is that of the forward nodes and of the tensors they make or the model is fed with;
the backward load is that of the other nodes, of the tensors they make, and of the synchronisation
(Section 5.3). Overflow is in neither.

Where links are stated, they say how long transfers between stages take. Between two devices a
direct link counts; without one the path whose narrowest link is widest, among those the one with
the fewest hops, among those the one with the least latency. Where no links are stated, the smaller
bandwidth of the two classes counts, or that inside a cluster. A tensor that arrives takes the link
from the device of its writer. One that leaves does so once, over the slowest of the links to its
readers elsewhere. Each link is the worst among the replicas of both stages, and so is the one over
which replicas agree on their weights.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from itertools import product
from typing import NamedTuple, Self

from dnnp.core.check.claims import combined, number_of, split_name, width_of
from dnnp.core.check.graph import Tables, tables_of
from dnnp.core.check.violation import Violation, differs
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.errors import UncheckableError
from dnnp.core.model.graph import ACTIVATION, INPUT, PARAMETER, Clustering, Graph
from dnnp.core.model.plan import CostOptions, Plan, Stage

Home = tuple[str, int, int]
"""A cluster: its class, the devices that it has, and its number among those of that size."""


def clusters_of(plan: Plan, devices: Mapping[str, DeviceClass]) -> list[list[tuple[Home, float]]]:
    """The clusters that hold all devices of each stage, the smallest first, and their bandwidths.

    A stage that reaches from one cluster into the next is in neither.
    """
    found = []
    for stage in plan.stages:
        device, first = devices.get(stage.device_class), number_of(stage)
        homes: list[tuple[Home, float]] = []
        if device is not None and first is not None:
            last = first + width_of(stage) - 1
            for size, bandwidth in device.levels:
                if size > 0 and first // size == last // size:
                    homes.append(((device.name, size, first // size), bandwidth))
        found.append(homes)
    return found


MOST_STEPS = 3_000_000
"""Links that are looked at to find paths."""


class Path(NamedTuple):
    """A path between two devices."""

    bandwidth: float
    latency: float


class Mesh:
    """The paths between the devices of a plan, found on demand; each pass pays latencies."""

    def __init__(self, plan: Plan, passes: float = 1.0) -> None:
        self._classes: dict[str, DeviceClass] = {d.name: d for d in plan.devices}
        self._classes |= {name: d for d in plan.devices for name in d.members}
        self._links: dict[str, dict[str, Path]] = {}
        for link in plan.links:
            ends = self._links.setdefault(link.source, {})
            ends[link.target] = Path(link.bandwidth_bytes_per_s, link.latency_s * passes)
        self._stated = bool(plan.links)
        self.path = cache(self._path)
        self.widest = cache(self._widest)
        self.shortest = cache(self._shortest)
        self._left = MOST_STEPS

    def time(self, source: str, target: str, size: float, stated: float) -> float | None:
        """Time of `size` bytes, or `stated` if that is a number; None: there is no path."""
        path = self.path(source, target)
        if path is None:
            return None
        if stated != stated:
            return path.latency + size / path.bandwidth
        ends = [self._class_of(name) for name in (source, target)]
        free = all(end is not None and end.is_cpu for end in ends)
        return path.latency + (0.0 if free else stated)

    def _path(self, source: str, target: str) -> Path | None:
        if not self._stated:
            return self._by_class(source, target)
        direct = self._links.get(source, {}).get(target)
        if direct is not None:
            return direct
        widest = self.widest(source).get(target)
        if not widest:
            return None
        latency = self.shortest(source, widest).get(target)
        return None if latency is None else Path(widest, latency)

    def _by_class(self, source: str, target: str) -> Path | None:
        i, j = split_name(source)[1], split_name(target)[1]
        one, other = self._class_of(source), self._class_of(target)
        if one is None or other is None or i is None or j is None:
            return None
        for level in one.levels if one is other else ():
            if i // level.size == j // level.size:
                return Path(level.bandwidth_bytes_per_s, 0.0)
        return Path(min(one.bandwidth_bytes_per_s, other.bandwidth_bytes_per_s), 0.0)

    def _class_of(self, name: str) -> DeviceClass | None:
        return self._classes.get(name) or self._classes.get(split_name(name)[0])

    def _widest(self, source: str) -> dict[str, float]:
        """Bandwidth of the widest path to every device (Dijkstra on the narrowest link)."""
        heap = [(-float("inf"), source)]
        done: dict[str, float] = {}
        while heap:
            width, name = heapq.heappop(heap)
            if name in done:
                continue
            done[name] = -width
            links = self._links.get(name, {})
            self._spend(len(links) + 1)
            for other, link in links.items():
                if other not in done:
                    heapq.heappush(heap, (max(width, -link.bandwidth), other))
        return done

    def _shortest(self, source: str, least: float) -> dict[str, float]:
        """Latencies over links of bandwidth `least` or more: fewest hops first, then latency."""
        heap = [(0, 0.0, source)]
        done: dict[str, float] = {}
        while heap:
            hops, latency, name = heapq.heappop(heap)
            if name in done:
                continue
            done[name] = latency
            links = self._links.get(name, {})
            self._spend(len(links) + 1)
            for other, link in links.items():
                if link.bandwidth >= least and other not in done:
                    heapq.heappush(heap, (hops + 1, latency + link.latency, other))
        return done

    def _spend(self, steps: int) -> None:
        self._left -= steps
        if self._left < 0:
            raise UncheckableError(
                f"not checkable: it takes more than {MOST_STEPS} steps to find the paths between "
                "the devices"
            )


class LinkTimes(NamedTuple):
    """Link transfers of a stage; one that holds the whole model synchronises weights alone."""

    bandwidth: Callable[[], float]
    """Bandwidth of the narrowest link among the replicas."""
    arriving: Callable[[int, int], float] = lambda writer, tensor: 0.0
    """Time of a tensor from the stage of its writer."""
    leaving: Callable[[Sequence[int], int], float] = lambda users, tensor: 0.0
    """Time of a tensor to the slowest of the other stages that read it; 0: none does."""


class StageLinks:
    """The links between the stages of a plan."""

    def __init__(self, plan: Plan, tables: Tables, blocks: Sequence[Sequence[int]]) -> None:
        self._mesh, self._tables = Mesh(plan, tables.passes), tables
        self._owner = {v: number for number, block in enumerate(blocks) for v in block}
        self._devices = []
        counts = {device.name: device.count for device in plan.devices}
        for stage in plan.stages:
            first = number_of(stage) or 0
            replicas = max(min(stage.replicas, counts.get(stage.device_class, 1)), 1)
            self._devices.append([f"{stage.device_class}/{first + i}" for i in range(replicas)])
        self.paths = cache(self._paths)

    def of(self, stage: int) -> LinkTimes:
        """Link transfers of one stage."""

        def leaving(users: Sequence[int], tensor: int) -> float:
            targets = {self.owner(user) for user in users} - {stage}
            return max((self.time(tensor, stage, t) for t in targets), default=0.0)

        return LinkTimes(
            partial(self.narrowest, stage),
            lambda writer, tensor: self.time(tensor, self.owner(writer), stage),
            leaving,
        )

    def owner(self, node: int) -> int:
        """Stage of a node; -1: it has none."""
        return self._owner.get(node, -1)

    def time(self, tensor: int, source: int, target: int) -> float:
        """Time of a tensor between two stages; inf: there is no path, or no stage."""
        if min(source, target) < 0:
            return math.inf
        found = 0.0
        for path in self.paths(source, target):
            if path is None:
                return math.inf
            found = max(found, path.latency + self._tables.moving(tensor, path.bandwidth))
        return found

    def narrowest(self, stage: int) -> float:
        """Bandwidth of the narrowest path between two devices of a stage."""
        paths = self.paths(stage, stage)
        return min((0.0 if path is None else path.bandwidth for path in paths), default=math.inf)

    def _paths(self, source: int, target: int) -> set[Path | None]:
        """Paths from the devices of one stage to those of another; None: there is none."""
        pairs = product(self._devices[source], self._devices[target])
        return {self._mesh.path(a, b) for a, b in pairs if a != b}


def fastest_links(plan: Plan) -> tuple[DeviceClass, ...]:
    """Classes no stage of which costs more than with the links, wherever it is.

    All devices of a class get the widest link that starts or ends at one of them. What does not
    move over links keeps at least the bandwidth of the class.
    """
    if not plan.links:
        return plan.devices
    options, found = plan.options, []
    host = options.charge_io or options.memory_mode == "overflow"
    for device in plan.devices:
        bands = [
            link.bandwidth_bytes_per_s
            for link in plan.links
            if device.name in (link.source.rpartition("/")[0], link.target.rpartition("/")[0])
        ]
        if host or not bands:
            bands.append(device.bandwidth_bytes_per_s)
        found.append(
            DeviceClass(device.name, device.kind, device.count, device.memory_bytes, max(bands))
        )
    return tuple(found)


@dataclass(frozen=True)
class Units:
    """The units of a stream, in lists."""

    what: str
    of_node: list[int]
    ids: list[int]
    times: Mapping[str, list[float]]
    backward: list[bool]
    """True if all members belong to the backward pass."""


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
    """Compute time of a stage, forward and backward, and reasons if it is infinite.

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


@dataclass(frozen=True, eq=False)
class PlanCase:
    """A plan and its graph, in the lists that checks read."""

    graph: Graph
    plan: Plan
    tables: Tables
    units: Units
    blocks: Sequence[Sequence[int]]
    """Node positions of every stage."""

    @classmethod
    def of(cls, graph: Graph, clustering: Clustering | None, plan: Plan) -> Self:
        """The case of a plan, without nodes that are not in the graph."""
        tables = tables_of(graph, plan.options)
        position = {node_id: v for v, node_id in enumerate(tables.ids)}
        blocks = [[position[i] for i in stage.nodes if i in position] for stage in plan.stages]
        return cls(graph, plan, tables, units_of(graph, clustering, tables), blocks)

    @cached_property
    def devices(self) -> dict[str, DeviceClass]:
        """Device classes by name."""
        return {device.name: device for device in self.plan.devices}

    @cached_property
    def members(self) -> dict[int, list[int]]:
        """Unit -> its nodes."""
        found: dict[int, list[int]] = {}
        for node, unit in enumerate(self.units.of_node):
            found.setdefault(unit, []).append(node)
        return found

    @cached_property
    def stage_of(self) -> dict[int, int]:
        """Unit -> stage that holds it, the last one of several."""
        return {
            self.units.of_node[v]: number for number, block in enumerate(self.blocks) for v in block
        }


Cluster = tuple[Collection[int], float]
"""Nodes of the stages inside a cluster, and the bandwidth of its links."""


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
    """Memory over bandwidth: scale of the rounding error of the overflow."""
    sync_s: float = 0.0
    forward_s: float | None = None
    """Load of the forward pass; None unless the graph has a backward pass."""
    backward_s: float | None = None
    peak_bytes: float | None = None
    """Peak of live activations, which the memory includes; None if memory is summed."""


@dataclass(frozen=True)
class Footprint:
    """Transfers and memory of a set of nodes, on any device."""

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
    wires: LinkTimes | None = None,
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
        bandwidth = bandwidth if wires is None else wires.bandwidth()
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
    """Check the stated parts of a stage's load."""
    for name in ("in_s", "compute_s", "overflow_s", "out_s", "memory_bytes", "load_s", "sync_s"):
        scale = cost.overflow_scale_s if name in ("overflow_s", "load_s") else 0.0
        yield from differs("load", subject, name, getattr(stage, name), getattr(cost, name), scale)


def node_memory(tables: Tables, node: int) -> float:
    """Memory of a node; bytes.

    What the source gives, else the weights that the node reads and the tensors it writes.
    """
    if not math.isnan(tables.memory[node]):
        return tables.memory[node]
    tables = tables.in_memory
    weights = [t for t in tables.reads[node] if tables.kind[t] >= PARAMETER]
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
    """Time of a tensor over the links of a cluster with that bandwidth."""
    given = tables.transfer[tensor]
    if math.isnan(given):
        return tables.size[tensor] / bandwidth
    return given * device.bandwidth_bytes_per_s / bandwidth


def _over(
    wires: LinkTimes,
    tables: Tables,
    tensor: int,
    charge_io: bool,
    leaving: bool,
    host: float,
) -> float:
    """Time of one crossing of a tensor over links; `host`: time to or from the host."""
    writer = tables.writer.get(tensor)
    if not leaving:
        return host if writer is None else wires.arriving(writer, tensor)
    time = wires.leaving(tables.users.get(tensor, ()), tensor)
    return max(time, host) if charge_io and tables.output[tensor] else time


def _stays_near(
    tables: Tables, tensor: int, near: Collection[int], charge_io: bool, leaving: bool
) -> bool:
    """True if a tensor crosses over the link of the cluster that holds the nodes `near`.

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
            if tables.kind[tensor] >= PARAMETER:
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
    # Whole numbers of the finest unit among the sizes: adding and taking away is exact.
    ratios = {tensor: tables.size[tensor].as_integer_ratio() for tensor in first}
    unit = max((denominator for _, denominator in ratios.values()), default=1)
    size = {tensor: top * (unit // bottom) for tensor, (top, bottom) in ratios.items()}
    starting, ending = [0] * len(nodes), [0] * len(nodes)
    for tensor, step in first.items():
        starting[step] += size[tensor]
        ending[last[tensor]] += size[tensor]
    live = peak = 0
    for new, old in zip(starting, ending, strict=True):
        live += new
        peak = max(peak, live)
        live -= old
    return math.fsum(tables.size[tensor] for tensor in weights) + peak / unit, peak / unit
