"""Faults of workers on purpose: what is to come of each, and what must not be left behind."""

from __future__ import annotations

import gc
import os
import random
import signal
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dnnp.core.model.errors import DnnpError
from dnnp.core.runtime.model.session import Values, to_numpy
from dnnp.core.runtime.pipeline.prepare import open_pool, pooled_worker
from dnnp.core.runtime.pipeline.sources import Kept, Repeated
from dnnp.core.runtime.pipeline.steps import Step, Worker
from dnnp.core.runtime.pipeline.threads import send
from dnnp.core.runtime.report.statistics import Trace
from dnnp.core.runtime.workers.pool import Rules, WorkerPool, WorkerSpec
from support.workers import Fail, children

LOST = ("kill", "exit", "stop", "hang", "killed")
"""Faults that end a worker: with retries every output arrives."""

HOWS = {
    "thread": ("raise", "slow", "interrupt"),
    "process": (*LOST, "raise", "full", "slow", "interrupt"),
    "ray": ("kill", "exit", "hang", "raise", "slow", "interrupt"),
}
"""Kind of worker -> faults. `killed`: from outside, at any moment; `full`: no more shared memory;
`slow`: outputs are taken slowly; `interrupt`: Ctrl-C."""

SAMPLES = 30
LIMIT_S = {"thread": 0.0, "process": 2.0, "ray": 15.0}
"""A job takes no longer where one hangs, by --stage-timeout; nor may a worker that starts."""
PATIENT_S = 60.0
"""The same where nothing hangs."""


@dataclass(frozen=True)
class Case:
    """One fault."""

    workers: str
    how: str
    replicas: tuple[int, ...] = (1, 2, 1)
    stage: int = 1
    at: int = 4
    """The job of a worker at which it happens."""
    retries: int = 3
    size: int = 1000
    """Numbers in a tensor."""
    seed: int = 0


def drawn(seed: int, workers: str) -> Case:
    """A case at random."""
    rng = random.Random(f"{seed} {workers}")
    replicas = tuple(rng.choice((1, 1, 2, 3)) for _ in range(rng.randint(1, 3)))
    stage = rng.randrange(len(replicas))
    return Case(
        workers,
        rng.choice(HOWS[workers]),
        replicas,
        stage,
        rng.randint(1, SAMPLES - replicas[stage]),
        rng.choice((0, 3, 3)),
        rng.choice((1, 1000, 100_000)),
        seed,
    )


class _SlowSink(Kept):
    def put(self, sample: int, values: Values) -> None:
        time.sleep(0.003)
        super().put(sample, values)


def play(
    case: Case, pool: WorkerPool[Any] | None, folder: Path, took: list[float]
) -> tuple[Trace, dict[int, Values]]:
    """Send samples through while the fault happens; the trace, and outputs by sample.

    The times of begin and end are added to `took`.
    """
    outputs = [(f"t{i + 1}",) for i in range(len(case.replicas))]
    steps = []
    for i, count in enumerate(case.replicas):
        workers = []
        for j in range(count):
            name = f"replica {j} of stage {i}" if count > 1 else f"stage {i}"
            recipe = Fail("", 0, outputs[i], seconds=0.002, shape=(case.size,))
            if (i, j) == (case.stage, case.at % count) and case.how in (*LOST[:4], "raise"):
                mark = str(folder / "failed")
                recipe = replace(recipe, how=case.how, at=case.at // count + 1, mark=mark)
            if pool is None:
                workers.append(Worker(name, recipe))
            else:
                workers.append(pooled_worker(pool, WorkerSpec(name), recipe, pool.share({})))
        steps.append(Step(name, (f"t{i}",), outputs[i], tuple(workers)))
    if pool is not None:
        pool.ready()
    samples = [{"t0": np.full(case.size, 10.0 * k, np.float32)} for k in range(7)]
    kept = (_SlowSink if case.how == "slow" else Kept)(lambda s: True, to_numpy)
    stop = threading.Event()
    timer = threading.Timer(0.01 * case.at, _strike, [case, stop])
    if case.how in ("killed", "interrupt"):
        timer.start()
    try:
        source = Repeated(samples, SAMPLES)
        took.append(time.monotonic())
        trace = send(steps, source, kept, outputs[-1], interrupted=stop.is_set)
        return trace, kept.outputs(trace.done)
    finally:
        took.append(time.monotonic())
        timer.cancel()
        if timer.ident is not None:
            timer.join()


def _strike(case: Case, stop: threading.Event) -> None:
    """Interrupt the run, or kill one of its processes."""
    if case.how == "interrupt":
        stop.set()
        return
    found = sorted(children())
    with suppress(OSError, IndexError):
        os.kill(found[case.at % len(found)], signal.SIGKILL)


def check(case: Case, took: list[float] | None = None) -> str:
    """Play a case; what is wrong with what comes of it, empty if nothing is."""
    before = _left()
    said: list[str] = []
    memory = 3.0 * 4 * case.size if case.how == "full" else float("inf")
    limit = LIMIT_S[case.workers] if case.how in ("hang", "stop") else PATIENT_S
    rules = Rules(case.retries, limit, memory, said.append)
    losses: list[Any] = []
    try:
        with tempfile.TemporaryDirectory() as folder, open_pool(case.workers, rules) as pool:
            trace, outputs = play(case, pool, Path(folder), [] if took is None else took)
            losses = [] if pool is None else pool.losses
    except DnnpError as error:
        wrong = _wrong_error(case, str(error))
    else:
        wrong = _wrong_outputs(case, trace, outputs, len(losses), said)
    after = _left()
    if case.workers == "ray":  # what Ray has goes with the cluster
        before = after
    left = any(a > b for a, b in zip(after, before, strict=True))
    return wrong or ("" if not left else f"left behind: {before} before, {after} after")


def _wrong_error(case: Case, text: str) -> str:
    if case.how in ("slow", "interrupt") or (case.how in LOST and case.retries):
        return f"unexpected: {text}"
    if "\n" in text or "stage" not in text or "sample" not in text:
        return f"does not name stage and sample in one line: {text}"
    return ""


def _wrong_outputs(
    case: Case, trace: Trace, outputs: dict[int, Values], losses: int, said: list[str]
) -> str:
    if case.how in ("raise", "full") or (case.how in LOST[:4] and not case.retries):
        return "no failure"
    if trace.interrupted != (case.how == "interrupt" and trace.done < SAMPLES):
        return f"interrupted: {trace.interrupted}, {trace.done} done"
    done = trace.done if case.how == "interrupt" else SAMPLES
    if sorted(outputs) != list(range(done)):
        return f"outputs of {sorted(outputs)}"
    (name,) = outputs[0] if outputs else ("",)
    for s, values in outputs.items():
        if values[name].shape != (case.size,) or values[name][0] != 10 * (s % 7) + len(
            case.replicas
        ):
            return f"a wrong output of sample {s}: {values[name][:1]}"
    if case.how in LOST[:4] and losses != 1:
        return f"{losses} losses are recorded"
    return "" if len(said) == losses else f"{losses} losses, but told of {said}"


def _left() -> tuple[int, ...]:
    """Resources of this process: workers, open files, which shared memory is as well, and threads.

    /dev/shm is not counted: workers have no names there, and other tests at work have.
    """
    gc.collect()
    return (
        len(children()),
        len(os.listdir("/proc/self/fd")),
        threading.active_count(),
    )
