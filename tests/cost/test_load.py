"""Load and memory of a stage, with the arithmetic in comments."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dnnp.core.cost import problem
from dnnp.core.cost.items import items_of, steps_of
from dnnp.core.cost.load import memory_row, peak_reach, stage_load, tree_size
from dnnp.core.cost.problem import SplitProblem, make_line
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.plan import Block, CostOptions
from dnnp.core.split.slicing.orders import ORDERS
from dnnp.formats.graph import graph_of, units_of
from dnnp.formats.stream import Stream
from support.graphs import header, node, random_stream, tensor


@pytest.fixture
def diamond():
    """x -> a -> b, c -> d; a's output is read twice, w is shared by b and c."""
    sizes = {"x": 4, "w": 100, "ta": 6, "tb": 10, "tc": 20, "td": 2}
    kinds = {"x": "input", "w": "parameter"}
    tensors = [
        tensor(i, kinds.get(t, "activation"), s, name=t) for i, (t, s) in enumerate(sizes.items())
    ]
    tensors[5]["output"] = True
    ids = {t: i for i, t in enumerate(sizes)}
    rows = [("a", "x", "ta"), ("b", "ta w", "tb"), ("c", "ta w", "tc"), ("d", "tb tc", "td")]
    nodes = []
    for i, (name, reads, made) in enumerate(rows):
        inputs = [ids[t] for t in reads.split()]
        nodes.append(node(10 + i, "Op", inputs, [ids[made]], name=name, time_s={"dev": 1.0 + i}))
    stream = Stream(header=header(), records={"tensor": tensors, "node": nodes})
    graph = graph_of(stream)
    return graph, units_of(stream, graph)


DEVICE = DeviceClass("dev", bandwidth_bytes_per_s=2.0, memory_bytes=120.0)


@pytest.mark.parametrize(("size", "found"), [(0, 0), (2, 1)])
def test_clusters_are_looked_up_once_a_class(diamond, monkeypatch, size, found):
    calls = []
    homes = problem._homes
    monkeypatch.setattr(problem, "_homes", lambda *a: calls.append(1) or homes(*a))
    device = DeviceClass("dev", count=4, cluster_size=size)
    blocks = [Block(np.array([v]), device, number=v) for v in range(4)]
    levels = problem.link_levels(diamond[0], blocks)
    assert len(calls) == found
    inside = [[0, 0, 1, 1]] * 2 + [[1, 1, 0, 0]] * 2
    assert [None if x is None else x.tolist() for x in levels] == (inside if size else [None] * 4)


def test_parts_of_a_load(diamond):
    part = stage_load(*diamond, [1, 2], DEVICE, CostOptions(memory_mode="overflow"))
    assert part.compute_s == 2 + 3
    assert part.in_s == 6 / 2  # ta once, though two nodes read it
    assert part.out_s == (10 + 20) / 2
    # w once; while c runs, ta, tb and tc are live
    assert part.memory_bytes == 100 + 6 + 10 + 20
    assert part.overflow_s == (136 - 120) / 2
    assert part.load_s == 3 + 5 + 8 + 15


@pytest.mark.parametrize(("comm", "load"), [("sum", 23), ("overlap", 18), ("duplex", 15)])
def test_how_parts_combine(diamond, comm, load):
    assert stage_load(*diamond, [1, 2], DEVICE, CostOptions(comm=comm)).load_s == load


def test_model_inputs_and_outputs_are_free_unless_charged(diamond):
    whole = [0, 1, 2, 3]
    free = stage_load(*diamond, whole, DEVICE, CostOptions())
    assert (free.in_s, free.out_s) == (0, 0)
    charged = stage_load(*diamond, whole, DEVICE, CostOptions(charge_io=True))
    assert (charged.in_s, charged.out_s) == (4 / 2, 2 / 2)


def test_a_cpu_costs_compute_only(diamond):
    cpu = DeviceClass("dev", kind="cpu", memory_bytes=1.0)
    part = stage_load(*diamond, [1, 2], cpu, CostOptions(memory_mode="overflow"))
    assert (part.in_s, part.out_s, part.overflow_s, part.load_s) == (0, 0, 0, 5)


def test_sum_model_adds_up_nodes(diamond):
    # b: w + tb, c: w + tc; a shared parameter counts for each node
    part = stage_load(*diamond, [1, 2], DEVICE, CostOptions(memory_model="sum"))
    assert part.memory_bytes == 100 + 10 + 100 + 20


@given(st.integers(0, 10_000), st.integers(1, 10), st.sampled_from(["peak", "sum"]))
def test_memory_of_intervals_equals_memory_of_stages(seed, n, model):
    stream = random_stream(seed, n, params=True)
    graph = graph_of(stream)
    units = units_of(stream, graph)
    items = items_of(graph, units)
    options = CostOptions(memory_model=model)
    line = make_line(SplitProblem(graph, units, (DEVICE,), options), items, ORDERS["dfs"](items))
    steps = steps_of(graph, line, options)
    memory = np.zeros((line.n, line.n))
    trees = np.zeros((2, tree_size(steps)))
    for a in range(line.n):
        memory_row(steps, a, line.n - 1, trees[0], trees[1], memory[a])
    for a, b in itertools.combinations(range(line.n + 1), 2):
        nodes = line.nodes[line.node_ptr[a] : line.node_ptr[b]]
        expected = stage_load(graph, units, nodes, DEVICE, options).memory_bytes
        assert memory[a, b - 1] == pytest.approx(expected)
    for capacity in (20, 60, 150):
        fits = memory <= capacity
        expected = [a - 1 + int(np.cumprod(fits[a, a:]).sum()) for a in range(line.n)]
        assert peak_reach(steps, capacity).tolist() == expected
