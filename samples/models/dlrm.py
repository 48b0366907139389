"""Recommendation: embeddings of categories, their products, and two MLPs (opset 17).

Naumov et al., "Deep Learning Recommendation Model for Personalization and Recommendation Systems",
2019. Each category is a bag of words of a table, which are added up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dnnp.samples.builder import Builder
from dnnp.samples.layers import linear
from dnnp.samples.shapes import INT64, Value
from dnnp.samples.weights import Sample, normal


@dataclass(frozen=True)
class Size:
    """Hyperparameters."""

    batch: int
    dense: int
    """Features that are numbers."""
    tables: int
    rows: int
    """Of a table."""
    bag: int
    """Words of a bag."""
    width: int
    """Of an embedding."""
    bottom: tuple[int, ...]
    """Widths of the MLP of the numbers, but for the last one."""
    top: tuple[int, ...]


SMALL = Size(128, 13, 12, 2000, 16, 32, (128, 64), (256, 128))
FULL = Size(512, 13, 26, 100000, 32, 64, (512, 256), (1024, 1024, 512, 256))


def _mlp(b: Builder, x: Value, widths: Sequence[int], name: str) -> Value:
    with b.scope(name):
        for index, width in enumerate(widths):
            x = b.op("Relu", linear(b, x, width, str(index), gain=1.4))
    return x


def build(size: Size, seed: int = 0) -> Sample:
    """Return the model; its output is the probability of a click, [batch, 1]."""
    b = Builder("dlrm", opset=17, ir_version=8, seed=seed)
    numbers = b.input("numbers", (size.batch, size.dense))
    places = (size.batch, size.tables, size.bag)
    words = b.input("categories", places, INT64, (0, size.rows - 1))
    vectors = [_mlp(b, numbers, (*size.bottom, size.width), "bottom")]
    for index in range(size.tables):
        with b.scope(f"tables.{index}"):
            table = b.weight("weight", (size.rows, size.width), normal(0.3))
            own = b.gather(words, b.const(index, INT64), axis=1)
            vectors.append(b.reduce("ReduceSum", b.gather(table, own), [1], keepdims=False))
    with b.scope("interaction"):
        stacked = b.concat([b.unsqueeze(v, 1) for v in vectors], axis=1)
        products = b.matmul(stacked, b.transpose(stacked, 0, 2, 1))
        count = len(vectors)
        flat = b.reshape(products, [size.batch, count * count])
        pairs = np.flatnonzero(np.tril(np.ones((count, count)), -1))
        pairwise = b.gather(flat, b.const(pairs, INT64), axis=1)
        joined = b.concat([vectors[0], b.mul(pairwise, 1 / size.width)], axis=1)
    x = _mlp(b, joined, size.top, "top")
    b.output("click", b.op("Sigmoid", linear(b, x, 1, "click")))
    return b.build()
