"""Opening models: parse, hash, and find the source of a stream."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from dnnp.core.model.errors import FormatError, InputFileError
from dnnp.formats import files
from dnnp.formats.onnx import load_model as onnx_load
from dnnp.formats.onnx.load_model import load_with_hash, source_model

CHAIN = "g (float[2] x) => (float[2] y) { y = Relu(x) }"


def header(path: Path | str, digest: str, kind: str = "onnx") -> dict:
    return {"source": {"kind": kind, "path": str(path), "sha256": digest}}


def sha256_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_hash_and_model(save):
    path = save(CHAIN)
    model, digest = load_with_hash(path)
    assert (len(model.graph.node), digest) == (1, sha256_of(path))


def test_source_as_recorded_and_moved(save, tmp_path: Path):
    path = save(CHAIN)
    found = source_model(header(path, sha256_of(path)))
    assert found[1:] == (path, sha256_of(path))
    moved = path.rename(tmp_path / "elsewhere.onnx")
    assert source_model(header(path, sha256_of(moved)), str(moved))[1] == moved
    with pytest.raises(InputFileError, match="--model PATH"):
        source_model(header(path, sha256_of(moved)))


def test_source_that_changed(save):
    path = save(CHAIN)
    digest = sha256_of(path)
    save(CHAIN.replace("Relu", "Exp"))
    with pytest.raises(FormatError, match="not the model that was imported") as caught:
        source_model(header(path, digest))
    assert digest[:12] in str(caught.value)
    with pytest.raises(FormatError, match="not the model"):
        source_model(header("gone.onnx", digest), str(path))


def test_streams_without_an_onnx_source(save):
    with pytest.raises(FormatError, match="imported from msr-json"):
        source_model(header("w.json", "0" * 64, "msr-json"))
    with pytest.raises(FormatError, match="--model"):
        source_model({})
    assert source_model({}, str(save(CHAIN)))[0].graph.node


def test_files_too_large_for_protobuf(save, monkeypatch):
    path = save(CHAIN)
    monkeypatch.setattr(onnx_load, "LIMIT", 10)
    with pytest.raises(FormatError, match="external data"):
        load_with_hash(path)


def test_unreadable_paths(tmp_path: Path):
    for path in (tmp_path, tmp_path / "absent", "a\0b"):
        with pytest.raises(InputFileError):
            load_with_hash(path)
    with pytest.raises(InputFileError, match="no such file"):
        source_model(header("a" * 5000, "0" * 64))


def test_a_stream_chooses_no_device_and_no_pipe(tmp_path: Path):
    """Reading them would fill the memory, or never begin."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/zero")
    for path in ("/dev/zero", tmp_path / "pipe", tmp_path / "link"):
        with pytest.raises(InputFileError, match="not a regular file"):
            source_model(header(path, "0" * 64))
    with pytest.raises(FormatError, match="empty"):
        source_model(header("/proc/self/mem", "0" * 64))


def test_what_is_exchanged_for_a_pipe_after_the_first_look(tmp_path: Path, monkeypatch):
    path = tmp_path / "m.onnx"
    os.mkfifo(path)
    regular = os.stat(__file__)
    monkeypatch.setattr(files.os, "stat", lambda _: regular)
    with pytest.raises(InputFileError, match="not a regular file"):
        source_model(header("m.onnx", "0" * 64), str(path))
