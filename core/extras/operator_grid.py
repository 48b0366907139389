"""The grid of operators that a device file is fitted on, layers of models among them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import prod, sqrt

import numpy as np

from dnnp.core.extras.operator_cases import (
    conv_block,
    convolutions,
    pool_block,
    products,
    quantised,
)
from dnnp.core.extras.operator_chains import Builder, Case
from dnnp.core.extras.operator_vectors import elementwise, gelu_block, moves, norm_block, rows

_WEIGHT = 3.0
"""What the error of a layer counts: here operators run as they do in models."""


def _linear(b: Builder, x: str, inner: int, outer: int) -> str:
    return b.add("Add", b.add("MatMul", x, b.weight(inner, outer, inner=inner)), b.weight(outer))


def _encoder(b: Builder, x: str, length: int, heads: int, width: int) -> str:
    """A layer of a transformer: attention, then two products around a Gelu, with sums and norms."""
    whole = heads * width
    apart = b.constant(np.array([1, length, heads, width]))

    def heads_of(y: str, order: list[int]) -> str:
        return b.add("Transpose", b.add("Reshape", _linear(b, y, whole, whole), apart), perm=order)

    query, value = heads_of(x, [0, 2, 1, 3]), heads_of(x, [0, 2, 1, 3])
    scores = b.add("MatMul", query, heads_of(x, [0, 2, 3, 1]))
    scores = b.add("Div", scores, b.constant(np.array(sqrt(width), np.float32)))
    y = b.add("MatMul", b.add("Softmax", scores, axis=-1), value)
    y = b.add("Transpose", y, perm=[0, 2, 1, 3])
    y = b.add("Reshape", y, b.constant(np.array([1, length, whole])))
    x = norm_block(b, b.add("Add", _linear(b, y, whole, whole), x), whole)
    y = _linear(b, gelu_block(b, _linear(b, x, whole, 4 * whole)), 4 * whole, whole)
    return norm_block(b, b.add("Add", y, x), whole)


def _between(b: Builder, x: str, channels: int, hidden: int, groups: int) -> str:
    """Pointwise, 3x3, pointwise, and the input added: bottlenecks, plain and inverted."""
    y = b.add(
        "Relu", b.add("Conv", x, b.weight(hidden, channels, 1, 1, inner=channels), b.weight(hidden))
    )
    y = conv_block(b, y, hidden, 3, groups)
    y = b.add("Conv", y, b.weight(channels, hidden, 1, 1, inner=hidden), b.weight(channels))
    return b.add("Relu", b.add("Add", y, x))


def _branches(b: Builder, x: str, channels: int) -> str:
    """Convolutions of three sizes side by side, and a pool."""
    part = channels // 4
    parts = []
    for size in (1, 3, 5):
        y = b.add("Conv", x, b.weight(part, channels, 1, 1, inner=channels), b.weight(part))
        parts.append(conv_block(b, b.add("Relu", y), part, size))
    y = pool_block(b, x, "AveragePool", 3)
    y = b.add("Conv", y, b.weight(part, channels, 1, 1, inner=channels), b.weight(part))
    return b.add("Concat", *parts, b.add("Relu", y), axis=1)


def layers() -> list[Case]:
    """Layers of several operators, where each finds the caches as others left them."""
    cases = []
    for length, heads, width in (
        (64, 4, 64),
        (100, 6, 32),
        (196, 3, 64),
        (24, 2, 48),
        (160, 8, 64),
        (8, 2, 16),
        (16, 2, 32),
    ):
        block = partial(_encoder, length=length, heads=heads, width=width)
        cases.append(Case("encoder", (1, length, heads * width), block, weight=_WEIGHT))
    for channels, hidden, side in ((128, 32, 28), (96, 24, 56), (320, 80, 14), (512, 128, 14)):
        block = partial(_between, channels=channels, hidden=hidden, groups=1)
        cases.append(Case("bottleneck", (1, channels, side, side), block, weight=_WEIGHT))
    for channels, hidden, side in (
        (16, 64, 48),
        (40, 240, 20),
        (80, 480, 10),
        (32, 192, 28),
        (16, 32, 7),
    ):
        block = partial(_between, channels=channels, hidden=hidden, groups=hidden)
        cases.append(Case("inverted", (1, channels, side, side), block, weight=_WEIGHT))
    for channels, side in ((64, 35), (192, 17), (320, 8), (256, 28)):
        cases.append(
            Case("branches", (1, channels, side, side), partial(_branches, channels=channels))
        )
    return cases


QUICK = ("product", "pointwise", "arithmetic", "softmax", "transpose", "view")
"""Kinds of which a quick grid has one point each."""


def grid(threads: int = 1, *, quick: bool = False) -> list[Case]:
    """All points, or with `quick` the smallest of some kinds."""
    cases = [
        *products(),
        *convolutions(),
        *elementwise(),
        *rows(),
        *moves(),
        *quantised(),
        *layers(),
    ]
    if quick:
        cases.sort(key=lambda case: prod(case.shape))
        first = {case.kind: case for case in reversed(cases)}
        cases = [first[kind] for kind in QUICK]
    return [replace(case, threads=threads) for case in cases]
