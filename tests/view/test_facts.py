"""Facts of views: cuts, layers, times."""

from __future__ import annotations

import numpy as np
import pytest

import dnnp
from dnnp.core.view.facts import Facts
from dnnp.formats.plan import plan_digest
from dnnp.graph import Graph
from dnnp.viewing import read_facts
from support.graphs import random_stream
from support.seeds import encode, planned


def split(seed: int, n: int, k: int) -> tuple[Graph, Facts]:
    """A random graph with a plan, and its facts."""
    graph = dnnp.split(Graph(random_stream(seed, n)), k=k, memory=1000, bandwidth=1)
    return graph, read_facts(graph.stream())


@pytest.mark.parametrize("seed", range(5))
def test_what_is_cut_is_what_crosses(seed: int) -> None:
    graph, facts = split(seed, 12, 3)
    stage_of = {v: s for s, stage in enumerate(graph.stages) for v in stage.nodes}
    crossing = set()
    for tensor in graph.tensors:
        made = {stage_of[n["id"]] for n in graph.nodes if tensor["id"] in n["outputs"]}
        read = {stage_of[n["id"]] for n in graph.nodes if tensor["id"] in n["inputs"]}
        if made and read - made:
            crossing.add((tensor["id"], *made, tuple(sorted(read - made))))
    assert facts.graph is not None
    ids = facts.graph.tensor_ids.tolist()
    assert {(ids[c.tensor], c.source, c.targets) for c in facts.cuts} == crossing
    sizes = [cut.size_bytes for cut in facts.cuts]
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize("seed", range(5))
def test_units_of_stages_and_their_times(seed: int) -> None:
    graph, facts = split(seed, 12, 3)
    for part, stage in zip(facts.parts, graph.stages, strict=True):
        assert facts.graph is not None
        assert [facts.graph.node_ids[u] for u in part.units] == list(stage.nodes)
        assert part.times.sum() == pytest.approx(stage.record["compute_s"])
        assert part.capacity_bytes == 1000
    assert sorted(np.concatenate([p.units for p in facts.parts])) == list(range(12))


def test_layers_come_from_names() -> None:
    records = planned()
    names = ["embed/a", "layer.0/a", "layer.0/b", "layer.1/a", "layer.1/b", "head/a"]
    nodes = [record for record in records if record["type"] == "node"]
    for node, name in zip(nodes, names, strict=True):
        node["name"] = name
    facts = read_facts(Graph.from_bytes(encode(records)).stream())
    assert facts.layers == ("embed", "layer.0", "layer.0", "layer.1", "layer.1", "head")
    stages = [[names[u].split("/")[0] for u in part.units] for part in facts.parts]
    for part, layers in zip(facts.parts, stages, strict=True):
        first, last = layers[0], layers[-1]
        assert part.layers.startswith(first)
        assert last in part.layers


def test_the_last_run_of_the_pipeline_counts() -> None:
    graph, _ = split(1, 12, 2)
    stream = graph.stream()
    ids = [record["id"] for record in stream.get("stage")]
    digest = plan_digest(stream.get("plan")[0], stream.get("stage"))
    runs = [
        {
            "mode": mode,
            "digest": digest,
            "stages": [{"stage": i, "measured_s": s} for i in ids for s in parts],
        }
        for mode, parts in (("pipeline", [1.0]), ("pipeline", [2.0, 3.0]), ("whole", []))
    ]
    stream.records["run"] = runs
    assert [part.measured_s for part in read_facts(stream).parts] == [5.0] * len(ids)
