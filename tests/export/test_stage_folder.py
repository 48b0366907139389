"""The folder of stage models: the manifest, and replacing it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from dnnp.core.model.errors import InputFileError, UsageError
from dnnp.formats.onnx.stages import split_model
from support.split_models import MODELS, feeds_of, run_whole, session
from support.stage_folders import export, files, model_with, write_stages


def test_manifest(source: Path, tmp_path: Path) -> None:
    model = MODELS["skips_and_outputs"]()
    path = source / "m.onnx"
    path.write_bytes(model.SerializeToString())
    stages = split_model(model, [[0, 2], [3, 5], [6, 7, 8]])
    target = tmp_path / "out"
    devices = ["acc/0", "acc/1", "acc/2"]
    write_stages(stages, model, path, target)
    found = json.loads((target / "manifest.json").read_text())
    assert (found["format"], found["version"]) == ("dnnp-stages", 3)
    assert found["model"] == "m"
    assert found["weights"] == []
    assert found["inputs"] == [
        {"name": "x", "dtype": "float32", "shape": [4], "to": [0, "model"]},
        {"name": "unused", "dtype": "float32", "shape": [4], "to": ["model"]},
    ]
    assert {entry["name"]: entry["from"] for entry in found["outputs"]} == {
        "h": 2,
        "a": 0,
        "W": 2,
        "x": "model",
        "c": 0,
        "V": 0,
        "b0": 0,
        "unused": "model",
    }
    assert found["links"] == [
        {"from": 0, "to": 1, "tensors": ["b1", "b0"]},
        {"from": 0, "to": 2, "tensors": ["a"]},
        {"from": 1, "to": 2, "tensors": ["f"]},
    ]
    assert [s["device"] for s in found["stages"]] == devices
    assert [s["nodes"] for s in found["stages"]] == [2, 2, 3]
    assert found["stages"][1]["inputs"][0] == {
        "name": "b1",
        "dtype": "float32",
        "shape": [2],
        "from": 0,
    }
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
    assert files(tmp_path / "one") == files(tmp_path / "two")


def test_an_earlier_export_is_replaced_but_nothing_else(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "out"
    target.mkdir()
    export(model_with(), source, target)
    model = model_with()
    stages = split_model(model, [[0, 1, 2]])
    write_stages(stages, model, source / "m.onnx", target)
    assert sorted(files(target)) == [
        "manifest.json",
        "stage-0/model.onnx",
        "stage-0/model.onnx.data",
    ]

    (target / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"holds 'notes.txt', which is not from dnnp-export"):
        write_stages(stages, model, source / "m.onnx", target)
    assert len(files(target)) == 4
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
