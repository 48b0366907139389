"""Segment costs and slicing by tables: the reference for the slicing in O(n) memory."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from dnnp.core.cost.items import items_of, steps_of
from dnnp.core.cost.load import stage_load
from dnnp.core.cost.problem import SplitProblem, make_line
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.errors import InfeasibleError, LimitError
from dnnp.core.model.graph import singletons
from dnnp.core.model.plan import CostOptions
from dnnp.core.split.slicing.slice import slice_line
from dnnp.formats.graph import graph_of
from support import matrix
from support.cases import Case, random_case
from support.graphs import random_stream
from support.matrix import segment_costs, slice_matrix
from support.problems import chain, problem_of
from support.slicing import line_of, random_order_of

COMM = ("sum", "overlap", "duplex")


def steps_or_none(case: Case, line):
    overflow = case.options.memory_mode == "overflow"
    return steps_of(case.graph, line, case.options) if overflow else None


@pytest.mark.parametrize("comm", COMM)
def test_costs_of_all_intervals(comm):
    for seed in range(25):
        case = random_case(seed, 9, comm=comm, max_replicas=1, objective="throughput")
        line = line_of(case, random_order_of(case, seed))
        for c, device in enumerate(case.devices):
            costs = segment_costs(line, comm, c, steps_or_none(case, line))
            assert costs.shape == (line.n, line.n)
            for a in range(line.n):
                assert np.isinf(costs[a, :a]).all()
                for b in range(a, line.n):
                    nodes = line.nodes[line.node_ptr[a] : line.node_ptr[b + 1]]
                    load = stage_load(case.graph, case.units, nodes, device, case.options)
                    full = not device.is_cpu and load.memory_bytes > device.memory_bytes
                    hard = full and case.options.memory_mode == "hard"
                    expected = np.inf if hard else load.load_s
                    assert costs[a, b] == pytest.approx(expected, rel=1e-9, abs=1e-9), seed


@pytest.mark.parametrize("comm", COMM)
@pytest.mark.parametrize("charge_io", [False, True])
def test_both_slicings_are_equal(comm, charge_io):
    counted = 0
    for seed in range(25):
        rng = random.Random(seed)
        graph = graph_of(random_stream(seed, rng.randint(1, 90), params=True, colors=seed % 4 == 0))
        memory = rng.choice([np.inf, 200.0, 400.0])
        device = DeviceClass("dev", "accelerator", rng.randint(1, 9), memory, rng.choice([0.5, 3]))
        options = CostOptions(
            comm, rng.choice(["sum", "peak"]), rng.choice(["hard", "overflow"]), charge_io
        )
        case = Case(seed, graph, singletons(graph), (device,), options)
        line = line_of(case, random_order_of(case, seed))
        steps = steps_or_none(case, line)
        costs = segment_costs(line, comm, 0, steps)
        try:
            found = slice_line(line, comm, steps)
        except InfeasibleError:
            with pytest.raises(InfeasibleError, match="no slicing of this order"):
                slice_matrix(costs, device.count)
            continue
        value, bounds = slice_matrix(costs, device.count)
        assert found.value == pytest.approx(value, rel=1e-9, abs=1e-9)
        assert (bounds[0], bounds[-1]) == (0, line.n)
        assert (np.diff(bounds) > 0).all()
        assert len(bounds) <= device.count + 1
        assert costs[bounds[:-1], bounds[1:] - 1].max() == value
        counted += 1
    assert counted > 12


def test_a_line_of_a_thousand_items():
    graph = graph_of(random_stream(3, 1000))
    units = singletons(graph)
    items = items_of(graph, units)
    device = DeviceClass("dev", count=32, bandwidth_bytes_per_s=2.0)
    line = make_line(SplitProblem(graph, units, (device,), CostOptions()), items, items.order)
    value, bounds = slice_matrix(segment_costs(line, "sum"), 32)
    assert slice_line(line, "sum").value == pytest.approx(value, rel=1e-9)
    assert len(bounds) <= 33


def test_fewest_intervals_and_degenerate_tables():
    costs = np.full((3, 3), np.inf)
    with pytest.raises(InfeasibleError, match="2 devices"):
        slice_matrix(costs, 2)
    costs[np.arange(3), np.arange(3)] = 1.0
    costs[0, 2] = 1.0
    value, bounds = slice_matrix(costs, 3)
    assert (value, bounds.tolist()) == (1.0, [0, 3])
    with pytest.raises(InfeasibleError):
        slice_matrix(costs, 0)
    value, bounds = slice_matrix(np.zeros((0, 0)), 4)
    assert (value, bounds.tolist()) == (0.0, [0])
    value, bounds = slice_matrix(np.zeros((2, 2)), 4)
    assert (value, bounds.tolist()) == (0.0, [0, 2])


def test_too_large_for_a_table(monkeypatch):
    monkeypatch.setattr(matrix, "MAX_ITEMS", 3)
    problem = problem_of(chain(1.0, 1.0, 1.0, 1.0), DeviceClass("dev", count=2))
    case = Case(0, problem.graph, problem.units, problem.devices, problem.options)
    with pytest.raises(LimitError, match="4 items are too many for a table of segment costs"):
        segment_costs(line_of(case, np.arange(4)), "sum")


def test_unsupported_items():
    graph = chain(1.0, 2.0, 3.0, transfer=0.0)
    times = {"dev": np.array([1.0, np.inf, 3.0])}
    units = replace(singletons(graph), times=times)
    device = DeviceClass("dev", count=3)
    case = Case(0, replace(graph, times=times), units, (device,), CostOptions(memory_model="sum"))
    costs = segment_costs(line_of(case, np.arange(3)), "sum")
    assert np.isinf(costs).tolist() == [[False, True, True], [True] * 3, [True, True, False]]
    with pytest.raises(InfeasibleError):
        slice_matrix(costs, 3)
