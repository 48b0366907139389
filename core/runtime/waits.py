"""Time that threads ready to run waited, since their processor ran something else (Linux).

The kernel counts this for every thread. A thread that sleeps, or waits for another one, does not
count as waiting here: what is counted is what other work took away. In a virtual machine that may
be the work of others on the same host, which the kernel counts for every core (steal time).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")

DISTURBED = 0.03
"""Share of its time that a measurement may lose before it counts as disturbed."""

OFTEN_NS = 50_000_000
"""How often a thread asks the system how long it has waited, at most; asking takes some 50 us."""

_TASKS = "/proc/self/task"
_OWN = "/proc/thread-self"
_CORES = "/proc/stat"
_STOLEN = 8
"""Field of a core's line there; the first one is its name."""


def waits_are_known() -> bool:
    """True if the system counts waits."""
    return os.path.exists(f"{_OWN}/schedstat")


def with_threads(make: Callable[[], T]) -> tuple[T, tuple[int, ...]]:
    """Make a call; returns its result, and the numbers of the threads that it has started."""
    before = _threads()
    made = make()
    return made, tuple(sorted(_threads() - before))


def _threads() -> set[int]:
    return {int(name) for name in os.listdir(_TASKS)} if os.path.isdir(_TASKS) else set()


class WaitClock:
    """Tells how long the thread that makes it, and its helpers, have waited for a processor."""

    def __init__(self, helpers: Sequence[int] = ()) -> None:
        self._seen: dict[str, int] = {}
        self._asked_ns = time.perf_counter_ns()
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

    def at_times_ns(self, now_ns: int, helpers: Sequence[int] = ()) -> int:
        """The same, but 0, and asking nobody, until `OFTEN_NS` after this was last asked."""
        if now_ns - self._asked_ns <= OFTEN_NS:
            return 0
        self._asked_ns = now_ns
        return self.passed_ns(helpers)


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


class StealClock:
    """Tells how long cores could not run since it was made, as their host ran something else."""

    def __init__(self) -> None:
        self._before = _stolen_ns()

    def passed_ns(self, cores: Collection[int] = ()) -> int:
        """Mean over these cores, or over all, in nanoseconds; 0 where nobody counts."""
        now = _stolen_ns()
        chosen = [core for core in cores or now if core in now and core in self._before]
        passed = sum(now[core] - self._before[core] for core in chosen)
        return max(passed, 0) // max(len(chosen), 1)


def _stolen_ns() -> dict[int, int]:
    """Steal time of every core since the system began."""
    stolen = {}
    with suppress(OSError, ValueError, IndexError), open(_CORES, encoding="ascii") as file:
        tick_ns = 10**9 // os.sysconf("SC_CLK_TCK")
        for line in file:
            fields = line.split()
            if not fields[0].startswith("cpu"):
                break
            if fields[0] != "cpu":
                stolen[int(fields[0][3:])] = int(fields[_STOLEN]) * tick_ns
    return stolen
