"""Figures of a device from which times of operators follow, as its file states them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

RATES = ("float64", "float32", "float16", "bfloat16", "float8", "int8")
"""Classes of element type with rates of their own, of which a device must state that of float32; a
position here is a rate code."""

FAMILIES = (
    "arithmetic", "attention", "body", "broadcast", "cast", "conv", "conv-depthwise",
    "conv-grouped", "conv-narrow", "conv-pointwise", "conv-transpose", "copy", "divide", "erf",
    "exp", "experts", "gather", "gather-elements", "gelu", "image-norm", "norm", "norm-sum",
    "norm-window", "pool", "power", "product", "product-pairs", "quantise", "recurrent",
    "reduce", "resize", "scatter", "select", "select-broadcast", "sigmoid", "slice", "softmax",
    "sort", "tanh", "transpose", "transpose-rows", "view",
)  # fmt: skip
"""Families of operators that a device may state rates for."""


@dataclass(frozen=True)
class OperatorSpec:
    """Speed of a family of operators, for one class of element type."""

    compute: float = 1.0
    """Share of the peak of arithmetic."""
    memory: float = 1.0
    """Share of the bandwidth."""
    half_length: float = 0.0
    """Length of rows at which half of the arithmetic rate is reached."""
    launch: float = 1.0
    """Time to start one, in launch overheads of the device."""


Operators = Mapping[str, Mapping[str, OperatorSpec]]
"""Family -> class of element type -> rates."""


@dataclass(frozen=True)
class DeviceRates:
    """Rates, overhead and caches of a device."""

    peak_flop_per_s: Mapping[str, float]
    """Class of element type -> operations per second; float32 stands in for the others."""
    memory_bandwidth_bytes_per_s: float
    launch_overhead_s: float
    """Time that every operator takes on top."""
    caches: Sequence[tuple[float, float]] = ()
    """Bytes and bandwidth of the caches, nearest first; only `operators` make use of them."""
    channel_block: int = 1
    """Channels in which convolutions lay out images, 1: no blocks; for `operators` only."""
    efficiency: Mapping[str, float] = field(default_factory=dict)
    """Factor in (0, 1] for each of `matrix`, `vector`, `memory`; 1 where absent."""
    operators: Operators = field(default_factory=dict)
    """Rates of families, fitted to measured operators; empty: `efficiency` holds for all."""
