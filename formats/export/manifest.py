"""The manifest of an export: made from stages and a plan, and read again."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import onnx

from dnnp.core.model.errors import FormatError, InputFileError
from dnnp.core.model.plan import Plan, Stage
from dnnp.formats.export.stage_weights import WeightFile
from dnnp.formats.fields import describe_fault, object_schema, tables
from dnnp.formats.files import open_regular, read_regular
from dnnp.formats.inputs.checked_json import parse_json
from dnnp.formats.onnx import stages as onnx_stages
from dnnp.formats.onnx.stages import StageModel, boundary
from dnnp.formats.onnx.value_types import TensorType, describe
from dnnp.formats.plan import plan_records
from dnnp.formats.records import RECORDS
from dnnp.formats.stream import Stream

FORMAT = "dnnp-stages"
VERSION = 3
MODEL = "model"
"""Stands for the whole model where the id of a stage is expected."""

MANIFEST = tables(
    Path(__file__).with_suffix(".txt").read_text(encoding="utf-8"),
    DEVICE=RECORDS["device"],
    LINK=RECORDS["plan"]["links"].inner,
)["manifest"]
"""Fields of a manifest, from manifest.txt."""


def manifest_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of a manifest."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Manifest of exported stages ({FORMAT}), version {VERSION}",
        **object_schema(MANIFEST),
    }


Record = dict[str, Any]

FILE = "manifest.json"
LARGEST_BYTES = 1 << 28
"""A manifest is read whole."""
WHOLE = ("ort-layers", "onnx-devices")
"""Layouts with one model for all stages."""


@dataclass(frozen=True)
class Role:
    """The part of a plan about something that runs in one go."""

    stage: Stage
    """As it runs: the stage of the plan, or a part of it."""
    owner: int
    """Position of that stage in the plan."""
    whole: bool = True
    """It is all of the stage."""
    shard: int = 0
    """Shard of that stage that it belongs to."""


@dataclass(frozen=True)
class Planned:
    """The sizes of a tensor that costs were made for."""

    shape: tuple[int, ...] | None
    size_bytes: float


def about(stream: Stream, plan: Plan, path: str, digest: str) -> Record:
    """The manifest's part on model and plan; `path` and `digest` are those of the model's file."""
    record, _ = plan_records(plan)
    found: Record = {
        "model": stream.header["model"],
        "source": {"path": path, "sha256": digest},
        "units": stream.header["units"],
        "plan": {
            **{name: getattr(plan, name) for name in MANIFEST["plan"].fields if name != "stages"},
            "stages": len(plan.stages),
        },
        "devices": record["devices"],
    }
    return found | ({"device_links": record["links"]} if "links" in record else {})


def planned_sizes(stream: Stream) -> dict[str, Planned]:
    """Sizes of all tensors of a stream by name; of names that stand twice, the first."""
    found: dict[str, Planned] = {}
    for tensor in stream.get("tensor"):
        shape = tuple(tensor["shape"]) if "shape" in tensor else None
        found.setdefault(tensor["name"], Planned(shape, tensor["size_bytes"]))
    return found


def manifest_of(
    stages: Sequence[StageModel],
    model: onnx.ModelProto,
    roles: Sequence[Role],
    known: Mapping[str, Any],
    planned: Mapping[str, Planned],
) -> Record:
    """The manifest without layout, files and weights, which writing adds.

    Parameters
    ----------
    stages, roles
        The stages, and what the plan says of each.
    known
        See `about`.
    planned
        See `planned_sizes`.
    """
    made_by = boundary(stages)
    stored = {tensor.name for tensor in model.graph.initializer}
    read_by: dict[str, list[int]] = {}
    links: dict[tuple[int, int], list[str]] = {}
    for i, stage in enumerate(stages):
        for name, maker in stage.sources.items():
            read_by.setdefault(name, []).append(i)
            if maker != onnx_stages.MODEL:
                links.setdefault((maker, i), []).append(name)
    given = {v.name: describe(v.type) for v in model.graph.input if v.name not in stored}
    handed = {v.name: describe(v.type) for v in model.graph.output}
    through = {name for name in handed if made_by.get(name, onnx_stages.MODEL) == onnx_stages.MODEL}
    return {
        "format": FORMAT,
        "version": VERSION,
        **known,
        "dimensions": _dimensions(given, planned),
        "inputs": [
            _tensor(name, kind, planned)
            | {"to": [*read_by.get(name, []), *([MODEL] if name in through else [])]}
            for name, kind in given.items()
        ],
        "outputs": [
            _tensor(name, kind, planned) | {"from": _place(made_by.get(name, onnx_stages.MODEL))}
            for name, kind in handed.items()
        ],
        "stages": [
            {"id": i, **_stage(stage, role, planned)}
            for i, (stage, role) in enumerate(zip(stages, roles, strict=True))
        ],
        "links": [
            {"from": maker, "to": reader, "tensors": names, **_sum(names, planned)}
            for (maker, reader), names in sorted(links.items())
        ],
    }


def weights_entry(file: WeightFile) -> Record:
    """The manifest's entry of a weight file."""
    entry: Record = {
        "stage": file.stage,
        "file": file.file,
        "placed": file.how,
        "sources": [str(source) for source in file.sources],
        "size_bytes": file.size_bytes,
    }
    if file.how == "copy":
        entry |= {"padding_bytes": file.padding_bytes, "sha256": file.sha256}
    return entry


def _stage(stage: StageModel, role: Role, planned: Mapping[str, Planned]) -> Record:
    mine = role.stage
    load = {"load_s": mine.load_s}
    if role.whole:
        load |= {"in_s": mine.in_s, "compute_s": mine.compute_s}
        load |= {"overflow_s": mine.overflow_s, "out_s": mine.out_s}
        load |= {"sync_s": mine.sync_s} if mine.replicas > 1 else {}
    return {
        "stage": role.owner,
        "device": mine.device,
        "class": mine.device_class,
        "devices": list(mine.homes),
        "replicas": mine.replicas,
        **({"shard": role.shard, "shards": mine.apart} if mine.apart > 1 else {}),
        "nodes": len(stage.nodes),
        "load": load,
        "memory_bytes": mine.memory_bytes,
        "inputs": [
            _tensor(name, stage.types[name], planned) | {"from": _place(stage.sources[name])}
            for name in stage.inputs
        ],
        "outputs": [
            _tensor(name, stage.types[name], planned)
            | {"to": [_place(reader) for reader in stage.targets[name]]}
            for name in stage.outputs
        ],
    }


def _dimensions(given: Mapping[str, TensorType], planned: Mapping[str, Planned]) -> dict[str, int]:
    """Sizes of named dimensions of the inputs, as planned."""
    found: dict[str, int] = {}
    for name, kind in given.items():
        sizes = planned[name].shape if name in planned else None
        if kind.shape is None or sizes is None or len(kind.shape) != len(sizes):
            continue
        for symbol, size in zip(kind.shape, sizes, strict=True):
            if isinstance(symbol, str):
                found.setdefault(symbol, size)
    return found


def _place(index: int) -> int | str:
    return MODEL if index == onnx_stages.MODEL else index


def _tensor(name: str, kind: TensorType, planned: Mapping[str, Planned]) -> Record:
    """Name, element type, shape and sizes, as far as known."""
    entry: Record = {"name": name}
    if kind.dtype is not None:
        entry["dtype"] = kind.dtype
    if kind.element is not None:
        entry["element"] = kind.element
    if kind.shape is not None:
        entry["shape"] = list(kind.shape)
    if name in planned:
        if planned[name].shape is not None:
            entry["planned_shape"] = list(planned[name].shape or ())
        entry["size_bytes"] = planned[name].size_bytes
    return entry


def _sum(names: Iterable[str], planned: Mapping[str, Planned]) -> Record:
    """Size of some tensors together, if all are known."""
    sizes = [planned[name].size_bytes if name in planned else None for name in names]
    known = [size for size in sizes if size is not None]
    return {"size_bytes": sum(known)} if len(known) == len(sizes) else {}


def read_manifest(folder: Path) -> Record:
    """The checked manifest of an export: fields, links, files inside the folder.

    The contents of the folder are not trusted: no link is followed out of it.

    Raises
    ------
    InputFileError
        It is not there, or cannot be read.
    FormatError
        It is not a manifest of this version, or contradicts itself.
    """
    path, home = folder / FILE, os.path.realpath(folder)

    def is_inside(name: str) -> bool:
        with suppress(ValueError):  # no file name at all, which opening it says
            return Path(os.path.realpath(folder / name)).is_relative_to(home)
        return True

    if not is_inside(FILE):
        raise FormatError("a link out of the folder", str(path))
    found = parse_json(read_regular(path, LARGEST_BYTES, "no manifest is that large"), str(path))
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise FormatError(f"not a manifest: its 'format' is not '{FORMAT}'", str(path))
    invalid = describe_fault(MANIFEST, found)
    if invalid is not None:
        raise FormatError(invalid[1], str(path), None, invalid[0])
    _check_wiring(found, str(path))
    for kind in ("stages", "weights", "files"):
        for i, entry in enumerate(found.get(kind, [])):
            name = PurePosixPath(entry.get("file", ""))
            reason = f"'{name}' is a link out of the folder"
            if name.is_absolute() or ".." in name.parts:
                reason = f"'{name}' is not inside the folder"
            elif is_inside(str(name)):
                continue
            raise FormatError(reason, str(path), None, f"{kind}[{i}].file")
    return found


def _check_wiring(found: Record, path: str) -> None:
    """Refuse stages out of order, tensors not made yet, and links that differ."""
    made: dict[str, int | str] = {}
    readers: dict[str, list[int | str]] = {}
    crossing: dict[tuple[int, int], list[str]] = {}

    def refuse(field: str, reason: str) -> None:
        raise FormatError(reason, path, None, field)

    def make(field: str, tensors: Iterable[Record], maker: int | str) -> None:
        for tensor in tensors:
            if tensor["name"] in made:
                refuse(field, f"'{tensor['name']}' has another maker already")
            made[tensor["name"]] = maker

    def read(field: str, tensors: Iterable[Record], reader: int | str, missing: str) -> None:
        for tensor in tensors:
            name = tensor["name"]
            if made.get(name) != tensor["from"]:
                refuse(field, f"'{name}' {missing}")
            if reader in readers.setdefault(name, []):
                refuse(field, f"'{name}' is there twice")
            readers[name].append(reader)
            if isinstance(tensor["from"], int) and isinstance(reader, int):
                crossing.setdefault((tensor["from"], reader), []).append(name)

    make("inputs", found["inputs"], MODEL)
    for i, stage in enumerate(found["stages"]):
        if stage["id"] != i:
            refuse(f"stages[{i}].id", f"{stage['id']} is not {i}, its position")
        read(f"stages[{i}].inputs", stage["inputs"], i, "is not there by then")
        make(f"stages[{i}].outputs", stage["outputs"], i)
    read("outputs", found["outputs"], MODEL, "is not made where it says")
    for field, tensors in (
        ("inputs", found["inputs"]),
        *((f"stages[{i}].outputs", stage["outputs"]) for i, stage in enumerate(found["stages"])),
    ):
        for tensor in tensors:
            known = readers.get(tensor["name"], [])
            if sorted(map(str, tensor["to"])) != sorted(map(str, known)):
                refuse(field, f"'{tensor['name']}': 'to' names others than those that read it")
    for i, link in enumerate(found["links"]):
        tail, head = link["from"], link["to"]
        if max(tail, head) >= len(found["stages"]):
            refuse(f"links[{i}]", f"there is no stage {max(tail, head)}")
        if tail >= head:
            refuse(f"links[{i}]", f"goes from stage {tail} back to stage {head}")
        names = crossing.pop((tail, head), None)
        if names is None or sorted(names) != sorted(link["tensors"]):
            reason = f"is not what stage {head} reads from stage {tail}, or stands there twice"
            refuse(f"links[{i}]", reason)
    for tail, head in crossing:
        refuse("links", f"none from stage {tail} to stage {head}, which reads from it")
    for i, entry in enumerate(found["weights"]):
        if isinstance(entry["stage"], int) and entry["stage"] >= len(found["stages"]):
            refuse(f"weights[{i}].stage", f"there is no stage {entry['stage']}")


def check_runs(folder: Path, manifest: Record) -> None:
    """Refuse an export whose stages are not files of their own."""
    if manifest["layout"] in WHOLE:
        reason = "the export is one model for all stages: give that to ONNX Runtime"
        raise FormatError(reason, str(folder / FILE), None, "layout")
    for i, stage in enumerate(manifest["stages"]):
        if "file" not in stage:
            raise FormatError("is missing", str(folder / FILE), None, f"stages[{i}].file")


def check_files(folder: Path, manifest: Record, stages: Iterable[int] | None = None) -> None:
    """Compare files with their digests; those of some stages only, or all.

    Of a hard link only the size is known.

    Raises
    ------
    InputFileError
        A file is missing or cannot be read.
    FormatError
        A file is not what was exported.
    """
    wanted = None if stages is None else {*stages}
    entries = [e for e in manifest["stages"] if wanted is None or e["id"] in wanted]
    entries = [e for e in entries if "file" in e]
    entries += [e for e in manifest["weights"] if wanted is None or e["stage"] in wanted]
    if wanted is None:
        entries += manifest.get("files", [])
    for entry in entries:
        _check_file(folder / entry["file"], entry)


def _check_file(path: Path, entry: Record) -> None:
    file, size = open_regular(path)
    with file:
        if entry.get("placed") == "missing":
            return
        if "size_bytes" in entry and size != entry["size_bytes"]:
            reason = f"{size} bytes long; the manifest says {entry['size_bytes']}"
            raise FormatError(reason, str(path))
        if "sha256" not in entry:
            return
        try:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise InputFileError(f"{path}: {error.strerror}") from None
    if found != entry["sha256"]:
        reason = f"not what was exported: its SHA-256 is {found[:12]}..., not"
        raise FormatError(f"{reason} {entry['sha256'][:12]}...", str(path))
