"""Processes and threads: processors that they may use, and how they end."""

from __future__ import annotations

import os
import signal
from _thread import get_ident
from collections.abc import Collection
from contextlib import suppress

left_alone: set[int] = set()
"""Threads whose answers are no longer waited for (`search_context.run_with_fallback`)."""


def is_left_alone() -> bool:
    """True if the calling thread is not waited for: its messages come too late."""
    return get_ident() in left_alone


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


_PR_SET_PDEATHSIG = 1


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Have the system send this process a signal when its parent ends, however it does (Linux).

    A process that may be too late to ask looks at its parent afterwards. The parent is the thread
    that started this process: a process that outlives that thread must not ask.
    """
    import ctypes

    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
