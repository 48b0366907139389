"""Series contraction against a brute-force fixpoint."""

from __future__ import annotations

import random

import numpy as np
import pytest

from dnnp.core.coarsen.coarsen import coarsen, work_shares
from dnnp.core.model.graph import Graph
from dnnp.formats.graph import graph_of
from support.graphs import random_stream
from support.op_graphs import groups_by, op_stream, shapes_of


def brute_force(graph: Graph, seed: int) -> set[frozenset[int]]:
    """Merge u into v, in any order, while v alone reads u and u alone feeds v."""
    rng = random.Random(seed)
    group = {v: v for v in range(graph.n)}
    kind = {
        v: (*(np.isfinite(t[v]) for t in graph.times.values()), bool(graph.backward[v]))
        for v in range(graph.n)
    }
    colors = graph.color.tolist()
    color = {v: c if colors.count(c) > 1 else -1 for v, c in enumerate(colors)}
    while True:
        merges = []
        for u in set(group.values()):
            readers, makers = set(), {}
            for v in range(graph.n):
                if group[v] == u:
                    for t in graph.writes(v).tolist():
                        readers |= {group[r] for r in graph.readers(t).tolist()} - {u}
                        readers |= {"user"} if graph.is_output[t] else set()
                for t in graph.reads(v).tolist():
                    if graph.producer[t] >= 0 and group[int(graph.producer[t])] != group[v]:
                        makers.setdefault(group[v], set()).add(group[int(graph.producer[t])])
            if len(readers) == 1 and "user" not in readers:
                (v,) = readers
                together = {color[u], color[v]} - {-1}
                if makers[v] == {u} and kind[u] == kind[v] and len(together) <= 1:
                    merges.append((u, v))
        if not merges:
            return {frozenset(v for v in group if group[v] == g) for g in set(group.values())}
        u, v = rng.choice(sorted(merges))
        color[v] = max(color[u], color[v])
        group = {w: v if g == u else g for w, g in group.items()}


@pytest.mark.parametrize("seed", range(120))
def test_fixpoint(seed):
    options = [{}, {"params": True}, {"classes": ("gpu",)}, {"classes": ("gpu",), "params": True}]
    stream = random_stream(seed, 3 + seed % 12, **options[seed % 4])
    graph = graph_of(stream)
    clustering = coarsen(graph, shapes_of(stream), chains=1.0).clustering
    found = {frozenset(clustering.members(g).tolist()) for g in range(clustering.g)}
    assert found == brute_force(graph, seed)


def test_weights_and_inputs_do_not_hold_a_chain():
    lines = ("a = A(x, w1)", "b = B(a, y, w2)", "c = C(b)")
    assert groups_by(op_stream(*lines), None, chains=1.0) == {"a b c": "chain"}


def test_a_fork_and_a_join_end_chains():
    lines = ("a = A(x)", "b = B(a)", "c = C(a)", "d = D(b, c)", "e = E(d)")
    assert groups_by(op_stream(*lines), None, chains=1.0) == {"d e": "chain"}


def test_an_output_of_the_model_ends_a_chain():
    lines = ("a = A(x)", "b = B(a)", "c = C(b)")
    assert groups_by(op_stream(*lines, outputs="b, c"), None, chains=1.0) == {"a b": "chain"}


def test_two_colours_never_meet():
    lines = ("a = A(x)", "b = B(a)", "c = C(b)", "d = D(c)", "e = E(d)", "f = F(x)", "g = G(x)")
    colors = {"b": 1, "f": 1, "d": 2, "g": 2}
    stream = op_stream(*lines, nodes={name: {"color": c} for name, c in colors.items()})
    assert groups_by(stream, None, chains=1.0) == {"a b c": "chain", "d e": "chain"}


def test_a_share_keeps_heavy_parts_apart():
    # Work 1 1 40 1 1 40 1 15 of 100: 40s apart, each with what is light beside it.
    work = (1, 1, 40, 1, 1, 40, 1, 15)
    lines = [f"n{i} = Op({f'n{i - 1}' if i else 'x'})" for i in range(8)]
    nodes = {f"n{i}": {"time_s": {"cpu": t}} for i, t in enumerate(work)}
    stream = op_stream(*lines, nodes=nodes)
    assert groups_by(stream, None, chains=0.05) == {
        "n0 n1 n2 n3 n4": "chain",
        "n5 n6": "chain",
    }
    assert groups_by(stream, None, chains=0.0) == {}
    assert groups_by(stream, None, chains=1.0) == {" ".join(f"n{i}" for i in range(8)): "chain"}


def test_work_is_the_largest_share_of_time_or_the_bytes():
    lines = ("a = A(x)", "b = B(a)")
    nodes = {"a": {"time_s": {"cpu": 3, "gpu": 1}}, "b": {"time_s": {"cpu": 1}}}
    assert work_shares(graph_of(op_stream(*lines, nodes=nodes))).tolist() == [1.0, 0.25]
    # A reads 4 bytes and writes 4, B reads 4, writes 4 and reads a weight of 4.
    plain = op_stream("a = A(x)", "b = B(a, w)")
    assert work_shares(graph_of(plain)).tolist() == [0.4, 0.6]
