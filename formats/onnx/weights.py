"""External data of ONNX models: which bytes of which files tensors are, and parts of them."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from dnnp.core.model.errors import FormatError
from dnnp.formats.onnx.scope import held_tensors
from dnnp.formats.onnx.value_types import tensor_type


@dataclass(frozen=True, order=True)
class Span:
    """The place of the data of a tensor."""

    location: str
    """Path of the file, relative to the folder of the model, in normal form."""
    offset: int
    """First byte."""
    size_bytes: int
    rows: int = 1
    """Runs of bytes of the same length that it consists of."""
    stride: int = 0
    """Bytes from the begin of a run to that of the next."""

    @property
    def row_bytes(self) -> int:
        """Bytes of each run."""
        return self.size_bytes // self.rows

    @property
    def end(self) -> int:
        """The byte after the last one."""
        return self.offset + (self.rows - 1) * self.stride + self.row_bytes


def external_fields(tensor: onnx.TensorProto) -> dict[str, str]:
    """`location`, `offset`, `length` and so on of a tensor; empty if it is stored in the model.

    Raises
    ------
    FormatError
        Text that is not UTF-8, which protobuf hands over as bytes.
    """
    if tensor.data_location != onnx.TensorProto.EXTERNAL:
        return {}
    fields = {entry.key: entry.value for entry in tensor.external_data}
    if not all(isinstance(text, str) for pair in fields.items() for text in pair):
        raise FormatError(f"the place of the data of '{tensor.name}' is not UTF-8")
    return fields


def span_of(tensor: onnx.TensorProto) -> Span | None:
    """The place of the data of a tensor; None if it is stored in the model.

    A length that is absent or 0 is that of the tensor's type, as for ONNX Runtime.

    Raises
    ------
    FormatError
        A location outside the model's folder, an offset or length that is no number, or a type
        that cannot be external data.
    """
    if tensor.data_location != onnx.TensorProto.EXTERNAL:
        return None
    fields = external_fields(tensor)
    location = _inside(tensor.name, fields.get("location", ""))
    offset, length, rows, stride = (
        _number(tensor.name, key, fields.get(key, "0")) for key in (*_NUMBERS, *_APART)
    )
    span = Span(location, offset, length or _size(tensor), max(rows, 1), stride)
    if span.rows > 1 and (span.size_bytes % span.rows or stride < span.row_bytes):
        raise FormatError(f"the rows of '{tensor.name}' are not apart")
    return span


_NUMBERS = ("offset", "length")
_APART = ("dnnp.rows", "dnnp.stride")
"""Not of ONNX: parts of weights on their way from a model to a file of their own."""


def spans_of(models: Iterable[onnx.ModelProto]) -> set[Span]:
    """Places of the external data of all tensors of some models; raises as `span_of`."""
    found = (span_of(tensor) for model in models for tensor in held_tensors(model))
    return {span for span in found if span is not None}


def point_to(tensor: onnx.TensorProto, span: Span) -> None:
    """Say that the data of a tensor is somewhere else.

    What else was said of the old place goes: the checksum of that file, and offsets in it of
    weights that ONNX Runtime has packed.
    """
    del tensor.external_data[:]
    fields = {"location": span.location, "offset": span.offset, "length": span.size_bytes}
    fields |= dict(zip(_APART, (span.rows, span.stride), strict=True)) if span.rows > 1 else {}
    for key, value in fields.items():
        tensor.external_data.add(key=key, value=str(value))


def _inside(name: str, location: str) -> str:
    """A location in normal form: a relative path that stays in the folder of the model."""
    path = posixpath.normpath(location)
    outside = path == ".." or path.startswith(("../", "/"))
    if not location or "\0" in location or outside or path == ".":
        raise FormatError(f"the data of '{name}' is at {location!r}, outside the model's folder")
    return path


def _number(name: str, key: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise FormatError(f"the {key} of '{name}' is {text[:40]!r}, not a number")
    return int(text)


def _size(tensor: onnx.TensorProto) -> int:
    """Bytes of a tensor of this type and shape."""
    try:
        kind = tensor_type(tensor.data_type, tuple(tensor.dims))
    except FormatError as error:
        raise FormatError(f"'{tensor.name}': {error.reason}") from None
    if kind.size_bytes is None or kind.dtype == "string":
        what = "strings" if kind.dtype == "string" else "elements of an unknown type"
        raise FormatError(f"'{tensor.name}' holds {what}, which cannot be external data")
    return int(kind.size_bytes)


class Slice(NamedTuple):
    """A part of a tensor along an axis."""

    source: str
    """Name of the tensor."""
    axis: int
    ranges: tuple[tuple[int, int], ...]
    """Begin and end of its pieces, which are as long as each other and equally far apart."""

    def of(self, array: NDArray[np.generic]) -> NDArray[np.generic]:
        """The part of an array, as one of its own."""
        before = (slice(None),) * self.axis
        pieces = [array[(*before, slice(begin, end))] for begin, end in self.ranges]
        return np.ascontiguousarray(np.concatenate(pieces, self.axis))


def slice_tensor(tensor: onnx.TensorProto, name: str, part: Slice) -> onnx.TensorProto | None:
    """A part of a weight as a weight called `name`; None if elements do not take whole bytes.

    Of external data it is bytes of the same file: several runs, where it has several pieces or the
    axis is not the first one.
    """
    dims = list(tensor.dims)
    item = _item_bytes(tensor.data_type)
    if item is None:
        return None
    rows, inner = prod(dims[: part.axis]), prod(dims[part.axis + 1 :]) * item
    first, count = part.ranges[0], len(part.ranges)
    length, row = first[1] - first[0], dims[part.axis] * inner
    piece = length * inner
    dims[part.axis] = count * length
    made = onnx.TensorProto(name=name, data_type=tensor.data_type, dims=dims)
    span = span_of(tensor)
    if span is None:
        data = np.frombuffer(_bytes_of(tensor), dtype=np.uint8).reshape(rows, row)
        pieces = [data[:, begin * inner : end * inner] for begin, end in part.ranges]
        made.raw_data = np.concatenate(pieces, 1).tobytes()
        return made
    made.data_location = onnx.TensorProto.EXTERNAL
    offset, rows = span.offset + first[0] * inner, rows * count if piece else 1
    # Pieces divide the axis equally, so the next one is as far away in a row as in the next row.
    point_to(made, Span(span.location, offset, rows * piece, rows, row // count if rows > 1 else 0))
    return made


def _item_bytes(data_type: int) -> int | None:
    """Bytes of an element; None where it is smaller than a byte, or text."""
    one, eight = (tensor_type(data_type, (n,)) for n in (1, 8))
    if one.dtype == "string" or one.size_bytes is None or eight.size_bytes != 8 * one.size_bytes:
        return None
    return int(one.size_bytes)


def _bytes_of(tensor: onnx.TensorProto) -> bytes:
    """Little-endian bytes of a tensor that the model holds."""
    if tensor.HasField("raw_data"):
        return tensor.raw_data
    return numpy_helper.from_array(numpy_helper.to_array(tensor)).raw_data
