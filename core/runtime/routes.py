"""Which tensors go from one step of a pipeline to another, and how many samples lie between."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Protocol

from dnnp.core.model.errors import FormatError

SOURCE = -1


class Routed(Protocol):
    """A step, as far as routes go."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """Tensors that it reads."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """Tensors that it makes."""

    @property
    def takes(self) -> Mapping[str, int]:
        """Inputs that come from another step than their maker, and that step."""

    @property
    def workers(self) -> tuple[object, ...]:
        """Its replicas."""


@dataclass(frozen=True)
class Edge:
    """Tensors that go from one step to another; -1 is the source, len(steps) the sink."""

    tail: int
    head: int
    names: tuple[str, ...]
    capacity: int
    """Samples it can hold."""


def route(
    steps: Sequence[Routed],
    outputs: Sequence[str],
    queue: int = 2,
    waits: Collection[tuple[int, int]] = (),
) -> list[Edge]:
    """Edges of a pipeline, sorted by tail and head.

    Every step has an edge from somewhere and to somewhere, if need be one without tensors.
    What no step makes comes from the source. There is an edge for each of `waits` too, (step,
    step that comes after it).

    Raises
    ------
    FormatError
        The steps wait for each other in a circle.
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
    room = {(t, h): max(queue, replicas[t], replicas[h]) for t, h in carried}
    enter = _ahead(room, replicas, sink)
    edges = []
    for (tail, head), held in sorted(carried.items()):
        left = 0 if tail == SOURCE else enter[tail] + replicas[tail]
        edges.append(Edge(tail, head, tuple(held), enter[head] - left))
    return edges


def _ahead(
    room: Mapping[tuple[int, int], int], replicas: Mapping[int, int], sink: int
) -> dict[int, int]:
    """Samples that fit between the source and each step, on the way that holds most.

    `room` is what an edge holds between neighbours; a step holds one sample a replica.
    """
    tails: dict[int, list[int]] = {i: [] for i in range(sink + 1)}
    for tail, head in room:
        tails[head].append(tail)
    left = {SOURCE: 0}
    enter: dict[int, int] = {}
    try:
        for i in TopologicalSorter(tails).static_order():
            if i != SOURCE:
                enter[i] = max((left[t] + room[t, i] for t in tails[i]), default=0)
                left[i] = enter[i] + replicas[i]
    except CycleError as error:
        waiting = sorted({*error.args[1]})
        raise FormatError(f"stages {waiting} wait for each other in a circle") from None
    return enter
