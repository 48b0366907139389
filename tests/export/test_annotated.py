"""dnnp-export --to ort-layers and onnx-devices: the whole model with the stages on its nodes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import dnnp
from dnnp.formats.export.annotated import CONFIGURATION, add_device_configurations, layer_settings
from dnnp.formats.stream import read_bytes
from support.exports import KINDS, exported, plan_of_kind, same, sample
from support.run import dnnp as command
from support.split_models import MODELS, feeds_of, graph, make, node, run_whole, value
from support.stage_folders import chain, files

OPTION = "session.layer_assignment_settings"


def load(folder: Path) -> onnx.ModelProto:
    return onnx.load(folder / "model/model.onnx", load_external_data=False)


def placed_stages(model: onnx.ModelProto) -> dict[int, tuple[int, tuple[str, ...]]]:
    """Stage and devices of each node, by the configuration of ours."""
    found = {}
    names = next((list(c.device) for c in model.configuration if c.name == CONFIGURATION), [])
    for v, annotated in enumerate(model.graph.node):
        for mine in annotated.device_configurations:
            if mine.configuration_id == CONFIGURATION:
                found[v] = mine.pipeline_stage, tuple(names[i] for i in _devices(mine))
    return found


def _devices(mine: onnx.NodeDeviceConfigurationProto) -> list[int]:
    """Numbers of the devices of a node."""
    for spec in mine.sharding_spec[:1]:
        groups = {entry.key: list(entry.value) for entry in spec.index_to_device_group_map}
        return [device for key in spec.device for device in groups.get(key, [key])]
    return []


def session(folder: Path, settings: dict[str, Any] | None = None) -> ort.InferenceSession:
    """A session as the file of settings says."""
    settings = settings or json.loads((folder / "session.json").read_text())
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    for key, text in settings["options"].items():
        options.add_session_config_entry(key, text)
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    return ort.InferenceSession(
        folder / "model/model.onnx", options, providers=settings["providers"]
    )


def stages_of_nodes(manifest: dict[str, Any], stream: bytes) -> list[set[int]]:
    """Nodes of each stage of the plan, as the stream has them."""
    return [set(stage["nodes"]) for stage in read_bytes(stream).get("stage")]


@pytest.mark.parametrize("kind", KINDS)
def test_layers(kind: str, tmp_path: Path) -> None:
    stream, out = plan_of_kind(kind, tmp_path), tmp_path / "out"
    manifest = exported(stream, out, to="ort-layers")
    assert manifest["settings"] == json.loads((out / "session.json").read_text())
    of_plan = stages_of_nodes(manifest, stream)
    count = [0] * len(manifest["stages"])
    for v, each in enumerate(load(out).graph.node):
        (layer,) = [entry.value for entry in each.metadata_props if entry.key == "layer_ann"]
        number = int(layer.removeprefix("stage-"))
        assert v in of_plan[manifest["stages"][number]["stage"]]
        count[number] += 1
    assert count == [stage["nodes"] for stage in manifest["stages"]]
    made = session(out)
    outputs = [o.name for o in made.get_outputs()]
    same(dict(zip(outputs, made.run(None, sample()), strict=True)), sample())
    if hasattr(made, "get_provider_graph_assignment_info"):
        assigned = made.get_provider_graph_assignment_info()
        assert {part.ep_name for part in assigned} == {"CPUExecutionProvider"}
    with pytest.raises(dnnp.FormatError, match="'layout': the export is one model for all stages"):
        dnnp.load_stages(out)


def test_the_installed_runtime_reads_the_settings(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Rules that make no sense are refused, and each rule of ours finds a provider."""
    exported(plan_of_kind("ordered", tmp_path), tmp_path / "out", to="ort-layers")
    settings = json.loads((tmp_path / "out/session.json").read_text())
    rules = settings["options"][OPTION]
    broken = settings | {"options": {OPTION: rules.replace(")", "")}}
    try:
        session(tmp_path / "out", broken)
    except Exception as error:
        assert "layering config" in str(error)  # noqa: PT017
    else:
        pytest.skip(f"onnxruntime {ort.__version__} does not know {OPTION}")
    options = ort.SessionOptions()
    options.log_severity_level = 1
    options.add_session_config_entry(OPTION, rules)
    capfd.readouterr()
    ort.InferenceSession(tmp_path / "out/model/model.onnx", options)
    said = capfd.readouterr().err
    assert f"Matched {rules.count('=')} out of {rules.count('=')} rules" in said


def found(*stages: tuple[str, list[str]]) -> dict[str, Any]:
    """The part of a manifest that settings are made of."""
    return {
        "devices": [
            {"class": "a100", "kind": "accelerator", "count": 2},
            {"class": "host", "kind": "cpu", "count": 1},
        ],
        "stages": [
            {"id": i, "class": kind, "devices": names} for i, (kind, names) in enumerate(stages)
        ],
    }


def test_rules() -> None:
    settings, gpus = layer_settings(
        found(("host", ["host/0"]), ("a100", ["a100/1"]), ("host", ["host/0"]))
    )
    assert settings["options"] == {OPTION: "cpu(=stage-0, =stage-2); gpu(=stage-1)"}
    assert settings["providers"] == ["CUDAExecutionProvider", "CPUExecutionProvider"]
    assert gpus == [1]
    settings, gpus = layer_settings(found(("a100", ["a100/1"]), ("a100", ["a100/0"])))
    assert settings["options"] == {OPTION: "gpu:1(=stage-0); gpu:0(=stage-1)"}
    assert gpus == [0, 1]


@pytest.mark.parametrize("kind", KINDS)
def test_device_configurations(kind: str, tmp_path: Path) -> None:
    stream, out = plan_of_kind(kind, tmp_path), tmp_path / "out"
    manifest = exported(stream, out, to="onnx-devices")
    model = load(out)
    onnx.checker.check_model(model, full_check=True)
    assert model.ir_version >= 11
    (devices,) = model.configuration
    assert devices.num_devices == len(devices.device) == len(set(devices.device))
    # What the checker does not look at: that references lead somewhere.
    for each in model.graph.node:
        (mine,) = each.device_configurations
        assert mine.configuration_id == devices.name
        assert [spec.tensor_name for spec in mine.sharding_spec] == list(each.output)
        for spec in mine.sharding_spec:
            groups = {entry.key: list(entry.value) for entry in spec.index_to_device_group_map}
            numbers = [i for key in spec.device for i in groups.get(key, [key])]
            assert all(0 <= i < devices.num_devices for i in numbers)
            assert not spec.sharded_dim
    # Read back, it is the plan.
    of_plan = stages_of_nodes(manifest, stream)
    placed = placed_stages(model)
    for number, stage in enumerate(manifest["stages"]):
        mine = {v for v, (s, names) in placed.items() if s == number}
        assert len(mine) == stage["nodes"]
        assert mine <= of_plan[stage["stage"]]
        assert {placed[v][1] for v in mine} == {tuple(stage["devices"])}
    made = ort.InferenceSession(out / "model/model.onnx")
    outputs = [o.name for o in made.get_outputs()]
    same(dict(zip(outputs, made.run(None, sample()), strict=True)), sample())


@pytest.mark.parametrize("to", ["ort-layers", "onnx-devices"])
@pytest.mark.parametrize("name", MODELS)
def test_every_feature_of_models(name: str, to: str, tmp_path: Path) -> None:
    model = MODELS[name]()
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    dims = ["--dim", "n=3"] if name == "stale_shapes" else []
    plan = command("partition", "-k", "3", stdin=command("import", *dims, tmp_path / "m.onnx").out)
    exported(plan.out, tmp_path / "out", to=to)
    made = ort.InferenceSession(tmp_path / "out/model/model.onnx")
    names = [o.name for o in made.get_outputs()]
    for output, expected in run_whole(model, feeds_of(model)).items():
        ours = made.run(names, feeds_of(model))[names.index(output)]
        np.testing.assert_array_equal(ours, expected)


def test_annotations_that_are_there_are_replaced(tmp_path: Path) -> None:
    """An export of an export says what the last plan says; others' marks stay."""
    stream, out = plan_of_kind("ordered", tmp_path), tmp_path / "out"
    exported(stream, out, to="onnx-devices")
    again = load(out)
    again.graph.node[0].device_configurations.add(configuration_id="theirs")
    stages = [list(range(len(again.graph.node)))]
    add_device_configurations(again, stages, [["x/0"]])
    assert [c.num_devices for c in again.configuration] == [1]
    assert set(placed_stages(again).values()) == {(0, ("x/0",))}
    assert again.graph.node[0].device_configurations[0].configuration_id == "theirs"


def test_weights_stay_constant_where_the_ir_version_is_raised(tmp_path: Path) -> None:
    """Before IR version 4 every initializer is an input, too, and constant all the same."""
    weight = onnx.numpy_helper.from_array(np.full(4, 2.0, np.float32), "W")
    nodes = [node("Mul", ["x", "W"], ["a"]), node("Relu", ["a"], ["y"])]
    old = make(graph(nodes, "old", [value("x"), value("W")], [value("y")], [weight]), ir=3, opset=8)
    (tmp_path / "m.onnx").write_bytes(old.SerializeToString())
    plan = command("partition", "-k", "2", stdin=command("import", tmp_path / "m.onnx").out)
    exported(plan.out, tmp_path / "out", to="ort-layers")
    assert [v.name for v in load(tmp_path / "out").graph.input] == ["x"]
    x = np.arange(4, dtype=np.float32) - 1
    made = ort.InferenceSession(tmp_path / "out/model/model.onnx")
    np.testing.assert_array_equal(made.run(None, {"x": x})[0], np.maximum(2 * x, 0))


def test_external_weights_and_replacing(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    path = chain(tmp_path / "source", 3, 16)
    plan = command("partition", "-k", "2", stdin=command("import", path).out).out
    out = tmp_path / "out"
    exported(plan, out)
    manifest = exported(plan, out, to="ort-layers")
    assert set(files(out)) == {
        "manifest.json",
        "session.json",
        "model/model.onnx",
        "model/model.onnx.data",
    }
    assert [entry["stage"] for entry in manifest["weights"]] == ["model"]
    assert [entry["file"] for entry in manifest["files"]] == ["model/model.onnx", "session.json"]
    feeds = {"x": np.ones((1, 16), np.float32)}
    (ours,) = session(out).run(None, feeds)
    (theirs,) = ort.InferenceSession(path).run(None, feeds)
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    exported(plan, out, to="onnx-devices")
    assert "session.json" not in files(out)
    exported(plan, out, to="triton")
    assert "model/model.onnx" not in files(out)


def test_what_is_lost_is_said(tmp_path: Path) -> None:
    stream = plan_of_kind("replicas", tmp_path)
    for to in ("ort-layers", "onnx-devices"):
        done = command("export", "--to", to, "-o", tmp_path / to, stdin=stream)
        assert done.status == 0
        assert "that replicas take turns with samples is lost" in done.err


@pytest.mark.parametrize("to", ["stages", "triton", "ort-layers", "onnx-devices"])
def test_a_full_disk_leaves_what_was_there(
    to: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exports are atomic, for any file without disk space."""
    stream, out = plan_of_kind("replicas", tmp_path), tmp_path / "out"
    exported(stream, out)
    before = files(out)
    write, count = Path.write_bytes, [0]

    def full(path: Path, data: bytes) -> int:
        count[0] += 1
        if count[0] == last:
            write(path, data[: len(data) // 2])
            raise OSError(28, "No space left on device", str(path))
        return write(path, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    for last in range(1, 9):
        count[0] = 0
        for target in (out, tmp_path / "new"):
            done = command("export", "-q", "--to", to, "-o", target, stdin=stream)
            if count[0] < last:
                assert done.status == 0
                return
            assert done.status == 1
            assert done.err.endswith("No space left on device\n")
            assert files(out) == before
            assert not (tmp_path / "new").exists()
            count[0] = 0
