"""The graph as plain lists, and what follows from them alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from dnnp.core.model.graph import Graph


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
