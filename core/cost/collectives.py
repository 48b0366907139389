"""Time of collective communication: what devices that hold one stage together exchange.

The usual algorithms (Thakur, Rabenseifner, Gropp 2005, "Optimization of collective communication
operations in MPICH"): around a ring, and along a tree; whichever is faster on the link is taken.
"""

from __future__ import annotations

from math import ceil, log2

ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
)


def moved_bytes(kind: str, size: float, devices: int) -> float:
    """Bytes that each of the devices sends around a ring for a tensor of `size` bytes in all."""
    passed = size * (devices - 1) / devices
    if kind == ALL_REDUCE:
        return 2 * passed
    return passed / devices if kind == ALL_TO_ALL else passed


def collective_time(
    kind: str, size: float, devices: int, bandwidth: float, latency: float = 0.0
) -> float:
    """Seconds that it takes.

    Parameters
    ----------
    kind
        One of `ALL_REDUCE`, `ALL_GATHER`, `REDUCE_SCATTER` and `ALL_TO_ALL`.
    size
        Bytes of the whole tensor; of `ALL_TO_ALL` what the devices hold of it together.
    bandwidth, latency
        Of each device's link: bytes per second, and seconds that each message takes on top.
    """
    if devices == 1 or not size:
        return 0.0
    rounds = ceil(log2(devices))
    if kind == ALL_REDUCE:
        ring = 2 * (devices - 1) * latency + moved_bytes(kind, size, devices) / bandwidth
        return min(ring, 2 * rounds * (latency + size / bandwidth))
    moved = moved_bytes(kind, size, devices) / bandwidth
    if kind == ALL_TO_ALL:  # each pair exchanges its own part, whichever way it takes
        return (devices - 1) * latency + moved
    return rounds * latency + moved
