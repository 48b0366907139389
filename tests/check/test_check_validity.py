"""Validity, peak memory and cycles against definitions spelled out by brute force."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise, permutations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dnnp.core.check.graph import Tables, on_a_cycle, tables_of, validity_of
from dnnp.core.check.load import peak_memory
from dnnp.core.cost.items import validity_of as validity_in_cost_model
from dnnp.core.model.graph import Graph, NodeColumns, TensorColumns, csr, make_graph

Case = tuple[int, list[tuple[int, int]], list[int], list[bool]]
"""Nodes, edges, block of each node (0, 1 or 2), and which belong to the backward pass."""


def graph_from(edges: list[tuple[int, int]], backward: list[bool], sizes: list[int]) -> Graph:
    """Tensor v is the output of node v."""
    n = len(backward)
    pairs = sorted({(v, u) for u, v in edges})
    nodes = np.arange(n)
    return make_graph(
        NodeColumns(
            ids=nodes,
            names=[f"n{v}" for v in range(n)],
            ops=["Op"] * n,
            reads=csr(
                np.array([v for v, _ in pairs], dtype=np.int64),
                np.array([u for _, u in pairs], dtype=np.int64),
                n,
            ),
            writes=csr(nodes, nodes, n),
            times={},
            backward=np.array(backward, dtype=np.bool_),
        ),
        TensorColumns(
            ids=nodes,
            names=[f"t{v}" for v in range(n)],
            kind=np.ones(n, dtype=np.int8),
            size=np.array(sizes, dtype=np.float64),
            transfer_s=np.full(n, np.nan),
            is_output=np.zeros(n, dtype=np.bool_),
        ),
    )


def tables_from(case: Case, sizes: list[int] | None = None) -> Tables:
    n, edges, _, backward = case
    return tables_of(graph_from(edges, backward, sizes or [1] * n))


@st.composite
def splits(draw: st.DrawFn) -> Case:
    """A random DAG with edges from low to high, and blocks."""
    n = draw(st.integers(1, 7))
    pairs = [(u, v) for u in range(n) for v in range(u + 1, n)]
    edges = [pair for pair in pairs if draw(st.booleans())]
    block = [draw(st.integers(0, 2)) for _ in range(n)]
    return n, edges, block, [False] * n


def training_split(seed: int) -> Case:
    """A random graph with a backward pass: any nodes, or the mirror or a copy of the forward pass.

    Blocks are intervals of each pass, named at random in the second, with some nodes moved.
    """
    rng = random.Random(seed)
    n = rng.randint(6, 11)
    density = rng.choice((0.2, 0.4, 0.6))
    edges = [(u, v) for u in range(n) for v in range(u + 1, n) if rng.random() < density]
    kind = rng.choice(("any", "mirror", "copy"))
    ahead = (n + 1) // 2
    twins = [n - 1 - v if kind == "mirror" else v + ahead for v in range(ahead)]
    backward = [v >= ahead for v in range(n)]
    if kind == "any":
        backward = [rng.random() < 0.5 for _ in range(n)]
    else:
        edges = [(u, v) for u, v in edges if u < ahead]
        for u, v in [edge for edge in edges if edge[1] < ahead]:
            a, b = (twins[v], twins[u]) if kind == "mirror" else (twins[u], twins[v])
            if ahead <= a < b < n:
                edges.append((a, b))
    block = [min(2, 3 * v // ahead) for v in range(n)]
    names = rng.choice(list(permutations(range(3))))
    for v, twin in enumerate(twins):
        if twin < n:
            block[twin] = names[block[v]]
    moved = rng.choice((0.0, 0.2, 0.5))
    for v in range(n):
        if rng.random() < moved:
            block[v] = rng.randrange(3)
    return n, edges, block, backward


def reachable(edges: list[tuple[int, int]], n: int) -> np.ndarray:
    reach = np.zeros((n, n), dtype=bool)
    for u, v in edges:
        reach[u, v] = True
    for w in range(n):
        reach |= reach[:, [w]] & reach[[w], :]
    return reach


def by_definition(case: Case) -> str:
    """Try every order of the three blocks, and every path inside a pass."""
    n, edges, block, backward = case
    inside = [(u, v) for u, v in edges if backward[u] == backward[v]]
    ordered = any(
        all(
            place[block[u]] <= place[block[v]]
            if along or not backward[u]
            else place[block[v]] <= place[block[u]]
            for u, v in inside
        )
        for place in permutations(range(3))
        for along in (False, True)
    )
    if ordered:
        return "ordered"
    reach = reachable(inside, n)
    convex = not any(
        reach[u, v] and reach[v, w] and block[u] == block[w] != block[v]
        for u, v, w in product(range(n), repeat=3)
    )
    return "convex" if convex else "free"


def check_definition(case: Case) -> str:
    """Both implementations say what the definitions say, which is returned."""
    n, edges, block, backward = case
    expected = by_definition(case)
    blocks = [[v for v in range(n) if block[v] == b] for b in range(3)]
    actual, reasons = validity_of(tables_from(case), blocks)
    assert actual == expected
    assert set(reasons) == {"ordered": set(), "convex": {"ordered"}}.get(
        expected, {"ordered", "convex"}
    )
    used = sorted(set(block))
    label = np.array([used.index(b) for b in block])
    graph = graph_from(edges, backward, [1] * n)
    assert validity_in_cost_model(graph, label, len(used)) == expected
    return expected


@given(splits())
def test_validity_is_what_the_definitions_say(case: Case) -> None:
    check_definition(case)


def test_validity_with_a_backward_pass() -> None:
    found: Counter[str] = Counter()
    for seed in range(600):
        case = training_split(seed)
        n, edges, block, backward = case
        expected = check_definition(case)
        found[expected] += 1
        passes = {
            by_definition(
                (
                    n,
                    [(u, v) for u, v in edges if backward[u] is backward[v] is late],
                    block,
                    [False] * n,
                )
            )
            for late in (False, True)
        }
        found["only the passes together"] += passes == {"ordered"} != {expected}
    assert min(found.values()) >= 20, found
    assert len(found) == 4


FORWARD = [(0, 1), (1, 2)]
"""Forward nodes 0, 1, 2 in blocks 0, 1, 2; backward nodes 3, 4, 5 in blocks that vary."""

ORDERS: dict[str, tuple[list[tuple[int, int]], list[int], str, str]] = {
    "against": ([(3, 4), (4, 5)], [2, 1, 0], "ordered", ""),
    "along": ([(3, 4), (4, 5)], [0, 1, 2], "ordered", ""),
    "between passes": ([(2, 3), (0, 3), (2, 5)], [0, 2, 0], "ordered", ""),
    "a stage twice": ([(3, 4), (5, 4)], [0, 1, 0], "ordered", ""),
    "there and back": (
        [(3, 4), (4, 5)],
        [0, 1, 0],
        "free",
        "stages 0, 1, 0 of the backward part form a cycle",
    ),
    "no order for both": (
        [(3, 4), (5, 4)],
        [0, 1, 2],
        "convex",
        "no order suits both passes: stages 0, 1, 0 form a cycle if the backward part runs "
        "against the forward part, stages 1, 2, 1 if along it",
    ),
}


@pytest.mark.parametrize("name", ORDERS)
def test_orders_of_both_passes(name: str) -> None:
    edges, late, expected, reason = ORDERS[name]
    block = [0, 1, 2, *late]
    case = (6, FORWARD + edges, block, [v > 2 for v in range(6)])
    assert by_definition(case) == expected
    blocks = [[v for v in range(6) if block[v] == b] for b in range(3)]
    actual, reasons = validity_of(tables_from(case), blocks)
    assert actual == expected
    assert reasons.get("ordered", "") == reason


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=12))
def test_cycle_is_found_exactly_when_there_is_one(edges: list[tuple[int, int]]) -> None:
    successors = {v: sorted({w for u, w in edges if u == v}) for v in range(6)}
    cycle = on_a_cycle(successors, successors.__getitem__)
    assert bool(cycle) == reachable(edges, 6).diagonal().any()
    if cycle:
        assert cycle[0] == cycle[-1]
        assert all(pair in edges for pair in pairwise(cycle))


@given(splits(), st.lists(st.integers(1, 9), min_size=7, max_size=7))
def test_peak_memory_is_the_largest_step(case: Case, sizes: list[int]) -> None:
    n, edges, block, _ = case
    nodes = [v for v in range(n) if block[v] == 0]
    peak = 0
    for step, _ in enumerate(nodes):
        live = 0
        for tensor in range(n):
            uses = [i for i, v in enumerate(nodes) if (tensor, v) in edges]
            if tensor in nodes:
                born = nodes.index(tensor)
                leaves = any(u == tensor and w not in nodes for u, w in edges)
                gone = len(nodes) - 1 if leaves else max([born, *uses])
            else:
                born, gone = 0, max(uses, default=-1)
            live += sizes[tensor] * (born <= step <= gone)
        peak = max(peak, live)
    assert peak_memory(tables_from(case, sizes[:n]), nodes)[1] == peak
