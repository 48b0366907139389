"""dnnp-export as users meet it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import onnx
import pytest

from support.run import dnnp
from support.seeds import encode, graph_records, planned
from support.split_models import MODELS, feeds_of, graph, make, node, run_whole, session, value


def piped(model: onnx.ModelProto, path: Path, *options: str) -> bytes:
    """Import and partition a model that is saved at `path`."""
    path.write_bytes(model.SerializeToString())
    imported = dnnp("import", path, *options)
    assert imported.status == 0, imported.err
    done = dnnp("partition", "-k", "3", stdin=imported.out)
    assert done.status == 0, done.err
    return done.out


@pytest.mark.parametrize("name", MODELS)
def test_import_partition_export(name: str, tmp_path: Path) -> None:
    model = MODELS[name]()
    options = ["--dim", "n=3"] if name == "stale_shapes" else []
    stream = piped(model, tmp_path / "m.onnx", *options)
    done = dnnp("export", "--to", "stages", "-o", tmp_path / "out", stdin=stream)
    assert done.status == 0, done.err
    assert done.out == b""
    found = json.loads((tmp_path / "out/manifest.json").read_text())
    assert done.err == f"dnnp-export: wrote {len(found['stages'])} stages to {tmp_path / 'out'}\n"
    assert found["model"] == "m"
    held = feeds_of(model)
    for stage in found["stages"]:
        names = [entry["name"] for entry in stage["outputs"]]
        feeds = {entry["name"]: held[entry["name"]] for entry in stage["inputs"]}
        ours = session(str(tmp_path / "out" / stage["file"]))
        held.update(zip(names, ours.run(names, feeds), strict=True))
    for output, expected in run_whole(model, feeds_of(model)).items():
        np.testing.assert_array_equal(held[output], expected)


def test_usage(tmp_path: Path) -> None:
    stream = encode(planned())
    done = dnnp("export", stdin=stream)
    assert done.status == 2
    done = dnnp("export", "--to", "stages", stdin=stream)
    assert (done.status, done.err) == (
        2,
        "dnnp-export: --to stages writes several files: name a folder with -o DIR\n",
    )
    done = dnnp("export", "--to", "msr-split", stdin=encode(graph_records()))
    assert (done.status, done.err) == (
        2,
        "dnnp-export: <stdin>: no plan to export; run dnnp-partition first\n",
    )


def test_a_plan_that_does_not_fit_its_graph() -> None:
    records = planned()
    next(r for r in records if r["type"] == "node")["time_s"]["acc"] = 7.0
    done = dnnp("export", "--to", "msr-split", stdin=encode(records))
    assert done.status == 3
    assert "made from another graph" in done.err


def test_a_stream_without_a_model(tmp_path: Path) -> None:
    done = dnnp("export", "--to", "stages", "-o", tmp_path / "out", stdin=encode(planned()))
    assert done.status == 3
    assert not (tmp_path / "out").exists()


def test_a_model_that_moved_or_changed(tmp_path: Path) -> None:
    path, out = tmp_path / "m.onnx", tmp_path / "out"
    stream = piped(MODELS["tied_weights"](), path)
    path.rename(tmp_path / "n.onnx")
    done = dnnp("export", "--to", "stages", "-o", out, stdin=stream)
    assert done.status == 1
    assert str(path) in done.err
    moved = ["--model", tmp_path / "n.onnx"]
    assert dnnp("export", "--to", "stages", "-o", out, *moved, stdin=stream).status == 0
    other = MODELS["loops"]()
    path.write_bytes(other.SerializeToString())
    done = dnnp("export", "--to", "stages", "-o", tmp_path / "new", stdin=stream)
    assert done.status == 3
    assert not (tmp_path / "new").exists()


def test_a_folder_with_other_files(tmp_path: Path) -> None:
    stream = piped(MODELS["tied_weights"](), tmp_path / "m.onnx")
    done = dnnp("export", "--to", "stages", "-o", tmp_path, stdin=stream)
    assert done.status == 2
    assert f"-o {tmp_path} would overwrite the model: {tmp_path / 'm.onnx'}" in done.err
    other = tmp_path / "other"
    other.mkdir()
    (other / "notes").touch()
    done = dnnp("export", "--to", "stages", "-o", other, stdin=stream)
    assert done.status == 2
    assert "holds 'notes', which is not from dnnp-export" in done.err
    assert sorted(os.listdir(tmp_path)) == ["m.onnx", "other"]
    assert os.listdir(other) == ["notes"]


def test_weights_that_are_missing_copied_or_linked(tmp_path: Path) -> None:
    weights = onnx.TensorProto(
        name="A", data_type=1, dims=[4], data_location=onnx.TensorProto.EXTERNAL
    )
    for key, text in (("location", "w.bin"), ("offset", "0"), ("length", "16")):
        weights.external_data.add(key=key, value=text)
    nodes = [node("Add", ["x", "A"], ["a"]), node("Mul", ["a", "A"], ["y"])]
    model = make(graph(nodes, "g", [value("x")], [value("y")], [weights]))
    stream = piped(model, tmp_path / "m.onnx")
    command = ("export", "--to", "stages", "-o", tmp_path / "out")
    done = dnnp(*command, "-q", stdin=stream)
    assert done.status == 0
    assert f"{tmp_path / 'w.bin'}: no such file" in done.err
    assert f"the stages expect it at {tmp_path}/out/stage-0/w.bin, and likewise in" in done.err
    (tmp_path / "w.bin").write_bytes(bytes(16))
    done = dnnp(*command, stdin=stream)
    stages = len(os.listdir(tmp_path / "out")) - 1
    assert f": copied {16 * stages} B of weights, {16 * (stages - 1)} B of them again" in done.err
    done = dnnp(*command, "--link-weights", stdin=stream)  # an option of earlier versions
    assert (done.status, done.err.count("\n")) == (2, 1)
    assert "--link-weights" in done.err


def test_a_folder_whose_name_is_too_long(tmp_path: Path) -> None:
    stream = piped(MODELS[next(iter(MODELS))](), tmp_path / "m.onnx")
    done = dnnp("export", "--to", "stages", "-o", tmp_path / ("a" * 5000), stdin=stream)
    assert done.status == 1
    assert done.err.endswith("File name too long\n")
