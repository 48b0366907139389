"""Memory of nodes as ONNX Runtime measures it: session.collect_node_memory_stats_to_file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import orjson
import pytest
from onnx import helper, numpy_helper

from support.run import dnnp

HEAD = "#name,input_sizes,initializers_sizes,total_dynamic_sizes,total_temp_allocations\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Two products with names, one of them with a comma, and an operator without."""
    weights = [numpy_helper.from_array(np.eye(16, dtype=np.float32), f"w{i}") for i in range(2)]
    info = [helper.make_tensor_value_info(name, 1, ["N", 16]) for name in "xy"]
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["a"], name="first"),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "w1"], ["y"], name='last, "really"'),
    ]
    graph = helper.make_graph(nodes, "g", info[:1], info[1:], weights)
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    onnx.save(model, tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def memories(data: bytes) -> list[Any]:
    nodes = [r for r in map(orjson.loads, data.splitlines()) if r["type"] == "node"]
    return [n.get("memory_bytes") for n in nodes]


def profiled(path: Path, text: str, *more: object) -> Any:
    (path.parent / "memory.csv").write_text(text)
    stream = dnnp("import", "-q", path, "--dim", "N=4").out
    return dnnp("profile", "--costs", path.parent / "memory.csv", *more, stdin=stream)


def test_weights_outputs_and_what_was_measured(path: Path):
    """An output counts as it was allocated if that is more; what is allocated meanwhile adds."""
    done = profiled(
        path, HEAD + 'first_123,256,0,1000,50\nlast, "really"_77,0,9,10,7\nMul_1,1,1,1,1\n'
    )
    assert done.status == 0
    assert "memory of 2 of 3 nodes was measured" in done.err
    assert memories(done.out) == [1024 + 1000 + 50, 256, 1024 + 256 + 7]
    priced = dnnp("profile", "-q", stdin=done.out).out
    assert memories(priced) == memories(done.out)
    plan = dnnp("partition", "-q", "-k", "2", "--method", "uniform", stdin=priced)
    assert dnnp("check", stdin=plan.out).status == 0
    stages = [r for r in map(orjson.loads, plan.out.splitlines()) if r["type"] == "stage"]
    assert sum(s["memory_bytes"] for s in stages) == sum(memories(done.out))


def test_what_onnxruntime_writes(path: Path):
    options = onnxruntime.SessionOptions()
    name = str(path.parent / "memory.csv")
    options.add_session_config_entry("session.collect_node_memory_stats_to_file", name)
    session = onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])
    session.run(None, {"x": np.zeros((32, 16), np.float32)})
    del session
    if not (path.parent / "memory.csv").exists():
        pytest.skip("this version of ONNX Runtime does not write it")
    stream = dnnp("import", "-q", path, "--dim", "N=4").out
    done = dnnp("profile", "--costs", name, stdin=stream)
    assert done.status == 0, done.err
    assert memories(done.out)[0] == 1024 + 32 * 16 * 4  # of the batch that ran


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (HEAD, "memory of no node: was anything run?"),
        (HEAD + "first_1,1,1,1\n", "memory.csv:2: expected a name and four numbers of bytes"),
        (HEAD + "first_1,1,1,1,-1\n", "memory.csv:2: expected a name and four numbers of bytes"),
        (HEAD + "first_1,1,1,1,nan\n", "memory.csv:2: expected a name and four numbers"),
        (HEAD + "first_1,1,1,1,1e5\n", "memory.csv:2: expected a name and four numbers"),
        (HEAD + "first_1,1,1,1," + "9" * 400 + "\n", "memory.csv:2: expected a name and four"),
        (HEAD + "other_1,1,1,1,1\n", "no node is called as any of its 1 name, such as 'other'"),
    ],
)
def test_refused(path: Path, text: str, says: str):
    done = profiled(path, text)
    assert (done.status, done.out, done.err.count("\n")) == (3, b"", 1)
    assert says in done.err
