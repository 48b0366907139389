"""Exported stages run from Python, without the stream."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

import dnnp
from dnnp.core.model.errors import FormatError, InputFileError, UnavailableError, UsageError
from support.exports import KINDS, exported, plan_of_kind, same, sample
from support.split_models import MODELS, feeds_of, run_whole
from support.stage_folders import export, model_with


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_are_those_of_the_whole_model(kind: str, tmp_path: Path) -> None:
    manifest = exported(plan_of_kind(kind, tmp_path), tmp_path / "out")
    (tmp_path / "m.onnx").unlink()
    stages = dnnp.load_stages(tmp_path / "out")
    assert stages.manifest == manifest
    assert stages.loaded == [s["id"] for s in manifest["stages"]]
    assert (stages.inputs, stages.outputs) == (["x"], ["y", "a1t"])
    for seed in range(2):
        same(stages.run(sample(seed)), sample(seed))
    # Another size than the planned one, as the dimension is free.
    feeds = {"x": sample()["x"][:3]}
    same(stages.run(feeds), feeds)


@pytest.mark.parametrize("name", MODELS)
def test_every_feature_of_models(name: str, tmp_path: Path) -> None:
    model = MODELS[name]()
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    graph = dnnp.load(tmp_path / "m.onnx", dims=["n=3"] if name == "stale_shapes" else [])
    dnnp.export(dnnp.split(graph, k=3), tmp_path / "out")
    feeds = feeds_of(model)
    found = dnnp.load_stages(tmp_path / "out").run(feeds)
    for output, expected in run_whole(model, feeds).items():
        np.testing.assert_array_equal(found[output], expected)


def test_stage_by_stage_in_places_of_their_own(tmp_path: Path) -> None:
    """Each place has the manifest and the folder of one stage; what is passed on is what counts."""
    manifest = exported(plan_of_kind("ordered", tmp_path), tmp_path / "out")
    places = []
    for stage in manifest["stages"]:
        place = tmp_path / f"place-{stage['id']}"
        place.mkdir()
        shutil.copy(tmp_path / "out/manifest.json", place)
        shutil.copytree(tmp_path / f"out/stage-{stage['id']}", place / f"stage-{stage['id']}")
        places.append(dnnp.load_stages(place, stages=[stage["id"]]))
    assert len(places) > 1
    values = places[0].accept(sample())
    for number, place in enumerate(places):
        assert place.loaded == [number]
        values = place.pass_on(number, values)
        needed = {t["name"] for s in manifest["stages"][number + 1 :] for t in s["inputs"]}
        assert set(values) <= needed | {"y", "a1t"}
    same({name: values[name] for name in places[0].outputs}, sample())
    with pytest.raises(UsageError, match="only 1 of"):
        places[0].run(sample())
    with pytest.raises(UsageError, match="stage 1 is not loaded"):
        places[0].pass_on(1, values)
    with pytest.raises(InputFileError, match=r"stage-1/model.onnx"):
        dnnp.load_stages(tmp_path / "place-0", stages=[0, 1])


def test_what_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    exported(plan_of_kind("ordered", tmp_path), out)
    stages = dnnp.load_stages(out)
    with pytest.raises(FormatError, match="input 'x' is missing"):
        stages.run({})
    with pytest.raises(FormatError, match="no input 'z'"):
        stages.run(sample() | {"z": np.zeros(1)})
    with pytest.raises(FormatError, match=r"float64|shape"):
        stages.run({"x": np.zeros((8, 63), np.float32)})
    with pytest.raises(UsageError, match="there is no stage 9"):
        dnnp.load_stages(out, stages=[9])
    with pytest.raises(UsageError, match="provider 'abacus': choose from cpu"):
        dnnp.load_stages(out, provider="abacus")
    with pytest.raises(InputFileError, match=r"manifest.json: No such file"):
        dnnp.load_stages(tmp_path)
    file = out / "stage-0/model.onnx"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    with pytest.raises(FormatError, match="not what was exported"):
        dnnp.load_stages(out)
    file.write_bytes(b"?")
    with pytest.raises(FormatError, match="not an ONNX model"):
        dnnp.load_stages(out, verify=False)


BRANCH = """h = OptionalHasElement(o) y = If (h) <
then_branch = t () => (float[2] u) { u = OptionalGetElement(o) },
else_branch = e () => (float[2] v) { v = Identity(x) }>"""
CONTAINERS = {
    "sequence": (
        "seq(int32[2]) o, int64 i => int32[2] y",
        "q = SequenceAt(o, i) y = Neg(q)",
        "int32",
        [{"o": [np.arange(2, dtype=np.int32)] * 2, "i": np.array(1)}],
    ),
    "optional": (
        "optional(float[2]) o, float[2] x => float[2] y",
        BRANCH,
        "float32",
        [{"o": np.ones(2, np.float32), "x": np.zeros(2, np.float32)},
         {"o": None, "x": np.zeros(2, np.float32)}, {"x": np.zeros(2, np.float32)}],
    ),
    "optional sequence": (
        "optional(seq(float[2])) o, int64 i => float[2] y",
        "q = OptionalGetElement(o) y = SequenceAt(q, i)",
        "sequence(float32)",
        [{"o": [np.ones(2, np.float32)], "i": np.array(0)}],
    ),
    "sequence that is made": (
        "seq(float) o, float[2] x => seq(float) y",
        "y = SequenceInsert(o, x)",
        "float32",
        [{"o": [np.zeros(3, np.float32)], "x": np.ones(2, np.float32)},
         {"o": [], "x": np.ones(2, np.float32)}],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CONTAINERS)
def test_sequences_and_optionals(name: str, tmp_path: Path) -> None:
    """The manifest names the element type, by which what is given is checked."""
    given, body, element, samples = CONTAINERS[name]
    inputs, _, outputs = given.partition(" => ")
    model = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["" : 18]> g ({inputs}) => ({outputs}) {{ {body} }}'
    )
    onnx.save(model, tmp_path / "m.onnx")
    graph = dnnp.profile(dnnp.load(tmp_path / "m.onnx", shapes="symbolic"))
    dnnp.export(dnnp.split(graph, k=1), tmp_path / "out")
    stages = dnnp.load_stages(tmp_path / "out")
    (entry,) = (t for t in stages.manifest["inputs"] if t["name"] == "o")
    assert entry["element"] == element
    for feeds in samples:
        found = stages.run(feeds)["y"]
        whole = run_whole(model, {"o": None, **feeds} if "optional" in name else feeds)["y"]
        for one, other in zip(found, whole, strict=True):
            np.testing.assert_array_equal(one, other)
    wrong = np.ones(2, np.float64)
    with pytest.raises(FormatError, match="dtype float64, expected "):
        stages.run(samples[0] | {"o": wrong if name == "optional" else [wrong]})
    if name.startswith("sequence"):
        with pytest.raises(FormatError, match="input 'o' is missing"):
            stages.run({k: v for k, v in samples[0].items() if k != "o"})


def test_a_provider_that_is_not_there(tmp_path: Path) -> None:
    exported(plan_of_kind("ordered", tmp_path), tmp_path / "out")
    with pytest.raises(UnavailableError):
        dnnp.load_stages(tmp_path / "out", provider="cuda")


def test_external_weights(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    weights = np.arange(4096, dtype=np.float32)
    (tmp_path / "source/w.bin").write_bytes(weights.tobytes())
    model = model_with()
    export(model, tmp_path / "source", tmp_path / "out")
    first, second = weights[1024:2048], weights[2048:3072]
    x = np.linspace(-1, 1, 1024, dtype=np.float32)
    found = dnnp.load_stages(tmp_path / "out").run({"x": x})
    np.testing.assert_allclose(found["y"], (x + first) * second - first, rtol=1e-6)
    (tmp_path / "out/stage-0/model.onnx.data").unlink()
    with pytest.raises(InputFileError, match=r"stage-0/model.onnx.data: No such file"):
        dnnp.load_stages(tmp_path / "out")
