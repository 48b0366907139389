"""Times by stage and sample, of as many samples as come."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

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
