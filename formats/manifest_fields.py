"""What the manifest of an export holds: one table for the reader, the schema and the manual."""

from __future__ import annotations

from typing import Any

from dnnp.formats.fields import (
    HEX,
    Field,
    integer,
    number,
    object_schema,
    record,
    records,
    string,
    unique_id,
)
from dnnp.formats.graph_fields import DEVICE
from dnnp.formats.plan_fields import PLAN_LINK

FORMAT = "dnnp-stages"
VERSION = 3
LAYOUTS = ("stages", "triton", "ort-layers", "onnx-devices")
"""What is in the folder; the options of `dnnp-export --to` of the same names."""
MODEL = "model"
"""Stands for the whole model where the id of a stage is expected."""


def many(kind: str, doc: str, *, required: bool = False) -> Field:
    """A list of plain values."""
    return Field("list", doc, required=required, items=Field(kind, ""))


TENSOR = {
    "name": string("name in the models"),
    "dtype": string("element type, or sequence, optional, map; absent: unknown", optional=True),
    "shape": many("size", "sizes; a name or null where one is free; absent: unknown rank"),
    "planned_shape": many("int", "the sizes that costs and plan were made for; absent: unknown"),
    "size_bytes": number("size at these; absent: unknown", optional=True),
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
    "digest": string("what the plan was made from", pattern=HEX),
    "k": integer("number of accelerators offered"),
    "method": string("method that found it"),
    "objective": string("throughput, gpipe or latency"),
    "validity": string("ordered, convex or free"),
    "value": number("the objective"),
    "stages": integer("its stages; what is exported may be more, as parts of them"),
}

LOAD = {
    "load_s": number(
        "load, divided by the replicas; of a part of a stage its compute, or the time of its pass "
        "by the schedule"
    ),
    "in_s": number(
        "transfers in of a sample; absent, as those below, for a part of a stage", optional=True
    ),
    "compute_s": number("compute of a sample", optional=True),
    "overflow_s": number("parameters streamed above capacity", optional=True),
    "out_s": number("transfers out of a sample", optional=True),
    "sync_s": number("weight synchronisation of replicas; absent: 0", optional=True),
}

STAGE = {
    "id": unique_id("position in the pipeline, from 0"),
    "file": string(
        "its ONNX model; absent where all stages are in one model, which files lists", optional=True
    ),
    "sha256": string("of that file", pattern=HEX, optional=True),
    "size_bytes": number("size of that file", optional=True),
    "stage": Field("id", "stage of the plan that it is, or is a part of", required=True),
    "device": string("class and number of the (first) device: cpu-core/0"),
    "class": string("device class"),
    "devices": many("string", "all devices that share the samples", required=True),
    "replicas": integer("how many these are", positive=True),
    "shard": integer(
        "which of the shards of its stage it is, or is a part of, from 0", optional=True
    ),
    "shards": integer(
        "how many devices hold the stage together; absent: 1, and no shard",
        positive=True,
        optional=True,
    ),
    "nodes": integer("how many nodes it has"),
    "load": record("what is predicted, in the unit of time", LOAD),
    "memory_bytes": number("memory of each device, by the memory model; for all parts of a stage"),
    "inputs": records("what it reads", {**TENSOR, **_FROM}),
    "outputs": records("what it hands out", {**TENSOR, **_TO}),
}

WEIGHTS = {
    "stage": Field("place", "stage that reads it, or the model", required=True, enum=(MODEL,)),
    "file": string("where it is"),
    "placed": string(
        "copy: the bytes that are read, and no others; missing: the file was not there, and is "
        "expected at this place; link: a hard link to the whole file, as earlier versions made",
        enum=("copy", "link", "missing"),
    ),
    "sources": many("string", "files of the model that its bytes are from", required=True),
    "size_bytes": number("size; 0 where it is missing"),
    "padding_bytes": number("bytes of a copy that belong to no tensor", optional=True),
    "sha256": string("of a copy", pattern=HEX, optional=True),
}

SCHEDULE = {
    "micro_batches": integer("samples that it is for"),
    "makespan_s": number("time of all of them, as predicted"),
    "bubble": number("share of the time that devices wait, as predicted"),
    "devices": records(
        "what each device runs",
        {
            "device": string("class and number"),
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
    "ensemble": string("name of the model that stands for all"),
    "models": many("string", "name of the model of each stage", required=True),
    "max_batch_size": integer("as in all configurations; 0: none batches"),
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
        enum=LAYOUTS,
    ),
    "model": string("name of the model"),
    "source": record(
        "the file that it is from",
        {"path": string("its path"), "sha256": string("of it", pattern=HEX)},
    ),
    "units": record(
        "units of the numbers", {"time": string("s, or unknown", enum=("s", "unknown"))}
    ),
    "plan": record("the plan", PLAN),
    "dimensions": Field(
        "map",
        "free dimension of the inputs -> the size that costs and plan were made for",
        required=True,
        items=integer("", optional=True),
    ),
    "devices": records("the devices that the plan could use", DEVICE),
    "device_links": records("links between them, where any are stated", PLAN_LINK, optional=True),
    "inputs": records("inputs of the model", {**TENSOR, **_TO}),
    "outputs": records("outputs of the model", {**TENSOR, **_FROM}),
    "stages": records("what runs in one go, in an order in which it can run", STAGE),
    "links": records(
        "who sends what to whom",
        {
            "from": Field("id", "stage that sends", required=True),
            "to": Field("id", "stage that receives", required=True),
            "tensors": many("string", "names", required=True),
            "size_bytes": number("size of all of them; absent: unknown", optional=True),
        },
    ),
    "weights": records("files with external data", WEIGHTS),
    "files": records(
        "other files of the export",
        {
            "file": string("where it is"),
            "sha256": string("of it", pattern=HEX),
            "size_bytes": number("its size"),
        },
        optional=True,
    ),
    "schedule": record(
        "order of a schedule; absent: each device takes what comes", SCHEDULE, optional=True
    ),
    "triton": record("names in a model repository for Triton", TRITON, optional=True),
    "settings": record("how a session of ONNX Runtime is made", SETTINGS, optional=True),
}


def manifest_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of a manifest."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Manifest of exported stages ({FORMAT}), version {VERSION}",
        **object_schema(MANIFEST),
    }
