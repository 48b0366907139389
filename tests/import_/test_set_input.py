"""Inputs with a fixed value: branches are inlined, and every command opens the same model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from dnnp import load, load_stages, profile
from dnnp.formats.onnx.fixed_inputs import fix_inputs
from support.run import dnnp

FLOAT, BOOL = TensorProto.FLOAT, TensorProto.BOOL


def info(name: str, kind: int, *shape: object) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def node(op: str, reads: str, writes: str, **more: object) -> onnx.NodeProto:
    return helper.make_node(op, reads.split(), writes.split(), **more)


def branch(name: str, op: str, layers: int) -> onnx.GraphProto:
    """Products with an outer weight, a weight of its own, an inner If, which is a result too."""
    inner = [
        helper.make_graph([node(each, "h0", "z")], each, [], [info("z", FLOAT, 1, 8)])
        for each in ("Relu", op)
    ]
    nodes = [node("MatMul", "a w", "h0"), node("If", "no", "k", then_branch=inner[0],
                                               else_branch=inner[1])]  # fmt: skip
    for i in range(layers):
        nodes += [node("Mul", f"{'k' if not i else f'm{i - 1}'} s", f"m{i}")]
    weight = numpy_helper.from_array(np.full((1, 8), 0.5 + layers, np.float32), "s")
    outputs = [info(f"m{layers - 1}", FLOAT, 1, 8), info("s", FLOAT, 1, 8)]
    return helper.make_graph(nodes, name, [], outputs, [weight])


@pytest.fixture
def merged(tmp_path: Path) -> Path:
    """Two models in one `If` on an input, twice, with the same names inside."""
    weights = [numpy_helper.from_array(np.eye(8, dtype=np.float32) * 2, "w")]
    branches = {"then_branch": branch("t", "Sigmoid", 12), "else_branch": branch("e", "Tanh", 3)}
    nodes = [
        node("Neg", "x", "a"), node("Not", "cache", "no"),
        node("If", "cache", "p q", **branches),
        node("If", "cache", "r u", **branches), node("Add", "p r", "v"), node("Add", "q u", "y"),
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes, "g", [info("x", FLOAT, "N", 8), info("cache", BOOL, 1)],
        [info("v", FLOAT, "N", 8), info("y", FLOAT, "N", 8)], weights,
    )  # fmt: skip
    path = tmp_path / "merged.onnx"
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    onnx.checker.check_model(str(path))
    return path


@pytest.mark.parametrize(("value", "products"), [("true", 12), ("False", 3), ("0", 3)])
def test_a_branch_is_inlined_and_runs(
    merged: Path, tmp_path: Path, value: str, products: int
) -> None:
    made = dnnp("import", "--dim", "N=1", "--set-input", f"cache={value}", merged)
    assert made.status == 0, made.err
    ops = [r["op"] for r in made.records("node")]
    assert "If" not in ops
    assert (ops.count("MatMul"), ops.count("Mul")) == (2, 2 * products)
    assert ops.count("Sigmoid") == 2 * (value == "true")
    assert made.one("header")["source"]["set_inputs"] == {"cache": value}
    plan = dnnp("partition", "-k", "3", "--method", "uniform", stdin=made.out)
    assert len(plan.records("stage")) == 3
    run = dnnp("run", "-n", "2", "--verify", stdin=plan.out)
    assert run.status == 0, run.err
    # The stages, run one after the other, are the model with the input set.
    folder = tmp_path / "stages"
    done = dnnp("export", "--to", "stages", "-o", folder, stdin=plan.out)
    assert done.status == 0, done.err
    x = np.linspace(-1, 1, 8, dtype=np.float32)[None]
    cache = np.array([value == "true"])
    want = onnxruntime.InferenceSession(merged).run(["v", "y"], {"x": x, "cache": cache})
    got = load_stages(folder).run({"x": x})
    for name, array in zip(("v", "y"), want, strict=True):
        np.testing.assert_array_equal(got[name], array)
    model = onnx.load(merged)
    fix_inputs(model, {"cache": value})
    onnx.checker.check_model(model, full_check=True)


def test_from_python_and_by_measuring(merged: Path) -> None:
    graph = load(merged, dims={"N": 1}, set_input={"cache": True})
    graph = profile(graph, mode="measure", repeats=1, warmup=0, no_cache=True)
    assert "If" not in {record["op"] for record in graph.nodes}
    assert all(record["time_s"] for record in graph.nodes)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("cache", "give NAME=VALUE, once"),
        ("other=1", "no input of that name; there are x, cache"),
        ("x=1", "only an input of one element has a value"),
        ("cache=maybe", "'maybe' is no number, true or false"),
        ("cache=2", "2 is no bool"),
    ],
)
def test_values_that_cannot_be(merged: Path, given: str, said: str) -> None:
    result = dnnp("import", "--dim", "N=1", "--set-input", given, merged)
    assert result.status == 2
    assert said in result.err


def test_what_is_all_in_one_node_is_said(merged: Path) -> None:
    model = onnx.load(merged)
    del model.graph.node[3]
    model.graph.node[3].input[1] = "p"
    model.graph.node[4].input[1] = "q"
    onnx.save(model, merged)
    result = dnnp("import", "--dim", "N=1", merged)
    assert result.status == 0
    assert "'If:p' holds 23 of 28 operators and is not split" in result.err
    assert "--set-input cache=true or =false takes one branch" in result.err
