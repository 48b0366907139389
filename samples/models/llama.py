"""Decoders with caches as onnxruntime-genai's builder writes them, or by ONNX's operators alone.

Touvron et al., "LLaMA", 2023; sizes of "The Llama 3 Herd of Models", 2024 (405B), and of
"DeepSeek-V3 Technical Report", 2024 (experts). Grouped attention in place of all else that a layer
does to its caches; rotary embeddings inside it; opset 23 and operators of ONNX Runtime. Or, of
opset 24, rotary embeddings and attention under a mask, whose caches grow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from dnnp.samples.weights import Fill, Sample, Weight, normal

CONTRIB = "com.microsoft"
BLOCK = 32
"""Elements of a matrix that share a scale."""
BATCH, SEQ, PAST, TOTAL = (
    "batch_size", "sequence_length", "past_sequence_length", "total_sequence_length"
)  # fmt: skip


@dataclass(frozen=True)
class Size:
    """Hyperparameters."""

    layers: int
    hidden: int
    heads: int
    cached_heads: int
    inner: int
    """Width inside a feed-forward part, or inside an expert."""
    vocabulary: int
    experts: int = 0
    """Experts of each layer, of which each token goes through `chosen`; 0: one dense part."""
    chosen: int = 0
    context: int = 4096
    planning: bool = False
    """Without weights, which are float16 then."""
    four_bits: bool = False
    """Matrices with elements of 4 bits, in blocks with a scale each; products take 8 bits."""
    standard: bool = False
    """Without operators of ONNX Runtime."""

    @property
    def head(self) -> int:
        """Width of a head."""
        return self.hidden // self.heads


SIZES = {
    "small": Size(4, 128, 4, 2, inner=352, vocabulary=1024, context=1024),
    "full": Size(8, 512, 8, 4, inner=1408, vocabulary=8192),
    "int4": Size(8, 512, 8, 4, inner=1408, vocabulary=8192, four_bits=True),
    "opset24": Size(4, 128, 4, 2, inner=352, vocabulary=1024, context=1024, standard=True),
    "405b": Size(126, 16384, 128, 8, 53248, 128256, planning=True, context=131072),
    "experts": Size(61, 7168, 56, 8, 2048, 129280, 256, 8, planning=True, context=131072),
}


class _Decoder:
    """Nodes and weights of a decoder while it is built."""

    def __init__(self, size: Size) -> None:
        self.size = size
        self.dtype = TensorProto.FLOAT16 if size.planning else TensorProto.FLOAT
        self.nodes: list[onnx.NodeProto] = []
        self.named: Counter[str] = Counter()
        self.weights: list[Weight] = []
        self.constants: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []

    def op(self, op: str, *inputs: str, out: str, domain: str = "", **attributes: Any) -> str:
        """Add a node, named after the scope of its first output."""
        outputs = out.split()
        name = f"{outputs[0].rpartition('/')[0]}/{op}"
        self.named[name] += 1
        name += f"_{self.named[name] - 1}" * (self.named[name] > 1)
        node = helper.make_node(op, inputs, outputs, name=name, domain=domain, **attributes)
        self.nodes.append(node)
        return outputs[0]

    def weight(self, name: str, *shape: int, fill: Fill | None = None, trained: bool = True) -> str:
        fill = fill or normal(1 / sqrt(shape[-2] if len(shape) > 1 else 1.0))
        self.weights.append(Weight(name, self.dtype, shape, fill, trained))
        return name

    def product(self, x: str, name: str, inner: int, outer: int, out: str) -> str:
        """Add a product with a matrix [inner, outer]."""
        if not self.size.four_bits:
            return self.op("MatMul", x, self.weight(name, inner, outer), out=out)
        shape, std = (outer, inner // BLOCK), 1 / sqrt(inner * np.var(np.arange(-7, 8)))
        packed = Weight(f"{name}.codes", TensorProto.UINT8, (*shape, BLOCK // 2), _codes, True, 2)
        self.weights.append(packed)
        scales = self.weight(f"{name}.scales", *shape, fill=normal(0.1 * std, std), trained=False)
        return self.op(
            "MatMulNBits", x, packed.name, scales, out=out, domain=CONTRIB, K=inner, N=outer,
            bits=4, block_size=BLOCK, accuracy_level=4,
        )  # fmt: skip

    def constant(self, name: str, array: Any) -> str:
        self.constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def given(self, name: str, kind: int, *shape: str | int) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def norm(self, name: str) -> str:
        return self.weight(f"{name}.weight", self.size.hidden, fill=normal(0.1, 1.0))


def _codes(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    """Two numbers of -7 to 7 a byte, whose mean is 0: else sums would drift to one side."""
    low, high = rng.integers(1, 16, (2, *shape), np.uint8)
    return low | high << 4


def _mask(d: _Decoder) -> tuple[str]:
    """The mask of each row, once for each of its new tokens: ONNX Runtime does not broadcast it."""
    seen = d.op("Cast", "attention_mask", out="/mask/seen", to=TensorProto.BOOL)
    axes = d.constant("axes", np.array([1, 2], np.int64))
    wide, one = d.op("Unsqueeze", seen, axes, out="/mask/wide"), d.constant("one", np.array([1]))
    count = d.op("Shape", "input_ids", out="/mask/count", start=1)
    shape = d.op("Concat", one, count, one, out="/mask/shape", axis=0)
    return (d.op("Expand", wide, shape, out="/mask/y"),)


def _lengths(d: _Decoder) -> tuple[str, str]:
    """Tokens of each row less one, and the length of the mask, as grouped attention reads them."""
    one = d.constant("one", np.array([1], np.int64))
    counted = d.op("ReduceSum", "attention_mask", one, out="/mask/sum", keepdims=0)
    less = d.op("Sub", counted, one, out="/mask/less")
    lengths = d.op("Cast", less, out="/mask/lengths", to=TensorProto.INT32)
    shape = d.op("Shape", "attention_mask", out="/mask/shape")
    size = d.op("Gather", shape, d.constant("axis", np.array(1, np.int64)), out="/mask/size")
    total = d.op("Cast", size, out="/mask/total", to=TensorProto.INT32)
    return lengths, total


def _angles(size: Size, turn: Any) -> Fill:
    """Cosines or sines of the rotary embedding, [context, head / 2]."""

    def fill(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
        step = 10000.0 ** (-np.arange(shape[1]) / shape[1])
        return turn(np.outer(np.arange(shape[0]), step)).astype(np.float32)

    return fill


def _attention(d: _Decoder, i: int, x: str, seen: Sequence[str]) -> str:
    size, at = d.size, f"/layers.{i}/attn"
    width = {"q": size.heads * size.head, "k": size.cached_heads * size.head}
    width["v"] = width["k"]
    parts = [
        d.product(x, f"layers.{i}.attn.{p}", size.hidden, wide, f"{at}/{p}/y")
        for p, wide in width.items()
    ]
    ends = []
    for what in ("key", "value"):
        shape = (BATCH, size.cached_heads)
        d.given(f"past_key_values.{i}.{what}", d.dtype, *shape, PAST, size.head)
        made = helper.make_tensor_value_info(
            f"present.{i}.{what}", d.dtype, (*shape, TOTAL, size.head)
        )
        d.outputs.append(made)
        ends.append(f"past_key_values.{i}.{what}")
    outputs, tables = f"{at}/y present.{i}.key present.{i}.value", ("cos_cache", "sin_cache")
    heads = size.heads, size.cached_heads
    if size.standard:
        for j, count in enumerate(heads):
            parts[j] = d.op("RotaryEmbedding", parts[j], *tables, "position_ids",
                            out=f"{at}/{'qk'[j]}/turned", num_heads=count)  # fmt: skip
        mixed = d.op("Attention", *parts, *seen, *ends, out=outputs, q_num_heads=heads[0],
                     kv_num_heads=heads[1], is_causal=1)  # fmt: skip
    else:
        mixed = d.op("GroupQueryAttention", *parts, *ends, *seen, *tables, out=outputs,
                     domain=CONTRIB, num_heads=heads[0], kv_num_heads=heads[1],
                     do_rotary=1)  # fmt: skip
    return d.product(mixed, f"layers.{i}.attn.o", width["q"], size.hidden, f"{at}/o/y")


def _dense(d: _Decoder, i: int, x: str) -> str:
    size, at = d.size, f"/layers.{i}/mlp"
    gate, up = (
        d.product(x, f"layers.{i}.mlp.{part}", size.hidden, size.inner, f"{at}/{part}/y")
        for part in ("gate", "up")
    )
    open_ = d.op("Mul", gate, d.op("Sigmoid", gate, out=f"{at}/act/s"), out=f"{at}/act/y")
    wide = d.op("Mul", open_, up, out=f"{at}/y")
    return d.product(wide, f"layers.{i}.mlp.down", size.inner, size.hidden, f"{at}/down/y")


def _experts(d: _Decoder, i: int, x: str) -> str:
    size, at = d.size, f"/layers.{i}/moe"
    router = d.weight(f"layers.{i}.moe.router", size.hidden, size.experts)
    scores = d.op("MatMul", x, router, out=f"{at}/router/y")
    rows = d.op("Reshape", scores, "rows", out=f"{at}/router/rows")
    up = d.weight(f"layers.{i}.moe.up", size.experts, size.inner, size.hidden)
    down = d.weight(f"layers.{i}.moe.down", size.experts, size.hidden, size.inner)
    gate = d.weight(f"layers.{i}.moe.gate", size.experts, size.inner, size.hidden)
    return d.op("MoE", x, rows, up, "", down, "", gate, out=f"{at}/y", domain=CONTRIB,
                k=size.chosen, activation_type="silu", normalize_routing_weights=1)  # fmt: skip


def build(size: Size, seed: int = 0) -> Sample:
    """Return the decoder."""
    d = _Decoder(size)
    d.given("input_ids", TensorProto.INT64, BATCH, SEQ)
    d.given("attention_mask", TensorProto.INT64, BATCH, TOTAL)
    if size.standard:
        d.given("position_ids", TensorProto.INT64, BATCH, SEQ)
    seen = _mask(d) if size.standard else _lengths(d)
    for name, turn in (("cos_cache", np.cos), ("sin_cache", np.sin)):
        d.weight(name, size.context, size.head // 2, fill=_angles(size, turn), trained=False)
    if size.experts:
        d.constant("rows", np.array([-1, size.experts], np.int64))
    words = d.weight("embed", size.vocabulary, size.hidden, fill=normal(1.0))
    x = d.op("Gather", words, "input_ids", out="/embed/y")
    scale = d.norm("layers.0.input_norm")
    y = d.op("RMSNormalization", x, scale, out="/layers.0/input_norm/y", axis=-1, epsilon=1e-5)
    for i in range(size.layers):
        y = _attention(d, i, y, seen)
        y, x = _add_and_norm(d, x, y, f"layers.{i}.post_norm", f"/layers.{i}/post_norm")
        y = (_experts if size.experts else _dense)(d, i, y)
        last = i + 1 == size.layers
        name = "norm" if last else f"layers.{i + 1}.input_norm"
        y, x = _add_and_norm(d, x, y, name, "/norm" if last else f"/layers.{i + 1}/input_norm")
    d.product(y, "head", size.hidden, size.vocabulary, "logits")
    logits = helper.make_tensor_value_info("logits", d.dtype, (BATCH, SEQ, size.vocabulary))
    graph = helper.make_graph(d.nodes, "llama", d.inputs, [logits, *d.outputs], d.constants)
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid(CONTRIB, 1)]
    if size.standard:
        opsets = [helper.make_opsetid("", 24)]
    model = helper.make_model(
        graph, opset_imports=opsets, ir_version=10, producer_name="dnnp.samples"
    )
    sample = Sample(model, tuple(d.weights), {}, seed, size.planning)
    properties = {"dnnp.input_range.input_ids": f"0,{size.vocabulary - 1}"}
    properties |= {"dnnp.input_range.attention_mask": "1,1"}
    properties["dnnp.parameters"] = str(sample.parameters)
    if not size.planning:
        properties["dnnp.seed"] = str(seed)
    helper.set_model_props(model, properties)
    return sample


def _add_and_norm(d: _Decoder, x: str, y: str, weight: str, at: str) -> tuple[str, str]:
    """Add a branch to what goes past it: the normalised sum, and the sum."""
    if d.size.standard:
        total = d.op("Add", x, y, out=f"{at}/sum")
        scale = d.norm(weight)
        return d.op("RMSNormalization", total, scale, out=f"{at}/y", axis=-1, epsilon=1e-5), total
    outputs = [f"{at}/y"] if weight == "norm" else [f"{at}/y", "", "", f"{at}/sum"]
    node = helper.make_node(
        "SkipSimplifiedLayerNormalization", [x, y, d.norm(weight)],
        outputs, name=f"{at}/SkipSimplifiedLayerNormalization", domain=CONTRIB, epsilon=1e-5,
    )  # fmt: skip
    d.nodes.append(node)
    return outputs[0], outputs[-1]
