"""Devices of the stages of a plan, and link transfers between them, recomputed pair by pair.

A stage on `class/i` with r replicas occupies the devices i to i + r - 1 of the class. Stages that
all devices share (`dnnp.core.check.claims`) leave them to others.

Between two devices a direct link counts; without one the path does whose narrowest link is widest,
among those the one with the fewest hops, among those the one with the least latency. Where no links
are stated, the smaller bandwidth of the two classes counts, or that inside a cluster. A tensor that
arrives takes the link from the device of its writer. One that leaves does so once, over the slowest
of the links to its readers elsewhere. Each link is the worst among the replicas of both stages, and
so is the one over which replicas agree on their weights.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import product
from typing import NamedTuple

from dnnp.core.check.graph import Tables
from dnnp.core.check.violation import Violation
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.errors import UncheckableError
from dnnp.core.model.plan import Plan, Stage


def check_devices(plan: Plan) -> list[Violation]:
    """Stages sit on distinct devices that exist, at most k of them accelerators."""
    devices = {device.name: device for device in plan.devices}
    most = plan.options.max_replicas if plan.hybrid is None else plan.hybrid.data_parallel
    found = []
    accelerators = 0
    if most < 1:
        found.append(Violation("replicas", "plan", f"allows {most} replicas", ">= 1", most))
    for number, stage in enumerate(plan.stages):
        subject = f"stage {number}"
        if stage.replicas < 1:
            message = f"has {stage.replicas} replicas, expected at least 1"
            found.append(Violation("replicas", subject, message, 1, stage.replicas))
        elif stage.replicas > max(most, 1):
            message = f"has {stage.replicas} replicas, the plan allows {most}"
            found.append(Violation("replicas", subject, message, most, stage.replicas))
        device = devices.get(stage.device_class)
        if device is None:
            message = f"device class '{stage.device_class}' is not among the plan's devices"
            found.append(Violation("device", subject, message))
            continue
        if not device.is_cpu and not stage.shared:
            accelerators += _width(stage)
        first = number_of(stage)
        if first is None or first >= device.count:
            message = f"there is no device '{stage.device}'"
            message += f"; class '{device.name}' has {device.count}"
            found.append(Violation("device", subject, message))
        elif first + _width(stage) > device.count:
            last = f"{device.name}/{first + _width(stage) - 1}"
            message = f"its {stage.replicas} replicas reach to device '{last}'"
            message += f"; class '{device.name}' has {device.count}"
            found.append(Violation("device", subject, message))
    found += _overlaps(plan)
    if accelerators > plan.k:
        message = f"{accelerators} accelerators are in use, but k is {plan.k}"
        found.append(Violation("stages", "plan", message, plan.k, accelerators))
    return found


def _width(stage: Stage) -> int:
    """Devices that a stage takes."""
    return max(stage.replicas, 1) * max(stage.shards, 1)


def number_of(stage: Stage) -> int | None:
    """Number of a stage's first device: the i of `class/i`; None if the name is not of this form.

    Numbers have no sign, no leading zeros and at most 18 digits.
    """
    owner, number = split_name(stage.device)
    return number if owner == stage.device_class else None


def split_name(device: str) -> tuple[str, int | None]:
    """Class and number of a device; no number if the name is not of the form `class/i`."""
    owner, slash, index = device.rpartition("/")
    if not slash or not (index.isascii() and index.isdigit() and len(index) <= 18):
        return owner, None
    return owner, int(index) if index == str(int(index)) else None


def _overlaps(plan: Plan) -> Iterator[Violation]:
    """No device in two stages."""
    intervals = []
    for stage_number, stage in enumerate(plan.stages):
        first = number_of(stage)
        if first is not None and not stage.shared:
            end = first + _width(stage)
            intervals.append((stage.device_class, first, stage_number, end))
    reach: dict[str, tuple[int, int]] = {}
    for owner, first, stage_number, end in sorted(intervals):
        furthest, other = reach.get(owner, (0, -1))
        if first < furthest:
            earlier, later = sorted((stage_number, other))
            message = f"device {owner}/{first} is already used by stage {earlier}"
            yield Violation("device", f"stage {later}", message)
        if end > furthest:
            reach[owner] = (end, stage_number)


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
            last = first + _width(stage) - 1
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
    """The paths between the devices of a plan, found when they are asked for."""

    def __init__(self, plan: Plan) -> None:
        self._classes: Mapping[str, DeviceClass] = {d.name: d for d in plan.devices}
        self._links: dict[str, dict[str, Path]] = {}
        for link in plan.links:
            ends = self._links.setdefault(link.source, {})
            ends[link.target] = Path(link.bandwidth_bytes_per_s, link.latency_s)
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
        ends = [self._classes.get(split_name(name)[0]) for name in (source, target)]
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
        (a, i), (b, j) = split_name(source), split_name(target)
        one, other = self._classes.get(a), self._classes.get(b)
        if one is None or other is None or i is None or j is None:
            return None
        for level in one.levels if one is other else ():
            if i // level.size == j // level.size:
                return Path(level.bandwidth_bytes_per_s, 0.0)
        return Path(min(one.bandwidth_bytes_per_s, other.bandwidth_bytes_per_s), 0.0)

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


class Wires:
    """The links between the stages of a plan."""

    def __init__(self, plan: Plan, tables: Tables, blocks: Sequence[Sequence[int]]) -> None:
        self._mesh, self._tables = Mesh(plan), tables
        self._owner = {v: number for number, block in enumerate(blocks) for v in block}
        self._devices = []
        counts = {device.name: device.count for device in plan.devices}
        for stage in plan.stages:
            first = number_of(stage) or 0
            replicas = max(min(stage.replicas, counts.get(stage.device_class, 1)), 1)
            self._devices.append([f"{stage.device_class}/{first + i}" for i in range(replicas)])
        self.paths = cache(self._paths)

    def of(self, stage: int) -> StageWires:
        """Those of one stage."""
        return StageWires(self, stage)

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


class StageWires:
    """Link transfers of one stage."""

    def __init__(self, wires: Wires, stage: int) -> None:
        self._wires, self._stage = wires, stage

    def arriving(self, writer: int, tensor: int) -> float:
        """Time of a tensor from where it is written."""
        return self._wires.time(tensor, self._wires.owner(writer), self._stage)

    def leaving(self, users: Sequence[int], tensor: int) -> float:
        """Time of a tensor to the slowest of the other stages that read it; 0: none does."""
        targets = {self._wires.owner(user) for user in users} - {self._stage}
        return max((self._wires.time(tensor, self._stage, t) for t in targets), default=0.0)

    @property
    def bandwidth(self) -> float:
        """Of the narrowest link among the replicas."""
        return self._wires.narrowest(self._stage)


class Alone:
    """Link transfers of a stage that holds the whole model: nothing but its weights."""

    def __init__(self, bandwidth: float) -> None:
        self.bandwidth = bandwidth
        """Of the narrowest link among the replicas."""

    def arriving(self, writer: int, tensor: int) -> float:
        """Nothing that others write."""
        return 0.0

    def leaving(self, users: Sequence[int], tensor: int) -> float:
        """Nothing that others read."""
        return 0.0


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
