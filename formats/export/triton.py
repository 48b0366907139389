"""A model repository for Triton Inference Server: a model a stage, and an ensemble.

Configurations are in the text format of protobuf, as `model_config.proto` of Triton defines them.
The server refuses an ensemble with an unused tensor, so tensors that no output of the model depends
on are left out of it. A tensor without dimensions has the dimension 1 in requests,
which the server takes away again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dnnp.core.model.errors import FormatError
from dnnp.formats.export.manifest import FILE, MODEL, Record

PLATFORM = "onnxruntime_onnx"
LONGEST = 200
"""Characters of a model name, so that file systems take it with what is appended."""
_TYPES = {
    "bool": "BOOL", "uint8": "UINT8", "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64",
    "int8": "INT8", "int16": "INT16", "int32": "INT32", "int64": "INT64", "float16": "FP16",
    "float32": "FP32", "float64": "FP64", "string": "STRING", "bfloat16": "BF16",
}  # fmt: skip
"""Element type -> that of Triton, without `TYPE_`."""


class Word(str):
    """A value without quotes: an enum."""


Message = Sequence[tuple[str, object]]
"""Fields and values: texts, words, numbers, lists of numbers, or messages."""


@dataclass(frozen=True)
class Repository:
    """Further files of a repository besides the models."""

    fields: Record
    """`triton` of the manifest."""
    files: Mapping[str, bytes]
    """Path -> contents; a path that ends in a slash is a folder."""
    folders: tuple[str, ...]
    """Folder of the model of each stage."""


def repository(manifest: Record, max_batch_size: int = 0) -> Repository:
    """Names, configurations and folders for the stages of a manifest.

    `max_batch_size`: largest batch; the first dimension of every tensor must be the same free one.
    0: tensors are as in the model. Raises `FormatError` if a tensor has no type, rank or first
    dimension that Triton accepts, a stage reads nothing, or no stage makes an output of the model.
    """
    ensemble = _allowed(manifest["model"])
    models = [f"{ensemble}-stage-{stage['id']}" for stage in manifest["stages"]]
    batch = _batch(manifest) if max_batch_size else None
    files: dict[str, bytes] = {}
    for name, stage in zip(models, manifest["stages"], strict=True):
        if not stage["inputs"]:
            raise FormatError(
                f"stage {stage['id']} reads nothing, but Triton runs what a request has inputs for"
            )
        files[f"{name}/config.pbtxt"] = text(
            [
                ("name", name),
                ("platform", PLATFORM),
                ("max_batch_size", max_batch_size),
                *_tensors("input", stage["inputs"], batch),
                *_tensors("output", stage["outputs"], batch),
                ("instance_group", _instances(stage, manifest["devices"])),
            ]
        ).encode()
    used = _needed(manifest)
    made = [t for t in manifest["outputs"] if t["from"] != MODEL]
    if not made:
        raise FormatError("no stage makes an output of the model: an ensemble would have none")
    stages = [stage for stage in manifest["stages"] if used & _names(stage["outputs"])]
    reads = {name for stage in stages for name in _names(stage["inputs"])}
    given = [tensor for tensor in manifest["inputs"] if tensor["name"] in reads]
    files[f"{ensemble}/config.pbtxt"] = text(
        [
            ("name", ensemble),
            ("platform", "ensemble"),
            ("max_batch_size", max_batch_size),
            *_tensors("input", given, batch, reshape=False),
            *_tensors("output", made, batch, reshape=False),
            ("ensemble_scheduling", [("step", _step(models, s, used)) for s in stages]),
        ]
    ).encode()
    files[f"{ensemble}/1/"] = b""
    return Repository(
        fields={
            "ensemble": ensemble,
            "models": models,
            "max_batch_size": max_batch_size,
            "handed_through": [t["name"] for t in manifest["outputs"] if t["from"] == MODEL],
            "unused": [t["name"] for t in manifest["inputs"] if t["name"] not in reads],
            "idle": [s["id"] for s in manifest["stages"] if s not in stages],
        },
        files=files,
        folders=tuple(f"{name}/1" for name in models),
    )


def text(message: Message, indent: str = "") -> str:
    """A message in the text format of protobuf.

    >>> print(text([("name", "a"), ("kind", Word("KIND_CPU")), ("dims", [1, -1]), ("reshape", [])]))
    name: "a"
    kind: KIND_CPU
    dims: [ 1, -1 ]
    reshape {
    }
    <BLANKLINE>
    """
    lines = []
    for name, value in message:
        if isinstance(value, Word):
            lines.append(f"{indent}{name}: {value}\n")
        elif isinstance(value, str):
            lines.append(f'{indent}{name}: "{_escaped(value)}"\n')
        elif isinstance(value, int):
            lines.append(f"{indent}{name}: {value}\n")
        elif isinstance(value, list) and value and isinstance(value[0], int):
            lines.append(f"{indent}{name}: [ {', '.join(map(str, value))} ]\n")
        elif isinstance(value, list):
            lines.append(f"{indent}{name} {{\n{text(value, indent + '  ')}{indent}}}\n")
    return "".join(lines)


def _escaped(value: str) -> str:
    """Text between quotes: ASCII alone."""
    return "".join(
        chr(b) if 0x20 <= b < 0x7F and b not in b'"\\' else f"\\{b:03o}" for b in value.encode()
    )


def _allowed(name: str) -> str:
    """A model name for Triton and for folders: letters, digits, and `-_.` within.

    >>> _allowed("bert/base v1.onnx"), _allowed("..")
    ('bert_base_v1.onnx', 'model')
    """
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", name).lstrip(".-")[:LONGEST] or MODEL
    return f"{name}_" if name == FILE else name


def _names(tensors: Iterable[Record]) -> set[str]:
    return {tensor["name"] for tensor in tensors}


def _needed(manifest: Record) -> set[str]:
    """Tensors that an output of the model depends on."""
    needed = _names(manifest["outputs"])
    for stage in reversed(manifest["stages"]):
        if needed & _names(stage["outputs"]):
            needed |= _names(stage["inputs"])
    return needed


def _step(models: Sequence[str], stage: Record, used: set[str]) -> Message:
    """The step of a stage: its inputs and its used outputs, by name."""
    ends = [("input_map", t["name"]) for t in stage["inputs"]]
    ends += [("output_map", t["name"]) for t in stage["outputs"] if t["name"] in used]
    return [
        ("model_name", models[stage["id"]]),
        ("model_version", -1),
        *((field, [("key", name), ("value", name)]) for field, name in ends),
    ]


def _tensors(
    field: str, tensors: Iterable[Record], batch: str | None, *, reshape: bool = True
) -> list[tuple[str, Message]]:
    """Inputs or outputs of a model; an ensemble passes on what requests have, without reshaping."""
    found: list[tuple[str, Message]] = []
    for tensor in tensors:
        dims = _dims(tensor, batch)
        entry: list[tuple[str, object]] = [
            ("name", tensor["name"]),
            ("data_type", _type(tensor)),
            ("dims", dims or [1]),
        ]
        if not dims and reshape:
            entry.append(("reshape", []))
        found.append((field, entry))
    return found


def _type(tensor: Record) -> Word:
    dtype = tensor.get("dtype", "of unknown type")
    if dtype not in _TYPES:
        raise FormatError(f"tensor '{tensor['name']}' is {dtype}, which Triton does not know")
    return Word(f"TYPE_{_TYPES[dtype]}")


def _dims(tensor: Record, batch: str | None) -> list[int]:
    """Sizes of a tensor, -1 for those that vary; without that of the batch, if there is one."""
    shape = tensor.get("shape")
    if shape is None and "planned_shape" in tensor:
        shape = [None for _ in tensor["planned_shape"]]
    if shape is None:
        raise FormatError(f"tensor '{tensor['name']}': its rank is unknown, which Triton asks for")
    if batch is not None:
        if not shape or shape[0] != batch:
            raise FormatError(
                f"--max-batch-size: the first dimension of '{tensor['name']}' is not '{batch}', "
                "the free one that the first input begins with"
            )
        shape = shape[1:]
    return [size if isinstance(size, int) and size > 0 else -1 for size in shape]


def _batch(manifest: Record) -> str:
    """Name of the dimension that a batch is along: the first one of the first input."""
    for tensor in manifest["inputs"][:1]:
        shape = tensor.get("shape") or [1]
        if isinstance(shape[0], str):
            return shape[0]
    raise FormatError(
        "--max-batch-size: the first dimension of the first input is not a free one with a name"
    )


def _instances(stage: Record, devices: Sequence[Record]) -> Message:
    """Instances of a stage: as many as it has replicas, on a GPU each or on the CPU."""
    if is_cpu(stage["class"], devices):
        return [("count", stage["replicas"]), ("kind", Word("KIND_CPU"))]
    return [("count", 1), ("kind", Word("KIND_GPU")), ("gpus", gpu_numbers(stage, devices))]


def is_cpu(name: str, devices: Iterable[Record]) -> bool:
    """True if a device class is a CPU, by its kind or its name."""
    kinds = {device["class"]: device["kind"] for device in devices}
    return kinds.get(name) == "cpu" or name.startswith("cpu")


def gpu_numbers(stage: Record, devices: Sequence[Record]) -> list[int]:
    """Numbers of the GPUs of a stage: classes follow each other in the order of the plan."""
    first = 0
    for device in devices:
        if device["class"] == stage["class"]:
            break
        if not is_cpu(device["class"], devices):
            first += device.get("count", 0)
    return [first + int(name.rpartition("/")[2]) for name in stage["devices"]]
