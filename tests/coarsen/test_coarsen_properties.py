"""Properties of every coarsening, on random graphs."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dnnp.core.coarsen.coarsen import Coarsening, coarsen
from dnnp.core.coarsen.layers import acyclic_labels
from dnnp.core.coarsen.merge import Units
from dnnp.core.model.graph import Graph, contract
from dnnp.formats.graph import graph_of
from dnnp.formats.inputs.rules import load_rules, parse_rules
from dnnp.formats.stream import Stream
from support.graphs import random_stream
from support.op_graphs import assert_valid, shapes_of

OPS = (
    "Conv", "Add", "Mul", "Relu", "MatMul", "Transpose", "Identity", "Shape", "Sigmoid", "Pow",
    "BatchNormalization", "QuantizeLinear", "DequantizeLinear", "Gelu", "LayerNormalization",
)  # fmt: skip
SHAPES = (None, (), (4,), (4, 4), (2, 4, 4))
GREEDY = parse_rules(
    b"""{"name": "greedy", "rules": [
      {"name": "pair", "pattern": ["a = *(...)", "*(a, ...)"]},
      {"name": "diamond", "pattern": ["a = *(...)", "b = *(a, ...)", "*(a, b, ...)"]},
      {"name": "series", "sequence": ["Conv|Add|Mul", "Relu|Add|Mul", "Add|Mul"]}]}""",
    "greedy.json",
)
RULES = {"ort": load_rules("ort-cpu"), "moirai": load_rules("moirai"), "greedy": GREEDY, "": None}
LAYERS = (None, (), ("a",), ("b",), ("a", "0"), ("a", "1"))


@st.composite
def cases(draw: st.DrawFn) -> tuple[Stream, dict]:
    """A random stream with operators, shapes, passes and colours; and options."""
    seed = draw(st.integers(0, 10**6))
    rng = random.Random(seed)
    n = draw(st.integers(1, 30))
    options = {name: True for name in ("params", "colors") if rng.random() < 0.6}
    classes = ("gpu",) if rng.random() < 0.3 else ()
    stream = random_stream(seed, n, classes=classes, **options)
    for i, node in enumerate(stream.get("node")):
        node["op"] = rng.choice(OPS)
        node["backward"] = i > 2 * n // 3 and bool(options.get("colors"))
    for tensor in stream.get("tensor"):
        shape = rng.choice(SHAPES)
        if shape is not None:
            tensor["shape"] = list(shape)
    paths = [rng.choice(LAYERS[1:]) for _ in range(n)] if draw(st.booleans()) else None
    return stream, {
        "rules": RULES[draw(st.sampled_from(sorted(RULES)))],
        "chains": draw(st.sampled_from((None, 0.1, 1.0))),
        "paths": paths,
    }


def run(stream: Stream, options: dict) -> tuple[Graph, Coarsening]:
    graph = graph_of(stream)
    return graph, coarsen(graph, shapes_of(stream), **options)


@given(cases())
def test_every_coarsening_is_a_valid_clustering(case):
    graph, result = run(*case)
    assert_valid(graph, result)
    contract(graph, result.clustering).order  # noqa: B018  (raises on a cycle)
    assert result.clustering.group_ids.tolist() == list(range(result.clustering.g))
    assert all(result.clustering.names)
    for group, rule in enumerate(result.rules):
        assert bool(rule) == (len(result.clustering.members(group)) > 1)


@given(cases())
def test_groups_run_as_one(case):
    graph, result = run(*case)
    seen = graph.color.tolist()
    for group in range(result.clustering.g):
        members = result.clustering.members(group)
        assert len(set(graph.backward[members].tolist())) == 1
        for times in graph.times.values():
            assert len(set(np.isfinite(times[members]).tolist())) == 1
        if case[1]["paths"] is None:
            shared = {c for c in graph.color[members].tolist() if c >= 0 and seen.count(c) > 1}
            assert len(shared) <= 1


@given(cases())
def test_same_input_same_groups(case):
    first, second = run(*case)[1], run(*case)[1]
    assert first.clustering.label.tolist() == second.clustering.label.tolist()
    assert first.rules == second.rules
    assert first.clustering.names == second.clustering.names


@given(st.integers(0, 10**6), st.integers(2, 25), st.integers(1, 5))
def test_cutting_keeps_what_it_can(seed, n, k):
    graph = graph_of(random_stream(seed, n))
    rng = random.Random(seed)
    wanted = np.array([rng.randrange(k) for _ in range(n)])
    label = acyclic_labels(graph, wanted)
    assert len(set(zip(label.tolist(), wanted.tolist(), strict=True))) == len(set(label.tolist()))
    again = acyclic_labels(graph, label)
    assert again.tolist() == label.tolist()


@given(st.integers(0, 10**6), st.integers(2, 20), st.randoms(use_true_random=False))
def test_merging_refuses_every_step_that_is_not_safe(seed, n, rng):
    """Random attempts: whatever is granted keeps the quotient acyclic, by reachability."""
    graph = graph_of(random_stream(seed, n))
    units = Units(graph)
    for _ in range(3 * n):
        u, v = (units.find(rng.randrange(n)) for _ in range(2))
        if u != v:
            units.merge(u, v)
        label = units.label().tolist()
        reach = {g: {g} for g in label}
        edges = {
            (label[int(graph.producer[t])], label[w])
            for w in range(n)
            for t in graph.reads(w).tolist()
            if graph.producer[t] >= 0
        }
        edges = {(a, b) for a, b in edges if a != b}
        for _ in reach:
            for a, b in edges:
                reach[b] |= reach[a]
        assert not any(b in reach[a] for a, b in edges)
