"""Closed pipes, Ctrl-C and terminals, with real processes."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from support import seeds
from support.run import executable

INTERRUPTED = 130


def start(name: str, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    """Start `dnnp-NAME` with pipes around it."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, executable(name), *arguments], **(pipes | options))


def large() -> bytes:
    """A stream that no pipe buffer holds."""
    records = [seeds.header(), seeds.tensor(0, "input", 4)]
    records += [seeds.tensor(i, "activation", 4) for i in range(1, 3001)]
    records += [seeds.node(i, [i], [i + 1], 1.0) for i in range(3000)]
    return seeds.encode(records)


@pytest.mark.parametrize("name", ["coarsen", "partition"])
def test_closed_pipe_ends_quietly(name: str, tmp_path: Path) -> None:
    path = tmp_path / "large.dnnp"
    path.write_bytes(large())
    arguments = ["-k", "2"] if name == "partition" else ["--rules", "none"]
    process = start(name, "-q", *arguments, str(path))
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(60) in (-signal.SIGPIPE, 128 + signal.SIGPIPE)
    assert process.stderr.read() == b""


def test_closed_pipe_in_a_shell(tmp_path: Path) -> None:
    path = tmp_path / "large.dnnp"
    path.write_bytes(large())
    command = f"'{sys.executable}' '{executable('coarsen')}' -q --rules none '{path}' | head -n 1"
    shell = subprocess.run(
        ["bash", "-c", f"{command}; echo ${{PIPESTATUS[0]}}"], capture_output=True, timeout=60
    )
    assert shell.stdout.splitlines()[-1] == b"141"
    assert shell.stderr == b""


def worker_of(process: subprocess.Popen[bytes]) -> int:
    """The child of a command that does its work; 0 before there is one."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return int(children[0]) if children else 0


def wait_until_reading(process: subprocess.Popen[bytes]) -> None:
    """Wait until a command sleeps on its standard input."""
    for _ in range(600):
        worker = worker_of(process)
        if worker and "pipe_read" in Path(f"/proc/{worker}/wchan").read_text():
            return
        state = Path(f"/proc/{worker}/syscall")
        try:
            if worker and state.read_text().split()[:2] == ["0", "0x0"]:
                return
        except OSError:
            time.sleep(1)
            return
        time.sleep(0.05)
    pytest.fail("the process never read its input")


def test_first_interrupt_while_reading_is_for_the_others() -> None:
    process = start("check")
    wait_until_reading(process)
    process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    out, err = process.communicate(seeds.encode(seeds.planned()), timeout=60)
    assert (process.returncode, out) == (0, b"")
    assert err.startswith(b"dnnp-check: ok: ")


def test_second_interrupt_quits_at_once() -> None:
    process = start("check")
    wait_until_reading(process)
    process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    assert process.wait(5) == INTERRUPTED


def test_interrupt_while_running(tmp_path: Path) -> None:
    """One Ctrl-C stops the samples; what was measured is written and marked."""
    from fuzz.onnx_models import models

    from support.run import dnnp

    path = tmp_path / "mlp.onnx"
    path.write_bytes(models()["mlp"].SerializeToString())
    planned = dnnp("partition", "-q", "-k", "2", stdin=dnnp("import", path).out)
    process = start("run", "-v", "-n", "10000000")
    assert process.stdin is not None
    process.stdin.write(planned.out)
    process.stdin.close()
    process.stdin = None
    time.sleep(3)
    process.send_signal(signal.SIGINT)
    started = time.perf_counter()
    out, err = process.communicate(timeout=60)
    assert process.returncode == INTERRUPTED, err
    assert time.perf_counter() - started < 10
    assert b"Traceback" not in err
    assert out == b"" or out.splitlines()[-1].startswith(b'{"type":"end"')


def test_terminal_without_input_is_a_usage_error() -> None:
    ours, theirs = pty.openpty()
    try:
        process = start("check", stdin=theirs)
        out, err = process.communicate(timeout=60)
    finally:
        os.close(ours)
        os.close(theirs)
    assert (process.returncode, out) == (2, b"")
    assert b"usage: dnnp-check" in err
    assert b"nothing on standard input" in err


def test_full_disk() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    for stream in (large(), seeds.encode(seeds.graph_records())):
        with open("/dev/full", "wb") as full:
            process = start("coarsen", "-q", "--rules", "none", stdout=full)
            _, err = process.communicate(stream, timeout=60)
        assert process.returncode == 1
        assert err == b"dnnp-coarsen: <stdout>: No space left on device\n"


def test_closed_standard_streams() -> None:
    """A process started without stdin, stdout or stderr does what it still can."""
    command = f"'{sys.executable}' '{executable('coarsen')}' -q --rules none"
    stream = seeds.encode(seeds.graph_records())
    for redirection, status, message in (
        ("<&-", 1, b"dnnp-coarsen: <stdin>: standard input is closed\n"),
        (">&-", 1, b"dnnp-coarsen: <stdout>: Bad file descriptor\n"),
        ("2>&-", 0, b""),
        ("2>&- >&-", 1, b""),
    ):
        shell = subprocess.run(
            ["bash", "-c", f"{command} {redirection}"], input=stream, capture_output=True,
            timeout=60,
        )  # fmt: skip
        assert (shell.returncode, shell.stderr) == (status, message), redirection
