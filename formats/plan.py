"""From records to plans and the devices that they are for, and back."""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import asdict
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from dnnp.core.model.device import DeviceClass, Level, Link, unnested
from dnnp.core.model.errors import FormatError
from dnnp.core.model.graph import Clustering, Graph, Ints
from dnnp.core.model.plan import CostOptions, Plan, PolicyUsed, Stage, Transfer, Tried, Way
from dnnp.formats.fields import MAX_NUMBER, shown
from dnnp.formats.graph import digest_of, rows_of, units_of
from dnnp.formats.stream import Record, Stream

if TYPE_CHECKING:
    from dnnp.core.model.parallel import HybridOptions


def device_of(record: Record) -> DeviceClass:
    """A device class from its record; without a count there are none yet.

    Raises
    ------
    FormatError
        Clusters without the bandwidth of the links inside them, or that do not hold one another.
    """
    if record.get("cluster_size", 0) and "inner_bandwidth_bytes_per_s" not in record:
        raise FormatError(
            f"device class {shown(record['class'])} has a cluster_size but no "
            "inner_bandwidth_bytes_per_s"
        )
    larger = tuple(
        Level(r["cluster_size"], float(r["bandwidth_bytes_per_s"]))
        for r in record.get("larger_clusters", ())
    )
    reason = unnested([record.get("cluster_size", 0), *(level.size for level in larger)])
    if reason:
        raise FormatError(f"device class {shown(record['class'])}: {reason}")
    return DeviceClass(
        name=record["class"],
        kind=record["kind"],
        count=record.get("count", 0),
        memory_bytes=float(record.get("memory_bytes", math.inf)),
        bandwidth_bytes_per_s=float(record.get("bandwidth_bytes_per_s", math.inf)),
        cluster_size=record.get("cluster_size", 0),
        inner_bandwidth_bytes_per_s=float(record.get("inner_bandwidth_bytes_per_s", math.inf)),
        larger_clusters=larger,
        fast_memory_bytes=number_or_none(record, "fast_memory_bytes"),
        overhead_bytes=float(record.get("overhead_bytes", 0.0)),
    )


def device_record(device: DeviceClass) -> Record:
    """The record of a device class; infinite values are left out."""
    record: Record = {"class": device.name, "kind": device.kind, "count": device.count}
    if math.isfinite(device.memory_bytes):
        record["memory_bytes"] = device.memory_bytes
    if device.overhead_bytes:
        record["overhead_bytes"] = device.overhead_bytes
    if device.fast_memory_bytes is not None:
        record["fast_memory_bytes"] = device.fast_memory_bytes
    if math.isfinite(device.bandwidth_bytes_per_s):
        record["bandwidth_bytes_per_s"] = device.bandwidth_bytes_per_s
    if device.cluster_size:
        record["cluster_size"] = device.cluster_size
        record["inner_bandwidth_bytes_per_s"] = min(device.inner_bandwidth_bytes_per_s, MAX_NUMBER)
    if device.larger_clusters:
        record["larger_clusters"] = [
            {"cluster_size": size, "bandwidth_bytes_per_s": min(bandwidth, MAX_NUMBER)}
            for size, bandwidth in device.larger_clusters
        ]
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
        ptr, idx = rows_of(stream, "stage", "nodes", graph.node_ids, "node")
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
                **_stated(r),
                starts_s=tuple(map(float, r["starts_s"])) if "starts_s" in r else None,
                receives=tuple(map(_transfer, r["receives"])) if "receives" in r else None,
                recomputed=tuple(r.get("recomputed", ())),
            )
            for r in sorted(stages, key=lambda r: r["id"])
        ),
        k=record["k"],
        method=record["method"],
        validity=record["validity"],
        value=float(record["value"]),
        bound=float(record["bound"]),
        status=record["status"],
        options=CostOptions(**_known(CostOptions, record)),
        devices=_plan_devices(stream, record),
        digest=record["digest"],
        links=tuple(
            Link(x["from"], x["to"], float(x["bandwidth_bytes_per_s"]), float(x["latency_s"]))
            for x in record.get("links", ())
        ),
        bound_method=record.get("bound_method", ""),
        contiguous_bound=float(record.get("contiguous_bound", 0.0)),
        ways=tuple(map(_way, record.get("ways", ()))),
        tried=tuple(Tried(**_known(Tried, row)) for row in record.get("tried", ())),
        planned_by=record.get("planned_by", ""),
        learned=PolicyUsed(**_known(PolicyUsed, record["policy"])) if "policy" in record else None,
        excess_bytes=float(record.get("excess_bytes", 0.0)),
        max_gap=float(record.get("max_gap", 0.0)),
        hybrid=_hybrid(record["parallel"]) if "parallel" in record else None,
    )


def _stated(record: Record) -> Record:
    """What a stage record states as a stage does."""
    numbers = {name: float(record[name]) for name in _NUMBERS if name in record}
    return numbers | {name: record[name] for name in _OTHERS if name in record}


def _hybrid(record: Record) -> HybridOptions:
    """Options of a parallel plan; fields that are not known say nothing."""
    from dnnp.core.model.parallel import HybridOptions

    return HybridOptions(**_known(HybridOptions, record))


def _known(kind: type, record: Record) -> Record:
    """The fields of a record that a class has, too."""
    return {name: record[name] for name in kind.__annotations__ if name in record}


def _way(record: Record) -> Way:
    return Way(
        record["way"],
        number_or_none(record, "value"),
        record.get("stages", 0),
        record.get("devices", 0),
        record.get("class", ""),
        record.get("reason", ""),
    )


def _transfer(record: Record) -> Transfer:
    return Transfer(
        tuple(record["tensors"]), record["from"], float(record["start_s"]), float(record["end_s"])
    )


def number_or_none(record: Record, name: str) -> float | None:
    """A number of a record; None: it is not there."""
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
    most, widest = plan.get("max_replicas", 1), 1
    if "parallel" in plan:
        most, widest = (plan["parallel"][f"{x}_parallel"] for x in ("data", "tensor"))
    for i, record in enumerate(stream.get("stage")):
        name, replicas = record["class"], record.get("replicas", 1)
        shards = record.get("shards", 1)
        if name not in offered:
            reason = f"{shown(name)} is not among the plan's devices"
            raise stream.fault_at("stage", i, "class", reason)
        if replicas > most:
            reason = f"{replicas} replicas; the plan allows {most}"
            raise stream.fault_at("stage", i, "replicas", reason)
        if record.get("shared"):
            _check_shared(stream, i, record, offered[name])
        elif shards > widest:
            reason = f"{shards} shards; the plan allows {widest}"
            raise stream.fault_at("stage", i, "shards", reason)
        number = _device_number(record["device"], name)
        if number is None or number + replicas * shards > offered[name]:
            reason = f"there is no device {shown(record['device'])}"
            if number is not None and replicas * shards > 1:
                last = shown(f"{name}/{number + replicas * shards - 1}")
                reason = f"there is no device {last} for the last {_PART[shards > 1]}"
            reason += f"; class {shown(name)} has {offered[name]}"
            raise stream.fault_at("stage", i, "device", reason)


def _check_shared(stream: Stream, i: int, record: Record, count: int) -> None:
    """Refuse a shared stage that is not on all devices of its class."""
    if "parallel" not in stream.get("plan")[0]:
        raise stream.fault_at("stage", i, "shared", "only stages of parallel plans are shared")
    if record.get("replicas", 1) != 1:
        raise stream.fault_at("stage", i, "replicas", "a shared stage has one replica")
    if record.get("shards", 1) != count:
        reason = f"a shared stage has all devices of its class, which are {count}"
        raise stream.fault_at("stage", i, "shards", reason)


def _device_number(device: str, name: str) -> int | None:
    """The i of `class/i`; None if `device` is not of this form."""
    match = re.fullmatch(r"(0|[1-9][0-9]{0,17})", device.removeprefix(f"{name}/"))
    return int(match[0]) if match and device == f"{name}/{match[0]}" else None


_PART = ("replica", "shard")

_OPTIONS = ("comm", "memory_model", "memory_mode", "charge_io")
"""Options of every plan, besides its objective."""

_LATENCY = ("execution", "invocations", "transfers", "congestion")
"""Options of a plan that only latency has."""

_FOUND = ("k", "method", "objective", "validity", "value", "bound", "gap", "status")

_LOAD = ("load_s", "in_s", "compute_s", "overflow_s", "out_s", "memory_bytes")
"""Numbers of every stage."""

_KNOWN = (("forward_s", "backward_s"), ("peak_bytes",), ("peak_bound_bytes",), ("begin_s", "end_s"))
"""Numbers of some stages; those of a pair are both there or neither is."""

_NUMBERS = (*_LOAD, "sync_s", "collective_s", *chain.from_iterable(_KNOWN))

_OTHERS = ("replicas", "shards", "in_flight", "shared")


def plan_records(plan: Plan) -> tuple[Record, list[Record]]:
    """The plan record and its stage records."""
    record: Record = {
        "type": "plan",
        "id": 0,
        **{name: getattr(plan, name) for name in _FOUND},
        **{name: getattr(plan.options, name) for name in _OPTIONS},
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
    more = {
        "bound_method": plan.bound_method,
        "contiguous_bound": plan.contiguous_bound if plan.contiguous_bound > plan.bound else 0.0,
        "ways": [_way_record(way) for way in plan.ways],
        "tried": [_tried_record(tried) for tried in plan.tried],
        "planned_by": plan.planned_by,
        "policy": plan.learned._asdict() if plan.learned else None,
        "max_gap": plan.max_gap,
        "excess_bytes": plan.excess_bytes,
    }
    record |= {name: value for name, value in more.items() if value}
    if plan.hybrid is not None:
        record["parallel"] = asdict(plan.hybrid)
        if not plan.hybrid.shared_stages:
            del record["parallel"]["shared_stages"]
    stages: list[Record] = [
        {
            "type": "stage",
            "id": i,
            "device": s.device,
            "class": s.device_class,
            "nodes": list(s.nodes),
            **{name: getattr(s, name) for name in _LOAD},
        }
        for i, s in enumerate(plan.stages)
    ]
    for entry, stage in zip(stages, plan.stages, strict=True):
        if stage.replicas > 1:
            entry |= {"replicas": stage.replicas, "sync_s": stage.sync_s}
        if stage.shards > 1:
            entry |= {"shards": stage.shards, "collective_s": stage.collective_s}
        if stage.recomputed:
            entry["recomputed"] = list(stage.recomputed)
        if stage.in_flight is not None:
            entry["in_flight"] = stage.in_flight
        if stage.shared:
            entry["shared"] = True
        for names in _KNOWN:
            values = {name: getattr(stage, name) for name in names}
            entry |= values if None not in values.values() else {}
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


def _way_record(way: Way) -> Record:
    """A way, with what it uses or with the reason why there is nothing to show."""
    if way.value is None:
        return {"way": way.name, "reason": way.reason}
    record = {"way": way.name, "stages": way.stages, "devices": way.devices, "value": way.value}
    return record | ({"class": way.device_class} if way.device_class else {})


def _tried_record(tried: Tried) -> Record:
    """A method that was tried; what says nothing of it is left out."""
    numbers = ("bound", "gap") if tried.value is not None else ()
    known = {name: value for name, value in tried._asdict().items() if value not in (None, "")}
    return {k: v for k, v in known.items() if k not in ("bound", "gap") or k in numbers}


def plan_digest(record: Record, stages: list[Record]) -> str:
    """Digest of a plan and its stages; what schedules and runs refer to."""
    hasher = hashlib.sha256(f"{record['digest']};{record['k']};".encode())
    for stage in sorted(stages, key=lambda r: r["id"]):
        replicas = f"x{stage['replicas']}" if stage.get("replicas", 1) > 1 else ""
        replicas += f"/{stage['shards']}" if stage.get("shards", 1) > 1 else ""
        replicas += "*" if stage.get("shared") else ""
        replicas += f"!{stage['recomputed']}" if stage.get("recomputed") else ""
        hasher.update(f"{stage['device']}{replicas}:{stage['nodes']};".encode())
    return hasher.hexdigest()


def check_runnable(plan: Plan, graph: Graph, remedy: str) -> None:
    """Refuse a plan whose stages cannot each be an ONNX model, run one after the other.

    `remedy` is what to do about stages that wait for each other.

    Raises
    ------
    FormatError
        The plan is for training, or not ordered.
    """
    refuse_training(graph)
    if plan.validity != "ordered":
        raise FormatError(
            f"the plan is {plan.validity}, not ordered: its stages wait for each other; {remedy}"
        )


def refuse_training(graph: Graph) -> None:
    """Raise a FormatError if the graph has a backward pass."""
    if graph.backward.any():
        raise FormatError(
            "the plan is for training: only plans of graphs without a backward pass "
            "are pipelines of ONNX models"
        )
