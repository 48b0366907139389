"""Measure a prepared pipeline, then verify it and compare it as requested.

In this order: samples until the rate is steady, the measurement (again while others disturb it),
verification, a sweep of rates, the whole model and replicas of it on the same cores.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import replace

from dnnp.core.runtime.pipeline.prepare import Pipeline
from dnnp.core.runtime.pipeline.sources import Traffic, widest
from dnnp.core.runtime.report.locate import Locator
from dnnp.core.runtime.report.outcome import OTHERS, Checks, Outcome
from dnnp.core.runtime.report.statistics import worth_repeating


def execute(pipeline: Pipeline, traffic: Traffic, checks: Checks) -> Outcome:
    """Send the samples through, then verify and compare as requested, unless interrupted."""
    # Objects made so far stay: no garbage collection need visit them on the core of a stage.
    gc.collect()
    gc.freeze()
    traffic, steady_rate = pipeline.reach_steady_rate(traffic)
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
    outcome.steady_rate = steady_rate
    outcome.discarded += steady_rate.samples
    trace = outcome.trace
    outcome.resident_bytes = pipeline.resident_bytes()
    outcome.files, outcome.duration_s = traffic.files, traffic.seconds
    outcome.program, outcome.warmup = traffic.program, warmup
    if traffic.arrivals is not None:
        from dnnp.core.runtime.comparisons import queueing

        outcome.queueing = queueing(trace, traffic.arrivals)
    outcome.outputs = {s: values for s, values in trace.outputs.items() if s < distinct}
    stop = pipeline.watch.interrupted
    if checks.tolerance is not None and not stop():
        last = checks.sweep is None and not (checks.compare or checks.locate)
        outcome.verdict = pipeline.verify(trace, traffic, checks.tolerance, last=last)
        if checks.locate and outcome.verdict.parting is not None and not stop():
            pipeline.watch.checks("locating the difference", 0.0)
            locator = Locator(pipeline, *outcome.verdict.parting, checks.tolerance)
            outcome.located = locator.located()
    if checks.sweep is not None and not stop():
        from dnnp.core.runtime.comparisons import sweep_rates

        capacity_per_s = outcome.timing.throughput_per_s
        outcome.swept = sweep_rates(pipeline, traffic, checks.sweep, capacity_per_s)
    if checks.compare and not stop():
        from dnnp.core.runtime.comparisons import chosen, compare

        if traffic.seconds is not None:
            traffic = replace(traffic, count=outcome.timing.samples, seconds=None)
        outcome.others = compare(pipeline, traffic, outcome.timing, checks.predictions)
        outcome.timing = outcome.others[0].timing
        outcome.discarded += (outcome.timing.rounds - 1) * traffic.warmup * widest(pipeline.stages)
        if checks.predictions is not None and not stop():
            outcome.choice = chosen(pipeline, outcome.others, checks.predictions)
    outcome.interrupted = trace.interrupted or stop()
    if outcome.interrupted and outcome.verdict is not None and not outcome.verdict.samples:
        outcome.verdict = None
    return outcome


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
        if (
            trace.interrupted
            or not traffic.until_steady
            or not worth_repeating(timing, tries, spent)
        ):
            break
        pipeline.watch.detail(f"{OTHERS} took {timing.lost:.0%} of a processor: measuring again")
    best.discarded = through - best.timing.samples
    best.tries = tries
    return best
