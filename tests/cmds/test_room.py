"""Commands that run out of memory."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from google.protobuf.message import EncodeError

from dnnp.cmds.shell import cli
from dnnp.core.model import search_context as beside
from dnnp.core.model import text
from dnnp.core.model.errors import InputFileError
from dnnp.core.runtime.model.session import model_bytes
from support.run import PATIENCE_S, dnnp

LOST = SystemError("error return without exception set")
"""The error of Python 3.11 that has no memory for a frame."""


def test_nothing_is_imported_where_there_is_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "ROOM_BYTES", sys.maxsize // 4096 * 4096)
    for name in cli.GREEDY:
        with pytest.raises(MemoryError):
            cli.Room.find_spec(name, None)
    assert cli.Room.find_spec("scipy", None) is None


def test_room_is_given_back() -> None:
    for _ in range(3):
        cli.require(cli.ROOM_BYTES)


@pytest.mark.parametrize("name", ["numpy", "scipy.linalg"])
def test_room_is_enough(name: str) -> None:
    """A module takes less than what is asked for."""
    code = f"""
import mmap, pathlib, sys
from dnnp.cmds.shell import cli
def held():
    return int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
if "{name}" != "numpy":
    import numpy
before = held()
import {name}
sys.exit(held() - before > cli.ROOM_BYTES)
"""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", code], env=environment, timeout=PATIENCE_S, check=True)


def test_a_plain_message_needs_no_pattern(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("re.sub", fail)
    assert text.printable("dnnp-run: out of memory \u00e9") == "dnnp-run: out of memory \u00e9"
    with pytest.raises(MemoryError):
        text.printable("\x1b")


def test_want_of_memory_for_a_model_is_a_line() -> None:
    def fail() -> bytes:
        raise EncodeError("Failed to serialize proto")

    with pytest.raises(InputFileError, match="no memory for a copy of the model"):
        model_bytes(SimpleNamespace(functions=[], SerializeToString=fail))


@pytest.mark.parametrize("error", [MemoryError(), LOST])
def test_want_of_memory_is_a_line(
    error: BaseException, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> int:
        raise error

    from dnnp.cmds import check

    monkeypatch.setattr(check.COMMAND, "_run", fail)
    result = dnnp("check", stdin=b"")
    assert (result.status, result.err) == (1, "dnnp-check: out of memory\n")
    cli._tell(SimpleNamespace(exc_value=error))
    assert capsys.readouterr().err == ""


def test_other_errors_of_the_interpreter_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise SystemError("bad call")

    from dnnp.cmds import check

    monkeypatch.setattr(check.COMMAND, "_run", fail)
    with pytest.raises(SystemError, match="bad call"):
        dnnp("check", stdin=b"")


def test_a_library_that_cannot_be_loaded() -> None:
    reason = "libx.so: failed to map segment from shared object"
    error = OSError("Could not load shared object file 'libx.so'. This could mean a lot.")
    error.__context__ = OSError(reason)
    for one in (error, OSError(reason)):
        assert cli._refusal(one) == f"a library cannot be loaded: {reason}"
    assert cli._refusal(OSError(errno.ENOMEM, "Cannot allocate memory")) == "out of memory"
    assert cli._refusal(OSError(errno.ENOSPC, "No space left", "x")) == "x: No space left"


@pytest.mark.parametrize("status", [7, 127])
def test_a_library_that_ends_the_process(status: int) -> None:
    code = f"""
import os
from dnnp.cmds.shell.guardian import guard
guard("dnnp-check", lambda listen: os._exit({status}))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60)
    if status == 7:
        assert (done.returncode, done.stderr) == (7, b"")
    else:
        line = "dnnp-check: the process that did the work ended with status 127; perhaps for want"
        assert (done.returncode, done.stderr) == (1, f"{line} of memory\n".encode())


def test_a_thread_that_dies_before_its_first_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside, "start_new_thread", lambda function, arguments: 0)
    with pytest.raises(MemoryError):
        beside.run_with_fallback(int, lambda: False, lambda: None)


def test_a_thread_that_cannot_say_that_it_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: object) -> bool:
        raise MemoryError

    monkeypatch.setattr(beside._Running, "__exit__", lost)
    monkeypatch.setattr(sys, "unraisablehook", cli._tell)
    for work in (int, lambda: int("x")):
        with pytest.raises(MemoryError):
            beside.run_with_fallback(work, lambda: False, lambda: None)
