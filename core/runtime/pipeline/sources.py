"""Samples of a run: lists, arrivals and files that go in, outputs that are kept or written.

Files go through once each: one thread reads ahead of the pipeline, and a few write after it. Files
whose outputs are there are passed over, so that a run that was broken off goes on where it was.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from threading import BoundedSemaphore, Condition, Lock
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dnnp.core.model.errors import DnnpError, InputFileError
from dnnp.core.model.plan import Stage
from dnnp.core.runtime.model.inputs import Sample
from dnnp.core.runtime.model.session import Values, to_numpy
from dnnp.formats.files import replacement
from dnnp.formats.tensors import write_outputs

if TYPE_CHECKING:
    from dnnp.core.runtime.pipeline.schedule_orders import Program

Clock = Callable[[], int]
"""Nanoseconds, as `time.perf_counter_ns`."""


POISSON, UNIFORM = "poisson", "uniform"
"""Arrival processes: at random, or at equal distances."""


@dataclass(frozen=True)
class Arrivals:
    """Arrival times that do not wait for samples before them (an open loop)."""

    process: str
    """`poisson` or `uniform`. Poisson: gaps are exponential, and independent of each other."""
    rate_per_s: float
    seed: int = 0
    """Seed of the gaps."""

    def times_ns(self, count: int) -> NDArray[np.int64]:
        """i64[count], when each sample arrives, from the begin of the run; the first one at once.

        More samples begin with the same times.
        """
        if self.process == UNIFORM:
            times = np.arange(count) / self.rate_per_s
        else:
            # Words of a generator stay the same in all versions of numpy; its distributions do not.
            words = np.random.PCG64(self.seed).random_raw(max(count - 1, 0)) >> np.uint64(11)
            gaps = -np.log1p(words * -(2.0**-53))
            times = np.concatenate([[0.0], np.cumsum(gaps) / self.rate_per_s])[:count]
        return np.asarray(np.round(times * 1e9), dtype=np.int64)

    def within(self, seconds: float) -> int:
        """Samples that arrive in so much time; one at least."""
        count = max(int(2 * self.rate_per_s * seconds), 16)
        while (times := self.times_ns(count))[-1] < seconds * 1e9:
            count *= 2
        return max(int(np.searchsorted(times, seconds * 1e9)), 1)


class Source:
    """Gives samples by number, to any thread and in any order; this one has none.

    Each stage that reads a sample may request it, until it is `done`.
    """

    count: int | None = 0
    """Number of samples; None: not known yet."""

    def begin(self, now_ns: int) -> None:
        """Start: the run begins."""

    def wait_s(self, number: int) -> float:
        """Seconds until a sample arrives; 0 or less: it has arrived."""
        return 0.0

    def sample(self, number: int) -> Mapping[str, Any] | None:
        """The inputs of a sample, waiting for them; None: there are no more, `count` is known."""
        return None

    def arrived_ns(self, first: int, done: int) -> NDArray[np.int64] | None:
        """i64[done - first], when samples arrived, by the clock; None: when they entered."""
        return None

    def done(self, number: int) -> None:
        """Drop a sample that is no longer needed."""

    def close(self) -> None:
        """Wake waiting threads at the end of a run."""


class Repeated(Source):
    """Takes the samples of a list in turn.

    Parameters
    ----------
    samples
        Sample s is `samples[s % len(samples)]`.
    count
        How many there are; None: as many as set out in `seconds`.
    seconds
        No sample sets out later than this after the begin.
    arrivals_ns
        i64[count], when each one arrives, counted from the begin; None: all arrive at once.
    clock
        For tests.
    """

    def __init__(
        self,
        samples: Sequence[Mapping[str, Any]],
        count: int | None,
        *,
        seconds: float | None = None,
        arrivals_ns: NDArray[np.int64] | None = None,
        clock: Clock = time.perf_counter_ns,
    ) -> None:
        self.count = count
        self._samples, self._arrivals_ns, self._clock = samples, arrivals_ns, clock
        self._seconds = seconds
        self._began_ns = 0
        self._first = 0
        """First sample that was not requested, nor any after it."""
        self._lock = Lock()

    def begin(self, now_ns: int) -> None:
        self._began_ns = now_ns

    def wait_s(self, number: int) -> float:
        if self._arrivals_ns is None or number >= len(self._arrivals_ns):
            return 0.0
        due_ns = self._began_ns + int(self._arrivals_ns[number])
        return (due_ns - self._clock()) * 1e-9

    def arrived_ns(self, first: int, done: int) -> NDArray[np.int64] | None:
        if self._arrivals_ns is None:
            return None
        return self._arrivals_ns[first:done] + self._began_ns

    def sample(self, number: int) -> Mapping[str, Any] | None:
        if self.count is None and self._seconds is not None:
            with self._lock:
                late = self._clock() > self._began_ns + self._seconds * 1e9
                # What one stage has begun the others must have too.
                if late and self.count is None and number >= self._first:
                    self.count = self._first
                self._first = max(self._first, number + 1)
        if self.count is not None and number >= self.count:
            return None
        return self._samples[number % len(self._samples)]


class Sink:
    """Takes the outputs of samples, from any thread and in any order; this one wants none."""

    def wants(self, sample: int) -> bool:
        """True if the outputs of a sample are of use."""
        return False

    def put(self, sample: int, values: Values) -> None:
        """Take all outputs of a sample; waits while the channel is full."""

    def failed(self, sample: int, error: DnnpError) -> bool:
        """Note that a stage fails on a sample; returns whether the others shall go on."""
        return False

    def outputs(self, done: int) -> dict[int, Values]:
        """Outputs in memory of the first `done` samples, by sample."""
        return {}

    def close(self) -> None:
        """Finish what was taken; the run is over."""


class Kept(Sink):
    """Keeps outputs in memory."""

    def __init__(
        self, keep: Callable[[int], bool], convert: Callable[[Any], Any] = lambda value: value
    ) -> None:
        """Keep outputs of the samples that `keep` names; each value is converted in the end."""
        self._keep, self._convert = keep, convert
        self._values: dict[int, Values] = {}

    def wants(self, sample: int) -> bool:
        return self._keep(sample)

    def put(self, sample: int, values: Values) -> None:
        self._values[sample] = values

    def outputs(self, done: int) -> dict[int, Values]:
        return {
            sample: {name: self._convert(value) for name, value in values.items()}
            for sample, values in sorted(self._values.items())
            if sample < done
        }


AHEAD = 2
"""Samples read in advance."""
WRITERS = 2
"""Threads that write; what they wait for is mostly the disk."""
BEHIND = 4
"""Samples whose outputs may wait to be written."""


class Item(NamedTuple):
    """One file, or folder, to send through."""

    path: str
    target: str | None
    """File for its outputs; None: none."""


@dataclass
class Tally:
    """Files by their outcome."""

    written: int = 0
    """Files that went through, with outputs written if requested."""
    skipped: int = 0
    """Their outputs were there."""
    failed: int = 0
    """Cannot be read, are not what the model takes, or made a stage fail."""


class FileRun:
    """The files of a run: their source, their sink, and their outcome.

    Parameters
    ----------
    items
        The files, in their order; iterated by the thread that reads.
    read
        Reads and checks one; raises `DnnpError`.
    most
        Files to send through at most; None: all.
    keep_going
        Callback for a file that fails, if the others shall go on; None: the run ends there.
    unique
        No two items have the same target; else that is found out on the way.
    """

    def __init__(
        self,
        items: Iterator[Item],
        read: Callable[[str], Sample],
        *,
        most: int | None = None,
        keep_going: Callable[[str], None] | None = None,
        unique: bool = True,
    ) -> None:
        self._items, self.read, self._most = items, read, most
        self._keep_going, self._unique = keep_going, unique
        self._began_ns = time.time_ns()
        self._ready: list[tuple[Item, Sample]] = []
        """Read before the run begins."""
        self._lock = Lock()
        self.found = 0
        """Number of files; 0: unknown."""
        self.tally = Tally()
        self.error: DnnpError | None = None
        """Error that ended the run early."""
        self.items: dict[int, Item] = {}
        """Files of the samples in the pipeline."""
        self.went: list[Item] | None = None
        """Files that went through; None: not recorded."""
        self.source = FileSource(self)
        self.sink = FileSink(self)

    @property
    def expected(self) -> int:
        """Files that go through, as far as that is known by now; 0: it is not."""
        left = max(self.found - self.tally.skipped - self.tally.failed, 0)
        return left if self._most is None else min(left, self._most)

    def first(self) -> Sample | None:
        """The first sample, which stays the first; None: there is none to send through."""
        if not self._ready:
            self._ready += [found for found in [self._next()] if found is not None]
        return self._ready[0][1] if self._ready else None

    def take(self, number: int) -> Sample | None:
        """Read the next file: it is sample `number`; None: there are no more."""
        found = self._ready.pop() if self._ready else None
        if found is None and number != self._most:
            found = self._next()
        if found is None:
            return None
        self.items[number] = found[0]
        return found[1]

    def _next(self) -> tuple[Item, Sample] | None:
        try:
            for item in self._items:
                if item.target is not None and self._is_there(item):
                    self.tally.skipped += 1
                    continue
                try:
                    return item, self.read(item.path)
                except DnnpError as error:
                    if not self.fails(error):
                        break
        except DnnpError as error:  # names that cannot be had
            self.error = self.error or error
        return None

    def _is_there(self, item: Item) -> bool:
        """True if there are outputs of a file from before this run."""
        target = item.target or ""
        if self._unique:
            return os.path.lexists(target)
        made = any(other.target == target for other in list(self.items.values()))
        with suppress(OSError):
            if not made and os.lstat(target).st_mtime_ns <= self._began_ns:
                return True
            made = True
        if made:
            raise InputFileError(f"{item.path}: another input has the same output, {target}")
        return False

    def through(self, number: int) -> None:
        """Note that a sample is all done."""
        with self._lock:
            self.tally.written += 1
            item = self.items.pop(number)
            if self.went is not None:
                self.went.append(item)

    def record(self) -> dict[str, int]:
        """Fields of the run record."""
        return asdict(self.tally)

    def line(self) -> str:
        """The same for people."""
        tally = self.tally
        text = f"files       {tally.written} went through"
        if tally.skipped:
            text += f", {tally.skipped} were done before"
        return text + (f", {tally.failed} failed" if tally.failed else "")

    def fails(self, error: DnnpError) -> bool:
        """Note that a file fails; whether the others go on."""
        with self._lock:
            self.tally.failed += 1
        if self._keep_going is not None:
            self._keep_going(str(error))
            return True
        self.error = self.error or InputFileError(str(error))
        return False


class FileSource(Source):
    """Reads files in a thread of its own, a few in advance."""

    def __init__(self, files: FileRun) -> None:
        self.count = None
        self._files = files
        self._changed = Condition()
        self._samples: dict[int, Sample] = {}
        self._number = 0
        """Samples that were read."""
        self._asked = -1
        """Last requested sample."""
        self._broken: BaseException | None = None
        self._closed = False

    def begin(self, now_ns: int) -> None:
        pool = ThreadPoolExecutor(1, thread_name_prefix="reader")
        pool.submit(self._work).add_done_callback(self._ended)
        # A thread that waits for a slow disk, or for names, cannot be woken, so it is not joined.
        pool.shutdown(wait=False)

    def _work(self) -> None:
        while True:
            with self._changed:
                while self._number > self._asked + AHEAD and not self._closed:
                    self._changed.wait()
                if self._closed:
                    return
            sample = self._files.take(self._number)
            with self._changed:
                if self.count is None and sample is None:
                    self.count = self._number
                self._changed.notify_all()
                if self.count is not None or sample is None:
                    return
                self._samples[self._number] = sample
                self._number += 1

    def _ended(self, future: Future[None]) -> None:
        with self._changed:
            self._broken = future.exception()
            self._changed.notify_all()

    def sample(self, number: int) -> Mapping[str, Any] | None:
        with self._changed:
            if self.count is None and number > self._asked:
                self._asked = number
                self._changed.notify_all()
            while number not in self._samples:
                if self._broken is not None:
                    raise self._broken
                if self._closed or (self.count is not None and number >= self.count):
                    return None
                self._changed.wait()
            return self._samples[number]

    def stop(self) -> None:
        """End after the samples that were requested and read."""
        with self._changed:
            if self.count is None:
                self.count = min(self._asked + 1, self._number)
            self._changed.notify_all()

    def done(self, number: int) -> None:
        with self._changed:
            self._samples.pop(number, None)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class FileSink(Sink):
    """Writes the outputs of each sample to a file of its own, in a few threads."""

    def __init__(self, files: FileRun) -> None:
        self._files = files
        self._pool = ThreadPoolExecutor(WRITERS, thread_name_prefix="writer")
        self._room = BoundedSemaphore(BEHIND)
        self._failed: list[BaseException] = []

    def wants(self, sample: int) -> bool:
        return True

    def put(self, sample: int, values: Values) -> None:
        self._room.acquire()
        if self._failed:
            self._room.release()
            raise self._failed[0]
        self._pool.submit(self._write, sample, values).add_done_callback(self._written)

    def _write(self, sample: int, values: Values) -> None:
        item = self._files.items[sample]
        if item.target is not None:
            outputs = {name: to_numpy(value) for name, value in values.items()}
            try:
                with replacement(item.target) as file:
                    write_outputs(file, {0: outputs})
            except OSError as error:
                raise InputFileError(f"{item.target}: {error.strerror or error}") from None
        self._files.through(sample)

    def _written(self, future: Future[None]) -> None:
        error = future.exception()
        if error is not None:
            self._failed.append(error)
        self._room.release()

    def failed(self, sample: int, error: DnnpError) -> bool:
        self._files.items.pop(sample, None)
        if not self._files.fails(error):
            self._files.source.stop()
        return True

    def close(self) -> None:
        self._pool.shutdown()
        if self._failed:
            raise self._failed[0]


@dataclass(frozen=True)
class Traffic:
    """Samples to send through a pipeline, and limits on the way."""

    samples: Sequence[Sample]
    """Distinct inputs; of files the first one, for the warm-up."""
    count: int
    """Samples to measure; they take the inputs in turn."""
    warmup: int = 3
    """Samples before them, for each replica of a stage."""
    queue: int = 2
    """Samples that may wait between neighbouring stages."""
    window: int | None = None
    """Samples that may be in the pipeline at once; None: as many as its channels hold."""
    program: Program | None = None
    """Jobs of each device; its samples are the `count` to measure, and the warm-up goes before
    them. None: samples in order of arrival."""
    until_steady: bool = False
    """Send other samples through before the warm-up, until the rate is steady; repeat what other
    processes disturb."""
    emulate: bool = False
    """Transfers of the program take as long as it says; else they copy."""
    least_s: float = 0.0
    """Measure more samples than `count` if they would be through in less time, seconds."""
    seconds: float | None = None
    """Measure what sets out in so much time, in place of `count`."""
    arrivals: Arrivals | None = None
    """Arrival times; None: a sample arrives as soon as the pipeline can take it."""
    files: FileRun | None = None
    """Files to send through once each, in place of `count` of `samples`."""

    @property
    def apart(self) -> bool:
        """True if the warm-up goes through on its own, before the measured samples."""
        return (self.program, self.seconds, self.arrivals, self.files) != (None,) * 4

    @property
    def expected(self) -> int:
        """Samples to measure, as far as that is known before; 0: it is not."""
        if self.files is not None:
            return self.files.expected
        return self.count if self.seconds is None else 0

    def source(self, count: int) -> Source:
        """Source of `count` samples, or of the files or duration in their place."""
        if self.files is not None:
            return self.files.source
        arrivals_ns = None if self.arrivals is None else self.arrivals.times_ns(count)
        many = None if self.seconds is not None else count
        return Repeated(self.samples, many, seconds=self.seconds, arrivals_ns=arrivals_ns)

    def sink(self, keep: Callable[[int], bool]) -> Sink:
        """Sink for their outputs; those that `keep` names stay in memory."""
        return Kept(keep, to_numpy) if self.files is None else self.files.sink


def widest(stages: Sequence[Stage]) -> int:
    """Replicas of the stage that has most."""
    return max((stage.replicas for stage in stages), default=1)


@dataclass
class RunCallbacks:
    """Callbacks of a run."""

    note: Callable[[str], None] = lambda message: None
    detail: Callable[[str], None] = lambda message: None
    interrupted: Callable[[], bool] = lambda: False
    progress: Callable[[int, int], None] = lambda done, total: None
    """Callback with completed and total samples; total 0: unknown."""
    checks: Callable[[str, float], None] = lambda doing, share: None
    """Callback with a later activity, and the share of it that is done."""
