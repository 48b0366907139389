"""Queues between two stages, both ends of a pipeline, and logs of times."""

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
        self.done_ns = Log(1, source.count, window)
        """[0, sample], when the last output of it and of all before it had arrived, by
        `time.perf_counter_ns`: samples leave in order."""
        if source.count == 0:
            self._over.set()

    @property
    def whole(self) -> bool:
        """True if all samples are done, and there will be no more."""
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
        """Note that a stage fails on a sample; returns whether it goes on through the others."""
        if self._closed or not self.sink.failed(sample, error):
            return False  # what is ended from outside fails, too
        with self._changed:
            self._spoilt.add(sample)
        return True

    def is_spoilt(self, sample: int) -> bool:
        """True if a stage has failed on a sample, so that no other need run on it."""
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


MOST = 1 << 16
"""Samples whose times are kept where nobody knows how many will come: the last ones."""


class Log:
    """Whole numbers by (row, sample), from 0; each is written by one thread.

    All samples have room where their number is known, else the last `MOST` that are done, and
    `window` that are on their way.
    """

    def __init__(self, rows: int, count: int | None, window: int | None = None) -> None:
        self._most = count
        self._size = max(MOST + (window or 0) if count is None else count, 1)
        self._values = np.zeros((rows, self._size), dtype=np.int64)

    def __setitem__(self, at: tuple[int, int], value: int) -> None:
        self._values[at[0], at[1] % self._size] = value

    def __getitem__(self, at: tuple[int, int]) -> int:
        return int(self._values[at[0], at[1] % self._size])

    def first(self, done: int) -> int:
        """Return the first sample that is kept once so many are done."""
        return max(done - MOST, 0) if self._most is None else 0

    def array(self, first: int, done: int) -> NDArray[np.int64]:
        """i64[rows, done - first], of the samples from `first` on."""
        return self._values[:, np.arange(first, done) % self._size]
