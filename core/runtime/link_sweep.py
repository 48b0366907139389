"""What transfers of several sizes take, by any function that makes one."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

Transfer = Callable[[int], object]
"""Moves so many bytes, and returns when they have arrived."""

SIZES = tuple(4**i for i in range(3, 13))
"""64 bytes to 16 MiB."""
ROUNDS = 9
"""Times that every size is moved at least."""
_QUANTILE = 0.25
"""Of the times of a size: what comes after it was disturbed."""


class Sweep:
    """Times of transfers, over rounds through all sizes: what disturbs one meets all of them.

    Parameters
    ----------
    transfer
        What is timed.
    trips
        Messages, one after the other, that one call takes: 2 where an answer comes back.
    """

    def __init__(
        self, transfer: Transfer, sizes: Sequence[int] = SIZES, trips: int = 1
    ) -> None:  # fmt: skip
        self.sizes = tuple(sizes)
        self.trips = trips
        self._transfer = transfer
        self._seconds: list[list[float]] = [[] for _ in sizes]
        for size in self.sizes:
            transfer(size)

    def add(self, rounds: int = ROUNDS, limit_s: float = 1.0) -> None:
        """Make more rounds: so many, and no more than fit into a time, but three at least."""
        begin = time.perf_counter()
        for i in range(rounds):
            if i >= 3 and time.perf_counter() - begin > limit_s:
                return
            for size, seconds in zip(self.sizes, self._seconds, strict=True):
                start = time.perf_counter_ns()
                self._transfer(size)
                seconds.append((time.perf_counter_ns() - start) * 1e-9)

    def points(self) -> tuple[list[float], list[float]]:
        """Sizes, and what one way took for each: the lower quartile, answers taken off.

        An answer holds nothing, so that it takes as long as the smallest message.
        """
        times = np.array([np.quantile(seconds, _QUANTILE) for seconds in self._seconds])
        answers = (self.trips - 1) / self.trips * float(times.min())
        return [float(size) for size in self.sizes], np.maximum(times - answers, 1e-9).tolist()
