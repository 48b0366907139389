"""What happened in a run: when each stage had which sample, what moved, and the timeline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dnnp.core.model.plan import Stage
from dnnp.core.runtime.routes import route
from dnnp.core.runtime.steps import Job, Step
from dnnp.core.runtime.values import Values
from dnnp.formats.trace_events import Edge, Move, Timeline, Work


@dataclass(frozen=True)
class Trace:
    """What happened: times in nanoseconds of `time.perf_counter_ns`."""

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
    """i64[stages, samples], how long the thread of a stage could have run since the last entry
    above 0, but its processor ran something else; with the last sample also how long the
    processor itself had to wait for its host. None: the system does not tell."""
    own_share: float = 0.0
    """Processor time of the thread that watches the others, over the time of the run."""
    first: int = 0
    """The sample that the first column is of; those before it went through, too."""

    arrived_ns: NDArray[np.int64] | None = None
    """i64[samples], when each sample arrived, and may have waited; None: as there was room."""
    moved: Moved | None = None
    """What the transfers of a schedule did; None: there were none."""

    @property
    def done(self) -> int:
        """Samples that went through."""
        return self.first + len(self.done_ns)

    def before(self, count: int) -> Trace:
        """The first `count` samples, as those of a run that was interrupted then."""
        kept = {s: values for s, values in self.outputs.items() if s < count}
        start, end, done = self.start_ns[:, :count], self.end_ns[:, :count], self.done_ns[:count]
        waited = None if self.waited_ns is None else self.waited_ns[:, :count]
        moved = None if self.moved is None else self.moved.before(count)
        return Trace(
            start, end, done, self.replicas, kept, True, waited, self.own_share, moved=moved
        )


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
    samples = np.arange(trace.first, trace.done)
    shared = Counter(stage.device for stage in stages)
    numbers: dict[str, int] = {}
    works = []
    for i, (step, stage) in enumerate(zip(steps, stages, strict=True)):
        names = [_device(stage, j) for j in range(stage.replicas)]
        if orders is None and shared[stage.device] > 1:
            names = [f"{name}, {step.name}" for name in names]
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


def _device(stage: Stage, replica: int) -> str:
    """The device of a replica."""
    kind, _, number = stage.device.rpartition("/")
    if not number.isdecimal():
        return stage.device if stage.replicas == 1 else f"{stage.device}, replica {replica}"
    return f"{kind}/{int(number) + replica * stage.apart}"


def _replicas(
    orders: Sequence[Sequence[Job]], step: int, samples: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Which replica of a step a schedule has run each sample on."""
    found = {job.sample: job.replica for order in orders for job in order if job.step == step}
    return np.array([found[int(sample)] for sample in samples], dtype=np.int64)


COPIED, EMULATED = "copied", "emulated"
"""How tensors moved: they were copied, or links were emulated."""


class Transfer(NamedTuple):
    """A transfer of a schedule."""

    step: int
    """What moves the tensors."""
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
    """What the transfers did: times in nanoseconds, as those of a trace."""

    transfers: tuple[Transfer, ...]
    start_ns: NDArray[np.int64]
    """i64[transfers, samples], when all units of a transfer were there, and the tensors."""
    end_ns: NDArray[np.int64]
    bytes: tuple[float, ...]
    """Of a sample, for each transfer."""
    emulated: bool

    def before(self, count: int) -> Moved:
        """What they did for the first `count` samples."""
        return replace(self, start_ns=self.start_ns[:, :count], end_ns=self.end_ns[:, :count])

    @property
    def occupied_ns(self) -> NDArray[np.int64]:
        """i64[transfers], time of all units that each occupied."""
        widths = np.array([t.width for t in self.transfers], dtype=np.int64)
        occupied: NDArray[np.int64] = widths * (self.end_ns - self.start_ns).sum(axis=1)
        return occupied

    @property
    def blocking_ns(self) -> int:
        """Time that devices were occupied."""
        blocking = [t.blocking for t in self.transfers]
        return int(self.occupied_ns[blocking].sum())


@dataclass(frozen=True)
class MovedFigures:
    """Figures of transfers."""

    transfers: tuple[Transfer, ...]
    measured_s: tuple[float, ...]
    """Median over samples."""
    bytes: tuple[float, ...]
    share: float
    """Of the time of the units that they run on, over the makespan."""
    emulated: bool

    def record(self, predicted: float) -> dict[str, Any]:
        """For the record of a run; `predicted`: the share by the schedule."""
        rows = zip(self.transfers, self.measured_s, self.bytes, strict=True)
        return {
            "how": EMULATED if self.emulated else COPIED,
            "share_predicted": predicted,
            "share_measured": self.share,
            "moves": [
                {
                    "pass": t.number,
                    "blocking": t.blocking,
                    "bytes": size,
                    "predicted_s": t.time_s,
                    "measured_s": measured,
                }
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
        tuple(float(x) for x in spent),
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
    return replace(
        real[0],
        measured_s=tuple(float(x) for x in spent),
        share=float(np.median([figures.share for figures in real])),
    )
