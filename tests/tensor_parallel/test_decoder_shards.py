"""Operators of decoders on several devices: attention by heads, caches, products of few bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from support.sharded import check_all
from support.split_models import Feeds, array, graph, make, node, value

CONTRIB = "com.microsoft"
Shape = tuple[int, ...]
RNG = np.random.default_rng(7)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def model_of(
    it: onnx.NodeProto, given: dict[str, np.ndarray], made: dict[str, Shape], *stored: TensorProto,
    opset: int = 23,
) -> tuple[onnx.ModelProto, Feeds]:  # fmt: skip
    """A model of one node, and what it is fed."""
    inputs = [
        value(name, x.shape, helper.np_dtype_to_tensor_dtype(x.dtype)) for name, x in given.items()
    ]
    outputs = [value(name, shape) for name, shape in made.items()]
    model = make(graph([it], it.op_type, inputs, outputs, list(stored)), opset=opset, ir=10)
    model.opset_import.append(helper.make_opsetid(CONTRIB, 1))
    return model, given


def tables(width: int) -> list[TensorProto]:
    """Tables of a rotary embedding for 32 positions."""
    at = np.outer(np.arange(32), 10.0 ** -np.arange(width // 2))
    return [array("cos", np.cos(at)), array("sin", np.sin(at))]


def grouped(
    heads: int, cached: int, rows: int, seq: int, past: int, *, packed: bool = False,
    rotary: bool = True, masked: bool = False,
) -> tuple[onnx.ModelProto, Feeds]:  # fmt: skip
    """GroupQueryAttention over a prompt (past 0) or a token."""
    width, total = 16, past + seq
    given = {"q": floats(rows, seq, heads * width)}
    if packed:
        given = {"q": floats(rows, seq, (heads + 2 * cached) * width)}
    else:
        given |= {"k": floats(rows, seq, cached * width), "v": floats(rows, seq, cached * width)}
    given |= {"pk": floats(rows, cached, past, width), "pv": floats(rows, cached, past, width)}
    given |= {"lengths": np.full(rows, total - 1, np.int32), "total": np.array(total, np.int32)}
    names = ["q", *(["", ""] if packed else ["k", "v"]), "pk", "pv", "lengths", "total"]
    names += ["cos", "sin"] * rotary or ["", ""]
    if masked:
        given["mask"] = floats(rows, heads, seq, total)
        names += ["", "mask"]
    it = node("GroupQueryAttention", names, ["y", "nk", "nv"], name="it", domain=CONTRIB,
              num_heads=heads, kv_num_heads=cached, do_rotary=int(rotary))  # fmt: skip
    cache = (rows, cached, total, width)
    made = {"y": (rows, seq, heads * width), "nk": cache, "nv": cache}
    return model_of(it, given, made, *(tables(width) if rotary else ()))


def several(
    heads: int, rows: int, seq: int, past: int, *, biased: bool = False, mask: int = 0
) -> tuple[onnx.ModelProto, Feeds]:
    """MultiHeadAttention with a cache; `mask`: heads that its bias has, 0: none."""
    width, total = 8, past + seq
    given = {name: floats(rows, seq, heads * width) for name in "qkv"}
    cache = {name: floats(rows, heads, past, width) for name in ("pk", "pv")}
    names = ["q", "k", "v", "bias" * biased, "", "mask" * bool(mask), "pk", "pv"]
    if mask:
        given["mask"] = floats(rows, mask, seq, total)
    it = node("MultiHeadAttention", names, ["y", "nk", "nv"], name="it", domain=CONTRIB,
              num_heads=heads)  # fmt: skip
    after = (rows, heads, total, width)
    stored = [array("bias", floats(3 * heads * width))] * biased
    made = {"y": (rows, seq, heads * width), "nk": after, "nv": after}
    return model_of(it, given | cache, made, *stored)


def standard(
    heads: int, cached: int, rows: int, seq: int, past: int, *, flat: bool, mask: int = 0,
    opset: int = 23,
) -> tuple[onnx.ModelProto, Feeds]:  # fmt: skip
    """Attention of opset 23 or 24, of tensors with an axis of heads or without (`flat`)."""
    width, total = 8, past + seq
    given = {
        name: floats(rows, seq, n * width) if flat else floats(rows, n, seq, width)
        for name, n in (("q", heads), ("k", cached), ("v", cached))
    }
    if mask:
        given["mask"] = floats(rows, mask, seq, total)
    given |= {name: floats(rows, cached, past, width) for name in ("pk", "pv")}
    counts = {"q_num_heads": heads, "kv_num_heads": cached} if flat else {}
    it = node("Attention", ["q", "k", "v", "mask" * bool(mask), "pk", "pv"], ["y", "nk", "nv"],
              name="it", **counts)  # fmt: skip
    after = (rows, cached, total, width)
    out = (rows, seq, heads * width) if flat else (rows, heads, seq, width)
    return model_of(it, given, {"y": out, "nk": after, "nv": after}, opset=opset)


def turned(flat: bool, domain: str, heads: int = 4) -> tuple[onnx.ModelProto, Feeds]:
    """RotaryEmbedding of [batch, heads, tokens, width], or of [batch, tokens, heads * width]."""
    shape = (2, 3, heads * 8) if flat else (2, heads, 3, 8)
    at = np.array([[0, 1, 2], [4, 5, 6]])
    names = ["x", "at", "cos", "sin"] if domain else ["x", "cos", "sin", "at"]
    more = {"num_heads": heads} if flat and not domain else {}
    it = node("RotaryEmbedding", names, ["y"], name="it", domain=domain, **more)
    return model_of(it, {"x": floats(*shape), "at": at}, {"y": shape}, *tables(8))


def few_bits(
    k: int, n: int, bits: int, *, flat: bool, zeros: str = "", biased: bool = False
) -> tuple[onnx.ModelProto, Feeds]:
    """MatMulNBits in blocks of 16, with zero points that are packed, floats or not there."""
    blocks = k // 16
    shape = (n * blocks,) if flat else (n, blocks)
    stored = [array("b", RNG.integers(0, 256, (n, blocks, 16 * bits // 8)), np.uint8)]
    stored.append(array("scales", RNG.random(shape) + 0.5))
    if zeros == "packed":
        row = -(-blocks * bits // 8)
        many = RNG.integers(0, 256, (n * row,) if flat else (n, row))
        stored.append(array("zeros", many, np.uint8))
    elif zeros:
        stored.append(array("zeros", RNG.random(shape) * 4))
    if biased:
        stored.append(array("bias", floats(n)))
    names = ["x", "b", "scales", "zeros" * bool(zeros), "", "bias" * biased]
    while not names[-1]:
        names.pop()
    it = node("MatMulNBits", names, ["y"], name="it", domain=CONTRIB, K=k, N=n, bits=bits,
              block_size=16)  # fmt: skip
    return model_of(it, {"x": floats(2, 3, k)}, {"y": (2, 3, n)}, *stored)


def normalised(op: str, domain: str, outputs: list[str]) -> tuple[onnx.ModelProto, Feeds]:
    """A norm of rows, of a sum or of one tensor."""
    shape = (4, 8, 16)
    given = {"x": floats(*shape)} | ({"s": floats(*shape)} if op[:4] == "Skip" else {})
    stored = [array("w", floats(16))]
    it = node(op, [*given, "w"], outputs, name="it", domain=domain)
    return model_of(it, given, {name: shape for name in outputs if name}, *stored)


SUM = ["y", "", "", "sum"]
CASES = {
    "grouped, prompt": (grouped(8, 4, 2, 5, 0), 1),
    "grouped, token": (grouped(8, 4, 2, 1, 6), 1),
    "grouped, long token": (grouped(4, 4, 1, 1, 17, rotary=False), 1),
    "grouped, chunk": (grouped(8, 8, 1, 4, 3), 1),
    "grouped, packed prompt": (grouped(4, 4, 2, 5, 0, packed=True), 1),
    "grouped, packed token": (grouped(4, 4, 3, 1, 6, packed=True), 1),
    "grouped, mask by heads": (grouped(8, 4, 1, 3, 0, masked=True), 1),
    "several, prompt": (several(4, 2, 5, 0), 1),
    "several, token": (several(8, 2, 1, 4, biased=True), 1),
    "several, mask": (several(4, 2, 3, 0, mask=4), 1),
    "several, mask of all heads": (several(4, 2, 1, 4, mask=1), 1),
    "standard, by heads": (standard(8, 4, 2, 3, 4, flat=False), 1),
    "standard, by hidden": (standard(8, 4, 2, 1, 4, flat=True), 1),
    "standard, prompt": (standard(4, 4, 2, 5, 0, flat=True, mask=4), 1),
    "standard, opset 24": (standard(4, 4, 1, 2, 3, flat=False, mask=1, opset=24), 1),
    "rotary, by heads": (turned(False, ""), 1),
    "rotary, by hidden": (turned(True, ""), 1),
    "rotary, by heads, contrib": (turned(False, CONTRIB), 1),
    "rotary, by hidden, contrib": (turned(True, CONTRIB), 1),
    "4 bits": (few_bits(128, 8, 4, flat=True), 2),
    "4 bits, of rank 2": (few_bits(128, 8, 4, flat=False, biased=True), 2),
    "4 bits, packed zeros": (few_bits(128, 8, 4, flat=True, zeros="packed"), 2),
    "4 bits, packed zeros of rank 2": (few_bits(128, 12, 4, flat=False, zeros="packed"), 2),
    "4 bits, zeros of floats": (few_bits(64, 8, 4, flat=True, zeros="floats", biased=True), 2),
    "8 bits": (few_bits(64, 8, 8, flat=True, zeros="packed"), 2),
    "norm": (normalised("RMSNormalization", "", ["y"]), 2),
    "simplified norm": (normalised("SimplifiedLayerNormalization", "", ["y"]), 2),
    "norm of a sum": (normalised("SkipSimplifiedLayerNormalization", CONTRIB, SUM), 2),
    "layer norm of a sum": (normalised("SkipLayerNormalization", CONTRIB, ["y"]), 2),
}


@pytest.mark.parametrize("t", [2, 4])
@pytest.mark.parametrize("name", CASES)
def test_each_rule_of_an_operator(name: str, t: int, tmp_path: Path) -> None:
    (model, feeds), least = CASES[name]
    count, warned = check_all(model, tmp_path, t, feeds, rtol=1e-4)
    assert not warned
    assert count >= least


UNFIT = {
    "two heads of keys": grouped(8, 2, 2, 1, 4),
    "packed, more queries than keys": grouped(8, 4, 2, 1, 4, packed=True),
    "six heads": several(6, 2, 1, 4),
    "odd blocks": few_bits(48, 6, 4, flat=True),
}


@pytest.mark.parametrize("name", UNFIT)
def test_no_rule_where_parts_are_not_equal(name: str, tmp_path: Path) -> None:
    model, feeds = UNFIT[name]
    assert check_all(model, tmp_path, 4, feeds) == (0, [])
