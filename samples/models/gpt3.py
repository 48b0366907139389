"""GPT-3 shapes for planning: every head and every primitive operator is a node (opset 13).

Brown et al., "Language Models are Few-Shot Learners", 2020; sizes of Table IV in Zhang et al.,
"Moirai: Towards Optimal Placement for Distributed Inference on Heterogeneous Devices", 2023.
"""

from __future__ import annotations

from math import sqrt

from dnnp.samples.builder import Builder
from dnnp.samples.layers import Transformer, add_positions, gelu_tanh, layer_norm, linear
from dnnp.samples.shapes import FLOAT16, INT64, Value
from dnnp.samples.weights import Sample

SIZES = {
    "330m": Transformer(24, 1024, 16, 50257, 2048),
    # The table says 32 layers, but both its parameter count and its operator count
    # (9480 = 24 * 395) belong to 24.
    "1.3b": Transformer(24, 2048, 32, 50257, 2048),
    "2.7b": Transformer(32, 2560, 32, 50257, 2048),
    "13b": Transformer(40, 5120, 40, 50257, 2048),
}


def _head(b: Builder, x: Value, width: int, mask: Value) -> Value:
    """Add one attention head: [1, length, hidden] to [1, length, width]."""
    query, key, value = (linear(b, x, width, name) for name in ("query", "key", "value"))
    scores = b.matmul(query, b.transpose(key, 0, 2, 1))
    scores = b.add(b.mul(scores, 1 / sqrt(width)), mask)
    return b.matmul(b.softmax(scores), value)


def _layer(b: Builder, size: Transformer, x: Value, mask: Value) -> Value:
    y = layer_norm(b, x, "ln_1")
    with b.scope("attn"):
        heads = []
        for head in range(size.heads):
            with b.scope(f"head.{head}"):
                heads.append(_head(b, y, size.hidden // size.heads, mask))
        y = linear(b, b.concat(heads, axis=2), size.hidden, "c_proj")
        x = b.add(x, y)
    y = layer_norm(b, x, "ln_2")
    with b.scope("mlp"):
        y = gelu_tanh(b, linear(b, y, 4 * size.hidden, "c_fc"))
        return b.add(x, linear(b, y, size.hidden, "c_proj"))


def build(size: Transformer, seed: int = 0) -> Sample:
    """Return the decoder without weights; the embedding is also the output projection."""
    b = Builder("gpt3", opset=13, ir_version=8, seed=seed, dtype=FLOAT16, planning=True)
    words = b.input("input_ids", (1, size.length), INT64, (0, size.vocabulary - 1))
    with b.scope("transformer"):
        with b.scope("wte"):
            embedding = b.weight("weight", (size.vocabulary, size.hidden))
            x = b.gather(embedding, words)
        with b.scope("wpe"):
            x = add_positions(b, x, size.length)
        mask = b.weight("causal_mask", (1, size.length, size.length), trained=False)
        for index in range(size.layers):
            with b.scope(f"h.{index}"):
                x = _layer(b, size, x, mask)
        x = layer_norm(b, x, "ln_f")
    with b.scope("lm_head"):
        logits = b.matmul(x, b.transpose(embedding, 1, 0))
    b.output("logits", logits)
    return b.build()
