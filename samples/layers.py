"""Layers that several sample models share."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod, sqrt

import numpy as np

from dnnp.samples.builder import Builder
from dnnp.samples.shapes import FLOAT, INT64, Value
from dnnp.samples.weights import Fill, centred, normal


@dataclass(frozen=True)
class Transformer:
    """Hyperparameters of a transformer that reads words."""

    layers: int
    hidden: int
    heads: int
    vocabulary: int
    length: int
    """Words that are read."""


RELU_VARIANCE = 0.34
"""Variance of max(x, 0) for a standard normal x."""


def linear(
    b: Builder, x: Value, width: int, name: str, *, bias: bool = True, gain: float = 1.0
) -> Value:
    """Add a projection of the last axis to `width`: a MatMul and, with a bias, an Add."""
    fan_in = x.shape[-1]
    with b.scope(name):
        weight = b.weight("weight", (fan_in, width), normal(gain / sqrt(fan_in)))
        y = b.matmul(x, weight)
        return b.add(y, b.weight("bias", (width,), normal(0.1))) if bias else y


def norm_weights(b: Builder, width: int) -> tuple[Value, Value]:
    """Return scale and shift of a normalisation; random, so that no two are equal."""
    return b.weight("weight", (width,), normal(0.1, 1.0)), b.weight("bias", (width,), normal(0.1))


def layer_norm(b: Builder, x: Value, name: str, epsilon: float = 1e-5) -> Value:
    """Add a layer normalisation: one node from opset 17 on, nine primitive nodes before."""
    with b.scope(name):
        scale, shift = norm_weights(b, x.shape[-1])
        if b.opset >= 17:
            return b.op("LayerNormalization", x, scale, shift, axis=-1, epsilon=epsilon)
        centre = b.sub(x, b.reduce("ReduceMean", x, [-1]))
        power = b.op("Pow", centre, b.const(2.0, x.dtype))
        variance = b.reduce("ReduceMean", power, [-1])
        root = b.op("Sqrt", b.add(variance, epsilon))
        return b.add(b.mul(b.div(centre, root), scale), shift)


def gelu(b: Builder, x: Value, name: str = "act") -> Value:
    """Add a GELU: one node from opset 20 on, five primitive nodes (with Erf) before."""
    with b.scope(name):
        if b.opset >= 20:
            return b.op("Gelu", x)
        shifted = b.add(b.op("Erf", b.div(x, sqrt(2.0))), 1.0)
        return b.mul(b.mul(x, shifted), 0.5)


def gelu_tanh(b: Builder, x: Value, name: str = "act") -> Value:
    """Add the tanh form of GELU that GPT-2 uses, in eight primitive nodes."""
    with b.scope(name):
        cube = b.op("Pow", x, b.const(3.0, x.dtype))
        inner = b.mul(b.add(x, b.mul(cube, 0.044715)), sqrt(2.0 / np.pi))
        return b.mul(b.mul(x, 0.5), b.add(b.op("Tanh", inner), 1.0))


def quick_gelu(b: Builder, x: Value, name: str = "act") -> Value:
    """Add the sigmoid form of GELU that CLIP uses."""
    with b.scope(name):
        return b.mul(x, b.op("Sigmoid", b.mul(x, 1.702)))


def split_heads(b: Builder, x: Value, heads: int) -> Value:
    """Turn [batch, length, width] into [batch, heads, length, width / heads]."""
    batch, length, width = x.shape
    return b.transpose(b.reshape(x, [batch, length, heads, width // heads]), 0, 2, 1, 3)


def merge_heads(b: Builder, x: Value) -> Value:
    """Turn [batch, heads, length, size] into [batch, length, heads * size]."""
    batch, heads, length, size = x.shape
    return b.reshape(b.transpose(x, 0, 2, 1, 3), [batch, length, heads * size])


def project_heads(b: Builder, x: Value, heads: int, *names: str, bias: bool = True) -> list[Value]:
    """Add projections of `x` that are as wide, one for each name, and split them into heads."""
    return [split_heads(b, linear(b, x, x.shape[-1], name, bias=bias), heads) for name in names]


def attend(b: Builder, query: Value, key: Value, value: Value, bias: Value | None) -> Value:
    """Add softmax(q k^T / sqrt(d) + bias) v for tensors of [batch, heads, length, d]."""
    scores = b.matmul(query, b.transpose(key, 0, 1, 3, 2))
    scores = b.div(scores, sqrt(query.shape[-1]))
    if bias is not None:
        scores = b.add(scores, bias)
    return b.matmul(b.softmax(scores), value)


def self_attention(
    b: Builder, x: Value, heads: int, mask: Value | None, *names: str, bias: bool = True
) -> Value:
    """Add attention without its last projection; `names` are those of query, key and value."""
    query, key, value = project_heads(b, x, heads, *names, bias=bias)
    return merge_heads(b, attend(b, query, key, value, mask))


def padding_mask(b: Builder, present: Value, *axes: int) -> Value:
    """Return 0 for a word, a large negative number for padding; `axes` are put in."""
    return b.mul(b.sub(1.0, b.op("Cast", b.unsqueeze(present, *axes), to=FLOAT)), -10000.0)


def add_positions(
    b: Builder, x: Value, rows: int, name: str = "weight", fill: Fill | None = None
) -> Value:
    """Add a learned vector for each place to [batch, length, width]; the table has `rows`."""
    places = b.weight(name, (rows, x.shape[-1]), fill)
    return b.add(x, b.gather(places, b.const(np.arange(x.shape[1])[None], INT64)))


def patches(b: Builder, image: Value, width: int, size: int, name: str) -> Value:
    """Cut an image into squares and project each: [1, squares, width]."""
    x = conv(b, image, width, size, name, stride=size, padding=0, rectified=False)
    return b.transpose(b.reshape(x, [1, width, -1]), 0, 2, 1)


def conv(
    b: Builder,
    x: Value,
    channels: int,
    kernel: int | tuple[int, int],
    name: str,
    *,
    stride: int = 1,
    padding: int | None = None,
    group: int = 1,
    bias: bool = False,
    gain: float = 1.0,
    rectified: bool = True,
) -> Value:
    """Add a two-dimensional convolution that keeps the scale of its input.

    `rectified` says that the input comes from a ReLU, `gain` multiplies the scale. Without a stride
    the default padding keeps the size.
    """
    window = (kernel, kernel) if isinstance(kernel, int) else kernel
    edge = [size // 2 if padding is None else padding for size in window]
    shape = (channels, x.shape[1] // group, *window)
    std = gain / sqrt(prod(shape[1:]) * (RELU_VARIANCE if rectified else 1.0))
    with b.scope(name):
        inputs = [x, b.weight("weight", shape, centred(std))]
        if bias:
            inputs.append(b.weight("bias", (channels,), normal(0.1)))
        return b.op(
            "Conv",
            *inputs,
            dilations=[1, 1],
            group=group,
            kernel_shape=window,
            pads=[*edge, *edge],
            strides=[stride, stride],
        )


def batch_norm(b: Builder, x: Value, name: str, epsilon: float = 1e-5, gain: float = 1.0) -> Value:
    """Add a batch normalisation with statistics near zero mean and unit variance."""
    channels = (x.shape[1],)
    with b.scope(name):
        return b.op(
            "BatchNormalization",
            x,
            b.weight("weight", channels, normal(0.1 * gain, gain)),
            b.weight("bias", channels, normal(0.1)),
            b.weight("running_mean", channels, normal(0.1), trained=False),
            b.weight("running_var", channels, normal(0.1, 1.0), trained=False),
            epsilon=epsilon,
        )


def classify(b: Builder, x: Value, classes: int, name: str) -> Value:
    """Add global average pooling, Flatten and a Gemm to `classes` logits."""
    pooled = b.op("Flatten", b.op("GlobalAveragePool", x), axis=1)
    width = pooled.shape[1]
    with b.scope(name):
        weight = b.weight("weight", (classes, width), normal(4.0 / sqrt(width)))
        return b.op("Gemm", pooled, weight, b.weight("bias", (classes,), normal(0.1)), transB=1)
