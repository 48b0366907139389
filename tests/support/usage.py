"""Time and memory of a process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

LAUNCHER = """
import json, os, subprocess, sys, time
started = time.perf_counter()
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, spent = os.wait4(process.pid, 0)
seconds = time.perf_counter() - started
unit = 1 if sys.platform == "darwin" else 1024
print(json.dumps([os.waitstatus_to_exitcode(status), seconds, spent.ru_maxrss * unit]))
"""
"""A process counts what it was before it became another program, so a small one starts it."""


class Usage(NamedTuple):
    """One run of a process."""

    seconds: float
    peak_bytes: int


def usage(words: Sequence[str | Path], stdin: Path) -> Usage:
    """Run a program on a file, drop its output; SystemExit if it fails."""
    command = [sys.executable, "-I", "-S", "-c", LAUNCHER, *map(str, words)]
    with stdin.open("rb") as file:
        done = subprocess.run(command, stdin=file, capture_output=True, check=True)
    status, seconds, peak_bytes = json.loads(done.stdout)
    if status != 0:
        raise SystemExit(f"{words}: {done.stderr.decode()}")
    return Usage(seconds, peak_bytes)
