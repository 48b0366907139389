"""A run in processes to whose workers something happens, and streams of runs that serve."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from dnnp.core.runtime.inputs import random_inputs
from support.run import PATIENCE_S, Result, dnnp, executable
from support.running import SPLIT, network, planned
from support.workers import is_worker, workers_of

SERVING = {
    "arrivals at random": "-n 40 --rate 500 --seed 3",
    "arrivals at equal distances": "--duration 0.05 --rate 2000 --arrivals uniform",
    "more than can be done": "-n 300 --rate 300000",
    "sweep": "-n 15 --rate sweep --seed 4",
    "duration": "--duration 0.05",
    "threads": "-n 12 --threads 2 --rtol 1e-4 --atol 1e-5 --verify",
}
"""Runs of a plan without files."""


def until(condition: Callable[[], object]) -> None:
    """Wait until something holds."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def begun(process: int) -> bool:
    """Whether a worker computes: it has waited often, as it does before and after each sample."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0]) > 300


def struck(plan: Path, act: Callable[[int, list[int]], object], *words: str) -> Result:
    """What a long run in processes leaves to whose workers something happens."""
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


def serving(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Name and stream of runs that serve: arrivals, sweeps, files, workers that are lost."""
    plan = folder / "plan"
    priced = planned(network(), folder, SPLIT)
    cut = dnnp("partition", "-q", "-k", "3", "--method", "uniform", stdin=priced)
    plan.write_bytes(cut.out)

    def run(*words: str | Path) -> bytes:
        result = dnnp("run", "-q", *words, plan)
        assert result.out, result.err
        return result.out

    for name, words in SERVING.items():
        yield name, run("--warmup", "1", *words.split())
    inputs, outputs = folder / "in", folder / "out"
    inputs.mkdir()
    for i in range(6):
        np.savez(inputs / f"{i}.npz", **random_inputs(network(), i))
    yield "files", run("--inputs", inputs, "--outputs", outputs)
    for name in ("2.npz", "5.npz"):
        (outputs / name).unlink()
    np.savez(inputs / "5.npz", x=np.zeros(3, np.float32))
    keep = ("--keep-going", "--warmup", "2", "--workers", "process")
    yield "some files", run("--inputs", inputs, "--outputs", outputs, *keep)
    lost = struck(plan, lambda _, found: os.kill(found[1], signal.SIGKILL),
                  "-q", "-n", "20000", "--retries", "1")  # fmt: skip
    assert b'"restarts":[{' in lost.out, lost.err
    yield "a worker is lost", lost.out
