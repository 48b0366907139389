"""Weight files of ONNX models: what a model needs from them, and placing them beside stages."""

from __future__ import annotations

import hashlib
import os
import posixpath
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx

from dnnp.core.model.errors import FormatError, InputFileError
from dnnp.formats.files import open_regular
from dnnp.formats.onnx_scope import held_tensors


@dataclass(frozen=True)
class Placed:
    """A weight file as it stands beside the stages."""

    file: str
    """Path in the folder of the stages; the `location` that the tensors there have."""
    source: Path
    """The original file."""
    size_bytes: int
    """Size of the file; 0 if it is missing."""
    how: str
    """`link` (a hard link), `copy` or `missing`."""
    sha256: str | None = None
    """Of a copy."""


def external_fields(tensor: onnx.TensorProto) -> dict[str, str]:
    """`location`, `offset`, `length` and so on of a tensor; empty if it is stored in the model.

    Raises
    ------
    FormatError
        Text that is not UTF-8, which protobuf hands over as bytes.
    """
    if tensor.data_location != onnx.TensorProto.EXTERNAL:
        return {}
    fields = {entry.key: entry.value for entry in tensor.external_data}
    if not all(isinstance(text, str) for pair in fields.items() for text in pair):
        raise FormatError(f"the place of the data of '{tensor.name}' is not UTF-8")
    return fields


def needed_files(models: Iterable[onnx.ModelProto]) -> dict[str, int]:
    """Weight files by location, each with the number of bytes it must at least have.

    Raises
    ------
    FormatError
        A location outside the model's folder, or an offset or length that is no number.
    """
    needed: dict[str, int] = {}
    for model in models:
        for tensor in held_tensors(model):
            fields = external_fields(tensor)
            if tensor.data_location == onnx.TensorProto.EXTERNAL:
                where = _inside(tensor.name, fields.get("location", ""))
                needed[where] = max(needed.get(where, 0), _end(tensor, fields))
    return needed


def _inside(name: str, location: str) -> str:
    """A location in normal form: a relative path that stays in the folder of the model."""
    path = posixpath.normpath(location)
    outside = path == ".." or path.startswith(("../", "/"))
    if not location or "\0" in location or outside or path == ".":
        raise FormatError(f"the data of '{name}' is at {location!r}, outside the model's folder")
    return path


def _end(tensor: onnx.TensorProto, fields: Mapping[str, str]) -> int:
    """Bytes up to the end of the tensor's data; up to its start if no length is given."""
    numbers = {}
    for key in ("offset", "length"):
        text = fields.get(key, "0")
        if not (text.isascii() and text.isdigit() and len(text) < 20):
            raise FormatError(f"the {key} of '{tensor.name}' is {text[:40]!r}, not a number")
        numbers[key] = int(text)
    return numbers["offset"] + numbers["length"]


def place_weights(
    needed: Mapping[str, int], model: Path, target: Path, *, reserved: Iterable[str], copy: bool
) -> dict[str, Placed]:
    """Make the weight files of the model file `model` appear in the folder `target`; by location.

    ONNX Runtime opens weight files only below the folder of the model, and follows no symbolic
    link out of it. So the original file gets a hard link there: the same bytes, nothing is
    copied. It is copied if `copy` says so or no link can be made, as between file systems.
    A missing file is not an error: the stages name the place where it is expected.

    Raises
    ------
    FormatError
        A file is too short for the tensors in it, or a link out of the model's folder.
    InputFileError
        A file cannot be read, linked or copied.
    """
    taken = set(reserved)
    # Caches keep a model and its weights as links to files that stand in another folder.
    homes = {Path(os.path.realpath(model.parent)), Path(os.path.realpath(model)).parent}
    placed: dict[str, Placed] = {}
    for location, size in sorted(needed.items()):
        name = location
        while name.split("/")[0] in taken:
            name = f"weights-{name}"
        source = model.parent / location
        if not any(Path(os.path.realpath(source)).is_relative_to(home) for home in homes):
            raise FormatError("a link out of the model's folder", str(source))
        placed[location] = _place(source, target, name, size, copy)
    return placed


def _place(source: Path, target: Path, name: str, needed: int, copy: bool) -> Placed:
    original = Path(os.path.realpath(source))
    if not original.exists():
        return Placed(name, source, 0, "missing")
    if not original.is_file():
        raise InputFileError(f"{source}: not a regular file")
    size = original.stat().st_size
    if size < needed:
        raise FormatError(f"{size} bytes long, but the model's tensors need {needed}", str(source))
    try:
        beside = target / name
        beside.parent.mkdir(parents=True, exist_ok=True)
        if not copy and _link(original, beside):
            return Placed(name, source, size, "link")
        return Placed(name, source, size, "copy", _copy(original, beside))
    except OSError as error:
        raise InputFileError(f"{source}: {error.strerror}") from None


def _copy(original: Path, beside: Path) -> str:
    """Copy a file; the SHA-256 of what was copied."""
    digest = hashlib.sha256()
    file, _ = open_regular(original)
    with file, beside.open("xb") as copy:
        while data := file.read(1 << 20):
            copy.write(data)
            digest.update(data)
    return digest.hexdigest()


def _link(original: Path, beside: Path) -> bool:
    """Make a hard link; False where that is not possible."""
    try:
        os.link(original, beside)
    except OSError:
        return False
    return True


def relocated(model: onnx.ModelProto, files: Mapping[str, str]) -> onnx.ModelProto:
    """The model with the locations of its external data replaced; itself if none changes."""
    changed = [t for t in held_tensors(model) if _new_location(t, files) != _location(t)]
    if not changed:
        return model
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for tensor in held_tensors(copy):
        for entry in tensor.external_data:
            if entry.key == "location" and tensor.data_location == onnx.TensorProto.EXTERNAL:
                entry.value = _new_location(tensor, files)
    return copy


def _location(tensor: onnx.TensorProto) -> str:
    return external_fields(tensor).get("location", "")


def _new_location(tensor: onnx.TensorProto, files: Mapping[str, str]) -> str:
    location = _location(tensor)
    return files.get(posixpath.normpath(location), location) if location else location
