"""Task graphs on equal devices: times, edges with delays; some whose least makespan is known."""

from __future__ import annotations

import random
from typing import NamedTuple

from dnnp.core.cost.latency import LatencyProblem, latency_problem
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.graph import singletons
from dnnp.core.model.plan import CostOptions
from dnnp.formats.graph import graph_of
from dnnp.formats.stream import Stream
from support.graphs import node, tensor
from support.priced import stream


class TaskGraph(NamedTuple):
    """Tasks with times, and edges: maker, reader, delay between two devices."""

    times: list[float]
    edges: list[tuple[int, int, float]]


def stream_of(graph: TaskGraph) -> Stream:
    """The graph as a stream: one tensor an edge; a task that none reads has one, too."""
    n = len(graph.times)
    reads: list[list[int]] = [[] for _ in range(n)]
    makes: list[list[int]] = [[] for _ in range(n)]
    tensors = []
    for i, (maker, reader, delay) in enumerate(graph.edges):
        makes[maker].append(i)
        reads[reader].append(i)
        tensors.append({"transfer_s": delay})
    for v in range(n):
        if not makes[v]:
            makes[v].append(len(tensors))
            tensors.append({"output": True})
    rows = [tensor(i, "activation", 0, **row) for i, row in enumerate(tensors)]
    nodes = [
        node(v, "Task", reads[v], makes[v], time_s={"dev": time})
        for v, time in enumerate(graph.times)
    ]
    return stream(nodes, rows)


def problem_of(graph: TaskGraph, devices: int) -> LatencyProblem:
    """The graph on equal devices, every edge a transfer that waits for no other."""
    made = graph_of(stream_of(graph))
    options = CostOptions(
        objective="latency", execution="operators", transfers="edge", congestion="none"
    )
    offered = (DeviceClass("dev", count=devices),)
    return latency_problem(SplitProblem(made, singletons(made), offered, options))


def packed(seed: int) -> tuple[TaskGraph, int, float]:
    """A graph of 20 to 30 tasks, devices that it fills without a gap, and its least makespan.

    Edges go from what ends to what starts later in that schedule, with delays that it has time for.
    """
    rng = random.Random(seed)
    devices, length = rng.choice([2, 3, 4]), rng.randint(40, 60)
    spans = []
    for d in range(devices):
        cuts = sorted(rng.sample(range(1, length), rng.randint(20, 26) // devices))
        spans += [(a, b, d) for a, b in zip([0, *cuts], [*cuts, length], strict=True)]
    spans.sort()
    edges = []
    for v, (start, _, here) in enumerate(spans):
        ended = [u for u in range(v) if spans[u][1] <= start]
        for u in rng.sample(ended, min(len(ended), rng.randint(1, 3))):
            slack = start - spans[u][1] if spans[u][2] != here else rng.randint(0, 20)
            edges.append((u, v, float(rng.randint(0, slack) if slack else 0)))
    times = [float(end - start) for start, end, _ in spans]
    return TaskGraph(times, edges), devices, float(length)
