"""A saturation sweep: latency and throughput at rates from little to more than can be done.

How long samples take that arrive at their own pace, waiting included (an open loop). A pipeline
that is asked for more than it can do has a queue that grows as long as samples arrive: its
latencies then tell how long somebody measured, and no more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dnnp.core.model.text import shown_seconds, table
from dnnp.core.runtime.pipeline.sources import POISSON, Arrivals
from dnnp.core.runtime.report.statistics import Trace

SHARES = tuple(step / 10 for step in range(1, 13))
"""Rates over what the pipeline can do."""


@dataclass(frozen=True)
class Sweep:
    """Settings of a sweep."""

    process: str
    """How samples arrive."""
    seed: int
    count: int | None
    """Samples at each rate; None: those that arrive in `duration_s`, and at least `least`."""
    duration_s: float
    least: int

    def steps(self, capacity_per_s: float) -> list[tuple[float, Arrivals, int]]:
        """(share of the capacity, arrivals, samples) of each rate."""
        found = []
        for share in SHARES:
            arrivals = Arrivals(self.process, share * capacity_per_s, self.seed)
            count = self.count or max(arrivals.within(self.duration_s), self.least)
            found.append((share, arrivals, count))
        return found


@dataclass
class Swept:
    """Results of a sweep."""

    sweep: Sweep
    capacity_per_s: float
    """Samples a second where each is there as soon as there is room for it."""
    rows: list[tuple[float, Queueing]] = field(default_factory=list)
    """(share of the capacity, figures) of each rate that was tried."""

    @property
    def knee(self) -> Queueing | None:
        """Rate with the largest throughput over mean latency: more costs more than it brings."""
        figures = [found for _, found in self.rows]
        return max(figures, key=lambda found: found.power, default=None)

    @property
    def sustained(self) -> Queueing | None:
        """The highest rate below the first at which the pipeline does not keep up."""
        best = None
        for _, found in self.rows:
            if found.saturated:
                break
            best = found
        return best

    def record(self) -> dict[str, Any]:
        """Fields of the run record."""
        seed = {"seed": self.sweep.seed} if self.sweep.process == POISSON else {}
        named = {"knee_per_s": self.knee, "sustained_per_s": self.sustained}
        return {
            "process": self.sweep.process,
            **seed,
            "capacity_per_s": self.capacity_per_s,
            **{name: one.arrivals.rate_per_s for name, one in named.items() if one is not None},
            "rates": [{"share": share, **found.fields()} for share, found in self.rows],
        }

    def lines(self) -> list[str]:
        """A table for people, and its knee."""
        shares = [f"{100 * share:.4g}%" for share in QUANTILES.values()]
        header = ["arrive", "of capacity", "leave", *shares, "most", ""]
        rows = [self._row(share, found) for share, found in self.rows]
        found = table(header, rows)
        if self.knee is not None:
            found.append(
                f"knee        {self.knee.arrivals.rate_per_s:.4g}/s, where throughput over mean "
                "latency is largest"
            )
        if self.sustained is not None:
            rate = self.sustained.arrivals.rate_per_s
            found.append(f"sustained   {rate:.4g}/s is the highest rate with which it keeps up")
        return found

    def _row(self, share: float, found: Queueing) -> Sequence[str]:
        notes = []
        if found is self.knee:
            notes.append("knee")
        if found.saturated:
            notes.append("saturated")
        return [
            f"{found.arrivals.rate_per_s:.4g}/s",
            f"{share:.0%}",
            f"{found.throughput_per_s:.4g}/s",
            *map(shown_seconds, found.quantiles_s),
            shown_seconds(found.max_s),
            ", ".join(notes),
        ]


def run_sweep(
    sweep: Sweep,
    capacity_per_s: float,
    measure: Callable[[Arrivals, int], Queueing | None],
    progress: Callable[[str, float], None],
) -> Swept:
    """Try all rates; `measure` gives None when it was interrupted."""
    swept = Swept(sweep, capacity_per_s)
    steps = sweep.steps(capacity_per_s) if capacity_per_s > 0 else []
    # The lower the rate, the longer it takes.
    times = [count / arrivals.rate_per_s for _, arrivals, count in steps]
    for number, (share, arrivals, count) in enumerate(steps):
        doing = f"sweeping, rate {number + 1} of {len(steps)}"
        progress(doing, sum(times[:number]) / sum(times))
        found = measure(arrivals, count)
        if found is None:
            break
        swept.rows.append((share, found))
    return swept


QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}
"""Which latencies are told."""

MANY = 0.05
"""Share of all samples: a pipeline that keeps up has fewer of them waiting in the end."""


@dataclass(frozen=True)
class Queueing:
    """Figures of samples that arrived at their own pace; times in seconds."""

    arrivals: Arrivals
    samples: int
    span_s: float
    """First to last arrival."""
    throughput_per_s: float
    """From the first arrival to the last output."""
    mean_s: float
    """Latency, from the arrival of a sample to its last output."""
    quantiles_s: tuple[float, ...]
    """Of the latency, as `QUANTILES`; between two samples it is interpolated."""
    max_s: float
    backlog: int
    """Samples that had arrived, but were not through, when the last one arrived."""
    workers: int
    """Samples that can be in work at once: all replicas of all stages."""

    @property
    def saturated(self) -> bool:
        """True if the pipeline does not keep up: too many are left behind to be chance."""
        return self.backlog > self.workers + max(MANY * self.samples, math.sqrt(self.samples))

    @property
    def power(self) -> float:
        """Throughput over mean latency, which is largest at the knee (Kleinrock 1979)."""
        return self.throughput_per_s / self.mean_s if self.mean_s > 0 else 0.0

    def fields(self) -> dict[str, Any]:
        """Fields of a record."""
        quantiles = zip(QUANTILES, self.quantiles_s, strict=True)
        return {
            "rate_per_s": self.arrivals.rate_per_s,
            "samples": self.samples,
            "span_s": self.span_s,
            "throughput_per_s": self.throughput_per_s,
            "latency_mean_s": self.mean_s,
            **{f"latency_{name}_s": value for name, value in quantiles},
            "latency_max_s": self.max_s,
            "backlog": self.backlog,
            "saturated": self.saturated,
        }

    def record(self) -> dict[str, Any]:
        """The same, with how samples arrived."""
        seed = {"seed": self.arrivals.seed} if self.arrivals.process == POISSON else {}
        return {"process": self.arrivals.process, **seed, **self.fields()}

    def lines(self) -> list[str]:
        """The same for people."""
        p50, p90, p99, p999 = map(shown_seconds, self.quantiles_s)
        how = "at random" if self.arrivals.process == POISSON else "at equal distances"
        found = [
            f"arrivals    {self.arrivals.rate_per_s:.4g}/s {how}; {self.throughput_per_s:.4g}/s "
            "leave",
            f"response    {p50} median from arrival to output, {p90} at 90%, {p99} at 99%, {p999} "
            f"at 99.9%, {shown_seconds(self.max_s)} at most",
        ]
        if self.saturated:
            found.append(
                f"saturated   the pipeline does not keep up: {self.backlog} samples were left "
                "behind when the last one arrived"
            )
        return found


def queueing(trace: Trace, arrivals: Arrivals) -> Queueing | None:
    """Figures of a trace whose samples arrived at their own pace; None: nothing is through."""
    arrived, done = trace.arrived_ns, trace.done_ns
    if arrived is None or not len(done):
        return None
    latency = (done - arrived) * 1e-9
    return Queueing(
        arrivals,
        samples=len(done),
        span_s=float(arrived[-1] - arrived[0]) * 1e-9,
        throughput_per_s=len(done) / (float(max(done[-1] - arrived[0], 1)) * 1e-9),
        mean_s=float(latency.mean()),
        quantiles_s=tuple(np.quantile(latency, list(QUANTILES.values())).tolist()),
        max_s=float(latency.max()),
        backlog=int((done > arrived[-1]).sum()),
        workers=int(trace.replicas.sum()),
    )
