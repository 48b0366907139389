"""State from pass to pass: which inputs and outputs are one, on which device, and its memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from dnnp import load
from dnnp.core.model.errors import UsageError

FLOAT, INT64, INT32 = TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32
Model = tuple[list[onnx.NodeProto], list[onnx.ValueInfoProto], list[onnx.ValueInfoProto]]


def info(name: str, kind: int, *shape: object) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def node(op: str, reads: str, writes: str, domain: str = "", **more: object) -> onnx.NodeProto:
    names = [name.replace("_", "") if name == "_" else name for name in reads.split()]
    return helper.make_node(op, names, writes.split(), domain=domain, **more)


def save(path: Path, model: Model, opset: int = 20) -> Path:
    nodes, inputs, outputs = model
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return path


def cached(
    before: Sequence[str], after: Sequence[str], op: str = "Concat", layers: int = 2
) -> Model:
    """Layers that append to a key and a value each, as `op` does it."""
    nodes, inputs, outputs = [], [info("x", FLOAT, "batch", 2, "seq", 8)], []
    if op == "GroupQueryAttention":
        inputs = [info("x", FLOAT, "batch", "seq", 16), info("lengths", INT32, "batch")]
        inputs.append(info("total", INT32))
    x = "x"
    for i in range(layers):
        k, v = (name.format(i) for name in before)
        pk, pv = (name.format(i) for name in after)
        inputs += [info(name, FLOAT, "batch", 2, "past", 8) for name in (k, v)]
        outputs += [info(name, FLOAT, "batch", 2, "total", 8) for name in (pk, pv)]
        if op == "GroupQueryAttention":
            nodes.append(node(op, f"{x} {x} {x} {k} {v} lengths total", f"h{i} {pk} {pv}",
                              "com.microsoft", num_heads=2, kv_num_heads=2))  # fmt: skip
        elif op == "Attention":
            nodes.append(node(op, f"{x} {x} {x} _ {k} {v}", f"h{i} {pk} {pv}"))
        else:
            nodes.append(node("Concat", f"{k} {x}", pk, axis=2))
            nodes.append(node("Concat", f"{v} {x}", pv, axis=2))
            nodes.append(node("Transpose", pk, f"t{i}", perm=[0, 1, 3, 2]))
            nodes.append(node("MatMul", f"{x} t{i}", f"s{i}"))
            nodes.append(node("MatMul", f"s{i} {pv}", f"h{i}"))
        x = f"h{i}"
    outputs.append(
        info(x, FLOAT, *(["batch", "seq", 16] if "Group" in op else ["batch", 2, "seq", 8]))
    )
    return nodes, inputs, outputs


DIMS = {"batch": 3, "seq": 1, "past": 7}


def states(path: Path, **more: Any) -> list[dict[str, Any]]:
    """State records of a model, with names in place of ids."""
    stream = load(path, **{"dims": DIMS, **more}).stream()
    names = {tensor["id"]: tensor["name"] for tensor in stream.get("tensor")}
    assert stream.header["version"] == (2 if stream.get("state") else 1)
    ends = ("input", "output")
    return [{**s, **{end: names[s[end]] for end in ends}} for s in stream.get("state")]


@pytest.mark.parametrize(
    ("before", "after", "op"),
    [
        (("past_key_values.{}.key", "past_key_values.{}.value"), ("present.{}.key", "present.{}.value"), "Concat"),  # noqa: E501
        (("past_key_values.{}.key", "past_key_values.{}.value"), ("present.{}.key", "present.{}.value"), "GroupQueryAttention"),  # noqa: E501
        (("past_{}", "pastv_{}"), ("present_{}", "presentv_{}"), "Concat"),
        (("kv_key_cache_{}", "kv_value_cache_{}"), ("cat_{}", "cat_1{}"), "Concat"),
        (("a{}", "b{}"), ("c{}", "d{}"), "Attention"),
        (("cached_key_{}", "cached_val_{}"), ("new_cached_key_{}", "new_cached_val_{}"), "Concat"),
    ],
)  # fmt: skip
def test_caches_of_decoders(
    tmp_path: Path, before: tuple[str, str], after: tuple[str, str], op: str
) -> None:
    opset = 23 if op == "Attention" else 20
    found = states(save(tmp_path / "m.onnx", cached(before, after, op), opset))
    pairs = {(s["input"], s["output"]) for s in found}
    assert pairs == {
        (a.format(i), b.format(i)) for i in (0, 1) for a, b in zip(before, after, strict=True)
    }
    for state in found:
        assert (state["rows"], state["token_bytes"]) == (3, 2 * 8 * 4)
        assert state.get("shared", False) is (op == "GroupQueryAttention")
        assert state["tokens"] == 8 or op == "GroupQueryAttention"


def test_recurrent_state_has_one_size(tmp_path: Path) -> None:
    nodes = [
        node("LSTM", "x w r _ _ h c", "y hn cn", hidden_size=4),
        node("Concat", "conv s", "joined", axis=2),
        node("Slice", "joined one four axis", "rolled"),
    ]
    inputs = [
        info("x", FLOAT, "seq", "batch", 8), info("ids", FLOAT, "batch"),
        info("w", FLOAT, 1, 16, 8), info("r", FLOAT, 1, 16, 4), info("h", FLOAT, 1, "batch", 4),
        info("c", FLOAT, 1, "batch", 4), info("conv", FLOAT, "batch", 5, 3),
        info("s", FLOAT, "batch", 5, 1), info("one", INT64, 1), info("four", INT64, 1),
        info("axis", INT64, 1),
    ]  # fmt: skip
    outputs = [
        info("y", FLOAT, "seq", 1, "batch", 4), info("hn", FLOAT, 1, "batch", 4),
        info("cn", FLOAT, 1, "batch", 4), info("rolled", FLOAT, "batch", 5, 3),
    ]  # fmt: skip
    path = save(tmp_path / "m.onnx", (nodes, inputs, outputs))
    found = states(path, dims={"batch": 3, "seq": 2})
    assert {(s["input"], s["output"]) for s in found} == {
        ("h", "hn"), ("c", "cn"), ("conv", "rolled")
    }  # fmt: skip
    assert {(s["input"], s["rows"], s["sequence_bytes"]) for s in found} == {
        ("h", 3, 16), ("c", 3, 16), ("conv", 3, 60)
    }  # fmt: skip
    assert all("token_bytes" not in s for s in found)


def test_what_looks_like_state_and_is_none(tmp_path: Path) -> None:
    nodes, inputs, outputs = cached(("a{}", "b{}"), ("c{}", "d{}"), layers=1)
    inputs.append(info("past_0", INT64, "batch", 2, "past", 8))
    nodes += [node("Identity", "x", "present_0"), node("Cast", "past_0", "other", to=FLOAT)]
    outputs += [info("present_0", FLOAT, "batch", 2, "seq", 8)]
    outputs += [info("other", FLOAT, "batch", 2, "past", 8)]
    path = save(tmp_path / "m.onnx", (nodes, inputs, outputs))
    with pytest.warns(UserWarning, match="'past_0' and 'present_0' are no state: the types are"):
        assert [s["input"] for s in states(path)] == ["a0", "b0"]
    assert states(path, state=["none"]) == []


def test_given_pairs(tmp_path: Path) -> None:
    model = cached(("a{}", "b{}"), ("c{}", "d{}"), layers=1)
    for proto in model[0][:2]:
        proto.input[0], proto.input[1] = proto.input[1], proto.input[0]
    path = save(tmp_path / "m.onnx", model)
    assert states(path) == []
    found = states(path, state={"a0": "c0"})
    assert [(s["input"], s["output"]) for s in found] == [("a0", "c0")]
    for given, reason in (
        ({"a0": "h0"}, "the shapes are"),
        ({"a0": "nothing"}, "no output is called 'nothing'"),
        ({"y": "c0"}, "no input is called 'y'"),
    ):
        with pytest.raises(UsageError, match=reason):
            states(path, state=given)
    with pytest.raises(UsageError, match="--state none takes nothing as state"):
        states(path, state=["none", "a0=c0"])
