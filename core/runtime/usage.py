"""Memory of this process, and time that its threads waited for a processor (Linux).

The C library keeps freed blocks; here they are returned. The kernel counts for every thread the
time that it was ready to run while its processor ran something else: what other work took away,
without sleep and waiting for other threads. In a virtual machine that may be the work of others on
the same host, which the kernel counts for every core (steal time).
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TypeVar

_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1
"""Parameters of glibc's `mallopt`."""
_LARGE = 1 << 17
"""Bytes from which a block gets pages of its own while sessions are made: glibc's first value."""
_USUAL = 32 << 20
"""The value that glibc raises this to by itself, once such large blocks were freed."""


def resident_bytes() -> int:
    """Memory of this process in RAM, its mapped files too; 0 if unknown (Linux).

    Shared memory, in which tensors are on their way between processes, is not of one process.
    """
    with (
        suppress(OSError, ValueError, KeyError),
        open("/proc/self/status", encoding="ascii") as file,
    ):
        rows = dict(line.split(":", 1) for line in file)
        return sum(1024 * int(rows[name].split()[0]) for name in ("RssAnon", "RssFile"))
    return 0


def give_back() -> None:
    """Return freed memory to the system (glibc); while a session is made, much is freed in bits.

    Measured on ONNX Runtime 1.32: 2.4 to 3.2 times the weights of convolutions before, 1.0 after.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


@contextmanager
def large_blocks_apart() -> Iterator[None]:
    """Return large blocks to the system when freed (glibc), to limit the peak of session creation.

    Nothing is changed where the environment says how glibc allocates.
    """
    _set({_MMAP_THRESHOLD: _LARGE})
    try:
        yield
    finally:
        _set({_MMAP_THRESHOLD: _USUAL, _TRIM_THRESHOLD: 2 * _USUAL})
        give_back()


def _set(values: dict[int, int]) -> None:
    """Set parameters of `malloc`."""
    if "MALLOC_MMAP_THRESHOLD_" in os.environ or "GLIBC_TUNABLES" in os.environ:
        return
    with suppress(OSError, AttributeError):
        for name, value in values.items():
            ctypes.CDLL(None).mallopt(name, value)


T = TypeVar("T")

DISTURBED = 0.03
"""Share of its time that a measurement may lose before it counts as disturbed."""

OFTEN_NS = 50_000_000
"""Shortest time between queries of a thread's waiting time; a query takes some 50 us."""

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
    """Clock of the time that the creating thread and its helpers waited for a processor."""

    def __init__(self, helpers: Sequence[int] = ()) -> None:
        self._seen: dict[str, int] = {}
        self._asked_ns = time.perf_counter_ns()
        self.passed_ns(helpers)

    def passed_ns(self, helpers: Sequence[int] = ()) -> int:
        """Nanoseconds waited since the last call; 0 if unknown.

        `helpers` are threads that work with this one; the result is the mean over all.
        """
        total = 0
        for folder in (_OWN, *(f"{_TASKS}/{thread}" for thread in helpers)):
            now = _waited_ns(f"{folder}/schedstat")
            total += now - self._seen.get(folder, now)
            self._seen[folder] = now
        return total // (1 + len(helpers))

    def at_times_ns(self, now_ns: int, helpers: Sequence[int] = ()) -> int:
        """As `passed_ns`, but 0 without a query within `OFTEN_NS` of the last one."""
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
    """Clock of the time that the host took from cores since its creation."""

    def __init__(self) -> None:
        self._before = _stolen_ns()

    def passed_ns(self, cores: Collection[int] = ()) -> int:
        """Mean over these cores, or over all, in nanoseconds; 0 if unknown."""
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
