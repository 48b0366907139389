"""Two-tower network for an image and a question, joined in an answer head (opset 21).

The towers are those of CLIP: Radford et al., "Learning Transferable Visual Models From Natural
Language Supervision", 2021.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np

from dnnp.samples.builder import Builder
from dnnp.samples.layers import (
    add_positions,
    gelu,
    layer_norm,
    linear,
    padding_mask,
    patches,
    quick_gelu,
    self_attention,
)
from dnnp.samples.shapes import INT64, Value
from dnnp.samples.weights import Sample, normal


@dataclass(frozen=True)
class Tower:
    """Hyperparameters of one transformer."""

    layers: int
    hidden: int
    heads: int


@dataclass(frozen=True)
class Size:
    """Hyperparameters."""

    vision: Tower
    text: Tower
    image: int
    patch: int
    vocabulary: int
    length: int
    joint: int
    """Width of the space both towers project to."""
    answers: int


SMALL = Size(Tower(4, 128, 4), Tower(4, 96, 4), 96, 16, 4096, 32, 64, 100)
FULL = Size(Tower(12, 768, 12), Tower(12, 512, 8), 224, 32, 49408, 77, 512, 3129)


def _block(b: Builder, tower: Tower, x: Value, bias: Value | None) -> Value:
    with b.scope("self_attn"):
        y = layer_norm(b, x, "layer_norm1")
        y = self_attention(b, y, tower.heads, bias, "q_proj", "k_proj", "v_proj")
        x = b.add(x, linear(b, y, tower.hidden, "out_proj", gain=1 / sqrt(2)))
    with b.scope("mlp"):
        y = layer_norm(b, x, "layer_norm2")
        y = quick_gelu(b, linear(b, y, 4 * tower.hidden, "fc1"), "activation_fn")
        return b.add(x, linear(b, y, tower.hidden, "fc2", gain=1 / sqrt(2)))


def _encoder(b: Builder, tower: Tower, x: Value, bias: Value | None = None) -> Value:
    for index in range(tower.layers):
        with b.scope("encoder", f"layers.{index}"):
            x = _block(b, tower, x, bias)
    return x


def _normalise(b: Builder, x: Value) -> Value:
    return b.div(x, b.reduce("ReduceL2", x, [-1]))


def _vision(b: Builder, size: Size, pixels: Value) -> Value:
    hidden = size.vision.hidden
    with b.scope("embeddings"):
        x = patches(b, pixels, hidden, size.patch, "patch_embedding")
        x = b.concat([b.weight("class_embedding", (1, 1, hidden), normal(1.0)), x], axis=1)
        x = b.add(x, b.weight("position_embedding", x.shape[1:], normal(0.3)))
    x = _encoder(b, size.vision, layer_norm(b, x, "pre_layrnorm"))
    pooled = layer_norm(b, b.gather(x, b.const(0, INT64), axis=1), "post_layernorm")
    return _normalise(b, linear(b, pooled, size.joint, "visual_projection", bias=False))


def _text(b: Builder, size: Size, words: Value, present: Value) -> Value:
    hidden, length = size.text.hidden, size.length
    with b.scope("embeddings"):
        x = b.gather(b.weight("token", (size.vocabulary, hidden), normal(1.0)), words)
        x = add_positions(b, x, length, "position", normal(0.3))
    mask = padding_mask(b, present, 1, 2)
    causal = b.const(np.triu(np.full((1, 1, length, length), -10000.0, np.float32), 1))
    x = _encoder(b, size.text, x, b.add(mask, causal))
    x = layer_norm(b, x, "final_layer_norm")
    last = b.op("ArgMax", words, axis=-1, keepdims=1)
    pooled = b.op("GatherND", x, last, batch_dims=1)
    return _normalise(b, linear(b, pooled, size.joint, "text_projection", bias=False))


def build(size: Size, seed: int = 0) -> Sample:
    """Return the model: similarity of image and text, and scores of the answers."""
    b = Builder("two_tower", opset=21, ir_version=10, seed=seed)
    pixels = b.input("pixel_values", (1, 3, size.image, size.image))
    words = b.input("input_ids", (1, size.length), INT64, (0, size.vocabulary - 1))
    present = b.input("attention_mask", (1, size.length), INT64, (0, 1))
    with b.scope("vision_model"):
        image = _vision(b, size, pixels)
    with b.scope("text_model"):
        text = _text(b, size, words, present)
    with b.scope("similarity"):
        scale = b.weight("logit_scale", (1,), normal(0.1, 14.3))
        similarity = b.mul(b.matmul(text, b.transpose(image, 1, 0)), scale)
    with b.scope("fusion"):
        joined = b.concat([image, text, b.mul(image, text)], axis=1)
        hidden = gelu(b, linear(b, joined, 4 * size.joint, "dense", gain=sqrt(size.joint)))
        answers = linear(b, hidden, size.answers, "answers", gain=2.0)
    b.output("similarity", similarity)
    b.output("answers", answers)
    return b.build()
