"""What every record of the stream holds: one table for the reader, the schema and the manual.

`formats.stream` enforces the table, `json_schema` renders it as JSON Schema, and
dnnp-graph(5) prints it.
"""

from __future__ import annotations

from typing import Any

from dnnp.formats.fields import HEX, Field, number, object_schema, string
from dnnp.formats.graph_fields import DEVICE, GROUP, LINK, MEASURED, NODE, TENSOR
from dnnp.formats.plan_fields import PLAN, STAGE
from dnnp.formats.result_fields import BOUND, RUN
from dnnp.formats.schedule_fields import BLOCK, SCHEDULE

FORMAT = "dnnp"
VERSION = 1
SOURCES = ("onnx", "msr-json", "piper", "costgraph", "csv", "dot", "graphml")
"""Formats of files that a graph may come from."""
COST_FILES = ("csv", "onnxruntime", "tensorrt")
"""Kinds of files of costs."""

_HEADER = {
    "format": Field("string", "the name of the format", required=True, const=FORMAT),
    "version": Field("int", "version of the format", required=True, const=VERSION),
    "model": string("name of the model", required=True),
    "source": Field(
        "object",
        "the file the graph came from",
        fields={
            "kind": string("file format", required=True, enum=SOURCES),
            "path": string("path as given to dnnp-import", required=True),
            "sha256": Field("string", "hash of the file", required=True, pattern=HEX),
            "edges": Field(
                "object",
                "csv: the file with the list of edges, if it is another",
                fields={
                    "path": string("its path", required=True),
                    "sha256": Field("string", "its hash", required=True, pattern=HEX),
                },
            ),
        },
    ),
    "units": Field(
        "object",
        "units of the numbers",
        required=True,
        fields={"time": string("s, or unknown", required=True, enum=("s", "unknown"))},
    ),
    "training": Field("bool", "the graph holds a backward pass"),
    "micro_batches": Field(
        "int", "micro-batches in a batch; absent: dnnp-partition says", positive=True
    ),
    "work": Field(
        "string",
        "digest of flop and bytes of the nodes when they were priced by them; absent: unknown",
        pattern=HEX,
    ),
    "costs": Field(
        "list",
        "files that prices were taken from, by dnnp-profile --costs, in order",
        items=Field(
            "object",
            "",
            fields={
                "file": string("its path", required=True),
                "kind": string("what it is", required=True, enum=COST_FILES),
                "class": string("device class that it prices", required=True),
                "nodes": Field("int", "nodes that it prices", required=True),
                "idle": Field("int", "nodes that did not run, at 0 s", required=True),
                "kept": Field("int", "nodes that stay priced as they were", required=True),
                "unknown": Field("int", "names in it that no node has", required=True),
            },
        ),
    ),
    "measured": MEASURED,
    "calibration": Field(
        "object",
        "factors that were learned from runs and are part of all costs; absent: none are",
        fields={
            "class": string("device class they are for", required=True),
            "costs": string("where the costs came from that they multiply", required=True),
            "models": Field("int", "models that ran", required=True),
            "stages": Field("int", "measured loads of stages", required=True),
            "transfer": number(
                "factor of times of transfers; bandwidths were divided by it",
                required=True,
                positive=True,
            ),
            "spread": number("median error of the loads of models that were left out of a fit"),
        },
    ),
    "provenance": Field(
        "list",
        "every command that touched the stream, in order",
        required=True,
        items=Field(
            "object",
            "",
            fields={
                "tool": string("command", required=True),
                "version": string("its version", required=True),
                "arguments": Field(
                    "list", "its arguments", required=True, items=Field("string", "")
                ),
                "elapsed_s": number("time it took, with --timings"),
            },
        ),
    ),
}

_END = {"records": Field("int", "number of records before this one", required=True)}

RECORDS: dict[str, dict[str, Field]] = {
    "header": _HEADER,
    "device": DEVICE,
    "link": LINK,
    "tensor": TENSOR,
    "node": NODE,
    "group": GROUP,
    "plan": PLAN,
    "stage": STAGE,
    "bound": BOUND,
    "schedule": SCHEDULE,
    "block": BLOCK,
    "run": RUN,
    "end": _END,
}

UNIQUE_IDS = ("tensor", "node", "group", "stage")
"""Record types whose ids must differ."""


def json_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of one record of the stream."""
    types = [
        {
            "if": {"properties": {"type": {"const": kind}}},
            "then": {"$ref": f"#/$defs/{kind}"},
        }
        for kind in RECORDS
    ]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A record of the dnnp stream, version 1",
        "type": "object",
        "properties": {"type": {"type": "string"}},
        "required": ["type"],
        "allOf": types,
        "$defs": {kind: object_schema(fields) for kind, fields in RECORDS.items()},
    }
