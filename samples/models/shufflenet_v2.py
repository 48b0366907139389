"""ShuffleNet v2: depthwise convolutions between shuffles of channels (opset 13).

Ma et al., "ShuffleNet V2: Practical Guidelines for Efficient CNN Architecture Design", 2018. The
shuffles are transposes, between which convolutions like another layout.
"""

from __future__ import annotations

from dataclasses import dataclass

from dnnp.samples.builder import Builder
from dnnp.samples.layers import batch_norm, classify, conv
from dnnp.samples.shapes import Value
from dnnp.samples.weights import Sample

BLOCKS = (4, 8, 4)
"""Of each stage; the first of a stage halves the image (Table 5 of the paper)."""


@dataclass(frozen=True)
class Size:
    """Hyperparameters."""

    channels: tuple[int, int, int]
    """Of the stages."""
    last: int
    """Channels before the classifier."""
    image: int
    classes: int


SMALL = Size(channels=(48, 96, 192), last=320, image=224, classes=100)
FULL = Size(channels=(116, 232, 464), last=1024, image=224, classes=1000)


def _pointwise(b: Builder, x: Value, channels: int, name: str, rectified: bool = True) -> Value:
    with b.scope(name):
        y = conv(b, x, channels, 1, "0", rectified=rectified)
        return b.op("Relu", batch_norm(b, y, "1"))


def _depthwise(b: Builder, x: Value, stride: int, name: str) -> Value:
    channels = x.shape[1]
    with b.scope(name):
        y = conv(b, x, channels, 3, "0", stride=stride, group=channels)
        return batch_norm(b, y, "1")


def _shuffle(b: Builder, x: Value) -> Value:
    """Interleave the two halves of the channels."""
    n, c, h, w = x.shape
    split = b.transpose(b.reshape(x, [n, 2, c // 2, h, w]), 0, 2, 1, 3, 4)
    return b.reshape(split, [n, c, h, w])


def _block(b: Builder, x: Value, channels: int, stride: int) -> Value:
    half = channels // 2
    if stride == 1:
        kept, x = b.split(x, 2, 1)
    else:
        with b.scope("branch1"):
            kept = _pointwise(b, _depthwise(b, x, stride, "0"), half, "2", rectified=False)
    with b.scope("branch2"):
        y = _pointwise(b, x, half, "0")
        y = _pointwise(b, _depthwise(b, y, stride, "3"), half, "5", rectified=False)
    return _shuffle(b, b.concat([kept, y], axis=1))


def build(size: Size, seed: int = 0) -> Sample:
    """Return the classifier."""
    b = Builder("shufflenet_v2", opset=13, ir_version=8, seed=seed)
    x = b.input("pixel_values", (1, 3, size.image, size.image))
    with b.scope("conv1"):
        x = conv(b, x, 24, 3, "0", stride=2, rectified=False)
        x = b.op("Relu", batch_norm(b, x, "1"))
    x = b.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    for stage, (channels, blocks) in enumerate(zip(size.channels, BLOCKS, strict=True)):
        for block in range(blocks):
            with b.scope(f"stage{stage + 2}", str(block)):
                x = _block(b, x, channels, 1 if block else 2)
    x = _pointwise(b, x, size.last, "conv5")
    b.output("logits", classify(b, x, size.classes, "fc"))
    return b.build()
