"""Statistics of a run: its trace, transfers, timeline and figures, and when they are steady.

A rate that still changes says little: caches fill, processors change their speed, and earlier
programs may take a moment to end. So stretches of samples go through until two in a row have the
same rate and no other process took part of the processors meanwhile.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dnnp.core.model.plan import Stage
from dnnp.core.runtime.model.session import Values
from dnnp.core.runtime.pipeline.steps import Job, Step, route
from dnnp.core.runtime.usage import DISTURBED

if TYPE_CHECKING:
    from dnnp.formats.trace_events import Timeline


@dataclass(frozen=True)
class Trace:
    """Times of a run in nanoseconds of `time.perf_counter_ns`."""

    start_ns: NDArray[np.int64]
    """i64[stages, samples], when a stage had all inputs of a sample."""
    end_ns: NDArray[np.int64]
    """i64[stages, samples], when it had computed it."""
    done_ns: NDArray[np.int64]
    """i64[samples], when the last output had arrived."""
    replicas: NDArray[np.int64]
    """i64[stages], of each stage."""
    outputs: dict[int, Values]
    """Outputs of the samples that were to be kept."""
    interrupted: bool
    """Not all samples went through; the arrays hold those that did."""
    waited_ns: NDArray[np.int64] | None = None
    """i64[stages, samples], waiting time of a stage's ready thread since the last entry above 0;
    the last sample includes the waiting time of the processor for its host. None: unknown."""
    own_share: float = 0.0
    """Processor time of the thread that watches the others, over the time of the run."""
    first: int = 0
    """The sample that the first column is of; those before it went through, too."""

    arrived_ns: NDArray[np.int64] | None = None
    """i64[samples], when each sample arrived, and may have waited; None: when it entered."""
    moved: Moved | None = None
    """Times of the transfers of a schedule; None: there were none."""

    @property
    def done(self) -> int:
        """Samples that went through."""
        return self.first + len(self.done_ns)

    def without_samples(self) -> Trace:
        """Trace of a run that was interrupted before its first sample."""
        waited = None if self.waited_ns is None else self.waited_ns[:, :0]
        start, end, done = self.start_ns[:, :0], self.end_ns[:, :0], self.done_ns[:0]
        return Trace(start, end, done, self.replicas, {}, True, waited, self.own_share)


def timeline(
    trace: Trace,
    steps: Sequence[Step],
    stages: Sequence[Stage],
    outputs: Sequence[str],
    *,
    orders: Sequence[Sequence[Job]] | None = None,
    warmup: int = 0,
) -> Timeline:
    """Put a trace in order for people.

    Parameters
    ----------
    steps, stages
        What ran, in the order of the rows of the trace, and where.
    outputs
        Of the model.
    orders
        What each device ran by a schedule; its steps share a track. None: each replica of each
        stage has a thread of its own.
    warmup
        Samples of the trace that do not count.
    """
    from dnnp.formats.trace_events import Edge, Move, Timeline, Work

    samples = np.arange(trace.first, trace.done)
    shared = Counter(home for stage in stages for home in stage.homes)
    numbers: dict[str, int] = {}
    works = []
    for i, (step, stage) in enumerate(zip(steps, stages, strict=True)):
        names = list(stage.homes)
        if orders is None:
            names = [f"{name}, {step.name}" if shared[name] > 1 else name for name in names]
        tracks = np.array([numbers.setdefault(name, len(numbers)) for name in names])
        replicas = samples % stage.replicas if orders is None else _replicas(orders, i, samples)
        works.append(Work(step.name, tracks[replicas], trace.start_ns[i], trace.end_ns[i]))
    pairs = [(edge.tail, edge.head) for edge in route(steps, outputs)]
    moved = trace.moved
    moves = [] if moved is None else zip(moved.transfers, moved.start_ns, moved.end_ns, strict=True)
    return Timeline(
        tracks=list(numbers),
        works=works,
        edges=[Edge(t, h) for t, h in pairs if t >= 0 and h < len(steps)],
        done_ns=trace.done_ns,
        arrived_ns=trace.arrived_ns,
        moves=[Move(transfer.name, start, end) for transfer, start, end in moves],
        first=trace.first,
        warmup=warmup,
    )


def _replicas(
    orders: Sequence[Sequence[Job]], step: int, samples: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Replica of a step that a schedule has run each sample on."""
    found = {job.sample: job.replica for order in orders for job in order if job.step == step}
    return np.array([found[int(sample)] for sample in samples], dtype=np.int64)


class Transfer(NamedTuple):
    """A transfer of a schedule."""

    step: int
    """Step that moves the tensors."""
    number: int
    """Position among the passes."""
    name: str
    time_s: float
    """By the schedule."""
    blocking: bool
    """It occupies devices, not links alone."""
    width: int
    """Units that it occupies at once."""
    units: frozenset[int]
    """Units that it occupies for any micro-batch."""


@dataclass(frozen=True)
class Moved:
    """Times of transfers in nanoseconds, as those of a trace."""

    transfers: tuple[Transfer, ...]
    start_ns: NDArray[np.int64]
    """i64[transfers, samples], when all units of a transfer were there, and the tensors."""
    end_ns: NDArray[np.int64]
    bytes: tuple[float, ...]
    """Bytes of a sample, for each transfer."""
    emulated: bool

    @property
    def occupied_ns(self) -> NDArray[np.int64]:
        """i64[transfers], time of all units that each occupied."""
        widths = np.array([t.width for t in self.transfers], dtype=np.int64)
        return np.asarray(widths * (self.end_ns - self.start_ns).sum(axis=1))

    @property
    def blocking_ns(self) -> int:
        """Time that devices were occupied."""
        return int(self.occupied_ns[[t.blocking for t in self.transfers]].sum())


@dataclass(frozen=True)
class MovedFigures:
    """Figures of transfers."""

    transfers: tuple[Transfer, ...]
    measured_s: tuple[float, ...]
    """Median over samples."""
    bytes: tuple[float, ...]
    share: float
    """Share of the makespan that transfers occupy their units."""
    emulated: bool

    def record(self, predicted: float) -> dict[str, Any]:
        """For the record of a run; `predicted`: the share by the schedule."""
        rows = zip(self.transfers, self.measured_s, self.bytes, strict=True)
        return {
            "how": "emulated" if self.emulated else "copied",
            "share_predicted": predicted,
            "share_measured": self.share,
            "moves": [
                {"pass": t.number, "blocking": t.blocking, "bytes": size}
                | {"predicted_s": t.time_s, "measured_s": measured}
                for t, measured, size in rows
            ],
        }


def share_of(transfers: Sequence[Transfer], occupied: float, makespan: float) -> float:
    """Share of a makespan that the units that carry transfers are occupied by them."""
    units = frozenset[int]().union(*(t.units for t in transfers))
    whole = makespan * len(units)
    return min(occupied / whole, 1.0) if whole > 0 else 0.0


def figures_of(moved: Moved, makespan_ns: float) -> MovedFigures:
    """Figures of what transfers did; of at least one sample."""
    spent = np.median(moved.end_ns - moved.start_ns, axis=1) * 1e-9
    return MovedFigures(
        moved.transfers,
        tuple(spent.tolist()),
        moved.bytes,
        share_of(moved.transfers, float(moved.occupied_ns.sum()), makespan_ns),
        moved.emulated,
    )


def median_figures(rounds: Sequence[MovedFigures | None]) -> MovedFigures | None:
    """Medians over rounds of the same schedule; None: nothing moved."""
    real = [figures for figures in rounds if figures is not None]
    if not real:
        return None
    spent = np.median([figures.measured_s for figures in real], axis=0)
    share = float(np.median([figures.share for figures in real]))
    return replace(real[0], measured_s=tuple(spent.tolist()), share=share)


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
    quartile_range_per_s: float = 0.0
    """Interquartile range of the throughputs of the rounds."""
    taken: tuple[float, ...] = ()
    """Share of the time of each stage that other processes took from it: it could have run, but
    its processor ran something else. Empty: not known."""
    moved: MovedFigures | None = None
    """Figures of the transfers of a schedule; None: there were none."""

    @property
    def lost(self) -> float:
        """Share of time that other processes took from all stages together.

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
    began = trace.done_ns[warmup - 1] if warmup else start.min()
    busy = (end - start).sum(axis=1)
    window = trace.replicas * np.maximum(end.max(axis=1) - start.min(axis=1), 1)
    timing = timing_of(
        finished - start.min(axis=0),
        float(max(finished[-1] - began, 1)) * 1e-9,
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
    return replace(timing, taken=tuple(taken.tolist()))


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
    latency_ns: NDArray[Any],
    elapsed_s: float,
    loads_s: NDArray[Any],
    bubbles: NDArray[Any],
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
        loads_s=tuple(loads_s.tolist()),
        bubbles=tuple(np.clip(bubbles, 0.0, 1.0).tolist()),
        bubble=min(max(bubble, 0.0), 1.0),
    )


def median_timing(rounds: Sequence[Timing]) -> Timing:
    """Median of each figure over several rounds; rounds without samples do not count."""
    real = [t for t in rounds if t.samples] or list(rounds[:1])

    def median(name: str) -> Any:
        """Median over rounds, of a tuple entry by entry."""
        found = np.median([getattr(t, name) for t in real], axis=0).tolist()
        return tuple(found) if isinstance(found, list) else found

    samples, elapsed = sum(t.samples for t in real), median("elapsed_s")
    names = (
        "latency_p50_s",
        "latency_p99_s",
        "loads_s",
        "bubbles",
        "bubble",
        "makespan_s",
        "taken",
    )
    upper, lower = np.quantile([t.throughput_per_s for t in real], [0.75, 0.25])
    return Timing(
        samples=samples,
        throughput_per_s=samples / len(real) / elapsed if elapsed > 0 else 0.0,
        elapsed_s=elapsed,
        rounds=len(real),
        quartile_range_per_s=float(upper - lower),
        moved=median_figures([t.moved for t in real]),
        **{name: median(name) for name in names},
    )


STEADY = 0.05
"""Rates that differ by this share at most count as the same."""
STRETCH_S = 0.1
"""Duration of a stretch, unless its fewest samples take longer."""
SETTLE_S = 1.5
"""Longest wait for a steady rate, seconds."""
PATIENCE_S = 4.0
"""Total time within which disturbed measurements are repeated, seconds."""
TRIES = 3
"""Measurements at most, the repeated ones included."""

MOST_TAKEN = 0.1
"""Largest share of time lost to other processes, by any stage or copy, for a conclusive
measurement."""


@dataclass(frozen=True)
class SteadyRate:
    """Samples before the measurement."""

    samples: int = 0
    rate_per_s: float = 0.0
    """Rate of the last stretch."""
    change: float | None = None
    """By which share it differs from the rate before; None: there was only one."""


def find_steady_rate(
    stretch: Callable[[int], Timing],
    first: int,
    *,
    most: int | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> SteadyRate:
    """Send stretches of samples through until the rate is steady, or for `SETTLE_S`.

    Parameters
    ----------
    stretch
        Sends so many samples through; fewer if it was interrupted, which ends this.
    first
        Samples of the first stretch; later ones are as long as `STRETCH_S` allows.
    most
        Stretches at most.
    clock
        Seconds.
    """
    began = clock()
    count, total, number = max(first, 2), 0, 0
    before = 0.0
    while True:
        start = clock()
        timing = stretch(count)
        now = clock()
        total, number = total + timing.samples, number + 1
        rate = timing.throughput_per_s
        change = abs(rate - before) / max(rate, before) if before > 0 and rate > 0 else None
        steady = change is not None and change <= STEADY and not is_disturbed(timing)
        took = max(now - start, 1e-9)
        long_enough = took >= STRETCH_S / 2
        late = now + took > began + SETTLE_S
        if timing.samples < count or number == most or (steady and long_enough) or late:
            return SteadyRate(total, rate, change)
        before = rate
        if not long_enough:
            count = min(4 * count, math.ceil(count * STRETCH_S / took))


def count_for(rate_per_s: float, seconds: float, least: int) -> int:
    """Samples that take so many seconds at a rate, but at least so many."""
    return max(least, math.ceil(rate_per_s * seconds))


def is_disturbed(timing: Timing) -> bool:
    """True if other processes took enough to matter."""
    return timing.lost > DISTURBED


def tells_nothing(taken: float) -> str:
    """Reason to conclude nothing where others took such a share; empty: there is none."""
    if taken <= MOST_TAKEN:
        return ""
    return f"other processes or the host took {taken:.0%} of the processors, above {MOST_TAKEN:.0%}"


def worth_repeating(timing: Timing, tries: int, spent_s: float) -> bool:
    """Decide on another measurement after so many tries, which took so many seconds in all."""
    again = spent_s / max(tries, 1)
    return is_disturbed(timing) and tries < TRIES and spent_s + again <= PATIENCE_S
