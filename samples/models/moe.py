"""Mixture of experts: a transformer whose experts choose their tokens (opset 17).

Zhou et al., "Mixture-of-Experts with Expert Choice Routing", 2022: every expert takes the tokens
that it scores highest, as many as it has room for, so all shapes are fixed.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from dnnp.samples.builder import Builder
from dnnp.samples.layers import Transformer, gelu, layer_norm, linear, self_attention
from dnnp.samples.shapes import INT64, Value
from dnnp.samples.weights import Sample, normal


@dataclass(frozen=True)
class Size(Transformer):
    """Hyperparameters; every second layer has experts."""

    experts: int
    capacity: int
    """Tokens that an expert takes."""


SMALL = Size(layers=4, hidden=96, heads=4, experts=8, capacity=32, vocabulary=2048, length=128)
FULL = Size(layers=12, hidden=768, heads=12, experts=8, capacity=96, vocabulary=32000, length=384)


def _attention(b: Builder, size: Size, x: Value) -> Value:
    with b.scope("attention"):
        y = layer_norm(b, x, "norm")
        y = self_attention(b, y, size.heads, None, "query", "key", "value", bias=False)
        return b.add(x, linear(b, y, size.hidden, "output", gain=1 / sqrt(2)))


def _mlp(b: Builder, size: Size, x: Value) -> Value:
    y = gelu(b, linear(b, x, 4 * size.hidden, "fc1"))
    return linear(b, y, size.hidden, "fc2", gain=1 / sqrt(2))


def _experts(b: Builder, size: Size, x: Value) -> Value:
    """Add the experts; `x` is [tokens, hidden]. What no expert takes stays as it is."""
    with b.scope("router"):
        scores = b.softmax(linear(b, x, size.experts, "gate", bias=False))
        gates, chosen = b.op_n(
            "TopK", b.transpose(scores, 1, 0), b.ints([size.capacity]), outputs=2, axis=-1, sorted=0
        )
    for index in range(size.experts):
        with b.scope(f"experts.{index}"):
            own = b.const(index, INT64)
            tokens, gate = b.gather(chosen, own), b.gather(gates, own)
            y = _mlp(b, size, b.gather(x, tokens))
            y = b.mul(y, b.unsqueeze(gate, 1))
            x = b.op("ScatterND", x, b.unsqueeze(tokens, 1), y, reduction="add")
    return x


def _feed_forward(b: Builder, size: Size, x: Value, index: int) -> Value:
    with b.scope("feed_forward"):
        y = layer_norm(b, x, "norm")
        if index % 2:
            flat = b.reshape(y, [size.length, size.hidden])
            return b.add(x, b.reshape(_experts(b, size, flat), list(x.shape)))
        return b.add(x, _mlp(b, size, y))


def build(size: Size, seed: int = 0) -> Sample:
    """Return the encoder; its output is [1, length, hidden]."""
    b = Builder("moe", opset=17, ir_version=8, seed=seed)
    words = b.input("input_ids", (1, size.length), INT64, (0, size.vocabulary - 1))
    with b.scope("embeddings"):
        x = b.gather(b.weight("words", (size.vocabulary, size.hidden), normal(1.0)), words)
        x = b.add(x, b.weight("positions", (size.length, size.hidden), normal(0.3)))
    for index in range(size.layers):
        with b.scope(f"layers.{index}"):
            x = _feed_forward(b, size, _attention(b, size, x), index)
    b.output("hidden_state", layer_norm(b, x, "norm"))
    return b.build()
