"""Which processors there are for this process, and which of them its threads use."""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress


def available_cores() -> tuple[int, ...]:
    """Logical processors this process may use, ascending."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def keep_on(cores: Collection[int]) -> None:
    """Keep the calling thread on these cores, as far as the system can; none: wherever it is."""
    if cores and hasattr(os, "sched_setaffinity"):
        with suppress(OSError):  # a core that was taken away meanwhile
            os.sched_setaffinity(0, cores)


def search_threads() -> int:
    """Threads of a search: `NUMBA_NUM_THREADS`, as for numba itself, or one for each processor."""
    with suppress(KeyError, ValueError):
        return max(int(os.environ["NUMBA_NUM_THREADS"]), 1)
    return len(available_cores())
