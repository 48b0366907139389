"""Workers on a Ray cluster: actors, which hand tensors to each other through Ray's object store.

This process holds references only. A tensor goes from the node where it was made to the node where
it is read; of an actor that is lost the inputs are still there, unless their node is lost too.
"""

from __future__ import annotations

import pickle
import sys
import time
from collections import deque
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import numpy as np

from dnnp.core.model.errors import DnnpError, InputFileError, LimitError
from dnnp.core.runtime.channel import ClosedError
from dnnp.core.runtime.relay import Answer
from dnnp.core.runtime.session import Place
from dnnp.core.runtime.values import Values, to_numpy
from dnnp.core.runtime.workers.actor import Computer, Home, machine
from dnnp.core.runtime.workers.cluster import Seat, connected, seats
from dnnp.core.runtime.workers.recipes import Recipe
from dnnp.core.runtime.workers.staff import Loss, Losses, Post, Recent, Rules, error_of, pick

AHEAD = 3
"""Jobs that an actor holds: a call takes about a millisecond to get there."""

_POLL_S = 0.1
"""How often to look whether the run was interrupted, while workers are made."""

_CLOCK_ROUNDS = 5


class Stored:
    """A value in the object store, as long as somebody refers to it."""

    __slots__ = ("_ray", "ref")

    def __init__(self, ray: Any, ref: Any) -> None:
        self._ray, self.ref = ray, ref

    def fetch(self) -> Any:
        """The value, in memory of its own."""
        value = self._ray.get(self.ref)
        return value.copy() if isinstance(value, np.ndarray) else value


class _LostError(Exception):
    """An actor has gone, or has to go; says why."""

    def __init__(self, reason: str, kind: type[DnnpError] = InputFileError) -> None:
        super().__init__(reason)
        self.kind = kind


@dataclass
class _Sent:
    """A job that is under way, with what it needs to be sent again."""

    sample: int
    values: Mapping[str, Stored]
    refs: list[Any] = field(default_factory=list)
    sent_s: float = field(default_factory=time.monotonic)


class RayWorker:
    """A stage in an actor, and in another one when that is lost."""

    ahead = AHEAD

    def __init__(
        self, post: Post, recipe: Recipe, values: Mapping[str, Stored], staff: RayStaff
    ) -> None:
        self.name, self.post = post.name, post
        self._outputs = tuple(recipe.outputs)
        self._recipe, self._values = pickle.dumps(recipe), values
        self._staff = staff
        self._seat = Seat("", False, {})
        self._jobs: deque[_Sent] = deque()
        self._lock = Lock()
        self._answered_s = 0.0
        self._lost = 0
        self._stopped = False
        self._given_up: tuple[type[DnnpError], str] | None = None
        """Why there is no worker any more."""
        self._actor: Any = None
        self._sent = 0
        """Jobs that the actor was sent."""
        self._made: Any = None
        self._ahead_ns = 0
        """How far the clock of the actor is ahead of the one here."""

    def begin(self, seat: Seat) -> None:
        """Have the actor made; `ready` waits for it."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self._seat, self._sent = seat, 0
        where = NodeAffinitySchedulingStrategy(seat.node, soft=not seat.bound)
        ray, values = self._staff.ray, self._values
        how = {"max_restarts": 0, "max_task_retries": 0, "max_concurrency": AHEAD + 1}
        kind = ray.remote(Computer).options(**how, **seat.options, scheduling_strategy=where)
        refs = [value.ref for value in values.values()]
        self._actor = kind.remote(self._recipe, sys.path, self.post, list(values), *refs)
        self._made = self._actor.make.remote()

    def ready(self) -> None:
        """Wait until the stage is made; raises `DnnpError`."""
        try:
            self._await_made()
        except _LostError as loss:
            raise loss.kind(f"{self.name}: making its session: {loss}") from None

    def submit(self, values: Values, sample: int) -> None:
        """Send a job, whose inputs come from other workers or from outside."""
        if self._given_up is not None:
            raise self._given_up[0](self._given_up[1])
        held = pick(values, Stored, self._staff.recent.of)
        with self._lock:
            job = _Sent(sample, held)
            self._jobs.append(job)
            self._send(job)

    def result(self) -> Answer:
        """Wait for the oldest job; an actor that is lost meanwhile is replaced."""
        while True:
            job = self._jobs[0]
            if self._given_up is not None:
                self._jobs.popleft()
                raise self._given_up[0](self._given_up[1])
            try:
                figures = self._answer(job)
            except _LostError as loss:
                self._replace(loss)
                continue
            self._answered_s = time.monotonic()
            self._jobs.popleft()
            if len(figures) == 2:
                raise error_of(*figures)
            start_ns, end_ns, waited_ns = figures
            stored = (Stored(self._staff.ray, ref) for ref in job.refs[1:])
            values = dict(zip(self._outputs, stored, strict=True))
            return Answer(values, start_ns - self._ahead_ns, end_ns - self._ahead_ns, waited_ns)

    def call(self, values: Values) -> Values:
        """Compute one sample while nobody else asks for anything."""
        self.submit(values, 0)
        return self.result().values

    def stop(self) -> None:
        """End for good."""
        self._stopped = True
        self._kill()

    def _kill(self) -> None:
        if self._actor is not None:
            with suppress(Exception):  # it may have ended, or the whole cluster
                self._staff.ray.kill(self._actor)

    def _send(self, job: _Sent) -> None:
        refs = [value.ref for value in job.values.values()]
        call = self._actor.compute.options(num_returns=1 + len(self._outputs))
        found = call.remote(self._sent, list(job.values), self._outputs, *refs)
        self._sent += 1
        job.refs = list(found) if self._outputs else [found]

    def _answer(self, job: _Sent) -> Any:
        limit = self._staff.rules.seconds
        due = max(job.sent_s, self._answered_s) + limit
        return self._get(job.refs[0], due, limit)

    def _get(self, ref: Any, due: float, limit: float) -> Any:
        """A result; raises `_LostError`."""
        errors = self._staff.ray.exceptions
        try:
            seconds = None if limit == float("inf") else max(due - time.monotonic(), 0.0)
            return self._staff.ray.get(ref, timeout=seconds)
        except errors.GetTimeoutError:
            raise _LostError(f"not done after {limit:g} s (--stage-timeout)", LimitError) from None
        except (errors.RayActorError, errors.WorkerCrashedError):
            raise _LostError("its actor has ended") from None
        except errors.RayError as error:
            self._kill()  # it waits for the job for ever
            text = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise InputFileError(f"Ray: {text}") from None

    def _await_made(self) -> None:
        limit = self._staff.rules.seconds
        due = time.monotonic() + limit
        while not self._staff.ray.wait([self._made], timeout=_POLL_S)[0]:
            if time.monotonic() > due:
                raise _LostError(f"not done after {limit:g} s (--stage-timeout)", LimitError)
            if self._staff.rules.interrupted() or self._stopped:
                return
        home = self._get(self._made, due, limit)
        if not isinstance(home, Home):
            raise error_of(*home)
        self._ahead_ns = 0
        if home.machine != machine():
            self._ahead_ns = min(map(self._clock_ahead, range(_CLOCK_ROUNDS)))[1]

    def _clock_ahead(self, _: int) -> tuple[int, int]:
        """(time of a call, how far the clock there is ahead), nanoseconds."""
        before_ns = time.perf_counter_ns()
        there_ns = self._staff.ray.get(self._actor.clock.remote())
        after_ns = time.perf_counter_ns()
        return after_ns - before_ns, there_ns - (before_ns + after_ns) // 2

    def _replace(self, loss: _LostError) -> None:
        """Have another actor made, and send it all jobs again; or give up."""
        rules = self._staff.rules
        with self._lock:
            while not self._stopped:
                sample = self._jobs[0].sample
                self._kill()
                if self._lost >= rules.retries:
                    self._given_up = loss.kind, str(loss)
                    self._jobs.popleft()
                    raise loss.kind(str(loss))
                self._lost += 1
                self._staff.lost.add(Loss(self.name, sample, str(loss)), len(self._jobs))
                try:
                    self.begin(self._seat)
                    self._await_made()
                except _LostError as another:
                    loss = another
                    continue
                for job in self._jobs:
                    self._send(job)
                self._answered_s = time.monotonic()
                break
        if self._stopped:
            self._kill()
            raise ClosedError


class RayStaff:
    """Actors of a Ray cluster."""

    kind = "ray"

    def __init__(self, rules: Rules, address: str | None = None) -> None:
        self.rules, self.lost = rules, Losses(rules)
        self._open = ExitStack()
        self.ray = self._open.enter_context(connected(address, rules))
        self._local = address is None
        self.recent = Recent(self._stored)
        """Inputs from outside, in the object store."""
        self.workers: list[RayWorker] = []

    @property
    def losses(self) -> list[Loss]:
        """Workers that were lost and restarted."""
        return self.lost.losses

    def place(self, place: Place) -> Place:
        """Cores are known where the cluster is this machine; Ray shows an actor its own GPU."""
        return Place(0, place.cores if self._local else (), place.provider)

    def share(self, values: Values) -> dict[str, Stored]:
        """Put values into the object store."""
        return {name: self._stored(value) for name, value in values.items()}

    def hire(self, post: Post, recipe: Recipe, values: Mapping[str, Stored]) -> RayWorker:
        """A worker, whose actor is made by `ready`."""
        worker = RayWorker(post, recipe, values, self)
        self.workers.append(worker)
        return worker

    def ready(self) -> None:
        """Have all actors made, and wait for them."""
        found = seats(self.ray, [worker.post for worker in self.workers], self._note)
        for worker, seat in zip(self.workers, found, strict=True):
            worker.begin(seat)
        for worker in self.workers:
            worker.ready()

    def _note(self, message: str) -> None:
        if not self._local:  # of this machine that was said before
            self.rules.note(message)

    def close(self) -> None:
        """End all actors, and the cluster if it was started for them."""
        for worker in self.workers:
            worker.stop()
        self.recent.clear()
        self._open.close()

    def _stored(self, value: Any) -> Stored:
        return Stored(self.ray, self.ray.put(to_numpy(value)))
