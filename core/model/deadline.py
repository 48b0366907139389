"""Work that ends soon after it is told to, whatever it is doing.

Compiling a kernel, laying out a large graph or a call into a library ask nobody whether to stop.
So work runs in a thread beside; where it goes on for too long after it should have stopped, it is
left alone, and there is another answer. A thread that is left alone dies with the process.

Where memory is short a thread may die before it can say so, even before its first line; whoever
waits for it is told.
"""

from __future__ import annotations

from _thread import allocate_lock, get_ident, start_new_thread
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Generic, TypeVar
from weakref import ref

if TYPE_CHECKING:  # commands start with this module
    from dnnp.core.model.search_context import Progress, SearchContext

S = TypeVar("S")
T = TypeVar("T")

GRACE_S = 0.5
"""How long work may go on after `stop` says so, where there is another answer."""

POLL_S = 0.05
"""How often to ask `stop`."""

NOTHING = "nothing was found before it was stopped"
"""Why something else stands in for a method."""

_left_alone: set[int] = set()
"""Threads that nobody waits for any more."""

_always_waits = False


def wait_always() -> None:
    """From now on wait for all work: for a process that is there for what work leaves behind."""
    global _always_waits
    _always_waits = True


def is_left_alone() -> bool:
    """Test whether nobody waits for the calling thread: what it has to say came too late."""
    return get_ident() in _left_alone


def run_with_fallback(
    work: Callable[[], T], stop: Callable[[], bool], instead: Callable[[], T | None]
) -> T:
    """Return what `work` returns, or raise what it raises.

    Where it goes on for `GRACE_S` after `stop` says so: what `instead` returns; None: there is
    nothing, and the work is waited for.

    Raises MemoryError: the thread died without a word.
    """
    running = _Running(work)
    while not (_always_waits or running.wait(POLL_S)):
        if stop():
            if not running.wait(GRACE_S):
                answer = instead()
                if answer is not None:
                    running.leave_alone()
                    return answer
            break
    return running.outcome()


class Incumbent(Generic[S]):
    """The best split and the best bound of all that ran: the answer, however a search ends.

    All that a search tells passes here, and whoever watches sees no more than what is kept.
    """

    def __init__(self, what: str = "") -> None:
        self.what = what
        """As in `Progress`: of other values and bounds nothing is kept."""
        self.split: S | None = None
        self.value = inf
        self.method = ""
        self.bound = 0.0
        self.argument = ""
        """What proves the bound, where that was said."""

    def told_by(self, run: SearchContext) -> SearchContext:
        """The same run; what it keeps and proves is kept here, and seen by whoever watches."""

        def keep(split: S, value: float, method: str) -> None:
            self.keep(split, value, method)
            run.report_progress(value=self.value, what=self.what)

        def watch(standing: Progress) -> None:
            if standing.what == self.what:
                if standing.bound > self.bound:
                    self.bound, self.argument = standing.bound, standing.by
                standing = standing._replace(value=self.value)
            run.watch(standing)

        from dataclasses import replace

        return replace(run, report_incumbent=keep, watch=watch)

    def keep(self, split: S, value: float, method: str) -> None:
        """Take over a split, if it is better."""
        if value < self.value:
            self.split, self.value, self.method = split, value, method

    def proven(self, value: float = inf) -> float:
        """The best bound of all that ran: what none of the splits that are known refutes."""
        return min(self.bound, self.value, value)

    def beats(self, value: float) -> bool:
        """Test whether what is kept is better than an answer of this value, beyond rounding."""
        from dnnp.core.model.plan import CLOSED

        return self.split is not None and self.value < value * (1 - CLOSED)


class _Life:
    """An object that a thread holds as long as it lives."""


class _Running(Generic[T]):
    """Work in a thread of its own, and what became of it."""

    def __init__(self, work: Callable[[], T]) -> None:
        # To release a lock takes no memory.
        self._under_way = allocate_lock()
        self._under_way.acquire()
        self._over = False
        self._work = work
        self._answer: list[T] = []
        self._error: BaseException | None = None
        life = _Life()
        self._life = ref(life)
        # `Thread.start` would wait for ever for a thread that dies before its first line.
        self._thread = start_new_thread(self._run, (life,))

    def _run(self, _life: _Life) -> None:
        with self:
            self._answer.append(self._work())
        _left_alone.discard(get_ident())

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        """Keep an error: `outcome` raises it where somebody waits for it."""
        self._error = error
        self._under_way.release()
        return True

    def wait(self, seconds: float) -> bool:
        """Test whether the work is over, after some seconds at the latest."""
        dead = self._life() is None  # and whoever is dead has said before that it is over
        self._over = self._over or self._under_way.acquire(timeout=seconds)
        if dead and not self._over:
            raise MemoryError
        return self._over

    def leave_alone(self) -> None:
        """Wait for it no more."""
        _left_alone.add(self._thread)

    def outcome(self) -> T:
        """Wait for the end; return the answer, or raise the error."""
        while not self.wait(POLL_S):
            pass
        if self._error is not None:
            raise self._error
        return self._answer[0]
