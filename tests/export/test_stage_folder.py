"""The folder of stage models: weights by reference, the manifest, and replacing it."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import numpy as np
import onnx
import pytest

from dnnp.core.model.errors import FormatError, InputFileError, UsageError
from dnnp.formats import onnx_weights
from dnnp.formats.onnx_stages import split_model
from dnnp.formats.onnx_weights import Placed
from dnnp.formats.stage_folder import write_stages
from support.split_models import MODELS, feeds_of, run_whole, session
from support.stage_folders import ABOUT, SIZE, export, external, model_with


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Folder with a weight file."""
    folder = tmp_path / "source"
    folder.mkdir()
    weights = np.arange(4 * SIZE, dtype=np.float32) / SIZE
    (folder / "w.bin").write_bytes(weights.tobytes())
    return folder


def check_runs(source: Path, target: Path) -> None:
    """Compare the files in a folder with the whole model, loaded from its file."""
    x = np.linspace(-1, 1, SIZE, dtype=np.float32)
    (expected,) = session(str(source / "m.onnx")).run(["y"], {"x": x})
    (a,) = session(str(target / "stage-0.onnx")).run(["a"], {"x": x})
    (y,) = session(str(target / "stage-1.onnx")).run(["y"], {"a": a})
    np.testing.assert_array_equal(y, expected)


def test_weight_files_are_linked(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "deep" / "stages"
    (weights,) = export(model_with(), source, target)
    assert weights == Placed("w.bin", source / "w.bin", 16 * SIZE, "link")
    assert os.path.samefile(target / "w.bin", source / "w.bin")
    assert sorted(os.listdir(target)) == ["manifest.json", "stage-0.onnx", "stage-1.onnx", "w.bin"]
    stage = onnx.load(target / "stage-0.onnx", load_external_data=False)
    (tensor,) = stage.graph.initializer
    assert tensor == external("A", "w.bin", 4096)
    check_runs(source, target)


def test_weight_files_are_copied_on_request_or_without_links(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (weights,) = export(model_with(), source, tmp_path / "one", copy_weights=True)
    assert weights.how == "copy"
    check_runs(source, tmp_path / "one")
    onnx.load(tmp_path / "one/stage-0.onnx")

    def refuse(*_: object, **__: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(onnx_weights.os, "link", refuse)
    (weights,) = export(model_with(), source, tmp_path / "two")
    assert weights.how == "copy"
    assert not os.path.samefile(tmp_path / "two/w.bin", source / "w.bin")
    check_runs(source, tmp_path / "two")


def test_weight_files_in_folders_behind_links_and_with_awkward_names(
    source: Path, tmp_path: Path
) -> None:
    (source / "sub").mkdir()
    (source / "sub" / "v.bin").write_bytes((source / "w.bin").read_bytes())
    (source / "w.bin").rename(source / "elsewhere")
    (source / "stage-1.onnx").symlink_to("elsewhere")
    model = model_with("sub/../sub/v.bin", "stage-1.onnx")
    files = [w.file for w in export(model, source, tmp_path / "out")]
    assert files == ["weights-stage-1.onnx", "sub/v.bin"]
    (source / "stage-1.onnx").unlink()
    (source / "stage-1.onnx").write_bytes((source / "elsewhere").read_bytes())
    check_runs(source, tmp_path / "out")


def test_missing_weight_file(source: Path, tmp_path: Path) -> None:
    (source / "w.bin").rename(tmp_path / "later")
    target = tmp_path / "out"
    (weights,) = export(model_with(), source, target)
    assert weights == Placed("w.bin", source / "w.bin", 0, "missing")
    assert json.loads((target / "manifest.json").read_text())["weights"][0]["placed"] == "missing"
    for folder in (source, target):
        (folder / "w.bin").write_bytes((tmp_path / "later").read_bytes())
    check_runs(source, target)


@pytest.mark.parametrize("location", ["", ".", "..", "../w.bin", "a/../../w.bin", "/etc/passwd"])
def test_weights_outside_the_folder_are_refused(
    source: Path, tmp_path: Path, location: str
) -> None:
    with pytest.raises(FormatError, match=r"'A' is at .* outside the model's folder"):
        export(model_with(location), source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_bad_weight_files(source: Path, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="16384 bytes long, but the model's tensors need 18192"):
        export(model_with(length=10_000), source, tmp_path / "out")
    with pytest.raises(FormatError, match="the length of 'B' is '-4', not a number"):
        export(model_with(length=-4), source, tmp_path / "out")
    (source / "w.bin").unlink()
    (source / "w.bin").mkdir()
    with pytest.raises(InputFileError, match="not a regular file"):
        export(model_with(length=None), source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_manifest(source: Path, tmp_path: Path) -> None:
    model = MODELS["skips_and_outputs"]()
    path = source / "m.onnx"
    path.write_bytes(model.SerializeToString())
    stages = split_model(model, [[0, 2], [3, 5], [6, 7, 8]])
    target = tmp_path / "out"
    devices = ["acc/0", "acc/1", "acc/2"]
    assert write_stages(stages, model, path, target, about=ABOUT, devices=devices) == []
    found = json.loads((target / "manifest.json").read_text())
    assert (found["format"], found["version"]) == ("dnnp-stages", 1)
    assert found["model"] == "m"
    assert found["inputs"] == [
        {"name": "x", "dtype": "float32", "shape": [4], "to": [0]},
        {"name": "unused", "dtype": "float32", "shape": [4], "to": []},
    ]
    assert {entry["name"]: entry["from"] for entry in found["outputs"]} == {
        "h": 2, "a": 0, "W": 2, "x": "model", "c": 0, "V": 0, "b0": 0, "unused": "model",
    }  # fmt: skip
    assert found["links"] == [
        {"from": 0, "to": 1, "tensors": ["b1", "b0"]},
        {"from": 0, "to": 2, "tensors": ["a"]},
        {"from": 1, "to": 2, "tensors": ["f"]},
    ]
    assert [s["device"] for s in found["stages"]] == devices
    assert [s["nodes"] for s in found["stages"]] == [2, 2, 3]
    assert found["stages"][1]["inputs"][0] == {
        "name": "b1", "dtype": "float32", "shape": [2], "from": 0,
    }  # fmt: skip
    held = feeds_of(model)
    for stage in found["stages"]:
        file = target / stage["file"]
        assert stage["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
        names = [entry["name"] for entry in stage["outputs"]]
        feeds = {entry["name"]: held[entry["name"]] for entry in stage["inputs"]}
        held.update(zip(names, session(str(file)).run(names, feeds), strict=True))
    for name, expected in run_whole(model, feeds_of(model)).items():
        np.testing.assert_array_equal(held[name], expected)


def test_same_bytes_twice(source: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        export(model_with(), source, tmp_path / name)
    for file in sorted(os.listdir(tmp_path / "one")):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def test_an_earlier_export_is_replaced_but_nothing_else(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "out"
    target.mkdir()
    export(model_with(), source, target)
    model = model_with()
    stages = split_model(model, [[0, 1, 2]])
    options = {"about": ABOUT, "devices": ["acc/0"]}
    write_stages(stages, model, source / "m.onnx", target, **options)
    assert sorted(os.listdir(target)) == ["manifest.json", "stage-0.onnx", "w.bin"]
    assert (source / "w.bin").stat().st_size == 16 * SIZE

    (target / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"holds 'notes.txt', which is not from dnnp-export"):
        write_stages(stages, model, source / "m.onnx", target, **options)
    assert len(os.listdir(target)) == 4
    with pytest.raises(UsageError, match=r"holds 'm\.onnx'"):
        export(model, source, source)
    with pytest.raises(UsageError, match="not a folder"):
        export(model, source, target / "notes.txt")
    (source / "manifest.json").write_text('{"format": "dnnp-stages", "stages": 3}')
    with pytest.raises(UsageError, match="holds"):
        export(model, source, source)


def test_unwritable_target(source: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputFileError, match="Not a directory"):
        export(model_with(), source, tmp_path / "file" / "out")
