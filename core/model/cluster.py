"""A clustering: a partition of the nodes into groups, and the graph of its groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dnnp.core.model.graph import (
    Floats,
    Graph,
    Ints,
    NodeColumns,
    TensorColumns,
    connected,
    csr,
    distinct,
    make_graph,
    totals,
)


@dataclass(frozen=True, eq=False)
class Clustering:
    """A partition of the nodes of a graph into `g` groups."""

    label: Ints
    """i64[n], group position of each node."""
    member_ptr: Ints
    member_idx: Ints
    """Node positions of each group (CSR), in topological order."""
    group_ids: Ints
    """i64[g], ids in the stream."""
    names: tuple[str, ...]
    times: Mapping[str, Floats]
    """Device class -> f64[g]; inf: unsupported."""

    @property
    def g(self) -> int:
        """Number of groups."""
        return len(self.group_ids)

    @property
    def first(self) -> Ints:
        """First node of each group; i64[g]."""
        return self.member_idx[self.member_ptr[:-1]]

    def times_on(self, *classes: str) -> Floats:
        """Time of each group on device classes, f64[classes, g]; inf: unsupported."""
        nowhere = np.full(self.g, np.inf)
        return np.array([self.times.get(c, nowhere) for c in classes]).reshape(len(classes), self.g)

    def members(self, group: int) -> Ints:
        """Node positions of `group`, in topological order."""
        return self.member_idx[self.member_ptr[group] : self.member_ptr[group + 1]]


def clustering_of_labels(
    graph: Graph, label: Ints, names: tuple[str, ...] | None = None
) -> Clustering:
    """Make a clustering from labels 0..g-1; times are sums over the members."""
    g = int(label.max()) + 1 if len(label) else 0
    order = graph.order
    member_ptr, member_idx = csr(label[order], order, g)
    times = {name: totals(label, t, g) for name, t in graph.times.items()}
    return Clustering(
        label=label,
        member_ptr=member_ptr,
        member_idx=member_idx,
        group_ids=np.arange(g, dtype=np.int64),
        names=names if names is not None else tuple(str(i) for i in range(g)),
        times=times,
    )


def singletons(graph: Graph) -> Clustering:
    """Every node a group of its own, with its own times."""
    n = graph.n
    index = np.arange(n, dtype=np.int64)
    return Clustering(
        label=index,
        member_ptr=np.arange(n + 1, dtype=np.int64),
        member_idx=index,
        group_ids=graph.node_ids,
        names=graph.node_names,
        times=graph.times,
    )


def contract(graph: Graph, clustering: Clustering) -> Graph:
    """Return the graph whose nodes are the groups.

    Tensors read and written inside one group only disappear, unless they are outputs of the
    model. Groups that share a colour through any member share it in the result. A group is
    backward if all its members are.
    """
    g, label = clustering.g, clustering.label
    writer_group = np.where(graph.producer >= 0, label[graph.producer], -1)
    tensor_of_use = np.repeat(np.arange(graph.m, dtype=np.int64), np.diff(graph.use_ptr))
    reader_group = label[graph.use_idx]
    outside = reader_group != writer_group[tensor_of_use]
    pairs = distinct(reader_group[outside] * max(graph.m, 1) + tensor_of_use[outside])
    read_group, read_tensor = pairs // max(graph.m, 1), pairs % max(graph.m, 1)
    kept = (graph.producer < 0) | graph.is_output
    kept[read_tensor] = True
    position = np.cumsum(kept) - 1
    written = np.flatnonzero(kept & (graph.producer >= 0))
    node_bytes = totals(label, np.nan_to_num(graph.node_bytes), g)
    node_bytes[totals(label, np.isnan(graph.node_bytes), g) > 0] = np.nan
    forward = totals(label, ~graph.backward, g)
    return make_graph(
        NodeColumns(
            ids=clustering.group_ids,
            names=clustering.names,
            ops=["group"] * g,
            reads=csr(read_group, position[read_tensor], g),
            writes=csr(writer_group[written], position[written], g),
            times=clustering.times,
            memory=node_bytes,
            color=_group_colors(graph, clustering),
            backward=forward == 0,
            folded=totals(label, ~graph.folded, g) == 0,
            in_seconds=graph.in_seconds,
        ),
        TensorColumns(
            ids=graph.tensor_ids[kept],
            names=[graph.tensor_names[t] for t in np.flatnonzero(kept).tolist()],
            kind=graph.tensor_kind[kept],
            size=graph.tensor_bytes[kept],
            transfer_s=graph.transfer_s[kept],
            is_output=graph.is_output[kept],
            memory=graph.tensor_memory[kept],
        ),
    )


def _group_colors(graph: Graph, clustering: Clustering) -> Ints:
    """Colour of each group: colours that meet in one group become one."""
    result = np.full(clustering.g, -1, dtype=np.int64)
    colored = np.flatnonzero(graph.color >= 0)
    if len(colored):
        colors, index = np.unique(graph.color[colored], return_inverse=True)
        group = clustering.label[colored]
        joined = connected(len(colors) + clustering.g, index, len(colors) + group)
        least = np.unique(joined[: len(colors)], return_index=True)[1]
        result[group] = colors[least[joined[index]]]
    return result
