"""Device classes that a plan may use."""

from __future__ import annotations

import math
from dataclasses import dataclass


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
    fast_memory_bytes: float | None = None
    """On-chip memory of one device; None: not stated."""

    @property
    def is_cpu(self) -> bool:
        """Whether stages here cost compute only."""
        return self.kind == "cpu"

    @property
    def inner_factor(self) -> float:
        """Time of a transfer inside a cluster over its time between clusters."""
        return self.bandwidth_bytes_per_s / self.inner_bandwidth_bytes_per_s
