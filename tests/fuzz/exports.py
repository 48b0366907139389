"""Manifests of exports, and frames of tensors on their way, for the fuzzer."""

from __future__ import annotations

import functools
import json
import socket
import tempfile
from pathlib import Path

import numpy as np

import dnnp
from dnnp.core.model.errors import FormatError
from dnnp.formats.export.manifest import FORMAT, check_files, read_manifest
from dnnp.samples.frames import Frame, receive, send
from support.run import dnnp as command
from support.split_models import MODELS, feeds_of


@functools.cache
def manifests() -> list[bytes]:
    """Manifests of a small model with weights inside, in every layout."""
    found = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "m.onnx").write_bytes(MODELS["tied_weights"]().SerializeToString())
        imported = command("import", folder / "m.onnx").out
        planned = command("partition", "-q", "-k", "2", "--method", "uniform", stdin=imported).out
        for to in ("stages", "triton", "ort-layers", "onnx-devices"):
            done = command("export", "-q", "--to", to, "-o", folder / to, stdin=planned)
            assert done.status == 0, done.err
            found.append((folder / to / "manifest.json").read_bytes())
    return found


def read_manifests(data: bytes, folder: Path) -> None:
    """A manifest alone in its folder: what it says is enough to check samples, and no file."""
    (folder / "manifest.json").write_bytes(data)
    found = read_manifest(folder)
    assert found["format"] == FORMAT
    check_files(folder, found, [])
    try:
        stages = dnnp.load_stages(folder, stages=[])
    except FormatError:
        assert found["layout"] != "stages" or json.loads(data)["stages"]
        return
    sample = feeds_of(MODELS["tied_weights"]())
    stages.accept({name: sample.get(name, np.zeros(4, np.float32)) for name in stages.inputs})


def frames() -> list[bytes]:
    """Samples as they are sent."""
    found = []
    for values in ({}, {"x": np.arange(6, dtype=np.float32).reshape(2, 3), "y": np.array(True)}):
        one, other = socket.socketpair()
        with one, other:
            send(one, Frame(7, values))
            found.append(other.recv(1 << 16))
    return found


def read_frames(data: bytes, _: Path) -> None:
    """Bytes from a connection, until it ends."""
    one, other = socket.socketpair()
    with one, other:
        one.sendall(data)
        one.shutdown(socket.SHUT_WR)
        while receive(other) is not None:
            pass
