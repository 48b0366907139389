"""No output takes the place of a file that is read, or of another output."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest

from support.run import dnnp

TEXT = """<ir_version: 8, opset_import: ["" : 17]>
g (float[2,3] x) => (float[2,2] z) { a = MatMul(x, W) z = Exp(a) }"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model with a weight file."""
    made = onnx.parser.parse_model(TEXT)
    weights = onnx.numpy_helper.from_array(np.ones((3, 2), np.float32), "W")
    made.graph.initializer.append(weights)
    path = tmp_path / "m.onnx"
    onnx.save(made, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    return path


@pytest.fixture
def plan(model: Path) -> Path:
    """A stream with a plan for the model."""
    path = model.parent / "plan.dnnp"
    done = dnnp("partition", "-q", "-k", "2", "-o", path, stdin=dnnp("import", model).out)
    assert done.status == 0, done.err
    return path


def refused(folder: Path, *words: str | Path, says: str) -> None:
    """Run a command that must change nothing and end with status 2."""
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    done = dnnp(*map(str, words))
    assert done.status == 2, done.err
    assert says in done.err
    assert len(done.err.splitlines()) == 1
    assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == before


def test_the_model_is_no_output(model: Path, plan: Path) -> None:
    folder = model.parent
    (folder / "soft").symlink_to(model)
    os.link(model, folder / "hard")
    for name in ("m.onnx", "soft", "hard"):
        refused(
            folder,
            "import",
            model,
            "-o",
            folder / name,
            says=f"-o {folder / name} would overwrite MODEL: {model}",
        )
    refused(
        folder,
        "import",
        model,
        "-o",
        folder / "w.bin",
        says=f"would overwrite weights of the model: {folder / 'w.bin'}",
    )
    for words in (
        ("run", "-n", "2", plan, "-o"),
        ("run", "-n", "2", plan, "--save-outputs"),
        ("profile", "--mode", "measure", "--repeats", "1", "--no-cache", plan, "-o"),
        ("coarsen", "--rules", "ort", plan, "-o"),
    ):
        refused(folder, *words, model, says=f"{words[-1]} {model} would overwrite the model")
        refused(folder, *words, folder / "w.bin", says="would overwrite weights of the model")


def test_two_outputs_are_two_files(plan: Path, tmp_path: Path) -> None:
    (tmp_path / "away").symlink_to("not-there")
    for one, other in (("x", "x"), ("x", "./x"), ("away", "not-there"), ("plan.dnnp", "plan.dnnp")):
        words = ("run", plan, "-o", f"{tmp_path}/{one}", "--save-outputs", f"{tmp_path}/{other}")
        refused(tmp_path, *words, says="name the same file")
    words = ("schedule", "--shape", "V", "--devices", "2", "-n", "2")
    refused(
        tmp_path,
        *words,
        "-o",
        f"{tmp_path}/x",
        "--svg",
        f"{tmp_path}/x",
        says=f"--svg name the same file: {tmp_path}/x",
    )
    assert dnnp(*words, "-o", "/dev/null", "--svg", "/dev/null").status == 0


def test_inputs_are_no_outputs(plan: Path, tmp_path: Path) -> None:
    given = tmp_path / "in.npz"
    np.savez(given, x=np.ones((2, 3), np.float32))
    folder = tmp_path / "set"
    folder.mkdir()
    tensor = onnx.numpy_helper.from_array(np.ones((2, 3), np.float32), "x")
    (folder / "input_0.pb").write_bytes(tensor.SerializeToString())
    for option in ("-o", "--save-outputs"):
        refused(
            tmp_path,
            "run",
            plan,
            "--inputs",
            given,
            option,
            given,
            says="would overwrite --inputs",
        )
        refused(
            tmp_path,
            "run",
            plan,
            "--inputs",
            folder,
            option,
            folder / "input_0.pb",
            says="would overwrite --inputs",
        )
    done = dnnp("run", "-q", "-n", "2", plan, "--inputs", folder, "-o", folder / "run")
    assert done.status == 0, done.err


def test_a_stream_may_be_replaced_by_what_becomes_of_it_alone(plan: Path, tmp_path: Path) -> None:
    assert dnnp("bound", "-q", plan, "-o", plan).status == 0
    assert dnnp("check", plan).status == 0
    refused(tmp_path, "check", "--json", plan, "-o", plan, says="would overwrite STREAM")
    refused(tmp_path, "run", plan, "--save-outputs", plan, says="would overwrite STREAM")
    words = ("export", "--to", "msr-split", plan, "-o", plan)
    refused(tmp_path, *words, says="would overwrite STREAM")


def test_an_export_does_not_replace_the_model_it_is_made_of(plan: Path, tmp_path: Path) -> None:
    """The stages of a stage, into the folder of that stage."""
    out = tmp_path / "out"
    assert dnnp("export", "-q", "--to", "stages", plan, "-o", out).status == 0
    again = tmp_path / "again.dnnp"
    imported = dnnp("import", out / "stage-0" / "model.onnx")
    assert dnnp("partition", "-q", "-k", "1", "-o", again, stdin=imported.out).status == 0
    refused(
        tmp_path, "export", "--to", "stages", again, "-o", out, says="would overwrite the model"
    )
