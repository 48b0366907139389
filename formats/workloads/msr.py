"""Reader of the JSON workloads published with Tarnawski et al. 2020 (device placement).

A document has `maxFPGAs` accelerators of `maxSizePerFPGA` bytes each, `maxCPUs` processors,
`nodes` and `edges`. Times have no stated unit and are kept as they are. `cost` of an edge is
the time to move the output of its source once, to whichever accelerators need it; where the
edges of a node differ in it, each edge becomes a tensor of its own, which is what dividing
each edge by an artificial node means (Appendix B).

Splits as JSON: the format of the 2020 device-placement paper, and plainer ones. The paper's format
is an object with the lists `fpgas` and `cpus`; each entry is a device with `nodes` (node ids) and
`load`. Two members are ours: `replicas`, where a stage has more than one, and `device` (`v100/2`),
where it matters which device it is. Read as well: a list of lists of node ids, and an object with
`stages`, each with `nodes` and perhaps those two.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import orjson

from dnnp.core.model.errors import FormatError
from dnnp.core.model.plan import Plan
from dnnp.formats.acyclic import find_cycle
from dnnp.formats.fields import MAX_ID, shown
from dnnp.formats.header import new_header
from dnnp.formats.inputs.checked_json import Fields, parse_json
from dnnp.formats.limits import Room
from dnnp.formats.stream import Record, Stream
from dnnp.formats.workloads.records import (
    device_record,
    ends_of,
    node_record,
    places_of,
    tensor_record,
)

ACCELERATOR, PROCESSOR = "fpga", "cpu"
"""Device classes."""


class _Edge(NamedTuple):
    source: int
    """Position of a node."""
    target: int
    cost: float
    size: float


def read_workload(data: bytes, path: str, name: str | None = None) -> Stream:
    """Read a workload.

    Parameters
    ----------
    data, path
        Contents of the file, and its name (`-` for standard input).
    name
        Model name for the header; the file's name without it.

    Raises
    ------
    FormatError
        Not such a document; the message names the field, as in `nodes[3].fpgaLatency`.
    """
    file = "<stdin>" if path == "-" else path
    document = Fields(parse_json(data, file), "", file)
    count, memory = document.count("maxFPGAs"), document.number("maxSizePerFPGA")
    devices = [
        device_record(ACCELERATOR, count=count, memory_bytes=memory),
        device_record(PROCESSOR, "cpu", count=document.count("maxCPUs")),
    ]
    rows = document.objects("nodes")
    places = places_of(rows)
    nodes = [_node(fields, number) for fields, number in zip(rows, places, strict=True)]
    if not nodes:
        raise FormatError("there are no nodes", file, None, "nodes")
    edges = [
        _Edge(*ends_of(fields, places), fields.number("cost"), fields.number("size", 0))
        for fields in document.objects("edges")
    ]
    cycle = find_cycle([(edge.source, edge.target) for edge in edges], len(nodes))
    if cycle:
        shown_nodes = " -> ".join(f"{nodes[i]['id']} '{nodes[i]['name']}'" for i in cycle[:8])
        raise FormatError(f"the graph has a cycle: {shown_nodes}", file, None, "edges")
    tensors = _tensors(nodes, edges, Room(file, len(data)))
    digest = hashlib.sha256(data).hexdigest()
    header = new_header("msr-json", path, digest, name, "unknown")
    if any("backward" in node for node in nodes):
        header["training"] = True
    return Stream(header, {"device": devices, "tensor": tensors, "node": nodes}, name=file)


def _node(fields: Fields, number: int) -> Record:
    times = {PROCESSOR: fields.number("cpuLatency")}
    if fields.flag("supportedOnFpga"):
        times = {ACCELERATOR: fields.number("fpgaLatency"), **times}
    elif "fpgaLatency" in fields:
        fields.number("fpgaLatency")
    name, size = fields.text("name", f"node{number}"), fields.number("size")
    record = node_record(number, name, time_s=times, memory_bytes=size)
    if fields.flag("isBackwardNode", False):
        record["backward"] = True
    if "colorClass" in fields:
        record["color"] = fields.identity("colorClass")
    if "layerId" in fields:
        layer = fields.get("layerId")
        if isinstance(layer, bool) or not isinstance(layer, int | float | str):
            raise fields.fault("layerId", f"{shown(layer)} is not a number or a string")
        record["layer"] = fields.text("layerId") if isinstance(layer, str) else str(layer)
    return record


def _tensors(nodes: list[Record], edges: list[_Edge], room: Room) -> list[Record]:
    """One tensor a producer, or one an edge where costs differ; fills in the nodes' ends."""
    leaving: dict[int, list[_Edge]] = {}
    for edge in edges:
        leaving.setdefault(edge.source, []).append(edge)
    tensors: list[Record] = []
    for source, node in enumerate(nodes):
        mine = leaving.get(source, [])
        uniform = len({edge.cost for edge in mine}) == 1
        parts: dict[tuple[int, float], list[_Edge]] = {}
        for edge in mine:
            parts.setdefault((-1 if uniform else edge.target, edge.cost), []).append(edge)
        for part in parts.values():
            number = len(tensors)
            node["outputs"].append(number)
            for target in dict.fromkeys(edge.target for edge in part):
                nodes[target]["inputs"].append(number)
            suffix = "" if uniform else f" to {nodes[part[0].target]['name']}"
            room.take(len(node["name"]) + len(suffix), field="edges")
            size, name = max(edge.size for edge in part), node["name"] + suffix
            tensors.append(tensor_record(number, name, size, transfer_s=part[0].cost))
    return tensors


class SplitPart(NamedTuple):
    """The part of a split on one device, or several that share its samples."""

    kind: str
    """`accelerator` or `cpu`."""
    nodes: list[int]
    """Node ids, at least one."""
    replicas: int = 1
    device_class: str = ""
    """Class of the device, where the file names one."""
    number: int = -1
    """Number of the (first) device in its class, where the file has one."""


def split_of(plan: Plan) -> dict[str, Any]:
    """A plan in the paper's format. Stages on one device are one entry; idle devices are left out.

    `load` is the load of the device (or, with `replicas`, of each of them) and `maxLoad` the
    largest of them. Devices are named if there are clusters, or several classes of a kind.
    """
    kinds = {device.name: device.kind for device in plan.devices}
    named = len(set(kinds.values())) < len(kinds) or any(d.cluster_size for d in plan.devices)
    entries: dict[str, dict[str, Any]] = {}
    lists: dict[str, list[dict[str, Any]]] = {"fpgas": [], "cpus": []}
    for stage in plan.stages:
        if stage.device not in entries:
            entries[stage.device] = {"load": 0.0, "nodes": []}
            if named:
                entries[stage.device]["device"] = stage.device
            kind = kinds.get(stage.device_class, "accelerator")
            lists["cpus" if kind == "cpu" else "fpgas"].append(entries[stage.device])
        entries[stage.device]["load"] += stage.load_s
        entries[stage.device]["nodes"] += stage.nodes
        if stage.replicas > 1:
            entries[stage.device]["replicas"] = stage.replicas
    return {**lists, "maxLoad": max((e["load"] for e in entries.values()), default=0.0)}


def write_split(plan: Plan) -> bytes:
    """The text of `split_of`."""
    return orjson.dumps(split_of(plan), option=orjson.OPT_INDENT_2) + b"\n"


def read_split(data: bytes, name: str) -> list[SplitPart]:
    """Read a split; parts without nodes are left out.

    Parameters
    ----------
    data, name
        The text, and the file's name for messages.

    Raises
    ------
    FormatError
        Not JSON, none of the known forms, or a node in two places.
    """
    split: list[SplitPart] = []
    seen: dict[int, str] = {}
    for field, part in _parts(parse_json(data, name), name):
        if not isinstance(part.nodes, list):
            raise FormatError("expected a list of node ids", name, field=field)
        for i, node in enumerate(part.nodes):
            where = f"{field}[{i}]"
            if type(node) is not int or not 0 <= node <= MAX_ID:
                raise FormatError(f"{shown(node)} is not a node id", name, field=where)
            if node in seen:
                raise FormatError(f"node {node} is also in {seen[node]}", name, field=where)
            seen[node] = field
        if part.nodes:
            split.append(part)
    return split


def _parts(content: Any, name: str) -> Iterator[tuple[str, SplitPart]]:
    """Each part, with the path of its nodes, which are not looked at yet."""
    if isinstance(content, list):
        for i, nodes in enumerate(content):
            yield f"[{i}]", SplitPart("accelerator", nodes)
        return
    kinds = {"fpgas": "accelerator", "cpus": "cpu", "stages": "accelerator"}
    found = [key for key in kinds if isinstance(content, dict) and key in content]
    if not found:
        raise FormatError("expected 'fpgas' and 'cpus', 'stages', or a list of lists", name)
    whole = Fields(content, "", name)
    for key in found:
        for entry in whole.objects(key):
            device_class, number = _device(entry)
            kind = "cpu" if key == "stages" and device_class == "cpu" else kinds[key]
            nodes, replicas = entry.get("nodes"), entry.count("replicas", 1, least=1)
            yield entry.place("nodes"), SplitPart(kind, nodes, replicas, device_class, number)


def _device(entry: Fields) -> tuple[str, int]:
    """Class and number of a device: `v100/2`, or `v100`, whose number is -1."""
    device = entry.text("device", "")
    device_class, slash, digits = device.rpartition("/")
    if not (slash and digits.isascii() and digits.isdigit()):
        return device, -1
    if len(digits) > len(str(MAX_ID)) or int(digits) > MAX_ID:
        raise entry.fault("device", f"{shown(device)} is not a device")
    return device_class, int(digits)
