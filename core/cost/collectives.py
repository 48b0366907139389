"""Time of collective communication: what devices that hold one stage together exchange.

Around a ring (Thakur, Rabenseifner, Gropp 2005, "Optimization of collective communication
operations in MPICH"): where messages have no latency, nothing is faster.
"""

from __future__ import annotations

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


def collective_time(kind: str, size: float, devices: int, bandwidth: float) -> float:
    """Seconds that it takes.

    Parameters
    ----------
    kind
        One of `ALL_REDUCE`, `ALL_GATHER`, `REDUCE_SCATTER` and `ALL_TO_ALL`.
    size
        Bytes of the whole tensor; of `ALL_TO_ALL` what the devices hold of it together.
    bandwidth
        Of each device's link, bytes per second; messages have no latency.
    """
    return moved_bytes(kind, size, devices) / bandwidth if devices > 1 else 0.0
