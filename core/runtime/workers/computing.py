"""A stage where it computes, in a process or an actor: its thread, its core, what it waits for."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dnnp.core.model.processors import keep_on
from dnnp.core.runtime.values import Values
from dnnp.core.runtime.waits import WaitClock, with_threads

if TYPE_CHECKING:
    from dnnp.core.runtime.workers.recipes import Stage


class Computing:
    """A stage in the thread that makes it, which is bound to the first of its cores."""

    def __init__(self, recipe: bytes, values: Values, cores: Sequence[int]) -> None:
        """`recipe` is pickled; raises `DnnpError`, and whatever a stage of others raises."""
        made = pickle.loads(recipe)
        self.stage: Stage
        self.stage, self.threads = with_threads(lambda: made.make(values))
        """Numbers of the threads that compute with the first one: `threads`."""
        keep_on(cores[:1])
        self._waits = WaitClock()

    def waited_ns(self, now_ns: int) -> int:
        """How long the thread waited for its core since this was last more than 0."""
        return self._waits.at_times_ns(now_ns, self.threads)
