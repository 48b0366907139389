"""Reader of the JSON workloads published with Tarnawski et al. 2020 (device placement).

A document has `maxFPGAs` accelerators of `maxSizePerFPGA` bytes each, `maxCPUs` processors,
`nodes` and `edges`. Times have no stated unit and are kept as they are. `cost` of an edge is
the time to move the output of its source once, to whichever accelerators need it; where the
edges of a node differ in it, each edge becomes a tensor of its own, which is what dividing
each edge by an artificial node means (Appendix B).
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from dnnp.core.model.errors import FormatError
from dnnp.formats.acyclic import find_cycle
from dnnp.formats.checked_json import Fields, parse_json
from dnnp.formats.fields import shown
from dnnp.formats.header import new_header
from dnnp.formats.stream import Record, Stream

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
    devices: list[Record] = [
        {
            "type": "device",
            "class": ACCELERATOR,
            "kind": "accelerator",
            "count": document.count("maxFPGAs"),
            "memory_bytes": document.number("maxSizePerFPGA"),
        },
        {
            "type": "device",
            "class": PROCESSOR,
            "kind": "cpu",
            "count": document.count("maxCPUs"),
        },
    ]
    nodes = _nodes(document, file)
    edges = _edges(document, {node["id"]: i for i, node in enumerate(nodes)}, file)
    cycle = find_cycle([(edge.source, edge.target) for edge in edges], len(nodes))
    if cycle:
        shown_nodes = " -> ".join(f"{nodes[i]['id']} '{nodes[i]['name']}'" for i in cycle[:8])
        raise FormatError(f"the graph has a cycle: {shown_nodes}", file, None, "edges")
    tensors = _tensors(nodes, edges)
    digest = hashlib.sha256(data).hexdigest()
    header = new_header("msr-json", path, digest, name, "unknown")
    if any("backward" in node for node in nodes):
        header["training"] = True
    records = {"device": devices, "tensor": tensors, "node": nodes}
    return Stream(header=header, records=records, name=file)


def _nodes(document: Fields, file: str) -> list[Record]:
    records: list[Record] = []
    places: dict[int, str] = {}
    for fields in document.objects("nodes"):
        number = fields.identity("id")
        if number in places:
            raise fields.fault("id", f"{number} is already the id of {places[number]}")
        places[number] = fields.place("id").removesuffix(".id")
        times = {PROCESSOR: fields.number("cpuLatency")}
        if fields.flag("supportedOnFpga"):
            times = {ACCELERATOR: fields.number("fpgaLatency"), **times}
        elif "fpgaLatency" in fields:
            fields.number("fpgaLatency")
        record: Record = {
            "type": "node",
            "id": number,
            "name": fields.text("name", f"node{number}"),
            "op": "",
            "inputs": [],
            "outputs": [],
            "time_s": times,
            "memory_bytes": fields.number("size"),
        }
        if fields.flag("isBackwardNode", False):
            record["backward"] = True
        if "colorClass" in fields:
            record["color"] = fields.identity("colorClass")
        if "layerId" in fields:
            layer = fields.get("layerId")
            if isinstance(layer, bool) or not isinstance(layer, int | float | str):
                raise fields.fault("layerId", f"{shown(layer)} is not a number or a string")
            is_text = isinstance(layer, str)
            record["layer"] = fields.text("layerId") if is_text else str(layer)
        records.append(record)
    if not records:
        raise FormatError("there are no nodes", file, None, "nodes")
    return records


def _edges(document: Fields, positions: dict[int, int], file: str) -> list[_Edge]:
    edges: list[_Edge] = []
    for fields in document.objects("edges"):
        ends = []
        for field in ("sourceId", "destId"):
            number = fields.identity(field)
            if number not in positions:
                raise fields.fault(field, f"there is no node {number}")
            ends.append(positions[number])
        tail, head = ends
        if tail == head:
            raise fields.fault("destId", "an edge from a node to itself")
        edges.append(_Edge(tail, head, fields.number("cost"), fields.number("size", 0)))
    return edges


def _tensors(nodes: list[Record], edges: list[_Edge]) -> list[Record]:
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
            tensors.append(
                {
                    "type": "tensor",
                    "id": number,
                    "name": node["name"] + suffix,
                    "kind": "activation",
                    "size_bytes": max(edge.size for edge in part),
                    "transfer_s": part[0].cost,
                }
            )
    return tensors
