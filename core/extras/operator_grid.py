"""The grid of operators that a device file is fitted on: small models, each a chain of one block.

A case is a block of operators that keeps the shape of its input. It is timed as a short and as a
long chain of blocks with weights of their own: the difference is the time of the blocks, without
start and end of a run, and with weights from beyond the nearest caches, as in a model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from math import prod, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

Shape = tuple[int, ...]

TYPES = {"float32": np.float32, "float64": np.float64, "float16": np.float16}
_OPSET, _IR = 17, 8


@cache
def _numbers() -> np.ndarray[Any, np.dtype[np.float32]]:
    """Random numbers that weights repeat: to draw each would take longer than to time them."""
    return np.random.default_rng(0).standard_normal(1 << 16, np.float32)


@dataclass
class Builder:
    """Collects the nodes and weights of a chain."""

    dtype: str
    nodes: list[NodeProto] = field(default_factory=list)
    weights: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)

    def weight(self, *shape: int, inner: int = 1) -> str:
        """Random weights; `inner`, the length of the sums that they are in, sets their scale."""
        values = np.resize(_numbers()[len(self.weights) :], shape)
        return self.constant(values / np.float32(sqrt(inner)))

    def constant(self, value: np.ndarray[Any, Any]) -> str:
        """A weight of this value; floating-point values in the type of the chain."""
        name = f"w{len(self.weights)}"
        floating = value.dtype.kind == "f"
        self.weights[name] = value.astype(TYPES[self.dtype]) if floating else value
        return name

    def scalar(self, value: float) -> str:
        """A weight of one number."""
        return self.constant(np.array(value, np.float32))

    def ints(self, *values: int) -> str:
        """A weight of whole numbers, such as a shape, or axes."""
        return self.constant(np.array(values))

    def linear(self, x: str, inner: int, outer: int) -> str:
        """A layer."""
        return self.Add(self.MatMul(x, self.weight(inner, outer, inner=inner)), self.weight(outer))

    def conv(self, x: str, c: int, d: int, size: int = 1, bias: bool = True, **given: Any) -> str:
        """A convolution of `c` channels, of each group, to `d`; `given` are its attributes."""
        weights = [self.weight(d, c, size, size, inner=c * size * size)]
        weights += [self.weight(d)] if bias else []
        return self.Conv(x, *weights, **given)

    def permuted(self, x: str, size: Shape, order: Sequence[int]) -> str:
        """A transpose, and a shape; a reshape keeps transposes from cancelling out."""
        return self.Reshape(self.Transpose(x, perm=order), self.ints(*size))

    def __getattr__(self, op: str) -> Callable[..., str]:
        """Add a node of an operator; its first output, the others are called the same with .1, .2
        behind."""
        if not op[0].isupper():
            raise AttributeError(op)
        return partial(self._add, op)

    def _add(self, op: str, *inputs: str, outputs: int = 1, **given: Any) -> str:
        from onnx import helper

        name = f"t{len(self.nodes)}"
        names = [name, *(f"{name}.{i}" for i in range(1, outputs))]
        self.nodes.append(helper.make_node(op, list(inputs), names, name=f"n{name}", **given))
        return name


Block = Callable[[Builder, str], str]
"""(builder, input) -> output, of the input's shape and type."""


@dataclass(frozen=True)
class Case:
    """One point of the grid."""

    kind: str
    """Name of the varied parameter."""
    shape: Shape
    """Of the input and output."""
    block: Block
    dtype: str = "float32"
    threads: int = 1
    weight: float = 1.0
    """Weight of its error in a fit."""

    @property
    def title(self) -> str:
        """Kind and sizes in a few words."""
        sizes = "x".join(map(str, self.shape))
        return f"{self.kind} {sizes} {self.dtype}" + f" {self.threads} threads" * (self.threads > 1)

    def chain(self, length: int) -> ModelProto:
        """The model of `length` blocks."""
        from onnx import helper, numpy_helper

        builder = Builder(self.dtype)
        out = "x"
        for _ in range(length):
            out = self.block(builder, out)
        element = helper.np_dtype_to_tensor_dtype(np.dtype(TYPES[self.dtype]))
        ends = [helper.make_tensor_value_info(n, element, self.shape) for n in ("x", out)]
        weights = [numpy_helper.from_array(v, n) for n, v in builder.weights.items()]
        graph = helper.make_graph(builder.nodes, self.kind, ends[:1], ends[1:], weights)
        opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=_IR)


def _case(
    kind: str,
    shape: Shape,
    block: Callable[..., str],
    *,
    dtype: str = "float32",
    weight: float = 1.0,
    **sizes: Any,
) -> Case:
    """Point of the grid; `sizes` are arguments of the block."""
    return Case(kind, shape, partial(block, **sizes) if sizes else block, dtype, weight=weight)


def _dense(b: Builder, x: str, inner: int, outer: int) -> str:
    """Two layers, there and back."""
    return b.linear(b.linear(x, inner, outer), outer, inner)


def _heads(b: Builder, x: str) -> str:
    """Products of two activations, as in attention: x x^T, and that times x."""
    return b.MatMul(b.MatMul(x, b.Transpose(x, perm=[0, 2, 1])), x)


def _loop(b: Builder, x: str, width: int) -> str:
    """Three steps of a layer inside a loop."""
    from onnx import TensorProto, helper

    weight, n = b.weight(width, width, inner=width), len(b.nodes)
    names = [f"l{n}.{i}" for i in range(6)]
    count, go, state, on, product, out = names
    nodes = [
        helper.make_node("Identity", [go], [on]),
        helper.make_node("MatMul", [state, weight], [product]),
        helper.make_node("Tanh", [product], [out]),
    ]
    value = helper.make_tensor_value_info
    ends = [value(count, TensorProto.INT64, []), value(go, TensorProto.BOOL, [])]
    carried = [value(v, TensorProto.FLOAT, [64, width]) for v in (state, out)]
    body = helper.make_graph(
        nodes, f"body{n}", [*ends, carried[0]], [value(on, TensorProto.BOOL, []), carried[1]]
    )
    return b.Loop(b.constant(np.array(3)), "", x, body=body)


def _recurrent(b: Builder, x: str, op: str, width: int) -> str:
    gates, inner = {"LSTM": 4, "GRU": 3}[op], 2 * width
    w, r = (b.weight(1, gates * width, width, inner=inner) for _ in range(2))
    layer = getattr(b, op)(x, w, r, b.weight(1, 2 * gates * width), hidden_size=width)
    return b.Squeeze(layer, b.ints(1))


def products() -> Iterator[Case]:
    """Matrix products: with weights, with many and few rows, and of activations."""
    for rows in (1, 8, 64, 256):
        for inner, outer in ((64, 64), (128, 512), (256, 256), (768, 768), (512, 2048)):
            yield _case("product", (1, rows, inner), _dense, inner=inner, outer=outer)
    for rows, inner, outer in ((1, 512, 1000), (1, 1024, 1024), (16, 100, 30), (37, 128, 512)):
        yield _case("product", (rows, inner), _dense, inner=inner, outer=outer)
    for shape in ((4, 32, 16), (4, 128, 32), (12, 128, 64), (8, 256, 64), (2, 16, 8)):
        yield _case("heads", shape, _heads)
    for dtype in ("float64", "float16"):
        for rows, inner in ((32, 128), (128, 512)):
            shape = (1, rows, inner)
            yield _case("product", shape, _dense, dtype=dtype, inner=inner, outer=inner)
    for width in (64, 256):
        yield _case("loop", (64, width), _loop, width=width)
    for steps, width in ((8, 64), (20, 128), (16, 512)):
        yield _case("recurrent", (steps, 1, width), _recurrent, op="LSTM", width=width)
        yield _case("recurrent", (steps, 4, width), _recurrent, op="GRU", width=width)


def _same(b: Builder, x: str, channels: int, size: int, groups: int = 1) -> str:
    """A convolution with as many channels after it, rectified."""
    pads = [size // 2] * 4
    return b.Relu(b.conv(x, channels // groups, channels, size, pads=pads, group=groups))


def _bottleneck(b: Builder, x: str, channels: int, hidden: int) -> str:
    """Pointwise convolutions to another number of channels and back."""
    return b.Relu(b.conv(b.conv(x, channels, hidden), hidden, channels))


def _narrow(b: Builder, x: str, channels: int, hidden: int, size: int) -> str:
    """Few channels to many and back."""
    y = b.conv(x, channels, hidden, size, pads=[size // 2] * 4)
    return b.conv(y, hidden, channels)


def _strided(b: Builder, x: str, channels: int, groups: int) -> str:
    """A convolution of stride 2, and its image enlarged again."""
    how: dict[str, Any] = {"pads": [1] * 4, "strides": [2, 2], "group": groups}
    y = b.conv(x, channels // groups, channels, 3, bias=False, **how)
    scales = b.constant(np.array([1, 1, 2, 2], np.float32))
    how = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return b.Resize(y, "", scales, mode="nearest", **how)


def _stem(b: Builder, x: str, size: int) -> str:
    """A convolution of 3 channels, as models begin, and a few of its channels kept."""
    y = b.Relu(b.conv(x, 3, 32, size, bias=False, pads=[size // 2] * 4))
    return b.conv(y, 32, 3, bias=False)


def _gate(b: Builder, x: str, channels: int) -> str:
    """Squeeze and excite: a mean of each channel scales it."""
    return b.Mul(x, b.Sigmoid(b.conv(b.GlobalAveragePool(x), channels, channels)))


def convolutions() -> list[Case]:
    """Convolutions by kernel, channels, groups and size of the image; pooling."""
    cases = []

    def add(kind: str, c: int, side: int, block: Callable[..., str], **more: Any) -> None:
        cases.append(_case(kind, (1, c, side, side), block, **more))

    def conv(kind: str, c: int, side: int, size: int, **more: Any) -> None:
        add(kind, c, side, _same, channels=c, size=size, **more)

    for c, side in ((16, 56), (32, 112), (64, 56), (64, 14), (128, 28), (256, 14), (256, 7)):
        conv("conv", c, side, 3)
        conv("depthwise", c, side, 3, groups=c)
        conv("pointwise", c, side, 1)
    for c, side in ((96, 28), (384, 14), (960, 7), (24, 56)):
        conv("depthwise", c, side, 3, groups=c)
    conv("depthwise", 240, 14, 5, groups=240)
    for c, hidden, side in (
        (24, 144, 56), (64, 384, 14), (160, 960, 7), (256, 64, 56), (512, 128, 28), (8, 48, 112),
        (48, 12, 14),
    ):  # fmt: skip
        add("pointwise", c, side, _bottleneck, channels=c, hidden=hidden)
    conv("conv", 40, 28, 5)
    conv("grouped", 128, 28, 3, groups=32)
    conv("grouped", 136, 28, 1, groups=4)
    conv("grouped", 256, 14, 3, groups=4)
    for c, groups, side in ((64, 1, 56), (96, 96, 56), (256, 1, 14)):
        add("strided", c, side, _strided, channels=c, groups=groups)
    for size, side in ((3, 112), (7, 112), (3, 224)):
        add("stem", 3, side, _stem, size=size)
    for c, hidden, side, size in (
        (4, 32, 56, 1), (8, 96, 28, 1), (12, 64, 56, 1), (8, 24, 35, 3), (12, 16, 35, 5),
    ):  # fmt: skip
        add("narrow", c, side, _narrow, channels=c, hidden=hidden, size=size)
    for c, side in ((64, 28), (96, 54)):
        add("window", c, side, lambda b, x: b.LRN(x, size=5))
    for op, c, side in (("MaxPool", 64, 56), ("AveragePool", 192, 14), ("MaxPool", 256, 14)):
        add("pool", c, side, _pool, op=op)
    for c, side in ((64, 28), (240, 14), (32, 56)):
        add("gate", c, side, _gate, channels=c)
    for dtype in ("float16", "float64"):
        conv("conv", 64, 28, 3, dtype=dtype)
    return cases


def _pool(b: Builder, x: str, op: str) -> str:
    return b._add(op, x, kernel_shape=[3, 3], pads=[1] * 4)


def _dynamic(b: Builder, x: str, width: int) -> str:
    """A product in 8-bit integers as dynamic quantisation writes it."""
    q = b.DynamicQuantizeLinear(x, outputs=3)
    rng = np.random.default_rng(len(b.weights))
    w = b.constant(rng.integers(-127, 127, (width, width), np.int8))
    y = b.MatMulInteger(q, w, f"{q}.2", b.constant(np.array(0, np.int8)))
    scale = b.Mul(f"{q}.1", b.scalar(0.01))
    return b.Mul(b.Cast(y, to=1), scale)


def _quantised_conv(b: Builder, x: str, channels: int, size: int, groups: int = 1) -> str:
    """A convolution in 8-bit integers between conversions of its ends."""
    scale, zero = b.scalar(0.05), b.constant(np.array(128, np.uint8))
    rng = np.random.default_rng(len(b.weights))
    shape = (channels, channels // groups, size, size)
    w = b.constant(rng.integers(-127, 127, shape, np.int8))
    of_w = (b.scalar(0.01), b.constant(np.array(0, np.int8)))
    q, pads = b.QuantizeLinear(x, scale, zero), [size // 2] * 4
    for _ in range(4):
        q = b.QLinearConv(q, scale, zero, w, *of_w, scale, zero, pads=pads, group=groups)
    return b.DequantizeLinear(q, scale, zero)


def quantised() -> Iterator[Case]:
    """Products and convolutions in 8-bit integers."""
    for rows, width in ((1, 256), (64, 256), (128, 768)):
        yield _case("dynamic", (rows, width), _dynamic, width=width)
    for c, side in ((64, 28), (128, 14)):
        for size, groups in ((1, 1), (3, 1), (3, c)):
            sizes: dict[str, Any] = {"channels": c, "size": size, "groups": groups}
            yield _case("quantised-conv", (1, c, side, side), _quantised_conv, **sizes)


_ON_ELEMENTS: dict[str, Callable[..., str]] = {
    "arithmetic": lambda b, x: b.Add(b.Sub(b.Neg(x), x), x),
    "vector": lambda b, x, width: b.Add(b.Mul(x, b.weight(width)), b.weight(width)),
    "scalar": lambda b, x: b.Add(b.Mul(x, b.scalar(0.9)), b.scalar(0.1)),
    "divide": lambda b, x: b.Mul(b.Div(x, b.Sqrt(b.Add(b.Abs(x), b.scalar(1)))), x),
    "power": lambda b, x: b.Pow(x, b.scalar(2)),
    "where": lambda b, x: b.Where(b.Less(x, b.scalar(0)), b.scalar(0.5), x),
    "cast": lambda b, x: b.Cast(b.Neg(b.Cast(x, to=6)), to=1),
    "tanh": lambda b, x: b.Tanh(x),
    "sigmoid": lambda b, x: b.Sigmoid(x),
    "erf": lambda b, x: b.Erf(x),
    "exp": lambda b, x: b.Log(b.Exp(x)),
    "relu": lambda b, x: b.Neg(b.Relu(x)),
}
"""Blocks of operators on each element."""


def _channel(b: Builder, x: str, channels: int) -> str:
    """Scale and shift by channel, where a channel is a plane."""
    return b.Add(b.Mul(x, b.weight(1, channels, 1, 1)), b.weight(1, channels, 1, 1))


def _masked(b: Builder, x: str, length: int) -> str:
    """Scores of attention with a mask for all heads."""
    return b.Where(b.constant(np.tri(length, dtype=np.bool_)[None]), x, b.scalar(-1))


def elementwise() -> Iterator[Case]:
    """Elementwise operators, cheap and expensive, in and beyond the caches."""
    for kind, block in _ON_ELEMENTS.items():
        for shape in ((16, 64), (64, 128), (128, 768), (512, 2048)):
            width: dict[str, Any] = {"width": shape[-1]} if kind == "vector" else {}
            yield _case(kind, shape, block, **width)
    for heads, length in ((4, 32), (4, 128), (12, 197)):
        yield _case("mask", (heads, length, length), _masked, length=length)
    for c, side in ((64, 28), (16, 112)):
        yield _case("channel", (1, c, side, side), _channel, channels=c)
    for dtype in ("float16", "float64"):
        yield _case("arithmetic", (128, 768), _ON_ELEMENTS["arithmetic"], dtype=dtype)


def _norm(b: Builder, x: str, width: int) -> str:
    return b.LayerNormalization(x, b.weight(width), b.weight(width), axis=-1)


def _gelu(b: Builder, x: str) -> str:
    """Gelu as exporters write it; ONNX Runtime makes it one operator."""
    a = b.Add(b.Erf(b.Div(x, b.scalar(sqrt(2)))), b.scalar(1))
    return b.Mul(b.Mul(x, a), b.scalar(0.5))


def rows() -> Iterator[Case]:
    """Normalisation, softmax and reductions over rows, long and short."""
    for shape in ((4, 16, 16), (4, 128, 128), (12, 197, 197), (1, 128, 768), (1, 512, 1024)):
        width, over = shape[-1], {"axes": [-1], "keepdims": 1}
        for kind, block in (
            ("softmax", lambda b, x, width: b.Softmax(x, axis=-1)),
            ("norm", _norm),
            ("norm-sum", lambda b, x, width: _norm(b, b.Add(x, b.Neg(x)), width)),
            ("gelu", lambda b, x, width: _gelu(b, x)),
            ("reduce", lambda b, x, width, over=over: b.Sub(x, b.ReduceMean(x, **over))),
            ("reduce", lambda b, x, width, over=over: b.Sub(x, b.ReduceMax(x, **over))),
        ):
            yield _case(kind, shape, block, width=width)
    for c, side in ((32, 32), (64, 56)):
        yield _case("instance", (1, c, side, side), _instance, channels=c)


def _instance(b: Builder, x: str, channels: int) -> str:
    return b.InstanceNormalization(x, b.weight(channels), b.weight(channels))


def _views(b: Builder, x: str, size: Shape) -> str:
    return b.Neg(b.Reshape(b.Reshape(x, b.ints(prod(size))), b.ints(*size)))


def _tiny(b: Builder, x: str, width: int) -> str:
    """Operators of several kinds on next to nothing: starting them is what takes time."""
    y = b.Softmax(b.Mul(x, b.weight(width)), axis=-1)
    half = b.Split(y, axis=-1, outputs=2)
    y = b.Tanh(b.Add(b.Concat(half, f"{half}.1", axis=-1), x))
    return b.Sub(y, b.ReduceMean(y, axes=[-1], keepdims=1))


def _halves(b: Builder, x: str) -> str:
    y = b.Split(x, axis=1, outputs=2)
    return b.Concat(f"{y}.1", y, axis=1)


def _slices(b: Builder, x: str, size: Shape) -> str:
    half = size[-1] // 2
    at = [b.ints(v) for v in (0, half, 2 * half, len(size) - 1)]
    parts = [b.Slice(x, at[i], at[i + 1], at[3]) for i in (0, 1)]
    return b.Concat(parts[1], parts[0], axis=-1)


def _gather(b: Builder, x: str, rows: int) -> str:
    order = np.random.default_rng(rows).permutation(rows)
    return b.Gather(x, b.constant(order), axis=0)


def _elements(b: Builder, x: str, size: Shape) -> str:
    order = np.random.default_rng(0).integers(0, size[0], size)
    return b.GatherElements(x, b.constant(order), axis=0)


def _scatter(b: Builder, x: str, size: Shape) -> str:
    order = np.random.default_rng(0).permutation(size[0])[:, None]
    return b.ScatterND(x, b.constant(order), b.Neg(x))


def _pad(b: Builder, x: str, size: Shape) -> str:
    zeros = [0] * (len(size) - 1)
    y = b.Pad(x, b.ints(*zeros, 1, *zeros, 1))
    return b.Slice(y, *(b.ints(v) for v in (1, size[-1] + 1, len(size) - 1)))


def _expand(b: Builder, x: str, size: Shape) -> str:
    wide = b.Expand(x, b.ints(4, *size))
    return b.Reshape(b.Slice(wide, b.ints(1), b.ints(2), b.ints(0)), b.ints(*size))


def _bag(b: Builder, x: str, length: int, size: Shape) -> str:
    """Rows of a table, summed up by sample: numbers of words from the input, a part of the sums."""
    y = b.Mul(b.Sigmoid(x), b.scalar(size[0] - 1))
    y = b.Gather(b.weight(*size), b.Cast(y, to=7))
    at = [b.ints(v) for v in (0, length, 1)]
    return b.Slice(b.ReduceSum(y, at[2], keepdims=0), *at)


def _sort(b: Builder, x: str) -> str:
    y = b.TopK(x, b.ints(32), outputs=2, axis=-1)
    return b.Add(x, b.ReduceMax(y, axes=[-1], keepdims=1))


def moves() -> Iterator[Case]:
    """Operators that only move data, and those that do nothing."""
    shape: Shape
    for shape in ((1, 32, 4, 16), (1, 128, 4, 32), (1, 197, 12, 64), (1, 512, 8, 64)):
        yield _case("heads-apart", shape, Builder.permuted, size=shape, order=(0, 2, 1, 3))
    for shape in ((4, 32, 48), (1, 128, 512), (1, 768, 196), (8, 256, 192)):
        yield _case("transpose", shape, Builder.permuted, size=shape, order=(0, 2, 1))
        yield _case("halves", shape, _halves)
        for kind, block in (("slices", _slices), ("pad", _pad), ("expand", _expand)):
            yield _case(kind, shape, block, size=shape)
    for shape in ((1, 64), (8, 8)):
        yield _case("view", shape, _views, size=shape)
        yield _case("tiny", shape, _tiny, width=shape[-1])
    for shape in ((32, 64), (512, 128), (1000, 768)):
        yield _case("gather", shape, _gather, rows=shape[0])
        yield _case("elements", shape, _elements, size=shape)
        yield _case("scatter", shape, _scatter, size=shape)
    for shape in ((16, 256), (128, 1000)):
        yield _case("sort", shape, _sort)
    for shape, table in (((128, 16), (2000, 32)), ((32, 8), (5000, 64))):
        yield _case("bag", shape, _bag, length=shape[1], size=table)


_WEIGHT = 3.0
"""Weight of the error of a layer: its operators run as in models."""


def _encoder(b: Builder, x: str, length: int, heads: int, width: int) -> str:
    """A layer of a transformer: attention, then two products around a Gelu, with sums and norms."""
    whole = heads * width
    apart = b.ints(1, length, heads, width)

    def heads_of(order: list[int]) -> str:
        return b.Transpose(b.Reshape(b.linear(x, whole, whole), apart), perm=order)

    query, value = heads_of([0, 2, 1, 3]), heads_of([0, 2, 1, 3])
    scores = b.MatMul(query, heads_of([0, 2, 3, 1]))
    scores = b.Div(scores, b.scalar(sqrt(width)))
    y = b.MatMul(b.Softmax(scores, axis=-1), value)
    y = b.permuted(y, (1, length, whole), [0, 2, 1, 3])
    x = _norm(b, b.Add(b.linear(y, whole, whole), x), whole)
    y = b.linear(_gelu(b, b.linear(x, whole, 4 * whole)), 4 * whole, whole)
    return _norm(b, b.Add(y, x), whole)


def _between(b: Builder, x: str, channels: int, hidden: int, groups: int) -> str:
    """Pointwise, 3x3, pointwise, and the input added: bottlenecks, plain and inverted."""
    y = _same(b, b.Relu(b.conv(x, channels, hidden)), hidden, 3, groups)
    return b.Relu(b.Add(b.conv(y, hidden, channels), x))


def _branches(b: Builder, x: str, channels: int) -> str:
    """Convolutions of three sizes side by side, and a pool."""
    part = channels // 4
    parts = [_same(b, b.Relu(b.conv(x, channels, part)), part, size) for size in (1, 3, 5)]
    y = b.conv(_pool(b, x, "AveragePool"), channels, part)
    return b.Concat(*parts, b.Relu(y), axis=1)


def layers() -> Iterator[Case]:
    """Layers of several operators, where each finds the caches as others left them."""
    for length, heads, width in (
        (64, 4, 64), (100, 6, 32), (196, 3, 64), (24, 2, 48), (160, 8, 64), (8, 2, 16), (16, 2, 32),
    ):  # fmt: skip
        sizes: dict[str, Any] = {"length": length, "heads": heads, "width": width}
        shape = (1, length, heads * width)
        yield _case("encoder", shape, _encoder, weight=_WEIGHT, **sizes)
    for c, hidden, side in ((128, 32, 28), (96, 24, 56), (320, 80, 14), (512, 128, 14)):
        sizes = {"channels": c, "hidden": hidden, "groups": 1}
        yield _case("bottleneck", (1, c, side, side), _between, weight=_WEIGHT, **sizes)
    for c, hidden, side in ((16, 64, 48), (40, 240, 20), (80, 480, 10), (32, 192, 28), (16, 32, 7)):
        sizes = {"channels": c, "hidden": hidden, "groups": hidden}
        yield _case("inverted", (1, c, side, side), _between, weight=_WEIGHT, **sizes)
    for c, side in ((64, 35), (192, 17), (320, 8), (256, 28)):
        yield _case("branches", (1, c, side, side), _branches, channels=c)


QUICK = ("product", "pointwise", "arithmetic", "softmax", "transpose", "view")
"""Kinds of which a quick grid has one point each."""


def grid(threads: int = 1, *, quick: bool = False) -> list[Case]:
    """All points, or with `quick` the smallest of some kinds."""
    parts = (products, convolutions, elementwise, rows, moves, quantised, layers)
    cases = [case for part in parts for case in part()]
    if quick:
        cases.sort(key=lambda case: prod(case.shape))
        first = {case.kind: case for case in reversed(cases)}
        cases = [first[kind] for kind in QUICK]
    return [replace(case, threads=threads) for case in cases]
