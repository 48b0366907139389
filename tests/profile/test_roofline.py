"""The roofline over arrays: hand-computed times, and properties over random graphs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dnnp.core.profile.work import (
    boundary_traffic,
    group_times,
    group_traffic,
    node_times,
    work_of,
)
from dnnp.formats.graph import clustering_of, graph_of
from dnnp.formats.inputs.devices import DeviceSpec
from support.graphs import node, random_stream
from support.priced import stream, tensor

DEVICE = DeviceSpec(
    name="toy",
    kind="accelerator",
    peak_flop_per_s={"float32": 100.0, "float16": 400.0, "int8": 800.0},
    memory_bytes=1e9,
    memory_bandwidth_bytes_per_s=10.0,
    link_bandwidth_bytes_per_s=1.0,
    launch_overhead_s=0.5,
    efficiency={"matrix": 0.5, "memory": 0.8},
)


def times(nodes: list[dict], tensors: list[dict]) -> list[float]:
    built = stream(nodes, tensors)
    return node_times(work_of(graph_of(built), nodes, tensors), DEVICE).tolist()


def test_the_longer_of_arithmetic_and_traffic_counts() -> None:
    tensors = [tensor(0, "input", 40), *(tensor(i, "activation", 40) for i in (1, 2, 3))]
    nodes = [
        # 1000 / 100 = 10 against 80 / (10 * 0.8) = 10: products reach half of the peak, 20.
        node(0, "MatMul", [0], [1], flop=1000, bytes=80),
        node(1, "Add", [1], [2], flop=1000, bytes=80),
        node(2, "Reshape", [2], [3], flop=0, bytes=0),
    ]
    assert times(nodes, tensors) == [20.5, 10.5, 0.0]


def test_element_type_sets_the_peak() -> None:
    tensors = [
        tensor(0, "input", 0, "uint8"),
        tensor(1, "activation", 0, "float16"),
        tensor(2, "activation", 0, "uint8"),
        tensor(3, "activation", 0, "int64"),
        tensor(4, "activation", 0, "bfloat16"),
        tensor(5, "activation", 0, "int32"),
    ]
    nodes = [
        node(0, "Cast", [0], [1], flop=400),
        node(1, "QLinearConv", [0, 1], [2], flop=400),
        node(2, "ArgMax", [1], [3], flop=400),
        node(3, "Neg", [1], [4], flop=400),
        node(4, "Abs", [3], [5], flop=400),
    ]
    # float16; int8 at half of the peak; float16 by its input; no bfloat16, so float32; float32.
    assert times(nodes, tensors) == [1.5, 1.5, 1.5, 4.5, 4.5]


def test_node_without_figures_moves_its_tensors() -> None:
    tensors = [tensor(0, "input", 40), tensor(1, "parameter", 8), tensor(2, "activation", 32)]
    nodes = [node(0, "Foo", [0, 1], [2])]
    work = work_of(graph_of(stream(nodes, tensors)), nodes, tensors)
    assert work.bytes.tolist() == [80.0]
    assert work.known.tolist() == [False]
    assert times(nodes, tensors) == [10.5]


def test_group_is_one_kernel() -> None:
    tensors = [
        tensor(0, "input", 8),
        tensor(1, "activation", 100),
        tensor(2, "activation", 16),
        tensor(3, "parameter", 24),
        tensor(4, "activation", 40, output=True),
    ]
    nodes = [
        node(0, "Add", [0, 3], [1], flop=100, bytes=132),
        node(1, "Exp", [1, 3], [2], flop=300, bytes=140),
        node(2, "Neg", [2], [4], flop=100, bytes=56),
    ]
    built = stream(nodes, tensors, [[0, 1], [2]])
    graph = graph_of(built)
    groups = clustering_of(built, graph)
    assert groups is not None
    work = work_of(graph, nodes, tensors)
    # Tensor 1 stays inside, parameter 3 is read once: 8 + 24 + 16. The single node keeps its own.
    assert group_traffic(graph, work, groups.label, 2).tolist() == [48.0, 56.0]
    # 400 / 100 = 4 against 48 / 8 = 6, and 1 against 7.
    assert group_times(graph, work, groups.label, 2, DEVICE).tolist() == [6.5, 7.5]


def test_group_that_gathers_does_not_read_the_table() -> None:
    tensors = [
        tensor(0, "input", 8, "int64"),
        tensor(1, "parameter", 1e6),
        tensor(2, "activation", 40),
        tensor(3, "activation", 40, output=True),
    ]
    nodes = [
        node(0, "Gather", [1, 0], [2], flop=0, bytes=88),
        node(1, "Relu", [2], [3], flop=10, bytes=80),
    ]
    graph = graph_of(stream(nodes, tensors))
    work = work_of(graph, nodes, tensors)
    assert group_traffic(graph, work, np.zeros(2, dtype=np.int64), 1).tolist() == [168.0]


@given(st.integers(0, 10_000), st.integers(1, 30), st.data())
def test_grouping_never_costs_more(seed: int, n: int, data: st.DataObject) -> None:
    built = random_stream(seed, n, params=True)
    nodes, tensors = built.get("node"), built.get("tensor")
    for record in nodes:
        record["flop"] = data.draw(st.integers(0, 1000))
    graph = graph_of(built)
    work = work_of(graph, nodes, tensors)
    alone = node_times(work, DEVICE)
    label = np.array(data.draw(st.lists(st.integers(0, 4), min_size=n, max_size=n)), dtype=np.int64)
    together = group_times(graph, work, label, 5, DEVICE)
    assert (together <= np.bincount(label, weights=alone, minlength=5) + 1e-9).all()
    each = np.arange(n, dtype=np.int64)
    np.testing.assert_array_equal(group_times(graph, work, each, n, DEVICE), alone)
    slower = node_times(work, _scaled(0.5))
    assert (slower >= alone - 1e-12).all()


@given(st.integers(0, 10_000), st.integers(1, 20), st.data())
def test_boundary_traffic_equals_a_plain_count(seed: int, n: int, data: st.DataObject) -> None:
    built = random_stream(seed, n, params=True)
    label = data.draw(st.lists(st.integers(0, 3), min_size=n, max_size=n))
    graph = graph_of(built)
    maker = {t: v for v, r in enumerate(built.get("node")) for t in r["outputs"]}
    expected = []
    for g in range(4):
        inside = [r for v, r in enumerate(built.get("node")) if label[v] == g]
        read = {t for r in inside for t in r["inputs"] if t not in maker or label[maker[t]] != g}
        others = [r for v, r in enumerate(built.get("node")) if label[v] != g]
        needed = {t for r in others for t in r["inputs"]}
        needed |= {t["id"] for t in built.get("tensor") if t.get("output")}
        written = {t for r in inside for t in r["outputs"]} & needed
        expected.append(sum(built.get("tensor")[t]["size_bytes"] for t in (*read, *written)))
    found = boundary_traffic(graph, np.array(label, dtype=np.int64), 4)
    assert found.tolist() == pytest.approx(expected)


def _scaled(factor: float) -> DeviceSpec:
    peaks = {name: factor * rate for name, rate in DEVICE.peak_flop_per_s.items()}
    bandwidth = factor * DEVICE.memory_bandwidth_bytes_per_s
    return replace(DEVICE, peak_flop_per_s=peaks, memory_bandwidth_bytes_per_s=bandwidth)
