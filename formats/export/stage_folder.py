"""Write the folder of an export: models, their weights, other files, and the manifest."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import onnx
import orjson

from dnnp.core.model.errors import InputFileError, UsageError
from dnnp.core.model.search_context import Progress
from dnnp.formats.export.manifest import FORMAT, MODEL, Record, weights_entry
from dnnp.formats.export.stage_weights import (
    MODEL_FILE,
    WeightFile,
    find_originals,
    place_weights,
    repeated_bytes,
)
from dnnp.formats.files import fresh_name, open_regular, remove, unfinished, whole
from dnnp.formats.onnx.stages import StageModel
from dnnp.formats.onnx.weights import Span, spans_of

MANIFEST = "manifest.json"

_EARLIER = ".earlier.json"
"""In the folder inside: the manifest that was there before."""
_MARK = ".dnnp-unfinished"
"""A file that stands in every folder inside."""
_INSIDE = ".dnnp-export-"
RESERVED = (MANIFEST, _MARK, _EARLIER)
"""Names that no other file of an export may have."""


@dataclass(frozen=True)
class Earlier:
    """An earlier export that is in the folder."""

    files: tuple[str, ...] = ()
    """Files to remove, relative to the folder."""
    leftovers: tuple[Path, ...] = ()
    """Folders inside of exports that were killed."""


@contextmanager
def replaced_folder(target: Path) -> Iterator[Path]:
    """A folder to collect files in; they take the place of those of an earlier export in `target`.

    They do when the block ends without an error; the file `MANIFEST` among them comes last.

    Raises
    ------
    UsageError
        `target` holds something else than an earlier export.
    InputFileError
        Another export writes there.
    OSError
        Something cannot be read or written.
    """
    fresh = not os.path.exists(target)
    if not fresh and not target.is_dir():
        raise UsageError(f"{target}: not a folder")
    target.mkdir(parents=True, exist_ok=True)
    try:
        with _held(target) as alone, unfinished(str(target / fresh_name(_INSIDE))) as inside:
            earlier = _earlier(target, alone)
            folder = Path(inside)
            folder.mkdir(0o700)
            (folder / _MARK).touch()
            yield folder
            _check_free(target, earlier, _tops(folder))
            # From here on it is not removed with this process: it says what is going on.
            ready = target / fresh_name(_INSIDE)
            with whole():
                os.replace(folder, ready)
                _replace(target, earlier, ready)
                remove(str(ready))
    finally:
        if fresh:
            with suppress(OSError):
                target.rmdir()


@contextmanager
def _held(folder: Path) -> Iterator[bool]:
    """Keep other exports out of a folder; False where the file system cannot do that."""
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        held = True
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputFileError(f"{folder}: another dnnp-export is writing there") from None
        except OSError:
            held = False
        yield held
    finally:
        os.close(number)


def _earlier(target: Path, alone: bool) -> Earlier:
    """Find files in a folder that may be removed; refuse any other file."""
    leftovers = [path for path in sorted(target.iterdir()) if alone and _is_leftover(path)]
    lists = [_listed(target / MANIFEST)]
    lists += [_listed(path / name) for path in leftovers for name in (MANIFEST, _EARLIER)]
    there = [p for p in _files(target) if not any(p.is_relative_to(left) for left in leftovers)]
    names = [path.relative_to(target).as_posix() for path in there]
    inside = Counter(_identity(path) for path in _files(target))
    for path, name in zip(there, names, strict=True):
        known = [entry[name] for entry in lists if name in entry]
        if not known:
            raise UsageError(
                f"{target}: holds '{name}', which is not from dnnp-export; name an empty folder"
            )
        if not any(_is_as_listed(path, entry, inside[_identity(path)]) for entry in known):
            raise UsageError(
                f"{target}: '{name}' is not as dnnp-export left it; move it away, or name an empty "
                "folder"
            )
    return Earlier(tuple(names), tuple(leftovers))


def _is_leftover(path: Path) -> bool:
    """True if a path is the inner folder of a killed export."""
    if not re.fullmatch(re.escape(_INSIDE) + "[0-9a-f]{16}", path.name) or path.is_symlink():
        return False
    return path.is_dir() and (not any(path.iterdir()) or (path / _MARK).is_file())


def _files(folder: Path) -> list[Path]:
    """Files and links, those to folders too, at any depth; sorted."""
    found = []
    for top, folders, files in os.walk(folder):
        found += [Path(top, name) for name in files]
        found += [Path(top, name) for name in folders if os.path.islink(os.path.join(top, name))]
    return sorted(found)


def _listed(manifest: Path) -> dict[str, dict[str, Any]]:
    """Entries of a manifest by file, itself included; empty if it is not one of ours."""
    try:
        file, size = open_regular(manifest)
        with file:
            found = orjson.loads(file.read(size))
        if found["format"] != FORMAT:
            return {}
        lists = (found["stages"], found["weights"], found.get("files", []))
        entries = [dict(entry) for entry in chain(*lists) if "file" in entry]
        return {MANIFEST: {"placed": "manifest"}, **{str(e["file"]): e for e in entries}}
    except (InputFileError, OSError, ValueError, KeyError, TypeError):
        return {}


def _identity(path: Path) -> tuple[int, int]:
    """The identity that all names of a file share."""
    found = path.lstat()
    return found.st_dev, found.st_ino


def _is_as_listed(path: Path, entry: dict[str, Any], names: int) -> bool:
    """True if a file matches its manifest, or can be removed without loss.

    `names` is how many names it has in the folder.
    """
    if path.is_symlink() or not path.is_file():
        return False
    if entry.get("placed") == "manifest":
        return True
    if entry.get("placed") == "link":
        found = path.stat()
        return found.st_nlink > names and found.st_size == entry.get("size_bytes")
    if not isinstance(entry.get("sha256"), str):
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == entry.get("sha256")


def _replace(target: Path, earlier: Earlier, folder: Path) -> None:
    """Remove the old files and move the new ones in.

    Only what stands at the top of the folder is moved: no link below it can lead elsewhere.
    """
    tops = _tops(folder)
    if MANIFEST in earlier.files:
        os.replace(target / MANIFEST, folder / _EARLIER)
    for name in earlier.files:
        (target / name).unlink(missing_ok=True)
    for name in {*tops, *(name.split("/")[0] for name in earlier.files)}:
        _remove_empty(target / name)
    for path in earlier.leftovers:
        remove(str(path))
    for name in [*tops, MANIFEST]:
        os.replace(folder / name, target / name)


def _tops(folder: Path) -> list[str]:
    """Names to be moved besides the manifest."""
    return sorted({path.name for path in folder.iterdir()} - set(RESERVED))


def _check_free(target: Path, earlier: Earlier, tops: Sequence[str]) -> None:
    """Refuse what has come into the folder since it was looked at."""
    ours = {name.split("/")[0] for name in earlier.files}
    for name in tops:
        path = target / name
        if name not in ours and os.path.lexists(path) and (path.is_symlink() or path.is_file()):
            raise UsageError(f"{target}: holds '{name}', which is not from dnnp-export")


def _remove_empty(folder: Path) -> None:
    """Remove a folder if nothing is in it but folders."""
    if folder.is_symlink():
        return
    for top, _, _ in os.walk(folder, topdown=False):
        with suppress(OSError):
            os.rmdir(top)


@dataclass(frozen=True)
class Weights:
    """The external weights of a model in an export."""

    files: tuple[WeightFile, ...]
    repeated_bytes: int
    """Bytes of the model that were copied, beyond the first copy of each: shared parameters."""

    @property
    def copied_bytes(self) -> int:
        """Bytes of the model that were copied, those of the first copies included."""
        return sum(f.size_bytes - f.padding_bytes for f in self.files if f.how == "copy")


@dataclass(frozen=True, eq=False)
class Unit:
    """A model of an export, in a folder of its own with its weights."""

    stage: int | str
    """Number of the stage, or `model` for all of the model."""
    model: onnx.ModelProto
    """External data is where the source model has it."""
    folder: str
    """Path in the folder of the export."""


@dataclass(frozen=True)
class Extras:
    """Further files in the folder of an export."""

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
    watch: Callable[[Progress], None] = lambda standing: None,
) -> Weights:
    """Write models to the folder `target`, atomically.

    An earlier export in `target` is replaced; a folder with anything else in it is refused, and
    so is one where a file is no longer what its manifest says.

    Parameters
    ----------
    units
        The models.
    manifest
        See `manifest.manifest_of`; completed here with files and weights.
    source
        File of the source model; weight files are looked for beside it.
    extras
        What else is written.
    watch
        Callback with the progress of copying.

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
        watch(Progress("copying weights", share=min(done / max(total, 1), 1.0)))

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
