"""GPT-2 decoder with a tied output projection, or with one of its own (opset 17).

Radford et al., "Language Models are Unsupervised Multitask Learners", 2019.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt

import numpy as np

from dnnp.samples.builder import Builder
from dnnp.samples.layers import Transformer, gelu_tanh, layer_norm, linear, merge_heads, split_heads
from dnnp.samples.shapes import INT64, Value
from dnnp.samples.weights import Sample, normal


@dataclass(frozen=True)
class Size(Transformer):
    """Hyperparameters."""

    context: int
    planning: bool = False
    """Without weights."""
    tied: bool = True
    """True if the embedding is also the output projection."""


SMALL = Size(layers=6, hidden=128, heads=4, vocabulary=4096, context=128, length=128)
FULL = Size(layers=12, hidden=768, heads=12, vocabulary=50257, context=1024, length=256)
VOCABULARY = Size(24, 4096, 32, vocabulary=1_000_000, context=1024, length=1024, planning=True)
"""The embedding takes nearly half of its memory, and scores of words nearly half of its work."""
UNTIED = replace(VOCABULARY, tied=False)


def _attention(b: Builder, size: Size, x: Value, causal: Value) -> Value:
    merged = linear(b, x, 3 * size.hidden, "c_attn")
    query, key, value = (split_heads(b, part, size.heads) for part in b.split(merged, 3, axis=2))
    scores = b.matmul(query, b.transpose(key, 0, 1, 3, 2))
    scores = b.div(scores, sqrt(size.hidden // size.heads))
    scores = b.op("Where", causal, scores, b.const(-3.4e38, x.dtype))
    context = merge_heads(b, b.matmul(b.softmax(scores), value))
    return linear(b, context, size.hidden, "c_proj", gain=1 / sqrt(2))


def build(size: Size, seed: int = 0) -> Sample:
    """Return the decoder."""
    b = Builder("gpt", opset=17, ir_version=8, seed=seed, planning=size.planning)
    words = b.input("input_ids", (1, size.length), INT64, (0, size.vocabulary - 1))
    with b.scope("transformer"):
        with b.scope("wte"):
            fill = normal(2 / sqrt(size.hidden))
            embedding = b.weight("weight", (size.vocabulary, size.hidden), fill)
            x = b.gather(embedding, words)
        with b.scope("wpe"):
            places = b.weight("weight", (size.context, size.hidden), normal(0.05))
            x = b.add(x, b.gather(places, b.const(np.arange(size.length)[None], INT64)))
        causal = b.const(np.tri(size.length, dtype=bool)[None, None])
        for index in range(size.layers):
            with b.scope(f"h.{index}"):
                y = layer_norm(b, x, "ln_1")
                with b.scope("attn"):
                    x = b.add(_attention(b, size, y, causal), x)
                y = layer_norm(b, x, "ln_2")
                with b.scope("mlp"):
                    y = gelu_tanh(b, linear(b, y, 4 * size.hidden, "c_fc"))
                    x = b.add(x, linear(b, y, size.hidden, "c_proj", gain=1 / sqrt(2)))
        x = layer_norm(b, x, "ln_f")
    with b.scope("lm_head"):
        if size.tied:
            logits = b.matmul(x, b.transpose(embedding, 1, 0))
        else:
            logits = linear(b, x, size.vocabulary, "decoder", bias=False)
    b.output("logits", logits)
    return b.build()
