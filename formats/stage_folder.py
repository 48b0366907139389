"""The folder that `dnnp-export --to stages` writes: a folder for each stage, and a manifest.

The folder of a stage, `stage-0` and so on, has the ONNX file `model.onnx` and what it reads: it
can be moved, and loads alone.

`manifest.json` is one object, in which each `file` is a path that counts from its folder:

- `format` (`dnnp-stages`), `version` (2), `model`, `source` (`path`, `sha256`) and
  `plan` (`digest`, `k`, `method`, `objective`, `value`);
- `inputs`, `outputs`: those of the whole model, each with `name`, `dtype`, `shape` (a size, a
  name or null; no `shape`: unknown rank) and, in the same words as below, `to` or `from`;
- `stages`: `id`, `file`, `sha256`, `device`, `replicas` (how many devices, from that one on,
  share the samples; absent: 1), `nodes` (how many) and the stage's own `inputs` (with `from`:
  the stage that makes the tensor, or `model`) and `outputs` (with `to`: the stages that read it,
  and `model` for an output of the model);
- `links`: `from`, `to` and `tensors` for each pair of stages where one feeds the other;
- `weights`: the files with external data beside the stages. Each has `stage` (its `id`), `file`,
  `placed`, `sources` (the files of the model that its bytes are from) and `size_bytes`. `placed` is
  `copy`: the bytes that the stage reads, with `padding_bytes` (how many bytes of the file belong to
  no tensor) and `sha256`; `link`: a hard link to a whole file of the model; or `missing`: the file
  was not there, and the stage expects it at `file`; its `size_bytes` is 0.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import orjson

from dnnp.core.model.errors import InputFileError
from dnnp.core.model.standing import Standing
from dnnp.formats.export_folder import FORMAT, MANIFEST, replaced_folder
from dnnp.formats.onnx_stages import MODEL, StageModel, boundary
from dnnp.formats.onnx_types import TensorType, describe
from dnnp.formats.onnx_weights import Span, spans_of
from dnnp.formats.stage_weights import (
    MODEL_FILE,
    WeightFile,
    find_originals,
    place_weights,
    repeated_bytes,
)

VERSION = 2


@dataclass(frozen=True)
class Weights:
    """What became of the external weights of a model."""

    files: tuple[WeightFile, ...]
    repeated_bytes: int
    """Bytes of the model that were copied, beyond the first copy of each: shared parameters."""

    @property
    def copied_bytes(self) -> int:
        """Bytes of the model that were copied, those of the first copies included."""
        return sum(f.size_bytes - f.padding_bytes for f in self.files if f.how == "copy")


def write_stages(
    stages: Sequence[StageModel],
    model: onnx.ModelProto,
    source: Path,
    target: Path,
    *,
    about: Mapping[str, Any],
    devices: Sequence[str],
    replicas: Sequence[int] = (),
    link_weights: bool = False,
    watch: Callable[[Standing], None] = lambda standing: None,
) -> Weights:
    """Write the stages of a model to the folder `target`, whole or not at all.

    An earlier export in `target` is replaced; a folder with anything else in it is refused, and
    so is one where a file is no longer what its manifest says.

    Parameters
    ----------
    stages, devices
        The stages and the name of each one's (first) device.
    replicas
        Devices that share the samples of each stage; empty: one.
    model, source
        The source model and its file; weight files are looked for beside it.
    about
        The manifest's `model`, `source` and `plan`.
    link_weights
        Make hard links to the weight files instead of copying what each stage reads.
    watch
        Told how far the copying is.

    Returns
    -------
    Weights
        The weight files beside the stages.

    Raises
    ------
    UsageError
        `target` is something other than an empty folder or an earlier export.
    FormatError
        External data that cannot be where the model says.
    InputFileError
        Something cannot be read or written, or another export writes to `target`.
    """
    originals = find_originals((stage.model for stage in stages), source)
    files: list[WeightFile] = []
    copied: list[Span] = []
    entries = []
    target = Path(os.path.realpath(target))
    total = sum(span.size_bytes for stage in stages for span in spans_of([stage.model]))
    done = 0

    def copying(size_bytes: int) -> None:
        nonlocal done
        done += size_bytes
        watch(Standing("copying weights", share=min(done / max(total, 1), 1.0)))

    try:
        with replaced_folder(target) as inside:
            for i, stage in enumerate(stages):
                folder = inside / f"stage-{i}"
                folder.mkdir()
                placed = place_weights(
                    i, stage.model, folder, originals, link=link_weights, copying=copying
                )
                entries.append(_write_model(placed.model, folder))
                files += placed.files
                copied += placed.copied
            text = manifest(stages, model, about, devices, replicas, entries, files)
            (inside / MANIFEST).write_bytes(orjson.dumps(text, option=orjson.OPT_INDENT_2) + b"\n")
    except OSError as error:
        raise InputFileError(f"{error.filename or target}: {error.strerror}") from None
    return Weights(tuple(files), repeated_bytes(copied))


def _write_model(model: onnx.ModelProto, folder: Path) -> dict[str, str]:
    """Write the model of a stage; `file` and `sha256` of its entry in the manifest."""
    data = model.SerializeToString(deterministic=True)
    (folder / MODEL_FILE).write_bytes(data)
    return {"file": f"{folder.name}/{MODEL_FILE}", "sha256": hashlib.sha256(data).hexdigest()}


def manifest(
    stages: Sequence[StageModel],
    model: onnx.ModelProto,
    about: Mapping[str, Any],
    devices: Sequence[str],
    replicas: Sequence[int],
    entries: Sequence[Mapping[str, str]],
    weights: Sequence[WeightFile],
) -> dict[str, Any]:
    """The manifest as an object; see the top of this file."""
    made_by = boundary(stages)
    stored = {tensor.name for tensor in model.graph.initializer}
    read_by: dict[str, list[int]] = {}
    links: dict[tuple[int, int], list[str]] = {}
    for i, stage in enumerate(stages):
        for name, maker in stage.sources.items():
            read_by.setdefault(name, []).append(i)
            if maker != MODEL:
                links.setdefault((maker, i), []).append(name)
    return {
        "format": FORMAT,
        "version": VERSION,
        **about,
        "inputs": [
            {**_tensor(value.name, describe(value.type)), "to": read_by.get(value.name, [])}
            for value in model.graph.input
            if value.name not in stored
        ],
        "outputs": [
            {
                **_tensor(value.name, describe(value.type)),
                "from": _stage(made_by.get(value.name, MODEL)),
            }
            for value in model.graph.output
        ],
        "stages": [
            {
                "id": i,
                **entries[i],
                "device": devices[i],
                **({"replicas": replicas[i]} if replicas and replicas[i] > 1 else {}),
                "nodes": len(stage.nodes),
                "inputs": [
                    {**_tensor(name, stage.types[name]), "from": _stage(stage.sources[name])}
                    for name in stage.inputs
                ],
                "outputs": [
                    {
                        **_tensor(name, stage.types[name]),
                        "to": [_stage(reader) for reader in stage.targets[name]],
                    }
                    for name in stage.outputs
                ],
            }
            for i, stage in enumerate(stages)
        ],
        "links": [
            {"from": maker, "to": reader, "tensors": names}
            for (maker, reader), names in sorted(links.items())
        ],
        "weights": [_weights(file) for file in weights],
    }


def _weights(file: WeightFile) -> dict[str, Any]:
    entry = {
        "stage": file.stage,
        "file": file.file,
        "placed": file.how,
        "sources": [str(source) for source in file.sources],
        "size_bytes": file.size_bytes,
    }
    if file.how == "copy":
        entry |= {"padding_bytes": file.padding_bytes, "sha256": file.sha256}
    return entry


def _stage(index: int) -> int | str:
    return "model" if index == MODEL else index


def _tensor(name: str, kind: TensorType) -> dict[str, Any]:
    """Name, element type and shape, as far as known."""
    entry: dict[str, Any] = {"name": name}
    if kind.dtype is not None:
        entry["dtype"] = kind.dtype
    if kind.shape is not None:
        entry["shape"] = list(kind.shape)
    return entry
