"""Run a pipeline, check it, compare it; and say how it went, in records and in words."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from dnnp.core.model.text import counted, shown_bytes, shown_seconds, table
from dnnp.core.runtime.model.providers import CpuFallback, Place, SessionConfig, providers_of
from dnnp.core.runtime.model.session import Values
from dnnp.core.runtime.pipeline.prepare import Pipeline
from dnnp.core.runtime.pipeline.sources import FileRun
from dnnp.core.runtime.pipeline.steps import Step
from dnnp.core.runtime.report.locate import Located
from dnnp.core.runtime.report.statistics import (
    STEADY,
    MovedFigures,
    SteadyRate,
    Timing,
    Trace,
    is_disturbed,
    timeline,
)
from dnnp.core.runtime.report.verify import Tolerance, Verdict

if TYPE_CHECKING:
    from dnnp.core.runtime.comparisons import (
        Choice,
        Compared,
        Queueing,
        Sweep,
        SweepResult,
        WayPredictions,
    )
    from dnnp.core.runtime.pipeline.schedule_orders import Program
    from dnnp.formats.trace_events import Timeline

SHOWN = 0.01
"""Smallest shown share of a stage's time lost to other processes."""

OTHERS = "other processes or the host"
"""Cause of lost processor time; the host is that of a virtual machine."""


class Forecast(NamedTuple):
    """Predictions of a plan or schedule besides the loads of stages; None: nothing."""

    latency_s: float | None = None
    """Time of one sample."""
    makespan_s: float | None = None
    """First start to last end of all samples of a schedule."""
    bubble: float | None = None
    """Idle share of the devices meanwhile."""
    transfers: float | None = None
    """Share of that time that the units that carry transfers are occupied by them."""


NO_FORECAST = Forecast()


@dataclass(frozen=True)
class Checks:
    """Steps besides measuring."""

    tolerance: Tolerance | None = None
    """Compare outputs with the whole model, to this tolerance; None: do not."""
    compare: bool = False
    """Time the whole model and replicas as well."""
    predictions: WayPredictions | None = None
    """Then choose the fastest of those that fit; None: choose nothing."""
    keep: bool = False
    """Keep the outputs of each distinct input."""
    forecast: Forecast = NO_FORECAST
    """Predictions besides the loads."""
    owners: Sequence[int] = ()
    """Stage of the plan that each stage of the pipeline is part of; empty: they are the same."""
    shards: Sequence[int] = ()
    """Shard of that stage that each belongs to; empty, or -1: none."""
    sweep: Sweep | None = None
    """Rates to try after the measurement."""
    overheads: Mapping[str, float] = field(default_factory=dict)
    """Device class -> bytes that a process takes there besides its stages."""
    locate: bool = False
    """Find where outputs part from the whole model's."""


@dataclass
class Outcome:
    """Everything a run found out."""

    pipeline: Pipeline
    checks: Checks
    trace: Trace
    timing: Timing
    verdict: Verdict | None = None
    located: Located | None = None
    others: list[Compared] = field(default_factory=list)
    """The pipeline's figures over all rounds, then the other ways to run the model."""
    choice: Choice | None = None
    """The fastest of them, if requested."""
    outputs: dict[int, Values] = field(default_factory=dict)
    """Outputs of each distinct input."""
    interrupted: bool = False
    discarded: int = 0
    """Samples that went through but do not count: until the rate was steady, the warm-up, and
    measurements that other processes disturbed more than this one."""
    steady_rate: SteadyRate = field(default_factory=SteadyRate)
    tries: int = 1
    """Measurements, of which the one that was disturbed least counts."""
    queueing: Queueing | None = None
    """Figures of samples that arrived at their own pace."""
    swept: SweepResult | None = None
    """The same for many rates."""
    files: FileRun | None = None
    """Inputs that went through once each."""
    duration_s: float | None = None
    """Time in which samples start, if requested in place of a count."""
    program: Program | None = None
    """The schedule that was followed."""
    warmup: int = 0
    """Samples of the trace that do not count."""
    resident_bytes: Sequence[int] = ()
    """Measured memory of each stage; 0: unknown."""
    unlearned: str = ""
    """Reason why requested factors were not learned."""

    def timeline(self) -> Timeline:
        """Timeline of the devices."""
        orders = None if self.program is None else self.program.unit_orders.orders
        ran = self.pipeline
        return timeline(
            self.trace, ran.steps, ran.stages, ran.outputs, orders=orders, warmup=self.warmup
        )

    def records(self, digest: str) -> list[dict[str, Any]]:
        """Run records for the stream: the pipeline, then the other ways it was compared with."""
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
        if ran.pool is not None:
            fields["workers"] = ran.pool.kind
            fields["restarts"] = [loss._asdict() for loss in ran.pool.losses]
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
        """Result of the comparison with the whole model."""
        verdict, tolerance = self.verdict, self.checks.tolerance
        if verdict is None:
            return {}
        errors = {"max_abs_error": verdict.max_abs, "max_rel_error": verdict.max_rel}
        limits = {} if tolerance is None else {"rtol": tolerance.rtol, "atol": tolerance.atol}
        # JSON has no infinity: an error beyond all measure is left out.
        finite = {name: error for name, error in errors.items() if math.isfinite(error)}
        own: dict[str, Any] = {"self_rel_error": verdict.self_error} if verdict.self_error else {}
        own |= {"mismatch": verdict.mismatch} if verdict.mismatch else {}
        own |= {"located": self.located.record} if self.located else {}
        return {"verified": verdict.ok, **finite, **limits, **own}

    def _stage_fields(self) -> list[dict[str, Any]]:
        """Predicted and measured load of each stage."""
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
                **self._memory(i),
                **({"replicas": stage.replicas} if stage.replicas > 1 else {}),
                **({"shard": self._shard(i)} if self._shard(i) >= 0 else {}),
                **stage_fields(ran.homes[i], ran.fallbacks[i], mixed=mixed),
            }
            for i, stage in enumerate(ran.stages)
        ]

    def _memory(self, i: int) -> dict[str, float]:
        """Memory of a stage, predicted if it is one of the plan, and measured."""
        stage, found = self.pipeline.stages[i], {}
        if not self.checks.owners and self.pipeline.made is None:
            found["memory_bytes"] = stage.memory_bytes
            if self.pipeline.pool is not None:
                found["memory_bytes"] += self.checks.overheads.get(stage.device_class, 0.0)
        resident = self.resident_bytes[i] if self.resident_bytes else 0
        return found | ({"resident_bytes": resident} if resident else {})

    def _shard(self, i: int) -> int:
        return self.checks.shards[i] if self.checks.shards else -1

    def lines(self) -> list[str]:
        """The tables and sentences for people."""
        stages, predicted = self.pipeline.stages, [stage.load_s for stage in self.pipeline.stages]
        devices = [
            f"{stage.where} on {where(home)}" if where(home) else stage.where
            for stage, home in zip(stages, self.pipeline.homes, strict=True)
        ]
        memory = [self._memory(i) for i in range(len(stages))]
        lines = stage_table(devices, predicted, self.timing, memory)
        if self.timing.moved is not None:
            lines += ["", *transfer_table(self.timing.moved)]
        names = [stage.device for stage in stages]
        if self.checks.shards and len({*names}) < len(names):
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
            if self.verdict.ok and self.verdict.max_abs:
                lines.append(f"differs     {self.verdict.cause or 'for no cause that is known'}")
            if self.located is not None:
                lines += self.located.lines
            elif self.checks.locate:
                lines.append("located     nothing parts")
        if self.others:
            devices_used = self.pipeline.devices
            ways = [
                (_way(mode, config.threads, k, devices_used), timing)
                for mode, config, k, timing in self.others
            ]
            lines += ["", *comparison_table(ways)]
            lines += [
                f"disturbed   {OTHERS} took {timing.lost:.0%} of the processors from: {name}"
                for name, timing in ways[1:]
                if is_disturbed(timing)
            ]
        if self.choice is not None:
            lines.append(self.choice.line())
        if self.swept is not None:
            lines += ["", *self.swept.lines()]
        return lines

    def _sample_lines(self) -> list[str]:
        """Number of samples measured and left out, and time that others took."""
        if not self.timing.samples:
            return []
        line = f"samples     {self.timing.samples}"
        if self.discarded:
            line += f"; {self.discarded} others do not count"
        change = self.steady_rate.change
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
            return f"verified    NO: {verdict.mismatch} ({limits})"
        if verdict.self_error:
            limits += f", or as the whole model from itself: {verdict.self_error:.2g}"
        return (
            f"verified    yes: {verdict.samples} samples, largest error {verdict.max_abs:.2g}, "
            f"{verdict.max_rel:.2g} of the largest value ({limits})"
        )


def _way(mode: str, threads: int, k: int, devices: int) -> str:
    width = counted(threads, "thread")
    if mode == "pipeline":
        over = f" on {devices} devices" if devices > k else ""
        return f"pipeline, {counted(k, 'stage')}{over}, {width} each"
    if mode == "whole":
        return f"whole model, {width}"
    return f"{counted(k, 'replica')} in one process, {width} each"


_TIMES = ("elapsed_s", "throughput_per_s", "latency_p50_s", "latency_p99_s", "bubble")


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
        **{name: getattr(timing, name) for name in _TIMES},
        **({"taken": max(timing.taken)} if timing.taken else {}),
        **fields,
    }


KINDS = ("shared", "device", "peer", "host")
"""Ways of tensors between two stages, the nearest first: `shared`, in host memory, where both
stages compute; `device`, on one GPU; `peer`, copied between GPUs by the provider; `host`, copied
through host memory."""


def run_fields(
    steps: Sequence[Step], homes: Sequence[Sequence[Place]], config: SessionConfig
) -> dict[str, Any]:
    """Fields of a run record about providers, and the links between its stages.

    `from` and `to` of a link are positions in the list of its stages.
    """
    fields: dict[str, Any] = {"provider": "+".join(providers_of(homes, config))}
    if config.options:
        fields["provider_options"] = [f"{name}={value}" for name, value in config.options]
    maker = {name: i for i, step in enumerate(steps) for name in step.outputs}
    pairs = {(maker[n], j) for j, step in enumerate(steps) for n in step.inputs if n in maker}
    lies = [[worker.memory for worker in step.workers] for step in steps]
    links = [{"from": i, "to": j, "how": link_kind(lies[i], lies[j])} for i, j in sorted(pairs)]
    if links:
        fields["links"] = links
    if config.overlap and any(link["how"] == "host" for link in links):
        fields["overlap"] = True
    return fields


def stage_fields(home: Sequence[Place], left: CpuFallback, *, mixed: bool) -> dict[str, Any]:
    """Fields of a run record about where a stage ran; its provider, if `mixed` with others."""
    fields: dict[str, Any] = {"provider": home[0].provider} if mixed else {}
    if any(place.memory for place in home):
        fields["gpus"] = sorted({place.device_id for place in home})
    if left.nodes:
        fields["fallback"] = list(left.nodes)
    return fields


def where(home: Sequence[Place]) -> str:
    """Provider and GPUs of a stage in words; empty: on the CPU."""
    provider = home[0].provider if home else "cpu"
    if provider in ("", "cpu"):
        return ""
    numbers = sorted({place.device_id for place in home}) if home[0].memory else []
    return f"{provider}{':' * bool(numbers)}{','.join(map(str, numbers))}"


def link_kind(tail: Sequence[Any], head: Sequence[Any]) -> str:
    """Farthest way of tensors between replicas of two stages.

    `tail, head`: where the tensors of each replica lie: see `session.Memory`.
    """
    found = {_kind(a, b) for a in tail for b in head}
    return max(found, key=KINDS.index, default="shared")


def _kind(a: Any, b: Any) -> str:
    if a is None and b is None:
        return "shared"
    if isinstance(a, tuple) and isinstance(b, tuple) and a[0] == b[0]:
        return "device" if a == b else "peer"
    return "host"


ENOUGH = 10
"""Fewest samples for comparing a rate with the median times of stages."""


def _shown(predicted_s: float, measured_s: float | None) -> list[str]:
    """Cells of a table: predicted and measured time, and their ratio."""
    if measured_s is None:
        return [shown_seconds(predicted_s), "-", "-"]
    ratio = f"{measured_s / predicted_s:.2f}" if predicted_s > 0 else "-"
    return [shown_seconds(predicted_s), shown_seconds(measured_s), ratio]


def stage_table(
    devices: Sequence[str],
    predicted_s: Sequence[float],
    timing: Timing,
    memory: Sequence[Mapping[str, float]],
) -> list[str]:
    """Lines that compare predicted and measured load and memory, stage by stage."""
    rows = []
    for i, (device, predicted) in enumerate(zip(devices, predicted_s, strict=True)):
        times = _shown(predicted, timing.loads_s[i] if timing.samples else None)
        held = [memory[i].get(name) for name in ("memory_bytes", "resident_bytes")]
        cells = ["-" if size is None else shown_bytes(size) for size in held]
        rows.append([str(i), device, *times, f"{timing.bubbles[i]:.1%}", *cells])
    head = ["stage", "device", "predicted", "measured", "ratio", "bubble", "memory", "resident"]
    return table(head, rows)


def sums_by(names: Sequence[str], values: Sequence[float]) -> dict[str, float]:
    """Sum of the values of each name, in order of first use."""
    found: dict[str, float] = {}
    for name, value in zip(names, values, strict=True):
        found[name] = found.get(name, 0.0) + value
    return found


def device_table(
    devices: Sequence[str], predicted_s: Sequence[float], measured_s: Sequence[float]
) -> list[str]:
    """Lines that compare predicted and measured load of each device over all its parts."""
    parts, predicted = Counter(devices), sums_by(devices, predicted_s)
    rows = [
        [device, str(parts[device]), *_shown(predicted[device], measured)]
        for device, measured in sums_by(devices, measured_s).items()
    ]
    return table(["device", "parts", "predicted", "measured", "ratio"], rows)


def transfer_table(moved: MovedFigures) -> list[str]:
    """Lines that compare predicted and measured time of each transfer."""
    rows = []
    for t, measured, size in zip(moved.transfers, moved.measured_s, moved.bytes, strict=True):
        way = "blocking" if t.blocking else "non-blocking"
        rows.append([t.name, way, shown_bytes(size), *_shown(t.time_s, measured)])
    return table(["transfer", "", "bytes", "predicted", "measured", "ratio"], rows)


def timing_lines(
    timing: Timing, forecast: Forecast = NO_FORECAST, slowest_s: float = 0.0
) -> list[str]:
    """Throughput, latency and bubble, a line each, and the makespan of a schedule.

    What was predicted stands beside what was measured. `slowest_s`: time of a sample on the device
    that takes most.
    """
    if not timing.samples:
        return ["no sample was measured"]
    latency, makespan, bubble, transfers = forecast
    lines = []
    if timing.throughput_per_s > 0:
        share = ""
        if slowest_s > 0 and timing.samples >= ENOUGH and forecast == NO_FORECAST:
            share = f", {timing.throughput_per_s * slowest_s:.1%} of the slowest stage's rate"
            # A median hardly sees what others take in bursts, but the throughput does.
            share += " when nothing disturbs it" * is_disturbed(timing)
        lines.append(f"throughput  {timing.throughput_per_s:.4g} samples/s{share}")
    if makespan is not None:
        lines.append(
            f"makespan    {shown_seconds(timing.makespan_s)}, {shown_seconds(makespan)} predicted"
        )
    predicted = "" if latency is None else f", {shown_seconds(latency)} predicted"
    lines.append(
        f"latency     {shown_seconds(timing.latency_p50_s)} median, "
        f"{shown_seconds(timing.latency_p99_s)} at 99%{predicted}"
    )
    predicted = "" if bubble is None else f", {bubble:.1%} predicted"
    lines.append(f"bubble      {timing.bubble:.1%}{predicted}")
    if timing.moved is not None:
        predicted = "" if transfers is None else f", {transfers:.1%} predicted"
        how = "links are emulated" if timing.moved.emulated else "tensors are copied"
        lines.append(f"transfers   {timing.moved.share:.1%} of the makespan{predicted}; {how}")
    return lines


def comparison_table(timings: Sequence[tuple[str, Timing]]) -> list[str]:
    """Lines that set several ways to run a model side by side; ratios to the first."""
    base = timings[0][1].throughput_per_s
    rows = [
        [
            name,
            f"{t.throughput_per_s:.4g}/s",
            f"{t.throughput_per_s / base:.2f}" if base > 0 else "-",
            shown_seconds(t.latency_p50_s),
            shown_seconds(t.latency_p99_s),
        ]
        for name, t in timings
    ]
    return table(["", "throughput", "ratio", "latency p50", "p99"], rows)
