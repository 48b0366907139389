"""A run in processes to whose workers something happens."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from support.run import PATIENCE_S, Result, executable
from support.workers import is_worker, workers_of


def until(condition: Callable[[], object]) -> None:
    """Wait until something holds."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def begun(process: int) -> bool:
    """True if a worker computes: it has waited often, as it does before and after each sample."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0]) > 300


def struck(plan: Path, act: Callable[[int, list[int]], object], *words: str) -> Result:
    """Result of a long run in processes whose workers are struck."""
    words = ("--workers", "process", "--warmup", "1", "-n", "300000", *words)
    process = subprocess.Popen(
        [sys.executable, executable("run"), *words, plan],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    until(lambda: len(workers_of(process.pid)) == 3)
    workers = workers_of(process.pid)
    until(lambda: all(map(begun, workers)))
    act(process.pid, workers)
    out, err = process.communicate(timeout=PATIENCE_S)
    until(lambda: not any(map(is_worker, workers)))
    return Result(process.returncode, out, err.decode())
