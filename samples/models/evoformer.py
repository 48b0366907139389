"""AlphaFold2-like Evoformer shapes for planning (opset 17).

Jumper et al., "Highly accurate protein structure prediction with AlphaFold", 2021, supplement
section 1.6; sizes of Table IV in Zhang et al., "Moirai: Towards Optimal Placement for Distributed
Inference on Heterogeneous Devices", 2023, which gives the number of blocks, the width of the MSA
representation and its number of heads. The width of the pair representation is chosen to meet the
parameter counts; its attention heads are as wide as those of AlphaFold2 (32).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np

from dnnp.samples.builder import Builder
from dnnp.samples.layers import layer_norm, linear
from dnnp.samples.shapes import INT64, Value
from dnnp.samples.weights import Sample

PAIR_HEAD_WIDTH = 32
OUTER_WIDTH = 32
"""Channels on each side of the outer product mean."""
REACH = 32
"""Relative positions beyond this share one embedding."""


@dataclass(frozen=True)
class Size:
    """Hyperparameters."""

    blocks: int
    msa: int
    heads: int
    pair: int
    sequences: int = 128
    residues: int = 256


SIZES = {
    "87m": Size(48, 256, 8, 128),
    "930m": Size(64, 512, 16, 512),
    "2.4b": Size(96, 1024, 32, 448),
    "3.2b": Size(128, 1024, 32, 448),
}


@dataclass(frozen=True)
class _Masks:
    """Inputs of every block besides its two representations."""

    row: Value
    """[sequences, 1, residues], added to scores."""
    column: Value
    """[residues, 1, sequences], added to scores."""
    pair_row: Value
    """[residues, 1, 1, residues], added to scores."""
    pair_column: Value
    """The same for the transposed pair representation."""
    msa: Value
    """[sequences, residues, 1], multiplied."""
    pair: Value
    """[residues, residues, 1], multiplied."""
    count: Value
    """[residues, residues, 1], sequences that hold both residues."""


def _projections(b: Builder, x: Value, width: int) -> list[Value]:
    query, key, value = (linear(b, x, x.shape[-1], f"linear_{name}", bias=False) for name in "qkv")
    return [b.mul(query, 1 / sqrt(width)), key, value]


def _gated(b: Builder, x: Value, y: Value, width: int) -> Value:
    """Add the gate that the module's input opens for its result, and the last projection."""
    gate = b.op("Sigmoid", linear(b, x, y.shape[-1], "linear_g"))
    return linear(b, b.mul(gate, y), width, "linear_o")


def _msa_attention(b: Builder, size: Size, x: Value, mask: Value, bias: Value | None) -> Value:
    """Add attention along axis 1 of the normalised `x`, [batch, length, width], head by head."""
    parts = [
        b.split(part, size.heads, axis=2) for part in _projections(b, x, size.msa // size.heads)
    ]
    biases = [] if bias is None else b.split(bias, size.heads, axis=0)
    results = []
    for head in range(size.heads):
        with b.scope(f"head.{head}"):
            query, key, value = (part[head] for part in parts)
            scores = b.add(b.matmul(query, b.transpose(key, 0, 2, 1)), mask)
            if biases:
                scores = b.add(scores, biases[head])
            results.append(b.matmul(b.softmax(scores), value))
    return _gated(b, x, b.concat(results, axis=2), size.msa)


def _triangle_attention(b: Builder, z: Value, mask: Value) -> Value:
    """Add attention along the rows of the pair representation, all heads at once."""
    residues, _, width = z.shape
    heads = width // PAIR_HEAD_WIDTH
    z = layer_norm(b, z, "layer_norm")
    bias = b.transpose(linear(b, z, heads, "linear_b", bias=False), 2, 0, 1)
    query, key, value = (
        b.transpose(b.reshape(part, [residues, residues, heads, PAIR_HEAD_WIDTH]), 0, 2, 1, 3)
        for part in _projections(b, z, PAIR_HEAD_WIDTH)
    )
    scores = b.matmul(query, b.transpose(key, 0, 1, 3, 2))
    scores = b.add(b.add(scores, mask), b.unsqueeze(bias, 0))
    context = b.transpose(b.matmul(b.softmax(scores), value), 0, 2, 1, 3)
    return _gated(b, z, b.reshape(context, [residues, residues, width]), width)


def _triangle_product(b: Builder, z: Value, mask: Value, outgoing: bool) -> Value:
    """Add the multiplicative update by the edges that leave, or enter, two residues."""
    width = z.shape[-1]
    z = layer_norm(b, z, "layer_norm_in")
    sides = []
    for name in ("a", "b"):
        gate = b.op("Sigmoid", linear(b, z, width, f"linear_{name}_g"))
        sides.append(b.mul(b.mul(linear(b, z, width, f"linear_{name}_p"), gate), mask))
    left = b.transpose(sides[0], *((2, 0, 1) if outgoing else (2, 1, 0)))
    right = b.transpose(sides[1], *((2, 1, 0) if outgoing else (2, 0, 1)))
    product = b.transpose(b.matmul(left, right), 1, 2, 0)
    update = linear(b, layer_norm(b, product, "layer_norm_out"), width, "linear_z")
    return b.mul(update, b.op("Sigmoid", linear(b, z, width, "linear_g")))


def _outer_product_mean(b: Builder, m: Value, width: int, masks: _Masks) -> Value:
    sequences, residues, _ = m.shape
    m = layer_norm(b, m, "layer_norm")
    left, right = (b.mul(linear(b, m, OUTER_WIDTH, f"linear_{i}"), masks.msa) for i in (1, 2))
    left = b.reshape(b.transpose(left, 1, 2, 0), [residues * OUTER_WIDTH, sequences])
    right = b.reshape(right, [sequences, residues * OUTER_WIDTH])
    outer = b.reshape(b.matmul(left, right), [residues, OUTER_WIDTH, residues, OUTER_WIDTH])
    outer = b.reshape(b.transpose(outer, 0, 2, 1, 3), [residues, residues, OUTER_WIDTH**2])
    return b.div(linear(b, outer, width, "linear_out"), masks.count)


def _transition(b: Builder, x: Value) -> Value:
    width = x.shape[-1]
    hidden = b.op("Relu", linear(b, layer_norm(b, x, "layer_norm"), 4 * width, "linear_1"))
    return linear(b, hidden, width, "linear_2")


def _block(b: Builder, size: Size, m: Value, z: Value, masks: _Masks) -> tuple[Value, Value]:
    with b.scope("msa_att_row"):
        pair = linear(b, layer_norm(b, z, "layer_norm_z"), size.heads, "linear_z", bias=False)
        y = layer_norm(b, m, "layer_norm_m")
        m = b.add(m, _msa_attention(b, size, y, masks.row, b.transpose(pair, 2, 0, 1)))
    with b.scope("msa_att_col"):
        y = layer_norm(b, b.transpose(m, 1, 0, 2), "layer_norm_m")
        m = b.add(m, b.transpose(_msa_attention(b, size, y, masks.column, None), 1, 0, 2))
    with b.scope("msa_transition"):
        m = b.add(m, _transition(b, m))
    with b.scope("outer_product_mean"):
        z = b.add(z, _outer_product_mean(b, m, size.pair, masks))
    with b.scope("tri_mul_out"):
        z = b.add(z, _triangle_product(b, z, masks.pair, outgoing=True))
    with b.scope("tri_mul_in"):
        z = b.add(z, _triangle_product(b, z, masks.pair, outgoing=False))
    with b.scope("tri_att_start"):
        z = b.add(z, _triangle_attention(b, z, masks.pair_row))
    with b.scope("tri_att_end"):
        turned = _triangle_attention(b, b.transpose(z, 1, 0, 2), masks.pair_column)
        z = b.add(z, b.transpose(turned, 1, 0, 2))
    with b.scope("pair_transition"):
        z = b.add(z, _transition(b, z))
    return m, z


def _masks(b: Builder, msa: Value, pair: Value) -> _Masks:
    def additive(mask: Value) -> Value:
        return b.mul(b.sub(mask, 1.0), 1e9)

    turned = b.transpose(msa, 1, 0)
    row, column, turned_pair = additive(msa), additive(turned), additive(b.transpose(pair, 1, 0))
    return _Masks(
        row=b.unsqueeze(row, 1),
        column=b.unsqueeze(column, 1),
        pair_row=b.unsqueeze(additive(pair), 1, 2),
        pair_column=b.unsqueeze(turned_pair, 1, 2),
        msa=b.unsqueeze(msa, 2),
        pair=b.unsqueeze(pair, 2),
        count=b.unsqueeze(b.add(b.matmul(turned, msa), 1e-3), 2),
    )


def _embed(b: Builder, size: Size) -> tuple[Value, Value]:
    """Add the input and recycling embedders."""
    residues = size.residues
    target = b.input("target_feat", (residues, 22))
    features = b.input("msa_feat", (size.sequences, residues, 49))
    index = b.input("residue_index", (residues,), INT64, (0, residues - 1))
    previous_m = b.input("msa_prev", (residues, size.msa))
    previous_z = b.input("pair_prev", (residues, residues, size.pair))
    with b.scope("input_embedder"):
        m = b.add(
            linear(b, features, size.msa, "linear_msa_m"),
            linear(b, target, size.msa, "linear_tf_m"),
        )
        left = b.unsqueeze(linear(b, target, size.pair, "linear_tf_z_i"), 1)
        right = b.unsqueeze(linear(b, target, size.pair, "linear_tf_z_j"), 0)
        offset = b.add(b.sub(b.unsqueeze(index, 1), b.unsqueeze(index, 0)), REACH)
        offset = b.op("Clip", offset, b.const(0, INT64), b.const(2 * REACH, INT64))
        table = b.weight("linear_relpos", (2 * REACH + 1, size.pair))
        z = b.add(b.add(left, right), b.gather(table, offset))
    with b.scope("recycling_embedder"):
        first, rest = b.op_n("Split", m, b.ints([1, size.sequences - 1]), outputs=2, axis=0)
        first = b.add(first, layer_norm(b, previous_m, "layer_norm_m"))
        m = b.concat([first, rest], axis=0)
        z = b.add(z, layer_norm(b, previous_z, "layer_norm_z"))
    return m, z


def build(size: Size, seed: int = 0) -> Sample:
    """Return embedders, the Evoformer stack and three heads, without weights."""
    b = Builder("evoformer", opset=17, ir_version=8, seed=seed, planning=True)
    m, z = _embed(b, size)
    msa_mask = b.input("msa_mask", (size.sequences, size.residues))
    pair_mask = b.input("pair_mask", (size.residues, size.residues))
    with b.scope("masks"):
        masks = _masks(b, msa_mask, pair_mask)
    for index in range(size.blocks):
        with b.scope("evoformer", f"blocks.{index}"):
            m, z = _block(b, size, m, z, masks)
    with b.scope("heads"):
        b.output("masked_msa_logits", linear(b, m, 23, "masked_msa"))
        half = linear(b, z, 64, "distogram")
        b.output("distogram_logits", b.add(half, b.transpose(half, 1, 0, 2)))
        first = b.gather(m, b.const(np.int64(0)), axis=0)
        b.output("single", linear(b, first, 384, "single"))
    return b.build()
