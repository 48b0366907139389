"""BERT encoder with layer normalisation and GELU in primitive operators (opset 13).

Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers", 2019.
"""

from __future__ import annotations

import numpy as np

from dnnp.samples.builder import Builder
from dnnp.samples.layers import Transformer, gelu, layer_norm, linear, padding_mask, self_attention
from dnnp.samples.shapes import INT64, Value
from dnnp.samples.weights import Sample, normal

SMALL = Transformer(layers=4, hidden=128, heads=4, vocabulary=4096, length=128)
FULL = Transformer(layers=12, hidden=768, heads=12, vocabulary=30522, length=128)


def _embeddings(b: Builder, size: Transformer, words: Value, kinds: Value) -> Value:
    with b.scope("embeddings"):
        places = b.const(np.arange(size.length)[None], INT64)
        with b.scope("word_embeddings"):
            total = b.gather(b.weight("weight", (size.vocabulary, size.hidden), normal(1.0)), words)
        for name, index, rows in (
            ("token_type_embeddings", kinds, 2),
            ("position_embeddings", places, 4 * size.length),
        ):
            with b.scope(name):
                item = b.gather(b.weight("weight", (rows, size.hidden), normal(0.5)), index)
            total = b.add(total, item)
        return layer_norm(b, total, "LayerNorm", 1e-12)


def _layer(b: Builder, size: Transformer, x: Value, mask: Value) -> Value:
    with b.scope("attention"):
        with b.scope("self"):
            context = self_attention(b, x, size.heads, mask, "query", "key", "value")
        with b.scope("output"):
            x = b.add(linear(b, context, size.hidden, "dense"), x)
            x = layer_norm(b, x, "LayerNorm", 1e-12)
    with b.scope("intermediate"):
        y = gelu(b, linear(b, x, 4 * size.hidden, "dense"), "intermediate_act_fn")
    with b.scope("output"):
        x = b.add(linear(b, y, size.hidden, "dense", gain=1.5), x)
        return layer_norm(b, x, "LayerNorm", 1e-12)


def build(size: Transformer, seed: int = 0) -> Sample:
    """Return the encoder with its pooler."""
    b = Builder("bert", opset=13, ir_version=8, seed=seed, constant_nodes=True)
    shape = (1, size.length)
    words = b.input("input_ids", shape, INT64, (0, size.vocabulary - 1))
    mask = b.input("attention_mask", shape, INT64, (0, 1))
    kinds = b.input("token_type_ids", shape, INT64, (0, 1))
    x = _embeddings(b, size, words, kinds)
    bias = padding_mask(b, mask, 1, 2)
    for index in range(size.layers):
        with b.scope("encoder", f"layer.{index}"):
            x = _layer(b, size, x, bias)
    with b.scope("pooler"):
        first = b.gather(x, b.const(0, INT64), axis=1)
        pooled = b.op("Tanh", linear(b, first, size.hidden, "dense"))
    b.output("last_hidden_state", x)
    b.output("pooler_output", pooled)
    return b.build()
