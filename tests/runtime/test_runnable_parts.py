"""Plans that are not pipelines, cut into parts that are one."""

from __future__ import annotations

import random

import numpy as np

from dnnp.core.cost.latency import latency_problem
from dnnp.core.cost.latency_plan import make_latency_plan
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.cost.runnable import runnable_parts
from dnnp.core.cost.timeline import Placement, lazy_events
from dnnp.core.cost.validity import validity_of
from dnnp.core.model.cluster import singletons
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.graph import Graph, Ints
from dnnp.core.model.plan import CostOptions, Plan
from dnnp.formats.graph import graph_of
from support.graphs import random_stream


def placed(seed: int) -> tuple[Graph, Plan]:
    """A random plan of the execution `operators` on up to three devices."""
    rng = random.Random(seed)
    stream = random_stream(rng.randrange(10**9), rng.randint(2, 12))
    for node in stream.records["node"]:
        node["time_s"] = {"dev": rng.choice([0.0, 1.0, 2.0])}
    graph = graph_of(stream)
    units, devices = singletons(graph), (DeviceClass("dev", count=3),)
    options = CostOptions(objective="latency", memory_model="sum")
    problem = latency_problem(SplitProblem(graph, units, devices, options))
    used = problem.machine.count
    device: Ints = np.array([rng.randrange(used) for _ in range(graph.n)], dtype=np.int64)
    split = Placement(device, lazy_events(problem.tasks, device, problem.tasks.order))
    plan = make_latency_plan(
        SplitProblem(graph, units, devices, options, ()),
        problem,
        split,
        method="test",
        bound=0.0,
        bound_method="",
        digest="",
    )
    return graph, plan


def test_parts_are_a_pipeline() -> None:
    free = 0
    for seed in range(200):
        graph, plan = placed(seed)
        parts, owners = runnable_parts(graph, singletons(graph), plan)
        place = {node: i for i, node in enumerate(graph.node_ids.tolist())}
        block = np.full(graph.n, -1, dtype=np.int64)
        for number, part in enumerate(parts):
            block[[place[node] for node in part.nodes]] = number
        assert (block >= 0).all()
        assert validity_of(graph, block, len(parts)) == "ordered"
        for number, stage in enumerate(plan.stages):
            mine = [p for p, owner in zip(parts, owners, strict=True) if owner == number]
            assert {p.device for p in mine} == {stage.device}
            assert tuple(n for p in mine for n in p.nodes) == stage.nodes
        free += plan.validity != "ordered"
        if plan.validity == "ordered":
            assert len(parts) == len(plan.stages)
    assert free > 20


def test_there_and_back() -> None:
    """a on one device, b on the other, c on the first: two parts of the first."""
    for seed in range(400):
        graph, plan = placed(seed)
        if len(plan.stages) == 2 and plan.validity == "free" and graph.n == 3:
            parts, owners = runnable_parts(graph, singletons(graph), plan)
            assert sorted(owners) in ([0, 0, 1], [0, 1, 1])
            assert len(parts) == 3
            return
    raise AssertionError("no such plan among the random ones")
