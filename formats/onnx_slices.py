"""Parts of the weights of an ONNX model, without reading what is stored outside of it."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from dnnp.formats.onnx_sizes import tensor_type
from dnnp.formats.onnx_weights import Span, point_to, span_of


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
