"""Element types, fixed shapes and sizes in bytes of ONNX values."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import NamedTuple

import onnx

from dnnp.core.model.errors import FormatError
from dnnp.formats.fields import MAX_NUMBER
from dnnp.formats.onnx_dims import MAX_DIMENSION, Dimensions
from dnnp.formats.onnx_types import CONTAINERS, dtype_name

_BITS = {
    "float32": 32, "float64": 64, "float16": 16, "bfloat16": 16, "complex64": 64,
    "complex128": 128, "bool": 8, "uint8": 8, "int8": 8, "uint16": 16, "int16": 16,
    "int32": 32, "uint32": 32, "int64": 64, "uint64": 64, "uint4": 4, "int4": 4,
    "float4e2m1": 4, "uint2": 2, "int2": 2, "float6e2m3": 6, "float6e3m2": 6,
    "string": 256,
}  # fmt: skip
"""Bits an element takes; those below 8 are packed. A string counts as the object that ONNX
Runtime keeps for it, 32 bytes. The float8 types, all of 8 bits, are not listed."""

SUB_BYTE = frozenset(name for name, bits in _BITS.items() if bits < 8)
"""Element types of which several share a byte."""


class ValueType(NamedTuple):
    """What is known of a value."""

    dtype: str | None
    """`float32`, ..., or `sequence`, `optional`, `map`, `opaque`; None: unknown."""
    shape: tuple[int, ...] | None
    """Sizes; None: not all of them are known."""
    size_bytes: float | None
    """None: unknown. A sequence counts as one element."""

    @property
    def settled(self) -> bool:
        """Whether no inference could add anything."""
        return self.size_bytes is not None or self.dtype in CONTAINERS


UNKNOWN = ValueType(None, None, None)


def tensor_type(elem_type: int, shape: tuple[int, ...] | None) -> ValueType:
    """The type of a dense tensor.

    Raises
    ------
    FormatError
        A negative dimension, or more bytes than a stream holds.
    """
    dtype = dtype_name(elem_type)
    if shape is None:
        return ValueType(dtype, None, None)
    if shape and (min(shape) < 0 or max(shape) > MAX_DIMENSION):
        wrong = min(shape) if min(shape) < 0 else max(shape)
        raise FormatError(f"a dimension of {wrong}; they lie between 0 and {MAX_DIMENSION}")
    return ValueType(dtype, shape, None if dtype is None else bytes_of(dtype, prod(shape)))


def bytes_of(dtype: str, elements: int) -> float:
    """Bytes of a number of elements; integers where they are exact as JSON numbers."""
    size = (elements * _BITS.get(dtype, 8) + 7) // 8
    if size <= MAX_DIMENSION:
        return size
    if size > MAX_NUMBER:
        raise FormatError(f"a tensor of more than {MAX_NUMBER} bytes")
    return float(size)


class TypeReader:
    """Reads types with symbolic dimensions filled in; equal types are decoded once."""

    def __init__(self, dimensions: Dimensions) -> None:
        self._dimensions = dimensions
        self._memo: dict[bytes, ValueType] = {}

    def read(self, proto: onnx.TypeProto) -> ValueType:
        """What a type says."""
        key = proto.SerializeToString()
        found = self._memo.get(key)
        if found is None:
            found = self._memo[key] = self._decode(proto)
        return found

    def read_all(self, values: Iterable[onnx.ValueInfoProto]) -> dict[str, ValueType]:
        """Types by name; errors name the value."""
        return {value.name: self.read_value(value.name, value.type) for value in values}

    def read_value(self, name: str, proto: onnx.TypeProto) -> ValueType:
        """What the type of a named value says; errors name the value."""
        try:
            return self.read(proto)
        except FormatError as error:
            raise FormatError(f"value '{name}': {error.reason}") from None

    def _decode(self, proto: onnx.TypeProto) -> ValueType:
        kind = proto.WhichOneof("value")
        if kind == "tensor_type" or kind == "sparse_tensor_type":
            tensor = getattr(proto, kind)
            sizes: list[int | None] = [None]
            if tensor.HasField("shape"):
                sizes = [self._dimensions.size(dim) for dim in tensor.shape.dim]
            shape = tuple(size for size in sizes if size is not None)
            return tensor_type(tensor.elem_type, shape if len(shape) == len(sizes) else None)
        if kind == "sequence_type" or kind == "optional_type":
            element = self._decode(getattr(proto, kind).elem_type)
            return ValueType(kind.removesuffix("_type"), None, element.size_bytes)
        return UNKNOWN if kind is None else ValueType(kind.removesuffix("_type"), None, None)
