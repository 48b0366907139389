"""Swin Transformer shapes for planning, with every head and primitive as a node (opset 13).

Liu et al., "Swin Transformer: Hierarchical Vision Transformer using Shifted Windows", 2021;
sizes of Table IV in Zhang et al., "Moirai: Towards Optimal Placement for Distributed Inference on
Heterogeneous Devices", 2023, which gives the number of layers, the width of the first stage and
one number of heads. The division of the layers into stages is chosen to meet its parameter counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from dnnp.samples.builder import Builder
from dnnp.samples.layers import gelu, layer_norm, linear
from dnnp.samples.shapes import FLOAT16, Value
from dnnp.samples.weights import Sample

WINDOW = 7
SHIFT = WINDOW // 2


@dataclass(frozen=True)
class Size:
    """Hyperparameters."""

    depths: tuple[int, int, int, int]
    """Layers of each stage; the width doubles from stage to stage."""
    hidden: int
    heads: int
    image: int = 1100
    patch: int = 4
    classes: int = 1000


SIZES = {
    "1.8b": Size((2, 2, 26, 2), 512, 16),
    "6.6b": Size((2, 2, 40, 4), 768, 24),
    "13b": Size((2, 2, 48, 4), 1024, 32),
}


def _relative_positions() -> NDArray[np.int64]:
    """Return the row of the bias table for each pair of pixels in a window."""
    pixels = np.indices((WINDOW, WINDOW)).reshape(2, -1)
    offset = pixels[:, :, None] - pixels[:, None, :] + WINDOW - 1
    return (offset[0] * (2 * WINDOW - 1) + offset[1]).reshape(-1).astype(np.int64)


def _roll(b: Builder, x: Value, shift: int) -> Value:
    """Roll [1, height, width, channels] by `shift` pixels along both image axes."""
    for axis in (1, 2):
        size = x.shape[axis]
        cut = -shift % size
        x = b.concat([b.slice(x, axis, cut, size), b.slice(x, axis, 0, cut)], axis=axis)
    return x


def _partition(b: Builder, x: Value) -> Value:
    """Turn [1, height, width, channels] into [windows, pixels, channels]."""
    _, height, width, channels = x.shape
    rows, columns = height // WINDOW, width // WINDOW
    x = b.transpose(b.reshape(x, [rows, WINDOW, columns, WINDOW, channels]), 0, 2, 1, 3, 4)
    return b.reshape(x, [rows * columns, WINDOW * WINDOW, channels])


def _restore(b: Builder, x: Value, height: int, width: int) -> Value:
    """Undo `_partition`."""
    rows, columns, channels = height // WINDOW, width // WINDOW, x.shape[2]
    x = b.transpose(b.reshape(x, [rows, columns, WINDOW, WINDOW, channels]), 0, 2, 1, 3, 4)
    return b.reshape(x, [1, height, width, channels])


def _attention(b: Builder, heads: int, x: Value, mask: Value | None) -> Value:
    """Add attention within windows, with a learned bias for each relative position."""
    pixels, channels = x.shape[1:]
    width = channels // heads
    table = b.weight("relative_position_bias_table", ((2 * WINDOW - 1) ** 2, heads))
    bias = b.gather(table, b.const(_relative_positions()))
    bias = b.transpose(b.reshape(bias, [pixels, pixels, heads]), 2, 0, 1)
    results = []
    for head, head_bias in enumerate(b.split(bias, heads, axis=0)):
        with b.scope(f"head.{head}"):
            query, key, value = (linear(b, x, width, name) for name in ("query", "key", "value"))
            scores = b.matmul(b.mul(query, 1 / sqrt(width)), b.transpose(key, 0, 2, 1))
            scores = b.add(scores, head_bias)
            if mask is not None:
                scores = b.add(scores, mask)
            results.append(b.matmul(b.softmax(scores), value))
    return linear(b, b.concat(results, axis=2), channels, "proj")


def _block(b: Builder, size: Size, x: Value, mask: Value | None) -> Value:
    """Add one layer to [1, height, width, channels]; a mask means shifted windows."""
    _, height, width, channels = x.shape
    y = layer_norm(b, x, "norm1")
    down, right = -height % WINDOW, -width % WINDOW
    with b.scope("attn"):
        if down or right:
            y = b.op("Pad", y, b.ints([0, 0, 0, 0, 0, down, right, 0]))
        if mask is not None:
            y = _roll(b, y, -SHIFT)
        y = _attention(b, size.heads, _partition(b, y), mask)
        y = _restore(b, y, height + down, width + right)
        if mask is not None:
            y = _roll(b, y, SHIFT)
        if down or right:
            y = b.slice(b.slice(y, 1, 0, height), 2, 0, width)
        x = b.add(x, y)
    y = layer_norm(b, x, "norm2")
    with b.scope("mlp"):
        y = gelu(b, linear(b, y, 4 * channels, "fc1"))
        return b.add(x, linear(b, y, channels, "fc2"))


def _merge(b: Builder, x: Value) -> Value:
    """Halve the image and double the channels."""
    _, height, width, channels = x.shape
    if height % 2 or width % 2:
        x = b.op("Pad", x, b.ints([0, 0, 0, 0, 0, height % 2, width % 2, 0]))
    parts = [
        b.slice(b.slice(x, 1, row, x.shape[1], 2), 2, column, x.shape[2], 2)
        for column in range(2)
        for row in range(2)
    ]
    x = layer_norm(b, b.concat(parts, axis=3), "norm")
    return linear(b, x, 2 * channels, "reduction", bias=False)


def build(size: Size, seed: int = 0) -> Sample:
    """Return the classifier without weights."""
    b = Builder("swin", opset=13, ir_version=8, seed=seed, dtype=FLOAT16, planning=True)
    x = b.input("pixel_values", (1, 3, size.image, size.image), FLOAT16)
    with b.scope("patch_embed"):
        kernel = (size.patch, size.patch)
        inputs = x, b.weight("weight", (size.hidden, 3, *kernel)), b.weight("bias", (size.hidden,))
        window = {"kernel_shape": kernel, "pads": [0, 0, 0, 0], "strides": kernel}
        x = b.op("Conv", *inputs, dilations=[1, 1], group=1, **window)
        x = layer_norm(b, b.transpose(x, 0, 2, 3, 1), "norm")
    for stage, depth in enumerate(size.depths):
        with b.scope(f"layers.{stage}"):
            if stage:
                with b.scope("downsample"):
                    x = _merge(b, x)
            extent = x.shape[1] + -x.shape[1] % WINDOW
            windows, pixels = (extent // WINDOW) ** 2, WINDOW * WINDOW
            mask = b.weight("attn_mask", (windows, pixels, pixels), trained=False)
            for index in range(depth):
                with b.scope(f"blocks.{index}"):
                    x = _block(b, size, x, mask if index % 2 else None)
    x = layer_norm(b, x, "norm")
    pooled = b.reduce("ReduceMean", x, [1, 2], keepdims=False)
    b.output("logits", linear(b, pooled, size.classes, "head"))
    return b.build()
