"""What gives a pipeline its samples, and where its outputs go."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dnnp.core.model.errors import DnnpError
from dnnp.core.runtime.values import Values

Clock = Callable[[], int]
"""Nanoseconds, as `time.perf_counter_ns`."""


POISSON, UNIFORM = "poisson", "uniform"
PROCESSES = (POISSON, UNIFORM)
"""How samples may arrive: at random, or at equal distances."""


@dataclass(frozen=True)
class Arrivals:
    """When samples arrive, whatever becomes of those before them (an open loop)."""

    process: str
    """One of `PROCESSES`. Poisson: gaps are exponential, and independent of each other."""
    rate_per_s: float
    seed: int = 0
    """Of the gaps."""

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

    A sample may be asked for several times, by the stages that read it, until it is `done`.
    """

    count: int | None = 0
    """How many there are; None: that is not known yet."""

    def begin(self, now_ns: int) -> None:
        """Told when the run begins."""

    def wait_s(self, number: int) -> float:
        """How long it takes until a sample arrives, seconds; 0 or less: it is there."""
        return 0.0

    def sample(self, number: int) -> Mapping[str, Any] | None:
        """The inputs of a sample, waiting for them; None: there are no more, `count` is known."""
        return None

    def arrived_ns(self, first: int, done: int) -> NDArray[np.int64] | None:
        """i64[done - first], when samples arrived, by the clock; None: as there was room."""
        return None

    def done(self, number: int) -> None:
        """Told that nobody asks for a sample any more."""

    def close(self) -> None:
        """Wake whoever waits: the run is over."""


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
        i64[count], when each one arrives, counted from the begin; None: all are there at once.
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
        """The first sample that nobody has asked for, nor for one after it."""
        self._lock = Lock()

    def begin(self, now_ns: int) -> None:
        """Start the clock of the arrivals, and of the end."""
        self._began_ns = now_ns

    def wait_s(self, number: int) -> float:
        """How long it takes until a sample arrives, seconds."""
        if self._arrivals_ns is None or number >= len(self._arrivals_ns):
            return 0.0
        due_ns = self._began_ns + int(self._arrivals_ns[number])
        return (due_ns - self._clock()) * 1e-9

    def arrived_ns(self, first: int, done: int) -> NDArray[np.int64] | None:
        """i64[done - first], when samples arrived, by the clock; None: as there was room."""
        if self._arrivals_ns is None:
            return None
        return self._arrivals_ns[first:done] + self._began_ns

    def sample(self, number: int) -> Mapping[str, Any] | None:
        """The inputs of a sample; None: it would be one too many, or too late."""
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
        """Whether the outputs of a sample are of use."""
        return False

    def put(self, sample: int, values: Values) -> None:
        """Take all outputs of a sample, waiting for room."""

    def failed(self, sample: int, error: DnnpError) -> bool:
        """Told that a stage fails on a sample; whether the others shall go on without it."""
        return False

    def outputs(self, done: int) -> dict[int, Values]:
        """What is in memory of the first `done` samples, by sample."""
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
        """Whether it is kept."""
        return self._keep(sample)

    def put(self, sample: int, values: Values) -> None:
        """Keep them."""
        self._values[sample] = values

    def outputs(self, done: int) -> dict[int, Values]:
        """Those of the first `done` samples, each value converted."""
        return {
            sample: {name: self._convert(value) for name, value in values.items()}
            for sample, values in sorted(self._values.items())
            if sample < done
        }
