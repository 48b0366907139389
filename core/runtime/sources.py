"""What gives a pipeline its samples: so many of a list in turn, or as many as there is time for."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Any

from numpy.typing import NDArray

Clock = Callable[[], int]
"""Nanoseconds, as `time.perf_counter_ns`."""


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
        arrivals_ns: NDArray[Any] | None = None,
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
