"""The folder that `dnnp-export --to stages` writes: one ONNX file a stage, and a manifest.

`manifest.json` is one object:

- `format` (`dnnp-stages`), `version` (1), `model`, `source` (`path`, `sha256`) and
  `plan` (`digest`, `k`, `method`, `objective`, `value`);
- `inputs`, `outputs`: those of the whole model, each with `name`, `dtype`, `shape` (a size, a
  name or null; no `shape`: unknown rank) and, in the same words as below, `to` or `from`;
- `stages`: `id`, `file`, `sha256`, `device`, `replicas` (how many devices, from that one on,
  share the samples; absent: 1), `nodes` (how many) and the stage's own `inputs` (with `from`:
  the stage that makes the tensor, or `model`) and `outputs` (with `to`: the stages that read it,
  and `model` for an output of the model);
- `links`: `from`, `to` and `tensors` for each pair of stages where one feeds the other;
- `weights`: `file`, `source`, `size_bytes` and `placed` (`link`, `copy` or `missing`); of a copy
  `sha256`, too.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import orjson

from dnnp.core.model.errors import InputFileError
from dnnp.formats.export_folder import FORMAT, MANIFEST, RESERVED, replaced_folder
from dnnp.formats.onnx_stages import MODEL, StageModel, boundary
from dnnp.formats.onnx_types import TensorType, describe
from dnnp.formats.onnx_weights import Placed, needed_files, place_weights, relocated

VERSION = 1


def write_stages(
    stages: Sequence[StageModel],
    model: onnx.ModelProto,
    source: Path,
    target: Path,
    *,
    about: Mapping[str, Any],
    devices: Sequence[str],
    replicas: Sequence[int] = (),
    copy_weights: bool = False,
) -> list[Placed]:
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
    copy_weights
        Copy weight files instead of linking them.

    Returns
    -------
    list of Placed
        What became of the weight files.

    Raises
    ------
    UsageError
        `target` is something other than an empty folder or an earlier export.
    FormatError
        External data that cannot be where the model says.
    InputFileError
        Something cannot be read or written, or another export writes to `target`.
    """
    needed = needed_files(stage.model for stage in stages)
    files = [f"stage-{i}.onnx" for i in range(len(stages))]
    target = Path(os.path.realpath(target))
    try:
        with replaced_folder(target) as folder:
            placed = place_weights(
                needed, source, folder, reserved=[*files, *RESERVED], copy=copy_weights
            )
            locations = {location: weights.file for location, weights in placed.items()}
            hashes = []
            for stage, file in zip(stages, files, strict=True):
                data = relocated(stage.model, locations).SerializeToString(deterministic=True)
                (folder / file).write_bytes(data)
                hashes.append(hashlib.sha256(data).hexdigest())
            weights = list(placed.values())
            text = manifest(stages, model, about, devices, replicas, files, hashes, weights)
            (folder / MANIFEST).write_bytes(orjson.dumps(text, option=orjson.OPT_INDENT_2) + b"\n")
    except OSError as error:
        raise InputFileError(f"{error.filename or target}: {error.strerror}") from None
    return weights


def manifest(
    stages: Sequence[StageModel],
    model: onnx.ModelProto,
    about: Mapping[str, Any],
    devices: Sequence[str],
    replicas: Sequence[int],
    files: Sequence[str],
    hashes: Sequence[str],
    weights: Sequence[Placed],
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
                "file": files[i],
                "sha256": hashes[i],
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
        "weights": [
            {
                "file": weight.file,
                "source": str(weight.source),
                "size_bytes": weight.size_bytes,
                "placed": weight.how,
                **({} if weight.sha256 is None else {"sha256": weight.sha256}),
            }
            for weight in weights
        ],
    }


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
