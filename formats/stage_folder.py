"""Write the folder of an export: models, their weights, other files, and the manifest."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import onnx
import orjson

from dnnp.core.model.errors import InputFileError
from dnnp.core.model.search_context import Standing
from dnnp.formats.export_folder import MANIFEST, replaced_folder
from dnnp.formats.manifest import Record, weights_entry
from dnnp.formats.manifest_fields import MODEL
from dnnp.formats.onnx_stages import StageModel
from dnnp.formats.onnx_weights import Span, spans_of
from dnnp.formats.stage_weights import (
    MODEL_FILE,
    WeightFile,
    find_originals,
    place_weights,
    repeated_bytes,
)


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


@dataclass(frozen=True, eq=False)
class Unit:
    """A model of an export, which gets a folder of its own with all that it reads."""

    stage: int | str
    """Number of the stage, or `model` for all of the model."""
    model: onnx.ModelProto
    """External data is where the source model has it."""
    folder: str
    """Path in the folder of the export."""


@dataclass(frozen=True)
class Extras:
    """What else is in the folder of an export."""

    layout: str = "stages"
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Path -> contents; paths with an ending slash are folders."""
    fields: Mapping[str, object] = field(default_factory=dict)
    """Further fields of the manifest."""


def stage_units(stages: Sequence[StageModel]) -> list[Unit]:
    """The stages, each in the folder `stage-0`, `stage-1` and so on."""
    return [Unit(i, stage.model, f"stage-{i}") for i, stage in enumerate(stages)]


def whole_unit(model: onnx.ModelProto) -> Unit:
    """All of the model, in the folder `model`."""
    return Unit(MODEL, model, MODEL)


def write_export(
    units: Sequence[Unit],
    manifest: Record,
    source: Path,
    target: Path,
    *,
    extras: Extras | None = None,
    watch: Callable[[Standing], None] = lambda standing: None,
) -> Weights:
    """Write models to the folder `target`, whole or not at all.

    An earlier export in `target` is replaced; a folder with anything else in it is refused, and
    so is one where a file is no longer what its manifest says.

    Parameters
    ----------
    units
        The models.
    manifest
        See `manifest.manifest_of`; gets what only writing tells.
    source
        File of the source model; weight files are looked for beside it.
    extras
        What else is written.
    watch
        Told how far the copying is.

    Returns
    -------
    Weights
        The weight files beside the models.

    Raises
    ------
    UsageError
        `target` is something other than an empty folder or an earlier export.
    FormatError
        External data that cannot be where the model says.
    InputFileError
        Something cannot be read or written, or another export writes to `target`.
    """
    extras = extras or Extras()
    originals = find_originals((unit.model for unit in units), source)
    files: list[WeightFile] = []
    copied: list[Span] = []
    entries: dict[int | str, Record] = {}
    target = Path(os.path.realpath(target))
    total = sum(span.size_bytes for unit in units for span in spans_of([unit.model]))
    done = 0

    def copying(size_bytes: int) -> None:
        nonlocal done
        done += size_bytes
        watch(Standing("copying weights", share=min(done / max(total, 1), 1.0)))

    try:
        with replaced_folder(target) as inside:
            for unit in units:
                folder = inside / unit.folder
                folder.mkdir(parents=True)
                placed = place_weights(
                    unit.stage, unit.model, folder, originals,
                    within=unit.folder, copying=copying,
                )  # fmt: skip
                data = placed.model.SerializeToString(deterministic=True)
                entries[unit.stage] = _write(inside, f"{unit.folder}/{MODEL_FILE}", data)
                files += placed.files
                copied += placed.copied
            others = [
                _write(inside, name, data)
                for name, data in extras.files.items()
                if not name.endswith("/")
            ]
            for name in extras.files:
                if name.endswith("/"):
                    (inside / name).mkdir(parents=True, exist_ok=True)
            text = _completed(manifest, extras, entries, others, files)
            (inside / MANIFEST).write_bytes(orjson.dumps(text, option=orjson.OPT_INDENT_2) + b"\n")
    except OSError as error:
        raise InputFileError(f"{error.filename or target}: {error.strerror}") from None
    return Weights(tuple(files), repeated_bytes(copied))


def _write(inside: Path, name: str, data: bytes) -> Record:
    """Write a file; its entry in the manifest."""
    path = inside / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    digest = hashlib.sha256(data).hexdigest()
    return {"file": name, "sha256": digest, "size_bytes": len(data)}


def _completed(
    manifest: Record,
    extras: Extras,
    entries: Mapping[int | str, Record],
    others: Sequence[Record],
    weights: Sequence[WeightFile],
) -> Record:
    """The manifest with what is known of files."""
    whole = [entry for stage, entry in entries.items() if isinstance(stage, str)]
    listed = [*whole, *others]
    return {
        **{name: manifest[name] for name in ("format", "version")},
        "layout": extras.layout,
        **manifest,
        "stages": [
            {"id": stage["id"], **entries.get(stage["id"], {}), **stage}
            for stage in manifest["stages"]
        ],
        "weights": [weights_entry(file) for file in weights],
        **({"files": listed} if listed else {}),
        **extras.fields,
    }
