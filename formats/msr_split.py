"""Splits as JSON: the format of the 2020 device-placement paper, and plainer ones.

The paper's format is an object with the lists `fpgas` and `cpus`; each entry is a device with
`nodes` (node ids) and `load`. A stage with replicas is one entry, with a member `replicas` that
the paper's format does not have. Read as well: a list of lists of node ids, and an object with
`stages`, each with `nodes` and perhaps `device` (`cpu` or `cpu/0` for a CPU).
"""

from __future__ import annotations

import json
from typing import Any

import orjson

from dnnp.core.model.errors import FormatError
from dnnp.core.model.plan import Plan
from dnnp.formats.fields import MAX_ID, shown

Split = list[tuple[str, list[int]]]
"""`accelerator` or `cpu`, and the ids of its nodes, for each device that has any."""


def split_of(plan: Plan) -> dict[str, Any]:
    """A plan in the paper's format. Stages on one device are one entry; idle devices are left out.

    `load` is the load of the device (or, with `replicas`, of each of them) and `maxLoad` the
    largest of them.
    """
    kinds = {device.name: device.kind for device in plan.devices}
    entries: dict[str, dict[str, Any]] = {}
    lists: dict[str, list[dict[str, Any]]] = {"fpgas": [], "cpus": []}
    for stage in plan.stages:
        if stage.device not in entries:
            entries[stage.device] = {"load": 0.0, "nodes": []}
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


def read_split(data: bytes, name: str) -> Split:
    """Read a split.

    Parameters
    ----------
    data, name
        The text, and the file's name for messages.

    Raises
    ------
    FormatError
        Not JSON, none of the known forms, or a node in two places.
    """
    try:
        content = orjson.loads(data.removeprefix(b"\xef\xbb\xbf"))
    except json.JSONDecodeError as error:
        raise FormatError(f"not JSON: {error.msg}", name, error.lineno) from None
    split: Split = []
    seen: dict[int, str] = {}
    for kind, field, nodes in _devices(content, name):
        if not isinstance(nodes, list):
            raise FormatError("expected a list of node ids", name, field=field)
        for i, node in enumerate(nodes):
            where = f"{field}[{i}]"
            if type(node) is not int or not 0 <= node <= MAX_ID:
                raise FormatError(f"{shown(node)} is not a node id", name, field=where)
            if node in seen:
                raise FormatError(f"node {node} is also in {seen[node]}", name, field=where)
            seen[node] = field
        if nodes:
            split.append((kind, nodes))
    return split


def _devices(content: Any, name: str) -> list[tuple[str, str, Any]]:
    """Kind, field path and value of each device's list of nodes."""
    if isinstance(content, list):
        return [("accelerator", f"[{i}]", nodes) for i, nodes in enumerate(content)]
    kinds = {"fpgas": "accelerator", "cpus": "cpu", "stages": "accelerator"}
    found = [key for key in kinds if isinstance(content, dict) and key in content]
    if not found:
        raise FormatError("expected 'fpgas' and 'cpus', 'stages', or a list of lists", name)
    devices = []
    for key in found:
        if not isinstance(content[key], list):
            raise FormatError("expected a list", name, field=key)
        for i, entry in enumerate(content[key]):
            field = f"{key}[{i}]"
            if not isinstance(entry, dict) or "nodes" not in entry:
                raise FormatError("expected an object with 'nodes'", name, field=field)
            device = entry.get("device", "") if key == "stages" else ""
            if not isinstance(device, str):
                raise FormatError("expected a string", name, field=f"{field}.device")
            kind = "cpu" if device.split("/")[0] == "cpu" else kinds[key]
            devices.append((kind, f"{field}.nodes", entry["nodes"]))
    return devices
