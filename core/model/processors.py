"""Which processors there are for this process, and on how many of them a search runs."""

from __future__ import annotations

import os
from contextlib import suppress


def available_cores() -> tuple[int, ...]:
    """Logical processors this process may use, ascending."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def search_threads() -> int:
    """Threads of a search: `NUMBA_NUM_THREADS`, as for numba itself, or one for each processor."""
    with suppress(KeyError, ValueError):
        return max(int(os.environ["NUMBA_NUM_THREADS"]), 1)
    return len(available_cores())
