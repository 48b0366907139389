"""What the manifest of an export holds: one table for the reader, the schema and the manual."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dnnp.formats.fields import HEX, Field, number, object_schema, string, unique_id
from dnnp.formats.graph_fields import DEVICE
from dnnp.formats.plan_fields import PLAN_LINK

FORMAT = "dnnp-stages"
VERSION = 3
LAYOUTS = ("stages", "triton", "ort-layers", "onnx-devices")
"""What is in the folder; the options of `dnnp-export --to` of the same names."""
MODEL = "model"
"""Stands for the whole model where the id of a stage is expected."""


def hexadecimal(doc: str, *, required: bool = True) -> Field:
    """A SHA-256."""
    return Field("string", doc, required=required, pattern=HEX)


def objects(doc: str, fields: Mapping[str, Field], *, required: bool = True) -> Field:
    """A list of objects."""
    return Field("list", doc, required=required, items=Field("object", "", fields=fields))


def many(kind: str, doc: str, *, required: bool = False) -> Field:
    """A list of plain values."""
    return Field("list", doc, required=required, items=Field(kind, ""))


def count(doc: str, *, required: bool = True) -> Field:
    """A number of things."""
    return Field("int", doc, required=required)


TENSOR = {
    "name": string("name in the models", required=True),
    "dtype": string("element type, or sequence, optional, map; absent: unknown"),
    "shape": many("size", "sizes; a name or null where one is free; absent: unknown rank"),
    "planned_shape": many("int", "the sizes that costs and plan were made for; absent: unknown"),
    "size_bytes": number("size at these; absent: unknown"),
}
_FROM = {"from": Field("place", "stage that makes it, or the model", required=True, enum=(MODEL,))}
_TO = {
    "to": Field(
        "list",
        "stages that read it; the model, too, where it is an output of the model",
        required=True,
        items=Field("place", "", enum=(MODEL,)),
    )
}

PLAN = {
    "digest": hexadecimal("what the plan was made from"),
    "k": count("number of accelerators offered"),
    "method": string("method that found it", required=True),
    "objective": string("throughput, gpipe or latency", required=True),
    "validity": string("ordered, convex or free", required=True),
    "value": number("the objective", required=True),
    "stages": count("its stages; what is exported may be more, as parts of them"),
}

LOAD = {
    "load_s": number(
        "load, divided by the replicas; of a part of a stage its compute, or the time of its pass "
        "by the schedule",
        required=True,
    ),
    "in_s": number("transfers in of a sample; absent, as those below, for a part of a stage"),
    "compute_s": number("compute of a sample"),
    "overflow_s": number("parameters streamed above capacity"),
    "out_s": number("transfers out of a sample"),
    "sync_s": number("weight synchronisation of replicas; absent: 0"),
}

STAGE = {
    "id": unique_id("position in the pipeline, from 0"),
    "file": string("its ONNX model; absent where all stages are in one model, which files lists"),
    "sha256": hexadecimal("of that file", required=False),
    "size_bytes": number("size of that file"),
    "stage": Field("id", "stage of the plan that it is, or is a part of", required=True),
    "device": string("class and number of the (first) device: cpu-core/0", required=True),
    "class": string("device class", required=True),
    "devices": many("string", "all devices that share the samples", required=True),
    "replicas": Field("int", "how many these are", required=True, positive=True),
    "shard": Field("int", "which of the shards of its stage it is, or is a part of, from 0"),
    "shards": Field(
        "int", "how many devices hold the stage together; absent: 1, and no shard", positive=True
    ),
    "nodes": count("how many nodes it has"),
    "load": Field("object", "what is predicted, in the unit of time", required=True, fields=LOAD),
    "memory_bytes": number(
        "memory of each device, by the memory model; for all parts of a stage", required=True
    ),
    "inputs": objects("what it reads", {**TENSOR, **_FROM}),
    "outputs": objects("what it hands out", {**TENSOR, **_TO}),
}

WEIGHTS = {
    "stage": Field("place", "stage that reads it, or the model", required=True, enum=(MODEL,)),
    "file": string("where it is", required=True),
    "placed": string(
        "copy: the bytes that are read, and no others; link: a hard link to a whole file of the "
        "model; missing: the file was not there, and is expected at this place",
        required=True,
        enum=("copy", "link", "missing"),
    ),
    "sources": many("string", "files of the model that its bytes are from", required=True),
    "size_bytes": number("size; 0 where it is missing", required=True),
    "padding_bytes": number("bytes of a copy that belong to no tensor"),
    "sha256": hexadecimal("of a copy", required=False),
}

SCHEDULE = {
    "micro_batches": count("samples that it is for"),
    "makespan_s": number("time of all of them, as predicted", required=True),
    "bubble": number("share of the time that devices wait, as predicted", required=True),
    "devices": objects(
        "what each device runs",
        {
            "device": string("class and number", required=True),
            "jobs": Field(
                "list",
                "in this order: id of the stage, replica, number of the sample",
                required=True,
                items=many("id", ""),
            ),
        },
    ),
}

TRITON = {
    "ensemble": string("name of the model that stands for all", required=True),
    "models": many("string", "name of the model of each stage", required=True),
    "max_batch_size": count("as in all configurations; 0: none batches"),
    "handed_through": many(
        "string",
        "outputs that are inputs of the model, which the ensemble does not have",
        required=True,
    ),
    "unused": many("string", "inputs that no output depends on, likewise", required=True),
    "idle": many("id", "stages that no output depends on, likewise", required=True),
}

SETTINGS = {
    "options": Field(
        "map",
        "session option of ONNX Runtime -> its value",
        required=True,
        items=Field("string", ""),
    ),
    "providers": many("string", "execution providers to ask for, in this order", required=True),
}

MANIFEST = {
    "format": Field("string", "the name of the format", required=True, const=FORMAT),
    "version": Field("int", "version of the format", required=True, const=VERSION),
    "layout": string(
        "stages: a folder for each; triton: a model repository for Triton; ort-layers: the whole "
        "model, with stages as annotations for ONNX Runtime; onnx-devices: with stages as device "
        "configurations of ONNX",
        required=True,
        enum=LAYOUTS,
    ),
    "model": string("name of the model", required=True),
    "source": Field(
        "object",
        "the file that it is from",
        required=True,
        fields={"path": string("its path", required=True), "sha256": hexadecimal("of it")},
    ),
    "units": Field(
        "object",
        "units of the numbers",
        required=True,
        fields={"time": string("s, or unknown", required=True, enum=("s", "unknown"))},
    ),
    "plan": Field("object", "the plan", required=True, fields=PLAN),
    "dimensions": Field(
        "map",
        "free dimension of the inputs -> the size that costs and plan were made for",
        required=True,
        items=Field("int", ""),
    ),
    "devices": objects("the devices that the plan could use", DEVICE),
    "device_links": objects("links between them, where any are stated", PLAN_LINK, required=False),
    "inputs": objects("inputs of the model", {**TENSOR, **_TO}),
    "outputs": objects("outputs of the model", {**TENSOR, **_FROM}),
    "stages": objects("what runs in one go, in an order in which it can run", STAGE),
    "links": objects(
        "who sends what to whom",
        {
            "from": Field("id", "stage that sends", required=True),
            "to": Field("id", "stage that receives", required=True),
            "tensors": many("string", "names", required=True),
            "size_bytes": number("size of all of them; absent: unknown"),
        },
    ),
    "weights": objects("files with external data", WEIGHTS),
    "files": objects(
        "other files of the export",
        {
            "file": string("where it is", required=True),
            "sha256": hexadecimal("of it"),
            "size_bytes": number("its size", required=True),
        },
        required=False,
    ),
    "schedule": Field(
        "object", "order of a schedule; absent: each device takes what comes", fields=SCHEDULE
    ),
    "triton": Field("object", "names in a model repository for Triton", fields=TRITON),
    "settings": Field("object", "how a session of ONNX Runtime is made", fields=SETTINGS),
}


def manifest_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of a manifest."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Manifest of exported stages ({FORMAT}), version {VERSION}",
        **object_schema(MANIFEST),
    }
