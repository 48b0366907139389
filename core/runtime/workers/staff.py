"""Where workers come from, if they are no threads, and what became of them."""

from __future__ import annotations

import math
import weakref
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from dnnp.core.runtime.relay import Remote
from dnnp.core.runtime.session import Place
from dnnp.core.runtime.values import Values
from dnnp.core.runtime.workers.recipes import Recipe

S = TypeVar("S")

RECENT = 64
"""Inputs of which a copy is kept, since samples take them in turn."""


class Post(NamedTuple):
    """Where a worker is to be."""

    name: str
    """For messages: `stage 2`, or `replica 1 of stage 2`."""
    place: Place = Place()
    device: str = ""
    """Of the plan: `cpu-core/1`."""
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
    """What holds for all workers of a run."""

    retries: int = 0
    """How often each worker is started again when it is lost."""
    seconds: float = math.inf
    """That a job, or the making of a session, may take."""
    memory_bytes: float = math.inf
    """That tensors between workers may take."""
    note: Callable[[str], None] = lambda message: None
    """Told of every loss."""
    interrupted: Callable[[], bool] = lambda: False


@dataclass
class Losses:
    """What was lost so far."""

    rules: Rules
    losses: list[Loss] = field(default_factory=list)

    def add(self, loss: Loss, again: int) -> None:
        """Note a loss; so many samples are computed again."""
        self.losses.append(loss)
        samples = f"{again} sample{'s' if again != 1 else ''}"
        self.rules.note(
            f"{loss.worker}: sample {loss.sample}: {loss.reason}; it was restarted and computes "
            f"{samples} again"
        )


class Staff(Protocol):
    """Makes workers of one kind."""

    @property
    def kind(self) -> str:
        """`process`, ..."""

    @property
    def losses(self) -> list[Loss]:
        """Workers that were lost and restarted."""

    def place(self, place: Place) -> Place:
        """What a place of this machine is where the workers are."""

    def hire(self, post: Post, recipe: Recipe, values: Any) -> Remote:
        """Have a worker made; `values` are what `share` returned, for one worker or several."""

    def share(self, values: Values) -> Any:
        """Put values where all workers see them."""

    def ready(self) -> None:
        """Wait until all workers are made; raises `DnnpError`."""

    def close(self) -> None:
        """End all workers, and whatever else was started for them."""


class Recent(Generic[S]):
    """Copies of the arrays that were seen last, by identity, as long as the arrays live."""

    def __init__(self, copy: Callable[[Any], S]) -> None:
        self._copy = copy
        self._held: OrderedDict[int, tuple[weakref.ref[Any], S]] = OrderedDict()
        self._lock = Lock()

    def of(self, value: Any) -> S:
        """The copy of a value."""
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
