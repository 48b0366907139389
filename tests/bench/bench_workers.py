"""Threads, processes and Ray: stages of known time against their bottleneck, and handing over."""

from __future__ import annotations

import importlib.util
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

from dnnp.core.runtime.pipeline.prepare import open_pool, pooled_worker
from dnnp.core.runtime.pipeline.steps import Step, Worker
from dnnp.core.runtime.report.statistics import summarize
from dnnp.core.runtime.workers.pool import Rules, WorkerPool, WorkerSpec
from support.bench import table
from support.running import run_pipeline
from support.workers import Sleep

ROUNDS = 3
SAMPLES, WARMUP = 300, 20
TIMES_MS = (10, 10, 10, 10)
HANDED = 40
MEGABYTES = 4
RATE = 0.97
HAND_OVER_MS = {"thread": 0.2, "process": 2.0, "ray": 10.0}


def kinds() -> list[str]:
    """Kinds of workers that there are."""
    there = importlib.util.find_spec("ray") is not None
    return [kind for kind in HAND_OVER_MS if kind != "ray" or there]


def steps_of(pool: WorkerPool[Any] | None, times_ms: Sequence[float], size: int) -> list[Step]:
    """Sleeping stages in a chain, which hand on tensors of so many numbers."""
    steps = []
    for i, ms in enumerate(times_ms):
        name, recipe = f"stage {i}", Sleep(ms / 1e3, (f"t{i + 1}",), (size,))
        if pool is None:
            worker = Worker(name, recipe)
        else:
            worker = pooled_worker(pool, WorkerSpec(name), recipe, pool.share({}))
        steps.append(Step(name, (f"t{i}",), recipe.outputs, (worker,)))
    if pool is not None:
        pool.ready()
    return steps


def rates(kind: str) -> tuple[str, str]:
    """Share of the bottleneck's rate: by the time it is told to sleep, and by that it took."""
    nominal, measured = [], []
    with open_pool(kind, Rules()) as pool:
        steps = steps_of(pool, TIMES_MS, 1)
        sample = {"t0": np.zeros(1, np.float32)}
        for _ in range(ROUNDS):
            trace = run_pipeline(steps, [sample], SAMPLES + WARMUP, steps[-1].outputs)
            timing = summarize(trace, WARMUP)
            nominal.append(timing.throughput_per_s * max(TIMES_MS) / 1e3)
            measured.append(timing.throughput_per_s * max(timing.loads_s))
    return f"{statistics.median(nominal):.1%}", f"{statistics.median(measured):.1%}"


def hand_over_ms(kind: str) -> float:
    """From the end of a stage to the start of the next one, for one sample at a time."""
    size = MEGABYTES << 18
    with open_pool(kind, Rules()) as pool:
        steps = steps_of(pool, (2, 2, 2), size)
        sample = {"t0": np.zeros(size, np.float32)}
        trace = run_pipeline(steps, [sample], HANDED + WARMUP, steps[-1].outputs, window=1)
    gaps = (trace.start_ns[1:] - trace.end_ns[:-1])[:, WARMUP:]
    return float(np.median(gaps)) / 1e6


def main() -> None:
    """Measure and print the table."""
    listed = ", ".join(f"{ms:g}" for ms in TIMES_MS)
    print(
        f"Stages that sleep {listed} ms, one worker each; {SAMPLES} samples, median of {ROUNDS} "
        "runs. Throughput as a share of the slowest stage's rate: by the time it is told to "
        f"sleep, and by the time it took (target: {RATE:.0%}). Handing over: from the end of a "
        f"stage to the start of the next one, with a tensor of {MEGABYTES} MiB, one sample at a "
        "time, median. Ray is a cluster of this machine.\n"
    )
    rows = []
    for kind in kinds():
        nominal, measured = rates(kind)
        target = f"{HAND_OVER_MS[kind]:g} ms"
        rows.append((kind, nominal, measured, f"{hand_over_ms(kind):.2f} ms", target))
    header = ("workers", "of the nominal rate", "of the measured rate", "handing over", "target")
    print(table(header, rows))


if __name__ == "__main__":
    main()
