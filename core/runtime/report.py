"""What a run amounted to: loads, throughput, latency, bubbles; and the table that shows it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from dnnp.core.model.text import shown_bytes, shown_seconds, table
from dnnp.core.runtime.trace import MovedFigures, Trace, figures_of, median_figures

ENOUGH = 10
"""Samples from which on a rate can be compared with the median times of the stages."""


class Forecast(NamedTuple):
    """What a plan or its schedule predicts, besides the loads of the stages; None: nothing."""

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
class Timing:
    """Figures of one run; times in seconds. Without samples everything is 0."""

    samples: int
    """Samples measured, of all rounds."""
    throughput_per_s: float
    """Samples per second of a round."""
    latency_p50_s: float
    """Median over samples, from the first stage's start to the last output."""
    latency_p99_s: float
    loads_s: tuple[float, ...]
    """Median time of one sample in each stage, over the number of its replicas."""
    bubbles: tuple[float, ...]
    """Idle share of each stage, all replicas, between its first start and its last end."""
    bubble: float
    """Idle share of all stages together; of a schedule, of its devices over its makespan."""
    makespan_s: float = 0.0
    """First start to last end of the samples of a schedule."""
    elapsed_s: float = 0.0
    """Time of a round, the median: to its last completion, from the last one of the warm-up, or
    from the first start."""
    rounds: int = 1
    spread_per_s: float = 0.0
    """How far the throughputs of the middle half of the rounds lie apart."""
    taken: tuple[float, ...] = ()
    """Share of the time of each stage that other processes took from it: it could have run, but
    its processor ran something else. Empty: not known."""
    moved: MovedFigures | None = None
    """What the transfers of a schedule took; None: there were none."""

    @property
    def lost(self) -> float:
        """What other processes took from all stages together.

        So much the pipeline may lose: stages that lose time one after the other all hold it up.
        """
        return sum(self.taken)


def summarize(trace: Trace, warmup: int = 0) -> Timing:
    """Figures of a trace, without its first `warmup` samples."""
    stages, done = trace.start_ns.shape
    samples = max(done - warmup, 0)
    if samples == 0:
        return Timing(0, 0.0, 0.0, 0.0, (0.0,) * stages, (0.0,) * stages, 0.0)
    start, end = trace.start_ns[:, warmup:], trace.end_ns[:, warmup:]
    finished = trace.done_ns[warmup:]
    busy = (end - start).sum(axis=1)
    window = trace.replicas * np.maximum(end.max(axis=1) - start.min(axis=1), 1)
    timing = timing_of(
        finished - start.min(axis=0),
        _elapsed(trace, warmup),
        np.median(end - start, axis=1) * 1e-9 / trace.replicas,
        1.0 - busy / window,
        float(1.0 - busy.sum() / window.sum()),
    )
    if trace.waited_ns is None:
        return timing
    taken = np.minimum(trace.waited_ns[:, warmup:].sum(axis=1) / window, 1.0)
    # Our own thread that watches the others may be what ran instead.
    if taken.sum() > 0:
        taken *= max(1.0 - trace.own_share / taken.sum(), 0.0)
    return replace(timing, taken=tuple(float(x) for x in taken))


def summarize_schedule(trace: Trace, devices: int) -> Timing:
    """Figures of a trace that holds the samples of a schedule on so many devices.

    The throughput counts from the first start to the last end: how fast samples leave in the
    steady state says little about few of them.
    """
    timing = summarize(trace)
    if not timing.samples:
        return timing
    start, end = trace.start_ns, trace.end_ns
    busy, moved = float((end - start).sum()) * 1e-9, trace.moved
    if moved is not None:
        start, end = np.vstack([start, moved.start_ns]), np.vstack([end, moved.end_ns])
        busy += moved.blocking_ns * 1e-9
    makespan = float(max(end.max() - start.min(), 1)) * 1e-9
    latency = np.quantile(end.max(axis=0) - start.min(axis=0), [0.5, 0.99]) * 1e-9
    return replace(
        timing,
        throughput_per_s=timing.samples / makespan,
        elapsed_s=makespan,
        latency_p50_s=float(latency[0]),
        latency_p99_s=float(latency[1]),
        bubble=min(max(1.0 - busy / (makespan * max(devices, 1)), 0.0), 1.0),
        makespan_s=makespan,
        moved=None if moved is None else figures_of(moved, makespan * 1e9),
    )


def timing_of(
    latency_ns: np.ndarray[Any, Any],
    elapsed_s: float,
    loads_s: np.ndarray[Any, Any],
    bubbles: np.ndarray[Any, Any],
    bubble: float,
) -> Timing:
    """Put figures together; `latency_ns` has one entry a sample."""
    p50, p99 = np.quantile(latency_ns, [0.5, 0.99]) * 1e-9
    return Timing(
        samples=len(latency_ns),
        throughput_per_s=len(latency_ns) / elapsed_s,
        elapsed_s=elapsed_s,
        latency_p50_s=float(p50),
        latency_p99_s=float(p99),
        loads_s=tuple(float(x) for x in loads_s),
        bubbles=tuple(float(x) for x in np.clip(bubbles, 0.0, 1.0)),
        bubble=min(max(bubble, 0.0), 1.0),
    )


def _elapsed(trace: Trace, warmup: int) -> float:
    """Time of all samples after the warm-up, whose last completion starts the clock; seconds."""
    began = trace.done_ns[warmup - 1] if warmup else trace.start_ns.min()
    return float(max(trace.done_ns[-1] - began, 1)) * 1e-9


def median_timing(rounds: Sequence[Timing]) -> Timing:
    """Median of each figure over several rounds; rounds without samples do not count."""
    real = [t for t in rounds if t.samples] or list(rounds[:1])

    def median(values: Sequence[float]) -> float:
        return float(np.median(values))

    samples, elapsed = sum(t.samples for t in real), median([t.elapsed_s for t in real])
    return Timing(
        samples=samples,
        throughput_per_s=samples / len(real) / elapsed if elapsed > 0 else 0.0,
        elapsed_s=elapsed,
        rounds=len(real),
        spread_per_s=float(
            np.subtract(*np.quantile([t.throughput_per_s for t in real], [0.75, 0.25]))
        ),
        latency_p50_s=median([t.latency_p50_s for t in real]),
        latency_p99_s=median([t.latency_p99_s for t in real]),
        loads_s=tuple(float(x) for x in np.median([t.loads_s for t in real], axis=0)),
        bubbles=tuple(float(x) for x in np.median([t.bubbles for t in real], axis=0)),
        bubble=median([t.bubble for t in real]),
        makespan_s=median([t.makespan_s for t in real]),
        taken=tuple(float(x) for x in np.median([t.taken for t in real], axis=0)),
        moved=median_figures([t.moved for t in real]),
    )


def stage_table(devices: Sequence[str], predicted_s: Sequence[float], timing: Timing) -> list[str]:
    """Lines that compare predicted and measured load, stage by stage."""
    rows = []
    for i, (device, predicted) in enumerate(zip(devices, predicted_s, strict=True)):
        measured = timing.loads_s[i]
        ratio = f"{measured / predicted:.2f}" if predicted > 0 and timing.samples else "-"
        shown = shown_seconds(measured) if timing.samples else "-"
        rows.append(
            [str(i), device, shown_seconds(predicted), shown, ratio, f"{timing.bubbles[i]:.1%}"]
        )
    header = ["stage", "device", "predicted", "measured", "ratio", "bubble"]
    return table(header, rows)


def sums_by(names: Sequence[str], values: Sequence[float]) -> dict[str, float]:
    """Sum of the values of each name, in order of first use."""
    found: dict[str, float] = {}
    for name, value in zip(names, values, strict=True):
        found[name] = found.get(name, 0.0) + value
    return found


def device_table(
    devices: Sequence[str], predicted_s: Sequence[float], measured_s: Sequence[float]
) -> list[str]:
    """Lines that compare predicted and measured load of each device, whatever parts it runs."""
    parts, predicted = Counter(devices), sums_by(devices, predicted_s)
    rows = []
    for device, measured in sums_by(devices, measured_s).items():
        ratio = f"{measured / predicted[device]:.2f}" if predicted[device] > 0 else "-"
        times = [shown_seconds(predicted[device]), shown_seconds(measured), ratio]
        rows.append([device, str(parts[device]), *times])
    return table(["device", "parts", "predicted", "measured", "ratio"], rows)


def transfer_table(moved: MovedFigures) -> list[str]:
    """Lines that compare predicted and measured time of each transfer."""
    rows = []
    for t, measured, size in zip(moved.transfers, moved.measured_s, moved.bytes, strict=True):
        ratio = f"{measured / t.time_s:.2f}" if t.time_s > 0 else "-"
        way = "blocking" if t.blocking else "non-blocking"
        rows.append(
            [
                t.name,
                way,
                shown_bytes(size),
                shown_seconds(t.time_s),
                shown_seconds(measured),
                ratio,
            ]
        )
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
