"""Run native code that may crash in a process beside this one.

ONNX's shape inference aborts the process on some models that contradict the definition of an
operator, and may run without end or fill the memory on others. A worker process, forked at
first use, does such work under limits of time and memory; beyond them it crashes. When it has
crashed, the next call starts another one.
"""

from __future__ import annotations

import faulthandler
import math
import os
import pickle
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, Pipe
from typing import Any, TypeVar

from dnnp.core.model.processes import die_with_parent

T = TypeVar("T")
_Call = tuple[Callable[..., Any], tuple[object, ...]]

TIME_LIMIT_S = 600.0
"""Most that one call may take: far beyond the seconds that models of 50,000 nodes need."""

MEMORY_LIMIT_BYTES = 4 << 30
"""Most that the worker may allocate besides what this process holds when it starts; such
models need less than 1 GiB, as large weights are left out."""

_worker: tuple[int, int, Connection] | None = None
"""Process that made the worker, the worker's process, and the pipe to it."""


def guarded(
    function: Callable[..., T],
    *arguments: object,
    seconds: float = math.inf,
    inherited: bool = False,
) -> T | None:
    """Result of a call made by the worker; None if it crashes, raises or exceeds a limit.

    `function` is one that a module defines, and everything can be pickled. What the call
    prints is lost. It may take `seconds`, and at most `TIME_LIMIT_S`. Where it is `inherited`, a
    new worker begins with it: it finds the arguments in the memory that it shares with this
    process, and only the result is pickled.
    """
    call = function, arguments
    request = b"" if inherited else pickle.dumps(call, pickle.HIGHEST_PROTOCOL)
    try:
        if inherited:
            _discard()
        pipe = _pipe(call if inherited else None)
        if request:
            pipe.send_bytes(request)
        if not pipe.poll(min(seconds, TIME_LIMIT_S)):
            _discard()
            return None
        result: T = pickle.loads(pipe.recv_bytes())
    except (EOFError, OSError):
        _discard()
        return None
    except BaseException:
        _discard()
        raise
    return result


def _pipe(first: _Call | None) -> Connection:
    """The pipe to this process's worker, which is started if need be, with a first call if any."""
    global _worker
    if _worker is None or _worker[0] != os.getpid():
        ours, theirs = Pipe()
        child = os.fork()
        if child == 0:
            _serve(theirs, first)
        theirs.close()
        _worker = os.getpid(), child, ours
    return _worker[2]


def _discard() -> None:
    """End the worker."""
    global _worker
    if _worker is not None:
        _, child, pipe = _worker
        _worker = None
        pipe.close()
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@contextmanager
def less_memory(more_bytes: int) -> Iterator[None]:
    """Let this process take no more private memory than that (Linux)."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    _limit_memory(more_bytes, before[1])
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def _limit_memory(more_bytes: int, hard: int | None = None) -> None:
    """Limit private memory, where the system tells how much of it there is already (Linux)."""
    with suppress(OSError, ValueError):
        with open("/proc/self/statm", encoding="ascii") as file:
            held = int(file.read().split()[5]) * resource.getpagesize()
        limit = held + more_bytes
        allowed = resource.getrlimit(resource.RLIMIT_DATA)[0]
        if allowed == resource.RLIM_INFINITY or limit < allowed:
            resource.setrlimit(resource.RLIMIT_DATA, (limit, limit if hard is None else hard))


def _serve(pipe: Connection, call: _Call | None) -> None:
    """Serve as the worker: answer until the other end is closed, or a call fails."""
    try:
        die_with_parent()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        faulthandler.disable()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        _limit_memory(MEMORY_LIMIT_BYTES)
        silence = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(silence, number)
        # An open copy of the standard output would keep the next command waiting.
        os.closerange(3, pipe.fileno())
        os.closerange(pipe.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
        while True:
            function, arguments = call or pickle.loads(pipe.recv_bytes())
            pipe.send_bytes(pickle.dumps(function(*arguments), pickle.HIGHEST_PROTOCOL))
            call = None
    finally:
        os._exit(1)
