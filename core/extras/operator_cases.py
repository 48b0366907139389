"""Points of the grid: products, recurrent layers, convolutions, in several element types."""

from __future__ import annotations

from functools import partial

import numpy as np

from dnnp.core.extras.operator_chains import Builder, Case


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
            block = partial(_dense, inner=inner, outer=outer)
            cases.append(Case("product", (1, rows, inner), block))
    for rows, inner, outer in ((1, 512, 1000), (1, 1024, 1024), (16, 100, 30), (37, 128, 512)):
        cases.append(Case("product", (rows, inner), partial(_dense, inner=inner, outer=outer)))
    for heads, length, width in (
        (4, 32, 16),
        (4, 128, 32),
        (12, 128, 64),
        (8, 256, 64),
        (2, 16, 8),
    ):
        cases.append(Case("heads", (heads, length, width), _heads))
    for dtype in ("float64", "float16"):
        for rows, inner in ((32, 128), (128, 512)):
            block = partial(_dense, inner=inner, outer=inner)
            cases.append(Case("product", (1, rows, inner), block, dtype))
    for width in (64, 256):
        cases.append(Case("loop", (64, width), partial(_loop, width=width)))
    for steps, width in ((8, 64), (20, 128), (16, 512)):
        cases.append(Case("recurrent", (steps, 1, width), partial(_lstm, width=width)))
        cases.append(Case("recurrent", (steps, 4, width), partial(_gru, width=width)))
    return cases


def _lstm(b: Builder, x: str, width: int) -> str:
    inner = 2 * width
    w, r = (b.weight(1, 4 * width, width, inner=inner) for _ in range(2))
    y = b.add("LSTM", x, w, r, b.weight(1, 8 * width), hidden_size=width)
    return b.add("Squeeze", y, b.constant(np.array([1])))


def _gru(b: Builder, x: str, width: int) -> str:
    inner = 2 * width
    w, r = (b.weight(1, 3 * width, width, inner=inner) for _ in range(2))
    y = b.add("GRU", x, w, r, b.weight(1, 6 * width), hidden_size=width)
    return b.add("Squeeze", y, b.constant(np.array([1])))


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
    return b.add(
        "Resize",
        y,
        "",
        scales,
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )


def _stem(b: Builder, x: str, size: int, side: int) -> str:
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
    for channels, side in ((16, 56), (32, 112), (64, 56), (64, 14), (128, 28), (256, 14), (256, 7)):
        image = (1, channels, side, side)
        cases.append(Case("conv", image, partial(conv_block, channels=channels, size=3)))
        cases.append(
            Case(
                "depthwise", image, partial(conv_block, channels=channels, size=3, groups=channels)
            )
        )
        cases.append(Case("pointwise", image, partial(conv_block, channels=channels, size=1)))
    for channels, side in ((96, 28), (384, 14), (960, 7), (24, 56)):
        image = (1, channels, side, side)
        cases.append(
            Case(
                "depthwise", image, partial(conv_block, channels=channels, size=3, groups=channels)
            )
        )
    cases.append(
        Case("depthwise", (1, 240, 14, 14), partial(conv_block, channels=240, size=5, groups=240))
    )
    for channels, hidden, side in (
        (24, 144, 56),
        (64, 384, 14),
        (160, 960, 7),
        (256, 64, 56),
        (512, 128, 28),
        (8, 48, 112),
        (48, 12, 14),
    ):
        image = (1, channels, side, side)
        cases.append(
            Case("pointwise", image, partial(_bottleneck, channels=channels, hidden=hidden))
        )
    cases.append(Case("conv", (1, 40, 28, 28), partial(conv_block, channels=40, size=5)))
    cases.append(
        Case("grouped", (1, 128, 28, 28), partial(conv_block, channels=128, size=3, groups=32))
    )
    block = partial(conv_block, channels=136, size=1, groups=4)
    cases.append(Case("grouped", (1, 136, 28, 28), block))
    cases.append(
        Case("grouped", (1, 256, 14, 14), partial(conv_block, channels=256, size=3, groups=4))
    )
    for channels, groups, side in ((64, 1, 56), (96, 96, 56), (256, 1, 14)):
        cases.append(
            Case(
                "strided",
                (1, channels, side, side),
                partial(_strided, channels=channels, groups=groups),
            )
        )
    for size, side in ((3, 112), (7, 112), (3, 224)):
        cases.append(Case("stem", (1, 3, side, side), partial(_stem, size=size, side=side)))
    for channels, hidden, side, size in (
        (4, 32, 56, 1), (8, 96, 28, 1), (12, 64, 56, 1), (8, 24, 35, 3), (12, 16, 35, 5),
    ):  # fmt: skip
        block = partial(_narrow, channels=channels, hidden=hidden, size=size)
        cases.append(Case("narrow", (1, channels, side, side), block))
    cases += [Case("window", (1, c, s, s), _lrn) for c, s in ((64, 28), (96, 54))]
    for op, channels, side in (("MaxPool", 64, 56), ("AveragePool", 192, 14), ("MaxPool", 256, 14)):
        cases.append(Case("pool", (1, channels, side, side), partial(pool_block, op=op, size=3)))
    for channels, side in ((64, 28), (240, 14), (32, 56)):
        cases.append(Case("gate", (1, channels, side, side), partial(_gate, channels=channels)))
    for dtype in ("float16", "float64"):
        cases.append(Case("conv", (1, 64, 28, 28), partial(conv_block, channels=64, size=3), dtype))
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
        cases.append(Case("dynamic", (rows, width), partial(_dynamic, width=width)))
    for channels, side in ((64, 28), (128, 14)):
        for size, groups in ((1, 1), (3, 1), (3, channels)):
            block = partial(_quantised_conv, channels=channels, size=size, groups=groups)
            cases.append(Case("quantised-conv", (1, channels, side, side), block))
    return cases
