"""Workers outside this process: what processes and Ray actors have in common.

A worker that is lost is replaced, and its jobs are computed again; nothing waits for ever.
"""

from __future__ import annotations

import math
import pickle
import time
import weakref
from abc import ABC, abstractmethod
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from dnnp.core.model.errors import DnnpError, InputFileError, LimitError
from dnnp.core.model.text import counted
from dnnp.core.runtime.model.providers import Place
from dnnp.core.runtime.model.session import Values
from dnnp.core.runtime.pipeline.steps import Answer
from dnnp.core.runtime.pipeline.threads import ClosedError
from dnnp.core.runtime.workers.messages import Recipe

S = TypeVar("S")

RECENT = 64
"""Inputs of which a copy is kept, since samples take them in turn."""

POLL_S = 0.1
"""Seconds between looks whether the run was interrupted, while workers are made."""


class WorkerSpec(NamedTuple):
    """Name and resources of a worker."""

    name: str
    """For messages: `stage 2`, or `replica 1 of stage 2`."""
    place: Place = Place()
    device: str = ""
    """Device of the plan: `cpu-core/1`."""
    threads: int = 1
    gpus: int = 0


class Loss(NamedTuple):
    """A worker that was lost, and started again."""

    worker: str
    sample: int
    """The sample that it had, in its pass through the pipeline."""
    reason: str


@dataclass(frozen=True)
class Rules:
    """Limits for all workers of a run, and callbacks."""

    retries: int = 0
    """Times that each worker is started again when it is lost."""
    seconds: float = math.inf
    """Time limit of a job, or of creating a session."""
    memory_bytes: float = math.inf
    """Memory limit of tensors between workers."""
    note: Callable[[str], None] = lambda message: None
    """Callback with every loss."""
    interrupted: Callable[[], bool] = lambda: False
    by_device: bool = False
    """A worker holds all stages of its device, which runs jobs in one order."""


class LostError(Exception):
    """A worker has gone, or has to go; says why."""

    def __init__(self, reason: str, kind: type[DnnpError] = InputFileError) -> None:
        super().__init__(reason)
        self.kind = kind


class WorkerPool(Generic[S]):
    """Makes workers of one kind, and holds the values that they read."""

    kind: ClassVar[str]
    """`process` or `ray`."""

    def __init__(self, rules: Rules, shared_type: type[S], share: Callable[[Any], S]) -> None:
        """`share` puts a value where all workers see it."""
        self.rules = rules
        self.workers: list[Any] = []
        self.losses: list[Loss] = []
        """Workers that were lost and restarted."""
        self._shared_type, self._share = shared_type, share
        self._recent = Recent(share)
        self._of_device: dict[str, Any] = {}

    def place(self, place: Place) -> Place:
        """Translate a place of this machine to where the workers are."""
        return place

    def add(
        self, spec: WorkerSpec, recipe: Recipe, values: Mapping[str, S]
    ) -> tuple[RemoteWorker[Any], int]:
        """Request a stage in a worker; returns the worker and the stage's number there.

        `values` are what `share` returned, for one stage or several.
        """
        worker = self._of_device.get(spec.device) if self.rules.by_device else None
        if worker is None:
            worker = self._of_device[spec.device] = self._worker(spec)
            self.workers.append(worker)
        else:
            worker.name = spec.device
        return worker, worker.add(recipe, values)

    def _worker(self, spec: WorkerSpec) -> RemoteWorker[Any]:
        """A worker without any stage."""
        raise NotImplementedError

    def share(self, values: Values) -> dict[str, S]:
        """Put values where all workers see them."""
        return {name: self._share(value) for name, value in values.items()}

    def held(self, values: Values) -> dict[str, S]:
        """Values as workers take them: what came from one as it is, copies of inputs."""
        kind, copy = self._shared_type, self._recent.of
        return {n: v if isinstance(v, kind) else copy(v) for n, v in values.items()}

    def ready(self) -> None:
        """Wait until all workers are made; raises `DnnpError`."""
        for worker in self.workers:
            worker.ready()

    def close(self) -> None:
        """End all workers, and all else that was started for them."""
        for worker in self.workers:
            worker.stop()
        for worker in self.workers:
            worker.close()
        self._recent.clear()

    def note_loss(self, loss: Loss, again: int) -> None:
        """Note a loss; `again` samples are computed again."""
        self.losses.append(loss)
        self.rules.note(
            f"{loss.worker}: sample {loss.sample}: {loss.reason}; it was restarted and computes "
            f"{counted(again, 'sample')} again"
        )


class Recent(Generic[S]):
    """Copies of the last arrays seen, by identity, while the arrays live."""

    def __init__(self, copy: Callable[[Any], S]) -> None:
        self._copy = copy
        self._held: OrderedDict[int, tuple[weakref.ref[Any], S]] = OrderedDict()
        self._lock = Lock()

    def of(self, value: Any) -> S:
        """Return the copy of a value."""
        with self._lock:
            seen, copy = self._held.get(id(value), (None, None))
            if seen is not None and copy is not None and seen() is value:
                self._held.move_to_end(id(value))
                return copy
        made = self._copy(value)
        try:
            seen = weakref.ref(value)
        except TypeError:  # a list, or a number
            return made
        with self._lock:
            self._held[id(value)] = seen, made
            while len(self._held) > RECENT:
                self._held.popitem(last=False)
        return made

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            self._held.clear()


@dataclass
class Sent:
    """A job in execution, with the data to send it again."""

    sample: int
    part: int
    """Number of the stage in its worker."""
    values: Mapping[str, Any]
    sent_s: float = field(default_factory=time.monotonic, kw_only=True)


J = TypeVar("J", bound=Sent)


class RemoteWorker(ABC, Generic[J]):
    """A worker with stages, and another one when that is lost: a `Remote`."""

    ahead = 3
    """Jobs that a worker holds: the next ones wait there while one runs."""

    def __init__(self, name: str, pool: WorkerPool[Any]) -> None:
        self.name = name
        self._pool, self._rules = pool, pool.rules
        self._parts: list[tuple[bytes, Mapping[str, Any]]] = []
        """Recipe of each stage, pickled, and the values that it keeps."""
        self._jobs: deque[J] = deque()
        self._lock = Lock()
        """Held while something is sent, or the worker is replaced."""
        self._answered_s = 0.0
        self._lost = 0
        self._stopped = False
        self._given_up: tuple[type[DnnpError], str] | None = None
        """Reason why the worker was given up."""

    @abstractmethod
    def _start(self) -> None:
        """Start the worker; `_made` waits for it."""

    @abstractmethod
    def _made(self, seconds: float) -> bool:
        """Wait so long until it is made; returns whether it is, raises what `_answer` does."""

    @abstractmethod
    def _job(self, sample: int, part: int, values: Mapping[str, Any]) -> J:
        """Make a job to be sent."""

    @abstractmethod
    def _send(self, job: J) -> None:
        """Send a job; what cannot be sent is noticed when there is no answer."""

    @abstractmethod
    def _answer(self, job: J, seconds: float) -> Answer | None:
        """Wait so long for the answer to the oldest job; None: there is none yet.

        Raises
        ------
        LostError
            There is no such worker any more.
        DnnpError
            The error that it reports, or of the request.
        """

    @abstractmethod
    def _kill(self) -> None:
        """End the worker at once, and waits for its answers."""

    @abstractmethod
    def _clear(self) -> None:
        """End it, and let go of all that it had."""

    def add(self, recipe: Recipe, values: Mapping[str, Any]) -> int:
        """Request one more stage; returns its number."""
        self._parts.append((pickle.dumps(recipe), values))
        return len(self._parts) - 1

    def ready(self) -> None:
        """Wait until all stages are made; raises `DnnpError`."""
        try:
            self._await_made()
        except LostError as loss:
            raise loss.kind(f"{self.name}: making its session: {loss}") from None

    def submit(self, values: Values, sample: int, part: int = 0) -> None:
        """Send a job, whose inputs come from other workers or from outside."""
        self._check()
        held = self._pool.held(values)
        with self._lock:
            job = self._job(sample, part, held)
            self._jobs.append(job)
            self._send(job)

    def result(self) -> Answer:
        """Wait for the oldest job; a worker that is lost meanwhile is replaced."""
        while True:
            job = self._jobs[0]
            try:
                self._check()
                due_s = max(job.sent_s, self._answered_s) + self._rules.seconds
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

    def call(self, values: Values, part: int = 0) -> Values:
        """Compute one sample without other jobs under way."""
        self.submit(values, 0, part)
        return self.result().values

    def resident_bytes(self) -> int:
        """Memory that the worker holds beyond an empty session, while it has no job; 0: unknown."""
        return 0

    def stop(self) -> None:
        """End for good."""
        self._stopped = True
        self._kill()

    def close(self) -> None:
        """End for good, and drop all jobs under way."""
        self._stopped = True
        self._clear()
        self._jobs.clear()
        self._parts.clear()

    def _check(self) -> None:
        """Raise the reason if there is no worker any more."""
        if self._given_up is not None:
            raise self._given_up[0](self._given_up[1])

    def _late(self) -> LostError:
        return LostError(f"not done after {self._rules.seconds:g} s (--stage-timeout)", LimitError)

    def _await_made(self) -> None:
        due_s = time.monotonic() + self._rules.seconds * len(self._parts)
        while not self._made(min(POLL_S, max(due_s - time.monotonic(), 0.0))):
            if time.monotonic() > due_s:
                raise self._late()
            if self._rules.interrupted() or self._stopped:
                return

    def _replace(self, loss: LostError) -> None:
        """Start another worker and send it all jobs again, or give up."""
        with self._lock:
            while not self._stopped:
                sample = self._jobs[0].sample
                self._clear()
                if self._lost >= self._rules.retries:
                    self._given_up = loss.kind, str(loss)
                    self._jobs.popleft()
                    self._check()
                self._lost += 1
                self._pool.note_loss(Loss(self.name, sample, str(loss)), len(self._jobs))
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
