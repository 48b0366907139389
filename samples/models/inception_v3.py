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
Layer = tuple[str, int, Kernel, int]
"""Name, channels, kernel and stride."""


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
        self.b = b
        self.size = size

    def chain(self, x: Value, *layers: Layer, same: bool = True) -> Value:
        """Add convolution, batch normalisation and ReLU for each layer."""
        b = self.b
        for name, channels, kernel, stride in layers:
            window = (kernel, kernel) if isinstance(kernel, int) else kernel
            pad = (window[0] // 2, window[1] // 2) if same and stride == 1 else 0
            first = x.shape[1] == 3
            with b.scope(name):
                x = conv(
                    b,
                    x,
                    channels // self.size.divisor,
                    window,
                    "conv",
                    stride=stride,
                    padding=pad,
                    rectified=not first,
                )
                x = b.op("Relu", batch_norm(b, x, "bn", 1e-3))
        return x

    def max_pool(self, x: Value) -> Value:
        """Add the pooling that halves the image."""
        return self.b.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2])

    def average_pool(self, x: Value) -> Value:
        """Add the pooling inside a block, which keeps the size."""
        return self.b.op(
            "AveragePool",
            x,
            count_include_pad=1,
            kernel_shape=[3, 3],
            pads=[1, 1, 1, 1],
            strides=[1, 1],
        )

    def block_a(self, x: Value, pooled: int) -> Value:
        """5x5 and double 3x3 branches."""
        return self.b.concat(
            [
                self.chain(x, ("branch1x1", 64, 1, 1)),
                self.chain(x, ("branch5x5_1", 48, 1, 1), ("branch5x5_2", 64, 5, 1)),
                self.chain(
                    x,
                    ("branch3x3dbl_1", 64, 1, 1),
                    ("branch3x3dbl_2", 96, 3, 1),
                    ("branch3x3dbl_3", 96, 3, 1),
                ),
                self.chain(self.average_pool(x), ("branch_pool", pooled, 1, 1)),
            ],
            axis=1,
        )

    def block_b(self, x: Value) -> Value:
        """First reduction."""
        return self.b.concat(
            [
                self.chain(x, ("branch3x3", 384, 3, 2)),
                self.chain(
                    x,
                    ("branch3x3dbl_1", 64, 1, 1),
                    ("branch3x3dbl_2", 96, 3, 1),
                    ("branch3x3dbl_3", 96, 3, 2),
                ),
                self.max_pool(x),
            ],
            axis=1,
        )

    def block_c(self, x: Value, width: int) -> Value:
        """Factorised 7x7 branches."""
        row, column = (1, 7), (7, 1)
        return self.b.concat(
            [
                self.chain(x, ("branch1x1", 192, 1, 1)),
                self.chain(
                    x,
                    ("branch7x7_1", width, 1, 1),
                    ("branch7x7_2", width, row, 1),
                    ("branch7x7_3", 192, column, 1),
                ),
                self.chain(
                    x,
                    ("branch7x7dbl_1", width, 1, 1),
                    ("branch7x7dbl_2", width, column, 1),
                    ("branch7x7dbl_3", width, row, 1),
                    ("branch7x7dbl_4", width, column, 1),
                    ("branch7x7dbl_5", 192, row, 1),
                ),
                self.chain(self.average_pool(x), ("branch_pool", 192, 1, 1)),
            ],
            axis=1,
        )

    def block_d(self, x: Value) -> Value:
        """Second reduction."""
        return self.b.concat(
            [
                self.chain(x, ("branch3x3_1", 192, 1, 1), ("branch3x3_2", 320, 3, 2)),
                self.chain(
                    x,
                    ("branch7x7x3_1", 192, 1, 1),
                    ("branch7x7x3_2", 192, (1, 7), 1),
                    ("branch7x7x3_3", 192, (7, 1), 1),
                    ("branch7x7x3_4", 192, 3, 2),
                ),
                self.max_pool(x),
            ],
            axis=1,
        )

    def block_e(self, x: Value) -> Value:
        """Expanded filter banks."""
        y = self.chain(x, ("branch3x3_1", 384, 1, 1))
        z = self.chain(x, ("branch3x3dbl_1", 448, 1, 1), ("branch3x3dbl_2", 384, 3, 1))
        return self.b.concat(
            [
                self.chain(x, ("branch1x1", 320, 1, 1)),
                self.b.concat(
                    [
                        self.chain(y, ("branch3x3_2a", 384, (1, 3), 1)),
                        self.chain(y, ("branch3x3_2b", 384, (3, 1), 1)),
                    ],
                    axis=1,
                ),
                self.b.concat(
                    [
                        self.chain(z, ("branch3x3dbl_3a", 384, (1, 3), 1)),
                        self.chain(z, ("branch3x3dbl_3b", 384, (3, 1), 1)),
                    ],
                    axis=1,
                ),
                self.chain(self.average_pool(x), ("branch_pool", 192, 1, 1)),
            ],
            axis=1,
        )


def build(size: Size, seed: int = 0) -> Sample:
    """Return the classifier."""
    b = Builder("inception_v3", opset=17, ir_version=8, seed=seed)
    net = _Net(b, size)
    x = b.input("pixel_values", (1, 3, size.image, size.image))
    x = net.chain(x, ("Conv2d_1a_3x3", 32, 3, 2), ("Conv2d_2a_3x3", 32, 3, 1), same=False)
    x = net.max_pool(net.chain(x, ("Conv2d_2b_3x3", 64, 3, 1)))
    x = net.chain(x, ("Conv2d_3b_1x1", 80, 1, 1), ("Conv2d_4a_3x3", 192, 3, 1), same=False)
    x = net.max_pool(x)
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
