"""--to N: contraction to a number of groups of about equal work."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dnnp.core.coarsen.coarsen import coarsen, contract_to, work_shares
from dnnp.core.model.graph import Graph
from dnnp.formats.graph import graph_of
from dnnp.formats.stream import Stream
from support.graphs import random_stream, to_bytes
from support.op_graphs import assert_valid, op_stream, shapes_of
from support.run import dnnp


def contracted(stream: Stream, target: int, **options: object) -> tuple[Graph, list[float], object]:
    """The graph, the share of work in each group, and the coarsening."""
    graph = graph_of(stream)
    result = coarsen(graph, shapes_of(stream), to=target, **options)  # type: ignore[arg-type]
    label, share = result.clustering.label, work_shares(graph)
    return graph, np.bincount(label, weights=share).tolist(), result


@given(st.integers(0, 10**6), st.integers(1, 40), st.integers(1, 12))
def test_exactly_so_many_groups_of_about_equal_work(seed, n, target):
    graph, loads, result = contracted(random_stream(seed, n, params=True), target)
    assert_valid(graph, result)
    assert len(loads) == min(n, target)
    assert not result.stuck
    share = work_shares(graph)
    assert max(loads) <= max(2 * share.sum() / target, share.max()) * (1 + 1e-9)


@given(st.integers(0, 10**6), st.integers(2, 40), st.integers(1, 8))
def test_device_classes_passes_and_colours_stay_apart(seed, n, target):
    stream = random_stream(seed, n, classes=("gpu",), colors=True)
    for i, node in enumerate(stream.get("node")):
        node["backward"] = i >= n // 2
    graph, loads, result = contracted(stream, target)
    assert_valid(graph, result)
    assert result.stuck == (len(loads) > target)
    colors = graph.color.tolist()
    for group in range(result.clustering.g):
        members = result.clustering.members(group)
        assert len(set(graph.backward[members].tolist())) == 1
        for times in graph.times.values():
            assert len(set(np.isfinite(times[members]).tolist())) == 1
        shared = {c for c in graph.color[members].tolist() if c >= 0 and colors.count(c) > 1}
        assert len(shared) <= 1


@given(st.integers(0, 10**6), st.integers(2, 40), st.integers(1, 8), st.floats(0.01, 1.0))
def test_max_share_holds_besides_the_heaviest_node(seed, n, target, limit):
    stream = random_stream(seed, n)
    graph, _, result = contracted(stream, target, max_share=limit)
    assert_valid(graph, result)
    share = work_shares(graph)
    for group in range(result.clustering.g):
        mine = share[result.clustering.members(group)]
        assert mine.sum() - mine.max() <= limit + 1e-12
    assert result.stuck == (result.clustering.g > target)


@given(st.integers(0, 10**6), st.integers(1, 30), st.integers(1, 10))
def test_after_rules_chains_and_layers(seed, n, target):
    rng = random.Random(seed)
    stream = random_stream(seed, n)
    paths = [rng.choice(((), ("a",), ("b",))) for _ in range(n)]
    before = coarsen(graph_of(stream), shapes_of(stream), chains=0.1, paths=paths)
    graph, loads, result = contracted(stream, target, chains=0.1, paths=paths)
    assert_valid(graph, result)
    assert len(loads) == min(before.clustering.g, target)
    old, new = before.clustering.label.tolist(), result.clustering.label.tolist()
    pairs = set(zip(old, new, strict=True))
    assert len(pairs) == before.clustering.g, "groups stay whole"


def test_heavy_edges_are_joined():
    stream = op_stream("a = A(x)", "b = B(a)", "c = C(b)", "d = D(c)", outputs="d")
    for tensor in stream.get("tensor"):
        tensor["size_bytes"] = 1000 if tensor["name"] in "ac" else 1
    for node in stream.get("node"):
        node["time_s"] = {"cpu": 1.0}
    _, _, result = contracted(stream, 2)
    assert result.clustering.label.tolist() == [0, 0, 1, 1]
    assert result.rules == ("balanced", "balanced")


@pytest.mark.parametrize("target", [1, 2, 7, 30])
def test_a_wide_graph(target):
    """Nothing but a fork: almost no edge can be matched in one pass."""
    lines = ["a = A(x)", *(f"b{i} = B(a)" for i in range(60))]
    stream = op_stream(*lines)
    for node in stream.get("node"):
        node["time_s"] = {"cpu": 1.0}
    _, loads, _ = contracted(stream, target)
    assert len(loads) == target
    assert max(loads) <= 2 / target


def test_no_work_at_all():
    graph = graph_of(op_stream(*(f"b{i} = B(x)" for i in range(9))))
    label, stuck = contract_to(graph, np.zeros(9), 4)
    assert len(set(label.tolist())) == 4
    assert not stuck


def test_the_command_says_why_not():
    stream = op_stream("a = A(x)", "b = B(a)", "c = C(b)")
    few = dnnp("coarsen", "--to", "5", stdin=to_bytes(stream))
    assert few.status == 0
    assert "--to 5: only 3 groups; the graph has 3 nodes" in few.err
    stream.get("node")[1]["backward"] = True
    apart = dnnp("coarsen", "--to", "2", stdin=to_bytes(stream))
    assert apart.status == 0
    assert "--to 2: 3 groups; device classes, passes and colours keep them apart" in apart.err
    short = to_bytes(op_stream("a = A(x)", "b = B(a)"))
    rules = dnnp("coarsen", "--chains", "--to", "3", stdin=short)
    assert "--to 3: only 1 group; the other options left no more" in rules.err
    del stream.get("node")[1]["backward"]
    exact = dnnp("coarsen", "--to", "2", stdin=to_bytes(stream))
    assert exact.err == "dnnp-coarsen: 3 nodes -> 2 groups (1 balanced)\n"
