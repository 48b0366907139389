"""From records to model types: graph and clustering, and the digest of both."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dnnp.core.model.errors import FormatError
from dnnp.core.model.graph import (
    ACTIVATION,
    INPUT,
    PARAMETER,
    STATE,
    TENSOR_KINDS,
    Bools,
    Clustering,
    Floats,
    Graph,
    Ints,
    NodeColumns,
    TensorColumns,
    connected,
    make_graph,
    offsets,
    place_of,
    singletons,
    totals,
)
from dnnp.core.model.shards import WHOLE, Collective, Costs, Shards, Share, block_state
from dnnp.core.model.states import States
from dnnp.formats.edited_costs import check_costs
from dnnp.formats.phases import group_times, phases_of, shard_times
from dnnp.formats.rows import Rows, columns, has, times_of
from dnnp.formats.stream import Record, Stream

MOST_DEGREES = 64
"""Tensor-parallel degrees that a graph may state."""

MOST_AXES = 64
"""Axes of a tensor of unknown shape."""


def shards_of(stream: Stream) -> Shards | None:
    """Costs of nodes by tensor-parallel degree; None: no node states any.

    At degree 1 a node costs what it states outside `shards`, where it states no more.

    Raises
    ------
    FormatError
        A degree that is there twice, too many of them, held bytes that exceed the memory, or a
        layout that does not fit the tensors of its node.
    """
    if not has(stream.rows("node"), "shards"):
        return None
    nodes, tensors = stream.get("node"), stream.get("tensor")
    sized = bool(stream.rows("state") or stream.rows("phase"))
    stated = sorted({one["devices"] for node in nodes for one in node.get("shards", ())})
    if not stated:
        return None
    degrees = sorted({1, *stated})
    if len(degrees) > MOST_DEGREES:
        raise FormatError(
            f"nodes are stated on {len(degrees)} numbers of devices; at most {MOST_DEGREES} are "
            "read",
            stream.name,
            field="shards",
        )
    place = {t: i for i, t in enumerate(degrees)}
    shape = len(degrees), len(nodes)
    classes = sorted({c for node in nodes for c in node.get("time_s", ())})
    plain, again = _empty(shape, classes), _empty(shape, classes)
    weight = np.full(shape, np.nan)
    collectives, shares = [], []
    shapes = {tensor["id"]: tensor.get("shape") for tensor in tensors}
    for v, node in enumerate(nodes):
        _put(plain, 0, v, node)
        seen = _degrees(stream, "node", v, node)
        for where, one in zip(seen, node.get("shards", ()), strict=True):
            i = place[one["devices"]]
            if sized and "layout" not in one:
                reason = "missing, where the graph has states or phases"
                raise stream.fault_at("node", v, f"{where}.layout", reason)
            _put(plain, i, v, one)
            weight[i, v] = one.get("weight_bytes", 0.0)
            made = one.get("collectives", ())
            collectives += [Collective(i, v, c["kind"], float(c["bytes"])) for c in made]
            if "layout" in one:
                _check_layout(stream, v, f"{where}.layout", one, shapes)
                said = one["layout"]
                ends = (_states(said, "input"), _states(said, "output"))
                shares.append(Share(i, v, *ends, said.get("reduced", False)))
            if "recomputed" in one:
                _put(again, i, v, one["recomputed"])
            for costs, field in ((one, ""), (one.get("recomputed", {}), ".recomputed")):
                if costs.get("held_bytes", 0) > costs.get("memory_bytes", np.inf):
                    raise stream.fault_at(
                        "node", v, f"{where}{field}.held_bytes", "more than memory_bytes"
                    )
    moved = np.zeros((2, len(degrees), len(tensors)))
    for t, tensor in enumerate(tensors):
        _degrees(stream, "tensor", t, tensor)
        for one in tensor.get("shards", ()):
            if one["devices"] in place:  # at others no node can run
                moved[:, place[one["devices"]], t] = (
                    one.get("in_bytes", 0.0),
                    one.get("out_bytes", 0.0),
                )
    stated_again = any("recomputed" in s for node in nodes for s in node.get("shards", ()))
    return Shards(
        degrees=np.array(degrees, dtype=np.int64),
        plain=plain,
        again=again if stated_again else None,
        weight=weight,
        collectives=tuple(collectives),
        in_bytes=moved[0],
        out_bytes=moved[1],
        shares=tuple(sorted(shares)),
    )


def _check_states(stream: Stream, graph: Graph) -> None:
    """Refuse layouts that cut the two ends of a state otherwise."""
    states, shards = graph.states, graph.shards
    if states is None or shards is None:
        return
    owner = {x: s for ends in (states.input, states.output) for s, x in enumerate(ends.tolist())}
    seen: dict[tuple[int, int], int] = {}
    for share in shards.shares:
        ends = (*graph.reads(share.node).tolist(), *graph.writes(share.node).tolist())
        for x, cut in zip(ends, (*share.inputs, *share.outputs), strict=True):
            if x in owner and seen.setdefault((share.degree, owner[x]), cut) != cut:
                reason = f"cuts the tensors of state {owner[x]} along several axes"
                raise stream.fault_at("node", share.node, "shards", reason)


def _check_layout(
    stream: Stream, v: int, where: str, one: Record, shapes: Mapping[int, list[int] | None]
) -> None:
    """Refuse a layout that names axes which the tensors of its node have not got."""
    node = stream.get("node")[v]
    for side in ("inputs", "outputs"):
        axes, ids = one["layout"][side], node[side]
        if len(axes) != len(ids):
            reason = f"{len(axes)} axes for {len(ids)} tensors"
            raise stream.fault_at("node", v, f"{where}.{side}", reason)
        for j, (axis, x) in enumerate(zip(axes, ids, strict=True)):
            shape = shapes.get(x)
            rank = MOST_AXES if shape is None else len(shape)
            if not WHOLE <= axis < rank:
                reason = f"{axis} is no axis of tensor {x}, which has {rank}"
                raise stream.fault_at("node", v, f"{where}.{side}[{j}]", reason)
            if axis != WHOLE and shape is not None and shape[axis] < one["devices"]:
                reason = f"{one['devices']} parts of axis {axis} of tensor {x}, of {shape[axis]}"
                raise stream.fault_at("node", v, f"{where}.{side}[{j}]", reason)
        name = f"{side[:-1]}_blocks"
        blocks = one["layout"].get(name, [1] * len(ids))
        if len(blocks) != len(ids):
            reason = f"{len(blocks)} numbers for {len(ids)} tensors"
            raise stream.fault_at("node", v, f"{where}.{name}", reason)
        for j, (axis, count, x) in enumerate(zip(axes, blocks, ids, strict=True)):
            shape = shapes.get(x)
            pieces = count * one["devices"]
            uneven = axis == WHOLE or (shape is not None and shape[axis] % pieces)
            if count > 1 and uneven:
                reason = f"{pieces} equal pieces of axis {axis} of tensor {x}"
                raise stream.fault_at("node", v, f"{where}.{name}[{j}]", reason)
    if one["layout"].get("reduced") and any(a != WHOLE for a in one["layout"]["outputs"]):
        raise stream.fault_at("node", v, f"{where}.reduced", "outputs are added up and cut, too")


def _states(layout: Record, side: str) -> tuple[int, ...]:
    """States of the inputs or outputs of a node."""
    axes = layout[f"{side}s"]
    blocks = layout.get(f"{side}_blocks", [1] * len(axes))
    pairs = zip(axes, blocks, strict=True)
    return tuple(a if a == WHOLE else block_state(a, b) for a, b in pairs)


def _empty(shape: tuple[int, int], classes: list[str]) -> Costs:
    times = {name: np.full(shape, np.inf) for name in classes}
    return Costs(times, np.full(shape, np.nan), np.zeros(shape))


def _put(costs: Costs, i: int, v: int, stated: Record) -> None:
    """Enter what a record states of a node at a degree."""
    for name, seconds in stated.get("time_s", {}).items():
        if name in costs.times:
            costs.times[name][i, v] = seconds
    if "memory_bytes" in stated:
        costs.memory[i, v] = stated["memory_bytes"]
    costs.held[i, v] = stated.get("held_bytes", 0.0)


def _degrees(stream: Stream, kind: str, at: int, record: Record) -> list[str]:
    """Fields of the entries of a record, none of which may be for a degree that was there."""
    seen: set[int] = set()
    fields: list[str] = []
    for j, one in enumerate(record.get("shards", ())):
        if one["devices"] in seen:
            raise stream.fault_at(
                kind, at, f"shards[{j}].devices", f"{one['devices']} devices are there twice"
            )
        seen.add(one["devices"])
        fields.append(f"shards[{j}]")
    return fields


def arrays_of(shards: Shards | None) -> Iterator[tuple[str, NDArray[Any]]]:
    """All that is stated, as named flat arrays, for a digest."""
    if shards is None:
        return
    yield "degrees", shards.degrees
    for name, costs in (("plain", shards.plain), ("again", shards.again)):
        if costs is not None:
            for c in sorted(costs.times):
                yield f"shards/{name}/{c}", costs.times[c].ravel()
            yield f"shards/{name}/memory", costs.memory.ravel()
            yield f"shards/{name}/held", costs.held.ravel()
    for c, times in sorted((shards.phase_times or {}).items()):
        yield f"shards/phases/{c}", times.ravel()
    yield "shards/weight", shards.weight.ravel()
    yield "shards/in", shards.in_bytes.ravel()
    yield "shards/out", shards.out_bytes.ravel()
    for i, v, inputs, outputs, reduced in shards.shares:
        row = [i, v, len(inputs), *inputs, *outputs, reduced]
        yield "shards/layout", np.array(row, dtype=np.int64)
    for i, v, kind, size in shards.collectives:
        yield f"shards/{kind}", np.array([i, v, size], dtype=np.float64)


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
    lists = columns(stream.rows(kind), {}, (field,))
    return _linked(stream, kind, field, lists[field], ids, what)


def _linked(
    stream: Stream, kind: str, field: str, lists: tuple[Ints, Ints], ids: Ints, what: str
) -> tuple[Ints, Ints]:
    """The same, from lengths and ids."""
    sizes, flat = lists
    ptr = offsets(sizes)
    idx = _positions(ids, flat)
    if (idx < 0).any():
        bad = int(np.flatnonzero(idx < 0)[0])
        row = int(np.searchsorted(ptr, bad, side="right")) - 1
        raise stream.fault_at(kind, row, field, f"there is no {what} {int(flat[bad])}")
    return ptr, idx


def device_classes(stream: Stream) -> list[str]:
    """Device classes that nodes are priced for, sorted."""
    return sorted(times_of(stream.rows("node"))[1])


def shapes_of(stream: Stream) -> list[tuple[int, ...] | None]:
    """Shapes of the tensors of a stream; None: unknown."""
    sizes, flat = columns(stream.rows("tensor"), {}, ("shape",))["shape"]
    values = iter(flat.tolist())
    return [None if size < 0 else tuple(islice(values, size)) for size in sizes.tolist()]


_NODE = {
    "id": 0, "name": "", "op": "", "memory_bytes": math.nan, "color": -1, "backward": False,
    "held_bytes": 0.0, "folded": False, "of": -1,
}  # fmt: skip
_STATE = {
    "input": np.int64, "output": np.int64, "rows": np.int64, "sequence_bytes": np.float64,
    "token_bytes": np.float64, "tokens": np.float64, "shared": np.bool_,
}  # fmt: skip
_TENSOR = {
    "id": 0, "name": "", "kind": "", "size_bytes": 0.0, "transfer_s": math.nan, "output": False,
    "memory_bytes": math.nan,
}  # fmt: skip
"""Field of nodes and tensors -> value where it is absent."""


def graph_of(stream: Stream) -> Graph:
    """Build the graph of a stream.

    Raises
    ------
    FormatError
        No nodes, a dangling tensor, two producers, a cycle, or nodes partly without costs.
    """
    nodes, tensors = stream.rows("node"), stream.rows("tensor")
    if not nodes:
        raise FormatError("the stream has no node records", stream.name)
    try:
        priced, times = times_of(nodes)
        if priced.any() and not priced.all():
            at = int(np.argmin(priced))
            raise stream.fault_at("node", at, "time_s", "missing, but others have it")
        for i, record in enumerate(nodes if has(nodes, "captures") else ()):
            if not set(record.get("captures", ())) <= set(record["inputs"]):
                raise stream.fault_at("node", i, "captures", "names tensors that are not inputs")
        node = columns(nodes, _NODE, ("inputs", "outputs"))
        tensor = columns(tensors, _TENSOR)
        reads, writes = (
            _linked(stream, "node", side, node[side], tensor["id"], "tensor")
            for side in ("inputs", "outputs")
        )
        kinds = {name: i for i, name in enumerate(TENSOR_KINDS)}
        kind = np.array([kinds[name] for name in tensor["kind"]], dtype=np.int8)
        memory = np.where(
            np.isnan(tensor["memory_bytes"]), tensor["size_bytes"], tensor["memory_bytes"]
        )
        is_output, color = tensor["output"], node["color"]
        states = states_of(stream, tensor["id"], kind, is_output, memory)
        if states is not None:
            kind[states.input], is_output = STATE, is_output.copy()
            is_output[states.output] = False
            memory[states.input], memory[states.output] = states.held_bytes(), 0.0
            color = _joined_by_states(states, reads, writes, color)
        graph = make_graph(
            NodeColumns(
                ids=node["id"],
                names=node["name"],
                ops=node["op"],
                reads=reads,
                writes=writes,
                times={c: _or_inf(times[c]) for c in sorted(times)},
                memory=node["memory_bytes"],
                color=color,
                backward=node["backward"],
                held=node["held_bytes"],
                folded=node["folded"],
                twin=_positions(node["id"], node["of"]) if has(nodes, "of") else None,
                in_seconds=stream.in_seconds,
            ),
            TensorColumns(
                ids=tensor["id"],
                names=tensor["name"],
                kind=kind,
                size=tensor["size_bytes"],
                transfer_s=tensor["transfer_s"],
                is_output=is_output,
                memory=memory,
            ),
            shards_of(stream),
            states,
        )
        phases = phases_of(stream, graph.times, graph.tensor_bytes)
        graph = graph if phases is None else replace(graph, phases=phases)
        if phases is not None and graph.shards is not None:
            times = shard_times(stream, phases, graph.shards)
            graph = replace(graph, shards=replace(graph.shards, phase_times=times))
        _check_states(stream, graph)
        graph.order  # noqa: B018  (finds cycles)
        _check_memory(stream, graph)
    except FormatError as error:
        if error.file is not None:
            raise
        raise FormatError(error.reason, stream.name) from None
    return graph


def states_of(
    stream: Stream, ids: Ints, kind: NDArray[np.int8], is_output: Bools, memory: Floats
) -> States | None:
    """State of a model, from its records; None: it has none.

    Parameters
    ----------
    ids, kind, is_output, memory
        i64[m], i8[m], bool[m] and f64[m]: of each tensor its id, kind, whether it is an output,
        and its bytes in memory.

    Raises
    ------
    FormatError
        An end that is no input or no computed output, one of two states, or ends of two types.
    """
    records = stream.get("state")
    if not records:
        return None
    if has(stream.rows("node"), "backward"):
        raise stream.fault_at("state", 0, None, "not known where there is a backward pass")
    column: dict[str, Any] = {
        name: np.array([record.get(name, 0) for record in records], dtype)
        for name, dtype in _STATE.items()
    }
    tensors = stream.rows("tensor")
    for side, fits, what in (
        ("input", kind == INPUT, "input"),
        ("output", is_output & (kind == ACTIVATION), "computed output"),
    ):
        at = column[side] = _positions(ids, column[side])
        for i, t in enumerate(at.tolist()):
            said = records[i][side]
            if t < 0:
                raise stream.fault_at("state", i, side, f"there is no tensor {said}")
            if not fits[t]:
                raise stream.fault_at("state", i, side, f"tensor {said} is no {what} of the model")
            if t in at[:i]:
                raise stream.fault_at("state", i, side, f"tensor {said} is the {side} of another")
    for i, ends in enumerate(zip(column["input"].tolist(), column["output"].tolist(), strict=True)):
        before, after = (tensors[t].get("dtype") for t in ends)
        if before != after and None not in (before, after):
            raise stream.fault_at("state", i, "output", f"of type {after}, its input of {before}")
    before, after = memory[column["input"]], memory[column["output"]]
    both = np.where(column["shared"], np.maximum(before, after), before + after)
    return States(**column, pass_bytes=both)


def _joined_by_states(
    states: States, reads: tuple[Ints, Ints], writes: tuple[Ints, Ints], color: Ints
) -> Ints:
    """Colours of nodes, where all that touch one state share one; i64[n]."""
    n = len(color)
    state = np.full(1 + max(int(states.input.max()), int(states.output.max())), -1, dtype=np.int64)
    state[states.input] = state[states.output] = np.arange(len(states.input))
    ends: list[tuple[Ints, Ints]] = []
    for ptr, idx in (reads, writes):
        node = np.repeat(np.arange(n), np.diff(ptr))
        touches = (idx < len(state)) & (state[np.minimum(idx, len(state) - 1)] >= 0)
        ends.append((node[touches], n + state[idx[touches]]))
    colored = np.flatnonzero(color >= 0)
    named, number = np.unique(color[colored], return_inverse=True)
    ends.append((colored, n + len(states.input) + number))
    tail, head = (np.concatenate(side) for side in zip(*ends, strict=True))
    part = connected(n + len(states.input) + len(named), tail, head)[:n]
    least = place_of(part[::-1], int(part.max()) + 1)
    first = n - 1 - least[part]
    return np.where(np.bincount(part)[part] > 1, first, -1)


def _check_memory(stream: Stream, graph: Graph) -> None:
    """Refuse statements about memory that contradict the graph."""
    reader = np.repeat(np.arange(graph.n), np.diff(graph.in_ptr))
    maker = graph.producer[graph.in_idx]
    read = graph.tensor_kind[graph.in_idx]
    computed = ((read < PARAMETER) | (read == STATE)) & ~((maker >= 0) & graph.folded[maker])
    wrong = np.flatnonzero(graph.folded[reader] & computed)
    if len(wrong):
        tensor = int(graph.tensor_ids[graph.in_idx[wrong[0]]])
        reason = f"it reads tensor {tensor}, which is no constant"
        raise stream.fault_at("node", int(reader[wrong[0]]), "folded", reason)
    if graph.backward.any() and graph.in_memory is not graph:
        rows = stream.rows("node"), stream.rows("tensor")
        kind, field = ("node", "folded") if graph.folded.any() else ("tensor", "memory_bytes")
        position = next(i for i, r in enumerate(rows[kind == "tensor"]) if field in r)
        raise stream.fault_at(kind, position, field, "not known where there is a backward pass")


def clustering_of(stream: Stream, graph: Graph, *, priced: bool = True) -> Clustering | None:
    """Return the groups of a stream, or None if it has none.

    Raises
    ------
    FormatError
        The groups do not partition the nodes, or list members against the order of the graph.
        Unless `priced` is false, for costs that are about to be replaced: costs of nodes were
        edited that a group's own cost would hide.
    """
    groups = stream.rows("group")
    if not groups:
        if priced:
            check_costs(stream)
        return None
    group = columns(groups, {"id": 0, "name": ""}, ("nodes",))
    ptr, idx = _linked(stream, "group", "nodes", group["nodes"], graph.node_ids, "node")
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
    rank = place_of(idx)
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
    times = _group_times(groups, summed)
    return Clustering(
        label=label,
        member_ptr=ptr,
        member_idx=idx,
        group_ids=group["id"],
        names=tuple(group["name"]),
        times=times,
        phase_times=group_times(stream, graph, label, times) if priced else None,
    )


def _group_times(groups: list[Record] | Rows, summed: dict[str, Floats]) -> dict[str, Floats]:
    """A group's own times where it has them, else the sum of its members."""
    own, stated = times_of(groups)
    unknown = np.full(len(groups), math.inf)
    return {
        c: np.where(own, _or_inf(stated.get(c, unknown)), summed.get(c, unknown))
        for c in sorted({*stated, *summed})
    }


def _or_inf(times: Floats) -> Floats:
    """Times, inf where there are none."""
    return np.where(np.isnan(times), math.inf, times)


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
    if graph.in_memory is not graph:
        add("tensor_memory", graph.tensor_memory)
        add("folded", graph.folded)
    if graph.states is not None:
        for name in _STATE:
            add(f"states/{name}", getattr(graph.states, name))
    if graph.phases is not None:
        add("phases", np.array([p[1:] for p in graph.phases.points], dtype=np.int64).ravel())
        hasher.update(",".join(p.name for p in graph.phases.points).encode())
        add("phases/sizes", graph.phases.sizes.ravel())
        for owner, rows in (("node", graph.phases.times), ("group", clustering.phase_times or {})):
            for c in sorted(rows):
                add(f"phases/{owner}/{c}", rows[c].ravel())
    for name, array in arrays_of(graph.shards):
        add(name, array)
    return hasher.hexdigest()
