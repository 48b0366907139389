"""Workers elsewhere that are replaced when they are lost: whose jobs are under way, and where.

What a worker is, a process or an actor, stands in `process.py` and `ray_staff.py`.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Generic, TypeVar

from dnnp.core.model.errors import DnnpError, InputFileError, LimitError
from dnnp.core.runtime.channel import ClosedError
from dnnp.core.runtime.relay import Answer
from dnnp.core.runtime.values import Values
from dnnp.core.runtime.workers.staff import Loss, Losses, Recent, Rules

POLL_S = 0.1
"""How often to look whether the run was interrupted, while workers are made."""


class LostError(Exception):
    """A worker has gone, or has to go; says why."""

    def __init__(self, reason: str, kind: type[DnnpError] = InputFileError) -> None:
        super().__init__(reason)
        self.kind = kind


@dataclass
class Sent:
    """A job that is under way, with what it needs to be sent again."""

    sample: int
    values: Mapping[str, Any]
    sent_s: float = field(default_factory=time.monotonic, kw_only=True)


J = TypeVar("J", bound=Sent)
S = TypeVar("S")
W = TypeVar("W", bound="RemoteWorker[Any]")


class RemoteStaff(Generic[S, W]):
    """What the staffs have in common: rules, losses, workers, and inputs from outside."""

    def __init__(self, rules: Rules, kind: type[S], copy: Callable[[Any], S]) -> None:
        """`copy` puts a value where all workers see it, as a value of this kind."""
        self.rules, self.lost = rules, Losses(rules)
        self.workers: list[W] = []
        self._kind, self._copy = kind, copy
        self._recent = Recent(copy)

    @property
    def losses(self) -> list[Loss]:
        """Workers that were lost and restarted."""
        return self.lost.losses

    def share(self, values: Values) -> dict[str, S]:
        """Put values where all workers see them."""
        return {name: self._copy(value) for name, value in values.items()}

    def held(self, values: Values) -> dict[str, S]:
        """Values as workers take them: what came from one as it is, copies of inputs."""
        kind, copy = self._kind, self._recent.of
        return {n: v if isinstance(v, kind) else copy(v) for n, v in values.items()}

    def ready(self) -> None:
        """Wait until all workers are made."""
        for worker in self.workers:
            worker.ready()

    def close(self) -> None:
        """End all workers."""
        for worker in self.workers:
            worker.stop()
        for worker in self.workers:
            worker.close()
        self._recent.clear()


class RemoteWorker(ABC, Generic[J]):
    """A stage in a worker of its own, and in another one when that is lost."""

    ahead = 3
    """Jobs that a worker holds: the next ones are there when one is done."""

    def __init__(self, name: str, staff: RemoteStaff[Any, Any]) -> None:
        self.name = name
        self._rules, self._losses, self._held = staff.rules, staff.lost, staff.held
        self._jobs: deque[J] = deque()
        self._lock = Lock()
        """Held while something is sent, or the worker is replaced."""
        self._answered_s = 0.0
        self._lost = 0
        self._stopped = False
        self._given_up: tuple[type[DnnpError], str] | None = None
        """Why there is no worker any more."""

    @abstractmethod
    def _start(self) -> None:
        """Have it made; `_made` waits for it."""

    @abstractmethod
    def _made(self, seconds: float) -> bool:
        """Whether it is made, before so many seconds are over; raises what `_answer` does."""

    @abstractmethod
    def _job(self, sample: int, values: Mapping[str, Any]) -> J:
        """A job to be sent."""

    @abstractmethod
    def _send(self, job: J) -> None:
        """Send a job; what cannot be sent is noticed when there is no answer."""

    @abstractmethod
    def _answer(self, job: J, seconds: float) -> Answer | None:
        """What came of the oldest job; None: nothing before so many seconds were over.

        Raises
        ------
        LostError
            There is no such worker any more.
        DnnpError
            What it says, or that it cannot be asked.
        """

    @abstractmethod
    def _kill(self) -> None:
        """End it at once; whoever waits for an answer is told."""

    @abstractmethod
    def _clear(self) -> None:
        """End it, and let go of all that it had."""

    def ready(self) -> None:
        """Wait until the stage is made; raises `DnnpError`."""
        try:
            self._await_made()
        except LostError as loss:
            raise loss.kind(f"{self.name}: making its session: {loss}") from None

    def submit(self, values: Values, sample: int) -> None:
        """Send a job, whose inputs come from other workers or from outside."""
        if self._given_up is not None:
            raise self._given_up[0](self._given_up[1])
        held = self._held(values)
        with self._lock:
            job = self._job(sample, held)
            self._jobs.append(job)
            self._send(job)

    def result(self) -> Answer:
        """Wait for the oldest job; a worker that is lost meanwhile is replaced."""
        while True:
            job = self._jobs[0]
            if self._given_up is not None:
                self._jobs.popleft()
                raise self._given_up[0](self._given_up[1])
            due_s = max(job.sent_s, self._answered_s) + self._rules.seconds
            try:
                answer = self._answer(job, due_s - time.monotonic())
                if answer is None:
                    raise self._late()
            except LostError as loss:
                self._replace(loss)
                continue
            except DnnpError:
                self._jobs.popleft()
                raise
            self._answered_s = time.monotonic()
            self._jobs.popleft()
            return answer

    def call(self, values: Values) -> Values:
        """Compute one sample while nobody else asks for anything."""
        self.submit(values, 0)
        return self.result().values

    def stop(self) -> None:
        """End for good."""
        self._stopped = True
        self._kill()

    def close(self) -> None:
        """End for good, and let go of whatever is under way."""
        self._stopped = True
        self._clear()
        self._jobs.clear()

    def _late(self) -> LostError:
        return LostError(f"not done after {self._rules.seconds:g} s (--stage-timeout)", LimitError)

    def _await_made(self) -> None:
        due_s = time.monotonic() + self._rules.seconds
        while not self._made(min(POLL_S, max(due_s - time.monotonic(), 0.0))):
            if time.monotonic() > due_s:
                raise self._late()
            if self._rules.interrupted() or self._stopped:
                return

    def _replace(self, loss: LostError) -> None:
        """Have another worker made, and send it all jobs again; or give up."""
        with self._lock:
            while not self._stopped:
                sample = self._jobs[0].sample
                self._clear()
                if self._lost >= self._rules.retries:
                    self._given_up = loss.kind, str(loss)
                    self._jobs.popleft()
                    raise loss.kind(str(loss))
                self._lost += 1
                self._losses.add(Loss(self.name, sample, str(loss)), len(self._jobs))
                try:
                    self._start()
                    self._await_made()
                except LostError as another:
                    loss = another
                    continue
                for job in self._jobs:
                    self._send(job)
                self._answered_s = time.monotonic()
                break
        if self._stopped:
            self._kill()
            raise ClosedError


def finite(seconds: float) -> float | None:
    """A time to wait as others take it: None is for ever."""
    return None if seconds == math.inf else max(seconds, 0.0)
