"""Exports over earlier ones: what is replaced, what is refused, what an attacker may plant."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest

from dnnp.core.model.errors import FormatError, InputFileError, UsageError
from dnnp.formats.export import stage_folder
from dnnp.formats.export.manifest import check_files, read_manifest
from support.stage_folders import export, files, model_with

INSIDE = ".dnnp-export-"


def refused(source: Path, target: Path, match: str) -> None:
    """An export that must change nothing."""
    before = files(target)
    with pytest.raises(UsageError, match=match) as caught:
        export(model_with(), source, target)
    assert "\n" not in str(caught.value)
    assert files(target) == before


def test_a_link_in_the_place_of_a_folder_is_not_followed(source: Path, tmp_path: Path) -> None:
    out, outside = tmp_path / "out", tmp_path / "outside"
    export(model_with(), source, out)
    outside.mkdir()
    (outside / "model.onnx").write_bytes(b"precious")
    shutil.rmtree(out / "stage-1")
    (out / "stage-1").symlink_to(outside)
    with pytest.raises(UsageError, match="holds 'stage-1', which is not from dnnp-export"):
        export(model_with(), source, out)
    assert files(outside) == {"model.onnx": b"precious"}


def test_a_link_that_comes_late_is_not_followed(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even one that takes the place of a folder after the last look at it."""
    out, outside = tmp_path / "out", tmp_path / "outside"
    outside.mkdir()
    (outside / "model.onnx").write_bytes(b"precious")

    def plant(target: Path, *_: object) -> None:
        (target / "stage-1").symlink_to(outside)

    monkeypatch.setattr(stage_folder, "_check_free", plant)
    with pytest.raises(InputFileError):
        export(model_with(), source, out)
    assert files(outside) == {"model.onnx": b"precious"}


def test_what_is_listed_but_was_not_written_stays(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (source / "w.bin").rename(tmp_path / "later")
    export(model_with(), source, out)
    (out / "stage-0/w.bin").write_bytes(b"mine")  # as the command said that it is missing
    refused(source, out, r"'stage-0/w\.bin' is not as dnnp-export left it; move it away")
    (out / "stage-0/w.bin").unlink()
    (out / "stage-1/model.onnx").write_bytes(b"mine")
    refused(source, out, r"'stage-1/model\.onnx' is not as")
    (out / "stage-1/model.onnx").unlink()
    manifest = json.loads((out / "manifest.json").read_text())
    manifest["weights"].append({"file": "notes", "placed": "copy"})
    manifest["weights"].append({"file": "../later", "placed": "copy"})
    (out / "manifest.json").write_text(json.dumps(manifest))
    (out / "notes").write_text("mine")
    refused(source, out, "'notes' is not as")
    (out / "notes").unlink()
    export(model_with(), source, out)
    assert (tmp_path / "later").exists()


def test_copies_are_replaced_unless_changed(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for _ in range(2):
        export(model_with("sub/v.bin"), source, out)
    assert not (out / ".dnnp-unfinished").exists()
    with (out / "stage-1/model.onnx.data").open("r+b") as file:
        file.write(b"x")
    refused(source, out, r"'stage-1/model\.onnx\.data' is not as dnnp-export left it")


def test_links_of_earlier_versions_are_replaced_unless_they_are_the_last(
    source: Path, tmp_path: Path
) -> None:
    """Both stages have a link: one of them does not keep the bytes when both are removed."""
    out = tmp_path / "out"
    export(model_with(), source, out)
    manifest = json.loads((out / "manifest.json").read_text())
    for entry in manifest["weights"]:
        (out / entry["file"]).unlink()
        entry["file"] = f"stage-{entry['stage']}/w.bin"
        os.link(source / "w.bin", out / entry["file"])
        entry |= {"placed": "link", "size_bytes": (source / "w.bin").stat().st_size}
        del entry["sha256"], entry["padding_bytes"]
    (out / "manifest.json").write_text(json.dumps(manifest))
    check_files(out, read_manifest(out))
    (source / "w.bin").unlink()
    refused(source, out, r"'stage-0/w\.bin' is not as dnnp-export left it")
    os.link(out / "stage-0/w.bin", source / "w.bin")
    export(model_with(), source, out)
    assert not (out / "stage-0/w.bin").exists()
    assert (source / "w.bin").stat().st_nlink == 1


@pytest.mark.parametrize("placed", ["link", "copy"])
def test_a_folder_of_version_1_is_replaced(source: Path, tmp_path: Path, placed: str) -> None:
    """Folder as version 1 wrote it: all files side by side, with whole weight files."""
    out = tmp_path / "out"
    out.mkdir()
    (out / "sub").mkdir()
    data = (source / "w.bin").read_bytes()
    if placed == "link":
        os.link(source / "w.bin", out / "sub/w.bin")
    else:
        (out / "sub/w.bin").write_bytes(data)
    (out / "stage-0.onnx").write_bytes(b"a model")
    digests = [hashlib.sha256(found).hexdigest() for found in (b"a model", data)]
    manifest = {
        "format": "dnnp-stages",
        "version": 1,
        "stages": [{"id": 0, "file": "stage-0.onnx", "sha256": digests[0]}],
        "weights": [
            {
                "file": "sub/w.bin",
                "source": "w.bin",
                "size_bytes": len(data),
                "placed": placed,
                **({"sha256": digests[1]} if placed == "copy" else {}),
            }
        ],
    }
    (out / "manifest.json").write_text(json.dumps(manifest))
    export(model_with(), source, out)
    assert sorted(os.listdir(out)) == ["manifest.json", "stage-0", "stage-1"]
    assert (source / "w.bin").read_bytes() == data


def test_weights_behind_links(source: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    (source / "w.bin").rename(secret)
    (source / "w.bin").symlink_to(secret)
    with pytest.raises(FormatError, match=r"w\.bin: a link out of the model's folder"):
        export(model_with(), source, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    # A cache: the model and its weights are links to where the files of all versions stand.
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshot"
    blobs.mkdir()
    snapshot.mkdir()
    secret.rename(blobs / "1")
    (snapshot / "w.bin").symlink_to(blobs / "1")
    (snapshot / "m.onnx").symlink_to(blobs / "2")
    weights = export(model_with(), snapshot, tmp_path / "out")
    assert {file.how for file in weights.files} == {"copy"}
    assert not any(path.is_symlink() for path in (tmp_path / "out").rglob("*"))


class KilledError(BaseException):
    """Stands for a signal that nothing can catch."""


@pytest.mark.parametrize("moves", range(6))
def test_an_export_that_was_killed_is_taken_over(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moves: int
) -> None:
    """After any number of moves; what is not from an export is still refused."""
    out, whole = tmp_path / "out", tmp_path / "whole"
    export(model_with("sub/v.bin"), source, whole)
    export(model_with(), source, out)
    replace, left = os.replace, [moves]

    def count(*names: Path) -> None:
        if not left[0]:
            raise KilledError
        left[0] -= 1
        replace(*names)

    with monkeypatch.context() as patch:
        patch.setattr(stage_folder.os, "replace", count)
        patch.setattr("dnnp.formats.files.remove", lambda path: None)
        patch.setattr(stage_folder, "remove", lambda path: None)
        try:
            export(model_with("sub/v.bin"), source, out)
        except KilledError:
            assert moves < 5
    assert any(name.startswith(INSIDE) for name in os.listdir(out))
    (out / "notes").write_text("mine")
    refused(source, out, "holds 'notes'")
    (out / "notes").unlink()
    export(model_with("sub/v.bin"), source, out)
    assert files(out) == files(whole)


def test_folders_that_only_look_like_leftovers_stay(source: Path, tmp_path: Path) -> None:
    out, other = tmp_path / "out", tmp_path / "other"
    other.mkdir()
    (other / ".dnnp-unfinished").touch()
    (other / "file").touch()
    name = f"{INSIDE}{0:016x}"
    for path in (out / name, out / f"{INSIDE}mine"):
        path.mkdir(parents=True)
        (path / "file").touch()
        refused(source, out, "holds '.dnnp-export-")
        shutil.rmtree(path)
    (out / name).symlink_to(other)
    refused(source, out, "holds '.dnnp-export-")
    assert len(files(other)) == 2


def test_two_exports_at_once(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    export(model_with(), source, out)
    before = files(out)
    held = os.open(out, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(InputFileError, match="another dnnp-export is writing there"):
            export(model_with(), source, out)
    finally:
        os.close(held)
    assert files(out) == before
    export(model_with(), source, out)
