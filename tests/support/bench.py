"""Timing and tables for the benchmarks."""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence

from support.run import executable

Clock = Callable[[], float]


def timed(action: Callable[[], object], clock: Clock = time.perf_counter) -> float:
    """Seconds that one call takes."""
    started = clock()
    action()
    return clock() - started


def medians(
    actions: Sequence[Callable[[], object]], repeats: int, clock: Clock = time.perf_counter
) -> list[float]:
    """Median seconds of each action; rounds are interleaved, so that drift hits all alike."""
    rounds = [[timed(action, clock) for action in actions] for _ in range(repeats)]
    return [statistics.median(column) for column in zip(*rounds, strict=True)]


def silent(*words: str) -> Callable[[], object]:
    """An action that runs a program and drops its output."""
    return lambda: subprocess.run(
        words,
        check=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table; all columns but the first are right-aligned."""
    rule = ["---", *["---:"] * (len(header) - 1)]
    lines = [header, rule, *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def cpu_of(words: Sequence[str]) -> float:
    """Processor seconds of a command of this project and all its workers."""
    process = subprocess.Popen([executable(words[0]), "-q", *words[1:]])
    _, ended, used = os.wait4(process.pid, 0)
    assert ended == 0, words
    return used.ru_utime + used.ru_stime
