"""Groups given from elsewhere: whatever they are, the clustering is valid."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dnnp.core.coarsen.coarsen import coarsen
from dnnp.core.coarsen.layers import MAX_FILLED, Given, given_labels, tangles
from dnnp.formats.graph import graph_of
from support.graphs import random_stream
from support.op_graphs import assert_valid, op_stream, shapes_of


@given(
    st.integers(0, 10**6),
    st.integers(1, 30),
    st.integers(1, 8),
    st.sampled_from((None, 0.2, 1.0)),
    st.sampled_from((None, 1, 3)),
)
def test_random_groups(seed, n, count, chains, to):
    rng = random.Random(seed)
    stream = random_stream(seed, n, classes=("gpu",) if seed % 2 else (), colors=seed % 3 == 0)
    for i, node in enumerate(stream.get("node")):
        node["backward"] = seed % 5 == 0 and i > n // 2
    graph = graph_of(stream)
    groups: list[list[int]] = [[] for _ in range(count)]
    for v in range(n):
        groups[rng.randrange(count)].append(v)
    groups = [group for group in groups if len(group) > 1]
    some = Given(groups, [f"rule {i}" for i in range(len(groups))])
    result = coarsen(graph, shapes_of(stream), chains=chains, given=some, to=to)
    assert_valid(graph, result)
    for group in range(result.clustering.g):
        members = result.clustering.members(group)
        assert len(set(graph.backward[members].tolist())) == 1
        for times in graph.times.values():
            assert len(set(np.isfinite(times[members]).tolist())) == 1


def test_groups_without_a_circle_stay_as_given():
    graph = graph_of(op_stream("a = A(x)", "b = B(a)", "c = C(a)", "d = D(b, c)"))
    label = given_labels(graph, Given([[0, 1], [2, 3]], ["p", "q"]))
    assert label.tolist() == [0, 0, 1, 1]
    assert tangles(graph, label).tolist() == [-1] * 4


def test_two_groups_in_a_circle_become_one():
    graph = graph_of(op_stream("a = A(x)", "b = B(x)", "c = C(a)", "d = D(b)", "e = E(c)"))
    assert given_labels(graph, Given([[0, 3], [1, 2]], ["p", "q"])).tolist() == [0, 0, 0, 0, 1]


def test_a_large_circle_is_cut():
    lines = ["n0 = Op(x)", *(f"n{i} = Op(n{i - 1})" for i in range(1, MAX_FILLED + 2))]
    graph = graph_of(op_stream(*lines))
    ends = [0, graph.n - 1]
    assert len(set(given_labels(graph, Given([ends], ["p"])).tolist())) == graph.n
    ends = [0, MAX_FILLED - 1]
    assert len(set(given_labels(graph, Given([ends], ["p"])).tolist())) == 3
