"""Device classes, links between devices, and a cluster as a full mesh of single devices.

Where links are stated, two devices with a link use it; the others are connected through the
widest path, among those through the one with the fewest hops: its bandwidth is the least on the
path, its latency the sum (Moirai, Section III.A and III.C). Without links the devices are joined
by what their classes state: the smaller of two bandwidths, or that inside a cluster.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from dnnp.core.model.errors import FormatError
from dnnp.core.model.graph import Bools, Floats, Ints, distinct
from dnnp.core.model.text import shown_bytes


class Level(NamedTuple):
    """Clusters of one size among the devices of a class."""

    size: int
    """Devices i with equal i // size form a cluster."""
    bandwidth_bytes_per_s: float
    """Bandwidth of a link between two of them that no smaller cluster holds."""


def unnested(sizes: Sequence[int]) -> str:
    """The reason why clusters of these sizes, smallest first, are not nested; empty: they are."""
    for small, large in pairwise(sizes):
        if small < 1 or large <= small or large % small:
            return f"clusters of {large} are not made of several of {small} devices"
    return ""


@dataclass(frozen=True)
class DeviceClass:
    """`count` identical devices of one class."""

    name: str
    """Class name; the key of `Graph.times`."""
    kind: str = "accelerator"
    """`accelerator`, or `cpu`: no capacity and no transfer cost (2020 model)."""
    count: int = 1
    memory_bytes: float = math.inf
    """Capacity of one device, bytes."""
    bandwidth_bytes_per_s: float = math.inf
    """Bandwidth of one device's link, bytes per second."""
    cluster_size: int = 0
    """Devices i with equal i // cluster_size form a cluster; 0: no clusters."""
    inner_bandwidth_bytes_per_s: float = math.inf
    """Bandwidth of a link inside a cluster."""
    larger_clusters: tuple[Level, ...] = ()
    """Clusters of these clusters, growing, each a multiple of the one before."""
    fast_memory_bytes: float | None = None
    """On-chip memory of one device; None: not stated."""
    overhead_bytes: float = 0.0
    """Memory that a process takes there besides its stages, and besides `memory_bytes`."""
    of: str = ""
    """Class whose times its devices have, over `speed`; empty: they have times of their own."""
    speed: float = 1.0
    members: tuple[str, ...] = ()
    """Names of its devices, where limits of single devices divide a class; empty: `name/i`."""

    def device_name(self, number: int) -> str:
        """Name of a device of the class."""
        return self.members[number] if self.members else f"{self.name}/{number}"

    @property
    def places(self) -> tuple[str, ...]:
        """Names to pin nodes to: the class, that of its times, and each of its devices."""
        return *filter(None, (self.name, self.of)), *map(self.device_name, range(self.count))

    def number_of(self, device: str) -> int:
        """Number of a device in the class; ValueError: it is not there."""
        return self.members.index(device) if self.members else int(device.rpartition("/")[2])

    @property
    def is_cpu(self) -> bool:
        """True if stages here cost compute only."""
        return self.kind == "cpu"

    @property
    def inner_factor(self) -> float:
        """Time of a transfer inside a cluster over its time between clusters."""
        return self.bandwidth_bytes_per_s / self.inner_bandwidth_bytes_per_s

    @property
    def levels(self) -> tuple[Level, ...]:
        """The clusters that the devices form, from the smallest on."""
        if not self.cluster_size:
            return ()
        return (Level(self.cluster_size, self.inner_bandwidth_bytes_per_s), *self.larger_clusters)

    @property
    def link_factors(self) -> tuple[float, ...]:
        """Time of a transfer inside a cluster of each level over that between the largest ones.

        The last number, 1, is for what no cluster holds.
        """
        outer = self.bandwidth_bytes_per_s
        return (*(outer / level.bandwidth_bytes_per_s for level in self.levels), 1.0)


class Own(NamedTuple):
    """Limits of a single device."""

    memory_bytes: float | None = None
    """Capacity; None: that of its class."""
    speed: float = 1.0
    """Times are those of its class over this."""
    pinned: str = ""
    """Its name, where rules tell it from all others; empty: they do not."""


def with_own(devices: Sequence[DeviceClass], own: Mapping[str, Own]) -> tuple[DeviceClass, ...]:
    """Divide classes by what devices have of their own, by their names, which they keep."""
    found: list[DeviceClass] = []
    for device in devices:
        kinds: dict[Own, list[int]] = {}
        named = any(name.rpartition("/")[0] == device.name for name in own)
        for i in range(device.count if named else 1):
            kinds.setdefault(own.get(f"{device.name}/{i}", Own()), []).append(i)
        for kind, numbers in kinds.items():
            room = device.memory_bytes if kind.memory_bytes is None else kind.memory_bytes
            part = replace(device, memory_bytes=room, speed=kind.speed)
            if len(kinds) > 1 or kind.speed != 1:
                members = tuple(f"{device.name}/{i}" for i in numbers)
                part = replace(part, count=len(members), members=members)
                if kind != Own():
                    name = f"{device.name}[{','.join(map(str, numbers))}]"
                    part = replace(part, name=name, of=device.name)
            found.append(part)
    return tuple(found)


def own_times(devices: Sequence[DeviceClass]) -> dict[str, tuple[str, float]]:
    """Classes with the times of others, as `with_own_times` takes them."""
    return {d.name: (d.of, d.speed) for d in devices if d.of}


def offered(devices: Sequence[DeviceClass]) -> str:
    """Devices in words: `2 x v100 of 16 GB`."""
    each = ((f"{d.count} x {d.name}", shown_bytes(d.memory_bytes, 6)) for d in devices)
    return ", ".join(name + f" of {size}" * (size != "-") for name, size in each)


@dataclass(frozen=True)
class Link:
    """One direction of a channel between two devices."""

    source: str
    """Device that sends: `v100/0`."""
    target: str
    """Device that receives."""
    bandwidth_bytes_per_s: float
    latency_s: float = 0.0
    """Time that every transfer takes on top."""


@dataclass(frozen=True, eq=False)
class Machine:
    """`count` devices, numbered class after class."""

    names: tuple[str, ...]
    """`class/i` of each device."""
    classes: tuple[str, ...]
    """Class of each device."""
    is_cpu: Bools
    """bool[D]: a CPU has no capacity, and needs no transfer to read what a CPU wrote."""
    capacity: Floats
    """f64[D], bytes; inf for CPUs."""
    host_rate: Floats
    """f64[D], seconds a byte between the device and the memory of the host."""
    rate: Floats
    """f64[D, D], seconds a byte from row to column; 0 on the diagonal."""
    latency: Floats
    """f64[D, D], seconds a transfer; 0 on the diagonal."""
    charged: Floats
    """f64[D, D]: 1 where a tensor with a transfer time of its own takes it, else 0."""

    @property
    def count(self) -> int:
        """Number of devices."""
        return len(self.names)


def machine_of(
    devices: Sequence[DeviceClass], links: Sequence[Link] = (), passes: float = 1.0
) -> Machine:
    """Lay out the devices of all classes as a full mesh; each of the passes pays latencies.

    Raises FormatError: A link names a device that is not there, or two devices are not connected.
    """
    each = [(d, i) for d in devices for i in range(d.count)]
    names = [d.device_name(i) for d, i in each]
    is_cpu = np.array([d.is_cpu for d, _ in each], dtype=np.bool_)
    if links:
        rate, latency = _meshed(names, links)
    else:
        rate, latency = _uniform(each), np.zeros((len(each), len(each)))
    charged = ~(is_cpu[:, None] & is_cpu)
    np.fill_diagonal(charged, False)
    return Machine(
        names=tuple(names),
        classes=tuple(d.name for d, _ in each),
        is_cpu=is_cpu,
        capacity=np.array([np.inf if d.is_cpu else d.memory_bytes for d, _ in each]),
        host_rate=np.array([0.0 if d.is_cpu else 1 / d.bandwidth_bytes_per_s for d, _ in each]),
        rate=rate,
        latency=latency * passes,
        charged=charged.astype(np.float64),
    )


def _uniform(each: Sequence[tuple[DeviceClass, int]]) -> Floats:
    """Seconds a byte between every two devices, by what their classes state."""
    band = np.array([d.bandwidth_bytes_per_s for d, _ in each])
    rate: Floats = 1 / np.minimum(band[:, None], band)
    for a, (d, i) in enumerate(each):
        for b, (other, j) in enumerate(each):
            for level in reversed(d.levels if d.name == other.name else ()):
                if i // level.size == j // level.size:
                    rate[a, b] = 1 / level.bandwidth_bytes_per_s
    np.fill_diagonal(rate, 0.0)
    return rate


def _meshed(names: Sequence[str], links: Sequence[Link]) -> tuple[Floats, Floats]:
    """Rates and latencies of the mesh that links span; f64[D, D] each."""
    place = {name: i for i, name in enumerate(names)}
    for link in links:
        for end in (link.source, link.target):
            if end not in place:
                raise FormatError(f"a link names '{end}', which is not among the devices")
    size = len(names)
    band, delay = np.zeros((size, size)), np.zeros((size, size))
    for link in links:
        a, b = place[link.source], place[link.target]
        band[a, b], delay[a, b] = link.bandwidth_bytes_per_s, link.latency_s
    direct = band > 0
    wide = band.copy()
    np.fill_diagonal(wide, np.inf)
    for via in range(size):
        wide = np.maximum(wide, np.minimum(wide[:, via : via + 1], wide[via]))
    if (wide == 0).any():
        a, b = (int(x[0]) for x in np.nonzero(wide == 0))
        raise FormatError(
            f"the cluster is disconnected: there is no path from {names[a]} to {names[b]}"
        )
    far = ~direct & ~np.eye(size, dtype=np.bool_)
    latency = np.where(direct, delay, 0.0)
    for least in distinct(wide[far]).tolist():
        hops = _fewest_hops(band >= least, delay)
        chosen = far & (wide == least)
        latency[chosen] = hops[chosen]
    np.fill_diagonal(latency, 0.0)
    rate = 1 / np.where(direct, band, wide)
    np.fill_diagonal(rate, 0.0)
    return rate, latency


def _fewest_hops(usable: Bools, delay: Floats) -> Floats:
    """Least total latency among the paths with the fewest hops over usable links; f64[D, D]."""
    size = len(usable)
    hops = np.where(usable, 1.0, np.inf)
    total = np.where(usable, delay, np.inf)
    for matrix in (hops, total):
        np.fill_diagonal(matrix, 0.0)
    for via in range(size):
        count = hops[:, via : via + 1] + hops[via]
        length = total[:, via : via + 1] + total[via]
        better = (count < hops) | ((count == hops) & (length < total))
        hops, total = np.where(better, count, hops), np.where(better, length, total)
    return total


def device_numbers(machine: Machine, device_class: str) -> Ints:
    """Numbers in the machine of the devices of one class."""
    return np.array([i for i, c in enumerate(machine.classes) if c == device_class], np.int64)
