"""Run a pipeline, check it, compare it; and say how it went, in records and in words."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dnnp.core.runtime.choice import Choice, Offer
from dnnp.core.runtime.compare import Compared, chosen, compare
from dnnp.core.runtime.execute import Pipeline
from dnnp.core.runtime.file_runs import FileRun
from dnnp.core.runtime.load import Load, widest
from dnnp.core.runtime.placing import providers_of, run_fields, stage_fields, where
from dnnp.core.runtime.report import (
    NO_FORECAST,
    Forecast,
    Timing,
    comparison_table,
    device_table,
    stage_table,
    sums_by,
    timing_lines,
    transfer_table,
)
from dnnp.core.runtime.scheduled import Program
from dnnp.core.runtime.session import SessionConfig
from dnnp.core.runtime.sources import Arrivals
from dnnp.core.runtime.steady import STEADY, Settled, is_disturbed, worth_repeating
from dnnp.core.runtime.sweep import Queueing, Sweep, Swept, queueing, run_sweep
from dnnp.core.runtime.trace import Trace, timeline
from dnnp.core.runtime.values import Values
from dnnp.core.runtime.verify import Tolerance, Verdict
from dnnp.formats.trace_events import Timeline

SHOWN = 0.01
"""What other processes took from a stage is shown from this share of its time on."""

OTHERS = "other processes or the host"
"""Who takes processors away; the host is that of a virtual machine."""


@dataclass(frozen=True)
class Checks:
    """What to do besides measuring."""

    tolerance: Tolerance | None = None
    """Compare outputs with the whole model, to this tolerance; None: do not."""
    compare: bool = False
    """Time the whole model and replicas as well."""
    offer: Offer | None = None
    """Then choose the fastest of those that fit; None: choose nothing."""
    keep: bool = False
    """Keep the outputs of each distinct input."""
    forecast: Forecast = NO_FORECAST
    """What was predicted besides the loads."""
    owners: Sequence[int] = ()
    """Stage of the plan that each stage of the pipeline is part of; empty: they are the same."""
    shards: Sequence[int] = ()
    """Which shard of that stage each belongs to; empty, or -1: there are none."""
    sweep: Sweep | None = None
    """Rates to try after the measurement."""


@dataclass
class Outcome:
    """Everything a run found out."""

    pipeline: Pipeline
    checks: Checks
    trace: Trace
    timing: Timing
    verdict: Verdict | None = None
    others: list[Compared] = field(default_factory=list)
    """The pipeline's figures over all rounds, then the other ways to run the model."""
    choice: Choice | None = None
    """The fastest of them, if that was asked for."""
    outputs: dict[int, Values] = field(default_factory=dict)
    """Outputs of each distinct input."""
    interrupted: bool = False
    discarded: int = 0
    """Samples that went through but do not count: until the rate was steady, the warm-up, and
    measurements that other processes disturbed more than this one."""
    settled: Settled = field(default_factory=Settled)
    tries: int = 1
    """Measurements, of which the one that was disturbed least counts."""
    queueing: Queueing | None = None
    """How long samples took that arrived at their own pace."""
    swept: Swept | None = None
    """The same for many rates."""
    files: FileRun | None = None
    """Inputs that went through once each."""
    duration_s: float | None = None
    """In how much time samples set out, if that was asked for in place of a number."""
    program: Program | None = None
    """The schedule that was followed."""
    warmup: int = 0
    """Samples of the trace that do not count."""
    unlearned: str = ""
    """Why no factors were learned, though that was asked for."""

    def timeline(self) -> Timeline:
        """When each device had which sample."""
        orders = None if self.program is None else self.program.turns.orders
        ran = self.pipeline
        return timeline(
            self.trace, ran.steps, ran.stages, ran.outputs, orders=orders, warmup=self.warmup
        )

    def records(self, digest: str) -> list[dict[str, Any]]:
        """Run records for the stream: the pipeline, then what it was compared with."""
        ran, forecast = self.pipeline, self.checks.forecast
        fields: dict[str, Any] = {"k": len(ran.steps), **self._verdict_fields()}
        if self.interrupted:
            fields["interrupted"] = True
        if forecast.latency_s is not None:
            fields["latency_predicted_s"] = forecast.latency_s
        if forecast.makespan_s is not None:
            fields["makespan_predicted_s"] = forecast.makespan_s
            if not self.trace.interrupted:
                fields["makespan_measured_s"] = self.timing.makespan_s
        if self.timing.moved is not None:
            fields["transfers"] = self.timing.moved.record(forecast.transfers or 0.0)
        fields["discarded"] = self.discarded
        fields |= run_fields(ran.steps, ran.homes, ran.config)
        fields["stages"] = self._stage_fields()
        if ran.staff is not None:
            fields["workers"] = ran.staff.kind
            fields["restarts"] = [loss._asdict() for loss in ran.staff.losses]
        if self.duration_s is not None:
            fields["duration_s"] = self.duration_s
        for name, part in (
            ("choice", self.choice),
            ("files", self.files),
            ("arrivals", self.queueing),
            ("sweep", self.swept),
        ):
            if part is not None:
                fields[name] = part.record()
        fields["digest"] = digest
        records = [_record("pipeline", self.timing, ran.config, fields)]
        for mode, config, k, timing in self.others[1:]:
            records.append(_record(mode, timing, config, {"k": k, "digest": digest}))
        return records

    def _verdict_fields(self) -> dict[str, Any]:
        """What the comparison with the whole model says."""
        verdict, tolerance = self.verdict, self.checks.tolerance
        if verdict is None:
            return {}
        errors = {"max_abs_error": verdict.max_abs, "max_rel_error": verdict.max_rel}
        limits = {} if tolerance is None else {"rtol": tolerance.rtol, "atol": tolerance.atol}
        # JSON has no infinity: an error beyond all measure is left out.
        finite = {name: error for name, error in errors.items() if math.isfinite(error)}
        own = {"self_rel_error": verdict.self_error} if verdict.self_error else {}
        return {"verified": verdict.ok, **finite, **limits, **own}

    def _stage_fields(self) -> list[dict[str, Any]]:
        """What was predicted and measured of each stage of the pipeline."""
        ran, timing = self.pipeline, self.timing
        mixed = len(providers_of(ran.homes, ran.config)) > 1
        return [
            {
                "stage": self.checks.owners[i] if self.checks.owners else i,
                "device": stage.device,
                "predicted_s": stage.load_s,
                "measured_s": timing.loads_s[i],
                "bubble": timing.bubbles[i],
                **({"taken": timing.taken[i]} if timing.taken else {}),
                **({"replicas": stage.replicas} if stage.replicas > 1 else {}),
                **({"shard": self._shard(i)} if self._shard(i) >= 0 else {}),
                **stage_fields(ran.homes[i], ran.left[i], mixed=mixed),
            }
            for i, stage in enumerate(ran.stages)
        ]

    def _shard(self, i: int) -> int:
        return self.checks.shards[i] if self.checks.shards else -1

    def lines(self) -> list[str]:
        """The tables and sentences for people."""
        stages = self.pipeline.stages
        devices = [s.where for s in stages]
        homes = map(where, self.pipeline.homes)
        devices = [f"{d} on {home}" if home else d for d, home in zip(devices, homes, strict=True)]
        lines = stage_table(devices, [s.load_s for s in stages], self.timing)
        if self.timing.moved is not None:
            lines += ["", *transfer_table(self.timing.moved)]
        names = [stage.device for stage in stages]
        if self.checks.shards and len({*names}) < len(names):
            predicted = [stage.load_s for stage in stages]
            lines += ["", *device_table(names, predicted, self.timing.loads_s)]
        slowest = max(sums_by(names, self.timing.loads_s).values(), default=0.0)
        lines += ["", *timing_lines(self.timing, self.checks.forecast, slowest)]
        if self.queueing is not None:
            lines += self.queueing.lines()
        lines += self._sample_lines()
        if self.files is not None:
            lines.append(self.files.line())
        if self.verdict is not None:
            lines.append(self._verdict_line(self.verdict))
        if self.others:
            devices_used = self.pipeline.devices
            names = [
                _way(mode, config.threads, k, devices_used) for mode, config, k, _ in self.others
            ]
            timings = [timing for _, _, _, timing in self.others]
            lines += ["", *comparison_table(list(zip(names, timings, strict=True)))]
            lines += [
                f"disturbed   {OTHERS} took {timing.lost:.0%} of the processors from: {name}"
                for name, timing in list(zip(names, timings, strict=True))[1:]
                if is_disturbed(timing)
            ]
        if self.choice is not None:
            lines.append(self.choice.line())
        if self.swept is not None:
            lines += ["", *self.swept.lines()]
        return lines

    def _sample_lines(self) -> list[str]:
        """How much was measured, what was left out, and what others took from it."""
        if not self.timing.samples:
            return []
        line = f"samples     {self.timing.samples}"
        if self.discarded:
            line += f"; {self.discarded} others do not count"
        change = self.settled.change
        if change is not None and change > STEADY:
            line += f", after which the rate still changed by {change:.0%}"
        if self.tries > 1:
            line += f"; the least disturbed of {self.tries} measurements"
        lines = [line]
        for taken, step in zip(self.timing.taken, self.pipeline.steps, strict=False):
            if is_disturbed(self.timing) and taken >= SHOWN:
                cores = sorted({core for worker in step.workers for core in worker.cores})
                what = f"core{'s' * (len(cores) > 1)} {', '.join(map(str, cores))}"
                what = what if cores else "the processor"
                lines.append(f"disturbed   {OTHERS} took {taken:.0%} of {what} from {step.name}")
        return lines

    def _verdict_line(self, verdict: Verdict) -> str:
        tolerance = self.checks.tolerance
        limits = f"rtol {tolerance.rtol:g}, atol {tolerance.atol:g}" if tolerance else ""
        if not verdict.ok:
            return f"verified    NO: {verdict.fault} ({limits})"
        if verdict.self_error:
            limits += f", or as the whole model from itself: {verdict.self_error:.2g}"
        return (
            f"verified    yes: {verdict.samples} samples, largest error {verdict.max_abs:.2g}, "
            f"{verdict.max_rel:.2g} of the largest value ({limits})"
        )


def _way(mode: str, threads: int, k: int, devices: int) -> str:
    cores = f"{threads} thread{'s' if threads > 1 else ''}"
    if mode == "pipeline":
        spread = f" on {devices} devices" if devices > k else ""
        return f"pipeline, {k} stage{'s' * (k != 1)}{spread}, {cores} each"
    if mode == "whole":
        return f"whole model, {cores}"
    return f"{k} replica{'s' if k > 1 else ''} in one process, {cores} each"


def _record(
    mode: str, timing: Timing, config: SessionConfig, fields: dict[str, Any]
) -> dict[str, Any]:
    return {
        "type": "run",
        "mode": mode,
        "provider": config.provider,
        "samples": timing.samples,
        "threads": config.threads,
        "optimization": config.optimization,
        **({"rounds": timing.rounds} if timing.rounds > 1 else {}),
        "elapsed_s": timing.elapsed_s,
        "throughput_per_s": timing.throughput_per_s,
        "latency_p50_s": timing.latency_p50_s,
        "latency_p99_s": timing.latency_p99_s,
        "bubble": timing.bubble,
        **({"taken": max(timing.taken)} if timing.taken else {}),
        **fields,
    }


def execute(pipeline: Pipeline, load: Load, checks: Checks) -> Outcome:
    """Send the samples through, then verify and compare as asked, unless interrupted."""
    # What is there by now stays: no collection needs to walk it on a core that runs a stage.
    gc.collect()
    gc.freeze()
    load, settled = pipeline.settle(load)
    warmup, distinct = pipeline.warmup(load), len(load.samples)
    total, checked = warmup + load.count, max(distinct, widest(pipeline.stages))
    keep: Callable[[int], bool] = lambda s: False  # noqa: E731
    if load.files is not None and checks.tolerance is not None:
        load.files.went = []
    elif load.seconds is not None:
        keep = lambda s: s < checked  # noqa: E731
    elif checks.tolerance is not None or checks.keep:
        keep = lambda s: s < checked or s >= total - checked  # noqa: E731
    outcome = _measure(pipeline, load, checks, keep)
    outcome.settled = settled
    outcome.discarded += settled.samples
    trace = outcome.trace
    outcome.files, outcome.duration_s = load.files, load.seconds
    outcome.program, outcome.warmup = load.program, warmup
    if load.arrivals is not None:
        outcome.queueing = queueing(trace, load.arrivals)
    outcome.outputs = {s: values for s, values in trace.outputs.items() if s < distinct}
    stop = pipeline.watch.interrupted
    if checks.tolerance is not None and not stop():
        outcome.verdict = pipeline.verify(trace, load, checks.tolerance)
    if checks.sweep is not None and not stop():
        outcome.swept = _sweep(pipeline, load, checks.sweep, outcome.timing.throughput_per_s)
    if checks.compare and not stop():
        if load.seconds is not None:
            load = replace(load, count=outcome.timing.samples, seconds=None)
        outcome.others = compare(pipeline, load, outcome.timing, checks.offer)
        outcome.timing = outcome.others[0].timing
        outcome.discarded += (outcome.timing.rounds - 1) * load.warmup * widest(pipeline.stages)
        if checks.offer is not None and not stop():
            outcome.choice = chosen(pipeline, outcome.others, checks.offer)
    outcome.interrupted = trace.interrupted or stop()
    if outcome.interrupted and outcome.verdict is not None and not outcome.verdict.samples:
        outcome.verdict = None
    return outcome


def _sweep(pipeline: Pipeline, load: Load, sweep: Sweep, capacity_per_s: float) -> Swept:
    """Send samples through at all rates of a sweep, each after a warm-up."""

    def measure(arrivals: Arrivals, count: int) -> Queueing | None:
        trace = pipeline.run(replace(load, count=count, seconds=None, arrivals=arrivals))
        return None if trace.interrupted else queueing(trace, arrivals)

    return run_sweep(sweep, capacity_per_s, measure, pipeline.watch.checks)


def _measure(
    pipeline: Pipeline, load: Load, checks: Checks, keep: Callable[[int], bool]
) -> Outcome:
    """Measure; again while other processes disturb that, as far as time allows."""
    begin = time.perf_counter()
    best: Outcome | None = None
    tries = through = 0
    while True:
        trace = pipeline.run(load, keep)
        timing = pipeline.summarize(trace, load)
        tries += 1
        through += trace.done + pipeline.warmup_apart(load)
        if best is None or (not trace.interrupted and timing.lost < best.timing.lost):
            best = Outcome(pipeline, checks, trace, timing)
        spent = time.perf_counter() - begin
        if trace.interrupted or not load.settle or not worth_repeating(timing, tries, spent):
            break
        pipeline.watch.detail(f"{OTHERS} took {timing.lost:.0%} of a processor: measuring again")
    best.discarded = through - best.timing.samples
    best.tries = tries
    return best
