"""Stages served by processes of their own, over TCP on this machine."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import dnnp
from dnnp.samples.frames import Frame, address, connect, listen, receive, send
from dnnp.samples.send_samples import main, through
from dnnp.samples.serve_stage import main as serve
from support.exports import exported, plan_of_kind, same, sample
from support.run import PATIENCE_S

LOOPBACK = ("127.0.0.1", 0)


def at(server: socket.socket) -> str:
    return f"127.0.0.1:{server.getsockname()[1]}"


@contextmanager
def served(folder: Path, stage: int, following: str, *options: str) -> Iterator[str]:
    """A process that serves a stage; where it listens."""
    command = [sys.executable, "-m", "dnnp.samples.serve_stage", folder, str(stage)]
    command += ["--listen", "127.0.0.1:0", "--next", following, *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            match = re.fullmatch(rf"stage {stage} listens on (\S+)\n", line)
            assert match, line
            yield match[1]
            if "--once" in options:
                process.communicate(timeout=PATIENCE_S)
                assert process.returncode == 0
        finally:
            process.kill()


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two stages."""
    folder = tmp_path_factory.mktemp("served")
    manifest = exported(plan_of_kind("replicas", folder), folder / "out")
    assert len(manifest["stages"]) == 2
    return folder / "out"


def test_two_processes(export: Path, tmp_path: Path) -> None:
    """Each has its own stage only; outputs are those of the whole model, twice in a row."""
    places = []
    for stage in range(2):
        places.append(tmp_path / f"machine-{stage}")
        places[-1].mkdir()
        shutil.copy(export / "manifest.json", places[-1])
        shutil.copytree(export / f"stage-{stage}", places[-1] / f"stage-{stage}")
    (tmp_path / "client").mkdir()
    shutil.copy(export / "manifest.json", tmp_path / "client")
    stages = dnnp.load_stages(tmp_path / "client", stages=[])
    samples = [sample(seed) for seed in range(5)]
    with (
        listen(LOOPBACK) as server,
        served(places[1], 1, at(server)) as second,
        served(places[0], 0, second) as first,
    ):
        for some in (samples, samples[:1]):
            found = through(stages, some, address(first), server)
            assert len(found) == len(some)
            for outputs, feeds in zip(found, some, strict=True):
                same(outputs, feeds)
        # What a stage refuses comes back as its words, and it goes on serving.
        broken = {"x": np.zeros((1, 63), np.float32)}
        stages.accept = dict  # type: ignore[method-assign,assignment]
        with pytest.raises(dnnp.InputFileError, match="sample 0: stage 0: "):
            through(stages, [broken], address(first), server)
        same(through(stages, samples[:1], address(first), server)[0], samples[0])


def test_the_programs(export: Path, tmp_path: Path) -> None:
    """From files to a file; both ends as users start them, here in threads."""
    for seed in range(2):
        np.savez(tmp_path / f"{seed}.npz", **sample(seed))
    with listen(LOOPBACK) as a, listen(LOOPBACK) as b, listen(LOOPBACK) as c:
        ports = [at(a), at(b), at(c)]
    threads = [
        threading.Thread(
            target=serve,
            args=([str(export), str(i), "--listen", ports[i], "--next", ports[i + 1], "--once"],),
        )
        for i in range(2)
    ]
    for thread in threads:
        thread.start()
    files = [str(tmp_path / f"{seed}.npz") for seed in range(2)]
    output = str(tmp_path / "out.npz")
    ends = ["--first", ports[0], "--listen", ports[2], "-o", output]
    assert main([str(export), *files, *ends]) == 0
    for thread in threads:
        thread.join(PATIENCE_S)
    with np.load(output) as found:
        for seed in range(2):
            same({name: found[f"{seed}/{name}"] for name in ("y", "a1t")}, sample(seed))


def test_faults_of_users(export: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ends = ["--first", "127.0.0.1:1", "--listen", "127.0.0.1:0", "-o", str(tmp_path / "o.npz")]
    (tmp_path / "no.npz").write_bytes(b"no")
    cases = [
        (main([str(export), str(tmp_path / "absent.npz"), *ends]), 1, "absent.npz"),
        (main([str(export), str(tmp_path / "no.npz"), *ends]), 3, "not an .npz file"),
        (serve([str(export), "7", "--listen", "127.0.0.1:0", "--next", "x:1"]), 2, "no stage 7"),
        (serve([str(export), "0", "--listen", "x", "--next", "x:1"]), 2, "give HOST:PORT"),
        (serve([str(tmp_path), "0", "--listen", "x:1", "--next", "x:1"]), 1, "manifest.json"),
    ]
    said = capsys.readouterr().err.splitlines()
    assert len(said) == len(cases)
    for (status, wanted, words), line in zip(cases, said, strict=True):
        assert (status, words in line) == (wanted, True), line
    with pytest.raises(dnnp.InputFileError, match=r"127\.0\.0\.1:1"):
        connect(("127.0.0.1", 1), 0.0)


def pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair()


def test_frames_come_as_they_went() -> None:
    values = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "strided": np.arange(12, dtype=np.int64).reshape(3, 4).T,
        "empty": np.zeros((0, 4), np.float16),
        "scalar": np.array(2.5),
        "flag": np.array([True, False]),
        "half": np.ones(3, ml_dtypes.bfloat16),
        "swapped": np.arange(3, dtype=">i2"),
    }
    one, other = pair()
    with one, other:
        send(one, Frame(3, values))
        send(one, Frame(4, {}, "why"))
        one.shutdown(socket.SHUT_WR)
        found = receive(other)
        assert found is not None
        assert (found.sample, list(found.values)) == (3, list(values))
        for name, array in values.items():
            assert found.values[name].dtype == array.dtype
            np.testing.assert_array_equal(found.values[name], array)
        assert receive(other) == Frame(4, {}, "why")
        assert receive(other) is None


def header(**fields: object) -> bytes:
    text = json.dumps({"sample": 0, "tensors": [], **fields}).encode()
    return len(text).to_bytes(8, "big") + text


def tensor(dtype: object = "<f4", shape: object = (2,)) -> dict[str, object]:
    return {"name": "x", "dtype": dtype, "shape": shape}


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", dnnp.FormatError),
        (header()[:5], dnnp.InputFileError),
        (header()[:-1], dnnp.InputFileError),
        (header(sample=None), dnnp.FormatError),
        (header(tensors=3), dnnp.FormatError),
        (header(tensors=[tensor("O")]), dnnp.FormatError),
        (header(tensors=[tensor("no such type")]), dnnp.FormatError),
        (header(tensors=[tensor(shape=[-1])]), dnnp.FormatError),
        (header(tensors=[tensor(shape=[True])]), dnnp.FormatError),
        (header(tensors=[tensor(shape=[2**40])]), dnnp.FormatError),
        (header(tensors=[tensor()]), dnnp.InputFileError),
        ((2).to_bytes(8, "big") + b"[]", dnnp.FormatError),
    ],
)
def test_what_is_no_frame(data: bytes, error: type[Exception]) -> None:
    one, other = pair()
    with one, other:
        one.sendall(data)
        one.shutdown(socket.SHUT_WR)
        with pytest.raises(error):
            receive(other)


def test_what_cannot_be_sent() -> None:
    one, other = pair()
    with one, other:
        for value in ([np.zeros(1)], np.array(["a"], dtype=object)):
            with pytest.raises(dnnp.InputFileError, match="only numbers are sent"):
                send(one, Frame(0, {"x": value}))
