"""What a pipeline is made of: its stages, who computes them, and one sample in one of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from dnnp.core.model.processes import keep_on
from dnnp.core.runtime.limits import watched
from dnnp.core.runtime.relay import Remote
from dnnp.core.runtime.values import Values

Call = Callable[[Values], Values]


@dataclass(frozen=True)
class Worker:
    """A thread that computes: one replica of a stage, or a whole model."""

    name: str
    """For messages: `stage 2`, or `replica 1 of stage 2`."""
    call: Call
    """Computes the outputs of one sample."""
    cores: tuple[int, ...] = ()
    """The thread runs on the first of these; empty: anywhere."""
    stop: Callable[[], None] | None = None
    """Makes a call that is under way end soon."""
    threads: tuple[int, ...] = ()
    """Other threads that compute with this one, by the system's numbers."""
    remote: Remote | None = None
    """Who computes, if it is no thread of this process."""

    def run(self, values: Values) -> Values:
        """Compute, within the limits of time and memory."""
        if self.remote is not None:  # it has limits of its own
            return self.call(values)
        with watched(self.name):
            return self.call(values)

    def pin(self) -> None:
        """Keep the calling thread on the first core."""
        keep_on(self.cores[:1])


@dataclass(frozen=True)
class Step:
    """One stage of a pipeline."""

    name: str
    """For messages: `stage 2`."""
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    workers: tuple[Worker, ...]
    """Its replicas; they take the samples in turn."""
    takes: Mapping[str, int] = field(default_factory=dict)
    """Inputs that come from another step than their maker -> that step, which has them too."""


class Job(NamedTuple):
    """One sample in one replica of a step: what a thread does in one go."""

    step: int
    replica: int
    sample: int


@dataclass(frozen=True)
class Steered:
    """What each device runs, where not every replica runs its samples in turn."""

    orders: Sequence[Sequence[Job]]
    """One job after the other; together every sample once in each step."""
    room: Mapping[tuple[int, int], int] = field(default_factory=dict)
    """Samples that may wait between two steps; all, where it does not say."""
    waits: Collection[tuple[int, int]] = ()
    """Steps that come after a step whether they read what it makes or not."""
