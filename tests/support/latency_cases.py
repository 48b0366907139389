"""Random small problems of single-sample latency, for the tests of every solver."""

from __future__ import annotations

import random
from itertools import permutations

import numpy as np

from dnnp.core.cost.latency import TASK, LatencyProblem, Tasks, latency_problem
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.device import DeviceClass, Link
from dnnp.core.model.graph import Graph, Ints, singletons
from dnnp.core.model.plan import CostOptions
from dnnp.core.synthetic import Layered
from dnnp.formats.graph import graph_of
from dnnp.formats.workloads.synthetic import synthetic_stream
from support.graphs import random_stream

ROOMY = 1e9
"""Bytes of a device that holds any of these graphs."""


def layered_case(made: Layered) -> tuple[Graph, tuple[DeviceClass, ...]]:
    """Graph of a layered random graph, and its devices, with a bandwidth of 1 and any memory."""
    stream = synthetic_stream("layered", made.tail, made.head, made.size, made.times)
    devices = tuple(DeviceClass(name, bandwidth_bytes_per_s=1.0) for name in made.times)
    return graph_of(stream), devices


def random_blocks(seed: int) -> LatencyProblem:
    """A random problem of a few tasks whose stages run as blocks."""
    rng = random.Random(seed)
    training = rng.random() < 0.3
    return random_problem(
        rng,
        rng.randint(2, 6),
        execution="blocks",
        tight=rng.random() < 0.6,
        training=training,
        colors=rng.random() < 0.3,
        q=1 if training else rng.choice([1, 1, 2]),
        transfers=rng.choice(["tensor", "tensor", "edge"]),
    )


def random_problem(
    rng: random.Random,
    n: int,
    *,
    execution: str = "operators",
    devices: int | None = None,
    tight: bool = False,
    training: bool = False,
    colors: bool = False,
    q: int = 1,
    transfers: str = "tensor",
    congestion: str = "device",
    links: bool = False,
    live: bool = False,
    chains: bool = False,
) -> LatencyProblem:
    """A random problem of `n` tasks.

    Parameters
    ----------
    execution
        `blocks`: one in seven has no CPU, one in five charges inputs and outputs. `operators`:
        some have a CPU among the devices.
    devices
        Accelerators (`blocks`), or all devices (`operators`); None: 1 to 3.
    tight
        Memory binds on most of these; some are infeasible.
    training
        Some of the tasks are a backward pass; most of them share a colour with a forward task.
    colors
        Some tasks share a device.
    links
        `operators` with two devices or more: links between them, with latencies, not all pairs,
        each direction on its own.
    live
        Live tensors count, and `tight` is by their bytes.
    chains
        Branches of tasks that mostly read one other each (no training).
    """
    blocks = execution == "blocks"
    count = rng.randint(1 if blocks else 2, 3) if devices is None else devices
    mixed = count > 1 and rng.random() < 0.6
    cpu = rng.random() < (6 / 7 if blocks else 0.3)
    classes = ["other"] * mixed + ["cpu"] * cpu
    stream = random_stream(
        rng.randrange(10**9),
        n,
        params=rng.random() < 0.3,
        colors=colors,
        training=training and n > 1,
        classes=classes,
        memory=True,
    )
    if chains:
        _chain(rng, stream.get("node"))
    real = rng.random() < 0.5
    for node in stream.get("node"):
        times = node["time_s"]
        if rng.random() < 0.1:
            times[rng.choice(sorted(times))] = 0
        if len(times) > 1 and rng.random() < 0.08:
            del times[rng.choice(sorted(times))]
        if real:
            node["time_s"] = {name: t * rng.uniform(0.5, 1.5) for name, t in times.items()}
    for tensor in stream.get("tensor"):
        if rng.random() < 0.3:
            tensor["size_bytes"] = rng.choice([0, 1, 3])
        if "transfer_s" in tensor:
            tensor["transfer_s"] = rng.uniform(0, 9) if real else rng.randint(0, 5)
    graph = graph_of(stream)
    total = sum(node["memory_bytes"] for node in stream.get("node"))
    if live:
        total = max(float(graph.tensor_bytes.sum()), 1.0) * 0.9

    def capacity() -> float:
        return max(1.0, round(total / count * rng.uniform(1.0, 1.8))) if tight else ROOMY

    def accelerators(name: str, number: int) -> DeviceClass:
        speed = rng.choice([1.0, 2.0, 5.0, 20.0, 50.0])
        return DeviceClass(name, count=number, memory_bytes=capacity(), bandwidth_bytes_per_s=speed)

    host = DeviceClass("cpu", kind="cpu", bandwidth_bytes_per_s=rng.choice([1.0, 4.0]))
    number = count - mixed - (cpu and not blocks)
    offered = [accelerators("dev", number)] if number else []
    offered += [accelerators("other", 1)] if mixed else []
    offered += [host] if cpu else []
    options = CostOptions(
        objective="latency",
        execution=execution,
        memory_model="peak" if live else "sum",
        invocations=q,
        transfers=transfers,
        congestion=congestion,
        charge_io=blocks and rng.random() < 0.2,
    )
    mesh = _links(rng, offered) if links and not blocks else []
    return latency_problem(
        SplitProblem(graph, singletons(graph), tuple(offered), options, tuple(mesh))
    )


def _chain(rng: random.Random, nodes: list[dict]) -> None:
    """Let nodes read one other each, at forks or the ends of chains; the last reads all ends."""
    ends: list[int] = []
    made: list[int] = []
    for v, node in enumerate(nodes):
        read = [rng.choice(ends if rng.random() < 0.7 else made)] if v else node["inputs"][:1]
        if v + 1 == len(nodes) and v:
            read = ends
        node["inputs"] = sorted(read)
        ends = [t for t in ends if t not in read] + node["outputs"][:1]
        made += node["outputs"][:1]


def _links(rng: random.Random, devices: list[DeviceClass]) -> list[Link]:
    """A ring both ways round, and some of the other pairs."""
    names = [f"{d.name}/{i}" for d in devices for i in range(d.count)]
    size = len(names)
    links = []
    for a, b in permutations(range(size), 2):
        if (a - b) % size in (1, size - 1) or rng.random() < 0.5:
            speed, delay = rng.choice([2.0, 10.0, 50.0]), rng.choice([0.0, 0.5, 2.0])
            links.append(Link(names[a], names[b], speed, delay))
    return links


def eager_events(tasks: Tasks, device: Ints, order: Ints) -> Ints:
    """Events of tasks in `order`, every transfer right after its maker, those first that are read
    first; see `lazy_events`."""
    first: dict[tuple[int, int], int] = {}
    for step, v in enumerate(order.tolist()):
        for f in tasks.in_idx[tasks.in_ptr[v] : tasks.in_ptr[v + 1]].tolist():
            if device[tasks.maker[f]] != device[v]:
                first.setdefault((f, int(device[v])), step)
    events: list[tuple[int, int]] = []
    for v in order.tolist():
        mine = [move for move in first if tasks.maker[move[0]] == v]
        events += [(TASK, v), *sorted(mine, key=first.__getitem__)]
    return np.array(events, dtype=np.int64).reshape(-1, 2)
