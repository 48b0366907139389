"""Graphs and groups that no reader lets through, and records without what they need."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np
import pytest

from dnnp.core.check.graph import check_clustering, check_graph
from dnnp.core.check.stream import check_stream
from dnnp.core.check.violation import KINDS, Violation, above, same
from dnnp.core.model.graph import Clustering, Graph
from dnnp.formats.graph import clustering_of, graph_of
from dnnp.formats.records import covered
from dnnp.formats.stream import read_bytes
from support import seeds


def graph() -> Graph:
    return graph_of(read_bytes(seeds.encode(seeds.graph_records())))


def clustering() -> Clustering:
    stream = read_bytes(seeds.encode([*seeds.graph_records(), *seeds.group_records()]))
    found = clustering_of(stream, graph_of(stream))
    assert found is not None
    return found


def put(array: np.ndarray, index: int, value: float) -> np.ndarray:
    """A copy with one entry replaced."""
    copy = array.copy()
    copy[index] = value
    return copy


def messages(found: Iterable[Violation]) -> str:
    violations = list(found)
    assert all(violation.kind in KINDS for violation in violations)
    return "; ".join(str(violation) for violation in violations)


def test_valid_graph_and_groups() -> None:
    assert [*check_graph(graph())] == []
    assert [*check_clustering(graph(), clustering())] == []


CHANGES = {
    "negative id": ({"node_ids": (0, -1)}, "node -1: the id is negative"),
    "repeated id": ({"node_ids": (1, 0)}, "node 0: the id occurs 2 times"),
    "repeated tensor": ({"tensor_ids": (1, 0)}, "tensor 0: the id occurs 2 times"),
    "negative size": ({"tensor_bytes": (1, -1)}, "tensor 1: size -1.0 is not >= 0"),
    "infinite size": ({"tensor_bytes": (1, np.inf)}, "tensor 1: size inf is not >= 0"),
    "negative transfer": ({"transfer_s": (1, -1)}, "tensor 1: transfer time -1.0 is not >= 0"),
    "kind": ({"tensor_kind": (1, 0)}, "tensor 1: 1 nodes write it, expected 0"),
    "no producer": ({"tensor_kind": (0, 1)}, "tensor 0: 0 nodes write it, expected 1"),
    "two producers": ({"out_idx": (1, 1)}, "tensor 1: 2 nodes write it, expected 1"),
    "cycle": ({"in_idx": (1, 6)}, "graph: nodes "),
    "self": ({"in_idx": (0, 1)}, "node 0: the node reads what it writes"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_bad_graphs(name: str) -> None:
    change, message = CHANGES[name]
    valid = graph()
    fields = {field: put(getattr(valid, field), *entry) for field, entry in change.items()}
    violations = check_graph(dataclasses.replace(valid, **fields))
    assert message in messages(violations)


def test_bad_times() -> None:
    valid = graph()
    for value in (-1.0, np.nan):
        times = {"acc": put(valid.times["acc"], 2, value)}
        violations = check_graph(dataclasses.replace(valid, times=times))
        assert "node 2: time" in messages(violations)


MEMBERS = {
    "twice": ([0, 1, 2, 2, 4, 5], "group 2: node 2 is already in group 2"),
    "missing": ([0, 1, 2, 2, 4, 5], "groups: nodes 3 are in no group"),
    "order": ([0, 1, 4, 2, 3, 5], "group 2: node 4 stands before its producer 2"),
}


@pytest.mark.parametrize("name", MEMBERS)
def test_bad_groups(name: str) -> None:
    members, message = MEMBERS[name]
    changed = dataclasses.replace(clustering(), member_idx=np.array(members))
    if name == "order":
        changed = dataclasses.replace(changed, member_ptr=np.array([0, 1, 2, 4, 5, 6]))
    assert message in messages(check_clustering(graph(), changed))


def test_empty_group() -> None:
    changed = dataclasses.replace(clustering(), member_ptr=np.array([0, 0, 2, 4, 5, 6]))
    assert "group 0: the group is empty" in messages(check_clustering(graph(), changed))


@pytest.mark.parametrize("kind", ["bound", "schedule", "block", "run", "stage"])
def test_records_without_what_they_need(kind: str) -> None:
    record = {"type": kind, "id": 0, "digest": "0" * 64, "mode": "pipeline", "samples": 1}
    records = {"node": [], kind: [record]}
    violations = [*check_stream({"provenance": []}, records, "0" * 64, None, covered, False)]
    assert f"{kind}: there are {kind} records but no" in messages(violations)


def test_comparison() -> None:
    assert same(1.0, 1.0 + 1e-10)
    assert not same(1.0, 1.0 + 3e-9)
    assert same(0.0, 1e-12, scale=1.0)
    assert not same(float("inf"), 1.0)
    assert same(float("inf"), float("inf"))
    assert above(1.1, 1.0)
    assert not above(1.0 + 1e-12, 1.0)
