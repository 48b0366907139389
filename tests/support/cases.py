"""Random small problems: a graph with devices and cost options, for every solver's tests."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from functools import cached_property

from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.graph import Clustering, Graph
from dnnp.core.model.plan import CostOptions
from dnnp.formats.graph import graph_of, units_of
from dnnp.formats.stream import Stream
from support.graphs import random_stream


@dataclass(frozen=True)
class Case:
    """One problem."""

    seed: int
    graph: Graph
    units: Clustering
    devices: tuple[DeviceClass, ...]
    options: CostOptions

    @cached_property
    def problem(self) -> SplitProblem:
        """The problem as solvers take it."""
        return SplitProblem(self.graph, self.units, self.devices, self.options)


def random_case(seed: int, most: int = 9, **fixed: object) -> Case:
    """A random problem of up to `most` nodes.

    Every other graph has CPUs, unsupported nodes, colours, capacities, or a backward pass;
    `fixed` sets cost options and `training`, `colors`, `limited`.
    """
    rng = random.Random(f"case {seed}")
    n = rng.randint(1, most)
    training = bool(fixed.pop("training", rng.random() < 0.35)) and n > 1
    colors = bool(fixed.pop("colors", rng.random() < 0.3))
    limited = bool(fixed.pop("limited", rng.random() < 0.4))
    # Peak memory depends on the order of a stage's nodes, which colours interleave.
    model = "sum" if training or colors else rng.choice(["sum", "peak"])
    mode = rng.choice(["hard", "overflow"]) if limited else "hard"
    drawn = {
        "comm": rng.choice(["sum", "sum", "overlap", "duplex"]),
        "memory_model": model,
        "memory_mode": mode,
        "charge_io": rng.random() < 0.3,
        "objective": "gpipe" if mode == "hard" and rng.random() < 0.4 else "throughput",
        "max_replicas": rng.choice([1, 1, 2, 3]),
    }
    options = CostOptions(**{**drawn, **fixed})  # type: ignore[arg-type]
    classes = rng.choice([(), ("cpu",), ("other",), ("cpu", "other")])
    stream = random_stream(
        seed,
        n,
        params=not training,
        colors=colors,
        training=training,
        classes=classes,
        memory=rng.random() < 0.5,
    )
    if not training and model == "peak":
        other_memory(stream, seed)
    graph = graph_of(stream)
    if not graph.backward.any():
        options = replace(options, objective="throughput")

    def capacity() -> float:
        return rng.choice([20.0, 60.0, 100.0, 150.0]) if limited else float("inf")

    devices = [
        DeviceClass(
            "dev",
            count=rng.randint(1, 4),
            memory_bytes=capacity(),
            bandwidth_bytes_per_s=rng.choice([1.0, 3.0]),
        )
    ]
    if "cpu" in classes:
        devices.append(DeviceClass("cpu", kind="cpu", count=rng.randint(1, 2)))
        if rng.random() < 0.15:
            devices.pop(0)
    if "other" in classes:
        devices.append(
            DeviceClass(
                "other",
                count=rng.randint(1, 2),
                memory_bytes=capacity(),
                bandwidth_bytes_per_s=rng.choice([1.0, 2.0, 5.0]),
            )
        )
    return Case(seed, graph, units_of(stream, graph), tuple(devices), options)


def other_memory(stream: Stream, seed: int) -> None:
    """Give tensors other bytes in memory than in the file, and some nodes nothing but constants."""
    rng = random.Random(f"memory {seed}")
    static = [t["id"] for t in stream.get("tensor") if t["kind"] == "parameter"]
    for node in stream.get("node"):
        if static and rng.random() < 0.2:
            node["inputs"] = sorted({rng.choice(static), rng.choice(static)})
            node["folded"] = True
    for tensor in stream.get("tensor"):
        if rng.random() < 0.4:
            tensor["memory_bytes"] = rng.randint(0, 40)


def accelerators_case(seed: int, most: int = 7, comms: tuple[str, ...] = ("sum",)) -> Case:
    """A random problem of 3 to `most` nodes for one class of accelerators without limits."""
    rng = random.Random(seed)
    kinds = {kind: True for kind in ("params", "colors", "training") if rng.random() < 0.3}
    stream = random_stream(seed, rng.randint(3, most), **kinds)
    graph = graph_of(stream)
    speed = rng.choice([0.5, 2.0, 8.0])
    device = DeviceClass("dev", count=rng.randint(1, 5), bandwidth_bytes_per_s=speed)
    charged = rng.random() < 0.3
    options = CostOptions(comm=rng.choice(comms), memory_model="sum", charge_io=charged)
    return Case(seed, graph, units_of(stream, graph), (device,), options)
