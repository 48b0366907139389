"""Costs that other programs found: a table, or the profile of ONNX Runtime or of trtexec."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dnnp.core.model.errors import FormatError
from dnnp.formats.checked_json import parse_json
from dnnp.formats.given_cost import CostFile
from dnnp.formats.kinds import what_it_is


def read_costs(data: bytes, path: str) -> CostFile:
    """Read a file of costs; what it is is seen by its content.

    Raises
    ------
    FormatError
        It is none of them, or malformed; the message names the line or the entry, and the field.
    """
    if data.lstrip()[:1] not in (b"[", b"{"):
        from dnnp.formats.costs_csv import read_table

        return CostFile(path, "csv", read_table(data, path), whole=False)
    document = _document(data, path)
    rows = document if isinstance(document, list) else []
    if _is_trtexec(rows):
        from dnnp.formats.costs_tensorrt import read_layers

        return CostFile(path, "tensorrt", read_layers(rows, path), whole=True)
    if isinstance(document, dict) and "Layers" in document:
        from dnnp.formats.costs_tensorrt import read_made_of

        made_of = read_made_of(document, path)
        return CostFile(path, "tensorrt", (), whole=False, made_of=made_of)
    if any(isinstance(row, dict) and "cat" in row for row in rows):
        from dnnp.formats.costs_onnxruntime import read_events

        costs, caveat = read_events(rows, path)
        return CostFile(path, "onnxruntime", costs, whole=True, caveat=caveat)
    raise FormatError(
        "no file of costs: neither a profile of ONNX Runtime nor layers of trtexec "
        f"--exportProfile, nor a table with the columns name, class, seconds{what_it_is(data)}",
        path,
    )


def told_apart(files: Sequence[CostFile]) -> list[CostFile]:
    """The files that have costs, with what the others say that these join.

    Raises
    ------
    FormatError
        A file says what layers join, but no file of its kind has their times.
    """
    found = []
    for file in files:
        others = [other for other in files if other.made_of and other.kind == file.kind]
        made_of = {name: parts for other in others for name, parts in other.made_of.items()}
        costs = [
            replace(cost, parts=made_of[cost.name], span=None) if cost.name in made_of else cost
            for cost in file.costs
        ]
        if not file.made_of:
            found.append(replace(file, costs=tuple(costs)))
        elif not any(other.costs for other in files if other.kind == file.kind):
            reason = "says what layers are made of, not what they take: give the file of "
            raise FormatError(f"{reason}trtexec --exportProfile as well", file.path)
    return found


def _document(data: bytes, path: str) -> Any:
    """The JSON document; a profile of ONNX Runtime that was cut off lacks its last bracket.

    TensorRT writes what separates nodes as it is, which JSON does not allow.
    """
    if b'"Layers"' in data:
        data = data.replace(b"\x1e", b"\\u001e").replace(b"\x1f", b"\\u001f")
    try:
        return parse_json(data, path)
    except FormatError as error:
        whole, comma, _ = data.rstrip().rpartition(b",\n")
        if not comma or b'"cat"' not in data[:200]:
            raise error from None
        try:
            return json.loads(whole + b"]")
        except (ValueError, RecursionError):
            raise error from None


def _is_trtexec(rows: Sequence[Any]) -> bool:
    """Whether these are what trtexec writes: the number of runs, then layers."""
    layers = [row for row in rows if isinstance(row, dict) and "name" in row]
    times = ("timeMs", "averageMs", "medianMs")
    return any(name in row for row in layers for name in times) and not any(
        "cat" in row for row in layers
    )
