"""Every record of the stream, declared once: in records.txt.

From its tables follow what the reader refuses (`formats.stream`), what is written of plans and
schedules, the JSON Schema, the pages of dnnp-graph(5), what Python shows (`dnnp.graph`) and which
fields of results the checks cover. The names of fields say their units: `_s` seconds, `_bytes`,
`_per_s`. `formats.fields.table` says how a line reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dnnp.formats.fields import Field, object_schema, tables

FORMAT, VERSION = "dnnp", 1
WITH_STATE, WITH_RULES = 2, 3
"""Versions of streams with states, and with plans by rules or for devices with limits of their own,
which readers of the ones before would not heed."""
VERSIONS = (VERSION, WITH_STATE, WITH_RULES)

PARTS = tables(Path(__file__).with_suffix(".txt").read_text(encoding="utf-8"))
RECORDS = {name: fields for name, fields in PARTS.items() if name.islower()}
"""Type of a record -> its fields; the others are parts that several records have in common."""

UNIQUE = {
    "tensor": "id", "state": "id", "phase": "id", "node": "id", "group": "id", "stage": "id",
    "device": "class",
}  # fmt: skip
"""Record types of which no two may have an equal field, and the field."""

SINGLE = ("plan", "bound", "schedule")
"""Records of which there is one at most."""


def covered(kind: str, part: str) -> dict[str, Any]:
    """Fields of a kind of record that a part of the checks covers; see `core.check.declared`."""
    return {"type": None, **_covered(RECORDS[kind], part)}


def _covered(fields: Mapping[str, Field], part: str) -> dict[str, Any]:
    """Field -> the covered fields of its objects, the values of a mode, or None for any value."""
    tree: dict[str, Any] = {}
    for name, spec in fields.items():
        if part in spec.covered:
            closed = spec.inner and not spec.open
            tree[name] = _covered(spec.inner, part) if closed else spec.modes or None
    return tree


def json_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of one record of the stream."""
    types = [
        {"if": {"properties": {"type": {"const": kind}}}, "then": {"$ref": f"#/$defs/{kind}"}}
        for kind in RECORDS
    ]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A record of the dnnp stream, version 1, 2 or 3",
        "type": "object",
        "properties": {"type": {"type": "string"}},
        "required": ["type"],
        "allOf": types,
        "$defs": {kind: object_schema(fields) for kind, fields in RECORDS.items()},
    }
