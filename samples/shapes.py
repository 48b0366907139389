"""Types and shapes of tensors of the sample models, as ONNX infers them node by node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from onnx import defs, numpy_helper
from onnx.helper import make_node, make_opsetid, make_tensor_type_proto, tensor_dtype_to_np_dtype
from onnx.shape_inference import InferenceError, infer_node_outputs

FLOAT = 1
INT64 = 7
BOOL = 9
FLOAT16 = 10

Shape = tuple[int, ...]


class Value(NamedTuple):
    """A tensor of the graph under construction."""

    name: str
    """Name in the graph; empty for an optional input that is left out."""
    dtype: int
    """``TensorProto`` element type."""
    shape: Shape
    """Every dimension is a number."""
    const: NDArray[Any] | None = None
    """The content, for small constants that decide the shape of a result."""


ABSENT = Value("", 0, ())

Result = list[tuple[int, Shape]]


def results(
    op: str, opset: int, inputs: Sequence[Value], attributes: Mapping[str, Any], count: int
) -> Result:
    """Type and shape of the first `count` results of a node.

    Raises
    ------
    ValueError
        The operator does not take such inputs, or needs to know what is in one.
    """
    given = ((v.dtype, v.shape, None if v.const is None else v.const.tobytes()) for v in inputs)
    how = ((k, tuple(v) if isinstance(v, list) else v) for k, v in attributes.items())
    return _inferred(op, opset, tuple(given), tuple(how), count)


@cache  # models repeat their layers
def _inferred(
    op: str,
    opset: int,
    inputs: tuple[tuple[int, Shape, bytes | None], ...],
    attributes: tuple[tuple[str, Any], ...],
    count: int,
) -> Result:
    names = [f"x{i}" if dtype else "" for i, (dtype, _, _) in enumerate(inputs)]
    types, contents = {}, {}
    for name, (dtype, shape, content) in zip(names, inputs, strict=True):
        if name:
            types[name] = make_tensor_type_proto(dtype, shape)
        if content is not None:
            array = np.frombuffer(content, tensor_dtype_to_np_dtype(dtype)).reshape(shape)
            contents[name] = numpy_helper.from_array(array)
    node = make_node(op, names, [f"y{i}" for i in range(count)], **dict(attributes))
    schema, opsets = defs.get_schema(op, opset), [make_opsetid("", opset)]
    try:
        found = infer_node_outputs(schema, node, types, contents, opset_imports=opsets)
    except InferenceError as error:
        raise ValueError(str(error)) from None
    tensors = [found[name].tensor_type for name in node.output]
    if not all(size.HasField("dim_value") for t in tensors for size in t.shape.dim):
        raise ValueError(f"{op}: the content of an input must be known")
    return [(t.elem_type, tuple(size.dim_value for size in t.shape.dim)) for t in tensors]
