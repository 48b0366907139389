"""What computes on a Ray cluster: an actor, in a process that Ray starts."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Condition
from typing import Any, NamedTuple

from dnnp.core.runtime.values import Values, to_numpy
from dnnp.core.runtime.workers.messages import Failed, failure_of
from dnnp.core.runtime.workers.recipes import Computing
from dnnp.core.runtime.workers.staff import Post

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
    """A stage; what it returns first of each call is `Failed`, or figures.

    Ray calls it from several threads, so that values come and go while one thread computes, which
    takes the jobs by their numbers.
    """

    def __init__(
        self, recipe: bytes, path: Sequence[str], post: Post, names: Sequence[str], *values: Any
    ) -> None:
        """`path` is where the one who starts it finds modules; values go by `names`."""
        sys.path += [folder for folder in path if folder not in sys.path]
        self._given = recipe, dict(zip(names, values, strict=True)), post.place.cores
        self._next = 0
        self._changed = Condition()
        self._thread = ThreadPoolExecutor(1)

    def make(self) -> Failed | Home:
        """Make the stage."""
        return self._thread.submit(self._make).result()

    def _make(self) -> Failed | Home:
        import ray

        try:
            self._computing = Computing(*self._given)
        except Exception as error:  # a stage may be anybody's code
            return failure_of(error)
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

    def _compute(self, values: Values) -> tuple[Failed | tuple[int, int, int], Values]:
        start_ns = time.perf_counter_ns()
        try:
            found = self._computing.stage(values)
        except Exception as error:  # as above
            return failure_of(error), {}
        end_ns = time.perf_counter_ns()
        return (start_ns, end_ns, self._computing.waited_ns(end_ns)), found
