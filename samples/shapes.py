"""Type and shape rules of the ONNX operators that the sample models use.

Only the forms that occur in the samples are covered. ``tests/samples`` compares the results
with ``onnx.shape_inference``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

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

Attributes = Mapping[str, Any]
Result = list[tuple[int, Shape]]
Rule = Callable[[Sequence[Value], Attributes], Result]


def broadcast(*shapes: Shape) -> Shape:
    """Return the shape of an element-wise operation (NumPy rules)."""
    first = shapes[0]
    if all(shape == first for shape in shapes):
        return first
    return tuple(int(size) for size in np.broadcast_shapes(*shapes))


def ints(value: Value) -> list[int]:
    """Return the content of a constant integer input."""
    if value.const is None:
        raise ValueError(f"{value.name}: the content of this input must be known")
    return [int(item) for item in value.const.ravel()]


def _elementwise(inputs: Sequence[Value], attributes: Attributes) -> Result:
    return [(inputs[0].dtype, broadcast(*(value.shape for value in inputs)))]


def _matmul(inputs: Sequence[Value], attributes: Attributes) -> Result:
    left, right = inputs[0].shape, inputs[1].shape
    if left[-1] != right[-2]:
        raise ValueError(f"MatMul of {left} and {right}")
    if len(right) == 2:
        return [(inputs[0].dtype, (*left[:-1], right[1]))]
    return [(inputs[0].dtype, (*broadcast(left[:-2], right[:-2]), left[-2], right[-1]))]


def _gemm(inputs: Sequence[Value], attributes: Attributes) -> Result:
    left, right = inputs[0].shape, inputs[1].shape
    if attributes.get("transB"):
        right = right[::-1]
    if left[1] != right[0]:
        raise ValueError(f"Gemm of {left} and {right}")
    return [(inputs[0].dtype, (left[0], right[1]))]


def _reshape(inputs: Sequence[Value], attributes: Attributes) -> Result:
    old, new = inputs[0].shape, ints(inputs[1])
    if -1 in new:
        new[new.index(-1)] = prod(old) // -prod(new)
    if prod(new) != prod(old):
        raise ValueError(f"Reshape of {old} to {new}")
    return [(inputs[0].dtype, tuple(new))]


def _concat(inputs: Sequence[Value], attributes: Attributes) -> Result:
    shape = list(inputs[0].shape)
    axis = attributes["axis"]
    shape[axis] = sum(value.shape[axis] for value in inputs)
    return [(inputs[0].dtype, tuple(shape))]


def _split(inputs: Sequence[Value], attributes: Attributes) -> Result:
    shape, axis = list(inputs[0].shape), attributes["axis"]
    result = []
    for size in ints(inputs[1]):
        shape[axis] = size
        result.append((inputs[0].dtype, tuple(shape)))
    return result


def _slice(inputs: Sequence[Value], attributes: Attributes) -> Result:
    shape = list(inputs[0].shape)
    starts, ends, axes = (ints(value) for value in inputs[1:4])
    steps = ints(inputs[4]) if len(inputs) > 4 else [1] * len(axes)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        shape[axis] = len(range(*slice(start, end, step).indices(shape[axis])))
    return [(inputs[0].dtype, tuple(shape))]


def _gather(inputs: Sequence[Value], attributes: Attributes) -> Result:
    data, indices = inputs[0].shape, inputs[1].shape
    axis = attributes.get("axis", 0) % len(data)
    return [(inputs[0].dtype, (*data[:axis], *indices, *data[axis + 1 :]))]


def _gather_nd(inputs: Sequence[Value], attributes: Attributes) -> Result:
    data, indices = inputs[0].shape, inputs[1].shape
    skipped = attributes.get("batch_dims", 0) + indices[-1]
    return [(inputs[0].dtype, (*indices[:-1], *data[skipped:]))]


def _top_k(inputs: Sequence[Value], attributes: Attributes) -> Result:
    shape = list(inputs[0].shape)
    shape[attributes["axis"]] = ints(inputs[1])[0]
    return [(inputs[0].dtype, tuple(shape)), (INT64, tuple(shape))]


def _unsqueeze(inputs: Sequence[Value], attributes: Attributes) -> Result:
    shape, axes = list(inputs[0].shape), ints(inputs[1])
    rank = len(shape) + len(axes)
    for axis in sorted(axis % rank for axis in axes):
        shape.insert(axis, 1)
    return [(inputs[0].dtype, tuple(shape))]


def _squeeze(inputs: Sequence[Value], attributes: Attributes) -> Result:
    shape = inputs[0].shape
    drop = [axis % len(shape) for axis in ints(inputs[1])]
    return [(inputs[0].dtype, tuple(s for axis, s in enumerate(shape) if axis not in drop))]


def _flatten(inputs: Sequence[Value], attributes: Attributes) -> Result:
    shape, axis = inputs[0].shape, attributes.get("axis", 1)
    return [(inputs[0].dtype, (prod(shape[:axis]), prod(shape[axis:])))]


def _reduce(inputs: Sequence[Value], attributes: Attributes) -> Result:
    shape = list(inputs[0].shape)
    axes = ints(inputs[1]) if len(inputs) > 1 else attributes.get("axes", range(len(shape)))
    drop = [axis % len(shape) for axis in axes]
    if attributes.get("keepdims", 1):
        return [(inputs[0].dtype, tuple(1 if i in drop else s for i, s in enumerate(shape)))]
    return [(inputs[0].dtype, tuple(s for i, s in enumerate(shape) if i not in drop))]


def _argmax(inputs: Sequence[Value], attributes: Attributes) -> Result:
    shape = list(inputs[0].shape)
    axis = attributes["axis"]
    shape[axis : len(shape) if axis == -1 else axis + 1] = [1] if attributes["keepdims"] else []
    return [(INT64, tuple(shape))]


def _pad(inputs: Sequence[Value], attributes: Attributes) -> Result:
    shape, pads = inputs[0].shape, ints(inputs[1])
    begins, ends = pads[: len(shape)], pads[len(shape) :]
    return [
        (inputs[0].dtype, tuple(b + s + e for b, s, e in zip(begins, shape, ends, strict=True)))
    ]


def _window(spatial: Shape, kernel: Sequence[int], attributes: Attributes) -> Shape:
    """Return the spatial size after a convolution or a pooling window."""
    rank = len(spatial)
    strides = attributes.get("strides", [1] * rank)
    pads = attributes.get("pads", [0] * (2 * rank))
    return tuple(
        (spatial[i] + pads[i] + pads[rank + i] - kernel[i]) // strides[i] + 1 for i in range(rank)
    )


def _conv(inputs: Sequence[Value], attributes: Attributes) -> Result:
    data, weight = inputs[0].shape, inputs[1].shape
    if data[1] != weight[1] * attributes.get("group", 1):
        raise ValueError(f"Conv of {data} with {weight}")
    return [(inputs[0].dtype, (data[0], weight[0], *_window(data[2:], weight[2:], attributes)))]


def _pool(inputs: Sequence[Value], attributes: Attributes) -> Result:
    data = inputs[0].shape
    window = _window(data[2:], attributes["kernel_shape"], attributes)
    return [(inputs[0].dtype, (*data[:2], *window))]


def _lstm(inputs: Sequence[Value], attributes: Attributes) -> Result:
    (length, batch, _), hidden = inputs[0].shape, attributes["hidden_size"]
    directions = inputs[1].shape[0]
    state = (inputs[0].dtype, (directions, batch, hidden))
    return [(inputs[0].dtype, (length, directions, batch, hidden)), state, state]


def _resize(inputs: Sequence[Value], attributes: Attributes) -> Result:
    scales = inputs[2].const
    if scales is None:
        raise ValueError("Resize needs constant scales")
    shape = tuple(int(s * float(f)) for s, f in zip(inputs[0].shape, scales, strict=True))
    return [(inputs[0].dtype, shape)]


RULES: dict[str, Rule] = {
    **dict.fromkeys(
        ("Abs", "BatchNormalization", "Clip", "Erf", "Gelu", "Identity", "InstanceNormalization",
         "LayerNormalization", "Not", "Relu", "ScatterND", "Sigmoid", "Softmax", "Sqrt", "Tanh"),
        lambda x, how: [(x[0].dtype, x[0].shape)],
    ),
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Pow", "Or", "And"), _elementwise),
    **dict.fromkeys(
        ("Equal", "Greater", "Less"), lambda x, how: [(BOOL, _elementwise(x, how)[0][1])]
    ),
    **dict.fromkeys(("ReduceMax", "ReduceMean", "ReduceSum", "ReduceL2"), _reduce),
    **dict.fromkeys(("AveragePool", "MaxPool"), _pool),
    "ArgMax": _argmax,
    "Cast": lambda x, how: [(how["to"], x[0].shape)],
    "Concat": _concat,
    "Conv": _conv,
    "Flatten": _flatten,
    "Gather": _gather,
    "GatherND": _gather_nd,
    "Gemm": _gemm,
    "GlobalAveragePool": lambda x, how: [(x[0].dtype, (*x[0].shape[:2], 1, 1))],
    "GridSample": lambda x, how: [(x[0].dtype, x[0].shape[:2] + x[1].shape[1:-1])],
    "LSTM": _lstm,
    "MatMul": _matmul,
    "Pad": _pad,
    "Reshape": _reshape,
    "Resize": _resize,
    "Slice": _slice,
    "Split": _split,
    "Squeeze": _squeeze,
    "TopK": _top_k,
    "Transpose": lambda x, how: [(x[0].dtype, tuple(x[0].shape[i] for i in how["perm"]))],
    "Unsqueeze": _unsqueeze,
    "Where": lambda x, how: [(x[1].dtype, _elementwise(x, how)[0][1])],
}  # fmt: skip
