"""What stages move over stated links, recomputed tensor by tensor.

A tensor that arrives takes the link from the device of its writer. One that leaves does so once,
over the slowest of the links to its readers elsewhere. Each link is the worst among the replicas
of both stages, and so is the one over which replicas agree on their weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from itertools import product

from dnnp.core.check.devices import number_of
from dnnp.core.check.mesh import Mesh, Path
from dnnp.core.check.tables import Tables
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.plan import Plan


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
        size, stated = self._tables.size[tensor], self._tables.transfer[tensor]
        found = 0.0
        for path in self.paths(source, target):
            if path is None:
                return math.inf
            moving = size / path.bandwidth if math.isnan(stated) else stated
            found = max(found, path.latency + moving)
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
    """What one stage moves over links."""

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
    """What a stage that holds the whole model moves over links: nothing but its weights."""

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
