"""How long samples take that arrive at their own pace, waiting included (an open loop).

A pipeline that is asked for more than it can do has a queue that grows as long as samples arrive:
its latencies then tell how long somebody measured, and no more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from dnnp.core.model.text import shown_seconds
from dnnp.core.runtime.sources import POISSON, Arrivals
from dnnp.core.runtime.trace import Trace

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
        """Whether the pipeline does not keep up: too many are left behind to be chance."""
        return self.backlog > self.workers + max(MANY * self.samples, math.sqrt(self.samples))

    @property
    def power(self) -> float:
        """Throughput over mean latency, which is largest at the knee (Kleinrock 1979)."""
        return self.throughput_per_s / self.mean_s if self.mean_s > 0 else 0.0

    def fields(self) -> dict[str, Any]:
        """What a record says of it."""
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
        quantiles_s=tuple(float(x) for x in np.quantile(latency, list(QUANTILES.values()))),
        max_s=float(latency.max()),
        backlog=int((done > arrived[-1]).sum()),
        workers=int(trace.replicas.sum()),
    )
