"""What a device file says about families of operators, and about caches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dnnp.core.model.similar import instead
from dnnp.formats.checked_json import Fields
from dnnp.formats.fields import MIN_POSITIVE, shown

DTYPES = ("float64", "float32", "float16", "bfloat16", "float8", "int8")
"""Classes of element type that a device may have a rate for; float32 is required."""
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
    """How fast a family of operators is, for one class of element type."""

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


def parse_operators(record: Any, file: str) -> Operators:
    """Check the `operators` of a device file."""
    found: dict[str, dict[str, OperatorSpec]] = {}
    families = Fields(record, "operators", file)
    _only(families, record, FAMILIES)
    for family, entries in record.items():
        types = Fields(entries, families.place(family), file)
        _only(types, entries, DTYPES)
        types.get("float32")
        found[family] = {
            dtype: _parse_rates(Fields(entry, types.place(dtype), file))
            for dtype, entry in entries.items()
        }
    return found


def _only(fields: Fields, record: Mapping[str, Any], names: tuple[str, ...]) -> None:
    for name in record:
        if name not in names:
            raise fields.fault(name, f"is not known{instead(name, names)}")


def _parse_rates(entry: Fields) -> OperatorSpec:
    entry.only("compute", "memory", "half_length", "launch")
    compute, memory = (_share(entry, name) for name in ("compute", "memory"))
    half_length, launch = entry.number("half_length", 0), entry.number("launch", 1)
    return OperatorSpec(compute, memory, float(half_length), float(launch))


def _share(entry: Fields, name: str) -> float:
    value = float(entry.number(name, 1))
    if value < MIN_POSITIVE:
        raise entry.fault(name, f"{shown(value)} is not above 0")
    return value


def parse_caches(fields: Fields) -> tuple[tuple[float, float], ...]:
    """Check the `caches` of a device file: (bytes, bytes per second), from small to large."""
    found: list[tuple[float, float]] = []
    for entry in fields.objects("caches") if "caches" in fields else []:
        entry.only("bytes", "bandwidth_bytes_per_s")
        size = float(entry.number("bytes"))
        if found and size <= found[-1][0]:
            raise entry.fault("bytes", f"{shown(size)} is not above that of the cache before it")
        entry.get("bandwidth_bytes_per_s")
        found.append((size, _share(entry, "bandwidth_bytes_per_s")))
    return tuple(found)
