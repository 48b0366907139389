"""What an integer program is about: items, places for them, tensors between them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dnnp.core.cost.divisor import common_divisor
from dnnp.core.cost.items import Line
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.graph import Ints
from dnnp.core.model.plan import CostOptions
from dnnp.core.split.ip.contiguity import Cells
from dnnp.core.split.ip.storage import Bytes, Storage


class Place(NamedTuple):
    """Where items can go: a device, or several that share the samples of one stage.

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

    line: Line
    devices: tuple[DeviceClass, ...]
    options: CostOptions
    ordered: bool
    cells: Cells | None
    """For contiguous splits: what each block has to respect."""
    cell_item: Ints
    """i64[cells], item of each cell."""
    storage: Storage
    """What counts against capacities."""
    weights: Bytes | None
    """What replicas synchronise; None: nothing."""

    @property
    def passes(self) -> int:
        """Loads that are optimised: one, or those of the two passes."""
        return 2 if self.options.objective == "gpipe" else 1

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
    n, most = task.line.n, task.options.max_replicas
    kinds = [
        (d, r)
        for d, device in enumerate(task.devices)
        for r in range(1, min(most, device.count) + 1)
    ]
    if task.ordered:
        steps = min(n, sum(device.count for device in task.devices))
        return [Place(d, r, s) for s in range(steps) for d, r in kinds]
    return [Place(d, r, -1) for d, r in kinds for _ in range(min(n, task.devices[d].count // r))]


def count_places(task: Task) -> int:
    """Number of places, without making them."""
    n, most = task.line.n, task.options.max_replicas
    if task.ordered:
        kinds = sum(min(most, d.count) for d in task.devices)
        return kinds * min(n, sum(d.count for d in task.devices))
    return sum(min(n, d.count // r) for d in task.devices for r in range(1, min(most, d.count) + 1))


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


def _nets(line: Line, device: int) -> Iterator[Net]:
    pins = line.pins.tolist()
    for e, source in enumerate(line.source.tolist()):
        mine = pins[line.pin_ptr[e] : line.pin_ptr[e + 1]]
        yield Net(
            source,
            tuple(v for v in mine if v != source),
            bool(line.always[e]),
            bool(line.backward_net[e]),
            float(line.cost[device, e]),
        )
