"""Records of graphs that other programs, or people, have written down."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dnnp.formats.inputs.checked_json import Fields
from dnnp.formats.stream import Record


def device_record(name: str, kind: str = "accelerator", **more: Any) -> Record:
    """Record of a class of devices; `more`: other fields."""
    return {"type": "device", "class": name, "kind": kind, **more}


def tensor_record(number: int, name: str, size: float, **more: Any) -> Record:
    """Record of a tensor that a node makes; `more`: other fields."""
    made = {"type": "tensor", "id": number, "name": name, "kind": "activation"}
    return {**made, "size_bytes": size, **more}


def node_record(number: int, name: str, op: str = "", **more: Any) -> Record:
    """Record of a node, without tensors unless `more`, the other fields, has some."""
    made = {"type": "node", "id": number, "name": name, "op": op}
    return {**made, "inputs": [], "outputs": [], **more}


def places_of(rows: Sequence[Fields]) -> dict[int, int]:
    """Id of a node -> its position; FormatError: two have one id."""
    places: dict[int, int] = {}
    for i, row in enumerate(rows):
        number = row.identity("id")
        if number in places:
            raise row.fault("id", f"{number} is already the id of nodes[{places[number]}]")
        places[number] = i
    return places


def ends_of(edge: Fields, places: dict[int, int]) -> tuple[int, int]:
    """Positions of both ends of an edge; FormatError: no such node, or one node at both."""
    for field in ("sourceId", "destId"):
        if edge.identity(field) not in places:
            raise edge.fault(field, f"there is no node {edge.get(field)}")
    tail, head = places[edge.get("sourceId")], places[edge.get("destId")]
    if tail == head:
        raise edge.fault("destId", "an edge from a node to itself")
    return tail, head
