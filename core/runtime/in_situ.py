"""What parts of a model take as they will run: warm, pinned to cores, beside others that are busy.

Parts are sessions like the stages of a run, at its optimisation level, without the profiler. While
one is timed, copies of the whole model keep other cores busy, in threads like the runner's. Rounds
over all parts go on until their sum is known well enough.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from threading import Event
from typing import TYPE_CHECKING, Any

import numpy as np

from dnnp.core.model.errors import DnnpError, FormatError
from dnnp.core.runtime.limits import making_session
from dnnp.core.runtime.measure import Measurement, prepare
from dnnp.core.runtime.pipeline import Worker
from dnnp.core.runtime.segments import Floats, Part, carried, coarser, expanded, spreads
from dnnp.core.runtime.session import Place, SessionConfig, make_session, places
from dnnp.core.runtime.stages import make_stage
from dnnp.core.runtime.values import Values
from dnnp.core.runtime.waits import DISTURBED, StealClock, WaitClock, with_threads
from dnnp.core.runtime.weights import use_weights

if TYPE_CHECKING:
    from pathlib import Path

    from onnx import ModelProto

    from dnnp.formats.onnx_stages import StageModel
    from dnnp.formats.onnx_types import TensorType

SURE = 0.02
"""Rounds go on until the sum is known to this share, with a confidence of 95 %."""
MOST_ROUNDS = 10
"""Times as many rounds as are asked for are made at most."""
PATIENCE_S = 20.0
"""No round begins later, once there are as many as are asked for."""
_BATCH_S = 0.01
"""A session runs several times in a row where it takes less."""
_BATCH = 50
"""Times at most."""
_COLD_RUNS = 3
_EVICTED_BYTES = 128 * 2**20
"""Written to drive everything else out of the caches."""


@dataclass(frozen=True)
class Rounds:
    """Of which the rounds consist, and when they end."""

    config: SessionConfig
    beside: int = 0
    """Copies of the model that run on other cores meanwhile."""
    least: int = 10
    warmup: int = 3
    """Runs of each part before the first round."""
    progress: Callable[[int, float | None], None] = lambda done, spread: None
    """Told the number of rounds done, and how well the sum is known."""


@dataclass(frozen=True)
class InSitu:
    """What parts of a model take; seconds."""

    parts: Sequence[Part]
    """Of units."""
    part_s: tuple[float, ...]
    segment_s: tuple[float, ...]
    """Part by part."""
    part_spread: tuple[float, ...]
    """Half the width of the confidence interval (95 %) over the time; empty: too few rounds."""
    segment_spread: tuple[float, ...]
    spread: float | None
    """The same of the sum of the parts; None: too few rounds."""
    cold_s: float
    """Sum of the parts when nothing they need is in the caches."""
    rounds: int
    taken: float
    """Share of the time that other processes took."""

    @property
    def total_s(self) -> float:
        """Sum of the parts."""
        return math.fsum(self.part_s)

    def times(self, alone_s: Floats, units: Sequence[Sequence[int]] | None = None) -> Floats:
        """f64[n], seconds of units from those of each alone; of the nodes in `units`, if given."""
        parts = self.parts if units is None else expanded(self.parts, units)
        return carried(alone_s, parts, self.part_s, self.segment_s)

    def spreads(self, count: int, units: Sequence[Sequence[int]] | None = None) -> Floats:
        """f64[count], relative spread of these times; empty where it is not known."""
        if not self.part_spread:
            return np.zeros(0)
        parts = self.parts if units is None else expanded(self.parts, units)
        return spreads(count, parts, self.part_spread, self.segment_spread)


@dataclass
class _Timed:
    """One session that is timed."""

    worker: Worker
    feeds: Values
    runs: int = 1
    seconds: list[float] = field(default_factory=list)
    """One entry a round."""

    @property
    def median(self) -> float:
        """Of the rounds; seconds."""
        return float(np.median(self.seconds))

    def run(self) -> float:
        """Run once; seconds."""
        begin = time.perf_counter_ns()
        self.worker.run(self.feeds)
        return (time.perf_counter_ns() - begin) * 1e-9

    def warm(self, runs: int) -> None:
        """Run a few times, and find out how many runs make a batch."""
        took = [self.run() for _ in range(max(runs, 1))]
        self.runs = min(max(math.ceil(_BATCH_S / max(took[-1], 1e-9)), 1), _BATCH)

    def batch(self) -> tuple[float, float]:
        """Run several times after one that does not count; seconds of all, and waited."""
        self.worker.run(self.feeds)
        waits = WaitClock(self.worker.threads)
        walls = [self.run() for _ in range(self.runs)]
        waited, spent = waits.passed_ns(self.worker.threads) * 1e-9, math.fsum(walls)
        # What the system counts as waiting is no part of what the session takes.
        self.seconds.append(min(float(np.median(walls)), max(spent - waited, 0.0) / len(walls)))
        return spent, waited


def measure_parts(
    model: ModelProto,
    folder: Path,
    units: Sequence[Sequence[int]],
    parts: Sequence[Part],
    how: Measurement,
    rounds: Rounds,
    types: Mapping[str, TensorType] | None = None,
) -> InSitu:
    """Time parts of a model as they will run, and the segments that these consist of.

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
    from dnnp.formats.onnx_stages import split_model

    feeds, weights = prepare(model, folder, how)
    cut, whole, pieces = _split(model, units, parts, types)
    spots, _ = places(1 + rounds.beside, rounds.config, "copy")

    def worker(part: ModelProto, outputs: Sequence[str], place: Place, name: str) -> Worker:
        built = use_weights(part, weights) if weights else part
        with making_session(name):
            session, threads = with_threads(
                lambda: make_session(built, folder, rounds.config, place, weights)
            )
        stage = make_stage(session, outputs, outputs, rounds.config, place)
        return Worker(name, stage, place.cores, stage.stop, threads)

    def chain(models: Sequence[StageModel], what: str) -> list[_Timed]:
        values, timed = dict(feeds), []
        for i, part in enumerate(models):
            ready = worker(part.model, part.outputs, spots[0], f"{what} {i}")
            timed.append(_Timed(ready, {name: values[name] for name in part.inputs}))
            values.update(ready.run(timed[-1].feeds))
        return timed

    outputs = [value.name for value in model.graph.output]
    copies = [worker(model, outputs, p, f"copy {i}") for i, p in enumerate(spots[1:])]
    timed = chain(whole, "part")
    segments = chain(pieces, "segment") if len(pieces) > len(whole) else []
    with _busy(copies, dict(feeds)) as check, _pinned(timed[0].worker):
        for one in (*timed, *segments):
            one.warm(rounds.warmup)
        taken = _run_rounds(timed, segments, rounds, check)
        cold_s = _cold(timed)
    segments = segments or timed
    spread = half_width(_sums(timed))
    return InSitu(
        cut,
        tuple(one.median for one in timed),
        tuple(one.median for one in segments),
        () if spread is None else tuple(half_width(one.seconds) or 0.0 for one in timed),
        () if spread is None else tuple(half_width(one.seconds) or 0.0 for one in segments),
        spread,
        cold_s,
        len(timed[0].seconds),
        taken,
    )


def _split(
    model: ModelProto,
    units: Sequence[Sequence[int]],
    parts: Sequence[Part],
    types: Mapping[str, TensorType] | None,
) -> tuple[list[Part], list[StageModel], list[StageModel]]:
    """Models of parts and segments; with fewer borders where one cannot be handed over."""
    from dnnp.formats.onnx_stages import split_model

    tries = coarser(parts)
    for cut in tries:
        nodes = expanded(cut, units)
        with nullcontext() if cut is tries[-1] else suppress(FormatError):
            whole = split_model(model, [part.units for part in nodes], types)
            pieces = split_model(model, [s for part in nodes for s in part.segments], types)
            return cut, whole, pieces
    raise FormatError("there is nothing to measure")


def _run_rounds(
    whole: Sequence[_Timed], pieces: Sequence[_Timed], how: Rounds, check: Callable[[], None]
) -> float:
    """Make rounds until the sum of the parts is known; keep the least disturbed ones.

    Returns the share of their time that other processes took.
    """
    shares: list[float] = []
    steals, begin = StealClock(), time.perf_counter()
    while _goes_on(_sums(whole), shares, how.least, time.perf_counter() - begin):
        spent = waited = 0.0
        for one in (*whole, *pieces):
            wall, lost = one.batch()
            spent, waited = spent + wall, waited + lost
        check()
        shares.append(min(waited / max(spent, 1e-9), 1.0))
        how.progress(len(shares), half_width(_sums(whole)))
    elapsed = time.perf_counter() - begin
    stolen = steals.passed_ns(whole[0].worker.cores[:1]) * 1e-9 / max(elapsed, 1e-9)
    quiet = [i for i, share in enumerate(shares) if share <= DISTURBED]
    if len(quiet) >= how.least:
        for one in (*whole, *pieces):
            one.seconds = [one.seconds[i] for i in quiet]
        shares = [shares[i] for i in quiet]
    return min(float(np.mean(shares)) + stolen, 1.0)


def _goes_on(sums: Sequence[float], shares: Sequence[float], least: int, spent_s: float) -> bool:
    """Whether to make another round."""
    if len(sums) < least:
        return True
    if len(sums) >= MOST_ROUNDS * least or spent_s > PATIENCE_S:
        return False
    quiet = sum(share <= DISTURBED for share in shares)
    spread = half_width(sums)
    return quiet < least or spread is None or spread > SURE


def _sums(parts: Sequence[_Timed]) -> list[float]:
    """What all parts together took in each round."""
    return [math.fsum(row) for row in zip(*(part.seconds for part in parts), strict=True)]


def half_width(values: Sequence[float]) -> float | None:
    """Half the width of the confidence interval (95 %) of the median, over the median.

    By the median absolute deviation, as single values may be far off; None of fewer than three.

    >>> half_width([1.0, 1.0, 1.0])
    0.0
    """
    if len(values) < 3:  # noqa: PLR2004
        return None
    middle = float(np.median(values))
    deviation = 1.4826 * float(np.median(np.abs(np.array(values) - middle)))
    return 1.96 * 1.2533 * deviation / math.sqrt(len(values)) / middle if middle > 0 else None


def _cold(parts: Sequence[_Timed]) -> float:
    """Sum of what the parts take right after something else has used all caches."""
    other = np.zeros(_EVICTED_BYTES // 8)
    total = 0.0
    for part in parts:
        took = []
        for _ in range(_COLD_RUNS):
            other += 1.0
            took.append(part.run())
        total += float(np.median(took))
    return total


@contextmanager
def _busy(copies: Sequence[Worker], feeds: Values) -> Iterator[Callable[[], None]]:
    """Inside, these run all the time; what is yielded raises what one of them has raised."""
    stop = Event()
    failed: list[DnnpError] = []
    ready = [Event() for _ in copies]

    def work(worker: Worker, begun: Event) -> None:
        worker.pin()
        try:
            while not stop.is_set():
                worker.run(feeds)
                begun.set()
        except DnnpError as error:
            if not stop.is_set():
                failed.append(error)
            begun.set()

    def check() -> None:
        if failed:
            raise failed[0]

    with ThreadPoolExecutor(max(len(copies), 1), thread_name_prefix="copy") as pool:
        try:
            for worker, begun in zip(copies, ready, strict=True):
                pool.submit(work, worker, begun)
            for begun in ready:
                begun.wait()
            check()
            yield check
        finally:
            stop.set()
            for worker in copies:
                if worker.stop is not None:
                    worker.stop()


@contextmanager
def _pinned(worker: Worker) -> Iterator[None]:
    """Inside, the calling thread runs where the worker's would."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    worker.pin()
    try:
        yield
    finally:
        with suppress(OSError):
            os.sched_setaffinity(0, before)
