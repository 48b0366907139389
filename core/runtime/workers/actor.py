"""What computes on a Ray cluster: an actor, in a process that Ray starts."""

from __future__ import annotations

import os
import pickle
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Condition
from typing import Any, NamedTuple

from dnnp.core.model.errors import DnnpError, InputFileError
from dnnp.core.runtime.values import Values, to_numpy
from dnnp.core.runtime.waits import WaitClock, with_threads
from dnnp.core.runtime.workers.staff import Post

WAITS_NS = 50_000_000
"""How often the system is asked how long this thread has waited, at most."""

_BOOT = "/proc/sys/kernel/random/boot_id"


class Home(NamedTuple):
    """Where an actor is."""

    node: str
    """Its address."""
    machine: str
    """Of all processes that share a clock; empty: not known."""


def machine() -> str:
    """What tells this machine from others, as long as it runs."""
    with suppress(OSError), open(_BOOT, encoding="ascii") as file:
        return file.read().strip()
    return ""


class Computer:
    """A stage; what it returns first of each call is an error as (kind, reason), or figures.

    Ray calls it from several threads, so that values come and go while one thread computes, which
    takes the jobs by their numbers.
    """

    def __init__(
        self, recipe: bytes, path: Sequence[str], post: Post, names: Sequence[str], *values: Any
    ) -> None:
        """`path` is where the one who starts it finds modules; values go by `names`."""
        self._made = (recipe, path, list(names), values)
        self._cores = post.place.cores
        self._stage: Any = None
        self._threads: tuple[int, ...] = ()
        self._next = 0
        self._changed = Condition()
        self._thread = ThreadPoolExecutor(1)

    def make(self) -> tuple[str, str] | Home:
        """Make the stage."""
        return self._thread.submit(self._make).result()

    def _make(self) -> tuple[str, str] | Home:
        import ray

        recipe, path, names, values = self._made
        sys.path += [folder for folder in path if folder not in sys.path]
        try:
            stage = pickle.loads(recipe)
            held = dict(zip(names, values, strict=True))
            self._stage, self._threads = with_threads(lambda: stage.make(held))
        except DnnpError as error:
            return type(error).__name__, str(error)
        except Exception as error:  # a stage may be anybody's code
            return InputFileError.__name__, said(error)
        if self._cores and hasattr(os, "sched_setaffinity"):
            with suppress(OSError):  # a core that was taken away meanwhile
                os.sched_setaffinity(0, self._cores[:1])
        self._waits, self._asked_ns = WaitClock(), time.perf_counter_ns()
        return Home(ray.util.get_node_ip_address(), machine())

    def clock(self) -> int:
        """What the clock says here."""
        return time.perf_counter_ns()

    def compute(
        self, number: int, names: Sequence[str], outputs: Sequence[str], *values: Any
    ) -> Any:
        """(start, end, waited) in nanoseconds, then the outputs; of one sample."""
        with self._changed:
            self._changed.wait_for(lambda: self._next == number)
            future = self._thread.submit(self._compute, dict(zip(names, values, strict=True)))
            self._next += 1
            self._changed.notify_all()
        figures, found = future.result()
        return (figures, *(to_numpy(found.get(name)) for name in outputs))

    def _compute(self, values: Values) -> tuple[tuple[Any, ...], Values]:
        start_ns = time.perf_counter_ns()
        try:
            found = self._stage(values)
        except DnnpError as error:
            return (type(error).__name__, str(error)), {}
        except Exception as error:  # a stage may be anybody's code
            return (InputFileError.__name__, said(error)), {}
        end_ns, waited_ns = time.perf_counter_ns(), 0
        if end_ns - self._asked_ns > WAITS_NS:
            waited_ns, self._asked_ns = self._waits.passed_ns(self._threads), end_ns
        return (start_ns, end_ns, waited_ns), found


def said(error: Exception) -> str:
    """The kind of an error and the first line of its text."""
    text = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
