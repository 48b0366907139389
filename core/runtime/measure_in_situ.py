"""Times of parts of a model, each run as a stage on a core of its own.

Units are groups of operators, or operators. Times of units alone are right among neighbours, not in
all: caches, fusions, layouts and neighbours differ. So the model is cut into parts like stages, and
these into segments; a part takes what it takes, its segments take their shares of that, and units
their shares of a segment.

Parts run in the runner's own pipeline, at the optimisation level of the run and without the
profiler. Then their segments do: those of a part in turn, on the core of the part. Rounds of both
go on until the sum of the parts is known well enough.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dnnp.core.model.errors import FormatError
from dnnp.core.model.graph import Floats
from dnnp.core.runtime.measure_operators import (
    Measurement,
    distinct_inputs,
    prepare,
    with_unique_names,
)
from dnnp.core.runtime.model.inputs import Sample
from dnnp.core.runtime.model.providers import SessionConfig, places
from dnnp.core.runtime.model.session import Values
from dnnp.core.runtime.pipeline.prepare import Pipeline, make_step
from dnnp.core.runtime.pipeline.sources import Repeated, Sink
from dnnp.core.runtime.pipeline.steps import DeviceOrders, Job, Step, route
from dnnp.core.runtime.pipeline.threads import send
from dnnp.core.runtime.report.statistics import Timing, is_disturbed, summarize
from dnnp.formats.onnx.scope import reads, writes

if TYPE_CHECKING:
    from onnx import ModelProto

    from dnnp.formats.onnx.stages import StageModel
    from dnnp.formats.onnx.value_types import TensorType

SEGMENTS = 6
"""Segments of a part, at most."""
SHORTEST_S = 4e-4
"""Shortest segment, so that the call of its session is negligible."""


@dataclass(frozen=True)
class Part:
    """A part of a model: neighbouring segments, of neighbouring units each."""

    segments: tuple[tuple[int, ...], ...]

    @property
    def units(self) -> tuple[int, ...]:
        """All of them, in order."""
        return tuple(u for segment in self.segments for u in segment)


def order_of(model: ModelProto, units: Sequence[Sequence[int]]) -> list[int]:
    """Topological order of units that ends one branch before it begins the next.

    Of units that wait for each other in a circle, which no split may have, the order means nothing.
    """
    nodes = model.graph.node
    maker = {name: i for i, unit in enumerate(units) for v in unit for name in writes(nodes[v])}
    before = [
        sorted({maker[name] for v in unit for name in reads(nodes[v]) if name in maker} - {i})
        for i, unit in enumerate(units)
    ]
    order: list[int] = []
    entered = [False] * len(units)
    for first in range(len(units)):
        todo: list[tuple[int, Iterator[int]]] = []
        if not entered[first]:
            entered[first] = True
            todo.append((first, iter(before[first])))
        while todo:
            unit, rest = todo[-1]
            following = next((u for u in rest if not entered[u]), None)
            if following is None:
                order.append(unit)
                todo.pop()
            else:
                entered[following] = True
                todo.append((following, iter(before[following])))
    return order


def slices(order: Sequence[int], weight: Floats, count: int) -> list[tuple[int, ...]]:
    """Cut an order into at most `count` pieces of about the same weight; none is empty."""
    if not order:
        return []
    ends = np.cumsum(weight[list(order)])
    middles = ends - weight[list(order)] / 2
    total = float(ends[-1])
    piece = np.minimum((middles * count / total).astype(int), count - 1) if total > 0 else 0 * ends
    cuts = [0, *(np.flatnonzero(np.diff(piece)) + 1).tolist(), len(order)]
    return [tuple(order[a:b]) for a, b in pairwise(cuts)]


def parts_of(order: Sequence[int], alone_s: Floats, count: int) -> list[Part]:
    """Cut an order of units into at most `count` parts, and these into segments."""
    parts = []
    for units in slices(order, alone_s, count):
        most = math.floor(float(alone_s[list(units)].sum()) / SHORTEST_S)
        segments = slices(units, alone_s, max(min(most, SEGMENTS), 1))
        parts.append(Part(tuple(segments)))
    return parts


def coarser_cuts(parts: Sequence[Part]) -> list[list[Part]]:
    """The parts, then cuts with fewer borders: without segments, and all in one piece."""
    plain = [Part((part.units,)) for part in parts]
    return [list(parts), plain, [Part((tuple(u for part in parts for u in part.units),))]]


def parts_of_nodes(parts: Sequence[Part], units: Sequence[Sequence[int]]) -> list[Part]:
    """Parts of units as parts of the nodes in these."""
    return [
        Part(tuple(tuple(v for u in segment for v in units[u]) for segment in part.segments))
        for part in parts
    ]


def unit_times(
    alone_s: Floats, parts: Sequence[Part], part_s: Sequence[float], segment_s: Sequence[float]
) -> Floats:
    """Times of units, whose sums are those of the parts.

    Parameters
    ----------
    alone_s
        f64[units], seconds of each unit alone.
    part_s
        Seconds of each part.
    segment_s
        Seconds of each segment, part by part.

    Returns
    -------
    ndarray
        f64[units]; of units in no part what they take alone.
    """
    times = np.array(alone_s, dtype=np.float64)
    left = iter(segment_s)
    for part, whole_s in zip(parts, part_s, strict=True):
        own = np.array([next(left) for _ in part.segments])
        for segment, share in zip(part.segments, _shares(own), strict=True):
            members = list(segment)
            times[members] = whole_s * share * _shares(times[members])
    return times


def intervals(
    count: int, parts: Sequence[Part], part: Sequence[float], segment: Sequence[float]
) -> Floats:
    """Relative half width of each unit's confidence interval, f64[count]."""
    result = np.zeros(count)
    left = iter(segment)
    for one, whole in zip(parts, part, strict=True):
        for members in one.segments:
            # A part of one segment has nothing to share out.
            own = next(left) * (len(one.segments) > 1)
            result[list(members)] = math.hypot(whole, own)
    return result


def _shares(weights: Floats) -> Floats:
    """Shares of 1 by weight; equal if all weights are 0."""
    total = float(weights.sum())
    return weights / total if total > 0 else np.full(len(weights), 1 / max(len(weights), 1))


SURE = 0.02
"""Relative half width of the 95 % confidence interval at which rounds end."""
MOST_ROUNDS = 10
"""Most rounds, as a multiple of those requested."""
PATIENCE_S = 20.0
"""No round begins later, once there are `FEWEST`."""
FEWEST = 3
"""Rounds without which no confidence interval is known."""
_ROUND_S = 0.1
"""Samples of a round take so long, unless its fewest take longer."""
_SAMPLES = 3
"""Fewest samples of a round, without its warm-up."""
_COLD_RUNS = 3
_EVICTED_BYTES = 128 * 2**20
"""Written to drive everything else out of the caches."""


@dataclass(frozen=True)
class Rounds:
    """Settings of the rounds."""

    config: SessionConfig
    least: int = 10
    warmup: int = 3
    """Samples at the beginning of each round that do not count."""
    few: bool = False
    """No more than `FEWEST` are needed."""
    progress: Callable[[int, float | None], None] = lambda done, interval: None
    """Callback with the number of rounds, and the relative half width of the sum's interval."""


@dataclass(frozen=True)
class InSitu:
    """Times of parts of a model; seconds."""

    parts: Sequence[Part]
    """Parts of units."""
    part_s: tuple[float, ...]
    segment_s: tuple[float, ...]
    """Part by part."""
    part_interval: tuple[float, ...]
    """Half the width of the confidence interval (95 %) over the time; empty: too few rounds."""
    segment_interval: tuple[float, ...]
    interval: float | None
    """The same of the sum of the parts; None: too few rounds."""
    cold_s: float
    """Sum of the parts when nothing they need is in the caches."""
    rounds: int
    taken: float | None
    """Share of the time that other processes took, of all parts together; None: not known."""

    @property
    def total_s(self) -> float:
        """Sum of the parts."""
        return math.fsum(self.part_s)

    def times(self, alone_s: Floats, units: Sequence[Sequence[int]] | None = None) -> Floats:
        """f64[n], seconds of units from those of each alone; of the nodes in `units`, if given."""
        parts = self.parts if units is None else parts_of_nodes(self.parts, units)
        return unit_times(alone_s, parts, self.part_s, self.segment_s)

    def intervals(self, count: int, units: Sequence[Sequence[int]] | None = None) -> Floats:
        """Relative half widths of their confidence intervals, f64[count]; empty: unknown."""
        if not self.part_interval:
            return np.zeros(0)
        parts = self.parts if units is None else parts_of_nodes(self.parts, units)
        return intervals(count, parts, self.part_interval, self.segment_interval)


def measure_parts(
    model: ModelProto,
    folder: Path,
    units: Sequence[Sequence[int]],
    parts: Sequence[Part],
    how: Measurement,
    rounds: Rounds,
    types: Mapping[str, TensorType] | None = None,
) -> InSitu:
    """Time parts of a model as they will run, and their segments.

    Parameters
    ----------
    units
        Node indices of each unit in execution order.
    parts
        Parts of these units, in an order in which they can run.
    types
        Types of tensors that the model does not declare.

    Raises
    ------
    FormatError
        Not even all units together are a model of their own.
    InputFileError, UnavailableError
        Weights are missing, or ONNX Runtime cannot load or run a part.
    """
    weights = prepare(model, folder, how)[1]
    cut, whole, pieces = _split(model, units, parts, types)
    spots, shared = places(len(cut), rounds.config, "part")
    outputs = tuple(value.name for value in model.graph.output)
    pipeline = Pipeline(model, folder, rounds.config, weights, [], [], [], outputs)

    def line(models: Sequence[StageModel], homes: Sequence[int], what: str) -> _TimedPipeline:
        """A pipeline of these models, each on the core with this number."""
        steps = []
        pipeline.homes = [(spots[home],) for home in homes]
        for j, (part, home) in enumerate(zip(models, homes, strict=True)):
            named = replace(part, model=with_unique_names(part.model))
            steps.append(make_step(pipeline, f"{what} {j}", named, [spots[home]]))
        devices = [[j for j, home in enumerate(homes) if home == d] for d in range(len(cut))]
        return _TimedPipeline(steps, devices, distinct_inputs(model, how), outputs, bool(shared))

    lines = [line(whole, range(len(whole)), "part")]
    if len(pieces) > len(whole):
        lines.append(
            line(pieces, [i for i, part in enumerate(cut) for _ in part.segments], "segment")
        )
    taken = _run_rounds(lines, rounds)
    interval = half_width(lines[0].sums)
    return InSitu(
        parts=cut,
        part_s=lines[0].medians,
        segment_s=lines[-1].medians,
        part_interval=() if interval is None else lines[0].intervals,
        segment_interval=() if interval is None else lines[-1].intervals,
        interval=interval,
        cold_s=_cold(lines[0]),
        rounds=len(lines[0].loads),
        taken=taken,
    )


def _split(
    model: ModelProto,
    units: Sequence[Sequence[int]],
    parts: Sequence[Part],
    types: Mapping[str, TensorType] | None,
) -> tuple[list[Part], list[StageModel], list[StageModel]]:
    """Models of parts and segments; with fewer borders where something cannot be handed over."""
    from dnnp.formats.onnx.stages import split_model

    tries = coarser_cuts(parts)
    for cut in tries:
        nodes = parts_of_nodes(cut, units)
        with nullcontext() if cut is tries[-1] else suppress(FormatError):
            whole = split_model(model, [part.units for part in nodes], types)
            pieces = split_model(model, [s for part in nodes for s in part.segments], types)
            return cut, whole, pieces
    raise FormatError("there is nothing to measure")


@dataclass
class _TimedPipeline:
    """A pipeline whose steps are timed in rounds."""

    steps: Sequence[Step]
    devices: Sequence[Sequence[int]]
    """Steps of each device, in the order in which it runs them for a sample."""
    samples: Sequence[Sample]
    outputs: Sequence[str]
    oversubscribed: bool = False
    """Parts share processors: a wait for one is no sign of other processes."""
    count: int = _SAMPLES
    """Samples of a round that count."""
    loads: list[tuple[float, ...]] = field(default_factory=list)
    """Seconds of a sample in each step; one entry a round."""

    @property
    def medians(self) -> tuple[float, ...]:
        """Median time of each step over the rounds, seconds."""
        return tuple(np.median(self.loads, axis=0).tolist())

    @property
    def intervals(self) -> tuple[float, ...]:
        """Relative half widths of the confidence intervals; 0 where they are not known."""
        return tuple(half_width(list(x)) or 0.0 for x in zip(*self.loads, strict=True))

    @property
    def sums(self) -> list[float]:
        """All steps together, in each round; seconds."""
        return [math.fsum(loads) for loads in self.loads]

    def send(self, count: int, warmup: int) -> Timing:
        """Send samples through."""
        total = count + warmup
        jobs = [[Job(step, 0, s) for s in range(total) for step in steps] for steps in self.devices]
        # A sample fits on every device between, so that skip connections hold up no device.
        most = 2 + len(self.devices)
        capacities = {(e.tail, e.head): most for e in route(self.steps, self.outputs)}
        orders = DeviceOrders(jobs, capacities)
        source = Repeated(self.samples, total)
        trace = send(self.steps, source, Sink(), self.outputs, orders=orders)
        timing = summarize(trace, warmup)
        return replace(timing, taken=()) if self.oversubscribed else timing

    def find_steady_rate(self, warmup: int) -> None:
        """Send the first samples through, and find out how many make a round."""
        load = max(self.send(_SAMPLES, max(warmup, 1)).loads_s)
        self.count = max(_SAMPLES, math.ceil(_ROUND_S / max(load, 1e-9) / len(self.steps)))


def _run_rounds(lines: Sequence[_TimedPipeline], rounds: Rounds) -> float | None:
    """Make rounds until the sum of the parts is known; keep the least disturbed ones.

    Returns the share of their time that other processes took.
    """
    for line in lines:
        line.find_steady_rate(rounds.warmup)
    timings: list[Timing] = []
    begin = time.perf_counter()
    while _goes_on(lines[0].sums, timings, rounds, time.perf_counter() - begin):
        for line in lines:
            timing = line.send(line.count, rounds.warmup)
            line.loads.append(timing.loads_s)
            if line is lines[0]:
                timings.append(timing)
        rounds.progress(len(timings), half_width(lines[0].sums))
    quiet = [i for i, timing in enumerate(timings) if not is_disturbed(timing)]
    if len(quiet) >= min(rounds.least, FEWEST):
        timings = [timings[i] for i in quiet]
        for line in lines:
            line.loads = [line.loads[i] for i in quiet]
    if not timings[0].taken:
        return None
    return min(float(np.mean([timing.lost for timing in timings])), 1.0)


def _goes_on(
    sums: Sequence[float], timings: Sequence[Timing], rounds: Rounds, spent_s: float
) -> bool:
    """Decide on another round."""
    done = len(sums)
    if done < min(rounds.least, FEWEST):
        return True
    if rounds.few or spent_s > PATIENCE_S or done >= MOST_ROUNDS * rounds.least:
        return False
    quiet = sum(not is_disturbed(timing) for timing in timings)
    interval = half_width(sums)
    return quiet < rounds.least or interval is None or interval > SURE


def half_width(values: Sequence[float]) -> float | None:
    """Half the width of the confidence interval (95 %) of the median, over the median.

    By the median absolute deviation, as single values may be far off; None for fewer than
    `FEWEST`.

    >>> half_width([1.0, 1.0, 1.0])
    0.0
    """
    if len(values) < FEWEST:
        return None
    middle = float(np.median(values))
    deviation = 1.4826 * float(np.median(np.abs(np.array(values) - middle)))
    return 1.96 * 1.2533 * deviation / math.sqrt(len(values)) / middle if middle > 0 else None


def _cold(line: _TimedPipeline) -> float:
    """Sum of what the steps take right after something else has used all caches."""
    other = np.zeros(_EVICTED_BYTES // 8)
    values: Values = dict(line.samples[0])
    total = 0.0
    for step in line.steps:
        feeds, took = {name: values[name] for name in step.inputs}, []
        for _ in range(_COLD_RUNS):
            other += 1.0
            begin = time.perf_counter()
            made = step.workers[0].run(feeds)
            took.append(time.perf_counter() - begin)
        values.update(made)
        total += float(np.median(took))
    return total
