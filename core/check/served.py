"""Validate what runs say about arrivals, sweeps of rates and files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dnnp.core.check.arrivals import Redrawn, check_rate, whole_s
from dnnp.core.check.violation import Violation, above, same, wrong

Record = Mapping[str, Any]

_SHARES = 12
"""Rates of a sweep: every tenth of the capacity, to 120 % of it."""


def check_served(run: Record, redrawn: Redrawn, subject: str) -> Iterator[Violation]:
    """What does not hold about the fields of a run beside its other figures."""
    if "arrivals" in run:
        row = run["arrivals"]
        yield from check_rate(row, row, redrawn, _workers(run), f"{subject}, arrivals")
        yield from _beside(run, f"{subject}, arrivals")
    if "sweep" in run:
        yield from _sweep(run, redrawn, f"{subject}, sweep")
    if "files" in run:
        yield from _files(run, f"{subject}, files")


def _beside(run: Record, subject: str) -> Iterator[Violation]:
    """Figures of arrivals against those of the run: waiting comes on top of its latency."""
    row = run["arrivals"]
    if row["samples"] != run["samples"]:
        yield wrong(subject, "samples", row["samples"], run["samples"])
    for name in ("latency_p50_s", "latency_p99_s"):
        if name in run and above(run[name], row[name]):
            message = f"{name} is {row[name]!r} with waiting, {run[name]!r} without"
            yield Violation("value", subject, message, run[name], row[name])
    # The run begins when the first sample sets out, which had arrived, but may have waited.
    took, whole = run.get("elapsed_s", 0.0), whole_s(row)
    if took and (above(took, whole) or above(whole, took + row["latency_max_s"])):
        message = f"throughput_per_s makes {whole!r} seconds, but elapsed_s is {took!r}"
        yield Violation("value", subject, message, took, whole)


def _workers(run: Record) -> int:
    """Samples that can be in work at once; 0: nobody knows."""
    return sum(entry.get("replicas", 1) for entry in run.get("stages", ()))


def _sweep(run: Record, redrawn: Redrawn, subject: str) -> Iterator[Violation]:
    """Rates are the shares that they claim; knee and sustained rate follow from the rows."""
    sweep: Record = run["sweep"]
    rows: Sequence[Record] = sweep["rates"]
    capacity = sweep["capacity_per_s"]
    if not same(capacity, run.get("throughput_per_s", capacity)):
        yield wrong(subject, "capacity_per_s", capacity, run["throughput_per_s"])
    if len(rows) > _SHARES or (len(rows) < _SHARES and not run.get("interrupted") and capacity):
        yield wrong(subject, "the number of rates", len(rows), _SHARES)
    for number, row in enumerate(rows):
        if not same(row["share"], (number + 1) / 10):
            yield wrong(subject, f"share of rate {number}", row["share"], (number + 1) / 10)
        if not same(row["rate_per_s"], row["share"] * capacity):
            expected = row["share"] * capacity
            yield wrong(subject, f"rate_per_s of rate {number}", row["rate_per_s"], expected)
        workers, name = _workers(run), f"{subject}, rate {number}"
        yield from check_rate(row, sweep, redrawn, workers, name)
    knee = max(rows, key=lambda row: _power(row), default=None)
    stated = next((row for row in rows if row["rate_per_s"] == sweep.get("knee_per_s")), None)
    if knee is not None and (stated is None or above(_power(knee), _power(stated))):
        yield wrong(subject, "knee_per_s", sweep.get("knee_per_s"), knee["rate_per_s"])
    first = next((i for i, row in enumerate(rows) if row["saturated"]), len(rows))
    sustained = rows[first - 1]["rate_per_s"] if first else None
    if sweep.get("sustained_per_s") != sustained:
        yield wrong(subject, "sustained_per_s", sweep.get("sustained_per_s"), sustained)


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
