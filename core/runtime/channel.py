"""What lies between two stages: a bounded window of samples, taken by number."""

from __future__ import annotations

from threading import Condition
from typing import Any


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

    def get(self, sample: int, timeout: float | None = None) -> Any:
        """Take a sample, waiting for it; raises `ClosedError`, or `TimeoutError`."""
        with self._changed:
            while sample not in self._items and not self._closed:
                if not self._changed.wait(timeout):
                    raise TimeoutError
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
