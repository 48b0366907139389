"""Measure a prepared pipeline, then check it and compare it as asked.

In this order: samples until the rate is steady, the measurement (again while others disturb it),
verification, a sweep of rates, the whole model and replicas of it on the same cores.
"""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from typing import Any

import numpy as np

from dnnp.core.model.errors import DnnpError
from dnnp.core.model.processes import available_cores
from dnnp.core.runtime.model.device_mapping import main_config
from dnnp.core.runtime.model.session import Place, SessionConfig, places
from dnnp.core.runtime.pipeline.prepare import Pipeline
from dnnp.core.runtime.pipeline.sources import Arrivals, Traffic, widest
from dnnp.core.runtime.pipeline.steps import Worker
from dnnp.core.runtime.pipeline.threads import stop_workers
from dnnp.core.runtime.report.choice import (
    MOST_ROUNDS,
    PIPELINE,
    REPLICAS,
    WHOLE,
    Choice,
    Compared,
    Offer,
    choose,
    is_clear,
)
from dnnp.core.runtime.report.outcome import OTHERS, Checks, Outcome
from dnnp.core.runtime.report.statistics import Timing, median_timing, timing_of, worth_repeating
from dnnp.core.runtime.report.sweep import Queueing, Sweep, Swept, queueing, run_sweep
from dnnp.core.runtime.waits import StealClock, WaitClock, waits_are_known

ROUNDS = 3
"""Each way runs this often, in turn; medians are reported."""
_POLL_S = 0.1


def execute(pipeline: Pipeline, traffic: Traffic, checks: Checks) -> Outcome:
    """Send the samples through, then verify and compare as asked, unless interrupted."""
    # What is there by now stays: no collection needs to walk it on a core that runs a stage.
    gc.collect()
    gc.freeze()
    traffic, settled = pipeline.settle(traffic)
    warmup, distinct = pipeline.warmup(traffic), len(traffic.samples)
    total, checked = warmup + traffic.count, max(distinct, widest(pipeline.stages))
    keep: Callable[[int], bool] = lambda s: False  # noqa: E731
    if traffic.files is not None and checks.tolerance is not None:
        traffic.files.went = []
    elif traffic.seconds is not None:
        keep = lambda s: s < checked  # noqa: E731
    elif checks.tolerance is not None or checks.keep:
        keep = lambda s: s < checked or s >= total - checked  # noqa: E731
    outcome = _measure(pipeline, traffic, checks, keep)
    outcome.settled = settled
    outcome.discarded += settled.samples
    trace = outcome.trace
    outcome.resident_bytes = pipeline.resident_bytes()
    outcome.files, outcome.duration_s = traffic.files, traffic.seconds
    outcome.program, outcome.warmup = traffic.program, warmup
    if traffic.arrivals is not None:
        outcome.queueing = queueing(trace, traffic.arrivals)
    outcome.outputs = {s: values for s, values in trace.outputs.items() if s < distinct}
    stop = pipeline.watch.interrupted
    if checks.tolerance is not None and not stop():
        last = checks.sweep is None and not checks.compare
        outcome.verdict = pipeline.verify(trace, traffic, checks.tolerance, last=last)
    if checks.sweep is not None and not stop():
        outcome.swept = _sweep(pipeline, traffic, checks.sweep, outcome.timing.throughput_per_s)
    if checks.compare and not stop():
        if traffic.seconds is not None:
            traffic = replace(traffic, count=outcome.timing.samples, seconds=None)
        outcome.others = compare(pipeline, traffic, outcome.timing, checks.offer)
        outcome.timing = outcome.others[0].timing
        outcome.discarded += (outcome.timing.rounds - 1) * traffic.warmup * widest(pipeline.stages)
        if checks.offer is not None and not stop():
            outcome.choice = chosen(pipeline, outcome.others, checks.offer)
    outcome.interrupted = trace.interrupted or stop()
    if outcome.interrupted and outcome.verdict is not None and not outcome.verdict.samples:
        outcome.verdict = None
    return outcome


def _sweep(pipeline: Pipeline, traffic: Traffic, sweep: Sweep, capacity_per_s: float) -> Swept:
    """Send samples through at all rates of a sweep, each after a warm-up."""

    def measure(arrivals: Arrivals, count: int) -> Queueing | None:
        trace = pipeline.run(replace(traffic, count=count, seconds=None, arrivals=arrivals))
        return None if trace.interrupted else queueing(trace, arrivals)

    return run_sweep(sweep, capacity_per_s, measure, pipeline.watch.checks)


def _measure(
    pipeline: Pipeline, traffic: Traffic, checks: Checks, keep: Callable[[int], bool]
) -> Outcome:
    """Measure; again while other processes disturb that, as far as time allows."""
    begin = time.perf_counter()
    best: Outcome | None = None
    tries = through = 0
    while True:
        trace = pipeline.run(traffic, keep)
        timing = pipeline.summarize(trace, traffic)
        tries += 1
        through += trace.done + pipeline.warmup_apart(traffic)
        if best is None or (not trace.interrupted and timing.lost < best.timing.lost):
            best = Outcome(pipeline, checks, trace, timing)
        spent = time.perf_counter() - begin
        if trace.interrupted or not traffic.settle or not worth_repeating(timing, tries, spent):
            break
        pipeline.watch.detail(f"{OTHERS} took {timing.lost:.0%} of a processor: measuring again")
    best.discarded = through - best.timing.samples
    best.tries = tries
    return best


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
    start, end = np.zeros((2, count), dtype=np.int64)
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
                    stop_workers(replicas)
            for future in futures:
                future.result()
    if interrupted():
        failed.clear()
    if failed:
        raise failed[0]
    done = end > 0
    if not done.any():
        return Timing(0, 0.0, 0.0, 0.0, (0.0,), (0.0,), 0.0)
    took = end[done] - start[done]
    span = max(int(end[done].max() - start[done].min()), 1)
    idle = 1.0 - float(took.sum()) / (span * len(replicas))
    load_s = np.array([np.median(took) * 1e-9])
    timing = timing_of(took, span * 1e-9, load_s, np.array([idle]), idle)
    taken = min(sum(waited) / (span * len(replicas)), 1.0)
    return replace(timing, taken=(taken,)) if waits_are_known() else timing


def compare(
    pipeline: Pipeline, traffic: Traffic, first: Timing, offer: Offer | None = None
) -> list[Compared]:
    """Time the pipeline, the whole model and replicas of it, on as many devices, in turn.

    `first` is a round of the pipeline already run. The whole model's threads spin while they wait,
    or not, whichever is faster here. With `offer`, what fits the memory of the devices, until it is
    clear which is the fastest.
    """
    others = _others(pipeline, traffic, offer or Offer())
    modes = {PIPELINE: (pipeline.config, len(pipeline.steps))}
    modes |= {mode: (config, len(workers)) for mode, (config, workers) in others.items()}
    rounds: dict[str, list[Timing]] = {PIPELINE: [first]} | {mode: [] for mode in others}
    least, most = ROUNDS, ROUNDS if offer is None else MOST_ROUNDS
    stop = pipeline.watch.interrupted
    for number in range(most):
        figures = {mode: median_timing(timings) for mode, timings in rounds.items() if timings}
        if number >= least and is_clear(figures):
            break
        of = f"of {least}" if number < least else f"of {most} at most"
        pipeline.watch.detail(f"comparison, round {number + 1} {of}")
        pipeline.watch.checks(f"comparing, round {number + 1} {of}", number / most)
        if number and not stop():
            rounds[PIPELINE].append(pipeline.summarize(pipeline.run(traffic), traffic))
        for mode, (_, workers) in others.items():
            if not stop():
                rounds[mode].append(
                    run_replicas(workers, traffic.samples, traffic.count, traffic.warmup, stop)
                )
    return [
        Compared(mode, *modes[mode], median_timing(timings))
        for mode, timings in rounds.items()
        if timings
    ]


def _others(
    pipeline: Pipeline, traffic: Traffic, offer: Offer
) -> dict[str, tuple[SessionConfig, list[Worker]]]:
    """Mode -> sessions of the whole model, in one configuration."""
    cores = len(available_cores())
    config = main_config(pipeline.homes, pipeline.config)
    whole = replace(config, threads=cores, pin=False)
    single = replace(config, threads=1)
    spots, _ = places(pipeline.devices, single)
    if config.provider == "cpu":
        spots = spots[:cores]
    else:
        spots = spots[: len({spot.device_id for spot in spots})]
    found = {}
    if WHOLE not in offer.ruled_out:
        found[WHOLE] = (whole, [_fastest_whole(pipeline, whole, traffic)])
    if REPLICAS not in offer.ruled_out:
        spots = spots[: offer.copies]
        copies = [pipeline.whole(single, spot, f"replica {i}") for i, spot in enumerate(spots)]
        found[REPLICAS] = (single, copies)
    return found


def chosen(pipeline: Pipeline, others: Sequence[Compared], offer: Offer) -> Choice | None:
    """The fastest of the ways that `compare` timed, beside what was predicted of it."""
    gpu = main_config(pipeline.homes, pipeline.config).provider != "cpu"
    predicted = {
        # A stage stands for a device of the plan: one GPU, or as many cores as it has threads.
        mode: offer.predicted(
            mode,
            sessions,
            as_planned=not pipeline.crowded and (gpu or config.threads == pipeline.config.threads),
        )
        for mode, config, sessions, _ in others
    }
    return choose({mode: timing for mode, _, _, timing in others}, offer, predicted)


def _fastest_whole(pipeline: Pipeline, config: SessionConfig, traffic: Traffic) -> Worker:
    """The whole model on all cores, with threads that wait in the better way."""
    workers = [
        pipeline.whole(config, Place(), "the whole model", alone=alone) for alone in (False, True)
    ]
    trial = [
        run_replicas([w], traffic.samples, min(traffic.count, 8), 2, pipeline.watch.interrupted)
        for w in workers
    ]
    return max(zip(trial, workers, strict=True), key=lambda pair: pair[0].throughput_per_s)[1]
