"""Classes of devices, and links between single ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

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

    @property
    def is_cpu(self) -> bool:
        """Test whether stages here cost compute only."""
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
