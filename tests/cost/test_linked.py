"""Costs of stages over links, with the arithmetic in comments."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dnnp.core.check.plan import check_plan
from dnnp.core.cost.linked_loads import Home, LinkedLoads
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.device import DeviceClass, Link
from dnnp.core.model.errors import FormatError, InfeasibleError
from dnnp.core.model.plan import Block, CostOptions
from dnnp.formats.graph import graph_of, units_of
from dnnp.formats.inputs.links import expand_links
from dnnp.formats.stream import Stream
from support.cases import random_case
from support.graphs import header, node, tensor
from support.linked_cases import linked_case

A = DeviceClass("a", count=2, bandwidth_bytes_per_s=100.0)
B = DeviceClass("b", count=2, bandwidth_bytes_per_s=20.0)
PAIR = {"from": "a", "to": "b", "bandwidth_bytes_per_s": 10.0, "latency_s": 1.0}


def links_of(*records: dict, devices: tuple[DeviceClass, ...] = (A, B)) -> tuple[Link, ...]:
    return expand_links(records, devices, lambda *why: FormatError(str(why)))


def fork(**options: object) -> SplitProblem:
    """x -> n0 -> t0 (200 bytes) -> n1, n2, n3 -> outputs; every node takes 1 s."""
    tensors = [
        tensor(0, "input", 40, name="x"),
        tensor(1, "activation", 200, name="t0"),
        *(tensor(i, "activation", 40, name=f"y{i}", output=True) for i in (2, 3, 4)),
    ]
    nodes = [node(i, "Op", [min(i, 1)], [i + 1], time_s={"a": 1.0, "b": 1.0}) for i in range(4)]
    stream = Stream(header=header(), records={"tensor": tensors, "node": nodes})
    graph = graph_of(stream)
    return SplitProblem(
        graph, units_of(stream, graph), (A, B), CostOptions(**options), links_of(PAIR)
    )


def on(device: DeviceClass, number: int, *nodes: int, replicas: int = 1) -> Block:
    return Block(np.array(nodes), device, replicas, number)


def test_two_machines_by_hand():
    plan = fork().plan([on(A, 0, 0), on(A, 1, 1), on(B, 0, 2), on(B, 1, 3)])
    parts = [(s.in_s, s.compute_s, s.out_s) for s in plan.stages]
    # t0 leaves once, over the slowest link to a reader: 1 + 200 / 10; within a it takes 200 / 100
    assert parts == [(0, 1, 21), (2, 1, 0), (21, 1, 0), (21, 1, 0)]
    assert plan.value == 22
    near = fork().plan([on(A, 0, 0), on(A, 1, 1, 2, 3)])
    assert [s.out_s for s in near.stages] == [2, 0]


def test_inputs_and_outputs_come_from_the_host():
    plan = fork(charge_io=True).plan([on(A, 0, 0), on(B, 0, 1, 2, 3)])
    # x: 40 / 100; the outputs: 3 * 40 / 20, at the bandwidth of the class
    assert [(s.in_s, s.out_s) for s in plan.stages] == [(0.4, 21), (21, 6)]


def test_replicas_take_the_slowest_pair():
    links = links_of(PAIR, {"from": "a/0", "to": "b/1", "bandwidth_bytes_per_s": 5.0})
    base = fork(max_replicas=2)
    problem = SplitProblem(base.graph, base.units, base.devices, base.options, links)
    plan = problem.plan([on(A, 0, 0), on(B, 0, 1, 2, 3, replicas=2)])
    # 200 / 5 from a/0 to b/1 is slower than 1 + 200 / 10 to b/0
    assert [(s.in_s, s.load_s) for s in plan.stages] == [(0, 41), (40, 43 / 2)]
    assert not check_plan(problem.graph, problem.units, plan).violations


def test_a_class_joins_its_own_devices():
    links = {(x.source, x.target): x.bandwidth_bytes_per_s for x in links_of(PAIR)}
    assert links["a/0", "a/1"] == 100
    assert links["b/1", "b/0"] == 20
    stated = {"from": "a/0", "to": "a/1", "bandwidth_bytes_per_s": 7.0}
    links = {(x.source, x.target): x.bandwidth_bytes_per_s for x in links_of(PAIR, stated)}
    assert links["a/1", "a/0"] == 7
    inner = DeviceClass(
        "a", count=3, bandwidth_bytes_per_s=2, cluster_size=2, inner_bandwidth_bytes_per_s=9
    )
    found = links_of({**PAIR, "to": "b/0"}, devices=(inner, B))
    by_ends = {(x.source, x.target): x.bandwidth_bytes_per_s for x in found}
    assert (by_ends["a/0", "a/1"], by_ends["a/1", "a/2"]) == (9, 2)
    assert links_of() == ()


def test_one_gateway_is_passed_through():
    gateway = {**PAIR, "from": "a/0", "to": "b/0"}
    base = fork()
    problem = SplitProblem(base.graph, base.units, base.devices, base.options, links_of(gateway))
    plan = problem.plan([on(A, 1, 0), on(B, 1, 1, 2, 3)])
    assert plan.stages[0].out_s == 1 + 200 / 10


def test_devices_that_are_not_connected():
    lonely = DeviceClass("c", count=1)
    base = fork()
    problem = SplitProblem(base.graph, base.units, (A, B, lonely), base.options, base.links)
    with pytest.raises(FormatError, match="no path from a/0 to c/0"):
        problem.value([on(A, 0, 0, 1, 2, 3)])


def test_no_load_is_below_that_at_the_best_links():
    problem = fork()
    assert [d.bandwidth_bytes_per_s for d in problem.unlinked.devices] == [100, 20]
    fast = SplitProblem(
        problem.graph, problem.units, (A, B), problem.options,
        links_of({**PAIR, "bandwidth_bytes_per_s": 500.0}),
    )  # fmt: skip
    assert [d.bandwidth_bytes_per_s for d in fast.unlinked.devices] == [500, 500]


@given(st.integers(0, 10**6), st.integers(1, 3))
def test_every_way_to_price_agrees(seed, replicas):
    problem = linked_case(seed, 7, max_replicas=replicas)
    rng = np.random.default_rng(seed)
    items = problem.free_items
    slots = sum(d.count for d in problem.devices)
    slot = rng.integers(slots, size=items.count)
    homes = [Home(c, i, 1) for c, d in enumerate(problem.devices) for i in range(d.count)]
    if replicas > 1 and problem.devices[0].count > 1:
        homes[0] = Home(0, 0, 2)  # its stage takes over those of the second device
        slot[slot == 1] = 0
    blocks = []
    for s, home in enumerate(homes):
        nodes = np.flatnonzero(slot[items.label] == s)
        nodes = nodes[np.argsort(problem.graph.rank[nodes])]
        device = problem.devices[home.device]
        blocks.append(Block(nodes, device, home.replicas, home.number))
    loads = LinkedLoads(problem, items).of(slot, homes)
    try:
        plan = problem.plan(blocks)
    except InfeasibleError:
        assert np.isinf(loads).any() or problem.options.memory_model == "peak"
        return
    report = check_plan(problem.graph, problem.units, plan)
    assert not report.violations
    if problem.options.memory_model != "peak":  # which depends on the order of nodes
        assert loads.max(axis=1).sum() == pytest.approx(plan.value)
    unlinked = problem.unlinked
    assert unlinked.value(unlinked.own(blocks)) <= plan.value * (1 + 1e-12)


@given(st.integers(0, 10**6))
def test_equal_links_are_as_the_class(seed):
    case = random_case(seed, 7, charge_io=False, memory_mode="hard")
    device = DeviceClass("dev", count=4, bandwidth_bytes_per_s=3.0)
    own = [{"from": "dev", "to": "dev", "bandwidth_bytes_per_s": 3.0}]
    links = links_of(*own, devices=(device,))
    plain = SplitProblem(case.graph, case.units, (device,), case.options)
    linked = SplitProblem(case.graph, case.units, (device,), case.options, links)
    part = np.random.default_rng(seed).integers(4, size=plain.free_items.count)
    part = part[plain.free_items.label]
    order = case.graph.order
    blocks = [Block(order[part[order] == b], device) for b in range(4)]
    assert linked.value(blocks) == pytest.approx(plain.value(blocks))
