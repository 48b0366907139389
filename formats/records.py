"""Fields of every record of the stream: one table for the reader, the schema and the manual.

`formats.stream` enforces the table, `json_schema` renders it as JSON Schema, and
dnnp-graph(5) prints it.
"""

from __future__ import annotations

from typing import Any

from dnnp.formats.fields import (
    HEX,
    Field,
    boolean,
    integer,
    number,
    object_schema,
    record,
    records,
    string,
)
from dnnp.formats.graph_fields import DEVICE, GROUP, LINK, MEASURED, NODE, TENSOR
from dnnp.formats.plan_fields import PLAN, STAGE
from dnnp.formats.result_fields import BLOCK, BOUND, RUN, SCHEDULE

FORMAT = "dnnp"
VERSION = 1
SOURCES = (
    "onnx", "msr-json", "piper", "costgraph", "csv", "dot", "graphml", "gml", "node-link", "stg",
    "wfcommons", "dagbench",
)  # fmt: skip
"""Formats of files that a graph may come from."""
COST_FILES = ("csv", "onnxruntime", "tensorrt")
"""Kinds of files of costs."""

_HEADER = {
    "format": Field("string", "the name of the format", required=True, const=FORMAT),
    "version": Field("int", "version of the format", required=True, const=VERSION),
    "model": string("name of the model"),
    "source": record(
        "the file the graph came from",
        {
            "kind": string("file format", enum=SOURCES),
            "path": string("path as given to dnnp-import"),
            "sha256": string("hash of the file", pattern=HEX),
            "set_inputs": Field(
                "map",
                "input of the model that has a fixed value -> this, as it was given; absent: none",
                items=Field("string", ""),
            ),
            "keep_outputs": Field(
                "list",
                "outputs of the model that are kept, with what they need; absent: all",
                items=Field("string", ""),
            ),
            "ran": boolean("onnx: sizes of tensors were found by running the model", optional=True),
            "edges": record(
                "csv: the file with the list of edges, if it is another",
                {"path": string("its path"), "sha256": string("its hash", pattern=HEX)},
                optional=True,
            ),
        },
        optional=True,
    ),
    "units": record(
        "units of the numbers", {"time": string("s, or unknown", enum=("s", "unknown"))}
    ),
    "training": boolean("the graph holds a backward pass", optional=True),
    "micro_batches": integer(
        "micro-batches in a batch; absent: dnnp-partition says", positive=True, optional=True
    ),
    "work": string(
        "digest of flop and bytes of the nodes when they were priced by them; absent: unknown",
        pattern=HEX,
        optional=True,
    ),
    "costs": records(
        "files that prices were taken from, by dnnp-profile --costs, in order",
        {
            "file": string("its path"),
            "kind": string("what it is", enum=COST_FILES),
            "class": string("device class that it prices"),
            "nodes": integer("nodes that it prices"),
            "idle": integer("nodes that did not run, at 0 s"),
            "kept": integer("nodes that stay priced as they were"),
            "unknown": integer("names in it that no node has"),
        },
        optional=True,
    ),
    "measured": MEASURED,
    "calibration": record(
        "factors that were learned from runs and are part of all costs; absent: none are",
        {
            "class": string("device class they are for"),
            "costs": string("where the costs came from that they multiply"),
            "models": integer("models that ran"),
            "stages": integer("measured loads of stages"),
            "transfer": number(
                "factor of times of transfers; bandwidths were divided by it", positive=True
            ),
            "spread": number(
                "median error of the loads of models that were left out of a fit", optional=True
            ),
        },
        optional=True,
    ),
    "provenance": records(
        "every command that touched the stream, in order",
        {
            "tool": string("command"),
            "version": string("its version"),
            "arguments": Field("list", "its arguments", required=True, items=Field("string", "")),
            "elapsed_s": number("time it took, with --timings", optional=True),
        },
    ),
}

_END = {"records": integer("number of records before this one")}

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
        {"if": {"properties": {"type": {"const": kind}}}, "then": {"$ref": f"#/$defs/{kind}"}}
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
