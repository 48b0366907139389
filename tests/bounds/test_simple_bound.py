"""The simple bound against a brute force over all assignments."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dnnp.core.bounds.simple import simple_bound
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.plan import CostOptions
from dnnp.formats.graph import graph_of, units_of
from support.graphs import random_stream


@given(st.integers(0, 10_000), st.integers(1, 6), st.integers(1, 2), st.integers(0, 2))
def test_never_above_the_best_assignment(seed, n, first, second):
    stream = random_stream(seed, n, colors=True, classes=("big",))
    graph = graph_of(stream)
    units = units_of(stream, graph)
    offered = (DeviceClass("dev", count=first), DeviceClass("big", count=second))
    slots = [d.name for d in offered for _ in range(d.count)]
    best = np.inf
    for places in itertools.product(range(len(slots)), repeat=n):
        pairs = [(graph.color[v], places[v]) for v in range(n) if graph.color[v] >= 0]
        if len(set(pairs)) > len({c for c, _ in pairs}):
            continue
        loads = [0.0] * len(slots)
        for v, s in enumerate(places):
            loads[s] += units.times.get(slots[s], np.full(n, np.inf))[v]
        best = min(best, max(loads))
    assert simple_bound(SplitProblem(graph, units, offered, CostOptions())) <= best


def test_mixed_classes_get_the_fractional_optimum():
    # 12 units of 1 s, or 3 s on the slow class: 1 fast and 3 slow devices take 12 / (1 + 1)
    stream = random_stream(1, 12)
    for node in stream.get("node"):
        node["time_s"] = {"dev": 1.0, "slow": 3.0}
    graph = graph_of(stream)
    devices = (DeviceClass("dev", count=1), DeviceClass("slow", count=3))
    assert simple_bound(
        SplitProblem(graph, units_of(stream, graph), devices, CostOptions())
    ) == pytest.approx(6.0, rel=0.02)
