"""The computation graph in flat arrays: operators, tensors as hyperedges, and groups."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dnnp.core.model.errors import FormatError
from dnnp.core.model.phases import Phases, total
from dnnp.core.model.shards import Shards
from dnnp.core.model.states import States

INPUT, ACTIVATION, PARAMETER, CONSTANT, STATE = range(5)
"""Kinds of tensors; from PARAMETER on they stay on the device that reads them."""
TENSOR_KINDS = ("input", "activation", "parameter", "constant")
"""Kinds as the stream names them; a STATE is an input there."""

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Number = TypeVar("Number", bound=np.generic)


@dataclass(frozen=True, eq=False)
class Graph:
    """An acyclic graph of `n` nodes and `m` tensors.

    A tensor is a hyperedge: one producer at most, any number of consumers. Everything is
    addressed by position (0..n-1, 0..m-1); ids are those of the stream. CSR pairs
    `x_ptr`, `x_idx` list the items of row i in `x_idx[x_ptr[i]:x_ptr[i + 1]]`.
    """

    node_ids: Ints
    """i64[n], ids in the stream."""
    node_names: tuple[str, ...]
    ops: tuple[str, ...]
    """Operator type of each node."""
    tensor_ids: Ints
    tensor_names: tuple[str, ...]
    tensor_kind: NDArray[np.int8]
    """i8[m]: INPUT, ACTIVATION, PARAMETER, CONSTANT or STATE."""
    tensor_bytes: Floats
    """f64[m], bytes that move."""
    tensor_memory: Floats
    """f64[m], bytes in the memory of a device that holds the tensor."""
    transfer_s: Floats
    """f64[m], time to move the tensor once; nan: bytes over the link's bandwidth."""
    is_output: Bools
    """bool[m]: the tensor is an output of the model that leaves its device; states do not."""
    producer: Ints
    """i64[m], node position, or -1 for inputs, parameters and constants."""
    in_ptr: Ints
    in_idx: Ints
    """Tensors each node reads, captures of subgraph bodies included, without repeats."""
    out_ptr: Ints
    out_idx: Ints
    """Tensors each node writes."""
    use_ptr: Ints
    use_idx: Ints
    """Nodes that read each tensor, ascending."""
    times: Mapping[str, Floats]
    """Device class -> f64[n], seconds (or the stream's unit); inf: unsupported."""
    node_bytes: Floats
    """f64[n], memory of a node where the source gives it; nan: absent."""
    color: Ints
    """i64[n], nodes of one colour share a device; -1: free."""
    backward: Bools
    """bool[n]: the node belongs to the backward pass."""
    held_bytes: Floats
    """f64[n], the part of its memory that each micro-batch holds until its backward pass."""
    folded: Bools
    """bool[n]: computed from constants before the first sample; its outputs are kept like these."""
    shards: Shards | None = None
    """The nodes on several devices at once; None: nothing is stated."""
    twin: Ints | None = None
    """i64[n], position of the node whose gradient a node computes; -1: none; None: not stated."""
    in_seconds: bool = False
    """True if times are in seconds; else their unit is not known."""
    states: States | None = None
    """State that is carried from pass to pass; None: there is none."""
    phases: Phases | None = None
    """Costs of passes over prompts and tokens; times and sizes are those of the first."""
    passes: float = 1.0
    """Passes that times and sizes are sums over: each pays the latency of a link again."""

    @property
    def n(self) -> int:
        """Number of nodes."""
        return len(self.node_ids)

    @property
    def m(self) -> int:
        """Number of tensors."""
        return len(self.tensor_ids)

    @cached_property
    def survives(self) -> Bools:
        """Tensors that are there after a pass, outputs and states; bool[m]."""
        if self.states is None:
            return self.is_output
        result = self.is_output.copy()
        result[self.states.output] = True
        return result

    def of_passes(self, passes: Sequence[float]) -> Graph:
        """The graph whose times and sizes are those of so many passes of each phase, together.

        In memory a tensor takes what it does in the phase where it is largest.
        """
        phases = self.phases
        if phases is None:
            return self
        grown = np.ones(self.m)
        np.divide(self.tensor_memory, self.tensor_bytes, out=grown, where=self.tensor_bytes > 0)
        done = phases.sizes[np.flatnonzero(passes)]
        memory = np.maximum(self.tensor_memory, grown * done.max(axis=0, initial=0.0))
        if self.states is not None:
            memory[self.states.input] = self.tensor_memory[self.states.input]
            memory[self.states.output] = 0.0
        return replace(
            self,
            times={c: total(passes, rows) for c, rows in phases.times.items()},
            tensor_bytes=np.where(
                self.tensor_kind < PARAMETER, total(passes, phases.sizes), self.tensor_bytes
            ),
            tensor_memory=memory,
            passes=float(sum(passes)),
            shards=None if self.shards is None else self.shards.of_passes(passes),
        )

    def with_sequences(self, in_flight: int | None, max_length: int | None, rows: int = 1) -> Graph:
        """The same graph with the states of `in_flight` sequences of `max_length` tokens each.

        `rows`: those of the largest pass, if they are more than in the pass as imported.
        """
        if self.states is None or (in_flight is None and max_length is None):
            return self
        states = replace(
            self.states,
            in_flight=in_flight,
            max_length=max_length,
            rows=np.maximum(self.states.rows, rows),
        )
        memory = self.tensor_memory.copy()
        memory[states.input] = states.held_bytes()
        memory.setflags(write=False)
        return replace(self, states=states, tensor_memory=memory)

    def reads(self, node: int) -> Ints:
        """Tensors that `node` reads."""
        return self.in_idx[self.in_ptr[node] : self.in_ptr[node + 1]]

    def writes(self, node: int) -> Ints:
        """Tensors that `node` writes."""
        return self.out_idx[self.out_ptr[node] : self.out_ptr[node + 1]]

    def readers(self, tensor: int) -> Ints:
        """Nodes that read `tensor`, ascending."""
        return self.use_idx[self.use_ptr[tensor] : self.use_ptr[tensor + 1]]

    @cached_property
    def reader(self) -> Ints:
        """Node of each entry of `in_idx`."""
        return np.repeat(np.arange(self.n, dtype=np.int64), np.diff(self.in_ptr))

    @cached_property
    def writer(self) -> Ints:
        """Node of each entry of `out_idx`."""
        return np.repeat(np.arange(self.n, dtype=np.int64), np.diff(self.out_ptr))

    def touched(self, size: Floats) -> Floats:
        """Sum of the sizes of tensors (f64[m]) that each node reads and writes; f64[n]."""
        read = totals(self.reader, size[self.in_idx], self.n)
        return read + totals(self.writer, size[self.out_idx], self.n)

    @cached_property
    def order(self) -> Ints:
        """Kahn order with the least position first; i64[n].

        Raises FormatError: the graph has a cycle; the message names the nodes on one.
        """
        order, indegree = kahn(*self.edges, self.n)
        if len(order) < self.n:
            raise FormatError(f"the graph has a cycle: {self._describe_cycle(indegree)}")
        return order

    @cached_property
    def rank(self) -> Ints:
        """Place of each node in `order`; i64[n]."""
        return place_of(self.order)

    @cached_property
    def edges(self) -> tuple[Ints, Ints]:
        """Distinct producer-consumer pairs (tail i64[e], head i64[e]), sorted."""
        counts = np.diff(self.use_ptr)
        tail = np.repeat(self.producer, counts)
        made = tail >= 0
        pairs = distinct(tail[made] * self.n + self.use_idx[made])
        return pairs // max(self.n, 1), pairs % max(self.n, 1)

    @cached_property
    def in_memory(self) -> Graph:
        """The same nodes and tensors as memory counts them.

        Tensors have the bytes that they take there. Folded nodes read and write nothing: what they
        make is constant.
        """
        if not self.folded.any() and (self.tensor_memory == self.tensor_bytes).all():
            return self
        made = (self.producer >= 0) & self.folded[self.producer]
        rows = []
        for node, idx in ((self.reader, self.in_idx), (self.writer, self.out_idx)):
            runs = ~self.folded[node]
            rows.append((offsets(np.bincount(node[runs], minlength=self.n)), idx[runs], node[runs]))
        (in_ptr, in_idx, reader), (out_ptr, out_idx, _) = rows
        use_ptr, use_idx = csr(in_idx, reader, self.m)
        return replace(
            self,
            tensor_kind=np.where(made, np.int8(CONSTANT), self.tensor_kind),
            tensor_bytes=self.tensor_memory,
            producer=np.where(made, -1, self.producer),
            in_ptr=in_ptr,
            in_idx=in_idx,
            out_ptr=out_ptr,
            out_idx=out_idx,
            use_ptr=use_ptr,
            use_idx=use_idx,
            folded=np.zeros(self.n, dtype=np.bool_),
        )

    def _describe_cycle(self, indegree: Sequence[int]) -> str:
        """Walk backwards among the nodes that Kahn's algorithm could not free."""
        tail, head = self.edges
        before = {int(v): int(u) for u, v in zip(tail, head, strict=True) if indegree[u] > 0}
        v = next(v for v in range(self.n) if indegree[v] > 0)
        seen: dict[int, int] = {}
        path: list[int] = []
        while v not in seen:
            seen[v] = len(path)
            path.append(v)
            v = before[v]
        cycle = [*path[seen[v] :], v][::-1]
        shown = [f"{int(self.node_ids[u])}" for u in cycle]
        if len(shown) > 10:
            shown = [*shown[:5], "...", *shown[-4:]]
        return "node " + " -> ".join(shown)


def offsets(sizes: Ints | Sequence[int]) -> Ints:
    """Offsets of rows of these sizes, one after another, and the last end; i64[rows + 1]."""
    ptr = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(np.asarray(sizes, dtype=np.int64), out=ptr[1:])
    return ptr


def distinct(values: NDArray[Number]) -> NDArray[Number]:
    """Each value once, ascending.

    For whole numbers `np.unique` takes up to twenty times as long, and it loads `numpy.ma`.
    """
    ordered = np.sort(values, axis=None)
    first = np.ones(len(ordered), dtype=np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return ordered[first]


def csr(rows: Ints, values: Ints, n_rows: int) -> tuple[Ints, Ints]:
    """Group `values` by `rows`: (ptr i64[n_rows + 1], idx), stable within a row."""
    return offsets(np.bincount(rows, minlength=n_rows)), values[np.argsort(rows, kind="stable")]


def csr_rows(ptr: Ints, idx: Ints, rows: Ints) -> tuple[Ints, Ints]:
    """The rows `rows` of a CSR table, in that order, as one: (ptr, idx)."""
    sizes = ptr[rows + 1] - ptr[rows]
    chosen = offsets(sizes)
    shift = np.repeat(ptr[rows] - chosen[:-1], sizes)
    return chosen, idx[shift + np.arange(chosen[-1])]


def csr_lists(ptr: Ints, idx: Ints) -> list[list[int]]:
    """The rows of a CSR table as lists."""
    flat = idx.tolist()
    return [flat[a:b] for a, b in pairwise(ptr.tolist())]


def totals(rows: Ints, weights: Floats | Bools, n_rows: int) -> Floats:
    """Sum of the weights of each row; f64[n_rows]."""
    return np.bincount(rows, weights=weights, minlength=n_rows).astype(np.float64)


@dataclass(frozen=True, kw_only=True)
class NodeColumns:
    """Columns of `n` nodes for `make_graph`; fields as in `Graph`."""

    ids: Ints
    names: Sequence[str]
    ops: Sequence[str]
    reads: tuple[Ints, Ints]
    """CSR rows of the tensors that each node reads."""
    writes: tuple[Ints, Ints]
    times: Mapping[str, Floats]
    memory: Floats | None = None
    color: Ints | None = None
    backward: Bools | None = None
    held: Floats | None = None
    folded: Bools | None = None
    twin: Ints | None = None
    in_seconds: bool = False


@dataclass(frozen=True, kw_only=True)
class TensorColumns:
    """Columns of `m` tensors for `make_graph`; fields as in `Graph`."""

    ids: Ints
    names: Sequence[str]
    kind: NDArray[np.int8]
    size: Floats
    """f64[m], bytes."""
    transfer_s: Floats
    is_output: Bools
    memory: Floats | None = None


def make_graph(
    nodes: NodeColumns,
    tensors: TensorColumns,
    shards: Shards | None = None,
    states: States | None = None,
) -> Graph:
    """Build a graph from CSR rows of tensors read and written; derive the reverse maps.

    Raises FormatError: A tensor with two producers, or a kind that does not fit its producer.
    """
    n, m = len(nodes.ids), len(tensors.ids)
    in_ptr, in_idx = nodes.reads
    out_ptr, out_idx = nodes.writes
    reader = np.repeat(np.arange(n, dtype=np.int64), np.diff(in_ptr))
    use_ptr, use_idx = csr(in_idx, reader, m)
    arrays = {
        "node_bytes": np.full(n, np.nan) if nodes.memory is None else nodes.memory,
        "color": np.full(n, -1, dtype=np.int64) if nodes.color is None else nodes.color,
        "backward": np.zeros(n, dtype=np.bool_) if nodes.backward is None else nodes.backward,
        "held_bytes": np.zeros(n) if nodes.held is None else nodes.held,
        "folded": np.zeros(n, dtype=np.bool_) if nodes.folded is None else nodes.folded,
    }
    graph = Graph(
        node_ids=nodes.ids,
        node_names=tuple(nodes.names),
        ops=tuple(nodes.ops),
        tensor_ids=tensors.ids,
        tensor_names=tuple(tensors.names),
        tensor_kind=tensors.kind,
        tensor_bytes=tensors.size,
        tensor_memory=tensors.size if tensors.memory is None else tensors.memory,
        transfer_s=tensors.transfer_s,
        is_output=tensors.is_output,
        producer=_producers(nodes, tensors),
        in_ptr=in_ptr,
        in_idx=in_idx,
        out_ptr=out_ptr,
        out_idx=out_idx,
        use_ptr=use_ptr,
        use_idx=use_idx,
        times=dict(nodes.times),
        shards=shards,
        twin=nodes.twin,
        in_seconds=nodes.in_seconds,
        states=states,
        **arrays,  # type: ignore[arg-type]
    )
    for array in vars(graph).values():
        if isinstance(array, np.ndarray):
            array.setflags(write=False)
    return graph


def _producers(nodes: NodeColumns, tensors: TensorColumns) -> Ints:
    """The node that makes each tensor, -1: none; i64[m]. See `make_graph` for what it raises."""
    m = len(tensors.ids)
    out_ptr, out_idx = nodes.writes
    writer = np.repeat(np.arange(len(nodes.ids), dtype=np.int64), np.diff(out_ptr))
    writers = np.bincount(out_idx, minlength=m) if m else np.zeros(0, dtype=np.int64)
    if (writers > 1).any():
        t = int(np.flatnonzero(writers > 1)[0])
        made = [int(nodes.ids[u]) for u in writer[out_idx == t]]
        raise FormatError(f"tensor {int(tensors.ids[t])} has {len(made)} producers: nodes {made}")
    producer = np.full(m, -1, dtype=np.int64)
    producer[out_idx] = writer
    wrong = (tensors.kind == ACTIVATION) != (producer >= 0)
    if wrong.any():
        t = int(np.flatnonzero(wrong)[0])
        kind = TENSOR_KINDS[tensors.kind[t]]
        fault = (
            "no producer" if producer[t] < 0 else f"a producer, node {int(nodes.ids[producer[t]])}"
        )
        raise FormatError(f"tensor {int(tensors.ids[t])} is of kind '{kind}' but has {fault}")
    return producer


def place_of(order: Ints | Sequence[int], size: int | None = None) -> Ints:
    """Place of each number in `order`, i64[size]; -1: it is not there. Without `size` all are."""
    place = np.full(len(order) if size is None else size, -1, dtype=np.int64)
    place[order] = np.arange(len(order))
    return place


def row_of(rows: Iterable[Ints | Sequence[int]], size: int) -> Ints:
    """Row that each number is in, the last one; i64[size], -1: it is in none."""
    found = np.full(size, -1, dtype=np.int64)
    for number, row in enumerate(rows):
        found[row] = number
    return found


def kahn(tail: Ints, head: Ints, n: int) -> tuple[Ints, list[int]]:
    """Kahn order of 0..n - 1 with the least first, and how many edges into each are left.

    What is on a cycle, or behind one, is not in the order.
    """
    ptr, successors = csr(tail, head, n)
    starts, targets = ptr.tolist(), successors.tolist()
    indegree = np.bincount(head, minlength=n).tolist()
    ready = [v for v in range(n) if indegree[v] == 0]
    order: list[int] = []
    while ready:
        u = heapq.heappop(ready)
        order.append(u)
        for v in targets[starts[u] : starts[u + 1]]:
            indegree[v] -= 1
            if indegree[v] == 0:
                heapq.heappush(ready, v)
    return np.array(order, dtype=np.int64), indegree


def connected(count: int, tail: Ints, head: Ints) -> Ints:
    """Component of each of `count` vertices, edges taken both ways; i64[count].

    Components are numbered by their least vertices. A few rounds of O(count + e).
    """
    least = np.arange(count, dtype=np.int64)
    while True:
        a, b = least[tail], least[head]
        apart = a != b
        if not apart.any():
            return np.unique(least, return_inverse=True)[1].astype(np.int64)
        tail, head, a, b = tail[apart], head[apart], a[apart], b[apart]
        np.minimum.at(least, np.maximum(a, b), np.minimum(a, b))
        while (least[least] != least).any():
            least = least[least]


def strong(count: int, tail: Ints, head: Ints) -> Ints:
    """Strongly connected component of each of `count` vertices; i64[count].

    Components are numbered in the order in which a depth-first search is done with them, so that
    an edge leads to a number that is no greater; the search begins with the least vertex, and goes
    to the greatest successor first. Tarjan (1972) without recursion, O(count + e).
    """
    sorted_ = np.argsort(head, kind="stable")
    ptr, after = csr(tail[sorted_], head[sorted_], count)
    targets, first, left = after.tolist(), ptr[:-1].tolist(), ptr[1:].tolist()
    number = [-1] * count
    # When each vertex, or the earliest one in no component yet that it is known to lead to, was
    # reached: from 1. 0: not reached. Beyond all times: in a component.
    low = [0] * count
    beyond = count + 1
    clock = found = 0
    pending: list[int] = []  # done with, but in no component yet
    for root in range(count):
        if low[root]:
            continue
        path = [root]
        reached: list[int] = []
        while path:
            u = path[-1]
            if not low[u]:
                clock += 1
                low[u] = clock
                reached.append(clock)
            least = low[u]
            end, at = first[u], left[u]
            while at > end:
                v = targets[at - 1]
                if not low[v]:
                    break
                least = min(least, low[v])
                at -= 1
            low[u], left[u] = least, at
            if at > end:  # this edge is seen again after v
                path.append(v)
                continue
            path.pop()
            if least < reached.pop():
                pending.append(u)
                continue
            members = [u]
            while pending and low[pending[-1]] >= least:
                members.append(pending.pop())
            for v in members:
                low[v], number[v] = beyond, found
            found += 1
    return np.array(number, dtype=np.int64)


GRADIENT = "Grad"
"""End of the types of backward operators, after the type of the forward operator."""


def forward_type(op: str) -> str:
    """The operator type whose gradient one computes; of others, their own.

    >>> forward_type("MatMulGrad"), forward_type("MatMul")
    ('MatMul', 'MatMul')
    """
    return op.removesuffix(GRADIENT) or op


def attribute_bytes(node: Any) -> int:
    """Bytes of the numbers and strings in lists and tensors among a `NodeProto`'s attributes."""
    total = 0
    for attribute in node.attribute:
        total += 4 * len(attribute.floats) + 8 * len(attribute.ints)
        total += sum(map(len, attribute.strings))
        if attribute.HasField("t"):
            total += attribute.t.ByteSize()
    return total


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
    phase_times: Mapping[str, Floats] | None = None
    """Device class -> f64[p, g], at each point of the phases; None: there are none."""

    def of_passes(self, passes: Sequence[float]) -> Clustering:
        """The groups with the times of so many passes of each phase, together."""
        if self.phase_times is None:
            return self
        times = {c: total(passes, rows) for c, rows in self.phase_times.items()}
        return replace(self, times=times)

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
        phase_times=None if graph.phases is None else graph.phases.times,
    )


G = TypeVar("G", Clustering, Clustering | None)


def with_own_times(
    graph: Graph, clustering: G, own: Mapping[str, tuple[str, float]]
) -> tuple[Graph, G]:
    """Add times of classes: those of another class over a speed, of both as `own` has them."""

    def more(times: Mapping[str, Floats]) -> dict[str, Floats]:
        found = {c: times[of] / speed for c, (of, speed) in own.items() if of in times}
        return {**times, **found}

    if not own:
        return graph, clustering
    phases = graph.phases and replace(graph.phases, times=more(graph.phases.times))
    graph = replace(graph, times=more(graph.times), phases=phases)
    if clustering is None:
        return graph, clustering
    rows = clustering.phase_times
    rows = None if rows is None else more(rows)
    return graph, replace(clustering, times=more(clustering.times), phase_times=rows)


def contract(graph: Graph, clustering: Clustering) -> Graph:
    """Return the graph whose nodes are the groups.

    Tensors read and written inside one group only disappear, unless they are outputs of the
    model. Groups that share a colour through any member share it in the result. A group is
    backward if all its members are. A clustering remembers its last result.
    """
    last: tuple[Graph, Graph] | None = vars(clustering).get("_contracted")
    if last is None or last[0] is not graph:
        last = vars(clustering)["_contracted"] = graph, _contracted(graph, clustering)
    return last[1]


def _contracted(graph: Graph, clustering: Clustering) -> Graph:
    """The same, made anew."""
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
