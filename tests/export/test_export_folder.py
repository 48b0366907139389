"""Exports over earlier ones: what is replaced, what is refused, what an attacker may plant."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from dnnp.core.model.errors import FormatError, InputFileError, UsageError
from dnnp.formats import export_folder
from support.stage_folders import SIZE, export, model_with

INSIDE = ".dnnp-export-"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Folder with a weight file."""
    folder = tmp_path / "source"
    (folder / "sub").mkdir(parents=True)
    weights = np.arange(4 * SIZE, dtype=np.float32).tobytes()
    (folder / "w.bin").write_bytes(weights)
    (folder / "sub" / "v.bin").write_bytes(weights)
    return folder


def files(folder: Path) -> dict[str, bytes]:
    """Contents of all files in a folder, by path."""
    found = (p for p in folder.rglob("*") if p.is_file())
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in found}


def refused(source: Path, target: Path, match: str) -> None:
    """An export that must change nothing."""
    before = files(target)
    with pytest.raises(UsageError, match=match) as caught:
        export(model_with(), source, target)
    assert "\n" not in str(caught.value)
    assert files(target) == before


def test_a_link_in_the_place_of_a_folder_is_not_followed(source: Path, tmp_path: Path) -> None:
    out, outside = tmp_path / "out", tmp_path / "outside"
    export(model_with("sub/v.bin"), source, out)
    outside.mkdir()
    (outside / "v.bin").write_bytes(b"precious")
    (out / "sub" / "v.bin").unlink()
    (out / "sub").rmdir()
    (out / "sub").symlink_to(outside)
    with pytest.raises(UsageError, match="holds 'sub', which is not from dnnp-export"):
        export(model_with("sub/v.bin"), source, out)
    assert files(outside) == {"v.bin": b"precious"}


def test_a_link_that_comes_late_is_not_followed(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even one that takes the place of a folder after the last look at it."""
    out, outside = tmp_path / "out", tmp_path / "outside"
    outside.mkdir()
    (outside / "v.bin").write_bytes(b"precious")

    def plant(target: Path, *_: object) -> None:
        (target / "sub").symlink_to(outside)

    monkeypatch.setattr(export_folder, "_check_free", plant)
    with pytest.raises(InputFileError):
        export(model_with("sub/v.bin"), source, out)
    assert files(outside) == {"v.bin": b"precious"}


def test_what_is_listed_but_was_not_written_stays(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (source / "w.bin").rename(tmp_path / "later")
    export(model_with(), source, out)
    (out / "w.bin").write_bytes(b"mine")  # as the command said that it is missing
    refused(source, out, r"'w\.bin' is not as dnnp-export left it; move it away")
    (out / "w.bin").unlink()
    (out / "stage-1.onnx").write_bytes(b"mine")
    refused(source, out, r"'stage-1\.onnx' is not as")
    (out / "stage-1.onnx").unlink()
    manifest = json.loads((out / "manifest.json").read_text())
    manifest["weights"].append({"file": "notes", "placed": "copy"})
    manifest["weights"].append({"file": "../later", "placed": "copy"})
    (out / "manifest.json").write_text(json.dumps(manifest))
    (out / "notes").write_text("mine")
    refused(source, out, "'notes' is not as")
    (out / "notes").unlink()
    export(model_with(), source, out)
    assert (tmp_path / "later").exists()


@pytest.mark.parametrize("copy", [False, True])
def test_weights_are_replaced_unless_changed_or_the_last_of_their_kind(
    source: Path, tmp_path: Path, copy: bool
) -> None:
    out = tmp_path / "out"
    for _ in range(2):
        export(model_with("sub/v.bin"), source, out, copy_weights=copy)
    assert not (out / ".dnnp-unfinished").exists()
    if copy:
        with (out / "w.bin").open("r+b") as file:
            file.write(b"x")
    else:
        os.unlink(source / "w.bin")
    refused(source, out, r"'w\.bin' is not as dnnp-export left it")


def test_weights_behind_links(source: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    (source / "w.bin").rename(secret)
    (source / "w.bin").symlink_to(secret)
    for copy in (False, True):
        with pytest.raises(FormatError, match=r"w\.bin: a link out of the model's folder"):
            export(model_with(), source, tmp_path / "out", copy_weights=copy)
    assert not (tmp_path / "out").exists()
    # A cache: the model and its weights are links to where the files of all versions stand.
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshot"
    blobs.mkdir()
    snapshot.mkdir()
    secret.rename(blobs / "1")
    (snapshot / "w.bin").symlink_to(blobs / "1")
    (snapshot / "m.onnx").symlink_to(blobs / "2")
    (weights,) = export(model_with(), snapshot, tmp_path / "out")
    assert weights.how == "link"
    assert not (tmp_path / "out" / "w.bin").is_symlink()


class KilledError(BaseException):
    """Stands for a signal that nothing can catch."""


@pytest.mark.parametrize("moves", range(8))
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
        patch.setattr(export_folder.os, "replace", count)
        patch.setattr("dnnp.formats.unfinished.remove", lambda path: None)
        patch.setattr(export_folder, "remove", lambda path: None)
        try:
            export(model_with("sub/v.bin"), source, out)
        except KilledError:
            assert moves < 7
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
