"""dnnp-coarsen on graphs of training: groups of the backward pass are those of the forward pass."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import dnnp
from dnnp.core.cost.load import weight_bytes
from dnnp.core.model.graph import contract
from dnnp.formats.graph import graph_of, units_of
from dnnp.graph import Graph
from dnnp.samples import build
from support.graphs import random_stream


def trained(name: str, folder: Path) -> tuple[Graph, Graph]:
    """A sample model, and its graph of training."""
    path = build.write(f"{name}-small", folder)
    return dnnp.load(path), dnnp.load(path, training=True)


@pytest.mark.parametrize("options", [{}, {"layers": True}, {"to": 12}, {"rules": "none"}])
def test_groups_are_mirrored(options: dict, tmp_path: Path) -> None:
    plain, both = trained("bert", tmp_path)
    forward = {tuple(g["nodes"]): g for g in dnnp.coarsen(plain, **options).groups}
    found = dnnp.coarsen(both, **options)
    late = {n["id"]: n for n in both.nodes if n.get("backward")}
    twins = {n["of"]: v for v, n in late.items() if "of" in n}
    early = [g for g in found.groups if g["nodes"][0] not in late]
    assert [tuple(g["nodes"]) for g in early] == list(forward)
    assert [g["name"] for g in early] == [g["name"] for g in forward.values()]
    mirrored = {frozenset(g["nodes"]) for g in found.groups if g["nodes"][0] in late}
    images = {frozenset(twins[v] for v in nodes if v in twins) for nodes in forward}
    losses = {frozenset([v]) for v, n in late.items() if n["op"] == "Loss"}
    assert mirrored == (images | losses) - {frozenset()}
    graph = graph_of(found.stream())
    assert contract(graph, units_of(found.stream(), graph)).order.size == len(found.groups)


def test_rules_of_others_look_at_all_nodes() -> None:
    """Without links from gradients to nodes, as in workloads, groups are what they were."""
    stream = random_stream(3, 14, training=True)
    groups = dnnp.coarsen(Graph(stream)).groups
    assert sorted(v for g in groups for v in g["nodes"]) == [n["id"] for n in stream.get("node")]


def test_replicas_synchronise_weights_alone(tmp_path: Path) -> None:
    """A node's stated memory holds gradients and activations too: weights are its parameters."""
    _, both = trained("dlrm", tmp_path)
    graph = graph_of(both.stream())
    read = {t for n in both.nodes for t in n["inputs"]}
    size = sum(
        t["size_bytes"] for t in both.tensors if t["kind"] == "parameter" and t["id"] in read
    )
    assert weight_bytes(graph, np.arange(graph.n)) == size
    assert graph.node_bytes.sum() > 3 * size
    plan = dnnp.split(dnnp.profile(dnnp.coarsen(both)), k=2, method="auto", max_replicas=2)
    assert dnnp.check(plan).ok
