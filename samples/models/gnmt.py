"""GNMT-like translation model: stacked LSTM encoder and decoder with attention (opset 17).

Wu et al., "Google's Neural Machine Translation System", 2016. The target sentence is an input,
as in training. Encoder and decoder share one embedding.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from dnnp.samples.builder import Builder
from dnnp.samples.layers import linear, padding_mask
from dnnp.samples.shapes import INT64, Value
from dnnp.samples.weights import Sample, normal


@dataclass(frozen=True)
class Size:
    """Hyperparameters."""

    layers: int
    """Of the encoder, and again of the decoder."""
    hidden: int
    vocabulary: int
    batch: int
    source: int
    target: int


SMALL = Size(layers=4, hidden=96, vocabulary=4096, batch=2, source=24, target=20)
FULL = Size(layers=8, hidden=1024, vocabulary=32320, batch=1, source=50, target=50)


def _lstm(b: Builder, x: Value, hidden: int, name: str, directions: int = 1) -> Value:
    """Add an LSTM over [length, batch, width]; the directions are side by side in the result."""
    length, batch, width = x.shape
    with b.scope(name):
        y = b.op(
            "LSTM",
            x,
            b.weight("weight_ih", (directions, 4 * hidden, width), normal(1.5 / sqrt(width))),
            b.weight("weight_hh", (directions, 4 * hidden, hidden), normal(1 / sqrt(hidden))),
            b.weight("bias", (directions, 8 * hidden), normal(0.1)),
            direction="bidirectional" if directions == 2 else "forward",
            hidden_size=hidden,
        )
        if directions == 1:
            return b.op("Squeeze", y, b.ints([1]))
        return b.reshape(b.transpose(y, 0, 2, 1, 3), [length, batch, directions * hidden])


def _encode(b: Builder, size: Size, x: Value) -> Value:
    x = _lstm(b, x, size.hidden, "rnn_layers.0", directions=2)
    x = _lstm(b, x, size.hidden, "rnn_layers.1")
    for index in range(2, size.layers):
        x = b.add(_lstm(b, x, size.hidden, f"rnn_layers.{index}"), x)
    return x


def _attend(b: Builder, size: Size, query: Value, memory: Value, mask: Value) -> Value:
    """Add attention with an additive score; query and memory are [length, batch, hidden]."""
    hidden = size.hidden
    queries = b.unsqueeze(linear(b, b.transpose(query, 1, 0, 2), hidden, "linear_q"), 2)
    memory = b.transpose(memory, 1, 0, 2)
    keys = b.unsqueeze(linear(b, memory, hidden, "linear_k", bias=False), 1)
    energy = b.op("Tanh", b.add(queries, keys))
    scores = b.matmul(energy, b.weight("linear_att", (hidden, 1), normal(3 / sqrt(hidden))))
    scores = b.add(b.op("Squeeze", scores, b.ints([3])), mask)
    context = b.matmul(b.softmax(scores), memory)
    return b.transpose(context, 1, 0, 2)


def _decode(b: Builder, size: Size, x: Value, memory: Value, mask: Value) -> Value:
    with b.scope("att_rnn"):
        x = _lstm(b, x, size.hidden, "rnn")
        with b.scope("attn"):
            context = _attend(b, size, x, memory, mask)
    for index in range(1, size.layers):
        y = _lstm(b, b.concat([x, context], axis=2), size.hidden, f"rnn_layers.{index}")
        x = b.add(y, x) if index > 1 else y
    return x


def build(size: Size, seed: int = 0) -> Sample:
    """Return the model; its output is [target, batch, vocabulary]."""
    b = Builder("gnmt", opset=17, ir_version=8, seed=seed)
    words = (0, size.vocabulary - 1)
    source = b.input("source", (size.batch, size.source), INT64, words)
    present = b.input("source_mask", (size.batch, size.source), INT64, (0, 1))
    target = b.input("target", (size.batch, size.target), INT64, words)
    with b.scope("embedder"):
        table = b.weight("weight", (size.vocabulary, size.hidden), normal(1.0))
    with b.scope("encoder"):
        with b.scope("embedder"):
            x = b.gather(table, b.transpose(source, 1, 0))
        memory = _encode(b, size, x)
    mask = padding_mask(b, present, 1)
    with b.scope("decoder"):
        with b.scope("embedder"):
            x = b.gather(table, b.transpose(target, 1, 0))
        x = _decode(b, size, x, memory, mask)
        logits = linear(b, x, size.vocabulary, "classifier")
    b.output("logits", logits)
    return b.build()
