"""Run stages for long, and watch what it does to memory, open files and order.

    python tests/tools/soak.py --minutes 10 --workers process

Stand-ins hand 64 KiB tensors on and now and then one is killed (`--kill-every`); every sample must
come out once, with the right number in it. Memory and open files are those of this process and its
workers: the last quarter of the run is compared with the second one.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from dnnp.core.runtime.limits import held_bytes
from dnnp.core.runtime.model.session import Values, to_numpy
from dnnp.core.runtime.pipeline.prepare import open_pool, pooled_worker
from dnnp.core.runtime.pipeline.sources import Repeated, Sink
from dnnp.core.runtime.pipeline.steps import Step, Worker
from dnnp.core.runtime.pipeline.threads import send
from dnnp.core.runtime.workers.pool import Rules, WorkerSpec
from support.workers import Sleep, children

SIZE = 1 << 14
STAGES = (1, 2, 1)
"""Replicas of each stage."""
GROWTH = 1.05
"""Memory of the last quarter over that of the second one, at most."""


class Reading(NamedTuple):
    """Resources at one moment."""

    memory_bytes: float
    files: int
    samples: int


class Order(Sink):
    """Sees that each sample comes once and holds what it should."""

    def __init__(self) -> None:
        self.seen: set[int] = set()
        self.done = 0
        self.faults: list[str] = []
        self._lock = threading.Lock()

    def wants(self, sample: int) -> bool:
        """All are looked at."""
        return True

    def put(self, sample: int, values: Values) -> None:
        """Look at a sample."""
        (value,) = values.values()
        number = float(to_numpy(value)[0])
        with self._lock:
            if sample in self.seen or sample < self.done:
                self.faults.append(f"sample {sample} came twice")
            if number != 10 * (sample % 7) + len(STAGES):
                self.faults.append(f"sample {sample} holds {number:g}")
            self.seen.add(sample)
            while self.done in self.seen:
                self.seen.remove(self.done)
                self.done += 1


def reading(order: Order) -> Reading:
    """Resources now."""
    processes = [os.getpid(), *children()]
    files = 0
    for process in processes:
        with suppress(OSError):
            files += len(os.listdir(f"/proc/{process}/fd"))
    return Reading(sum(map(held_bytes, processes)), files, order.done)


def watch(order: Order, over: threading.Event, kill_every_s: float) -> list[Reading]:
    """Readings, one a second, until it is over; and a worker killed now and then."""
    readings: list[Reading] = []
    rng, due = random.Random(1), time.monotonic() + kill_every_s
    while not over.wait(1.0):
        readings.append(reading(order))
        if kill_every_s and time.monotonic() > due:
            due += kill_every_s
            with suppress(OSError, IndexError):
                os.kill(rng.choice(children()), signal.SIGKILL)
    return readings


def main() -> int:
    """Run; 1 if memory or files grow, or a sample is wrong."""
    parser = argparse.ArgumentParser(description="Run stages for long.")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--workers", choices=("thread", "process", "ray"), default="process")
    parser.add_argument("--kill-every", type=float, default=0.0, metavar="SECONDS")
    args = parser.parse_args()
    order, over, found = Order(), threading.Event(), []
    watcher = threading.Thread(target=lambda: found.extend(watch(order, over, args.kill_every)))
    rules = Rules(10**6, 60.0, note=lambda message: None)
    with open_pool(args.workers, rules) as pool:
        steps = []
        for i, count in enumerate(STAGES):
            recipe = Sleep(0.001, (f"t{i + 1}",), (SIZE,))
            names = [f"replica {j} of stage {i}" for j in range(count)]
            workers = tuple(
                Worker(name, recipe)
                if pool is None
                else pooled_worker(pool, WorkerSpec(name), recipe, pool.share({}))
                for name in names
            )
            steps.append(Step(f"stage {i}", (f"t{i}",), recipe.outputs, workers))
        if pool is not None:
            pool.ready()
        samples = [{"t0": np.full(SIZE, 10.0 * k, np.float32)} for k in range(7)]
        watcher.start()
        source = Repeated(samples, None, seconds=60 * args.minutes)
        trace = send(steps, source, order, steps[-1].outputs)
        over.set()
        watcher.join()
        losses = 0 if pool is None else len(pool.losses)
    quarter = max(len(found) // 4, 1)
    early, late = found[quarter : 2 * quarter] or found, found[-quarter:]
    memory = [statistics.median(r.memory_bytes for r in part) for part in (early, late)]
    files = [statistics.median(r.files for r in part) for part in (early, late)]
    print(f"{trace.done} samples, {order.done} in order, {losses} workers lost")
    print(f"memory {memory[0] / 2**20:.1f} -> {memory[1] / 2**20:.1f} MiB, "
          f"open files {files[0]:g} -> {files[1]:g}")  # fmt: skip
    faults = order.faults[:10]
    if order.done != trace.done:
        faults.append(f"{trace.done - order.done} samples are missing")
    if memory[1] > GROWTH * memory[0] or files[1] > files[0] + 8:
        faults.append("memory or open files grow")
    print("\n".join(faults) or "all is well")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
