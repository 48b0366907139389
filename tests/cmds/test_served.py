"""Commands that the server of the tests forks do what those started afresh do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support import seeds
from support.graphs import random_stream, to_bytes
from support.run import PATIENCE_S, executable
from support.served import end_server, program, served

STREAM = to_bytes(random_stream(1, 4))
PLAN = seeds.encode(seeds.planned())


def both(name: str, *arguments: str, **options: Any) -> list[subprocess.CompletedProcess[bytes]]:
    """Results of a command that is started afresh, and of a fork of the server."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "timeout": PATIENCE_S}
    return [
        subprocess.run([*words, *arguments], **(pipes | options))
        for words in ([sys.executable, executable(name)], [program(name)])
    ]


@pytest.mark.parametrize(
    ("words", "stream"),
    [
        (("import", "--version"), b""),
        (("check",), PLAN),
        (("check",), PLAN[:-20]),
        (("partition", "-k", "2", "-v"), STREAM),
        (("partition", "-k", "2", "--no-such-option"), STREAM),
        (("run", "/nowhere/\udc9b\udcff"), b""),
    ],
)
def test_same_status_and_output(words: tuple[str, ...], stream: bytes) -> None:
    afresh, forked = both(*words, input=stream)
    assert forked.returncode == afresh.returncode
    assert forked.stdout == afresh.stdout
    assert unmeasured(forked.stderr) == unmeasured(afresh.stderr)


def unmeasured(messages: bytes) -> list[bytes]:
    """Lines without the times at their ends."""
    return [line.split(b" after ")[0] for line in messages.splitlines()]


def test_folder_and_environment_are_those_of_the_caller(tmp_path: Path) -> None:
    (tmp_path / "plan").write_bytes(PLAN)
    for done in both("check", "plan", cwd=tmp_path):
        assert done.returncode == 0, done.stderr
    afresh, forked = both("check", "--help-all", env={**os.environ, "COLUMNS": "50"})
    assert forked.stdout == afresh.stdout
    assert max(map(len, forked.stdout.splitlines())) <= 50


def test_what_is_read_at_the_start_is_read() -> None:
    environment = {**os.environ, "PYTHONPROFILEIMPORTTIME": "1"}
    for done in both("check", "--version", env=environment):
        assert done.stderr.startswith(b"import time:")


def test_closed_pipe(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(to_bytes(random_stream(1, 800)))
    for words in ([sys.executable, executable("coarsen")], [program("coarsen")]):
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen([*words, "-q", "--rules", "none", path], **pipes) as process:
            process.stdout.readline()
            process.stdout.close()
            assert process.wait(PATIENCE_S) == -signal.SIGPIPE
            assert process.stderr.read() == b""


def reading(folder: Path) -> tuple[subprocess.Popen[bytes], int]:
    """A command of the server that reads from a pipe, and the other end."""
    path = folder / "pipe"
    os.mkfifo(path)
    process = subprocess.Popen([program("check"), path], stderr=subprocess.PIPE)
    return process, os.open(path, os.O_WRONLY)  # there is somebody who reads


def test_signals_go_to_the_command(tmp_path: Path) -> None:
    process, pipe = reading(tmp_path)
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=PATIENCE_S) == (None, b"")
    assert process.returncode == -signal.SIGTERM
    with pytest.raises(BrokenPipeError):
        os.write(pipe, b"nobody reads")
    os.close(pipe)


def test_what_runs_ends_with_the_server(tmp_path: Path) -> None:
    folder = served()
    process, pipe = reading(tmp_path)
    end_server()
    assert process.wait(PATIENCE_S) == -signal.SIGTERM
    with pytest.raises(BrokenPipeError):
        os.write(pipe, b"nobody reads")
    os.close(pipe)
    assert not folder.exists()
