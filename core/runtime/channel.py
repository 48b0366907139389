"""Where samples come from, what lies between two stages, and where outputs go."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from threading import Condition, Event
from typing import Any

import numpy as np

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
    """Both ends of a pipeline: gives out inputs, over and over, and collects outputs.

    It has no thread: whoever needs a sample takes it, whoever has an output leaves it here. A
    thread that only brings and collects would take its turn on the processors of the stages.
    """

    def __init__(
        self,
        samples: Sequence[Mapping[str, Any]],
        count: int,
        *,
        window: int | None = None,
        through: Sequence[str] = (),
        keep: Callable[[int], bool] = lambda s: False,
    ) -> None:
        """Sample s of `count` is `samples[s % len(samples)]`.

        `window` samples may be on their way at once (None: all), of those that `keep` names the
        outputs are kept; inputs in `through` are outputs as they are.
        """
        self.count = count
        self.parts = 1
        """In how many parts the outputs of a sample come."""
        self._samples, self._window = samples, window
        self._through, self._keep = through, keep
        self._missing: dict[int, int] = {}
        """Parts that are still to come, of samples of which some have."""
        self._ahead: set[int] = set()
        """Samples that are done, after one that is not."""
        self._closed = False
        self._changed, self._over = Condition(), Event()
        self.done = 0
        """All samples before this one are done."""
        self.done_ns = np.zeros(count, dtype=np.int64)
        """i64[samples], when the last output of it and of all before it had arrived, by
        `time.perf_counter_ns`: samples leave in order."""
        self.kept: dict[int, Values] = {}
        if not count:
            self._over.set()

    def get(self, sample: int, names: Sequence[str]) -> Values:
        """Inputs of a sample, as soon as it may set out; raises `ClosedError`."""
        if self._window is not None:
            with self._changed:
                while sample >= self.done + self._window and not self._closed:
                    self._changed.wait()
        if self._closed:
            raise ClosedError
        inputs = self.sample(sample)
        return {name: inputs[name] for name in names}

    def sample(self, number: int) -> Mapping[str, Any]:
        """All inputs of a sample."""
        return self._samples[number % len(self._samples)]

    def put(self, sample: int, values: Values) -> None:
        """Leave a part of the outputs of a sample; raises `ClosedError`."""
        with self._changed:
            if self._closed:
                raise ClosedError
            if self._keep(sample):
                self.kept.setdefault(sample, {}).update(values)
            left = self._missing.pop(sample, self.parts) - 1
            if left:
                self._missing[sample] = left
                return
            self._ahead.add(sample)
            while self.done in self._ahead:
                self._ahead.remove(self.done)
                self.done_ns[self.done] = time.perf_counter_ns()
                self.done += 1
            self._changed.notify_all()
            if self.done == self.count:
                self._over.set()

    def outputs(self) -> dict[int, Values]:
        """Those that were to be kept, of samples that are done."""
        whole = {}
        for sample, values in sorted(self.kept.items()):
            if sample < self.done:
                inputs = self.sample(sample)
                whole[sample] = {**{name: inputs[name] for name in self._through}, **values}
        return whole

    def wait(self, seconds: float) -> bool:
        """Wait so long until all samples are done, or this is closed; whether that is so."""
        return self._over.wait(seconds)

    def close(self) -> None:
        """Wake everyone who waits."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            self._over.set()
