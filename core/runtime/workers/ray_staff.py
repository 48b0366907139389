"""Workers on a Ray cluster: actors, which hand tensors to each other through Ray's object store.

This process holds references only. A tensor goes from the node where it was made to the node where
it is read; of an actor that is lost the inputs are still there, unless their node is lost too.
"""

from __future__ import annotations

import math
import pickle
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dnnp.core.model.errors import InputFileError
from dnnp.core.runtime.relay import Answer
from dnnp.core.runtime.session import Place
from dnnp.core.runtime.values import to_numpy
from dnnp.core.runtime.workers.actor import Computer, machine
from dnnp.core.runtime.workers.cluster import Seat, connected, seats
from dnnp.core.runtime.workers.messages import Failed, error_of
from dnnp.core.runtime.workers.recipes import Recipe
from dnnp.core.runtime.workers.remote import LostError, RemoteStaff, RemoteWorker, Sent, finite
from dnnp.core.runtime.workers.staff import Post, Rules

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


@dataclass
class _Sent(Sent):
    """A job, and what Ray has promised for it: figures, then outputs."""

    refs: list[Any] = field(default_factory=list)


class RayWorker(RemoteWorker[_Sent]):
    """A stage in an actor."""

    def __init__(
        self, post: Post, recipe: Recipe, values: Mapping[str, Stored], staff: RayStaff
    ) -> None:
        super().__init__(post.name, staff)
        self.post = post
        self._outputs = tuple(recipe.outputs)
        self._recipe, self._values = pickle.dumps(recipe), values
        self._ray = staff.ray
        self._seat = Seat("", False, {})
        self._actor: Any = None
        self._number = 0
        """Jobs that the actor was sent."""
        self._home: Any = None
        """What Ray has promised to say when the stage is made."""
        self._ahead_ns = 0
        """How far the clock of the actor is ahead of the one here."""

    def begin(self, seat: Seat) -> None:
        """Have the actor made there; `ready` waits for it."""
        self._seat = seat
        self._start()

    def _start(self) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self._number, seat, values = 0, self._seat, self._values
        where = NodeAffinitySchedulingStrategy(seat.node, soft=not seat.bound)
        how = {"max_restarts": 0, "max_task_retries": 0, "max_concurrency": self.ahead + 1}
        kind = self._ray.remote(Computer)
        kind = kind.options(**how, **seat.options, scheduling_strategy=where)
        refs = [value.ref for value in values.values()]
        self._actor = kind.remote(self._recipe, sys.path, self.post, list(values), *refs)
        self._home = self._actor.make.remote()

    def _made(self, seconds: float) -> bool:
        if not self._ray.wait([self._home], timeout=seconds)[0]:
            return False
        home = self._get(self._home, math.inf)
        if isinstance(home, Failed):
            raise error_of(home)
        self._ahead_ns = 0
        if home.machine != machine():
            self._ahead_ns = min(map(self._clock_ahead, range(_CLOCK_ROUNDS)))[1]
        return True

    def _clock_ahead(self, _: int) -> tuple[int, int]:
        """(time of a call, how far the clock there is ahead), nanoseconds."""
        before_ns = time.perf_counter_ns()
        there_ns = self._ray.get(self._actor.clock.remote())
        after_ns = time.perf_counter_ns()
        return after_ns - before_ns, there_ns - (before_ns + after_ns) // 2

    def _job(self, sample: int, values: Mapping[str, Stored]) -> _Sent:
        return _Sent(sample, values)

    def _send(self, job: _Sent) -> None:
        refs = [value.ref for value in job.values.values()]
        call = self._actor.compute.options(num_returns=1 + len(self._outputs))
        found = call.remote(self._number, list(job.values), self._outputs, *refs)
        self._number += 1
        job.refs = list(found) if self._outputs else [found]

    def _answer(self, job: _Sent, seconds: float) -> Answer | None:
        figures = self._get(job.refs[0], seconds)
        if figures is None:
            return None
        if isinstance(figures, Failed):
            raise error_of(figures)
        start_ns, end_ns, waited_ns = figures
        stored = (Stored(self._ray, ref) for ref in job.refs[1:])
        values = dict(zip(self._outputs, stored, strict=True))
        return Answer(values, start_ns - self._ahead_ns, end_ns - self._ahead_ns, waited_ns)

    def _get(self, ref: Any, seconds: float) -> Any:
        """What Ray has promised; raises what `_answer` does."""
        errors = self._ray.exceptions
        try:
            return self._ray.get(ref, timeout=finite(seconds))
        except errors.GetTimeoutError:
            return None
        except (errors.RayActorError, errors.WorkerCrashedError):
            raise LostError("its actor has ended") from None
        except errors.RayError as error:
            self._kill()  # it waits for the job for ever
            text = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise InputFileError(f"Ray: {text}") from None

    def _kill(self) -> None:
        if self._actor is not None:
            with suppress(Exception):  # it may have ended, or the whole cluster
                self._ray.kill(self._actor)

    def _clear(self) -> None:
        self._kill()


class RayStaff(RemoteStaff[Stored, RayWorker]):
    """Actors of a Ray cluster."""

    kind = "ray"

    def __init__(self, rules: Rules, address: str | None = None) -> None:
        super().__init__(rules, Stored, self._stored)
        self._open = ExitStack()
        self.ray = self._open.enter_context(connected(address, rules))
        self._local = address is None

    def place(self, place: Place) -> Place:
        """Cores are known where the cluster is this machine; Ray shows an actor its own GPU."""
        return Place(0, place.cores if self._local else (), place.provider)

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
        super().ready()

    def _note(self, message: str) -> None:
        if not self._local:  # of this machine that was said before
            self.rules.note(message)

    def close(self) -> None:
        """End all actors, and the cluster if it was started for them."""
        super().close()
        self._open.close()

    def _stored(self, value: Any) -> Stored:
        return Stored(self.ray, self.ray.put(to_numpy(value)))
