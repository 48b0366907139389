"""Latency problems from plain numbers, for the tests of placing methods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import numpy as np

from dnnp.core.cost.latency import LatencyProblem, Placement, Tasks
from dnnp.core.methods.splits import LATENCY
from dnnp.core.model.device import Machine
from dnnp.core.model.graph import Floats, csr
from dnnp.core.model.plan import CostOptions
from dnnp.core.model.search_context import PLAIN, MethodOptions, SearchContext

PLACERS = tuple(
    name
    for name, method in LATENCY.items()
    if "operators" in method.kinds
    and "baselines" in method.place("operators")
    and (name != "placeto" or find_spec("torch"))
)
"""Methods of others that place tasks, as far as what they need is installed."""


def place(
    method: str, problem: LatencyProblem, run: SearchContext = PLAIN, **how: Any
) -> Placement:
    """The placement of a problem by a method; `how`: fields of the run to be changed."""
    split = (
        LATENCY[method]
        .function("operators")(problem, MethodOptions(method), replace(run, **how))
        .split
    )
    assert isinstance(split, Placement)
    return split


def problem_of(
    time: Sequence[Sequence[float]] | Floats,
    edges: Sequence[tuple[int, int]],
    move: Sequence[float] | Floats,
    *,
    congestion: str = "none",
    memory: Sequence[float] | None = None,
    capacity: Sequence[float] | None = None,
    colors: Sequence[int] | None = None,
) -> LatencyProblem:
    """Tasks in topological order; one flow an edge, which takes `move` between any two devices.

    `time` is f64[D, n]; without a capacity devices hold everything.
    """
    times = np.asarray(time, dtype=np.float64)
    devices, n = times.shape
    pairs = np.asarray(edges, dtype=np.int64).reshape(-1, 2)
    flows = np.arange(len(pairs))
    in_ptr, in_idx = csr(pairs[:, 1], flows, n)
    out_ptr, out_idx = csr(pairs[:, 0], flows, n)
    tasks = Tasks(
        time=times,
        memory=np.zeros(n) if memory is None else np.asarray(memory, dtype=np.float64),
        together=np.arange(n) if colors is None else np.asarray(colors, dtype=np.int64),
        backward=np.zeros(n, dtype=np.bool_),
        order=np.arange(n),
        maker=pairs[:, 0].copy(),
        leaves=np.zeros(len(pairs), dtype=np.bool_),
        size=np.asarray(move, dtype=np.float64),
        fixed=np.zeros(len(pairs)),
        use_ptr=np.arange(len(pairs) + 1),
        use_idx=pairs[:, 1].copy(),
        in_ptr=in_ptr,
        in_idx=in_idx,
        out_ptr=out_ptr,
        out_idx=out_idx,
        carried_ptr=np.arange(len(pairs) + 1),
        carried_id=flows,
    )
    apart = 1 - np.eye(devices)
    limit = np.full(devices, np.inf) if capacity is None else np.asarray(capacity, np.float64)
    machine = Machine(
        names=tuple(f"dev/{d}" for d in range(devices)),
        classes=("dev",) * devices,
        is_cpu=np.zeros(devices, dtype=np.bool_),
        capacity=limit,
        host_rate=np.ones(devices),
        rate=apart,
        latency=np.zeros((devices, devices)),
        charged=apart,
    )
    return LatencyProblem(tasks, machine, CostOptions(objective="latency", congestion=congestion))


def layered(n: int, ratio: float, seed: int = 0, congestion: str = "device") -> LatencyProblem:
    """Layers of 1 to 8 tasks that read 1 to 3 of the last 3 layers; speeds 1, 1, 1/2, 1/4.

    `ratio` is the mean time of a transfer over the mean time of a task.
    """
    rng = np.random.default_rng(seed)
    layers: list[list[int]] = []
    edges: list[tuple[int, int]] = []
    made = 0
    while made < n:
        layer = list(range(made, min(made + int(rng.integers(1, 9)), n)))
        made = layer[-1] + 1
        near = [u for earlier in layers[-3:] for u in earlier]
        for v in layer if near else []:
            count = min(len(near), int(rng.integers(1, 4)))
            edges += [(int(u), v) for u in rng.choice(near, count, replace=False)]
        layers.append(layer)
    work = rng.lognormal(0, 1, n)
    speed = np.array([1.0, 1.0, 0.5, 0.25])
    time = work / speed[:, None] * rng.uniform(0.8, 1.2, (4, n))
    move = rng.lognormal(0, 1, len(edges))
    move *= ratio * time.mean() / (move.mean() if len(edges) else 1.0)
    return problem_of(time, edges, move, congestion=congestion)
