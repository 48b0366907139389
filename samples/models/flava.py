"""Encoders of an image and of a text, and one of both together (opset 17), for planning.

Singh et al., "FLAVA: A Foundational Language And Vision Alignment Model", 2022: its 12, 12 and 6
layers, as wide as those of Tessel's Fig. 15.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from dnnp.samples.builder import Builder
from dnnp.samples.layers import (
    Transformer,
    add_positions,
    gelu_tanh,
    layer_norm,
    linear,
    patches,
    self_attention,
)
from dnnp.samples.shapes import INT64, Value
from dnnp.samples.weights import Sample, normal


@dataclass(frozen=True)
class Size(Transformer):
    """Hyperparameters; `layers` are those of the encoder of images, and as many of texts."""

    joint: int
    """Layers of the encoder of both."""
    image: int
    patch: int


LARGE = Size(12, 4096, 32, vocabulary=30522, length=256, joint=6, image=256, patch=16)


def _encoder(b: Builder, size: Size, layers: int, x: Value) -> Value:
    for index in range(layers):
        with b.scope("encoder", f"layer.{index}"):
            y = layer_norm(b, x, "layernorm_before")
            with b.scope("attention"):
                context = self_attention(b, y, size.heads, None, "query", "key", "value")
                x = b.add(x, linear(b, context, size.hidden, "dense", gain=1 / sqrt(2)))
            y = layer_norm(b, x, "layernorm_after")
            with b.scope("mlp"):
                y = gelu_tanh(b, linear(b, y, 4 * size.hidden, "intermediate"))
                x = b.add(x, linear(b, y, size.hidden, "output", gain=1 / sqrt(2)))
    return layer_norm(b, x, "layernorm")


def build(size: Size, seed: int = 0) -> Sample:
    """Return the three encoders; the output is what both together make of image and text."""
    b = Builder("flava", opset=17, ir_version=8, seed=seed, planning=True)
    pixels = b.input("pixel_values", (1, 3, size.image, size.image))
    words = b.input("input_ids", (1, size.length), INT64, (0, size.vocabulary - 1))
    with b.scope("image_model"):
        with b.scope("embeddings"):
            x = patches(b, pixels, size.hidden, size.patch, "projection")
            image = b.add(x, b.weight("position_embeddings", x.shape[1:], normal(0.3)))
        image = _encoder(b, size, size.layers, image)
    with b.scope("text_model"):
        with b.scope("embeddings"):
            x = b.gather(b.weight("words", (size.vocabulary, size.hidden), normal(1.0)), words)
            text = add_positions(b, x, size.length, "positions", normal(0.3))
        text = _encoder(b, size, size.layers, text)
    with b.scope("multimodal_model"):
        image = linear(b, image, size.hidden, "image_projection")
        text = linear(b, text, size.hidden, "text_projection")
        both = _encoder(b, size, size.joint, b.concat([image, text], axis=1))
        b.output("last_hidden_state", both)
    return b.build()
