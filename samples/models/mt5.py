"""T5 encoder and decoder that look words up in one table (opset 17), for planning.

Xue et al., "mT5: A Massively Multilingual Pre-trained Text-to-Text Transformer", 2021. Its output
is what the decoder makes of each word, without scores of words: so 24 and 24 layers of 3,072 and a
vocabulary of a million have the parameters of the second model in Tessel's Table III.
"""

from __future__ import annotations

from math import sqrt

import numpy as np

from dnnp.samples.builder import Builder
from dnnp.samples.layers import (
    Transformer,
    gelu_tanh,
    layer_norm,
    linear,
    merge_heads,
    project_heads,
)
from dnnp.samples.shapes import INT64, Value
from dnnp.samples.weights import Sample, normal

VOCABULARY = Transformer(24, 3072, 24, vocabulary=1_000_000, length=1024)
"""Layers of the encoder, and as many of the decoder, which writes as many words as are read."""


def _attention(b: Builder, size: Transformer, x: Value, source: Value, mask: Value | None) -> Value:
    """Attention of words to those of `source`."""
    (query,) = project_heads(b, x, size.heads, "q", bias=False)
    key, value = project_heads(b, source, size.heads, "k", "v", bias=False)
    scores = b.div(b.matmul(query, b.transpose(key, 0, 1, 3, 2)), sqrt(size.hidden // size.heads))
    if mask is not None:
        scores = b.op("Where", mask, scores, b.const(-3.4e38, x.dtype))
    context = merge_heads(b, b.matmul(b.softmax(scores), value))
    return linear(b, context, size.hidden, "o", bias=False, gain=1 / sqrt(2))


def _layer(
    b: Builder, size: Transformer, x: Value, memory: Value | None, causal: Value | None
) -> Value:
    """A layer of the encoder; of the decoder, where there is a memory of what was read."""
    y = layer_norm(b, x, "ln_self")
    with b.scope("self"):
        x = b.add(x, _attention(b, size, y, y, causal))
    if memory is not None:
        y = layer_norm(b, x, "ln_cross")
        with b.scope("cross"):
            x = b.add(x, _attention(b, size, y, memory, None))
    y = layer_norm(b, x, "ln_mlp")
    with b.scope("mlp"):
        y = gelu_tanh(b, linear(b, y, 4 * size.hidden, "wi", bias=False))
        return b.add(x, linear(b, y, size.hidden, "wo", bias=False, gain=1 / sqrt(2)))


def build(size: Transformer, seed: int = 0) -> Sample:
    """Return the encoder and the decoder."""
    b = Builder("mt5", opset=17, ir_version=8, seed=seed, planning=True)
    shape, words = (1, size.length), (0, size.vocabulary - 1)
    source = b.input("input_ids", shape, INT64, words)
    target = b.input("decoder_input_ids", shape, INT64, words)
    with b.scope("shared"):
        table = b.weight("weight", (size.vocabulary, size.hidden), normal(1.0))
        x = b.gather(table, source)
    for index in range(size.layers):
        with b.scope("encoder", f"block.{index}"):
            x = _layer(b, size, x, None, None)
    with b.scope("encoder"):
        memory = layer_norm(b, x, "final_layer_norm")
    with b.scope("decoder", "embed_tokens"):
        x = b.gather(table, target)
    mask = b.const(np.tri(size.length, dtype=bool)[None, None])
    for index in range(size.layers):
        with b.scope("decoder", f"block.{index}"):
            x = _layer(b, size, x, memory, mask)
    with b.scope("decoder"):
        x = layer_norm(b, x, "final_layer_norm")
    b.output("last_hidden_state", x)
    return b.build()
