"""Run commands in this process, as processes that a server forks, or as ones started afresh."""

from __future__ import annotations

import io
import os
import pty
import re
import select
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from dnnp.cmds.dnnp import command
from dnnp.cmds.shell.context import Context
from support.served import program

INTERRUPTED = 130

SAMPLES = r"samples [1-9]\d* %"
"""Progress line of `dnnp-run` on a terminal once a good part of the samples is through."""

PATIENCE_S = 600.0
"""Time to wait for what is sure to happen; only a hang takes so long on a busy machine."""


def records_of(stream: bytes, kind: str | None = None) -> list[dict]:
    """Records of a stream, of one type if given."""
    found = [orjson.loads(line) for line in stream.splitlines()]
    return [r for r in found if kind is None or r["type"] == kind]


def changed_records(stream: bytes, change: Callable[[dict], object]) -> bytes:
    """A stream after a change of each of its records."""
    found = records_of(stream)
    for record in found:
        change(record)
    return b"".join(orjson.dumps(record) + b"\n" for record in found)


def edited(stream: bytes, kind: str, change: Callable[[dict], object]) -> bytes:
    """A stream after a change of each of its records of one type."""
    return changed_records(stream, lambda r: change(r) if r["type"] == kind else None)


@dataclass(frozen=True)
class Result:
    """Status and output of a command."""

    status: int
    out: bytes
    err: str

    def records(self, kind: str | None = None) -> list[dict]:
        """Records of the stream on stdout, of one type if given."""
        return records_of(self.out, kind)

    def one(self, kind: str) -> dict:
        """The only record of a type."""
        (record,) = self.records(kind)
        return record


def dnnp(name: str, *arguments: str | Path, stdin: bytes | None = b"") -> Result:
    """Run `dnnp-NAME` in this process."""
    out, err = io.BytesIO(), io.StringIO()
    words = [str(a) for a in arguments]
    context = Context(f"dnnp-{name}", words, None if stdin is None else io.BytesIO(stdin), out, err)
    status = command(name).invoke(words, context)
    return Result(status, out.getvalue(), err.getvalue())


def ok(name: str, *arguments: str | Path, stdin: bytes = b"") -> bytes:
    """Output of a command that succeeds."""
    result = dnnp(name, *arguments, stdin=stdin)
    assert result.status == 0, result.err
    return result.out


def must(name: str, *words: str | Path, stdin: bytes = b"") -> bytes:
    """Output of a command; an error outside of tests if it fails."""
    result = dnnp(name, *words, stdin=stdin)
    if result.status:
        raise RuntimeError(f"dnnp-{name}: {result.err.strip()}")
    return result.out


def ended(words: Sequence[object], **options: Any) -> subprocess.CompletedProcess[str]:
    """A program that has run, with what it wrote."""
    words = [str(word) for word in words]
    return subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, **options)


def output_of(words: Sequence[object], **options: Any) -> str:
    """Standard output of a program that succeeds."""
    done = ended(words, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def executable(name: str) -> str:
    """Path of an installed `dnnp-NAME` script."""
    return os.path.join(sysconfig.get_path("scripts"), f"dnnp-{name}")


def dnnp_process(
    name: str,
    *arguments: str | Path,
    stdin: bytes = b"",
    cwd: Path | None = None,
    env: dict[str, str] | None = None,
) -> Result:
    """Run `dnnp-NAME` as a process that starts as it does for users."""
    done = subprocess.run(
        [sys.executable, executable(name), *map(str, arguments)],
        input=stdin,
        capture_output=True,
        cwd=cwd,
        timeout=PATIENCE_S,
        env={**os.environ, **(env or {})},
    )
    return Result(done.returncode, done.stdout, done.stderr.decode())


def interrupted(
    name: str, *arguments: str | Path, after: str, env: dict[str, str] | None = None
) -> Result:
    """Result of a command that gets Ctrl-C right after a message on standard error.

    Complete, marked as interrupted, and valid.
    """
    process = subprocess.Popen(
        [program(name), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **(env or {})},
    )
    assert process.stderr is not None
    said = b""
    for line in process.stderr:
        said += line
        if after.encode() in line:
            break
    assert process.poll() is None, said
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_S)
    result = Result(process.returncode, out, (said + err).decode())
    assert result.status == INTERRUPTED, result.err
    assert "Traceback" not in result.err
    assert result.records()[-1] == {"type": "end", "records": len(result.records()) - 1}
    assert result.err.splitlines()[-2].endswith(", interrupted")
    assert dnnp("check", stdin=result.out).status == 0
    return result


def interrupted_at_terminal(name: str, *arguments: str | Path, after: str) -> Result:
    """Result of a command that gets Ctrl-C once a pattern is found on its terminal."""
    ours, theirs = pty.openpty()
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(
            [program(name), *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm"},
        )
        os.close(theirs)
        shown, told = b"", False
        for part in _shown(ours):
            shown += part
            if not told and re.search(after.encode(), shown):
                assert process.poll() is None, shown
                process.send_signal(signal.SIGINT)
                told = True
        os.close(ours)
        status = process.wait(PATIENCE_S)
        assert told, shown
        out.seek(0)
        return Result(status, out.read(), shown.decode())


def _shown(terminal: int) -> Iterator[bytes]:
    """Output on a terminal until no process has it open any more."""
    while select.select([terminal], [], [], PATIENCE_S)[0]:
        try:
            part = os.read(terminal, 65536)
        except OSError:  # Linux says so where others say that it has ended
            return
        if not part:
            return
        yield part
