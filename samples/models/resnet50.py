"""ResNet-50 with batch normalisation as nodes (opset 17).

He et al., "Deep Residual Learning for Image Recognition", 2016.
"""

from __future__ import annotations

from dataclasses import dataclass

from dnnp.samples.builder import Builder
from dnnp.samples.layers import batch_norm, classify, conv
from dnnp.samples.shapes import Value
from dnnp.samples.weights import Sample

BLOCKS = (3, 4, 6, 3)


@dataclass(frozen=True)
class Size:
    """Hyperparameters."""

    width: int
    """Channels of the first stage's 3x3 convolutions."""
    image: int
    classes: int


SMALL = Size(width=16, image=224, classes=100)
FULL = Size(width=64, image=224, classes=1000)


def _bottleneck(b: Builder, x: Value, width: int, stride: int) -> Value:
    y = b.op("Relu", batch_norm(b, conv(b, x, width, 1, "conv1"), "bn1"))
    y = conv(b, y, width, 3, "conv2", stride=stride)
    y = b.op("Relu", batch_norm(b, y, "bn2"))
    y = batch_norm(b, conv(b, y, 4 * width, 1, "conv3"), "bn3", gain=0.5)
    if x.shape != y.shape:
        with b.scope("downsample"):
            x = batch_norm(b, conv(b, x, 4 * width, 1, "0", stride=stride), "1")
    return b.op("Relu", b.add(y, x))


def build(size: Size, seed: int = 0) -> Sample:
    """Return the classifier."""
    b = Builder("resnet50", opset=17, ir_version=8, seed=seed)
    x = b.input("pixel_values", (1, 3, size.image, size.image))
    x = conv(b, x, size.width, 7, "conv1", stride=2, rectified=False)
    x = b.op("Relu", batch_norm(b, x, "bn1"))
    x = b.op("MaxPool", x, kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2])
    for stage, blocks in enumerate(BLOCKS):
        for block in range(blocks):
            with b.scope(f"layer{stage + 1}", f"{block}"):
                x = _bottleneck(b, x, size.width << stage, 2 if stage and not block else 1)
    b.output("logits", classify(b, x, size.classes, "fc"))
    return b.build()
