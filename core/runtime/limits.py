"""Limits of time and memory that hold while native code runs.

ONNX Runtime keeps the interpreter to itself while it makes a session: no thread and no signal
handler of ours runs meanwhile. So another process keeps the limits (`dnnp.cmds.shell.guardian`).
What is under way stands on a board, in memory that both processes see, with the time when it is
overdue.
"""

from __future__ import annotations

import math
import mmap
import os
import signal
import struct
import time
from _thread import allocate_lock
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from dnnp.core.model.errors import LimitError
from dnnp.core.model.processes import die_with_parent
from dnnp.core.model.text import shown_bytes
from dnnp.formats.files import any_unfinished

SLOTS = 4200
"""Things that may be under way at once: the sessions of a pipeline, and some around them."""

STAGE_TIMEOUT_S = 600.0
"""Default time limit for a run of a stage, or the creation of its session."""

GRACE_S = 5.0
"""Time after a limit within which a live watcher has enforced it."""

SHARE = 0.9
"""Default memory limit as a share of free memory."""

_HEAD = struct.Struct("=qd")
_TIMES = struct.Struct("=dd")
_NUMBER = struct.Struct("=i")
_SLOT_BYTES = 128
_OTHERS = _HEAD.size + SLOTS * _SLOT_BYTES
"""Offset of the list of other processes, ended by 0."""


class TaskBoard:
    """Work under way and its limits, in memory that a process and its watcher share."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _OTHERS + (SLOTS + 1) * _NUMBER.size)
        self._free = list(range(SLOTS))[::-1]
        self._lock = allocate_lock()
        self._others: list[int] = []
        self.seconds = math.inf
        """Time limit of tasks from now on."""

    def set_limits(self, seconds: float, memory_bytes: float) -> None:
        """Set the time limit of later tasks and the memory limit of the process."""
        self.seconds = seconds
        _HEAD.pack_into(self._memory, 0, self._used(), memory_bytes)

    @property
    def memory_bytes(self) -> float:
        """Private memory that the process may hold; infinite before it is limited."""
        return float(_HEAD.unpack_from(self._memory, 0)[1]) or math.inf

    def enter(self, what: str) -> int:
        """Note that something begins; returns its slot."""
        slot = self._free.pop()
        with self._lock:
            if slot >= self._used():
                struct.pack_into("=q", self._memory, 0, slot + 1)
        at, width = _HEAD.size + slot * _SLOT_BYTES, _SLOT_BYTES - _TIMES.size
        text = what.encode(errors="replace")[:width].ljust(width, b"\0")
        self._memory[at + _TIMES.size : at + _SLOT_BYTES] = text
        _TIMES.pack_into(self._memory, at, time.monotonic() + self.seconds, self.seconds)
        return slot

    def leave(self, slot: int) -> None:
        """Note that what has this slot is over."""
        _TIMES.pack_into(self._memory, _HEAD.size + slot * _SLOT_BYTES, 0.0, 0.0)
        self._free.append(slot)

    def under_way(self) -> Iterator[tuple[str, float, float]]:
        """(what, when it is overdue, seconds it may take) of everything, outer things first."""
        for slot in range(self._used()):
            at = _HEAD.size + slot * _SLOT_BYTES
            due, seconds = _TIMES.unpack_from(self._memory, at)
            if due:
                text = self._memory[at + _TIMES.size : at + _SLOT_BYTES]
                yield text.rstrip(b"\0").decode(errors="replace"), due, seconds

    def join(self, process: int) -> None:
        """Count the memory of another process too, until `part`."""
        with self._lock:
            self._others.append(process)
            self._write_others()

    def part(self, process: int) -> None:
        """Count it no more."""
        with self._lock:
            if process in self._others:
                self._others.remove(process)
                self._write_others()

    def _write_others(self) -> None:
        row = self._others[:SLOTS]
        struct.pack_into(f"={len(row) + 1}i", self._memory, _OTHERS, *row, 0)

    def others(self) -> Iterator[int]:
        """The other processes whose memory counts."""
        at = _OTHERS
        while number := int(_NUMBER.unpack_from(self._memory, at)[0]):
            yield number
            at += _NUMBER.size

    def _used(self) -> int:
        return int(_HEAD.unpack_from(self._memory, 0)[0])


_board: TaskBoard | None = None
"""None: no watcher."""

_watcher = 0
"""The process that watches."""


def install(board: TaskBoard) -> None:
    """Use a board from now on; the parent of this process watches it and keeps the limits."""
    global _board, _watcher
    _board, _watcher = board, os.getppid()


def unwatch() -> None:
    """Keep no limits: this process is a copy of one that is watched, and has limits of its own."""
    global _board
    _board = None


def set_limits(seconds: float | None, memory_bytes: float | None) -> None:
    """Limit what follows.

    Parameters
    ----------
    seconds
        That each thing under way may take; 0: any time; None: `STAGE_TIMEOUT_S`.
    memory_bytes
        That this process may hold; None: `SHARE` of what is free now, besides what it holds.
    """
    if _board is None:
        return
    if memory_bytes is None:
        memory_bytes = held_bytes(os.getpid()) + SHARE * free_bytes()
    _board.set_limits(STAGE_TIMEOUT_S if seconds is None else seconds or math.inf, memory_bytes)


def join(process: int) -> None:
    """Count the memory of a process that this one has started, until `part`."""
    if _board is not None:
        _board.join(process)


def part(process: int) -> None:
    """Count it no more."""
    if _board is not None:
        _board.part(process)


def allowed_seconds() -> float:
    """Time limit of each running task, seconds; infinite without a watcher."""
    return math.inf if _board is None else _board.seconds


def allowed_bytes() -> float:
    """Bytes that this process may still take; infinite without a watcher."""
    return math.inf if _board is None else _board.memory_bytes - held_bytes(os.getpid())


@contextmanager
def watched(what: str) -> Iterator[None]:
    """Something that may take no longer than the limit; beyond it the process is ended."""
    if _board is None:
        yield
        return
    slot = _board.enter(what)
    try:
        yield
    finally:
        _board.leave(slot)


@contextmanager
def making_session(of: str) -> Iterator[None]:
    """The making of the session of a stage, which no handler of signals can end.

    A process that is left without the one that watches it ends with that one (Linux), or by a
    timer of the system where that is not possible or it has files to remove first.
    """
    seconds = 0.0 if _board is None else _board.seconds
    if 0 < seconds < math.inf:
        signal.setitimer(signal.ITIMER_REAL, seconds + GRACE_S)
    try:
        with _killed_with_watcher(), watched(f"{of}: making its session"):
            yield
    finally:
        if 0 < seconds < math.inf:
            signal.setitimer(signal.ITIMER_REAL, 0.0)


@contextmanager
def _killed_with_watcher() -> Iterator[None]:
    """Request SIGKILL when the watcher ends, in place of SIGTERM, which has a handler.

    Not while there is something to remove, which the handler does.
    """
    if _board is None or any_unfinished():
        yield
        return
    die_with_parent(signal.SIGKILL)
    if os.getppid() != _watcher:  # it ended before the request
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        yield
    finally:
        die_with_parent(signal.SIGTERM)


def require_memory(needed: float, what: str) -> None:
    """Refuse what cannot be held, before anything is allocated for it.

    Raises `LimitError` if `what` needs more bytes than the process may hold.
    """
    if _board is not None and needed > (limit := _board.memory_bytes):
        raise LimitError(
            f"{what} takes {shown_bytes(needed)}; --max-memory allows {shown_bytes(limit)} in all"
        )


def held_bytes(process: int) -> int:
    """Private memory of a process; 0 where the system does not tell (Linux does)."""
    with suppress(OSError, ValueError):
        resident, shared = _text(f"/proc/{process}/statm").split()[1:3]
        return (int(resident) - int(shared)) * mmap.PAGESIZE
    return 0


def free_bytes() -> float:
    """Memory that the machine, or this process's control group, has left; infinite if unknown."""
    free = math.inf
    with suppress(OSError, ValueError, IndexError):
        for line in _text("/proc/meminfo").splitlines():
            if line.startswith("MemAvailable:"):
                free = 1024.0 * int(line.split()[1])
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        with suppress(OSError, ValueError):  # no such group, or no limit ("max")
            left = int(_text(f"/sys/fs/cgroup/{limit}")) - int(_text(f"/sys/fs/cgroup/{used}"))
            free = min(free, max(left, 0))
    return free


def _text(path: str) -> str:
    with open(path, encoding="ascii") as file:
        return file.read()
