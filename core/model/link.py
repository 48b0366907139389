"""Links between the devices of a cluster."""

from __future__ import annotations

from dataclasses import dataclass


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
