"""The placement of a plan: loads, virtual devices, replicas, what is held between passes."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dnnp.core.cost.problem import SplitProblem, make_plan
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.errors import UsageError
from dnnp.core.model.graph import Graph, singletons
from dnnp.core.model.plan import Block, CostOptions, Plan
from dnnp.core.model.schedule import Placement, check_placement
from dnnp.core.schedule.from_plan import placement_of_plan
from dnnp.core.schedule.problem import problem_of
from dnnp.formats.graph import graph_of
from support.graphs import random_stream, tensor
from support.problems import chain

COMMS = ("sum", "overlap", "duplex")


def plan_of(graph: Graph, blocks: list[Block], options: CostOptions | None = None) -> Plan:
    """The plan of blocks that all run on devices of one class."""
    problem = SplitProblem(graph, singletons(graph), (blocks[0].device,), options or CostOptions())
    return make_plan(problem, blocks, method="test", bound=0.0, digest="0" * 64)


def random_plan(
    seed: int, n: int, k: int, training: bool, options: CostOptions, replicas: int = 1
) -> tuple[Graph, Plan]:
    """A split that scatters the nodes over k stages."""
    graph = graph_of(random_stream(seed, n, params=True, training=training))
    stage = np.random.default_rng(seed).integers(0, k, graph.n)
    count = k * replicas
    device = DeviceClass("dev", count=count, bandwidth_bytes_per_s=7.0)
    blocks = [
        Block(graph.order[stage[graph.order] == s], device, 1 + (s % replicas)) for s in range(k)
    ]
    return graph, plan_of(graph, blocks, options)


def loads(placement: Placement) -> dict[str, float]:
    """Mean time of a micro-batch on every unit."""
    load = problem_of(placement, placement.turns).load() / placement.turns
    return {unit.name: float(t) for unit, t in zip(placement.units, load, strict=True)}


cases = st.tuples(
    st.integers(0, 10_000),
    st.integers(2, 14),
    st.integers(1, 4),
    st.booleans(),
    st.sampled_from(COMMS),
    st.integers(1, 3),
)


@settings(max_examples=150, deadline=None)
@given(cases)
def test_parts_hold_every_node_and_cost_what_stages_cost(case: tuple) -> None:
    seed, n, k, training, comm, replicas = case
    graph, plan = random_plan(seed, n, k, training, CostOptions(comm=comm), replicas)
    placement = placement_of_plan(graph, singletons(graph), plan)
    check_placement(placement)
    load = loads(placement)
    for s, stage in enumerate(plan.stages):
        parts = [b for b in placement.blocks if b.stage == s and b.kind != "transfer"]
        held = [node for b in parts for node in (b.nodes or stage.nodes)]
        assert sorted(held) == sorted(stage.nodes)
        number = int(stage.device.rpartition("/")[2])
        for j in range(stage.replicas):
            name = f"dev/{number + j}"
            mine = [t for unit, t in load.items() if unit == name or unit.startswith(f"{name} ")]
            # The busiest of a device and its links is what the cost model calls its load.
            busiest = sum(mine) if comm == "sum" else max(mine)
            assert math.isclose(busiest, stage.load_s, rel_tol=1e-9, abs_tol=1e-9)


@settings(max_examples=100, deadline=None)
@given(cases)
def test_parts_follow_the_graph(case: tuple) -> None:
    """Every tensor that a node reads was made by a block before its own."""
    seed, n, k, training, comm, _ = case
    graph, plan = random_plan(seed, n, k, training, CostOptions(comm=comm))
    placement = placement_of_plan(graph, singletons(graph), plan)
    before: list[set[int]] = []
    for block in placement.blocks:
        before.append({w.block for w in block.after}.union(*(before[w.block] for w in block.after)))
    home = {
        node: i
        for i, b in enumerate(placement.blocks)
        if b.kind != "transfer"
        for node in (b.nodes or plan.stages[b.stage].nodes)
    }
    ids = graph.node_ids.tolist()
    for a, b in zip(*(x.tolist() for x in graph.edges), strict=True):
        tail, head = home[ids[a]], home[ids[b]]
        assert tail == head or tail in before[head]


def test_what_is_held_is_given_back() -> None:
    for seed in range(40):
        graph, plan = random_plan(seed, 12, 3, True, CostOptions())
        placement = placement_of_plan(graph, singletons(graph), plan)
        problem = problem_of(placement, 1)
        assert np.allclose(problem.left_behind(), 0)
        assert (np.array([u.fixed_bytes for u in placement.units]) >= 0).all()


def test_forward_holds_what_backward_reads() -> None:
    """A chain of two forward and two backward nodes on one device each."""
    graph = chain(1.0, 2.0, 3.0, 4.0)
    late = np.array([False, False, True, True])
    graph = replace(graph, backward=late)
    device = DeviceClass("dev", count=2)
    blocks = [Block(np.array([0, 3]), device), Block(np.array([1, 2]), device)]
    plan = plan_of(graph, blocks)
    placement = placement_of_plan(graph, singletons(graph), plan)
    assert [(b.name, b.kind) for b in placement.blocks] == [
        ("F0", "forward"),
        ("F1", "forward"),
        ("B1", "backward"),
        ("B0", "backward"),
    ]
    held = {b.name: b.memory_bytes for b in placement.blocks}
    # Node 2 reads what node 1 made, on the same device; node 3 reads nothing of node 0.
    assert held == {"F0": 0, "F1": 1, "B1": -1, "B0": 0}
    assert all(b.nodes for b in placement.blocks)


def test_virtual_devices() -> None:
    """Stages that alternate along a chain are cut wherever they change (2020 paper, Fig. 5b)."""
    graph = chain(3.0, 2.0, 4.0, transfer=1.0)
    device = DeviceClass("dev", count=2)
    blocks = [Block(np.array([0, 2]), device), Block(np.array([1]), device)]
    plan = plan_of(graph, blocks)
    assert plan.validity == "free"
    placement = placement_of_plan(graph, singletons(graph), plan)
    # Each part pays for what it sends and receives: 3 + 1, 1 + 2 + 1, 1 + 4.
    found = [(b.homes, b.time_s, b.nodes) for b in placement.blocks]
    homes = dict(zip(("dev/0", "dev/1"), range(2), strict=True))
    zero = homes[plan.stages[0].device]
    assert [f[1] for f in found] == [4.0, 4.0, 5.0]
    assert [f[0] for f in found] == [((zero,),), ((1 - zero,),), ((zero,),)]
    assert [f[2] for f in found] == [(0,), (), (2,)]


def test_replicas_take_turns() -> None:
    graph = chain(3.0, 2.0)
    device = DeviceClass("dev", count=3)
    blocks = [Block(np.array([0]), device, 2), Block(np.array([1]), device)]
    plan = plan_of(graph, blocks, CostOptions(max_replicas=2))
    placement = placement_of_plan(graph, singletons(graph), plan)
    assert placement.turns == 2
    assert placement.blocks[0].homes == ((0,), (1,))
    assert placement.blocks[0].time_s == 4.0
    assert loads(placement) == {"dev/0": 2.0, "dev/1": 2.0, "dev/2": 3.0}


def test_explicit_transfers_leave_the_blocks() -> None:
    graph = chain(3.0, 2.0, transfer=5.0)
    device = DeviceClass("dev", count=2)
    blocks = [Block(np.array([i]), device) for i in range(2)]
    plan = plan_of(graph, blocks)
    placement = placement_of_plan(graph, singletons(graph), plan, explicit=True)
    assert [b.time_s for b in placement.blocks] == [3.0, 2.0]
    assert placement.blocks[1].after[0].transfer_s == 5.0


def test_stages_each_of_which_begins_with_what_waits_for_the_end_of_the_other() -> None:
    """0 -> 1 and 2 -> 3; one stage runs 3 before 0, the other 1 before 2."""
    stream = random_stream(0, 4)
    stream.records["tensor"] = [tensor(i, "activation", 1) for i in range(4)]
    for i, node in enumerate(stream.get("node")):
        node.update(inputs=[i - 1] if i % 2 else [], outputs=[i], time_s={"dev": 2.0**i})
    graph, device = graph_of(stream), DeviceClass("dev", count=2)
    plan = plan_of(graph, [Block(np.array(row), device) for row in ([3, 0], [1, 2])])
    placement = placement_of_plan(graph, singletons(graph), plan)
    check_placement(placement)
    assert loads(placement) == {"dev/0": 9.0, "dev/1": 6.0}
    assert sorted(b.nodes or plan.stages[b.stage].nodes for b in placement.blocks) == [
        (0,),
        (1, 2),
        (3,),
    ]


def test_refused_plans() -> None:
    graph, plan = random_plan(1, 6, 2, False, CostOptions())
    latency = replace(plan, options=CostOptions(objective="latency"))
    with pytest.raises(UsageError, match="latency"):
        placement_of_plan(graph, singletons(graph), latency)
    graph = chain(*[1.0] * 12)
    device = DeviceClass("dev", count=200)
    counts = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)
    blocks = [Block(np.array([i]), device, r) for i, r in enumerate(counts)]
    plan = plan_of(graph, blocks, CostOptions(max_replicas=99))
    with pytest.raises(UsageError, match="take turns"):
        placement_of_plan(graph, singletons(graph), plan)
