"""A saturation sweep: latency and throughput at rates from little to more than can be done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dnnp.core.model.text import shown_seconds, table
from dnnp.core.runtime.queueing import QUANTILES, Queueing
from dnnp.core.runtime.sources import POISSON, Arrivals

SHARES = tuple(step / 10 for step in range(1, 13))
"""Rates over what the pipeline can do."""


@dataclass(frozen=True)
class Sweep:
    """What to try."""

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
    """What came of it."""

    sweep: Sweep
    capacity_per_s: float
    """Samples a second where each is there as soon as there is room for it."""
    rows: list[tuple[float, Queueing]] = field(default_factory=list)
    """(share of the capacity, figures) of each rate that was tried."""

    @property
    def knee(self) -> Queueing | None:
        """Where throughput over mean latency is largest: more load costs more than it brings."""
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
        """What a run record says of it."""
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
        header = ["arrive", "of capacity", "leave", *map(_percent, QUANTILES.values()), "most", ""]
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


def _percent(share: float) -> str:
    return f"{100 * share:.4g}%"


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
