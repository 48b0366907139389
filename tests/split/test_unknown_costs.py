"""Unknown costs are in the plan, in messages, and never optimal."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from support.run import Result, dnnp

FLOAT = TensorProto.FLOAT


def info(name: str, *shape: int, kind: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def save(path: Path, *nodes: onnx.NodeProto, **tensors: tuple[int, ...]) -> Path:
    """A model from x to y, both [1, 64], with weights of ones."""
    weights = [
        helper.make_tensor(name, FLOAT, shape, [1.0] * (shape[0] * shape[1]))
        for name, shape in tensors.items()
    ]
    graph = helper.make_graph(nodes, "g", [info("x", 1, 64)], [info("y", 1, 64)], weights)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    opsets.append(helper.make_opsetid("org.example", 1))
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return path


def planned(path: Path) -> Result:
    made = dnnp("import", path)
    done = dnnp("partition", "-k", "2", stdin=made.out)
    assert done.status == 0, done.err
    return done


def node(op: str, reads: str, writes: str, domain: str = "", **more: object) -> onnx.NodeProto:
    return helper.make_node(op, reads.split(), writes.split(), domain=domain, **more)


@pytest.fixture
def sizeless(tmp_path: Path) -> bytes:
    """A plan over a tensor whose size nothing tells."""
    odd = node("Odd", "a", "b", "org.example")
    path = save(
        tmp_path / "m.onnx", node("MatMul", "x w", "a"), odd, node("MatMul", "b w", "y"),
        w=(64, 64),
    )  # fmt: skip
    done = planned(path)
    assert "1 tensor of unknown size, counted as 0 bytes" in done.err
    assert "--shapes run" in done.err
    assert "optimal," not in done.err
    return done.out


def test_unknown_sizes_are_never_optimal(sizeless: bytes) -> None:
    plan = next(r for r in map(json.loads, sizeless.splitlines()) if r["type"] == "plan")
    assert plan["status"] == "feasible"
    assert plan["unknown"]["sizes"] == 1
    assert 0 < plan["unknown"]["time"] <= 1
    for command in ("bound", "schedule", "check", "view"):
        done = dnnp(command, *(("-n", "2") if command == "schedule" else ()), stdin=sizeless)
        assert done.status == 0, done.err
        assert "1 size unknown" in done.err + done.out.decode(), command
    bound = dnnp("bound", stdin=sizeless)
    assert {bound.one("plan")["status"], bound.one("bound")["status"]} <= {"feasible", "proven"}


def test_checker_recomputes_it(sizeless: bytes) -> None:
    for before, after in (
        ('"sizes":1', '"sizes":0'),
        ('"status":"feasible"', '"status":"optimal"'),
    ):
        edited = sizeless.decode().replace(before, after).encode()
        assert edited != sizeless
        assert dnnp("check", stdin=edited).status == 3


def test_an_endless_loop_counts_one_trip(tmp_path: Path) -> None:
    """A `while` has no number of trips: one is priced, and that is said."""
    body = helper.make_graph(
        [node("Identity", "go", "on"), node("MatMul", "s w", "t")], "b",
        [info("i", kind=TensorProto.INT64), info("go", kind=TensorProto.BOOL), info("s", 1, 64)],
        [info("on", kind=TensorProto.BOOL), info("t", 1, 64)],
    )  # fmt: skip
    path = tmp_path / "m.onnx"
    save(path, node("MatMul", "x w", "a"), node("Loop", "M c a", "y", body=body), w=(64, 64))
    model = onnx.load(path)
    model.graph.initializer.append(helper.make_tensor("M", TensorProto.INT64, [], [2**63 - 1]))
    model.graph.initializer.append(helper.make_tensor("c", TensorProto.BOOL, [], [True]))
    onnx.save(model, path)
    done = planned(path)
    loop = next(r for r in done.records("node") if r["op"] == "Loop")
    assert (loop["flop"], loop["partial"]) == (2 * 64 * 64, True)
    assert done.one("plan")["unknown"]["sizes"] == 0
    assert done.one("plan")["value"] < 1e-3
    assert "one trip of a loop whose number of trips is unknown: Loop (1)" in done.err
    assert "% of the time" in done.err
    assert "dnnp-profile --mode measure" in done.err
    assert dnnp("check", stdin=done.out).status == 0


def test_weights_in_attributes_are_parameters(tmp_path: Path) -> None:
    weights = [0.5] * 64 * 64
    node_ = node("LinearRegressor", "a", "y", "ai.onnx.ml", coefficients=weights, targets=64)
    path = save(tmp_path / "m.onnx", node("Relu", "x", "a"), node_)
    model = onnx.load(path)
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    onnx.save(model, path)
    done = planned(path)
    held = [r for r in done.records("tensor") if r["kind"] == "parameter"]
    assert [(r["name"], r["size_bytes"]) for r in held] == [("y:attributes", 4 * 64 * 64)]
    assert sum(r["memory_bytes"] for r in done.records("stage")) > 4 * 64 * 64
    short = dnnp("partition", "-k", "2", "--memory", "8000", stdin=dnnp("import", path).out)
    assert short.status == 4
    run = dnnp("run", "-n", "2", "--verify", stdin=done.out)
    assert run.status == 0, run.err


@pytest.mark.parametrize("steps", [(), ("coarsen",)])
def test_weights_that_fold_stay_with_their_reader(tmp_path: Path, steps: tuple[str, ...]) -> None:
    """No run for a sample computes them, and no element of half a byte crosses stages."""
    path = save(
        tmp_path / "m.onnx", node("Identity", "z", "i"), node("QuantizeLinear", "w s i", "q"),
        node("DequantizeLinear", "q s i", "d"), node("MatMul", "x d", "a"), node("Relu", "a", "y"),
        w=(64, 64),
    )  # fmt: skip
    model = onnx.load(path)
    model.opset_import[0].version = 22
    model.graph.initializer.append(helper.make_tensor("z", TensorProto.INT4, [64], [0] * 64))
    model.graph.initializer.append(helper.make_tensor("s", FLOAT, [64], [0.1] * 64))
    onnx.save(model, path)
    out = dnnp("import", path).out
    for step in (*steps, "profile"):
        out = dnnp(step, stdin=out).out
    done = dnnp("partition", "-k", "2", "--method", "uniform", stdin=out)
    times = {r["op"]: r["time_s"]["cpu-core"] for r in done.records("node")}
    free = ("Identity", "QuantizeLinear", "DequantizeLinear")
    assert [times[op] for op in free] == [0, 0, 0]
    assert times["MatMul"] > 0
    run = dnnp("run", "-n", "2", "--verify", stdin=done.out)
    assert run.status == 0, run.err
