"""From records to plans and the devices that they are for, and back."""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import replace

import numpy as np

from dnnp.core.model.device import DeviceClass, Level, Link, unnested
from dnnp.core.model.errors import FormatError
from dnnp.core.model.graph import Clustering, Graph, Ints
from dnnp.core.model.phases import Sequences
from dnnp.core.model.placing import Rule
from dnnp.core.model.plan import (
    CostOptions,
    HybridOptions,
    Plan,
    PolicyUsed,
    Stage,
    Transfer,
    Tried,
    Way,
)
from dnnp.formats.fields import MAX_NUMBER, Form, shown
from dnnp.formats.graph import digest_of, rows_of, units_of
from dnnp.formats.records import RECORDS
from dnnp.formats.stream import Record, Stream


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


def offered_of(record: Record) -> DeviceClass:
    """A device class of a plan from its record; FormatError: as of `device_of`, or wrong names."""
    names, of, speed = record.get("names", ()), record.get("of", ""), record.get("speed", 1.0)
    if names and len(names) != record.get("count", 0):
        raise FormatError(f"device class {shown(record['class'])} has {len(names)} names")
    return replace(device_of(record), of=of, speed=float(speed), members=tuple(names))


def device_record(device: DeviceClass) -> Record:
    """The record of a device class; infinite values are left out."""
    record: Record = {"class": device.name, "kind": device.kind, "count": device.count}
    if math.isfinite(device.memory_bytes):
        record["memory_bytes"] = device.memory_bytes
    if device.members:
        own = {"of": device.of, "speed": device.speed} if device.of else {}
        record |= {**own, "names": list(device.members)}
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


def plan_of(
    stream: Stream, graph: Graph, units: Clustering | None = None, *, check_digest: bool = True
) -> Plan | None:
    """Return the plan of a stream, or None if it has none; `units`: if they are known.

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
        units = units or units_of(stream, graph)
        if record["digest"] != digest_of(graph, units):
            raise stream.fault_at(
                "plan", 0, "digest", "the plan was made from another graph, costs or groups"
            )
        _check_stages(stream, record, units, ptr, idx)
    _check_clusters(stream, record)
    return _PLAN.read(
        record,
        stages=tuple(map(_STAGE.read, sorted(stages, key=lambda r: r["id"]))),
        options=_OPTIONS.read(record),
        devices=tuple(map(offered_of, record["devices"])),
    )


def number_or_none(record: Record, name: str) -> float | None:
    """A number of a record; None: it is not there."""
    return float(record[name]) if name in record else None


def _check_clusters(stream: Stream, plan: Record) -> None:
    """Refuse devices in clusters without the bandwidth of both links."""
    for i, record in enumerate(plan["devices"]):
        for name in ("bandwidth_bytes_per_s", "inner_bandwidth_bytes_per_s"):
            if record.get("cluster_size", 0) and name not in record:
                field = f"devices[{i}].{name}"
                raise stream.fault_at("plan", 0, field, "is missing, but there is a cluster_size")


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
    own = {d["class"]: d["names"] for d in plan["devices"] if "names" in d}
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
        if name in own:
            number = next((i for i, x in enumerate(own[name]) if x == record["device"]), None)
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

_FIELDS = RECORDS["plan"]

_TRIED = Form(Tried, _FIELDS["tried"].inner)

_PLAN = Form(
    Plan,
    {name: spec for name, spec in _FIELDS.items() if name != "devices"},
    links=Form(Link, _FIELDS["links"].inner),
    ways=Form(Way, _FIELDS["ways"].inner),
    tried=_TRIED,
    policy=Form(PolicyUsed, _FIELDS["policy"].inner),
    rules=Form(Rule, _FIELDS["rules"].inner),
    parallel=Form(HybridOptions, _FIELDS["parallel"].inner),
)

_OPTIONS = Form(CostOptions, _FIELDS, workload=Form(Sequences, _FIELDS["workload"].inner))

_STAGE = Form(Stage, RECORDS["stage"], receives=Form(Transfer, RECORDS["stage"]["receives"].inner))

_LATENCY = ("execution", "invocations", "transfers", "congestion")
"""Options of a plan that only latency has."""


def plan_records(plan: Plan) -> tuple[Record, list[Record]]:
    """The plan record and its stage records."""
    found = {
        **_PLAN.write(plan),
        **_OPTIONS.write(plan.options, _LATENCY if plan.objective == "latency" else ()),
        "id": 0,
        "devices": [device_record(d) for d in plan.devices],
    }
    if plan.contiguous_bound <= plan.bound:
        found.pop("contiguous_bound", None)
    if plan.tried:
        found["tried"] = [
            _TRIED.write(x, () if x.value is None else ("bound", "gap")) for x in plan.tried
        ]
    record = {"type": "plan", **{name: found[name] for name in _FIELDS if name in found}}
    stages: list[Record] = []
    for i, stage in enumerate(plan.stages):
        always = ("sync_s",) * (stage.replicas > 1) + ("collective_s",) * (stage.shards > 1)
        stages.append({"type": "stage", "id": i, **_STAGE.write(stage, always)})
    return record, stages


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
