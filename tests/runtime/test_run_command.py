"""dnnp-run as a command: records, tables, checks, and every way to get it wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto

from dnnp.core.runtime.model import providers
from dnnp.formats.graph import digest_of, graph_of, units_of
from dnnp.formats.inputs.devices import class_record, load_device
from dnnp.formats.plan import plan_digest
from dnnp.formats.stream import read_bytes
from support.run import SAMPLES, Result, dnnp, interrupted_at_terminal
from support.running import planned, with_plan, written
from support.split_models import array, graph, make, node, value


def network() -> onnx.ModelProto:
    """An embedding, and two branches of equal shape that are subtracted."""
    rng = np.random.default_rng(0)
    nodes = [
        node("Gather", ["table", "ids"], ["e"]),
        node("Add", ["e", "x"], ["h"]),
        node("MatMul", ["h", "w1"], ["a"]),
        node("MatMul", ["h", "w2"], ["b"]),
        node("Tanh", ["a"], ["ta"]),
        node("Sub", ["ta", "b"], ["d"]),
        node("Softmax", ["d"], ["y"]),
    ]
    stored = [
        array("table", rng.standard_normal((11, 8))),
        array("w1", rng.standard_normal((8, 8))),
        array("w2", rng.standard_normal((8, 8))),
    ]
    inputs = [value("ids", [5], TensorProto.INT64), value("x", [5, 8])]
    outputs = [value("y", [5, 8]), value("a", [5, 8])]
    return make(graph(nodes, "net", inputs, outputs, stored))


SPLIT = [[0, 1], [2, 4], [3], [5, 6]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="module")
def stream(folder: Path) -> bytes:
    return planned(network(), folder, SPLIT)


RESULTS = (b'{"type":"plan"', b'{"type":"stage"')


def lines_of(result: Result) -> list[str]:
    """Messages of a failed command: one line, no traceback."""
    lines = result.err.strip().splitlines()
    assert "Traceback" not in result.err
    assert all(line.startswith("dnnp-run: ") for line in lines)
    return lines


def fails(status: int, message: str, *arguments: Any, stdin: bytes) -> None:
    result = dnnp("run", "-q", *arguments, stdin=stdin)
    (line,) = lines_of(result)
    assert (result.status, message in line) == (status, True), line
    assert result.out == b""


def test_a_verified_run_writes_its_record_and_table(stream: bytes) -> None:
    result = dnnp("run", "--verify", "-n", "10", stdin=stream)
    assert result.status == 0, result.err
    record = result.one("run")
    assert record["mode"] == "pipeline"
    assert (record["provider"], record["samples"], record["k"]) == ("cpu", 10, 4)
    assert record["verified"] is True
    assert record["max_abs_error"] <= 1e-5
    assert record["throughput_per_s"] > 0
    assert 0 < record["latency_p50_s"] <= record["latency_p99_s"]
    assert [s["device"] for s in record["stages"]] == [f"cpu-core/{i}" for i in range(4)]
    assert [s["predicted_s"] for s in record["stages"]] == [0.002, 0.002, 0.001, 0.002]
    assert all(s["measured_s"] > 0 and 0 <= s["bubble"] <= 1 for s in record["stages"])
    after, before = read_bytes(result.out), read_bytes(stream)
    assert record["digest"] == plan_digest(after.get("plan")[0], after.get("stage"))
    assert "interrupted" not in record
    for kind in ("tensor", "node", "plan", "stage"):
        assert after.get(kind) == before.get(kind)
    for text in ("predicted", "measured", "throughput", "latency", "bubble", "verified    yes"):
        assert text in result.err


def test_without_verification_nothing_is_claimed(stream: bytes) -> None:
    result = dnnp("run", "-n", "1", "--warmup", "0", "-q", stdin=stream)
    assert (result.status, result.err) == (0, "")
    record = result.one("run")
    assert "verified" not in record
    assert record["samples"] == 1


def test_a_second_run_replaces_the_first(stream: bytes) -> None:
    first = dnnp("run", "-n", "2", stdin=stream)
    second = dnnp("run", "-n", "3", stdin=first.out)
    assert second.one("run")["samples"] == 3


def test_comparison_with_the_whole_model_and_replicas(stream: bytes) -> None:
    result = dnnp("run", "-n", "6", "--compare", stdin=stream)
    assert result.status == 0, result.err
    runs = {r["mode"]: r for r in result.records("run")}
    cores = len(providers.available_cores())
    assert list(runs) == ["pipeline", "whole", "replicas"]
    assert runs["whole"]["threads"] == cores
    assert runs["replicas"]["k"] == min(4, cores)
    assert {r["samples"] for r in runs.values()} == {18}
    assert all(r["throughput_per_s"] > 0 for r in runs.values())
    assert "replicas in one process" in result.err


@pytest.mark.parametrize(
    "options",
    [
        ("--optimization", "disable"),
        ("--optimization", "basic"),
        ("--threads", "2"),
        ("--queue", "1"),
        ("--no-pin",),
        ("--warmup", "0"),
        ("--seed", "5"),
        ("-v",),
    ],
)
def test_options_do_not_change_the_verdict(stream: bytes, options: tuple[str, ...]) -> None:
    result = dnnp("run", "--verify", "-n", "5", *options, stdin=stream)
    assert result.status == 0, result.err
    assert result.one("run")["verified"] is True


def outputs_of(stream: bytes, path: Path, *options: Any) -> dict[str, np.ndarray]:
    result = dnnp("run", "-n", "4", "--save-outputs", path, *options, stdin=stream)
    assert result.status == 0, result.err
    with np.load(path) as archive:
        return dict(archive)


def test_same_seed_same_outputs(stream: bytes, tmp_path: Path) -> None:
    first = outputs_of(stream, tmp_path / "a.npz")
    again = outputs_of(stream, tmp_path / "b.npz", "--queue", "1", "--no-pin")
    other = outputs_of(stream, tmp_path / "c.npz", "--seed", "1")
    assert sorted(first) == sorted(f"{i}/{name}" for i in range(4) for name in "ay")
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    assert all(np.array_equal(first[k], again[k]) for k in first)
    assert not np.array_equal(first["0/y"], other["0/y"])
    assert not np.array_equal(first["0/y"], first["1/y"])


def test_given_inputs_are_used(stream: bytes, folder: Path, tmp_path: Path) -> None:
    feeds = {"ids": np.array([0, 10, 3, 3, 1]), "x": np.ones((5, 8), np.float32)}
    np.savez(tmp_path / "in.npz", **feeds)
    got = outputs_of(stream, tmp_path / "out.npz", "--inputs", tmp_path / "in.npz", "--verify")
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    for name, expected in zip(("y", "a"), session.run(["y", "a"], feeds), strict=True):
        np.testing.assert_allclose(got[name], expected, rtol=1e-5)


def test_more_inputs_than_samples_is_said(stream: bytes, tmp_path: Path) -> None:
    feeds = {"ids": np.arange(5), "x": np.ones((5, 8), np.float32)}
    np.savez(tmp_path / "in.npz", **feeds)
    inputs = ["--inputs", tmp_path / "in.npz"] * 3
    result = dnnp("run", "-n", "1", "--warmup", "1", "--verify", *inputs, stdin=stream)
    assert result.status == 0
    assert "only the first 2 of 3 inputs are used" in result.err


def test_free_dimensions_have_the_sizes_of_the_import(tmp_path: Path) -> None:
    nodes = [node("Relu", ["x"], ["a"]), node("Exp", ["a"], ["y"])]
    model = make(graph(nodes, "free", [value("x", ["n", 3])], [value("y", ["n", 3])]))
    stream = planned(model, tmp_path, [[0], [1]], "--dim", "n=7")
    assert outputs_of(stream, tmp_path / "out.npz", "--verify")["0/y"].shape == (7, 3)
    np.save(tmp_path / "in.npy", np.ones((2, 3), np.float32))
    given = outputs_of(stream, tmp_path / "out.npz", "--verify", "--inputs", tmp_path / "in.npy")
    assert given["y"].shape == (2, 3)


def test_a_model_without_inputs(tmp_path: Path) -> None:
    nodes = [
        node("RandomNormal", [], ["a"], shape=[3], seed=1.0),
        node("Mul", ["a", "zero"], ["b"]),
        node("Exp", ["b"], ["y"]),
    ]
    model = make(graph(nodes, "m", [], [value("y", [3])], [array("zero", [0.0])]))
    result = dnnp("run", "--verify", "-n", "3", stdin=planned(model, tmp_path, [[0], [1, 2]]))
    assert result.status == 0, result.err
    assert result.one("run")["verified"] is True
    assert "output 'y' is one constant" in result.err


@pytest.mark.parametrize(
    ("change", "status", "message"),
    [
        ({"z": np.zeros(3)}, 3, "in.npz: the model has no input 'z' (inputs: ids, x)"),
        ({"x": None}, 3, "in.npz: input 'x' is missing"),
        ({"x": np.ones((5, 8))}, 3, "in.npz: input 'x': dtype float64, expected float32"),
        ({"x": np.ones((8, 5), np.float32)}, 3, "input 'x': shape [8, 5], expected [5, 8]"),
        ({"ids": np.array([0, 1, 2, 3, 99])}, 1, "stage 0: sample 0: ONNX Runtime fails: "),
    ],
)
def test_wrong_inputs(
    stream: bytes, tmp_path: Path, change: dict, status: int, message: str
) -> None:
    feeds = {"ids": np.arange(5), "x": np.ones((5, 8), np.float32), **change}
    np.savez(tmp_path / "in.npz", **{k: v for k, v in feeds.items() if v is not None})
    fails(status, message, "--inputs", tmp_path / "in.npz", stdin=stream)


def test_wrong_input_files(stream: bytes, tmp_path: Path) -> None:
    np.save(tmp_path / "one.npy", np.zeros(3))
    np.save(tmp_path / "pickle.npy", np.array([{}]))
    fails(1, "none.npz: No such file", "--inputs", tmp_path / "none.npz", stdin=stream)
    fails(3, "1 tensors without names", "--inputs", tmp_path / "one.npy", stdin=stream)
    fails(3, "Python objects", "--inputs", tmp_path / "pickle.npy", stdin=stream)
    target = tmp_path / "no" / "out.npz"
    fails(1, f"{target}: No such file", "--save-outputs", target, stdin=stream)


@pytest.mark.parametrize(
    "options",
    [
        ("-n", "0"),
        ("-n", "1" + "0" * 30),
        ("-n", "x"),
        ("--threads", "0"),
        ("--queue", "0"),
        ("--warmup", "-1"),
        ("--rtol", "-1"),
        ("--rtol", "nan"),
        ("--atol", "much"),
        ("--seed", "-3"),
        ("--provider", "tpu"),
        ("--optimization", "most"),
        ("--no-such",),
        ("--random-weights",),
    ],
)
def test_wrong_options(stream: bytes, options: tuple[str, ...]) -> None:
    result = dnnp("run", *options, stdin=stream)
    assert result.status == 2


def test_streams_that_cannot_run(stream: bytes, folder: Path) -> None:
    imported = dnnp("import", folder / "model.onnx").out
    fails(2, "no plan to run; run dnnp-partition first", stdin=imported)
    fails(3, "empty stream", stdin=b"")
    fails(3, "not JSON", stdin=b"onnx")
    stale = stream.replace(b'"cpu-core":0.001', b'"cpu-core":0.002', 1)
    fails(3, "the plan was made from another graph, costs or groups", stdin=stale)
    circle = with_plan(read_bytes(imported), [[0, 1, 5, 6], [2, 3, 4]])
    fails(3, "wait in a circle", stdin=circle)
    against = with_plan(read_bytes(imported), [[1, 0], [2, 3, 4, 5, 6]])
    fails(3, "stage 0 runs node 1 (Add:h) before node 0 (Gather:e)", stdin=against)


def test_the_model_file(stream: bytes, folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.onnx"
    copy.write_bytes((folder / "model.onnx").read_bytes())
    moved = stream.replace(str(folder).encode(), b"/nowhere")
    fails(1, "/nowhere/model.onnx: no such file", stdin=moved)
    assert dnnp("run", "--model", copy, "--verify", "-n", "2", stdin=moved).status == 0
    copy.write_bytes(copy.read_bytes()[:-1])
    fails(3, str(copy), "--model", copy, stdin=stream)


def test_a_stream_without_an_onnx_model(stream: bytes) -> None:
    other = stream.replace(b'"kind":"onnx"', b'"kind":"costgraph"')
    fails(3, "not from an ONNX model", stdin=other)


def test_absent_weights(tmp_path: Path) -> None:
    model = network()
    tensor = model.graph.initializer[1]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="gone.bin")
    stream = planned(model, tmp_path, SPLIT)
    fails(1, "gone.bin: no such file; it holds weights of the model ('w1')", stdin=stream)
    result = dnnp("run", "--random-weights", "3", "--verify", "-n", "3", stdin=stream)
    assert result.status == 0, result.err
    assert "1 weights drawn with seed 3" in result.err


def test_a_model_that_the_runtime_cannot_load(tmp_path: Path) -> None:
    model = network()
    model.graph.node[6].op_type = "NoSuchOp"
    stream = planned(model, tmp_path, SPLIT)
    fails(1, "ONNX Runtime cannot load the model: ", stdin=stream)


def test_a_missing_provider(stream: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        monkeypatch.setattr(
            onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"]
        )
    fails(7, "provider 'cuda' is not in this build", "--provider", "cuda", stdin=stream)


def test_a_provider_that_is_silently_replaced(
    stream: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this build has CUDA")
    both = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: both)
    monkeypatch.setattr(providers, "count_gpus", lambda: 4)
    fails(7, "uses CPUExecutionProvider", "--provider", "cuda", stdin=stream)


def test_swapped_stage_inputs_fail_verification(
    stream: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last stage reads two tensors of equal shape; exchanged, they must be noticed."""
    from dnnp.formats.onnx import stages as onnx_stages

    split = onnx_stages.split_model

    def swapped(*arguments: Any) -> Any:
        parts = split(*arguments)
        assert set(parts[3].inputs) == {"ta", "b"}
        (subtract,) = (n for n in parts[3].model.graph.node if n.op_type == "Sub")
        subtract.input[:] = ["b", "ta"]
        return parts

    monkeypatch.setattr(onnx_stages, "split_model", swapped)
    result = dnnp("run", "--verify", "-n", "5", stdin=stream)
    assert result.status == 6
    record = result.one("run")
    assert record["verified"] is False
    assert record["max_abs_error"] > 0.01
    last = result.err.strip().splitlines()[-1]
    assert last.startswith("dnnp-run: output 'y' of sample ")
    assert "stage 3 is the first to differ, in tensor 'y'" in last
    assert "Traceback" not in result.err
    assert dnnp("run", "-n", "5", stdin=stream).status == 0


def test_outputs_that_prove_little_are_pointed_out(tmp_path: Path) -> None:
    model = network()
    model.graph.initializer[0].CopyFrom(array("table", np.full((11, 8), np.nan)))
    result = dnnp("run", "--verify", "-n", "2", stdin=planned(model, tmp_path, SPLIT))
    assert result.status == 0
    assert "output 'y' is all NaN: its agreement proves little" in result.err


def test_more_stages_than_cores_is_said(stream: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    core = providers.available_cores()[:1]
    monkeypatch.setattr(providers, "available_cores", lambda: core)
    result = dnnp("run", "-n", "2", stdin=stream)
    assert "4 stages of 1 thread share 1 core;" in result.err


def test_another_device_class_is_said(stream: bytes) -> None:
    other = read_bytes(stream)
    for i, stage in enumerate(other.get("stage")):
        stage |= {"class": "v100", "device": f"v100/{i}"}
    other.get("plan")[0]["devices"][0]["class"] = "v100"
    for record in other.get("node"):
        record["time_s"] = dict.fromkeys(["v100"], max(record["time_s"].values()))
    nodes = graph_of(other)
    other.get("plan")[0]["digest"] = digest_of(nodes, units_of(other, nodes))
    result = dnnp("run", "-n", "2", stdin=written(other))
    assert result.status == 0
    assert "the loads were predicted for v100, the stages run on cpu" in result.err


def test_rates_of_the_shipped_device_are_named(stream: bytes) -> None:
    said = "predicted by the rates of cpu-core, not of this machine: dnnp-profile --device cpu-here"
    priced = read_bytes(stream)
    shipped = class_record(load_device("cpu-core"))
    priced.replace("device", [{**shipped, "fitted": True}])
    assert said in dnnp("run", "-n", "2", stdin=written(priced)).err
    how = {"provider": "cpu", "threads": 1, "optimization": "all", "beside": 1, "rounds": 9}
    priced.header["measured"] = how | {"total_s": 1e-3, "cold_s": 1e-3}
    assert said not in dnnp("run", "-n", "2", stdin=written(priced)).err
    assert said not in dnnp("run", "-n", "2", stdin=stream).err


def test_control_c_writes_what_there_is(stream: bytes, tmp_path: Path) -> None:
    path = tmp_path / "plan.dnnp"
    path.write_bytes(stream)
    options = ["-v", "-n", "200000", "--warmup", "3", "--verify"]
    result = interrupted_at_terminal("run", *options, path, after=SAMPLES)
    assert result.status == 130, result.err
    assert "stage 3: " in result.err
    assert "Traceback" not in result.err
    record = read_bytes(result.out).get("run")[0]
    assert record["interrupted"] is True
    assert 0 < record["samples"] < 200_000
    assert "verified" not in record


def test_a_plan_that_does_not_fit_its_devices_is_refused(folder: Path, stream: bytes) -> None:
    """Nothing runs, not even a session is made: the model is not there."""
    bare = b"".join(
        line for line in stream.splitlines(keepends=True) if not line.startswith(RESULTS)
    )
    words = ("-k", "2", "--memory", "600", "--memory-mode", "ignore")
    plan = dnnp("partition", "-q", *words, stdin=bare)
    excess = plan.one("plan")["excess_bytes"]
    result = dnnp("run", "--model", folder / "nothing.onnx", stdin=plan.out)
    assert (result.status, result.out) == (4, b"")
    assert lines_of(result) == [
        f"dnnp-run: <stdin>: the plan is infeasible: a device needs {excess:g} B more than it "
        "has (--memory-mode ignore)"
    ]
