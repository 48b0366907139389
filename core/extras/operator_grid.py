"""The grid of operators that a device file is fitted on: small models, each a chain of one block.

A case is a block of operators that keeps the shape of its input. It is timed as a short and as a
long chain of blocks with weights of their own: the difference is what the blocks take, without
what a run takes at its start and end, and with weights that come from beyond the nearest caches,
as in a model.
"""

from __future__ import annotations

from collections.abc import Callable
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

    def add(self, op: str, *inputs: str, outputs: int = 1, domain: str = "", **given: Any) -> str:
        """Add a node; its first output, the others are called the same with .1, .2 behind."""
        from onnx import helper

        name = f"t{len(self.nodes)}"
        names = [name, *(f"{name}.{i}" for i in range(1, outputs))]
        self.nodes.append(
            helper.make_node(op, list(inputs), names, name=f"n{name}", domain=domain, **given)
        )
        return name


Block = Callable[[Builder, str], str]
"""(builder, input) -> output, of the input's shape and type."""


@dataclass(frozen=True)
class Case:
    """One point of the grid."""

    kind: str
    """What is varied, in a word."""
    shape: Shape
    """Of the input and output."""
    block: Block
    dtype: str = "float32"
    threads: int = 1
    weight: float = 1.0
    """What its error counts in a fit."""

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
    for k, n in ((inner, outer), (outer, inner)):
        x = b.add("Add", b.add("MatMul", x, b.weight(k, n, inner=k)), b.weight(n))
    return x


def _heads(b: Builder, x: str) -> str:
    """Products of two activations, as in attention: x x^T, and that times x."""
    swapped = b.add("Transpose", x, perm=[0, 2, 1])
    scores = b.add("MatMul", x, swapped)
    return b.add("MatMul", scores, x)


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
    return b.add("Loop", b.constant(np.array(3)), "", x, body=body)


def products() -> list[Case]:
    """Matrix products: with weights, with many and few rows, and of activations."""
    cases = []
    for rows in (1, 8, 64, 256):
        for inner, outer in ((64, 64), (128, 512), (256, 256), (768, 768), (512, 2048)):
            cases.append(_case("product", (1, rows, inner), _dense, inner=inner, outer=outer))
    for rows, inner, outer in ((1, 512, 1000), (1, 1024, 1024), (16, 100, 30), (37, 128, 512)):
        cases.append(_case("product", (rows, inner), _dense, inner=inner, outer=outer))
    for shape in ((4, 32, 16), (4, 128, 32), (12, 128, 64), (8, 256, 64), (2, 16, 8)):
        cases.append(_case("heads", shape, _heads))
    for dtype in ("float64", "float16"):
        for rows, inner in ((32, 128), (128, 512)):
            shape = (1, rows, inner)
            cases.append(_case("product", shape, _dense, dtype=dtype, inner=inner, outer=inner))
    for width in (64, 256):
        cases.append(_case("loop", (64, width), _loop, width=width))
    for steps, width in ((8, 64), (20, 128), (16, 512)):
        cases.append(_case("recurrent", (steps, 1, width), _recurrent, op="LSTM", width=width))
        cases.append(_case("recurrent", (steps, 4, width), _recurrent, op="GRU", width=width))
    return cases


def _recurrent(b: Builder, x: str, op: str, width: int) -> str:
    gates, inner = {"LSTM": 4, "GRU": 3}[op], 2 * width
    w, r = (b.weight(1, gates * width, width, inner=inner) for _ in range(2))
    bias = b.weight(1, 2 * gates * width)
    return b.add("Squeeze", b.add(op, x, w, r, bias, hidden_size=width), b.constant(np.array([1])))


def conv_block(
    b: Builder, x: str, channels: int, size: int, groups: int = 1, relu: bool = True
) -> str:
    inner = channels // groups * size * size
    weight = b.weight(channels, channels // groups, size, size, inner=inner)
    pads = [size // 2] * 4
    y = b.add("Conv", x, weight, b.weight(channels), pads=pads, group=groups)
    return b.add("Relu", y) if relu else y


def _bottleneck(b: Builder, x: str, channels: int, hidden: int) -> str:
    """Pointwise convolutions to another number of channels and back."""
    for c, d in ((channels, hidden), (hidden, channels)):
        x = b.add("Conv", x, b.weight(d, c, 1, 1, inner=c), b.weight(d))
    return b.add("Relu", x)


def _strided(b: Builder, x: str, channels: int, groups: int) -> str:
    """A convolution of stride 2, and its image enlarged again."""
    inner = channels // groups * 9
    weight = b.weight(channels, channels // groups, 3, 3, inner=inner)
    y = b.add("Conv", x, weight, pads=[1] * 4, strides=[2, 2], group=groups)
    scales = b.constant(np.array([1, 1, 2, 2], np.float32))
    how: dict[str, Any] = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return b.add("Resize", y, "", scales, mode="nearest", **how)


def _stem(b: Builder, x: str, size: int) -> str:
    """A convolution of 3 channels, as models begin, and a few of its channels kept."""
    y = b.add("Conv", x, b.weight(32, 3, size, size, inner=3 * size * size), pads=[size // 2] * 4)
    return b.add("Conv", b.add("Relu", y), b.weight(3, 32, 1, 1, inner=32))


def _narrow(b: Builder, x: str, channels: int, hidden: int, size: int) -> str:
    """Few channels to many and back."""
    weight = b.weight(hidden, channels, size, size, inner=channels * size * size)
    y = b.add("Conv", x, weight, b.weight(hidden), pads=[size // 2] * 4)
    return b.add("Conv", y, b.weight(channels, hidden, 1, 1, inner=hidden), b.weight(channels))


def _lrn(b: Builder, x: str) -> str:
    return b.add("LRN", x, size=5)


def pool_block(b: Builder, x: str, op: str, size: int) -> str:
    return b.add(op, x, kernel_shape=[size, size], pads=[size // 2] * 4)


def _gate(b: Builder, x: str, channels: int) -> str:
    """Squeeze and excite: a mean of each channel scales it."""
    y = b.add("GlobalAveragePool", x)
    y = b.add("Conv", y, b.weight(channels, channels, 1, 1, inner=channels), b.weight(channels))
    return b.add("Mul", x, b.add("Sigmoid", y))


def convolutions() -> list[Case]:
    """Convolutions by kernel, channels, groups and size of the image; pooling."""
    cases = []

    def conv(kind: str, channels: int, side: int, size: int, **more: Any) -> None:
        image = (1, channels, side, side)
        cases.append(_case(kind, image, conv_block, channels=channels, size=size, **more))

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
        image = (1, c, side, side)
        cases.append(_case("pointwise", image, _bottleneck, channels=c, hidden=hidden))
    conv("conv", 40, 28, 5)
    conv("grouped", 128, 28, 3, groups=32)
    conv("grouped", 136, 28, 1, groups=4)
    conv("grouped", 256, 14, 3, groups=4)
    for c, groups, side in ((64, 1, 56), (96, 96, 56), (256, 1, 14)):
        cases.append(_case("strided", (1, c, side, side), _strided, channels=c, groups=groups))
    for size, side in ((3, 112), (7, 112), (3, 224)):
        cases.append(_case("stem", (1, 3, side, side), _stem, size=size))
    for c, hidden, side, size in (
        (4, 32, 56, 1), (8, 96, 28, 1), (12, 64, 56, 1), (8, 24, 35, 3), (12, 16, 35, 5),
    ):  # fmt: skip
        image = (1, c, side, side)
        cases.append(_case("narrow", image, _narrow, channels=c, hidden=hidden, size=size))
    cases += [_case("window", (1, c, s, s), _lrn) for c, s in ((64, 28), (96, 54))]
    for op, c, side in (("MaxPool", 64, 56), ("AveragePool", 192, 14), ("MaxPool", 256, 14)):
        cases.append(_case("pool", (1, c, side, side), pool_block, op=op, size=3))
    for c, side in ((64, 28), (240, 14), (32, 56)):
        cases.append(_case("gate", (1, c, side, side), _gate, channels=c))
    for dtype in ("float16", "float64"):
        conv("conv", 64, 28, 3, dtype=dtype)
    return cases


def _dynamic(b: Builder, x: str, width: int) -> str:
    """A product in 8-bit integers as dynamic quantisation writes it."""
    q = b.add("DynamicQuantizeLinear", x, outputs=3)
    rng = np.random.default_rng(len(b.weights))
    w = b.constant(rng.integers(-127, 127, (width, width), np.int8))
    y = b.add("MatMulInteger", q, w, f"{q}.2", b.constant(np.array(0, np.int8)))
    scale = b.add("Mul", f"{q}.1", b.constant(np.array(0.01, np.float32)))
    return b.add("Mul", b.add("Cast", y, to=1), scale)


def _quantised_conv(b: Builder, x: str, channels: int, size: int, groups: int = 1) -> str:
    """A convolution in 8-bit integers between conversions of its ends."""
    scale, zero = b.constant(np.array(0.05, np.float32)), b.constant(np.array(128, np.uint8))
    rng = np.random.default_rng(len(b.weights))
    shape = (channels, channels // groups, size, size)
    w = b.constant(rng.integers(-127, 127, shape, np.int8))
    of_w = (b.constant(np.array(0.01, np.float32)), b.constant(np.array(0, np.int8)))
    q = b.add("QuantizeLinear", x, scale, zero)
    for _ in range(4):
        q = b.add(
            "QLinearConv", q, scale, zero, w, *of_w, scale, zero, pads=[size // 2] * 4, group=groups
        )
    return b.add("DequantizeLinear", q, scale, zero)


def quantised() -> list[Case]:
    """Products and convolutions in 8-bit integers."""
    cases = []
    for rows, width in ((1, 256), (64, 256), (128, 768)):
        cases.append(_case("dynamic", (rows, width), _dynamic, width=width))
    for c, side in ((64, 28), (128, 14)):
        for size, groups in ((1, 1), (3, 1), (3, c)):
            sizes: dict[str, Any] = {"channels": c, "size": size, "groups": groups}
            cases.append(_case("quantised-conv", (1, c, side, side), _quantised_conv, **sizes))
    return cases


def _unary(b: Builder, x: str, ops: str) -> str:
    for op in ops.split():
        x = b.add(op, x)
    return x


def _vector(b: Builder, x: str, width: int) -> str:
    """Scale and shift by a vector, as in an affine layer."""
    return b.add("Add", b.add("Mul", x, b.weight(width)), b.weight(width))


def _scalar(b: Builder, x: str) -> str:
    y = b.add("Mul", x, b.constant(np.array(0.9, np.float32)))
    return b.add("Add", y, b.constant(np.array(0.1, np.float32)))


def _pair(b: Builder, x: str) -> str:
    """Arithmetic on two activations of a size."""
    y = b.add("Sub", b.add("Neg", x), x)
    return b.add("Add", y, x)


def _divide(b: Builder, x: str) -> str:
    y = b.add(
        "Div", x, b.add("Sqrt", b.add("Add", b.add("Abs", x), b.constant(np.array(1, np.float32))))
    )
    return b.add("Mul", y, x)


def _power(b: Builder, x: str) -> str:
    return b.add("Pow", x, b.constant(np.array(2, np.float32)))


def _channel(b: Builder, x: str, channels: int) -> str:
    """Scale and shift by channel, where a channel is a plane."""
    return b.add("Add", b.add("Mul", x, b.weight(1, channels, 1, 1)), b.weight(1, channels, 1, 1))


def _where(b: Builder, x: str) -> str:
    less = b.add("Less", x, b.constant(np.array(0, np.float32)))
    return b.add("Where", less, b.constant(np.array(0.5, np.float32)), x)


def _masked(b: Builder, x: str, length: int) -> str:
    """Scores of attention with a mask for all heads."""
    mask = b.constant(np.tri(length, dtype=np.bool_)[None])
    return b.add("Where", mask, x, b.constant(np.array(-1, np.float32)))


def _cast(b: Builder, x: str) -> str:
    return b.add("Cast", b.add("Neg", b.add("Cast", x, to=6)), to=1)


def elementwise() -> list[Case]:
    """Operators on each element, cheap and dear, in and beyond the caches."""
    blocks: dict[str, Callable[..., str]] = {
        "arithmetic": _pair, "vector": _vector, "scalar": _scalar, "divide": _divide,
        "power": _power, "where": _where, "cast": _cast,
    }  # fmt: skip
    for kind, ops in (
        ("tanh", "Tanh"), ("sigmoid", "Sigmoid"), ("erf", "Erf"), ("exp", "Exp Log"),
        ("relu", "Relu Neg"),
    ):  # fmt: skip
        blocks[kind] = partial(_unary, ops=ops)
    cases = []
    for kind, block in blocks.items():
        for shape in ((16, 64), (64, 128), (128, 768), (512, 2048)):
            width: dict[str, Any] = {"width": shape[-1]} if kind == "vector" else {}
            cases.append(_case(kind, shape, block, **width))
    for heads, length in ((4, 32), (4, 128), (12, 197)):
        cases.append(_case("mask", (heads, length, length), _masked, length=length))
    for c, side in ((64, 28), (16, 112)):
        cases.append(_case("channel", (1, c, side, side), _channel, channels=c))
    for dtype in ("float16", "float64"):
        cases.append(_case("arithmetic", (128, 768), _pair, dtype=dtype))
    return cases


def _softmax(b: Builder, x: str) -> str:
    return b.add("Softmax", x, axis=-1)


def norm_block(b: Builder, x: str, width: int) -> str:
    return b.add("LayerNormalization", x, b.weight(width), b.weight(width), axis=-1)


def _norm_sum(b: Builder, x: str, width: int) -> str:
    return norm_block(b, b.add("Add", x, b.add("Neg", x)), width)


def _mean(b: Builder, x: str, op: str) -> str:
    return b.add("Sub", x, b.add(op, x, axes=[-1], keepdims=1))


def gelu_block(b: Builder, x: str) -> str:
    """Gelu as exporters write it; ONNX Runtime makes it one operator."""
    e = b.add("Erf", b.add("Div", x, b.constant(np.array(sqrt(2), np.float32))))
    a = b.add("Add", e, b.constant(np.array(1, np.float32)))
    return b.add("Mul", b.add("Mul", x, a), b.constant(np.array(0.5, np.float32)))


def _instance(b: Builder, x: str, channels: int) -> str:
    return b.add("InstanceNormalization", x, b.weight(channels), b.weight(channels))


def rows() -> list[Case]:
    """Normalisation, softmax and reductions over rows, long and short."""
    cases = []
    for shape in ((4, 16, 16), (4, 128, 128), (12, 197, 197), (1, 128, 768), (1, 512, 1024)):
        cases.append(_case("softmax", shape, _softmax))
        cases.append(_case("norm", shape, norm_block, width=shape[-1]))
        cases.append(_case("norm-sum", shape, _norm_sum, width=shape[-1]))
        cases.append(_case("gelu", shape, gelu_block))
        cases.append(_case("reduce", shape, _mean, op="ReduceMean"))
        cases.append(_case("reduce", shape, _mean, op="ReduceMax"))
    for c, side in ((32, 32), (64, 56)):
        cases.append(_case("instance", (1, c, side, side), _instance, channels=c))
    return cases


def _permuted(b: Builder, x: str, size: Shape, order: tuple[int, ...]) -> str:
    """A transpose, and the same shape again; a reshape keeps transposes from cancelling out."""
    y = b.add("Transpose", x, perm=order)
    return b.add("Reshape", y, b.constant(np.array(size)))


def _views(b: Builder, x: str, size: Shape) -> str:
    for wanted in ((prod(size),), size):
        x = b.add("Reshape", x, b.constant(np.array(wanted)))
    return b.add("Neg", x)


def _tiny(b: Builder, x: str, width: int) -> str:
    """Operators of several kinds on next to nothing: starting them is what takes time."""
    y = b.add("Softmax", b.add("Mul", x, b.weight(width)), axis=-1)
    half = b.add("Split", y, axis=-1, outputs=2)
    y = b.add("Concat", half, f"{half}.1", axis=-1)
    y = b.add("Tanh", b.add("Add", y, x))
    return b.add("Sub", y, b.add("ReduceMean", y, axes=[-1], keepdims=1))


def _halves(b: Builder, x: str, axis: int) -> str:
    y = b.add("Split", x, axis=axis, outputs=2)
    return b.add("Concat", f"{y}.1", y, axis=axis)


def _slices(b: Builder, x: str, size: Shape) -> str:
    half = size[-1] // 2
    at = [b.constant(np.array([v])) for v in (0, half, 2 * half, len(size) - 1)]
    parts = [b.add("Slice", x, at[i], at[i + 1], at[3]) for i in (0, 1)]
    return b.add("Concat", parts[1], parts[0], axis=-1)


def _gather(b: Builder, x: str, rows: int) -> str:
    order = np.random.default_rng(rows).permutation(rows)
    return b.add("Gather", x, b.constant(order), axis=0)


def _elements(b: Builder, x: str, size: Shape) -> str:
    order = np.random.default_rng(0).integers(0, size[0], size)
    return b.add("GatherElements", x, b.constant(order), axis=0)


def _scatter(b: Builder, x: str, size: Shape) -> str:
    order = np.random.default_rng(0).permutation(size[0])[:, None]
    return b.add("ScatterND", x, b.constant(order), b.add("Neg", x))


def _pad(b: Builder, x: str, size: Shape) -> str:
    zeros = [0] * (len(size) - 1)
    y = b.add("Pad", x, b.constant(np.array([*zeros, 1, *zeros, 1])))
    at = [b.constant(np.array([v])) for v in (1, size[-1] + 1, len(size) - 1)]
    return b.add("Slice", y, *at)


def _expand(b: Builder, x: str, size: Shape) -> str:
    wide = b.add("Expand", x, b.constant(np.array([4, *size])))
    at = [b.constant(np.array([v])) for v in (1, 2, 0)]
    return b.add("Reshape", b.add("Slice", wide, *at), b.constant(np.array(size)))


def _bag(b: Builder, x: str, length: int, size: Shape) -> str:
    """Rows of a table, summed up by sample: numbers of words from the input, a part of the sums."""
    y = b.add("Mul", b.add("Sigmoid", x), b.constant(np.array(size[0] - 1, np.float32)))
    y = b.add("Gather", b.weight(*size), b.add("Cast", y, to=7))
    at = [b.constant(np.array([v])) for v in (0, length, 1)]
    return b.add("Slice", b.add("ReduceSum", y, at[2], keepdims=0), *at)


def _sort(b: Builder, x: str) -> str:
    width = b.constant(np.array([32]))
    y = b.add("TopK", x, width, outputs=2, axis=-1)
    return b.add("Add", x, b.add("ReduceMax", y, axes=[-1], keepdims=1))


def moves() -> list[Case]:
    """Operators that only move data, and those that do nothing."""
    cases = []
    shape: Shape
    for shape in ((1, 32, 4, 16), (1, 128, 4, 32), (1, 197, 12, 64), (1, 512, 8, 64)):
        cases.append(_case("heads-apart", shape, _permuted, size=shape, order=(0, 2, 1, 3)))
    for shape in ((4, 32, 48), (1, 128, 512), (1, 768, 196), (8, 256, 192)):
        cases.append(_case("transpose", shape, _permuted, size=shape, order=(0, 2, 1)))
        cases.append(_case("halves", shape, _halves, axis=1))
        cases.append(_case("slices", shape, _slices, size=shape))
        cases.append(_case("pad", shape, _pad, size=shape))
        cases.append(_case("expand", shape, _expand, size=shape))
    for shape in ((1, 64), (8, 8)):
        cases.append(_case("view", shape, _views, size=shape))
        cases.append(_case("tiny", shape, _tiny, width=shape[-1]))
    for shape in ((32, 64), (512, 128), (1000, 768)):
        cases.append(_case("gather", shape, _gather, rows=shape[0]))
        cases.append(_case("elements", shape, _elements, size=shape))
        cases.append(_case("scatter", shape, _scatter, size=shape))
    for shape in ((16, 256), (128, 1000)):
        cases.append(_case("sort", shape, _sort))
    for shape, table in (((128, 16), (2000, 32)), ((32, 8), (5000, 64))):
        cases.append(_case("bag", shape, _bag, length=shape[1], size=table))
    return cases


_WEIGHT = 3.0
"""What the error of a layer counts: here operators run as they do in models."""


def _linear(b: Builder, x: str, inner: int, outer: int) -> str:
    return b.add("Add", b.add("MatMul", x, b.weight(inner, outer, inner=inner)), b.weight(outer))


def _encoder(b: Builder, x: str, length: int, heads: int, width: int) -> str:
    """A layer of a transformer: attention, then two products around a Gelu, with sums and norms."""
    whole = heads * width
    apart = b.constant(np.array([1, length, heads, width]))

    def heads_of(y: str, order: list[int]) -> str:
        return b.add("Transpose", b.add("Reshape", _linear(b, y, whole, whole), apart), perm=order)

    query, value = heads_of(x, [0, 2, 1, 3]), heads_of(x, [0, 2, 1, 3])
    scores = b.add("MatMul", query, heads_of(x, [0, 2, 3, 1]))
    scores = b.add("Div", scores, b.constant(np.array(sqrt(width), np.float32)))
    y = b.add("MatMul", b.add("Softmax", scores, axis=-1), value)
    y = b.add("Transpose", y, perm=[0, 2, 1, 3])
    y = b.add("Reshape", y, b.constant(np.array([1, length, whole])))
    x = norm_block(b, b.add("Add", _linear(b, y, whole, whole), x), whole)
    y = _linear(b, gelu_block(b, _linear(b, x, whole, 4 * whole)), 4 * whole, whole)
    return norm_block(b, b.add("Add", y, x), whole)


def _between(b: Builder, x: str, channels: int, hidden: int, groups: int) -> str:
    """Pointwise, 3x3, pointwise, and the input added: bottlenecks, plain and inverted."""
    y = b.add(
        "Relu", b.add("Conv", x, b.weight(hidden, channels, 1, 1, inner=channels), b.weight(hidden))
    )
    y = conv_block(b, y, hidden, 3, groups)
    y = b.add("Conv", y, b.weight(channels, hidden, 1, 1, inner=hidden), b.weight(channels))
    return b.add("Relu", b.add("Add", y, x))


def _branches(b: Builder, x: str, channels: int) -> str:
    """Convolutions of three sizes side by side, and a pool."""
    part = channels // 4
    parts = []
    for size in (1, 3, 5):
        y = b.add("Conv", x, b.weight(part, channels, 1, 1, inner=channels), b.weight(part))
        parts.append(conv_block(b, b.add("Relu", y), part, size))
    y = pool_block(b, x, "AveragePool", 3)
    y = b.add("Conv", y, b.weight(part, channels, 1, 1, inner=channels), b.weight(part))
    return b.add("Concat", *parts, b.add("Relu", y), axis=1)


def layers() -> list[Case]:
    """Layers of several operators, where each finds the caches as others left them."""
    cases = []
    for length, heads, width in (
        (64, 4, 64), (100, 6, 32), (196, 3, 64), (24, 2, 48), (160, 8, 64), (8, 2, 16), (16, 2, 32),
    ):  # fmt: skip
        sizes: dict[str, Any] = {"length": length, "heads": heads, "width": width}
        shape = (1, length, heads * width)
        cases.append(_case("encoder", shape, _encoder, weight=_WEIGHT, **sizes))
    for c, hidden, side in ((128, 32, 28), (96, 24, 56), (320, 80, 14), (512, 128, 14)):
        sizes = {"channels": c, "hidden": hidden, "groups": 1}
        cases.append(_case("bottleneck", (1, c, side, side), _between, weight=_WEIGHT, **sizes))
    for c, hidden, side in ((16, 64, 48), (40, 240, 20), (80, 480, 10), (32, 192, 28), (16, 32, 7)):
        sizes = {"channels": c, "hidden": hidden, "groups": hidden}
        cases.append(_case("inverted", (1, c, side, side), _between, weight=_WEIGHT, **sizes))
    for c, side in ((64, 35), (192, 17), (320, 8), (256, 28)):
        cases.append(_case("branches", (1, c, side, side), _branches, channels=c))
    return cases


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
