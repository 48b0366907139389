"""RAFT-like optical flow: a Loop refines the flow, an If chooses the upsampling (opset 17).

Teed and Deng, "RAFT: Recurrent All-Pairs Field Transforms for Optical Flow", 2020. The loop body
reads the correlation volumes, the context and its weights from the outer graph, as do both
branches of the If.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np

from dnnp.samples.builder import Builder
from dnnp.samples.layers import batch_norm, conv, norm_weights
from dnnp.samples.shapes import ABSENT, BOOL, INT64, Value
from dnnp.samples.weights import Sample

LEVELS = 4
"""Resolutions of the correlation volume."""
SCALE = 8
"""Image pixels for each pixel of the flow inside the loop."""


@dataclass(frozen=True)
class Size:
    """Hyperparameters."""

    divisor: int
    """Every channel count of the paper is divided by this."""
    height: int
    width: int
    iterations: int
    radius: int
    """Of the correlation lookup."""


SMALL = Size(divisor=4, height=128, width=160, iterations=4, radius=2)
FULL = Size(divisor=1, height=368, width=496, iterations=12, radius=4)


def _conv(
    b: Builder, x: Value, channels: int, kernel: int | tuple[int, int], name: str, **how: Any
) -> Value:
    return conv(b, x, channels, kernel, name, bias=True, **how)


class _Encoder:
    """Residual network to one eighth of the resolution; weights are shared by all calls."""

    def __init__(self, b: Builder, size: Size, kind: str) -> None:
        self.b, self.size, self.kind = b, size, kind

    def _norm(self, x: Value, name: str) -> Value:
        if self.kind == "batch":
            return batch_norm(self.b, x, name)
        with self.b.scope(name):
            scale, shift = norm_weights(self.b, x.shape[1])
            return self.b.op("InstanceNormalization", x, scale, shift, epsilon=1e-5)

    def _residual(self, x: Value, channels: int, stride: int) -> Value:
        b = self.b
        y = b.op("Relu", self._norm(_conv(b, x, channels, 3, "conv1", stride=stride), "norm1"))
        y = b.op("Relu", self._norm(_conv(b, y, channels, 3, "conv2"), "norm2"))
        if stride > 1:
            with b.scope("downsample"):
                x = self._norm(_conv(b, x, channels, 1, "0", stride=stride), "1")
        return b.op("Relu", b.add(x, y))

    def __call__(self, image: Value) -> Value:
        b, divisor = self.b, self.size.divisor
        x = _conv(b, image, 64 // divisor, 7, "conv1", stride=2, rectified=False)
        x = b.op("Relu", self._norm(x, "norm1"))
        for layer, (channels, stride) in enumerate(((64, 1), (96, 2), (128, 2))):
            for block in range(2):
                with b.scope(f"layer{layer + 1}", f"{block}"):
                    x = self._residual(x, channels // divisor, 1 if block else stride)
        return _conv(b, x, 256 // divisor, 1, "conv2")


def _correlate(b: Builder, first: Value, second: Value) -> list[Value]:
    """Return [pixels, 1, height, width] products of all pixel pairs, at each resolution."""
    _, channels, height, width = first.shape
    pixels = height * width
    left = b.transpose(b.reshape(first, [1, channels, pixels]), 0, 2, 1)
    product = b.matmul(left, b.reshape(second, [1, channels, pixels]))
    level = b.reshape(b.div(product, sqrt(channels)), [pixels, 1, height, width])
    levels = [level]
    for _ in range(LEVELS - 1):
        level = b.op("AveragePool", level, kernel_shape=[2, 2], strides=[2, 2])
        levels.append(level)
    return levels


def _lookup(b: Builder, size: Size, levels: list[Value], coords: Value) -> Value:
    """Sample each correlation level in a square window around `coords`, [1, 2, h, w]."""
    _, _, height, width = coords.shape
    window = 2 * size.radius + 1
    steps = np.arange(-size.radius, size.radius + 1, dtype=np.float32)
    delta = b.const(np.stack(np.meshgrid(steps, steps), axis=-1)[None])
    centre = b.reshape(b.transpose(coords, 0, 2, 3, 1), [height * width, 1, 1, 2])
    samples = []
    for index, level in enumerate(levels):
        extent = np.array([level.shape[3] - 1, level.shape[2] - 1], np.float32)
        places = b.add(b.div(centre, float(2**index)), delta)
        grid = b.sub(b.mul(places, b.const(2 / extent)), 1.0)
        taken = b.op(
            "GridSample", level, grid, align_corners=1, mode="bilinear", padding_mode="zeros"
        )
        samples.append(b.reshape(taken, [1, height, width, window * window]))
    return b.transpose(b.concat(samples, axis=3), 0, 3, 1, 2)


def _motion(b: Builder, size: Size, flow: Value, corr: Value) -> Value:
    def layer(x: Value, channels: int, kernel: int, name: str, rectified: bool = True) -> Value:
        y = _conv(b, x, channels // size.divisor, kernel, name, rectified=rectified)
        return b.op("Relu", y)

    corr = layer(layer(corr, 256, 1, "convc1", False), 192, 3, "convc2")
    moved = layer(layer(flow, 128, 7, "convf1", False), 64, 3, "convf2")
    joined = layer(b.concat([corr, moved], axis=1), 128 - 2 * size.divisor, 3, "conv")
    return b.concat([joined, flow], axis=1)


def _gru(b: Builder, hidden: Value, x: Value) -> Value:
    """Add the separable convolutional GRU: one step along rows, one along columns."""
    channels = hidden.shape[1]
    for step, kernel in ((1, (1, 5)), (2, (5, 1))):

        def gate(y: Value, name: str, act: str, kernel: tuple[int, int] = kernel) -> Value:
            return b.op(act, _conv(b, y, channels, kernel, f"conv{name}", rectified=False))

        joined = b.concat([hidden, x], axis=1)
        update, reset = gate(joined, f"z{step}", "Sigmoid"), gate(joined, f"r{step}", "Sigmoid")
        fresh = gate(b.concat([b.mul(reset, hidden), x], axis=1), f"q{step}", "Tanh")
        hidden = b.add(b.mul(b.sub(1.0, update), hidden), b.mul(update, fresh))
    return hidden


def _head(b: Builder, x: Value, hidden: int, channels: int, kernel: int) -> Value:
    x = b.op("Relu", _conv(b, x, hidden, 3, "conv1", rectified=False))
    return _conv(b, x, channels, kernel, "conv2")


def _convex(b: Builder, size: Size, flow: Value, hidden: Value) -> Value:
    """Upsample by weighted means of 3x3 neighbours, with learned weights."""
    _, _, height, width = flow.shape
    with b.scope("mask"):
        mask = _head(b, hidden, 256 // size.divisor, 9 * SCALE * SCALE, 1)
    mask = b.reshape(mask, [1, 1, 9, SCALE, SCALE, height, width])
    mask = b.op("Softmax", mask, axis=2)
    padded = b.op("Pad", b.mul(flow, float(SCALE)), b.ints([0, 0, 1, 1, 0, 0, 1, 1]))
    taps = [
        b.slice(b.slice(padded, 2, row, row + height), 3, column, column + width)
        for row in range(3)
        for column in range(3)
    ]
    patches = b.reshape(b.concat(taps, axis=1), [1, 9, 2, 1, 1, height, width])
    patches = b.transpose(patches, 0, 2, 1, 3, 4, 5, 6)
    mixed = b.reduce("ReduceSum", b.mul(mask, patches), [2], keepdims=False)
    mixed = b.transpose(mixed, 0, 1, 4, 2, 5, 3)
    return b.reshape(mixed, [1, 2, SCALE * height, SCALE * width])


def _bilinear(b: Builder, flow: Value) -> Value:
    scales = b.const(np.array([1, 1, SCALE, SCALE], np.float32))
    how = {"mode": "linear", "coordinate_transformation_mode": "align_corners"}
    return b.mul(b.op("Resize", flow, ABSENT, scales, **how), float(SCALE))


def build(size: Size, seed: int = 0) -> Sample:
    """Return the model; its output is the flow in pixels, [1, 2, height, width]."""
    b = Builder("raft", opset=17, ir_version=8, seed=seed)
    shape = (1, 3, size.height, size.width)
    first, second = b.input("image1", shape), b.input("image2", shape)
    convex = b.input("convex_upsampling", (), BOOL, (0, 1))
    with b.scope("fnet"):
        features = _Encoder(b, size, "instance")
        pair = [features(first), features(second)]
    with b.scope("cnet"):
        hidden, context = b.split(_Encoder(b, size, "batch")(first), 2, axis=1)
    hidden, context = b.op("Tanh", hidden), b.op("Relu", context)
    with b.scope("corr"):
        levels = _correlate(b, *pair)
    height, width = hidden.shape[2:]
    rows, columns = np.indices((height, width), dtype=np.float32)
    start = b.const(np.stack([columns, rows])[None])

    def refine(values: Sequence[Value]) -> list[Value]:
        _, hidden, coords = values
        with b.scope("corr"):
            corr = _lookup(b, size, levels, coords)
        flow = b.sub(coords, start)
        with b.scope("encoder"):
            motion = _motion(b, size, flow, corr)
        with b.scope("gru"):
            hidden = _gru(b, hidden, b.concat([context, motion], axis=1))
        with b.scope("flow_head"):
            delta = _head(b, hidden, 256 // size.divisor, 2, 3)
        moved = b.reduce("ReduceMean", b.op("Abs", delta), [0, 1, 2, 3], keepdims=False)
        go_on = b.op("Greater", moved, b.const(1e-3, moved.dtype))
        return [go_on, hidden, b.add(coords, delta)]

    with b.scope("update_block"):
        trips = b.const(size.iterations, INT64)
        hidden, coords = b.loop(trips, [hidden, start], refine)
    flow = b.sub(coords, start)
    with b.scope("upsample"):
        (result,) = b.if_(
            convex, lambda _: [_convex(b, size, flow, hidden)], lambda _: [_bilinear(b, flow)]
        )
    b.output("flow", result)
    return b.build()
