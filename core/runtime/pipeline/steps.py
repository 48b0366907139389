"""Steps of a pipeline: their workers, the edges between them, and the jobs of each device."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple, Protocol

from dnnp.core.model.errors import FormatError
from dnnp.core.model.processes import keep_on
from dnnp.core.runtime.limits import watched
from dnnp.core.runtime.model.session import Memory, Values

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
    """Worker outside this process, perhaps shared with other steps; None: a thread."""
    part: int = 0
    """Number of the stage there."""
    memory: Memory = None
    made_bytes: int = 0
    """Memory of this process that its session took when it was made; 0: unknown."""

    def resident_bytes(self) -> int:
        """Memory that it holds, while it does not compute; 0: unknown."""
        return self.made_bytes if self.remote is None else self.remote.resident_bytes()

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
    """Input -> step that passes it on in place of its maker."""


class Job(NamedTuple):
    """One sample in one replica of a step: the unit of work of a thread."""

    step: int
    replica: int
    sample: int


@dataclass(frozen=True)
class DeviceOrders:
    """Jobs of each device in their order, if replicas do not run samples in turn."""

    jobs: Sequence[Sequence[Job]]
    """One list a device; together every sample once in each step."""
    capacities: Mapping[tuple[int, int], int] = field(default_factory=dict)
    """Samples that may wait between two steps; all, where it does not say."""
    waits: Collection[tuple[int, int]] = ()
    """Steps ordered after a step, readers of its outputs or not."""


class Answer(NamedTuple):
    """Outputs of a job, and times by `time.perf_counter_ns` of this machine."""

    values: Values
    start_ns: int
    end_ns: int
    waited_ns: int = 0
    """Waiting time of the ready computing thread since the last answer with more than 0."""


class Remote(Protocol):
    """Computes elsewhere. Two threads use it: one submits, one takes results."""

    @property
    def ahead(self) -> int:
        """Jobs that it may hold, of which it computes one."""

    def submit(self, values: Values, sample: int, part: int) -> None:
        """Send a job for one of its stages; raises `DnnpError`."""

    def result(self) -> Answer:
        """Wait for the oldest job; raises `DnnpError`, and `ClosedError` when it was stopped."""

    def call(self, values: Values, part: int) -> Values:
        """Compute one sample without other jobs under way; raises `DnnpError`."""

    def resident_bytes(self) -> int:
        """Memory that it holds, while it has no job; 0: unknown."""

    def stop(self) -> None:
        """End for good, soon, with any job under way."""


SOURCE = -1


@dataclass(frozen=True)
class Edge:
    """Tensors that go from one step to another; -1 is the source, len(steps) the sink."""

    tail: int
    head: int
    names: tuple[str, ...]
    capacity: int
    """Samples it can hold."""


def route(
    steps: Sequence[Step],
    outputs: Sequence[str],
    queue: int = 2,
    waits: Collection[tuple[int, int]] = (),
) -> list[Edge]:
    """Edges of a pipeline, sorted by tail and head.

    Every step has an edge from somewhere and to somewhere, if need be one without tensors.
    What no step makes comes from the source. There is an edge for each of `waits` too, (step,
    step that comes after it).

    Raises `FormatError` if the steps wait for each other in a circle.
    """
    sink = len(steps)
    maker = {name: i for i, step in enumerate(steps) for name in step.outputs}
    carried: dict[tuple[int, int], list[str]] = {}
    wanted = [*((step.inputs, step.takes) for step in steps), (tuple(outputs), {})]
    for head, (names, takes) in enumerate(wanted):
        for name in dict.fromkeys(names):
            tail = takes.get(name, maker.get(name, SOURCE))
            carried.setdefault((tail, head), []).append(name)
    for pair in waits:
        carried.setdefault(pair, [])
    for i in range(sink):
        if all(h != i for _, h in carried):
            carried[SOURCE, i] = []
        if all(t != i for t, _ in carried):
            carried[i, sink] = []
    replicas = {SOURCE: 1, sink: 1} | {i: len(step.workers) for i, step in enumerate(steps)}
    capacities = {(t, h): max(queue, replicas[t], replicas[h]) for t, h in carried}
    enter = _ahead(capacities, replicas, sink)
    edges = []
    for (tail, head), held in sorted(carried.items()):
        left = 0 if tail == SOURCE else enter[tail] + replicas[tail]
        edges.append(Edge(tail, head, tuple(held), enter[head] - left))
    return edges


def _ahead(
    capacities: Mapping[tuple[int, int], int], replicas: Mapping[int, int], sink: int
) -> dict[int, int]:
    """Samples that fit between the source and each step, on the way that holds most.

    `capacities` of edges are those between neighbours; a step holds one sample a replica.
    """
    tails: dict[int, list[int]] = {i: [] for i in range(sink + 1)}
    for tail, head in capacities:
        tails[head].append(tail)
    left = {SOURCE: 0}
    enter: dict[int, int] = {}
    try:
        for i in TopologicalSorter(tails).static_order():
            if i != SOURCE:
                enter[i] = max((left[t] + capacities[t, i] for t in tails[i]), default=0)
                left[i] = enter[i] + replicas[i]
    except CycleError as error:
        waiting = sorted({*error.args[1]})
        raise FormatError(f"stages {waiting} wait for each other in a circle") from None
    return enter
