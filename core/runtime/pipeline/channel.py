"""What lies between two stages, and both ends of a pipeline."""

from __future__ import annotations

import time
from collections.abc import Sequence
from threading import Condition, Event
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dnnp.core.model.errors import DnnpError
from dnnp.core.runtime.pipeline.sources import Sink, Source
from dnnp.core.runtime.values import Values


class ClosedError(Exception):
    """The channel was closed: some part of the pipeline stopped."""


class Channel:
    """Holds samples until they are taken; it can be closed from outside.

    Samples are numbered from 0. Replicas may put them in and take them out in any order, but
    none gets further than `capacity` samples beyond the first one that was not taken yet.
    """

    def __init__(self, capacity: int) -> None:
        self._items: dict[int, Any] = {}
        self._first = 0
        """All samples before this one were taken."""
        self._taken: set[int] = set()
        """Samples after it that were taken."""
        self._capacity = capacity
        self._changed = Condition()
        self._closed = False

    def put(self, sample: int, item: Any) -> None:
        """Add a sample, waiting for room; raises `ClosedError`."""
        with self._changed:
            while sample >= self._first + self._capacity and not self._closed:
                self._changed.wait()
            if self._closed:
                raise ClosedError
            self._items[sample] = item
            self._changed.notify_all()

    def get(self, sample: int) -> Any:
        """Take a sample, waiting for it; raises `ClosedError`."""
        with self._changed:
            while sample not in self._items and not self._closed:
                self._changed.wait()
            if self._closed:
                raise ClosedError
            item = self._items.pop(sample)
            self._taken.add(sample)
            while self._first in self._taken:
                self._taken.remove(self._first)
                self._first += 1
            self._changed.notify_all()
            return item

    def close(self) -> None:
        """Wake everyone who waits; what is inside is lost."""
        with self._changed:
            self._closed = True
            self._items.clear()
            self._changed.notify_all()


class Ends:
    """Both ends of a pipeline: gives out inputs from a source, and leaves outputs in a sink.

    It has no thread: whoever needs a sample takes it, whoever has an output leaves it here. A
    thread that only brings and collects would take its turn on the processors of the stages.
    """

    def __init__(
        self,
        source: Source,
        sink: Sink,
        *,
        window: int | None = None,
        through: Sequence[str] = (),
    ) -> None:
        """`window` samples may be on their way at once (None: all); inputs in `through` are
        outputs as they are."""
        self.source, self.sink = source, sink
        self.parts = 1
        """In how many parts the outputs of a sample come."""
        self._window, self._through = window, through
        self._missing: dict[int, int] = {}
        """Parts that are still to come, of samples of which some have."""
        self._values: dict[int, Values] = {}
        """What has come of samples whose outputs somebody wants."""
        self._spoilt: set[int] = set()
        """Samples on their way on which a stage failed."""
        self._ahead: dict[int, int] = {}
        """When a sample was done, after one that is not."""
        self._closed = False
        self._changed, self._over = Condition(), Event()
        self.done = 0
        """All samples before this one are done."""
        self.done_ns = Log(1, source.count)
        """[0, sample], when the last output of it and of all before it had arrived, by
        `time.perf_counter_ns`: samples leave in order."""
        if source.count == 0:
            self._over.set()

    @property
    def whole(self) -> bool:
        """Whether all samples are done, and there will be no more."""
        return self.done == self.source.count

    def get(self, sample: int, names: Sequence[str]) -> Values:
        """Inputs of a sample, as soon as it may set out; raises `ClosedError`."""
        with self._changed:
            while not self._closed:
                crowded = self._window is not None and sample >= self.done + self._window
                late_s = self.source.wait_s(sample)
                if not crowded and late_s <= 0:
                    break
                self._changed.wait(None if crowded else late_s)
            if self._closed:
                raise ClosedError
        inputs = self.source.sample(sample)
        if inputs is None:
            with self._changed:
                if self.whole:
                    self._over.set()
            raise ClosedError
        return {name: inputs[name] for name in names}

    def put(self, sample: int, values: Values) -> None:
        """Leave a part of the outputs of a sample; raises `ClosedError`."""
        now_ns = time.perf_counter_ns()
        wanted = self.sink.wants(sample)
        with self._changed:
            if self._closed:
                raise ClosedError
            if wanted:
                self._values.setdefault(sample, {}).update(values)
            left = self._missing.pop(sample, self.parts) - 1
            if left:
                self._missing[sample] = left
                return
            outputs = self._values.pop(sample, None)
        if outputs is not None and sample not in self._spoilt:
            if self._through:
                inputs = self.source.sample(sample) or {}
                outputs = {**{name: inputs[name] for name in self._through}, **outputs}
            self.sink.put(sample, outputs)
        self.source.done(sample)
        with self._changed:
            self._spoilt.discard(sample)
            self._ahead[sample] = now_ns
            before_ns = self.done_ns[0, self.done - 1] if self.done else 0
            while self.done in self._ahead:
                before_ns = max(before_ns, self._ahead.pop(self.done))
                self.done_ns[0, self.done] = before_ns
                self.done += 1
            self._changed.notify_all()
            if self.whole:
                self._over.set()

    def spoil(self, sample: int, error: DnnpError) -> bool:
        """Told that a stage fails on a sample; whether it goes on through the others unused."""
        if self._closed or not self.sink.failed(sample, error):
            return False  # what is ended from outside fails, too
        with self._changed:
            self._spoilt.add(sample)
        return True

    def is_spoilt(self, sample: int) -> bool:
        """Whether a stage has failed on a sample, so that no other need run on it."""
        return sample in self._spoilt

    def wait(self, seconds: float) -> bool:
        """Wait so long until all samples are done, or this is closed; whether that is so."""
        return self._over.wait(seconds)

    def close(self) -> None:
        """Wake everyone who waits."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            self._over.set()
        self.source.close()


CHUNK = 4096
"""Samples that get room at once."""

MOST = 1 << 16
"""Samples whose times are kept where nobody knows how many will come: the last ones."""


class Log:
    """Whole numbers by (row, sample), from 0; each is written by one thread.

    Where the number of samples is known there is room for all of them. Else room is made as they
    come, and what lies `MOST` samples back is dropped.
    """

    def __init__(self, rows: int, count: int | None) -> None:
        self._rows = rows
        self._whole = None if count is None else np.zeros((rows, count), dtype=np.int64)
        self._chunks: dict[int, NDArray[np.int64]] = {}
        self._first = 0
        """All chunks before this one were dropped."""

    def __setitem__(self, at: tuple[int, int], value: int) -> None:
        row, sample = at
        if self._whole is not None:
            self._whole[row, sample] = value
        elif sample // CHUNK >= self._first:
            self._chunk(sample // CHUNK)[row, sample % CHUNK] = value

    def __getitem__(self, at: tuple[int, int]) -> int:
        row, sample = at
        if self._whole is not None:
            return int(self._whole[row, sample])
        return int(self._chunk(sample // CHUNK)[row, sample % CHUNK])

    def _chunk(self, number: int) -> NDArray[np.int64]:
        """A chunk, made by whichever thread comes first."""
        chunk = self._chunks.get(number)
        if chunk is None:
            chunk = self._chunks.setdefault(number, np.zeros((self._rows, CHUNK), dtype=np.int64))
        return chunk

    def drop(self, done: int) -> int:
        """Drop what is too old once so many samples are done; the first one that is kept.

        Only chunks of which everything is done go, so that nobody writes there any more.
        """
        if self._whole is None:
            while (self._first + 1) * CHUNK + MOST <= done:
                self._chunks.pop(self._first, None)
                self._first += 1
        return self._first * CHUNK

    def array(self, first: int, done: int) -> NDArray[np.int64]:
        """i64[rows, done - first], of the samples from `first` on."""
        if self._whole is not None:
            return self._whole[:, first:done]
        if done <= first:
            return np.zeros((self._rows, 0), dtype=np.int64)
        numbers = range(first // CHUNK, (done - 1) // CHUNK + 1)
        joined = np.concatenate([self._chunk(number) for number in numbers], axis=1)
        start = first - numbers[0] * CHUNK
        return joined[:, start : start + done - first]
