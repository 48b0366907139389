"""Inception-v3 without the auxiliary classifier (opset 17).

Szegedy et al., "Rethinking the Inception Architecture for Computer Vision", 2016.
"""

from __future__ import annotations

from dataclasses import dataclass

from dnnp.samples.builder import Builder
from dnnp.samples.layers import batch_norm, classify, conv
from dnnp.samples.shapes import Value
from dnnp.samples.weights import Sample

Kernel = int | tuple[int, int]
Layer = tuple[int, Kernel] | tuple[int, Kernel, int]
"""Channels, kernel and stride (by default 1)."""

ROW, COLUMN = (1, 7), (7, 1)


@dataclass(frozen=True)
class Size:
    """Hyperparameters."""

    divisor: int
    """Every channel count of the paper is divided by this."""
    image: int
    classes: int


SMALL = Size(divisor=4, image=299, classes=100)
FULL = Size(divisor=1, image=299, classes=1000)


class _Net:
    """The blocks, for one builder and one width."""

    def __init__(self, b: Builder, size: Size) -> None:
        self.b, self.size = b, size

    def chain(self, x: Value, name: str, *layers: Layer, same: bool = True) -> Value:
        """Add convolution, batch normalisation and ReLU for each layer; several are numbered."""
        b = self.b
        for number, layer in enumerate(layers, 1):
            width, stride = layer[0] // self.size.divisor, layer[2] if len(layer) > 2 else 1
            pad, inner = None if same and stride == 1 else 0, x.shape[1] != 3
            with b.scope(f"{name}_{number}" if len(layers) > 1 else name):
                x = conv(b, x, width, layer[1], "conv", stride=stride, padding=pad, rectified=inner)
                x = b.op("Relu", batch_norm(b, x, "bn", 1e-3))
        return x

    def max_pool(self, x: Value) -> Value:
        """Add the pooling that halves the image."""
        return self.b.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2])

    def pool_branch(self, x: Value, channels: int) -> Value:
        """Add the branch with a pooling that keeps the size."""
        window = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [1, 1]}
        pooled = self.b.op("AveragePool", x, count_include_pad=1, **window)
        return self.chain(pooled, "branch_pool", (channels, 1))

    def join(self, *branches: Value) -> Value:
        """Add the concatenation of channels."""
        return self.b.concat(branches, axis=1)

    def block_a(self, x: Value, pooled: int) -> Value:
        """5x5 and double 3x3 branches."""
        return self.join(
            self.chain(x, "branch1x1", (64, 1)),
            self.chain(x, "branch5x5", (48, 1), (64, 5)),
            self.chain(x, "branch3x3dbl", (64, 1), (96, 3), (96, 3)),
            self.pool_branch(x, pooled),
        )

    def block_b(self, x: Value) -> Value:
        """First reduction."""
        return self.join(
            self.chain(x, "branch3x3", (384, 3, 2)),
            self.chain(x, "branch3x3dbl", (64, 1), (96, 3), (96, 3, 2)),
            self.max_pool(x),
        )

    def block_c(self, x: Value, width: int) -> Value:
        """Factorised 7x7 branches."""
        again = (width, COLUMN), (width, ROW), (width, COLUMN)
        return self.join(
            self.chain(x, "branch1x1", (192, 1)),
            self.chain(x, "branch7x7", (width, 1), (width, ROW), (192, COLUMN)),
            self.chain(x, "branch7x7dbl", (width, 1), *again, (192, ROW)),
            self.pool_branch(x, 192),
        )

    def block_d(self, x: Value) -> Value:
        """Second reduction."""
        return self.join(
            self.chain(x, "branch3x3", (192, 1), (320, 3, 2)),
            self.chain(x, "branch7x7x3", (192, 1), (192, ROW), (192, COLUMN), (192, 3, 2)),
            self.max_pool(x),
        )

    def fork(self, x: Value, name: str) -> Value:
        """Add a row and a column of three, side by side."""
        row = self.chain(x, f"{name}a", (384, (1, 3)))
        return self.join(row, self.chain(x, f"{name}b", (384, (3, 1))))

    def block_e(self, x: Value) -> Value:
        """Expanded filter banks."""
        y = self.chain(x, "branch3x3_1", (384, 1))
        z = self.chain(x, "branch3x3dbl", (448, 1), (384, 3))
        return self.join(
            self.chain(x, "branch1x1", (320, 1)),
            self.fork(y, "branch3x3_2"),
            self.fork(z, "branch3x3dbl_3"),
            self.pool_branch(x, 192),
        )


def build(size: Size, seed: int = 0) -> Sample:
    """Return the classifier."""
    b = Builder("inception_v3", opset=17, ir_version=8, seed=seed)
    net = _Net(b, size)
    x = b.input("pixel_values", (1, 3, size.image, size.image))
    x = net.chain(x, "Conv2d_1a_3x3", (32, 3, 2))
    x = net.chain(x, "Conv2d_2a_3x3", (32, 3), same=False)
    x = net.max_pool(net.chain(x, "Conv2d_2b_3x3", (64, 3)))
    x = net.chain(x, "Conv2d_3b_1x1", (80, 1))
    x = net.max_pool(net.chain(x, "Conv2d_4a_3x3", (192, 3), same=False))
    for name, pooled in (("Mixed_5b", 32), ("Mixed_5c", 64), ("Mixed_5d", 64)):
        with b.scope(name):
            x = net.block_a(x, pooled)
    with b.scope("Mixed_6a"):
        x = net.block_b(x)
    for name, width in (("Mixed_6b", 128), ("Mixed_6c", 160), ("Mixed_6d", 160), ("Mixed_6e", 192)):
        with b.scope(name):
            x = net.block_c(x, width)
    with b.scope("Mixed_7a"):
        x = net.block_d(x)
    for name in ("Mixed_7b", "Mixed_7c"):
        with b.scope(name):
            x = net.block_e(x)
    b.output("logits", classify(b, x, size.classes, "fc"))
    return b.build()
