"""Items: colours, components and training graphs."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dnnp.core.cost.items import items_of, validity_of
from dnnp.core.cost.load import stage_load
from dnnp.core.cost.problem import SplitProblem, make_plan
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.graph import Clustering, Graph
from dnnp.core.model.plan import CostOptions
from dnnp.core.split.ideals.search import ideal_search
from dnnp.core.split.slices import best_slicing
from dnnp.core.split.slicing.orders import ORDERS
from dnnp.formats.graph import graph_of, units_of
from dnnp.formats.stream import Stream
from support.brute import brute_force
from support.graphs import header, node, random_stream, tensor


def with_groups(seed: int, n: int) -> tuple[Graph, Clustering]:
    """A random training graph in random groups, most of which hold nodes of both passes."""
    stream = random_stream(seed, n, training=True)
    graph = graph_of(stream)
    rng = random.Random(seed)
    group = [rng.randrange(n - 2) for _ in range(n)]
    order = graph.order.tolist()
    stream.records["group"] = [
        {"type": "group", "id": i, "name": str(i), "nodes": [v for v in order if group[v] == i]}
        for i in sorted(set(group))
    ]
    return graph, units_of(stream, graph)


@pytest.mark.parametrize("seed", range(0, 80, 2))
def test_groups_of_both_passes(seed):
    """Only edges within a pass order what is split, also where groups hold nodes of both."""
    graph, units = with_groups(seed, 6)
    devices = (DeviceClass("dev", count=3, bandwidth_bytes_per_s=3.0),)
    options = CostOptions(memory_model="sum")
    least, _ = brute_force(SplitProblem(graph, units, devices, options))
    found = ideal_search(SplitProblem(graph, units, devices, options))
    assert (found.value, found.bound) == (pytest.approx(least), pytest.approx(least))


def reachable(graph) -> np.ndarray:
    """bool[n, n]: a path from u to v."""
    paths = np.zeros((graph.n, graph.n), dtype=bool)
    tail, head = graph.edges
    paths[tail, head] = True
    for w in range(graph.n):
        paths |= np.outer(paths[:, w], paths[w])
    return paths


@given(st.integers(0, 10_000), st.integers(1, 12))
def test_items_are_the_least_closure_of_colors(seed, n):
    """Two nodes share an item exactly when every ordered colour-respecting split joins them."""
    graph = graph_of(random_stream(seed, n, colors=True))
    items = items_of(graph, units_of(graph_stream(seed, n), graph))
    paths = reachable(graph)
    label = np.arange(n)
    changed = True
    while changed:
        before = label.copy()
        for u, v in itertools.product(range(n), repeat=2):
            if graph.color[u] >= 0 and graph.color[u] == graph.color[v]:
                label[label == label[v]] = label[u]
        # What lies between two members, through other groups too, joins them.
        quotient = np.zeros((n, n), dtype=bool)
        for u, v in zip(*np.nonzero(paths), strict=True):
            quotient[label[u], label[v]] = True
        for w in range(n):
            quotient |= np.outer(quotient[:, w], quotient[w])
        for u, v in itertools.combinations(range(n), 2):
            if (
                label[u] != label[v]
                and quotient[label[u], label[v]]
                and quotient[label[v], label[u]]
            ):
                label[label == label[v]] = label[u]
        changed = bool((label != before).any())
    same = label[:, None] == label[None, :]
    assert (same == (items.label[:, None] == items.label[None, :])).all()
    assert items.count == len(set(items.label.tolist()))
    for order in ORDERS.values():
        place = np.argsort(order(items))
        assert (place[items.tail] < place[items.head]).all()


def graph_stream(seed: int, n: int) -> Stream:
    return random_stream(seed, n, colors=True)


def training_stream(layers: int) -> Stream:
    """A chain and its mirrored backward chain; the first layer has an orphaned backward node."""
    tensors, nodes = [], []

    def layer(name: str, reads: list[int], **fields: object) -> int:
        made = len(tensors)
        tensors.append(tensor(made, "activation", 1, transfer_s=1.0))
        fields |= {"name": name, "time_s": {"dev": 2.0 + made % 3}, "memory_bytes": 1}
        nodes.append(node(made, "Op", reads, [made], **fields))
        return made

    forward = [layer("f0", [], color=0)]
    for i in range(1, layers):
        forward.append(layer(f"f{i}", [forward[-1]], color=i))
    gradient = layer("loss", [forward[-1]], backward=True)
    for i in reversed(range(layers)):
        gradient = layer(f"b{i}", [gradient, forward[i]], color=i, backward=True)
    return Stream(header=header(), records={"tensor": tensors, "node": nodes})


def test_training_graph_keeps_colors_and_orders_both_passes():
    stream = training_stream(6)
    graph = graph_of(stream)
    units = units_of(stream, graph)
    device = DeviceClass("dev", count=3)
    options = CostOptions(memory_model="sum")
    blocks = best_slicing(SplitProblem(graph, units, (device,), options))
    plan = make_plan(
        SplitProblem(graph, units, (device,), options),
        blocks,
        method="slice",
        bound=0.0,
        digest="0" * 64,
    )
    assert plan.validity == "ordered"
    stage_of = {node: i for i, s in enumerate(plan.stages) for node in s.nodes}
    for a, b in itertools.combinations(range(graph.n), 2):
        if graph.color[a] >= 0 and graph.color[a] == graph.color[b]:
            assert stage_of[a] == stage_of[b]
    # Brute force over contiguous splits of the six layers; the loss goes anywhere.
    best = np.inf
    for cuts in itertools.combinations(range(1, 6), 2):
        for loss in range(3):
            bounds = [0, *cuts, 6]
            loads = []
            for s in range(3):
                members = list(range(bounds[s], bounds[s + 1]))
                members += [12 - i for i in members]
                if loss == s:
                    members.append(6)
                members = np.array(sorted(members))
                loads.append(stage_load(graph, units, members, device, options).load_s)
            label = np.zeros(graph.n, dtype=np.int64)
            for s in range(3):
                for i in range(bounds[s], bounds[s + 1]):
                    label[i] = label[12 - i] = s
            label[6] = loss
            if validity_of(graph, label, 3) == "ordered":
                best = min(best, max(loads))
    assert plan.value == best


@given(st.integers(0, 10_000), st.integers(2, 7), st.integers(1, 3))
def test_validity_by_definition(seed, n, blocks):
    """Ordered: some order of the blocks has no edge backwards. Convex: Definition 3.1."""
    graph = graph_of(random_stream(seed, n))
    rng = np.random.default_rng(seed)
    label = rng.integers(0, blocks, n)
    tail, head = graph.edges
    ordered = any(
        all(p[label[u]] <= p[label[v]] for u, v in zip(tail, head, strict=True))
        for p in itertools.permutations(range(blocks))
    )
    paths = reachable(graph)
    convex = not any(
        label[u] == label[w] != label[v] and paths[u, v] and paths[v, w]
        for u, v, w in itertools.product(range(n), repeat=3)
    )
    expected = "ordered" if ordered else "convex" if convex else "free"
    assert validity_of(graph, label, blocks) == expected
