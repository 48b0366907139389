"""Points of the grid: what works on elements and rows, and what only moves data."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod, sqrt

import numpy as np

from dnnp.core.extras.operator_chains import Block, Builder, Case, Shape


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
    cases = []
    flat: tuple[Shape, ...] = ((16, 64), (64, 128), (128, 768), (512, 2048))
    blocks: dict[str, Callable[[Shape], Block]] = {
        "arithmetic": lambda s: _pair,
        "vector": lambda s: partial(_vector, width=s[-1]),
        "scalar": lambda s: _scalar,
        "divide": lambda s: _divide,
        "power": lambda s: _power,
        "where": lambda s: _where,
        "cast": lambda s: _cast,
        "tanh": lambda s: partial(_unary, ops="Tanh"),
        "sigmoid": lambda s: partial(_unary, ops="Sigmoid"),
        "erf": lambda s: partial(_unary, ops="Erf"),
        "exp": lambda s: partial(_unary, ops="Exp Log"),
        "relu": lambda s: partial(_unary, ops="Relu Neg"),
    }
    for kind, made in blocks.items():
        cases += [Case(kind, shape, made(shape)) for shape in flat]
    for heads, length in ((4, 32), (4, 128), (12, 197)):
        block = partial(_masked, length=length)
        cases.append(Case("mask", (heads, length, length), block))
    for channels, side in ((64, 28), (16, 112)):
        block = partial(_channel, channels=channels)
        cases.append(Case("channel", (1, channels, side, side), block))
    cases.append(Case("arithmetic", (128, 768), _pair, "float16"))
    cases.append(Case("arithmetic", (128, 768), _pair, "float64"))
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
        cases.append(Case("softmax", shape, _softmax))
        cases.append(Case("norm", shape, partial(norm_block, width=shape[-1])))
        cases.append(Case("norm-sum", shape, partial(_norm_sum, width=shape[-1])))
        cases.append(Case("gelu", shape, gelu_block))
        cases.append(Case("reduce", shape, partial(_mean, op="ReduceMean")))
        cases.append(Case("reduce", shape, partial(_mean, op="ReduceMax")))
    for channels, side in ((32, 32), (64, 56)):
        block = partial(_instance, channels=channels)
        cases.append(Case("instance", (1, channels, side, side), block))
    return cases


def _permuted(b: Builder, x: str, shape: Shape, order: tuple[int, ...]) -> str:
    """A transpose, and the same shape again; a reshape keeps transposes from cancelling out."""
    y = b.add("Transpose", x, perm=order)
    return b.add("Reshape", y, b.constant(np.array(shape)))


def _views(b: Builder, x: str, shape: Shape) -> str:
    for wanted in ((prod(shape),), shape):
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


def _slices(b: Builder, x: str, shape: Shape) -> str:
    half = shape[-1] // 2
    at = [b.constant(np.array([v])) for v in (0, half, 2 * half, len(shape) - 1)]
    parts = [b.add("Slice", x, at[i], at[i + 1], at[3]) for i in (0, 1)]
    return b.add("Concat", parts[1], parts[0], axis=-1)


def _gather(b: Builder, x: str, rows: int) -> str:
    order = np.random.default_rng(rows).permutation(rows)
    return b.add("Gather", x, b.constant(order), axis=0)


def _elements(b: Builder, x: str, shape: Shape) -> str:
    order = np.random.default_rng(0).integers(0, shape[0], shape)
    return b.add("GatherElements", x, b.constant(order), axis=0)


def _scatter(b: Builder, x: str, shape: Shape) -> str:
    order = np.random.default_rng(0).permutation(shape[0])[:, None]
    return b.add("ScatterND", x, b.constant(order), b.add("Neg", x))


def _pad(b: Builder, x: str, shape: Shape) -> str:
    zeros = [0] * (len(shape) - 1)
    y = b.add("Pad", x, b.constant(np.array([*zeros, 1, *zeros, 1])))
    at = [b.constant(np.array([v])) for v in (1, shape[-1] + 1, len(shape) - 1)]
    return b.add("Slice", y, *at)


def _expand(b: Builder, x: str, shape: Shape) -> str:
    wide = b.add("Expand", x, b.constant(np.array([4, *shape])))
    at = [b.constant(np.array([v])) for v in (1, 2, 0)]
    return b.add("Reshape", b.add("Slice", wide, *at), b.constant(np.array(shape)))


def _sort(b: Builder, x: str) -> str:
    width = b.constant(np.array([32]))
    y = b.add("TopK", x, width, outputs=2, axis=-1)
    return b.add("Add", x, b.add("ReduceMax", y, axes=[-1], keepdims=1))


def moves() -> list[Case]:
    """Operators that only move data, and those that do nothing."""
    cases = []
    shape: Shape
    for shape in ((1, 32, 4, 16), (1, 128, 4, 32), (1, 197, 12, 64), (1, 512, 8, 64)):
        block = partial(_permuted, shape=shape, order=(0, 2, 1, 3))
        cases.append(Case("heads-apart", shape, block))
    for shape in ((4, 32, 48), (1, 128, 512), (1, 768, 196), (8, 256, 192)):
        block = partial(_permuted, shape=shape, order=(0, 2, 1))
        cases.append(Case("transpose", shape, block))
        cases.append(Case("halves", shape, partial(_halves, axis=1)))
        cases.append(Case("slices", shape, partial(_slices, shape=shape)))
        cases.append(Case("pad", shape, partial(_pad, shape=shape)))
        cases.append(Case("expand", shape, partial(_expand, shape=shape)))
    for shape in ((1, 64), (8, 8)):
        cases.append(Case("view", shape, partial(_views, shape=shape)))
        cases.append(Case("tiny", shape, partial(_tiny, width=shape[-1])))
    for shape in ((32, 64), (512, 128), (1000, 768)):
        cases.append(Case("gather", shape, partial(_gather, rows=shape[0])))
        cases.append(Case("elements", shape, partial(_elements, shape=shape)))
        cases.append(Case("scatter", shape, partial(_scatter, shape=shape)))
    for shape in ((16, 256), (128, 1000)):
        cases.append(Case("sort", shape, _sort))
    return cases
