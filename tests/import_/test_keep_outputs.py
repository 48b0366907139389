"""Models of which only some outputs are wanted: what these do not need is dropped everywhere."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from dnnp import DnnpWarning, load, load_stages
from dnnp.formats.inputs import cost_cache
from dnnp.formats.onnx.fixed_inputs import fix_inputs, keep_outputs
from support.run import dnnp

FLOAT = TensorProto.FLOAT


def info(name: str, kind: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, [] if kind == TensorProto.BOOL else ["N", 8])


def node(op: str, reads: str, writes: str, **more: object) -> onnx.NodeProto:
    return helper.make_node(op, reads.split(), writes.split(), **more)


def three(order: int = 1) -> onnx.ModelProto:
    """Three outputs, two inputs; a body that captures a tensor of the main graph."""
    rng = np.random.default_rng(1)
    weights = [
        numpy_helper.from_array(rng.standard_normal((8, 8)).astype(np.float32), f"w{i}")
        for i in range(4)
    ]
    bodies = {
        f"{which}_branch": helper.make_graph([node(op, "a", which)], which, [], [info(which)])
        for which, op in (("then", "Relu"), ("else", "Neg"))
    }
    nodes = [
        node("MatMul", "x w0", "a"), node("Tanh", "a", "b"), node("MatMul", "b w1", "logits"),
        node("If", "flag", "chosen", **bodies), node("MatMul", "chosen w2", "features"),
        node("MatMul", "z w3", "e"), node("Add", "e logits", "both"),
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes[::order], "g", [info("x"), info("z"), info("flag", TensorProto.BOOL)],
        [info("logits"), info("features"), info("both")], weights,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.fixture(params=[1, -1], ids=["in order", "out of order"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    onnx.save(three(request.param), tmp_path / "three.onnx")
    return tmp_path / "three.onnx"


def names(model: onnx.ModelProto) -> tuple[set[str], set[str], set[str], set[str]]:
    graph = model.graph
    parts = (graph.output, graph.input, graph.initializer)
    return (*({each.name for each in part} for part in parts), {n.op_type for n in graph.node})


@pytest.mark.parametrize(
    ("texts", "left"),
    [
        (["logits"], ({"logits"}, {"x"}, {"w0", "w1"}, {"MatMul", "Tanh"})),
        (["features"], ({"features"}, {"x", "flag"}, {"w0", "w2"}, {"MatMul", "If"})),
        (["both"], ({"both"}, {"x", "z"}, {"w0", "w1", "w3"}, {"MatMul", "Tanh", "Add"})),
        (
            ["features,logits"],
            ({"logits", "features"}, {"x", "flag"}, {"w0", "w1", "w2"}, {"MatMul", "Tanh", "If"}),
        ),
    ],
)
@pytest.mark.parametrize("order", [1, -1])
def test_what_is_left(order: int, texts: list[str], left: tuple[set[str], ...]):
    model = three(order)
    kept, _ = keep_outputs(model, texts)
    assert names(model) == left
    assert set(kept) == left[0]
    assert kept == [name for name in ("logits", "features", "both") if name in left[0]]


def test_what_is_dropped_is_said(path: Path):
    done = dnnp("import", path, "--dim", "N=2", "--keep-outputs", "logits")
    assert done.status == 0
    assert "kept logits; dropped 4 nodes, 2 initializers, input z, input flag" in done.err
    assert b'"keep_outputs":["logits"]' in done.out
    with pytest.warns(DnnpWarning, match="dropped 4 nodes"):
        loaded = load(path, dims={"N": 2}, keep_outputs=["logits"])
    assert len(loaded.nodes) == 3


def test_names_with_commas(tmp_path: Path):
    model = three()
    for value in (*model.graph.output, *model.graph.node[2:3]):
        if isinstance(value, onnx.NodeProto):
            value.output[0] = "logits,features"
        elif value.name == "logits":
            value.name = "logits,features"
    model.graph.node[6].input[1] = "logits,features"
    assert keep_outputs(model, ["logits,features"])[0] == ["logits,features"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--keep-outputs", "logit"], "--keep-outputs logit: no output of that name; did you mean"),
        (["--keep-outputs", "logits,"], "--keep-outputs : no output of that name"),
        (["--keep-outputs", "a"], "--keep-outputs a: no output of that name; known: logits, feat"),
    ],
)
def test_refused(path: Path, words: list[str], says: str):
    done = dnnp("import", path, "--dim", "N=2", *words)
    assert (done.status, done.out) == (2, b"")
    assert says in done.err
    other = dnnp("import", "--from", "csv", "-", *words, stdin=b"name\na\n")
    assert "--keep-outputs is for ONNX models, not for csv" in other.err


def test_every_command_opens_the_same_model(path: Path, tmp_path: Path):
    """Run, verify, measure, export: only the outputs that are kept are compared and given."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 8)).astype(np.float32)
    np.savez(tmp_path / "in.npz", x=x)
    kept = dnnp("import", "-q", path, "--dim", "N=2", "--keep-outputs", "logits").out
    plan = dnnp("partition", "-q", "-k", "2", "--method", "uniform",
                stdin=dnnp("profile", "-q", stdin=kept).out)  # fmt: skip
    assert plan.status == 0, plan.err
    out = tmp_path / "out"
    run = dnnp("run", "-q", "--verify", "-n", "2", "--warmup", "0", "--inputs",
               tmp_path / "in.npz", "--outputs", out, stdin=plan.out)  # fmt: skip
    assert run.status == 0, run.err
    assert b'"verified":true' in run.out
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    z, flag = np.zeros((2, 8), np.float32), np.array(True)
    (expected,) = session.run(["logits"], {"x": x, "z": z, "flag": flag})
    dnnp("export", "-q", "--to", "stages", "-o", tmp_path / "s", stdin=plan.out)
    given = load_stages(str(tmp_path / "s")).run({"x": x})
    assert set(given) == {"logits"}
    np.testing.assert_allclose(given["logits"], expected, rtol=1e-5, atol=1e-6)
    measured = dnnp("profile", "--mode", "measure", "--repeats", "1", "--no-cache", stdin=kept)
    assert measured.status == 0, measured.err


def test_measured_costs_of_other_outputs_are_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Both halves of a model have as many nodes; what is kept of one is not found for the other."""
    ops = [node("MatMul", "x w", "a"), node("Relu", "x", "b")]
    weight = numpy_helper.from_array(np.eye(8, dtype=np.float32), "w")
    graph = helper.make_graph(ops, "g", [info("x")], [info("a"), info("b")], [weight])
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    onnx.save(model, tmp_path / "m.onnx")
    keys: list[str] = []
    monkeypatch.setattr(cost_cache, "load", lambda folder, key, *more: keys.append(key))
    for name in ("a", "b", "a"):
        kept = dnnp("import", "-q", tmp_path / "m.onnx", "--dim", "N=1",
                    "--keep-outputs", name).out  # fmt: skip
        done = dnnp("profile", "--mode", "measure", "--repeats", "1", "--cache",
                    tmp_path / "cache", stdin=kept)  # fmt: skip
        assert done.status == 0, done.err
    assert len(keys) == 3
    assert keys[0] == keys[2] != keys[1]


def test_with_a_fixed_input(path: Path):
    """Folding first may free an output of an input."""
    done = dnnp("import", path, "--dim", "N=2", "--set-input", "flag=true",
                "--keep-outputs", "features")  # fmt: skip
    assert done.status == 0, done.err
    assert b'"If"' not in done.out
    model = three()
    fix_inputs(model, {"flag": "true"})
    keep_outputs(model, ["features"])
    onnx.checker.check_model(model)
    assert names(model)[1] == {"x"}


def test_an_unsorted_model_with_a_fixed_input_keeps_all_it_needs():
    model = three(-1)
    fix_inputs(model, {"flag": "false"})
    assert {o for n in model.graph.node for o in n.output} >= {"a", "b", "logits", "e", "both"}


def test_a_stream_that_names_no_output_is_refused(path: Path):
    kept = dnnp("import", "-q", path, "--dim", "N=2", "--keep-outputs", "logits").out
    plan = dnnp("partition", "-q", "-k", "1", stdin=dnnp("profile", "-q", stdin=kept).out).out
    done = dnnp("run", "-q", stdin=plan.replace(b'["logits"]', b'["nothing"]'))
    assert done.status != 0
    assert "no output of that name" in done.err
    assert done.err.count("\n") == 1
