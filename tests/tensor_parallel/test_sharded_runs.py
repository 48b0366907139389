"""Sharded stages from a model to a verified run and to exported models, from the outside."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import dnnp as api
from dnnp.formats.onnx import stages as onnx_stages
from dnnp.samples.build import write
from support.run import changed_records, dnnp, ok, records_of
from support.split_models import array, graph, make, node, value

RNG = np.random.default_rng(3)
SLOW = 100.0
WIDE = 256


def mlp() -> onnx.ModelProto:
    """Two large products with an activation between them, and a table of scores."""

    def weight(name: str, rows: int, columns: int):
        return array(name, RNG.standard_normal((rows, columns)) / np.sqrt(rows))

    body = [
        node("MatMul", ["x", "w"], ["a"], name="up"),
        node("Relu", ["a"], ["b"], name="act"),
        node("MatMul", ["b", "v"], ["c"], name="down"),
        node("Add", ["c", "x"], ["d"], name="skip"),
        node("MatMul", ["d", "u"], ["y"], name="scores"),
    ]
    stored = [weight("w", WIDE, 2 * WIDE), weight("v", 2 * WIDE, WIDE), weight("u", WIDE, 129)]
    given, made = [value("x", (64, WIDE))], [value("y", (64, 129))]
    return make(graph(body, "mlp", given, made, stored))


def slow_alone(record: dict) -> None:
    """Make nodes take long on one device."""
    if record["type"] == "node":
        record["time_s"] = {name: SLOW * s for name, s in record["time_s"].items()}


def planned(path: Path, *words: str) -> bytes:
    """A plan on two devices that hold all of it together."""
    priced = ok("profile", "--tensor-parallel", "2", stdin=ok("import", str(path)))
    slow = changed_records(priced, slow_alone)
    return ok("partition", "-k", "2", "--tensor-parallel", "2", *words, stdin=slow)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sharded") / "mlp.onnx"
    onnx.save(mlp(), str(path))
    return path


@pytest.fixture(scope="module")
def plan(model: Path) -> bytes:
    found = planned(model)
    assert [stage["shards"] for stage in records_of(found, "stage")] == [2]
    return found


def outputs_of(path: Path, folder: Path) -> tuple[dict, dict]:
    """Results of a sample by exported stages, and by the whole model."""
    stages = api.load_stages(folder)
    whole = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    feeds = {"x": np.random.default_rng(1).standard_normal((64, WIDE)).astype(np.float32)}
    names = [one.name for one in whole.get_outputs()]
    return stages.run(feeds), dict(zip(names, whole.run(names, feeds), strict=True))


def test_runs_as_the_whole_model_does(plan: bytes) -> None:
    result = dnnp("run", "-n", "4", "--verify", stdin=plan)
    assert result.status == 0, result.err
    assert "on 2 devices, each in one go" in result.err
    (run,) = records_of(result.out, "run")
    assert run["verified"]
    assert run["max_rel_error"] < 1e-4
    homes = {(entry["device"], entry["shard"]) for entry in run["stages"]}
    assert homes == {("cpu-core/0", 0), ("cpu-core/1", 1)}
    assert dnnp("check", stdin=result.out).status == 0
    wrong = changed_records(result.out, lambda r: [e.update(shard=2) for e in r.get("stages", ())])
    found = dnnp("check", stdin=wrong)
    assert found.status == 3
    assert "there is no shard 2 of stage 0, which has 2" in found.err


def test_runs_in_processes_too(plan: bytes) -> None:
    ran = ok("run", "-n", "4", "--verify", "--workers", "process", stdin=plan)
    assert records_of(ran, "run")[0]["verified"]


@pytest.mark.parametrize("large", [False, True])
def test_exported_models_compute_it(large: bool, model: Path, plan: bytes, tmp_path: Path) -> None:
    """Weights in the model, or in a file of their own, of which each device gets its part."""
    path = model
    if large:
        path = tmp_path / "large.onnx"
        loaded = onnx.load(str(model))
        onnx.save(
            loaded, str(path), save_as_external_data=True, location="w.bin", size_threshold=64
        )
        plan = planned(path)
        ran = ok("run", "-n", "4", "--verify", stdin=plan)
        assert records_of(ran, "run")[0]["max_rel_error"] < 1e-4
    folder = tmp_path / "out"
    ok("export", "--to", "stages", "-o", str(folder), stdin=plan)
    manifest = json.loads((folder / "manifest.json").read_text())
    assert {(s["device"], s["shard"], s["shards"]) for s in manifest["stages"]} == {
        ("cpu-core/0", 0, 2),
        ("cpu-core/1", 1, 2),
    }
    got, whole = outputs_of(path, folder)
    np.testing.assert_allclose(got["y"], whole["y"], rtol=1e-4, atol=1e-4)
    size = 4 * (2 * WIDE * 2 * WIDE + WIDE * 129)
    copied = [w for w in manifest["weights"] if w["placed"] == "copy"]
    if large:
        held = sum(w["size_bytes"] - w["padding_bytes"] for w in copied)
        assert held == size
        assert max(w["size_bytes"] for w in copied) < 0.6 * size


def test_missing_weights_are_named(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "large.onnx"
    onnx.save(
        onnx.load(str(model)), str(path), save_as_external_data=True, location="w.bin",
        size_threshold=64,
    )  # fmt: skip
    plan = planned(path)
    (tmp_path / "w.bin").unlink()
    result = dnnp("export", "--to", "stages", "-o", str(tmp_path / "out"), stdin=plan)
    assert result.status == 1
    assert "w.bin: no such file; shards take parts of the weights in it" in result.err
    result = dnnp("run", "-n", "2", stdin=plan)
    assert result.status == 1
    assert "w.bin: no such file; it holds weights of the model" in result.err
    drawn = ok("run", "-n", "2", "--verify", "--random-weights", "4", stdin=plan)
    assert records_of(drawn, "run")[0]["verified"]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("export", "--to", "msr-split", "-o", "x"), "which the format of the 2020 paper"),
        (("run", "--choose"), "which --choose does not know"),
        (("run", "--calibrate", "x"), "which --calibrate does not know"),
    ],
)
def test_what_does_not_know_shards_refuses_them(
    words: tuple[str, ...],
    reason: str,
    plan: bytes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    result = dnnp(*words, stdin=plan)
    assert result.status == 2
    assert reason in result.err
    assert len(result.err.splitlines()) == 1


@pytest.mark.parametrize("replicas", [1, 2])
def test_schedules_of_blocks_on_several_devices_are_followed(replicas: int, model: Path) -> None:
    """Replicas of two shards each take the samples in turn."""
    count = str(2 * replicas)
    priced = ok("profile", "--tensor-parallel", "2", stdin=ok("import", str(model)))
    words = ("--tensor-parallel", "2", "--data-parallel", str(replicas))
    plan = ok("partition", "-k", count, *words, stdin=changed_records(priced, slow_alone))
    (stage,) = records_of(plan, "stage")
    assert (stage["shards"], stage.get("replicas", 1)) == (2, replicas)
    ran = ok("run", "--verify", stdin=ok("schedule", "-n", "5", stdin=plan))
    run = records_of(ran, "run")[0]
    assert (run["verified"], run["samples"]) == (True, 5)
    assert {(e["device"], e["shard"]) for e in run["stages"]} == {
        ("cpu-core/0", 0),
        ("cpu-core/1", 1),
    }
    assert dnnp("check", stdin=ran).status == 0


def test_what_ran_is_shown_and_teaches_nothing(plan: bytes, tmp_path: Path) -> None:
    ran = ok("run", "-n", "4", stdin=plan)
    entries = records_of(ran, "run")[0]["stages"]
    slowest = max(sum(e["measured_s"] for e in entries if e["shard"] == shard) for shard in (0, 1))
    lines = ok("view", "--as", "csv", stdin=ran).decode().splitlines()
    row = dict(zip(lines[0].split(","), lines[1].split(","), strict=True))
    assert float(row["measured_s"]) == pytest.approx(slowest)
    path = tmp_path / "ran.dnnp"
    path.write_bytes(ran)
    result = dnnp("profile", "--from-run", str(path), stdin=plan)
    assert result.status == 2
    assert "nothing is learned" in result.err


@pytest.mark.parametrize(
    ("layout", "reason"),
    [
        ({"inputs": [-1], "outputs": [1]}, "field 'shards[0].layout.inputs': 1 axes for 2 tensors"),
        ({"inputs": [-1, 2], "outputs": [1]}, "layout.inputs[1]': 2 is no axis of tensor"),
        ({"inputs": [-2, 1], "outputs": [1]}, "layout.inputs[0]': -2 is no axis of tensor"),
        ({"inputs": [-1, 1], "outputs": [1], "reduced": True}, "added up and cut, too"),
    ],
)
def test_layouts_that_do_not_fit_are_refused(layout: dict, reason: str, plan: bytes) -> None:
    def forge(record: dict) -> None:
        if record["type"] == "node" and record["id"] == 0:
            record["shards"][0]["layout"] = layout

    result = dnnp("check", stdin=changed_records(plan, forge))
    assert result.status == 3
    assert reason in result.err


def without(record: dict) -> None:
    """Leave a layout out, before there is a plan."""
    if record["type"] == "node" and record["id"] == 2:
        del record["shards"][0]["layout"]


def test_a_node_without_a_layout_does_not_run(model: Path) -> None:
    priced = ok("profile", "--tensor-parallel", "2", stdin=ok("import", str(model)))
    priced = changed_records(changed_records(priced, slow_alone), without)
    plan = ok("partition", "-k", "2", "--tensor-parallel", "2", stdin=priced)
    result = dnnp("run", stdin=plan)
    assert result.status == 2
    assert "node 2 does not state its layout on 2 devices" in result.err


@pytest.mark.parametrize("field", ["memory_bytes", "weight_bytes", "collectives", "layout"])
def test_numbers_that_a_layout_does_not_make_are_noticed(field: str, plan: bytes) -> None:
    def forge(record: dict) -> None:
        if record["type"] != "node" or record["id"] != 2:
            return
        (one,) = record["shards"]
        if field == "layout":
            one["layout"] = {"inputs": [-1, -1], "outputs": [-1]}
        elif field == "collectives":
            one[field] = []
        else:
            one[field] += 1

    result = dnnp("check", stdin=changed_records(plan, forge))
    assert result.status == 3
    assert "on 2 devices is" in result.err


@pytest.mark.parametrize("name", ["gpt-small", "resnet50-small"])
def test_samples(name: str, tmp_path: Path) -> None:
    """Two of the samples; `tests/tools/shards_check.py` runs all of them."""
    plan = planned(write(name, tmp_path))
    run = records_of(ok("run", "-n", "2", "--verify", stdin=plan), "run")[0]
    assert run["verified"]
    assert run["max_rel_error"] < 1e-4


def test_a_shard_that_differs_is_located(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream, split = planned(model), onnx_stages.split_model

    def wrong(*arguments: Any) -> Any:
        parts = split(*arguments)
        nodes = (made for part in parts for made in part.model.graph.node)
        next(made for made in nodes if made.op_type == "Relu").op_type = "Tanh"
        return parts

    few = ("-n", "2", "--warmup", "1", "--verify", "--locate")
    done = dnnp("run", *few, "--rtol", "0", "--atol", "0", stdin=stream)
    assert "located     nothing parts stage by stage: " in done.err
    assert "or sums of shards round otherwise" in done.err
    monkeypatch.setattr(onnx_stages, "split_model", wrong)
    done = dnnp("run", *few, stdin=stream)
    assert done.status == 6, done.err
    assert "located     tensor 'b@1." in done.err
    assert "of stage 0 is the first to part, made by Relu 'act'" in done.err
    assert "because     stage 0 makes it" in done.err
