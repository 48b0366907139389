"""Transfers of a schedule at work: copies of tensors, or links that are emulated.

Threads of one process could read each other's tensors, but a schedule with transfers says that
they move, so they do: the thread of the link, or of the device that receives, copies every tensor
into memory of its own; from a GPU it comes to the host. An emulated link copies nothing and takes
as long as the schedule says.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dnnp.core.runtime.moved import Moved
from dnnp.core.runtime.steps import Step, Worker
from dnnp.core.runtime.trace import Trace
from dnnp.core.runtime.turns import Turns
from dnnp.core.runtime.values import Values, to_numpy


def _copied(value: Any) -> Any:
    """The value in memory of its own."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, list):
        return [_copied(entry) for entry in value]
    return to_numpy(value)


def _size(value: Any) -> int:
    """Bytes of a value; 0 where it does not tell."""
    if isinstance(value, list):
        return sum(map(_size, value))
    if hasattr(value, "tensor_size_in_bytes"):
        return int(value.tensor_size_in_bytes()) if value.is_tensor() else 0
    return int(getattr(value, "nbytes", 0))


@dataclass
class Carrier:
    """Moves the tensors of a transfer, sample by sample."""

    seconds: float | None = None
    """How long the link is to take; None: copy."""
    moved: list[int] = field(default_factory=list)
    """Bytes of each sample, in any order."""
    _stopped: threading.Event = field(default_factory=threading.Event)

    def __call__(self, values: Values) -> Values:
        """The same tensors where they are to be."""
        self.moved.append(sum(map(_size, values.values())))
        if self.seconds is None:
            return {name: _copied(value) for name, value in values.items()}
        self._stopped.wait(min(self.seconds, threading.TIMEOUT_MAX))
        return values

    def stop(self) -> None:
        """End what is under way."""
        self._stopped.set()

    @property
    def mean_bytes(self) -> float:
        """Of a sample."""
        return sum(self.moved) / max(len(self.moved), 1)


def _nothing(values: Values) -> Values:
    return {}


@dataclass(frozen=True)
class Crew:
    """The steps of a schedule."""

    steps: tuple[Step, ...]
    """Those that run nodes, then the others."""
    carriers: tuple[Carrier, ...]
    """Of each transfer."""
    turns: Turns

    def apart(self, trace: Trace) -> Trace:
        """The trace of the steps that run nodes, with what the transfers did."""
        stages = len(self.steps) - len(self.turns.others)
        rows = [transfer.step for transfer in self.turns.transfers]
        moved = Moved(
            self.turns.transfers,
            trace.start_ns[rows],
            trace.end_ns[rows],
            tuple(carrier.mean_bytes for carrier in self.carriers),
            emulated=any(carrier.seconds is not None for carrier in self.carriers),
        )
        return replace(
            trace,
            start_ns=trace.start_ns[:stages],
            end_ns=trace.end_ns[:stages],
            replicas=trace.replicas[:stages],
            waited_ns=None if trace.waited_ns is None else trace.waited_ns[:stages],
            moved=moved if rows else None,
        )


def crew_of(stages: Sequence[Step], turns: Turns, *, emulate: bool = False) -> Crew:
    """What runs a schedule: stages that take what they read from transfers, and the transfers.

    Parameters
    ----------
    stages
        The steps that run nodes, in the order of the schedule's.
    emulate
        Transfers take as long as the schedule says; else they copy.
    """
    maker = {name: i for i, step in enumerate(stages) for name in step.outputs}
    takes: list[dict[str, int]] = [{} for _ in range(turns.steps)]
    for i, step in enumerate(stages):
        for name in step.inputs:
            head = i
            while (tail := turns.via.get((head, maker.get(name, -1)))) is not None:
                takes[head][name] = tail
                head = tail
            if head != i:
                takes[head][name] = maker[name]
    steps = [replace(step, takes=takes[i]) for i, step in enumerate(stages)]
    carriers = {t.step: Carrier(t.time_s if emulate else None) for t in turns.transfers}
    for i in range(len(stages), turns.steps):
        name = turns.name(i)
        if i in carriers:
            worker = Worker(name, carriers[i], stop=carriers[i].stop)
            steps.append(Step(name, tuple(takes[i]), (), (worker,), takes[i]))
        else:
            steps.append(Step(name, (), (), (Worker(name, _nothing),)))
    return Crew(tuple(steps), tuple(carriers.values()), turns)
