"""Graphs of networkx, from Python."""

from __future__ import annotations

import warnings
from pathlib import Path

import networkx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from import_.own import Own, networkx_of, own_graphs

import dnnp
from dnnp.core.model.errors import FormatError, UsageError
from dnnp.loading import read_networkx


def small() -> networkx.DiGraph:
    graph = networkx.DiGraph(name="small")
    graph.add_node("a", time_s=1.5, op="Conv", memory_bytes=8, stage=3, color="red", layer=None)
    graph.add_node(2, **{"time_s": 2, "time_s:cpu": 4.0, "backward": False})
    graph.add_node(("c", 0), time_s=0.5)
    graph.add_edge("a", 2, transfer_s=0.25)
    graph.add_edge(2, ("c", 0), transfer_s=0.5, tensor=7)
    return graph


def test_a_graph():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = dnnp.load(small())
    assert loaded.header["model"] == "small"
    assert "source" not in loaded.header
    assert loaded.header["provenance"][0]["tool"] == "dnnp-import"
    nodes = [dict(record) for record in loaded.nodes]
    assert [node["name"] for node in nodes] == ["a", "2", "('c', 0)"]
    assert [node["time_s"] for node in nodes] == [
        {"accelerator": 1.5}, {"accelerator": 2, "cpu": 4}, {"accelerator": 0.5},
    ]  # fmt: skip
    assert (nodes[0]["op"], nodes[0]["memory_bytes"], nodes[1]["inputs"]) == ("Conv", 8, [0])
    assert dnnp.load(small(), name="other").header["model"] == "other"
    plan = dnnp.split(loaded, k=2, cpus=0).plan
    assert plan is not None
    assert plan.value == 2 + 0.5 + 0.25


def test_parallel_edges_with_names_are_tensors():
    graph = networkx.MultiDiGraph()
    graph.add_edge("a", "b", size=1, tensor="x")
    graph.add_edge("a", "b", size=2, tensor="y")
    stream = read_networkx(graph, None)
    assert [(t["name"], t["size_bytes"]) for t in stream.get("tensor")] == [("x", 1), ("y", 2)]
    graph.add_edge("a", "b", tensor="y")
    with pytest.raises(
        FormatError, match=r"^edge 'a' -> 'b': a second edge 'a' -> 'b'; edges with"
    ):
        read_networkx(graph, None)


def spoilt(**attributes: object) -> networkx.DiGraph:
    graph = small()
    graph.add_node("bad", **{"time_s": 1, **attributes})
    return graph


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (networkx.Graph(), "an undirected graph; its edges need directions, as in networkx.DiGrap"),
        (networkx.DiGraph(), "<graph>: there are no nodes"),
        (networkx.DiGraph([(1, 1)]), "edge 1 -> 1: an edge from node 1 to itself"),
        (networkx.DiGraph([(1, 2), (2, 1)]), "edge 1 -> 2: the graph has a cycle: '1' -> '2' -> "),
        (spoilt(time_s="soon"), "node 'bad': field 'time_s': 'soon' is not a number from 0 to"),
        (spoilt(time_s=10**5000), "node 'bad': field 'time_s': inf is not a number from 0 to"),
        (spoilt(time_s=-(10**5000)), "node 'bad': field 'time_s': -inf is not a number from 0 to"),
        (spoilt(time_s=True), "node 'bad': field 'time_s': true is not a number"),
        (spoilt(time_s=float("nan")), "node 'bad': field 'time_s': nan is not a number"),
        (spoilt(time_s=None), "node 'bad': field 'time_s': node 'bad' has no time, but others"),
        (spoilt(name="\ud800"), r"node 'bad': field 'name': '\ud800' is not UTF-8, so a stream"),
        (spoilt(backward="perhaps"), "node 'bad': field 'backward': 'perhaps' is not true or fal"),
    ],
)  # fmt: skip
def test_faults_name_the_node_or_edge(graph: networkx.DiGraph, message: str):
    with pytest.raises(FormatError) as caught:
        dnnp.load(graph)
    assert str(caught.value).startswith(message)


def test_options_for_files_do_not_fit():
    with pytest.raises(UsageError, match=r"^a graph of networkx: --from is for files"):
        dnnp.load(small(), kind="csv")
    with pytest.raises(UsageError, match=r"^a graph of networkx: --edges is for files"):
        dnnp.load(small(), edges="e.csv")


@given(own_graphs(st.characters(codec="utf-8")))
def test_what_is_made_is_read(own: Own):
    own.compare(read_networkx(networkx_of(own), None))


def test_through_a_file(tmp_path: Path):
    path = tmp_path / "small.graphml"
    graph = small()
    del graph.nodes["a"]["layer"]
    networkx.write_graphml(graph, path)
    direct, read = dnnp.load(graph), dnnp.load(path)
    again = dnnp.load(networkx.read_graphml(path))
    assert [dict(r) for r in direct.nodes] == [dict(r) for r in read.nodes]
    assert [dict(r) for r in direct.nodes] == [dict(r) for r in again.nodes]
