"""Other ways to use the same cores: the whole model at once, or independent replicas of it."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from typing import Any

import numpy as np

from dnnp.core.model.errors import DnnpError
from dnnp.core.runtime.pipeline import Worker
from dnnp.core.runtime.report import Timing, timing_of
from dnnp.core.runtime.waits import StealClock, WaitClock, waits_are_known

ROUNDS = 3
"""Each way runs this often, in turn; medians are reported."""
_POLL_S = 0.1


def run_replicas(
    replicas: Sequence[Worker],
    samples: Sequence[Mapping[str, Any]],
    count: int,
    warmup: int = 0,
    interrupted: Callable[[], bool] = lambda: False,
) -> Timing:
    """Time replicas of a model, one thread each, that take samples from a common pile.

    Every replica runs `warmup` samples first, then all start together on `count` samples. One
    replica is the whole model run sample by sample.

    Raises
    ------
    DnnpError
        A replica failed; the others have been stopped.
    """
    pile = itertools.count()
    start = np.zeros(count, dtype=np.int64)
    end = np.zeros(count, dtype=np.int64)
    waited: list[int] = []
    failed: list[DnnpError] = []

    def stopped() -> bool:
        return bool(failed) or interrupted()

    def prepare(replica: Worker) -> None:
        replica.pin()
        for s in range(warmup):
            if not stopped():
                replica.run(dict(samples[s % len(samples)]))

    def work(replica: Worker) -> None:
        replica.pin()
        waits, steals = WaitClock(replica.threads), StealClock()
        while not stopped():
            s = next(pile)
            if s >= count:
                stolen = steals.passed_ns(replica.cores[:1])
                waited.append(waits.passed_ns(replica.threads) + stolen)
                return
            feeds = dict(samples[s % len(samples)])
            start[s] = time.perf_counter_ns()
            replica.run(feeds)
            end[s] = time.perf_counter_ns()

    def guarded(task: Callable[[Worker], None], replica: Worker) -> None:
        try:
            task(replica)
        except DnnpError as error:
            failed.append(type(error)(f"{replica.name}: {error}"))

    with ThreadPoolExecutor(len(replicas), thread_name_prefix="replica") as pool:
        for task in (prepare, work):
            futures = [pool.submit(guarded, task, replica) for replica in replicas]
            while wait(futures, _POLL_S).not_done:
                if stopped():
                    _stop(replicas)
            for future in futures:
                future.result()
    if interrupted():
        failed.clear()
    if failed:
        raise failed[0]
    done = end > 0
    n = int(done.sum())
    if not n:
        return Timing(0, 0.0, 0.0, 0.0, (0.0,), (0.0,), 0.0)
    took = end[done] - start[done]
    span = max(int(end[done].max() - start[done].min()), 1)
    idle = 1.0 - float(took.sum()) / (span * len(replicas))
    timing = timing_of(
        took, span * 1e-9, np.array([np.median(took) * 1e-9]), np.array([idle]), idle
    )
    taken = min(sum(waited) / (span * len(replicas)), 1.0)
    return replace(timing, taken=(taken,)) if waits_are_known() else timing


def _stop(replicas: Sequence[Worker]) -> None:
    for replica in replicas:
        if replica.stop is not None:
            replica.stop()
