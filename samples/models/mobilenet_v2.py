"""MobileNet v2: depthwise convolutions in inverted residuals (opset 13).

Sandler et al., "MobileNetV2: Inverted Residuals and Linear Bottlenecks", 2018.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dnnp.samples.builder import Builder
from dnnp.samples.layers import batch_norm, classify, conv
from dnnp.samples.shapes import Value
from dnnp.samples.weights import Sample

STAGES = (
    (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2),
    (6, 320, 1, 1),
)  # fmt: skip
"""Expansion, channels, blocks and stride of each stage (Table 2 of the paper)."""


@dataclass(frozen=True)
class Size:
    """Hyperparameters."""

    width: float
    """Multiplier of the channels."""
    last: int
    """Channels before the classifier."""
    image: int
    classes: int


SMALL = Size(width=0.5, last=320, image=224, classes=100)
FULL = Size(width=1.0, last=1280, image=224, classes=1000)


def _channels(size: Size, count: int) -> int:
    """Scale `count`, rounded to a multiple of 8 that is at most 10% smaller."""
    scaled = count * size.width
    rounded = max(8, int(scaled + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * scaled else rounded


def _conv_bn(
    b: Builder, x: Value, channels: int, kernel: int, stride: int = 1, **how: Any
) -> Value:
    """Add convolution, batch normalisation and ReLU6."""
    x = batch_norm(b, conv(b, x, channels, kernel, "0", stride=stride, **how), "1")
    return b.op("Clip", x, b.const(0.0, x.dtype), b.const(6.0, x.dtype))


def _inverted_residual(b: Builder, x: Value, channels: int, stride: int, expansion: int) -> Value:
    y, hidden, index = x, x.shape[1] * expansion, 0
    if expansion > 1:
        with b.scope("conv", "0"):
            y = _conv_bn(b, y, hidden, 1, rectified=False)
        index = 1
    with b.scope("conv", f"{index}"):
        y = _conv_bn(b, y, hidden, 3, stride, group=hidden)
    with b.scope("conv"):
        y = conv(b, y, channels, 1, f"{index + 1}")
        y = batch_norm(b, y, f"{index + 2}")
    return b.add(x, y) if x.shape == y.shape else y


def build(size: Size, seed: int = 0) -> Sample:
    """Return the classifier."""
    b = Builder("mobilenet_v2", opset=13, ir_version=8, seed=seed)
    x = b.input("pixel_values", (1, 3, size.image, size.image))
    with b.scope("features", "0"):
        x = _conv_bn(b, x, _channels(size, 32), 3, stride=2, rectified=False)
    index = 1
    for expansion, channels, blocks, stride in STAGES:
        for block in range(blocks):
            with b.scope("features", f"{index}"):
                step = 1 if block else stride
                x = _inverted_residual(b, x, _channels(size, channels), step, expansion)
            index += 1
    with b.scope("features", f"{index}"):
        x = _conv_bn(b, x, size.last, 1, rectified=False)
    with b.scope("classifier"):
        logits = classify(b, x, size.classes, "1")
    b.output("logits", logits)
    return b.build()
