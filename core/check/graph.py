"""Validate a graph and its groups by themselves."""

from __future__ import annotations

from dnnp.core.check.tables import Tables, on_a_cycle, shown, tables_of
from dnnp.core.check.violation import Violation
from dnnp.core.model.cluster import Clustering
from dnnp.core.model.graph import ACTIVATION, Graph


def check_graph(graph: Graph) -> list[Violation]:
    """Return what is wrong with `graph`: ids, producers, sizes, times, cycles."""
    tables = tables_of(graph)
    found = _ids("node", graph.node_ids.tolist()) + _ids("tensor", graph.tensor_ids.tolist())
    found += _tensors(graph, tables)
    for name, times in graph.times.items():
        for node, time in enumerate(times.tolist()):
            if not time >= 0:
                message = f"time {time} on '{name}' is not a number >= 0"
                found.append(Violation("graph", f"node {tables.ids[node]}", message, ">= 0", time))
    successors: dict[int, list[int]] = {v: [] for v in range(tables.n)}
    for node in range(tables.n):
        if not set(tables.writes[node]).isdisjoint(tables.reads[node]):
            subject = f"node {tables.ids[node]}"
            found.append(Violation("graph", subject, "the node reads what it writes"))
        for producer in tables.producers(node):
            successors[producer].append(node)
    cycle = on_a_cycle(successors)
    if cycle:
        message = f"nodes {shown([tables.ids[v] for v in cycle])} form a cycle"
        found.append(Violation("graph", "graph", message))
    return found


def _ids(what: str, ids: list[int]) -> list[Violation]:
    """Ids must be non-negative and distinct."""
    found = [
        Violation("graph", f"{what} {i}", "the id is negative", ">= 0", i) for i in ids if i < 0
    ]
    if len(set(ids)) < len(ids):
        times: dict[int, int] = {}
        for i in ids:
            times[i] = times.get(i, 0) + 1
        found += [
            Violation("graph", f"{what} {i}", f"the id occurs {count} times", 1, count)
            for i, count in times.items()
            if count > 1
        ]
    return found


def _tensors(graph: Graph, tables: Tables) -> list[Violation]:
    """Activations have one producer, everything else none; sizes are numbers >= 0."""
    found = []
    written: dict[int, int] = {}
    for row in tables.writes:
        for tensor in row:
            written[tensor] = written.get(tensor, 0) + 1
    for tensor, tensor_id in enumerate(graph.tensor_ids.tolist()):
        expected = 1 if tables.kind[tensor] == ACTIVATION else 0
        got = written.get(tensor, 0)
        subject = f"tensor {tensor_id}"
        if got != expected:
            message = f"{got} nodes write it, expected {expected}"
            found.append(Violation("graph", subject, message, expected, got))
        size, transfer = tables.size[tensor], tables.transfer[tensor]
        if not 0 <= size < float("inf"):
            found.append(Violation("graph", subject, f"size {size} is not >= 0", ">= 0", size))
        if transfer < 0:
            message = f"transfer time {transfer} is not >= 0"
            found.append(Violation("graph", subject, message, ">= 0", transfer))
    return found


def check_clustering(graph: Graph, clustering: Clustering) -> list[Violation]:
    """Return what is wrong with the groups: every node in one, members in topological order."""
    tables = tables_of(graph)
    found = []
    member_of: dict[int, int] = {}
    starts, members = clustering.member_ptr.tolist(), clustering.member_idx.tolist()
    for group, group_id in enumerate(clustering.group_ids.tolist()):
        subject = f"group {group_id}"
        seen: set[int] = set()
        inside = set(members[starts[group] : starts[group + 1]])
        if not inside:
            found.append(Violation("group", subject, "the group is empty"))
        for node in members[starts[group] : starts[group + 1]]:
            if node in member_of:
                other = int(clustering.group_ids[member_of[node]])
                message = f"node {tables.ids[node]} is already in group {other}"
                found.append(Violation("group", subject, message))
            member_of[node] = group
            late = [u for u in tables.producers(node) if u in inside and u not in seen]
            if late:
                message = (
                    f"node {tables.ids[node]} stands before its producer {tables.ids[late[0]]}"
                )
                found.append(Violation("group", subject, message))
            seen.add(node)
    missing = [tables.ids[v] for v in range(tables.n) if v not in member_of]
    if missing:
        message = f"nodes {shown(missing)} are in no group"
        found.append(Violation("group", "groups", message, 0, len(missing)))
    return found
