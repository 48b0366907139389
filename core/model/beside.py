"""Work that ends soon after it is told to, whatever it is doing.

Compiling a kernel, laying out a large graph or a call into a library ask nobody whether to stop.
So work runs in a thread beside; where it goes on for too long after it should have stopped, it is
left alone, and there is another answer. A thread that is left alone dies with the process.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Thread
from typing import Generic, TypeVar

T = TypeVar("T")

GRACE_S = 1.0
"""How long work may go on after `stop` says so, where there is another answer."""

POLL_S = 0.05
"""How often to ask `stop`."""

NAME = "dnnp-beside"
"""Name of the threads."""


def beside(
    work: Callable[[], T], stop: Callable[[], bool], instead: Callable[[], T | None]
) -> T:
    """Return what `work` returns, or raise what it raises.

    Where it goes on for `GRACE_S` after `stop` says so: what `instead` returns; None: there is
    nothing, and the work is waited for.
    """
    running = _Running(work)
    while not running.over.wait(POLL_S):
        if stop():
            if not running.over.wait(GRACE_S):
                answer = instead()
                if answer is not None:
                    return answer
            break
    return running.outcome()


class _Running(Generic[T]):
    """Work in a thread of its own, and what became of it."""

    def __init__(self, work: Callable[[], T]) -> None:
        self.over = Event()
        self._work = work
        self._answer: list[T] = []
        self._error: BaseException | None = None
        Thread(target=self._run, name=NAME, daemon=True).start()

    def _run(self) -> None:
        with self:
            self._answer.append(self._work())

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        """Keep an error: `outcome` raises it where somebody waits for it."""
        self._error = error
        self.over.set()
        return True

    def outcome(self) -> T:
        """Wait for the end; return the answer, or raise the error."""
        self.over.wait()
        if self._error is not None:
            raise self._error
        return self._answer[0]
