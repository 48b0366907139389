"""Validate what runs say about arrivals, sweeps of rates and files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dnnp.core.check.violation import Fact, Violation, above, same

Record = Mapping[str, Any]

_RISING = ("p50", "p90", "p99", "p999", "max")
"""Latencies of which none is below the one before it."""

_SHARES = 12
"""Rates of a sweep: every tenth of the capacity, to 120 % of it."""


def check_served(run: Record, subject: str) -> Iterator[Violation]:
    """What does not hold about the fields of a run beside its other figures."""
    if "arrivals" in run:
        yield from _rate(run["arrivals"], run, f"{subject}, arrivals")
        yield from _beside(run, f"{subject}, arrivals")
    if "sweep" in run:
        yield from _sweep(run["sweep"], run, f"{subject}, sweep")
    if "files" in run:
        yield from _files(run, f"{subject}, files")


def _wrong(subject: str, name: str, stated: Fact, expected: Fact) -> Violation:
    message = f"{name} is {stated!r}, recomputed {expected!r}"
    return Violation("value", subject, message, expected, stated)


def _rate(row: Record, run: Record, subject: str) -> Iterator[Violation]:
    """Figures of one rate against each other."""
    latencies = [row[f"latency_{name}_s"] for name in _RISING]
    for name, low, high in zip(_RISING[1:], latencies, latencies[1:], strict=False):
        if above(low, high):
            message = f"latency_{name}_s is {high!r}, a lower percentile {low!r}"
            yield Violation("value", subject, message, low, high)
    mean, most, count = row["latency_mean_s"], row["latency_max_s"], row["samples"]
    # Half of the samples take the median or more, one takes the most.
    least = max(row["latency_p50_s"] * (count // 2), most) / count
    if above(mean, most) or above(least, mean):
        message = f"latency_mean_s is {mean!r}, but from {least!r} to {most!r} is possible"
        yield Violation("value", subject, message, most, mean)
    if row["backlog"] > count:
        yield _wrong(subject, "backlog", row["backlog"], count)
    rate, span = row["rate_per_s"], row["span_s"]
    uniform = (run.get("arrivals") or run["sweep"])["process"] == "uniform"
    # Arrivals are at whole nanoseconds.
    if uniform and abs(span - (count - 1) / rate) > 2e-9 + 1e-9 * span:
        yield _wrong(subject, "span_s", span, (count - 1) / rate)
    whole = count / row["throughput_per_s"] if row["throughput_per_s"] else 0.0
    # The last one to leave left after it had arrived, and arrived by the end of the span.
    if above(span, whole) or above(whole, span + most):
        message = f"throughput_per_s makes {whole!r} seconds, the span is {span!r} and no sample "
        yield Violation("value", subject, f"{message}takes more than {most!r}", span, whole)
    workers = sum(entry.get("replicas", 1) for entry in run.get("stages", ()))
    left = max(row["backlog"] - workers, 0)
    expected = left > 0.05 * count and left * left > count
    if workers and row["saturated"] != expected:
        yield _wrong(subject, "saturated", row["saturated"], expected)


def _beside(run: Record, subject: str) -> Iterator[Violation]:
    """Figures of arrivals against those of the run: waiting comes on top of its latency."""
    row = run["arrivals"]
    if row["samples"] != run["samples"]:
        yield _wrong(subject, "samples", row["samples"], run["samples"])
    for name in ("latency_p50_s", "latency_p99_s"):
        if name in run and above(run[name], row[name]):
            message = f"{name} is {row[name]!r} with waiting, {run[name]!r} without"
            yield Violation("value", subject, message, run[name], row[name])


def _sweep(sweep: Record, run: Record, subject: str) -> Iterator[Violation]:
    """Rates are the shares that they claim; knee and sustained rate follow from the rows."""
    rows: Sequence[Record] = sweep["rates"]
    capacity = sweep["capacity_per_s"]
    if not same(capacity, run.get("throughput_per_s", capacity)):
        yield _wrong(subject, "capacity_per_s", capacity, run["throughput_per_s"])
    if len(rows) > _SHARES or (len(rows) < _SHARES and not run.get("interrupted") and capacity):
        yield _wrong(subject, "the number of rates", len(rows), _SHARES)
    for number, row in enumerate(rows):
        if not same(row["share"], (number + 1) / 10):
            yield _wrong(subject, f"share of rate {number}", row["share"], (number + 1) / 10)
        if not same(row["rate_per_s"], row["share"] * capacity):
            expected = row["share"] * capacity
            yield _wrong(subject, f"rate_per_s of rate {number}", row["rate_per_s"], expected)
        yield from _rate(row, run, f"{subject}, rate {number}")
    knee = max(rows, key=lambda row: _power(row), default=None)
    stated = next((row for row in rows if row["rate_per_s"] == sweep.get("knee_per_s")), None)
    if knee is not None and (stated is None or above(_power(knee), _power(stated))):
        yield _wrong(subject, "knee_per_s", sweep.get("knee_per_s"), knee["rate_per_s"])
    first = next((i for i, row in enumerate(rows) if row["saturated"]), len(rows))
    sustained = rows[first - 1]["rate_per_s"] if first else None
    if sweep.get("sustained_per_s") != sustained:
        yield _wrong(subject, "sustained_per_s", sweep.get("sustained_per_s"), sustained)


def _power(row: Record) -> float:
    mean = float(row["latency_mean_s"])
    return row["throughput_per_s"] / mean if mean > 0 else 0.0


def _files(run: Record, subject: str) -> Iterator[Violation]:
    """Each file that went through is a sample that was measured, or one too old to be."""
    files = run["files"]
    through = run["samples"] + run.get("discarded", 0)
    # Replicas may be ahead of a sample that an interruption has stopped.
    if files["written"] > through and not run.get("interrupted"):
        message = f"{files['written']} were written, but {through} samples went through"
        yield Violation("value", subject, message, through, files["written"])
    if run["samples"] > files["written"] + files["failed"]:
        message = f"{run['samples']} samples were measured, but {files['written']} were written "
        message += f"and {files['failed']} failed"
        yield Violation("value", subject, message, files["written"], run["samples"])
