"""What a process takes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple


class Usage(NamedTuple):
    """One run of a process."""

    seconds: float
    peak_bytes: int


def usage(words: Sequence[str | Path], stdin: Path) -> Usage:
    """Run a program on a file, drop its output; SystemExit if it fails."""
    with stdin.open("rb") as file:
        started = time.perf_counter()
        process = subprocess.Popen(
            list(map(str, words)), stdin=file, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        assert process.stderr is not None
        said = process.stderr.read().decode()
        _, status, spent = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    process.stderr.close()
    if process.returncode != 0:
        raise SystemExit(f"{words}: {said}")
    return Usage(seconds, spent.ru_maxrss * (1 if sys.platform == "darwin" else 1024))
