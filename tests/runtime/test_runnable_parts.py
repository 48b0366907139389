"""Plans that are not pipelines, cut into parts that are one."""

from __future__ import annotations

import random

import numpy as np

from dnnp.core.cost.items import validity_of
from dnnp.core.cost.latency import Placement, latency_problem, lazy_events
from dnnp.core.cost.latency_plan import make_latency_plan
from dnnp.core.cost.problem import SplitProblem, make_plan
from dnnp.core.cost.runnable import runnable_parts
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.graph import Clustering, Graph, Ints, clustering_of_labels, singletons
from dnnp.core.model.plan import Block, CostOptions, Plan
from dnnp.deployment.parts import topological_order, waits_of
from dnnp.formats.graph import graph_of
from support.graphs import random_stream, tensor


def placed(seed: int) -> tuple[Graph, Plan]:
    """A random plan of the execution `operators` on up to three devices."""
    rng = random.Random(seed)
    stream = random_stream(rng.randrange(10**9), rng.randint(2, 12))
    for node in stream.get("node"):
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


def check_parts(graph: Graph, units: Clustering, plan: Plan) -> int:
    """Check that the parts are a pipeline, ordered and priced as stages are; their number."""
    parts, owners = runnable_parts(graph, units, plan)
    place = {node: i for i, node in enumerate(graph.node_ids.tolist())}
    block = np.full(graph.n, -1, dtype=np.int64)
    for number, (part, owner) in enumerate(zip(parts, owners, strict=True)):
        block[[place[node] for node in part.nodes]] = number
        mine = set(part.nodes)
        stage = plan.stages[owner]
        assert part.nodes == tuple(n for n in stage.nodes if n in mine)
        if len(mine) == len(stage.nodes):
            assert part == stage
        else:
            assert part.load_s == len(mine)
    assert (block >= 0).all()
    assert validity_of(graph, block, len(parts)) == "ordered"
    return len(parts)


def edges_graph(n: int, edges: list[tuple[int, int]]) -> Graph:
    """Nodes of one second, each of which writes a tensor that others read."""
    stream = random_stream(0, n)
    stream.records["tensor"] = [tensor(i, "activation", 1) for i in range(n)]
    for i, node in enumerate(stream.get("node")):
        node.update(inputs=[a for a, b in edges if b == i], outputs=[i], time_s={"dev": 1.0})
    return graph_of(stream)


def free_plan(graph: Graph, units: Clustering, rows: list[list[int]]) -> Plan:
    """A plan whose stages run the nodes `rows`, in this order."""
    device = DeviceClass("dev", count=len(rows))
    problem = SplitProblem(graph, units, (device,), CostOptions())
    return make_plan(problem, [Block(np.array(row), device) for row in rows])


def test_stages_that_each_begin_with_what_waits_for_the_end_of_the_other() -> None:
    """0 -> 2 and 3 -> 1; one stage runs 1 before 0, the other 2 before 3."""
    graph = edges_graph(4, [(0, 2), (3, 1)])
    plan = free_plan(graph, singletons(graph), [[1, 0], [2, 3]])
    assert plan.validity != "ordered"
    assert check_parts(graph, singletons(graph), plan) == 3


def test_groups_whose_nodes_take_turns() -> None:
    """Groups {0, 1} and {2, 3} with 0 -> 3, run as 2, 0, 3, 1; 4 is elsewhere."""
    graph = edges_graph(6, [(0, 3), (1, 4), (4, 5)])
    units = clustering_of_labels(graph, np.array([0, 0, 1, 1, 2, 3]))
    plan = free_plan(graph, units, [[2, 0, 3, 1, 5], [4]])
    parts, _ = runnable_parts(graph, units, plan)
    assert [p.nodes for p in parts] == [(2, 0, 3, 1), (4,), (5,)]


def test_parts_of_any_split_and_orders() -> None:
    """Every stage orders its nodes as it likes, whatever the others do."""
    for seed in range(200):
        rng = random.Random(seed)
        stream = random_stream(seed, rng.randint(2, 14))
        for node in stream.get("node"):
            node["time_s"] = {"dev": 1.0}
        graph = graph_of(stream)
        label = np.empty(graph.n, dtype=np.int64)
        label[graph.order] = np.arange(graph.n) // rng.randint(1, 3)  # intervals: no circle
        units = clustering_of_labels(graph, label)
        stage = np.array([rng.randrange(3) for _ in range(units.g)])[label]
        rows: list[list[int]] = []
        for s in range(3):
            mine, row = [v for v in graph.order.tolist() if stage[v] == s], []
            while mine:  # a random order of the subgraph
                row.append(rng.choice([v for v in mine if not feeds(graph, mine, v)]))
                mine.remove(row[-1])
            rows.append(row)
        check_parts(graph, units, free_plan(graph, units, rows))


def feeds(graph: Graph, nodes: list[int], node: int) -> bool:
    """True if one of the nodes writes an input of `node`."""
    return any(graph.producer[t] in nodes for t in graph.reads(node).tolist())


def test_parts_in_an_order_in_which_they_can_run() -> None:
    """Parts are numbered by their begin; one may wait for a later one."""
    moved = 0
    for seed in range(200):
        graph, plan = placed(seed)
        parts, _ = runnable_parts(graph, singletons(graph), plan)
        order = topological_order(waits_of(graph, parts))
        assert sorted(order) == list(range(len(parts)))
        at = {node: order.index(i) for i, part in enumerate(parts) for node in part.nodes}
        ids = graph.node_ids.tolist()
        for u, v in zip(*(end.tolist() for end in graph.edges), strict=True):
            assert at[ids[u]] <= at[ids[v]]
        moved += order != list(range(len(parts)))
    assert moved > 10


def test_what_waits_in_a_circle_stays_as_it_is() -> None:
    assert topological_order([{1}, {0}, set()]) == [2, 0, 1]
