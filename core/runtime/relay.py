"""Jobs that are computed elsewhere: one thread sends them, another takes what comes of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from threading import Condition
from typing import Generic, NamedTuple, Protocol, TypeVar

from dnnp.core.runtime.channel import ClosedError
from dnnp.core.runtime.values import Values

J = TypeVar("J")


class Answer(NamedTuple):
    """What came of a job. Times are nanoseconds of `time.perf_counter_ns`, of this machine."""

    values: Values
    start_ns: int
    end_ns: int
    waited_ns: int = 0
    """How long the thread that computes could have run since the last answer that says more than
    0, but its processor ran something else."""


class Remote(Protocol):
    """Computes elsewhere. Two threads use it: one submits, one asks for results."""

    @property
    def ahead(self) -> int:
        """Jobs that it may hold, of which it computes one."""

    def submit(self, values: Values, sample: int) -> None:
        """Send a job; raises `DnnpError`."""

    def result(self) -> Answer:
        """Wait for the oldest job; raises `DnnpError`, and `ClosedError` when it was stopped."""

    def call(self, values: Values) -> Values:
        """Compute one sample, while nobody else asks for anything; raises `DnnpError`."""

    def stop(self) -> None:
        """End for good, soon, whatever is under way."""


class Relay(Generic[J]):
    """Sends jobs one after the other, the next one while one is computed; answers come in order.

    Only jobs of the same worker are sent ahead: those of others wait until it is done.
    """

    def __init__(
        self,
        jobs: Iterable[J],
        remote_of: Callable[[J], Remote | None],
        send: Callable[[J], Answer | None],
        take: Callable[[J, Answer | None], None],
    ) -> None:
        """`send` waits for the inputs of a job and submits it, unless its answer is known already;
        `take` waits for the answer, if it is not known, and hands it on. A job without a worker
        elsewhere is done when it is sent, while no other is under way."""
        self._jobs, self._remote_of, self._send, self._take = jobs, remote_of, send, take
        self._under_way: deque[tuple[J, Remote | None, Answer | None]] = deque()
        self._changed = Condition()
        self._fed = self._closed = False

    def feed(self) -> None:
        """Send all jobs."""
        try:
            for job in self._jobs:
                remote = self._remote_of(job)
                with self._changed:
                    self._changed.wait_for(partial(self._may_send, remote))
                    if self._closed:
                        return
                known = self._send(job)
                with self._changed:
                    self._under_way.append((job, remote, known))
                    self._changed.notify_all()
        except ClosedError:
            return
        finally:
            with self._changed:
                self._fed = True
                self._changed.notify_all()

    def _may_send(self, remote: Remote | None) -> bool:
        held = self._under_way
        if self._closed or not held:
            return True
        return remote is not None and held[-1][1] is remote and len(held) < remote.ahead

    def collect(self) -> J | None:
        """Hand on what comes of them; returns the last one."""
        last: J | None = None
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._closed or self._under_way or self._fed)
                    if self._closed or not self._under_way:
                        return last
                    job, _, known = self._under_way[0]
                self._take(job, known)
                last = job
                with self._changed:
                    self._under_way.popleft()
                    self._changed.notify_all()
        except ClosedError:
            return last

    def close(self) -> None:
        """Wake both."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
