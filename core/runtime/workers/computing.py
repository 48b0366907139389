"""A stage where it computes, in a process or an actor: its thread, its core, what it waits for."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from dnnp.core.runtime.values import Values
from dnnp.core.runtime.waits import WaitClock, with_threads

if TYPE_CHECKING:
    from dnnp.core.runtime.workers.recipes import Stage

WAITS_NS = 50_000_000
"""How often the system is asked how long this thread has waited, at most."""


class Computing:
    """A stage in the thread that makes it, which is bound to the first of its cores."""

    def __init__(self, recipe: bytes, values: Values, cores: Sequence[int]) -> None:
        """`recipe` is pickled; raises `DnnpError`, and whatever a stage of others raises."""
        made = pickle.loads(recipe)
        self.stage: Stage
        self.stage, self.threads = with_threads(lambda: made.make(values))
        """Numbers of the threads that compute with the first one: `threads`."""
        if cores and hasattr(os, "sched_setaffinity"):
            with suppress(OSError):  # a core that was taken away meanwhile
                os.sched_setaffinity(0, cores[:1])
        self._waits, self._asked_ns = WaitClock(), time.perf_counter_ns()

    def waited_ns(self, now_ns: int) -> int:
        """How long the thread waited for its core since this was last more than 0."""
        if now_ns - self._asked_ns <= WAITS_NS:
            return 0
        self._asked_ns = now_ns
        return self._waits.passed_ns(self.threads)
