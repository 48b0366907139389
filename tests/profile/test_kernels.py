"""Times of kernels by rates of families: hand-computed, and what fusing and layouts change."""

from __future__ import annotations

import json
from math import hypot

import numpy as np
import pytest

from dnnp.core.model.device_rates import RATES
from dnnp.core.profile.families import FAMILIES, FAMILY, NONE, family_of
from dnnp.core.profile.kernels import joined, kernel_times, rate_table
from dnnp.core.profile.work import work_of
from dnnp.formats.graph import graph_of
from dnnp.formats.inputs.devices import DeviceSpec, parse_device
from dnnp.pricing import analytic_times, fused, kernels_by
from support.graphs import node
from support.priced import stream, tensor

DEVICE = {
    "name": "toy",
    "kind": "accelerator",
    "peak_flop_per_s": {"float32": 100, "int8": 400},
    "memory_bytes": 1e9,
    "memory_bandwidth_bytes_per_s": 10,
    "link_bandwidth_bytes_per_s": 1,
    "launch_overhead_s": 0.5,
    "efficiency": {"vector": 0.1, "memory": 0.5},
    "caches": [
        {"bytes": 100, "bandwidth_bytes_per_s": 40},
        {"bytes": 1000, "bandwidth_bytes_per_s": 20},
    ],
    "channel_block": 4,
    "operators": {
        "arithmetic": {"float32": {"compute": 0.5, "half_length": 5, "launch": 2}},
        "product": {"float32": {"compute": 0.8, "memory": 0.5}, "int8": {"compute": 0.25}},
        "conv-pointwise": {"float32": {}},
        "transpose": {"float32": {"memory": 0.25}},
        "view": {"float32": {"launch": 0.5}},
    },
}


def device(**change: object) -> DeviceSpec:
    return parse_device(json.dumps({**DEVICE, **change}).encode(), "toy.json")


def times(nodes: list[dict], tensors: list[dict], **change: object) -> list[float]:
    built = stream(nodes, tensors)
    graph = graph_of(built)
    work = work_of(graph, nodes, tensors)
    return analytic_times(built, graph, None, work, device(**change))[0].tolist()


def test_families_are_those_of_device_files() -> None:
    by_shape = {
        "product-pairs", "conv-pointwise", "conv-depthwise", "conv-grouped", "conv-narrow",
        "broadcast", "select-broadcast", "transpose-rows",
    }  # fmt: skip
    assert {*FAMILY.values()} - {NONE} | by_shape == {*FAMILIES}
    assert sorted(FAMILIES[:-1]) == list(FAMILIES[:-1])


def test_by_hand() -> None:
    tensors = [
        tensor(0, "input", 40, shape=[2, 5]),
        tensor(1, "activation", 40, shape=[2, 5]),
        tensor(2, "activation", 40, shape=[10]),
        tensor(3, "activation", 40, shape=[10]),
        tensor(4, "activation", 400, shape=[10, 10], output=True),
    ]
    nodes = [
        # Rows of 5 are half as fast: 100 / (100 * 0.5) * 2 = 4; 80 bytes lie in the first cache,
        # at half of its rate, as nothing else is said of arithmetic... but memory is 1 there: 2.
        node(0, "Add", [0], [1], flop=100, bytes=80),
        node(1, "Reshape", [1], [2], flop=0, bytes=0),
        node(2, "Identity", [2], [3], flop=0, bytes=0),
        # No family: 100 / (100 * 0.1) = 10; 440 bytes lie in the second cache, 440 / 20 / 0.5.
        node(3, "Foo", [3], [4], flop=100, bytes=440),
    ]
    assert times(nodes, tensors) == pytest.approx([1 + hypot(4, 2), 0.25, 0, 0.5 + hypot(10, 44)])


def test_weights_lie_where_all_weights_do() -> None:
    tensors = [
        tensor(0, "input", 40),
        tensor(1, "parameter", 50),
        tensor(2, "activation", 8, output=True),
        tensor(3, "parameter", 2000),
    ]
    nodes = [node(0, "MatMul", [0, 1], [2], flop=80, bytes=98)]
    # 48 bytes from the first cache, 50 from memory, at half of the rates.
    (found,) = times(nodes, tensors)
    assert found == pytest.approx(0.5 + hypot(1, 2 * (48 / 40 + 50 / 10)))
    (found,) = times(nodes, tensors[:3])
    assert found == pytest.approx(0.5 + hypot(1, 2 * (98 / 40)))


def test_element_types_have_rates_of_their_own() -> None:
    table = rate_table(device())
    row, column = FAMILIES.index("product"), RATES.index("int8")
    assert table[:, row, column].tolist() == [0.25, 1, 0, 1]
    assert table[:, row, RATES.index("float64")].tolist() == [0.8, 0.5, 0, 1]


def test_channels_are_padded_and_images_copied() -> None:
    tensors = [
        tensor(0, "input", 0, shape=[1, 18, 2, 2]),
        tensor(1, "parameter", 0, shape=[6, 18, 1, 1]),
        tensor(2, "activation", 0, shape=[1, 6, 2, 2], output=True),
    ]
    nodes = [node(0, "Conv", [0, 1], [2], flop=600, bytes=0)]
    # 18 channels take 20, 6 take 8: 6 * 20 / 18 * 8 / 6.
    assert times(nodes, tensors) == pytest.approx([0.5 + 6 * 20 / 18 * 8 / 6])
    assert times(nodes, tensors, channel_block=1) == pytest.approx([6.5])
    tensors[0]["size_bytes"], tensors[2]["size_bytes"] = 10, 20
    # Both ends are read and written once more, at a quarter of the rate of the first cache.
    assert times(nodes, tensors) == pytest.approx([0.5 + hypot(80 / 9, 60 / 40 / 0.25)])


@pytest.mark.parametrize(
    ("op", "inputs", "known", "output", "family"),
    [
        ("Conv", [[1, 32, 8, 8], [64, 32, 3, 3]], [False, True], None, "conv"),
        ("Conv", [[1, 32, 8, 8], [64, 32, 1, 1]], [False, True], None, "conv-pointwise"),
        ("Conv", [[1, 32, 8, 8], [32, 1, 3, 3]], [False, True], None, "conv-depthwise"),
        ("Conv", [[1, 32, 8, 8], [64, 8, 3, 3]], [False, True], None, "conv-grouped"),
        ("Conv", [[1, 32, 8, 8], [64, 16, 3, 3]], [False, True], None, "conv"),
        ("Conv", [[1, 3, 8, 8], [64, 3, 3, 3]], [False, True], None, "conv-narrow"),
        ("Conv", [None, None], [False, True], None, "conv"),
        ("MatMul", [[4, 4], [4, 4]], [False, True], [4, 4], "product"),
        ("MatMul", [[4, 4], [4, 4]], [False, False], [4, 4], "product-pairs"),
        ("Add", [[4, 4], [4]], [False, True], [4, 4], "broadcast"),
        ("Add", [[4, 4], [4, 1]], [False, True], [4, 4], "arithmetic"),
        ("Add", [[4, 4], []], [False, True], [4, 4], "arithmetic"),
        ("Where", [[1, 4], [4, 4], []], [False] * 3, [4, 4], "select-broadcast"),
        ("Transpose", [[2, 3, 4]], [False], [3, 2, 4], "transpose-rows"),
        ("Transpose", [[2, 3, 4]], [False], [2, 4, 3], "transpose"),
        ("Custom", [[2]], [False], [2], ""),
    ],
)
def test_family(op: str, inputs: list, known: list[bool], output: list, family: str) -> None:
    assert family_of(op, inputs, known, output) == family


def test_what_is_fused_is_one_kernel() -> None:
    tensors = [
        tensor(0, "input", 40, shape=[2, 5]),
        tensor(1, "parameter", 40, shape=[5, 2]),
        tensor(2, "activation", 16, shape=[2, 2]),
        tensor(3, "parameter", 8, shape=[2]),
        tensor(4, "activation", 16, shape=[2, 2], output=True),
    ]
    nodes = [
        node(0, "MatMul", [0, 1], [2], flop=40, bytes=96),
        node(1, "Add", [2, 3], [4], flop=4, bytes=40),
    ]
    built = stream(nodes, tensors, [[0, 1]])
    graph = graph_of(built)
    work = work_of(graph, nodes, tensors)
    units = fused(built, graph)
    kernels = kernels_by(built, graph, work, np.zeros(2, dtype=np.int64), units)
    assert kernels.flop.tolist() == [40, 0]
    assert (kernels.moved.tolist(), kernels.weights.tolist()) == ([56], [48])
    twice = joined([kernels, kernels])
    assert kernel_times(twice, device()).tolist() == [*kernel_times(kernels, device())] * 2
