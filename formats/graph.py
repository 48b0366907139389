"""From records to model types and back: graph, clustering, plan, devices."""

from __future__ import annotations

import hashlib
import math
import re
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dnnp.core.model.cluster import Clustering, singletons
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.errors import FormatError
from dnnp.core.model.graph import TENSOR_KINDS, Floats, Graph, Ints, make_graph, offsets, totals
from dnnp.core.model.link import Link
from dnnp.core.model.plan import CostOptions, Plan, Stage, Transfer
from dnnp.formats.edited_costs import check_costs
from dnnp.formats.fields import MAX_NUMBER, shown
from dnnp.formats.stream import Record, Stream

MOST_TIMES = 20_000_000
"""Records times device classes; 8 bytes each, and more while they are read."""


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


def _rows(stream: Stream, kind: str, field: str, ids: Ints, what: str) -> tuple[Ints, Ints]:
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
            node_ids=_ids(nodes),
            node_names=[r["name"] for r in nodes],
            ops=[r["op"] for r in nodes],
            reads=_rows(stream, "node", "inputs", tensor_ids, "tensor"),
            writes=_rows(stream, "node", "outputs", tensor_ids, "tensor"),
            tensor_ids=tensor_ids,
            tensor_names=[r["name"] for r in tensors],
            tensor_kind=np.array([kinds[r["kind"]] for r in tensors], dtype=np.int8),
            tensor_bytes=np.array([r["size_bytes"] for r in tensors], dtype=np.float64),
            transfer_s=_optional(tensors, "transfer_s", math.nan, np.float64),
            is_output=_optional(tensors, "output", False, np.bool_),
            times=_times(nodes) if any(priced) else {},
            node_bytes=_optional(nodes, "memory_bytes", math.nan, np.float64),
            color=_optional(nodes, "color", -1, np.int64),
            backward=_optional(nodes, "backward", False, np.bool_),
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
    ptr, idx = _rows(stream, "group", "nodes", graph.node_ids, "node")
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
    return hasher.hexdigest()


def device_of(record: Record) -> DeviceClass:
    """A device class from its record; without a count there are none yet.

    Raises
    ------
    FormatError
        Clusters without the bandwidth of the links inside them.
    """
    if record.get("cluster_size", 0) and "inner_bandwidth_bytes_per_s" not in record:
        raise FormatError(
            f"device class {shown(record['class'])} has a cluster_size but no "
            "inner_bandwidth_bytes_per_s"
        )
    return DeviceClass(
        name=record["class"],
        kind=record["kind"],
        count=record.get("count", 0),
        memory_bytes=float(record.get("memory_bytes", math.inf)),
        bandwidth_bytes_per_s=float(record.get("bandwidth_bytes_per_s", math.inf)),
        cluster_size=record.get("cluster_size", 0),
        inner_bandwidth_bytes_per_s=float(record.get("inner_bandwidth_bytes_per_s", math.inf)),
        fast_memory_bytes=_number_or_none(record, "fast_memory_bytes"),
    )


def device_record(device: DeviceClass) -> Record:
    """The record of a device class; infinite values are left out."""
    record: Record = {"class": device.name, "kind": device.kind, "count": device.count}
    if math.isfinite(device.memory_bytes):
        record["memory_bytes"] = device.memory_bytes
    if device.fast_memory_bytes is not None:
        record["fast_memory_bytes"] = device.fast_memory_bytes
    if math.isfinite(device.bandwidth_bytes_per_s):
        record["bandwidth_bytes_per_s"] = device.bandwidth_bytes_per_s
    if device.cluster_size:
        record["cluster_size"] = device.cluster_size
        record["inner_bandwidth_bytes_per_s"] = min(device.inner_bandwidth_bytes_per_s, MAX_NUMBER)
    return record


def plan_of(stream: Stream, graph: Graph, *, check_digest: bool = True) -> Plan | None:
    """Return the plan of a stream, or None if it has none.

    Raises
    ------
    FormatError
        A device class with clusters lacks a bandwidth. Unless `check_digest` is false: the plan
        was made from another graph, costs or groups, its stages do not hold every node exactly
        once, or they are on devices that the plan does not offer.
    """
    if not stream.get("plan"):
        if stream.get("stage"):
            raise stream.fault_at("stage", 0, None, "a stage without a plan")
        return None
    record = stream.get("plan")[0]
    stages = stream.get("stage")
    if check_digest:
        ptr, idx = _rows(stream, "stage", "nodes", graph.node_ids, "node")
        counts = np.bincount(idx, minlength=graph.n)
        if (counts != 1).any():
            node = int(np.flatnonzero(counts != 1)[0])
            times = int(counts[node])
            raise stream.fault_at(
                "plan", 0, None, f"node {int(graph.node_ids[node])} is in {times} stages, not one"
            )
        units = units_of(stream, graph)
        if record["digest"] != digest_of(graph, units):
            raise stream.fault_at(
                "plan", 0, "digest", "the plan was made from another graph, costs or groups"
            )
        _check_stages(stream, record, units, ptr, idx)
    return Plan(
        stages=tuple(
            Stage(
                device=r["device"],
                device_class=r["class"],
                nodes=tuple(r["nodes"]),
                load_s=float(r["load_s"]),
                in_s=float(r["in_s"]),
                compute_s=float(r["compute_s"]),
                overflow_s=float(r["overflow_s"]),
                out_s=float(r["out_s"]),
                memory_bytes=float(r["memory_bytes"]),
                replicas=r.get("replicas", 1),
                sync_s=float(r.get("sync_s", 0.0)),
                forward_s=_number_or_none(r, "forward_s"),
                backward_s=_number_or_none(r, "backward_s"),
                peak_bytes=_number_or_none(r, "peak_bytes"),
                peak_bound_bytes=_number_or_none(r, "peak_bound_bytes"),
                begin_s=_number_or_none(r, "begin_s"),
                end_s=_number_or_none(r, "end_s"),
                starts_s=tuple(map(float, r["starts_s"])) if "starts_s" in r else None,
                receives=tuple(map(_transfer, r["receives"])) if "receives" in r else None,
            )
            for r in sorted(stages, key=lambda r: r["id"])
        ),
        k=record["k"],
        method=record["method"],
        validity=record["validity"],
        value=float(record["value"]),
        bound=float(record["bound"]),
        status=record["status"],
        options=CostOptions(
            comm=record["comm"],
            memory_model=record["memory_model"],
            memory_mode=record["memory_mode"],
            charge_io=record["charge_io"],
            objective=record["objective"],
            max_replicas=record.get("max_replicas", 1),
            **{name: record[name] for name in _LATENCY if name in record},
        ),
        devices=_plan_devices(stream, record),
        digest=record["digest"],
        links=tuple(
            Link(x["from"], x["to"], float(x["bandwidth_bytes_per_s"]), float(x["latency_s"]))
            for x in record.get("links", ())
        ),
        bound_method=record.get("bound_method", ""),
    )


def _transfer(record: Record) -> Transfer:
    return Transfer(
        tuple(record["tensors"]), record["from"], float(record["start_s"]), float(record["end_s"])
    )


def _number_or_none(record: Record, name: str) -> float | None:
    return float(record[name]) if name in record else None


def _plan_devices(stream: Stream, plan: Record) -> tuple[DeviceClass, ...]:
    """The devices offered; those in clusters need the bandwidth of both links."""
    for i, record in enumerate(plan["devices"]):
        for name in ("bandwidth_bytes_per_s", "inner_bandwidth_bytes_per_s"):
            if record.get("cluster_size", 0) and name not in record:
                field = f"devices[{i}].{name}"
                raise stream.fault_at("plan", 0, field, "is missing, but there is a cluster_size")
    return tuple(device_of(d) for d in plan["devices"])


def _check_stages(stream: Stream, plan: Record, units: Clustering, ptr: Ints, idx: Ints) -> None:
    """Refuse stages that cut a group in two, or on devices that the plan does not have.

    `ptr`, `idx` are the node positions of the stages (CSR).
    """
    stage = np.empty(len(idx), dtype=np.int64)
    stage[idx] = np.repeat(np.arange(len(ptr) - 1), np.diff(ptr))
    first = stage[units.member_idx[units.member_ptr[:-1]]]
    cut = np.flatnonzero(first[units.label] != stage)
    if len(cut):
        group = int(units.group_ids[units.label[cut[0]]])
        where = int(stage[cut[0]])
        raise stream.fault_at("stage", where, "nodes", f"holds a part of group {group} only")
    offered = {d["class"]: d.get("count", 0) for d in plan["devices"]}
    most = plan.get("max_replicas", 1)
    for i, record in enumerate(stream.get("stage")):
        name, replicas = record["class"], record.get("replicas", 1)
        if name not in offered:
            reason = f"{shown(name)} is not among the plan's devices"
            raise stream.fault_at("stage", i, "class", reason)
        if replicas > most:
            reason = f"{replicas} replicas; the plan allows {most}"
            raise stream.fault_at("stage", i, "replicas", reason)
        number = _device_number(record["device"], name)
        if number is None or number + replicas > offered[name]:
            reason = f"there is no device {shown(record['device'])}"
            if number is not None and replicas > 1:
                last = shown(f"{name}/{number + replicas - 1}")
                reason = f"there is no device {last} for the last replica"
            reason += f"; class {shown(name)} has {offered[name]}"
            raise stream.fault_at("stage", i, "device", reason)


def _device_number(device: str, name: str) -> int | None:
    """The i of `class/i`; None if `device` is not of this form."""
    match = re.fullmatch(r"(0|[1-9][0-9]{0,17})", device.removeprefix(f"{name}/"))
    return int(match[0]) if match and device == f"{name}/{match[0]}" else None


_LATENCY = ("execution", "invocations", "transfers", "congestion")
"""Options of a plan that only latency has."""


def plan_records(plan: Plan) -> tuple[Record, list[Record]]:
    """The plan record and its stage records."""
    record: Record = {
        "type": "plan",
        "id": 0,
        "k": plan.k,
        "method": plan.method,
        "objective": plan.objective,
        "validity": plan.validity,
        "value": plan.value,
        "bound": plan.bound,
        "gap": plan.gap,
        "status": plan.status,
        "comm": plan.options.comm,
        "memory_model": plan.options.memory_model,
        "memory_mode": plan.options.memory_mode,
        "charge_io": plan.options.charge_io,
        "devices": [device_record(d) for d in plan.devices],
        "digest": plan.digest,
    }
    if plan.options.max_replicas > 1:
        record["max_replicas"] = plan.options.max_replicas
    if plan.objective == "latency":
        record |= {name: getattr(plan.options, name) for name in _LATENCY}
    if plan.links:
        record["links"] = [
            {
                "from": x.source,
                "to": x.target,
                "bandwidth_bytes_per_s": x.bandwidth_bytes_per_s,
                "latency_s": x.latency_s,
            }
            for x in plan.links
        ]
    if plan.bound_method:
        record["bound_method"] = plan.bound_method
    stages: list[Record] = [
        {
            "type": "stage",
            "id": i,
            "device": s.device,
            "class": s.device_class,
            "nodes": list(s.nodes),
            "load_s": s.load_s,
            "in_s": s.in_s,
            "compute_s": s.compute_s,
            "overflow_s": s.overflow_s,
            "out_s": s.out_s,
            "memory_bytes": s.memory_bytes,
        }
        for i, s in enumerate(plan.stages)
    ]
    for entry, stage in zip(stages, plan.stages, strict=True):
        if stage.replicas > 1:
            entry |= {"replicas": stage.replicas, "sync_s": stage.sync_s}
        if stage.forward_s is not None and stage.backward_s is not None:
            entry |= {"forward_s": stage.forward_s, "backward_s": stage.backward_s}
        if stage.peak_bytes is not None:
            entry["peak_bytes"] = stage.peak_bytes
        if stage.peak_bound_bytes is not None:
            entry["peak_bound_bytes"] = stage.peak_bound_bytes
        if stage.begin_s is not None and stage.end_s is not None:
            entry |= {"begin_s": stage.begin_s, "end_s": stage.end_s}
        if stage.starts_s is not None:
            entry["starts_s"] = list(stage.starts_s)
        if stage.receives is not None:
            entry["receives"] = [
                {
                    "tensors": list(x.tensors),
                    "from": x.source,
                    "start_s": x.start_s,
                    "end_s": x.end_s,
                }
                for x in stage.receives
            ]
    return record, stages


def plan_digest(record: Record, stages: list[Record]) -> str:
    """Digest of a plan and its stages; what schedules and runs refer to."""
    hasher = hashlib.sha256(f"{record['digest']};{record['k']};".encode())
    for stage in sorted(stages, key=lambda r: r["id"]):
        replicas = f"x{stage['replicas']}" if stage.get("replicas", 1) > 1 else ""
        hasher.update(f"{stage['device']}{replicas}:{stage['nodes']};".encode())
    return hasher.hexdigest()
