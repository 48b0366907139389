"""A graph as plain lists, and whether it and its groups are valid by themselves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from dnnp.core.check.violation import Violation
from dnnp.core.model.cluster import Clustering
from dnnp.core.model.graph import ACTIVATION, Graph


@dataclass(frozen=True)
class Tables:
    """Lists copied from a graph; nodes and tensors are positions."""

    ids: list[int]
    """Node ids in the stream."""
    reads: list[list[int]]
    """Tensors each node reads."""
    writes: list[list[int]]
    """Tensors each node writes."""
    kind: list[int]
    size: list[float]
    """Bytes of each tensor."""
    transfer: list[float]
    """Transfer time of each tensor; nan: size over bandwidth."""
    output: list[bool]
    """Whether each tensor is an output of the model."""
    writer: dict[int, int]
    """Tensor -> node that writes it."""
    users: dict[int, list[int]]
    """Tensor -> nodes that read it."""
    backward: list[bool]
    """Whether each node belongs to the backward pass."""
    memory: list[float]
    """Memory of each node as the source gives it, bytes; nan: not given."""

    @property
    def n(self) -> int:
        """Number of nodes."""
        return len(self.ids)

    @cached_property
    def training(self) -> bool:
        """Whether the graph has a backward pass."""
        return any(self.backward)

    def producers(self, node: int) -> list[int]:
        """Nodes whose outputs `node` reads, without repeats, itself excluded."""
        found = dict.fromkeys(self.writer[t] for t in self.reads[node] if t in self.writer)
        return [u for u in found if u != node]


def tables_of(graph: Graph) -> Tables:
    """Copy `graph` into lists; the reverse maps are derived here, not copied."""
    starts, tensors = graph.in_ptr.tolist(), graph.in_idx.tolist()
    reads = [tensors[starts[v] : starts[v + 1]] for v in range(graph.n)]
    starts, tensors = graph.out_ptr.tolist(), graph.out_idx.tolist()
    writes = [tensors[starts[v] : starts[v + 1]] for v in range(graph.n)]
    users: dict[int, list[int]] = {}
    for node, row in enumerate(reads):
        for tensor in row:
            users.setdefault(tensor, []).append(node)
    return Tables(
        ids=graph.node_ids.tolist(),
        reads=reads,
        writes=writes,
        kind=graph.tensor_kind.tolist(),
        size=graph.tensor_bytes.tolist(),
        transfer=graph.transfer_s.tolist(),
        output=graph.is_output.tolist(),
        writer={tensor: node for node, row in enumerate(writes) for tensor in row},
        users=users,
        backward=graph.backward.tolist(),
        memory=graph.node_bytes.tolist(),
    )


def on_a_cycle(successors: Mapping[int, Iterable[int]]) -> list[int]:
    """Return one cycle of a directed graph, first vertex repeated at the end, or [].

    Depth-first search with an explicit stack; linear time.
    """
    state: dict[int, int] = {}
    for root in successors:
        if root in state:
            continue
        path = [root]
        pending = [iter(successors.get(root, ()))]
        state[root] = 1
        while path:
            child = next(pending[-1], None)
            if child is None:
                state[path.pop()] = 2
                pending.pop()
            elif state.get(child) == 1:
                return [*path[path.index(child) :], child]
            elif child not in state:
                state[child] = 1
                path.append(child)
                pending.append(iter(successors.get(child, ())))
    return []


def shown(items: Sequence[object], limit: int = 8) -> str:
    """List `items`, at most `limit` of them, for a message."""
    listed = ", ".join(str(item) for item in items[:limit])
    return listed if len(items) <= limit else f"{listed}, ... ({len(items)} in all)"


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
