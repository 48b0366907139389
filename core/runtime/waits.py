"""How long threads that could have run waited, since their processor ran something else (Linux).

The kernel counts this for every thread. A thread that sleeps, or waits for another one, does not
count as waiting here: what is counted is what other work took away.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")

DISTURBED = 0.03
"""Share of its time that a measurement may lose before it counts as disturbed."""

_TASKS = "/proc/self/task"
_OWN = "/proc/thread-self"


def waits_are_known() -> bool:
    """Whether the system counts waits."""
    return os.path.exists(f"{_OWN}/schedstat")


def with_threads(make: Callable[[], T]) -> tuple[T, tuple[int, ...]]:
    """What a call returns, and the numbers of the threads that it has started."""
    before = _threads()
    made = make()
    return made, tuple(sorted(_threads() - before))


def _threads() -> set[int]:
    return {int(name) for name in os.listdir(_TASKS)} if os.path.isdir(_TASKS) else set()


class WaitClock:
    """Tells how long the thread that makes it, and its helpers, have waited for a processor."""

    def __init__(self, helpers: Sequence[int] = ()) -> None:
        self._seen: dict[str, int] = {}
        self.passed_ns(helpers)

    def passed_ns(self, helpers: Sequence[int] = ()) -> int:
        """Nanoseconds waited since the last call; 0 where nobody counts.

        `helpers` are threads that work with this one; the result is the mean over all.
        """
        total = 0
        for folder in (_OWN, *(f"{_TASKS}/{thread}" for thread in helpers)):
            now = _waited_ns(f"{folder}/schedstat")
            total += now - self._seen.get(folder, now)
            self._seen[folder] = now
        return total // (1 + len(helpers))


def _waited_ns(path: str) -> int:
    """The second number of a thread's `schedstat`: time on the run queue, nanoseconds."""
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError:
        return 0
    try:
        return int(os.read(file, 100).split()[1])
    except (OSError, IndexError, ValueError):
        return 0
    finally:
        os.close(file)
