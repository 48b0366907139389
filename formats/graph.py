"""From records to model types: graph and clustering, and the digest of both."""

from __future__ import annotations

import hashlib
import math
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dnnp.core.model.cluster import Clustering, singletons
from dnnp.core.model.errors import FormatError
from dnnp.core.model.graph import (
    TENSOR_KINDS,
    Floats,
    Graph,
    Ints,
    NodeColumns,
    TensorColumns,
    make_graph,
    offsets,
    totals,
)
from dnnp.formats.edited_costs import check_costs
from dnnp.formats.limits import MOST_TIMES
from dnnp.formats.shards import arrays_of, shards_of
from dnnp.formats.stream import Record, Stream


def _ids(records: list[Record]) -> Ints:
    return np.array([r["id"] for r in records], dtype=np.int64)


def _positions(ids: Ints, wanted: Ints) -> Ints:
    """Position of each wanted id, or -1."""
    if not len(ids):
        return np.full(len(wanted), -1, dtype=np.int64)
    order = np.argsort(ids, kind="stable")
    slot = np.minimum(np.searchsorted(ids, wanted, sorter=order), len(ids) - 1)
    found = order[slot]
    return np.where(ids[found] == wanted, found, -1)


def rows_of(stream: Stream, kind: str, field: str, ids: Ints, what: str) -> tuple[Ints, Ints]:
    """CSR of a list-of-ids field, as positions among `ids`; dangling references raise."""
    columns = [r[field] for r in stream.get(kind)]
    ptr = offsets([len(column) for column in columns])
    flat = np.fromiter(chain.from_iterable(columns), np.int64, int(ptr[-1]))
    idx = _positions(ids, flat)
    if (idx < 0).any():
        bad = int(np.flatnonzero(idx < 0)[0])
        row = int(np.searchsorted(ptr, bad, side="right")) - 1
        raise stream.fault_at(kind, row, field, f"there is no {what} {int(flat[bad])}")
    return ptr, idx


def _times(records: list[Record]) -> dict[str, Floats]:
    """Device class -> seconds per record; inf where a class is absent.

    Raises
    ------
    FormatError
        So many classes that their times would fill the memory.
    """
    rows = [r.get("time_s", {}) for r in records]
    names = sorted(set().union(*rows)) if rows else []
    if len(names) * len(rows) > MOST_TIMES:
        raise FormatError(
            f"{len(rows)} records are priced for {len(names)} device classes; at most "
            f"{MOST_TIMES} times are read",
            field="time_s",
        )
    return {c: np.array([r.get(c, math.inf) for r in rows], dtype=np.float64) for c in names}


def _optional(records: list[Record], name: str, default: Any, dtype: Any) -> NDArray[Any]:
    return np.array([r.get(name, default) for r in records], dtype=dtype)


def _twins(nodes: list[Record]) -> Ints | None:
    """Position of the node whose gradient each node computes; -1: of none, None: of no node."""
    if not any("of" in r for r in nodes):
        return None
    position = {r["id"]: v for v, r in enumerate(nodes)}
    return np.array([position.get(r.get("of"), -1) for r in nodes], dtype=np.int64)


def graph_of(stream: Stream) -> Graph:
    """Build the graph of a stream.

    Raises
    ------
    FormatError
        No nodes, a dangling tensor, two producers, a cycle, or nodes partly without costs.
    """
    nodes, tensors = stream.get("node"), stream.get("tensor")
    if not nodes:
        raise FormatError("the stream has no node records", stream.name)
    tensor_ids = _ids(tensors)
    priced = ["time_s" in r for r in nodes]
    if any(priced) and not all(priced):
        raise stream.fault_at("node", priced.index(False), "time_s", "missing, but others have it")
    for i, record in enumerate(nodes):
        if "captures" in record and not set(record["captures"]) <= set(record["inputs"]):
            raise stream.fault_at("node", i, "captures", "names tensors that are not inputs")
    kinds = {name: i for i, name in enumerate(TENSOR_KINDS)}
    try:
        graph = make_graph(
            NodeColumns(
                ids=_ids(nodes),
                names=[r["name"] for r in nodes],
                ops=[r["op"] for r in nodes],
                reads=rows_of(stream, "node", "inputs", tensor_ids, "tensor"),
                writes=rows_of(stream, "node", "outputs", tensor_ids, "tensor"),
                times=_times(nodes) if any(priced) else {},
                memory=_optional(nodes, "memory_bytes", math.nan, np.float64),
                color=_optional(nodes, "color", -1, np.int64),
                backward=_optional(nodes, "backward", False, np.bool_),
                held=_optional(nodes, "held_bytes", 0.0, np.float64),
                twin=_twins(nodes),
                in_seconds=stream.in_seconds,
            ),
            TensorColumns(
                ids=tensor_ids,
                names=[r["name"] for r in tensors],
                kind=np.array([kinds[r["kind"]] for r in tensors], dtype=np.int8),
                size=np.array([r["size_bytes"] for r in tensors], dtype=np.float64),
                transfer_s=_optional(tensors, "transfer_s", math.nan, np.float64),
                is_output=_optional(tensors, "output", False, np.bool_),
            ),
            shards_of(stream),
        )
        graph.order  # noqa: B018  (finds cycles)
    except FormatError as error:
        if error.file is not None:
            raise
        raise FormatError(error.reason, stream.name) from None
    return graph


def clustering_of(stream: Stream, graph: Graph, *, priced: bool = True) -> Clustering | None:
    """Return the groups of a stream, or None if it has none.

    Raises
    ------
    FormatError
        The groups do not partition the nodes, or list members against the order of the graph.
        Unless `priced` is false, for costs that are about to be replaced: costs of nodes were
        edited that a group's own cost would hide.
    """
    groups = stream.get("group")
    if not groups:
        if priced:
            check_costs(stream)
        return None
    ptr, idx = rows_of(stream, "group", "nodes", graph.node_ids, "node")
    sizes = np.diff(ptr)
    if (sizes == 0).any():
        empty = int(np.flatnonzero(sizes == 0)[0])
        raise stream.fault_at("group", empty, "nodes", "a group without nodes")
    label = np.full(graph.n, -1, dtype=np.int64)
    owner = np.repeat(np.arange(len(groups), dtype=np.int64), sizes)
    label[idx] = owner
    if len(idx) != graph.n or (label < 0).any():
        counts = np.bincount(idx, minlength=graph.n)
        wrong = int(np.flatnonzero(counts != 1)[0])
        reason = f"node {int(graph.node_ids[wrong])} is in {int(counts[wrong])} groups, not one"
        where = int(owner[np.flatnonzero(idx == wrong)[-1]]) if counts[wrong] else 0
        raise stream.fault_at("group", where, "nodes", reason)
    rank = np.empty(graph.n, dtype=np.int64)
    rank[idx] = np.arange(graph.n)
    tail, head = graph.edges
    against = (label[tail] == label[head]) & (rank[tail] > rank[head])
    if against.any():
        e = int(np.flatnonzero(against)[0])
        u, v = int(graph.node_ids[tail[e]]), int(graph.node_ids[head[e]])
        reason = f"node {v} stands before node {u}, whose output it reads"
        raise stream.fault_at("group", int(label[tail[e]]), "nodes", reason)
    if priced:
        check_costs(stream)
    summed = {c: totals(label, t, len(groups)) for c, t in graph.times.items()}
    return Clustering(
        label=label,
        member_ptr=ptr,
        member_idx=idx,
        group_ids=_ids(groups),
        names=tuple(r["name"] for r in groups),
        times=_group_times(groups, summed),
    )


def _group_times(groups: list[Record], summed: dict[str, Floats]) -> dict[str, Floats]:
    """A group's own times where it has them, else the sum of its members."""
    own = np.array(["time_s" in r for r in groups])
    stated = _times(groups)
    unknown = np.full(len(groups), math.inf)
    return {
        c: np.where(own, stated.get(c, unknown), summed.get(c, unknown))
        for c in sorted({*stated, *summed})
    }


def units_of(stream: Stream, graph: Graph) -> Clustering:
    """Return the units a split moves: the stream's groups, or every node alone."""
    return clustering_of(stream, graph) or singletons(graph)


def digest_of(graph: Graph, clustering: Clustering) -> str:
    """SHA-256 of everything a plan depends on: structure, sizes, costs and groups."""
    hasher = hashlib.sha256()

    def add(name: str, array: NDArray[Any]) -> None:
        hasher.update(f"{name}:{len(array)};".encode())
        kind = {"i": "<i8", "b": "<i8", "f": "<f8"}[array.dtype.kind]
        hasher.update(np.ascontiguousarray(array, dtype=kind).tobytes())

    for name in (
        "node_ids",
        "tensor_ids",
        "tensor_kind",
        "tensor_bytes",
        "transfer_s",
        "is_output",
        "in_ptr",
        "in_idx",
        "out_ptr",
        "out_idx",
        "node_bytes",
        "color",
        "backward",
    ):
        add(name, getattr(graph, name))
    for name in ("group_ids", "member_ptr", "member_idx"):
        add(name, getattr(clustering, name))
    for owner, times in (("node", graph.times), ("group", clustering.times)):
        for c in sorted(times):
            add(f"{owner}/{c}", times[c])
    if graph.held_bytes.any():
        add("held_bytes", graph.held_bytes)
    for name, array in arrays_of(graph.shards):
        add(name, array)
    return hasher.hexdigest()
