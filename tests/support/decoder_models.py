"""Small decoders with random weights, as exporters write them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WORDS, WIDTH, HEADS = 50, 32, 2
BATCH, SEQ, PAST, TOTAL = (
    "batch_size", "sequence_length", "past_sequence_length", "total_sequence_length"
)  # fmt: skip


class _Model:
    """Nodes, weights and ends while a decoder is built."""

    def __init__(self, seed: int) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.rng = np.random.default_rng(seed)

    def node(self, op: str, reads: str, writes: str, domain: str = "", **more: object) -> str:
        made = helper.make_node(op, reads.split(), writes.split(), domain=domain, **more)
        self.nodes.append(made)
        return writes.split()[0]

    def weight(self, name: str, *shape: int) -> str:
        values = (self.rng.standard_normal(shape) * 0.3).astype(np.float32)
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def constant(self, name: str, *values: int) -> str:
        self.weights.append(numpy_helper.from_array(np.array(values, np.int64), name))
        return name

    def given(self, name: str, kind: int, *shape: object) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def state(self, layer: int, what: str) -> tuple[str, str]:
        before, after = f"past_key_values.{layer}.{what}", f"present.{layer}.{what}"
        cache = BATCH, HEADS
        self.given(before, TensorProto.FLOAT, *cache, PAST, WIDTH // HEADS)
        self.outputs.append(
            helper.make_tensor_value_info(after, TensorProto.FLOAT, (*cache, TOTAL, WIDTH // HEADS))
        )
        return before, after

    def save(self, path: Path) -> Path:
        self.weight("head", WIDTH, WORDS)
        last = self.nodes[-1].output[0]
        self.node("MatMul", f"{last} head", "logits")
        logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, (BATCH, SEQ, WORDS))
        graph = helper.make_graph(
            self.nodes, "decoder", self.inputs, [logits, *self.outputs], self.weights
        )
        opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
        onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
        return path


def eager_decoder(path: Path, layers: int = 4, seed: int = 0) -> Path:
    """Caches grow by `Concat`; a mask hides what comes later in a pass."""
    return _eager(path, layers, seed)


def masked_decoder(
    path: Path, layers: int = 4, seed: int = 0, places: str = "given", hides: bool = True
) -> Path:
    """Caches grow by `Concat`, and an input says which tokens are hidden.

    `places`: positions are `given`, or a bias that is `counted` in the mask; or they follow from
    the length of the past, by a `range` or as rows of a table that are `sliced`. `hides`: false:
    the mask hides nothing.
    """
    return _eager(path, layers, seed, places, masked=True, hides=hides)


def _eager(
    path: Path, layers: int, seed: int, places: str = "given", *, masked: bool = False,
    hides: bool = True,
) -> Path:  # fmt: skip
    model = _Model(seed)
    model.given("input_ids", TensorProto.INT64, BATCH, SEQ)
    model.constant("heads", 0, 0, HEADS, WIDTH // HEADS)
    model.constant("whole", 0, 0, WIDTH)
    model.constant("ends", 0, 1)
    model.constant("axis", 1)
    model.node("Gather", f"{model.weight('words', WORDS, WIDTH)} input_ids", "word")
    _hidden_later(model)
    if masked:
        model.given("attention_mask", TensorProto.INT64, BATCH, TOTAL)
        _hidden_by_mask(model, hides)
    x = _placed(model, places)
    later = model.nodes[-1].output[0] if places == "counted" else "hidden" if masked else "later"
    for i in range(layers):
        for w in "qkv":
            model.weight(f"{w}{i}.w", WIDTH, WIDTH)
            model.node("MatMul", f"{x} {w}{i}.w", f"{w}{i}")
            model.node("Reshape", f"{w}{i} heads", f"{w}{i}.split")
            model.node("Transpose", f"{w}{i}.split", f"{w}{i}.t", perm=[0, 2, 1, 3])
        key, value = model.state(i, "key"), model.state(i, "value")
        model.node("Concat", f"{key[0]} k{i}.t", key[1], axis=2)
        model.node("Concat", f"{value[0]} v{i}.t", value[1], axis=2)
        model.node("Transpose", key[1], f"keys{i}", perm=[0, 1, 3, 2])
        model.node("MatMul", f"q{i}.t keys{i}", f"raw{i}")
        model.node("Add", f"raw{i} {later}", f"seen{i}")
        model.node("Softmax", f"seen{i}", f"share{i}")
        model.node("MatMul", f"share{i} {value[1]}", f"mix{i}")
        model.node("Transpose", f"mix{i}", f"mix{i}.t", perm=[0, 2, 1, 3])
        model.node("Reshape", f"mix{i}.t whole", f"a{i}")
        x = model.node("Add", f"{x} a{i}", f"x{i + 1}")
    return model.save(path)


def _hidden_later(model: _Model) -> None:
    """A tensor `later`, f[1, 1, seq, total], with large negative numbers for later tokens."""
    for name, value in (("zero", 0), ("one", 1)):
        model.weights.append(numpy_helper.from_array(np.array(value, np.int64), name))
    for name, value in (("low", -1e9), ("none", 0.0)):
        model.weights.append(numpy_helper.from_array(np.array(value, np.float32), name))
    model.constant("two", 2)
    model.node("Shape", "past_key_values.0.key", "past.shape")
    model.node("Gather", "past.shape two", "past.size")
    model.node("Shape", "input_ids", "ids.shape")
    model.node("Gather", "ids.shape axis", "ids.size")
    model.node("Add", "past.size ids.size", "all.size")
    model.node("Squeeze", "all.size", "all.count")
    model.node("Squeeze", "past.size", "past.count")
    model.node("Range", "past.count all.count one", "rows")
    model.node("Range", "zero all.count one", "columns")
    model.node("Unsqueeze", "rows axis", "rows.column")
    model.node("Greater", "columns rows.column", "is.later")
    model.node("Where", "is.later low none", "later.plain")
    model.node("Unsqueeze", "later.plain ends", "later")


def _hidden_by_mask(model: _Model, hides: bool) -> None:
    """A tensor `hidden`, f[batch, 1, seq, total], which also hides what the mask does."""
    model.node("Cast", "attention_mask", "is.there", to=TensorProto.BOOL)
    model.node("Where", "is.there none low", "gone")
    model.constant("middle", 1, 2)
    model.node("Unsqueeze", "gone middle", "gone.wide")
    model.node(*("Add", "later gone.wide") if hides else ("Identity", "later"), "hidden")


def _placed(model: _Model, places: str) -> str:
    """Words with what depends on their positions; where these are counted, a bias for scores."""
    table = model.weight("places", 256, WIDTH)
    match places:
        case "given":
            model.given("position_ids", TensorProto.INT64, BATCH, SEQ)
            model.node("Gather", f"{table} position_ids", "place")
        case "range":
            model.node("Gather", f"{table} rows", "place")
        case "sliced":
            model.constant("first", 0)
            model.node("Slice", f"{table} past.size all.size first", "place")
        case "counted":
            model.node("CumSum", "attention_mask axis.one", "counts")
            model.weights.append(numpy_helper.from_array(np.array(1, np.int64), "axis.one"))
            model.node("Cast", "counts", "counts.float", to=TensorProto.FLOAT)
            model.node("Unsqueeze", "counts.float middle", "counts.wide")
            slopes = np.array([0.5, 0.125], np.float32).reshape(1, HEADS, 1, 1)
            model.weights.append(numpy_helper.from_array(slopes, "slopes"))
            model.node("Mul", "counts.wide slopes", "bias")
            model.node("Add", "hidden bias", "hidden.biased")
            return "word"
    return model.node("Add", "word place", "x0")


def grouped_decoder(path: Path, layers: int = 4, seed: int = 0) -> Path:
    """Caches in place by `GroupQueryAttention`, whose lengths are inputs."""
    model = _Model(seed)
    model.given("input_ids", TensorProto.INT64, BATCH, SEQ)
    model.given("seqlens_k", TensorProto.INT32, BATCH)
    model.given("total_sequence_length", TensorProto.INT32)
    x = model.node("Gather", f"{model.weight('words', WORDS, WIDTH)} input_ids", "x0")
    angles = np.outer(np.arange(256), 10000.0 ** (-np.arange(8) / 8)).astype(np.float32)
    model.weights.append(numpy_helper.from_array(np.cos(angles), "cos"))
    model.weights.append(numpy_helper.from_array(np.sin(angles), "sin"))
    for i in range(layers):
        for w in "qkv":
            model.weight(f"{w}{i}.w", WIDTH, WIDTH)
            model.node("MatMul", f"{x} {w}{i}.w", f"{w}{i}")
        key, value = model.state(i, "key"), model.state(i, "value")
        reads = f"q{i} k{i} v{i} {key[0]} {value[0]} seqlens_k total_sequence_length cos sin"
        model.node("GroupQueryAttention", reads, f"a{i} {key[1]} {value[1]}", "com.microsoft",
                   num_heads=HEADS, kv_num_heads=HEADS, do_rotary=1)  # fmt: skip
        x = model.node("Add", f"{x} a{i}", f"x{i + 1}")
    return model.save(path)
