"""Reader of the JSON inputs published with Piper (NeurIPS 2021): layers by tensor-parallel degree.

A document has `maxDevices` devices of `maxMemoryPerDevice` bytes with links of `bandwidth` bytes
per second, batches of `mbsInBatch` micro-batches, `nodes` and `edges`. A node has, for each degree,
one or two ways to run: as it is, and with its forward pass run again. Times are kept as they are,
in seconds if the bandwidth is to mean anything. What crosses an edge does so in both passes, so
that a tensor has twice the bytes that its edge states.
"""

from __future__ import annotations

import hashlib

from dnnp.core.model.errors import FormatError
from dnnp.formats.acyclic import find_cycle
from dnnp.formats.fields import MAX_NUMBER, shown
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

DEVICE = "device"
"""The device class."""
BOTH_PASSES = 2
MOST_DEVICES = 10_000
"""Devices of a node, as Piper's program has it."""


def read_piper(data: bytes, path: str, name: str | None = None) -> Stream:
    """Read an input of Piper; the parameters are those of `read_workload`.

    Raises
    ------
    FormatError
        Not such a document; the message names the field, as in `nodes[3].TMPCs.2[0].id`.
    """
    file = "<stdin>" if path == "-" else path
    document = Fields(parse_json(data, file), "", file)
    device = device_record(
        DEVICE,
        count=document.count("maxDevices"),
        memory_bytes=document.number("maxMemoryPerDevice"),
        bandwidth_bytes_per_s=document.number("bandwidth"),
    )
    for field in ("maxDevices", "maxMemoryPerDevice", "bandwidth", "mbsInBatch"):
        if not document.number(field):
            raise document.fault(field, "is not above 0")
    rows = document.objects("nodes")
    if not rows:
        raise FormatError("there are no nodes", file, None, "nodes")
    places = places_of(rows)
    edges = _edges(document, places)
    cycle = find_cycle([ends for ends, _ in edges], len(rows))
    if cycle:
        path = " -> ".join(str([*places][i]) for i in cycle[:8])
        raise FormatError(f"the graph has a cycle: {path}", file, None, "edges")
    nodes = [_node(row) for row in rows]
    tensors = _tensors(rows, nodes, edges, Room(file, len(data)))
    header = new_header("piper", path, hashlib.sha256(data).hexdigest(), name, "s")
    header["micro_batches"] = document.count("mbsInBatch")
    return Stream(header, {"device": [device], "tensor": tensors, "node": nodes}, name=file)


def _edges(document: Fields, places: dict[int, int]) -> list[tuple[tuple[int, int], float]]:
    """Ends of every edge, as positions, and its bytes."""
    found: dict[tuple[int, int], float] = {}
    for fields in document.objects("edges"):
        ends = ends_of(fields, places)
        if ends in found:
            raise fields.fault("destId", "there is such an edge already")
        found[ends] = fields.number("communicationCost")
    return list(found.items())


def _ways(row: Fields) -> dict[int, list[Fields]]:
    """Degree -> one or two ways to run a node."""
    by_degree = row.fields("TMPCs")
    ways: dict[int, list[Fields]] = {}
    for text in by_degree.names():
        if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= MOST_DEVICES):
            reason = f"{shown(text)} is not a number of devices from 1 to {MOST_DEVICES}"
            raise by_degree.fault(text, reason)
        found = by_degree.objects(text)
        if len(found) not in (1, 2):
            reason = f"{len(found)} ways to run a node; one, and one with recomputation, are read"
            raise by_degree.fault(text, reason)
        ways[int(text)] = found
    if not ways:
        raise row.fault("TMPCs", "is empty")
    return ways


def _node(row: Fields) -> Record:
    shards = []
    for degree, (plain, *again) in sorted(_ways(row).items()):
        shard: Record = {
            "devices": degree,
            **_costs(plain),
            "weight_bytes": plain.number("parameterSize"),
        }
        if again:
            if again[0].number("parameterSize") != plain.number("parameterSize"):
                raise again[0].fault("parameterSize", "differs from that without recomputation")
            shard["recomputed"] = _costs(again[0])
        shards.append(shard)
    return node_record(
        row.get("id"),
        row.text("name", f"node{row.get('id')}"),
        time_s=shards[0]["time_s"] if shards[0]["devices"] == 1 else {},
        memory_bytes=shards[0]["memory_bytes"],
        held_bytes=shards[0]["held_bytes"],
        shards=shards,
    )


def _costs(way: Fields) -> Record:
    held = way.number("memoryUsageA")
    return {
        "time_s": {DEVICE: way.number("timePerSample")},
        "memory_bytes": min(held + way.number("memoryUsageB"), MAX_NUMBER),
        "held_bytes": held,
    }


def _tensors(
    rows: list[Fields], nodes: list[Record], edges: list[tuple[tuple[int, int], float]], room: Room
) -> list[Record]:
    """One tensor an edge; fills in the nodes' ends."""
    ways = [_ways(row) for row in rows]
    tensors: list[Record] = []
    for number, ((source, target), size) in enumerate(edges):
        nodes[source]["outputs"].append(number)
        nodes[target]["inputs"].append(number)
        room.take(len(nodes[source]["name"]) + len(nodes[target]["name"]), field="edges")
        name = f"{nodes[source]['name']} to {nodes[target]['name']}"
        tensor = tensor_record(number, name, min(BOTH_PASSES * size, MAX_NUMBER))
        leaving = _moved(ways[source], "syncTimeBw", str(nodes[target]["id"]))
        entering = _moved(ways[target], "syncTimeFw", str(nodes[source]["id"]))
        shards = [
            {"devices": t, "in_bytes": entering.get(t, 0.0), "out_bytes": leaving.get(t, 0.0)}
            for t in sorted({*leaving, *entering})
        ]
        if shards:
            tensor["shards"] = shards
        tensors.append(tensor)
    return tensors


def _moved(ways: dict[int, list[Fields]], name: str, other: str) -> dict[int, float]:
    """Degree -> bytes that are moved besides over the edge to or from another node, if any are."""
    found: dict[int, float] = {}
    for degree, (plain, *again) in ways.items():
        sizes = [way.fields(name).number(other) for way in (plain, *again)]
        if len({*sizes}) > 1:
            raise again[0].fault(f"{name}.{other}", "differs from that without recomputation")
        if sizes[0]:
            found[degree] = min(BOTH_PASSES * sizes[0], MAX_NUMBER)
    return found
