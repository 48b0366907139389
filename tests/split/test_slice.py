"""Slicing against a brute force over all cut positions."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace

import numpy as np
import pytest

from dnnp.core.bounds.simple import simple_bound
from dnnp.core.check.plan import check_plan
from dnnp.core.cost.items import items_of, steps_of
from dnnp.core.cost.load import stage_load
from dnnp.core.cost.problem import SplitProblem, make_line, make_plan
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.errors import InfeasibleError
from dnnp.core.model.plan import Block, CostOptions
from dnnp.core.split.slicing.orders import ORDERS
from dnnp.core.split.slicing.slice import decide_far, decide_one, slice_line, sweep_problem
from dnnp.formats.graph import graph_of, units_of
from support.graphs import random_stream


def brute_force(graph, units, line, devices, options) -> float:
    """Least largest load over all cut positions and all assignments of classes."""
    slots = [d for d in devices for _ in range(d.count)]
    best = math.inf
    cost: dict[tuple[int, int, str], float] = {}

    def load(a: int, b: int, device: DeviceClass) -> float:
        key = (a, b, device.name)
        if key not in cost:
            nodes = line.nodes[line.node_ptr[a] : line.node_ptr[b]]
            part = stage_load(graph, units, nodes, device, options)
            full = part.memory_bytes > device.memory_bytes and not device.is_cpu
            cost[key] = math.inf if full and options.memory_mode == "hard" else part.load_s
        return cost[key]

    kinds = sorted(set(itertools.permutations(slots)), key=str) if len(devices) > 1 else [slots]
    for blocks in range(1, min(len(slots), line.n) + 1):
        for cuts in itertools.combinations(range(1, line.n), blocks - 1):
            bounds = [0, *cuts, line.n]
            for assignment in kinds:
                value = max(load(bounds[i], bounds[i + 1], assignment[i]) for i in range(blocks))
                best = min(best, value)
    return best


def compare(seed: int, n: int, devices: tuple[DeviceClass, ...], options: CostOptions, **kinds):
    """Slice one random graph in one order and compare with the brute force."""
    stream = random_stream(seed, n, **kinds)
    graph = graph_of(stream)
    units = units_of(stream, graph)
    items = items_of(graph, units)
    order = list(ORDERS.values())[seed % len(ORDERS)](items)
    line = make_line(SplitProblem(graph, units, devices, options), items, order)
    expected = brute_force(graph, units, line, devices, options)
    streamed = options.memory_mode == "overflow"
    steps = steps_of(graph, line, options) if streamed else None
    try:
        found = slice_line(line, options.comm, steps)
    except InfeasibleError:
        assert expected == math.inf
        return
    assert found is not None
    assert found.value == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert slice_line(line, options.comm, steps, below=found.value * (1 - 1e-9)) is None
    if found.value > 0:
        again = slice_line(line, options.comm, steps, below=2 * found.value)
        assert again is not None
        assert again.value == pytest.approx(found.value, rel=1e-12)
    assert len(found.classes) <= sum(d.count for d in devices)
    blocks = [
        Block(line.nodes[line.node_ptr[a] : line.node_ptr[b]], devices[c])
        for a, b, c in zip(found.bounds[:-1], found.bounds[1:], found.classes, strict=True)
    ]
    problem = SplitProblem(graph, units, devices, options)
    bound = simple_bound(problem.with_options(CostOptions()))
    plan = make_plan(problem, blocks, method="slice", bound=bound, digest="0" * 64)
    report = check_plan(graph, None, plan)
    assert report.violations == ()
    assert report.value == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_equals_brute_force_on_many_graphs():
    for seed in range(250):
        rng = random.Random(seed)
        device = DeviceClass(
            "dev", count=rng.randint(1, 4), bandwidth_bytes_per_s=rng.choice([1, 3])
        )
        options = CostOptions(
            comm=rng.choice(["sum", "overlap", "duplex"]), charge_io=seed % 3 == 0
        )
        compare(seed, rng.randint(1, 10), (device,), options, colors=seed % 5 == 0)


@pytest.mark.parametrize("mode", ["hard", "overflow"])
@pytest.mark.parametrize("model", ["peak", "sum"])
def test_equals_brute_force_with_memory(mode, model):
    for seed in range(120):
        rng = random.Random(seed)
        device = DeviceClass("dev", "accelerator", rng.randint(1, 4), rng.randint(40, 200), 2)
        options = CostOptions(rng.choice(["sum", "duplex"]), model, mode)
        compare(seed, rng.randint(1, 10), (device,), options, params=True)


def test_equals_brute_force_with_several_classes():
    for seed in range(120):
        rng = random.Random(seed)
        devices = (
            DeviceClass("dev", count=rng.randint(1, 2), bandwidth_bytes_per_s=2),
            DeviceClass("big", count=rng.randint(0, 1), bandwidth_bytes_per_s=5),
            DeviceClass("cpu", kind="cpu", count=rng.randint(0, 2)),
        )
        used = tuple(d for d in devices if d.count)
        compare(seed, rng.randint(1, 7), used, CostOptions(), classes=("big", "cpu"))


def test_long_line_with_wide_values():
    """A larger line against the O(n^2 k) table of the paper."""
    stream = random_stream(7, 120)
    graph = graph_of(stream)
    units = units_of(stream, graph)
    device = DeviceClass("dev", count=6, bandwidth_bytes_per_s=1.7)
    items = items_of(graph, units)
    line = make_line(
        SplitProblem(graph, units, (device,), CostOptions()), items, ORDERS["kahn"](items)
    )
    n = line.n
    cost = np.full((n, n + 1), np.inf)
    for a in range(n):
        for b in range(a + 1, n + 1):
            cost[a, b] = stage_load(graph, units, line.nodes[a:b], device, CostOptions()).load_s
    table = cost[0].copy()
    for _ in range(5):
        table = np.array(
            [
                min([table[b], *(max(table[a], cost[a, b]) for a in range(1, b))])
                for b in range(n + 1)
            ]
        )
    assert slice_line(line, "sum").value == pytest.approx(table[n], rel=1e-9)


@pytest.mark.parametrize("comm", ["sum", "overlap", "duplex"])
def test_a_tree_over_ends_changes_nothing(comm):
    """Sweeps of a line of dear cuts take the same ends, and meet the same load above the target."""
    stream = random_stream(0, 1000)
    graph = graph_of(stream)
    units = units_of(stream, graph)
    items = items_of(graph, units)
    device, options = DeviceClass("dev", count=4, bandwidth_bytes_per_s=1.0), CostOptions(comm=comm)
    case = SplitProblem(graph, units, (device,), options)
    line = make_line(case, items, next(iter(ORDERS.values()))(items))
    rng, work = np.random.default_rng(5), line.work.sum()
    dear = rng.uniform(0.05, 0.25, line.cost.shape) * work
    line = replace(line, cost=np.where(rng.random(dear.shape) < 0.3, dear, 0.01 * line.cost))
    problem = sweep_problem(line, [0], comm, None)
    for share in (0.3, 0.5, 0.8):
        tables = []
        for decide in (decide_one, decide_far):
            least = np.zeros((line.n + 1, 1), dtype=np.int64)
            choice = np.zeros((line.n, 1, 2), dtype=np.int64)
            above = decide(share * work, problem, least, choice)
            tables.append((least.tolist(), choice.tolist(), float(above)))
        assert tables[0][:2] == tables[1][:2]
        assert tables[0][2] == pytest.approx(tables[1][2], rel=1e-12)
