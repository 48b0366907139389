"""Weight files of stages: each gets a file with the bytes that it reads.

ONNX Runtime opens weight files only below the folder of the model, and follows no symbolic link
out of it. So everything that a stage reads stands in a folder of its own, which can be moved. Hard
links would spare the copies, but onnx refuses data with several names, the user's own file too.
"""

from __future__ import annotations

import hashlib
import os
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import BinaryIO

import onnx

from dnnp.core.model.errors import FormatError, InputFileError
from dnnp.formats.files import open_regular
from dnnp.formats.onnx.scope import held_tensors
from dnnp.formats.onnx.weights import Span, point_to, span_of, spans_of

MODEL_FILE = "model.onnx"
DATA_FILE = "model.onnx.data"
"""Names in the folder of a stage, as PyTorch's exporter writes them."""

LARGE_BYTES = 1 << 20
PAGE_BYTES = 4096
LINE_BYTES = 64
"""Data of `LARGE_BYTES` or more starts at a page, so that it can be mapped into memory: these are
the defaults of ONNX Runtime's own writer. Other data starts at a cache line. So padding is less
than 0.4 % of large data, and less than 64 bytes a tensor of the rest."""

CHUNK_BYTES = 1 << 20
"""Most of a weight file that is in memory at a time."""


@dataclass(frozen=True)
class WeightFile:
    """A weight file of a stage."""

    stage: int | str
    """Number of the stage, or `model` for all of the model."""
    file: str
    """Path in the folder of the export."""
    how: str
    """`copy` (of the bytes that the stage reads), or `missing` (it is expected there)."""
    sources: tuple[Path, ...]
    """Files of the model that its bytes are from."""
    size_bytes: int = 0
    padding_bytes: int = 0
    """Bytes of a copy that belong to no tensor."""
    sha256: str | None = None
    """SHA-256 of a copy."""


@dataclass(frozen=True)
class Originals:
    """The weight files of a model."""

    home: Path
    """Folder of the model."""
    paths: Mapping[str, Path | None]
    """Real path of each file by its location; None: missing."""


@dataclass(frozen=True, eq=False)
class Placed:
    """A stage with its weights beside it."""

    model: onnx.ModelProto
    """The stage, with the places where its data now is."""
    files: tuple[WeightFile, ...]
    copied: tuple[Span, ...]
    """The bytes of the original files that it has copies of."""


@dataclass(frozen=True)
class _ByteRun:
    """Bytes of a file that are copied in one go: those of a tensor, or of several that overlap."""

    span: Span
    at: int
    """Offset in the copy."""


def find_originals(models: Iterable[onnx.ModelProto], model: Path) -> Originals:
    """The weight files that stages of the model file `model` need.

    Raises
    ------
    FormatError
        A location outside the model's folder, a link out of it, or a file too short for the
        tensors in it.
    InputFileError
        Something that is not a regular file.
    """
    needed: dict[str, int] = {}
    for span in sorted(spans_of(models)):
        needed[span.location] = max(needed.get(span.location, 0), span.end)
    # Caches keep a model and its weights as links to files that stand in another folder.
    homes = {Path(os.path.realpath(model.parent)), Path(os.path.realpath(model)).parent}
    paths = {where: _found(model.parent / where, size, homes) for where, size in needed.items()}
    return Originals(model.parent, paths)


def _found(source: Path, needed: int, homes: Collection[Path]) -> Path | None:
    """The real path of a file with at least so many bytes; None if there is none."""
    original = Path(os.path.realpath(source))
    if not any(original.is_relative_to(home) for home in homes):
        raise FormatError("a link out of the model's folder", str(source))
    try:
        if not original.exists():
            return None
        if not original.is_file():
            raise InputFileError(f"{source}: not a regular file")
        size = original.stat().st_size
    except OSError as error:
        raise InputFileError(f"{source}: {error.strerror}") from None
    if size < needed:
        raise FormatError(f"{size} bytes long, but the model's tensors need {needed}", str(source))
    return original


def place_weights(
    stage: int | str,
    model: onnx.ModelProto,
    folder: Path,
    originals: Originals,
    *,
    within: str = "",
    copying: Callable[[int], None] = lambda size_bytes: None,
) -> Placed:
    """Put the weights of a stage into its folder.

    It gets one file with the bytes that it reads, each of them once. For what is missing it names
    the place where it is expected.

    Parameters
    ----------
    stage, model
        The stage; its external data is where the source model has it.
    folder
        Existing folder of the stage, in that of the export.
    originals
        See `find_originals`.
    within
        Path of the folder in that of the export; empty: its name.
    copying
        Callback with the size of each copied piece.

    Raises
    ------
    InputFileError
        A weight file cannot be read, or is missing where rows of it are wanted.
    OSError
        Something cannot be written.
    """
    spans = spans_of([model])
    if not spans:
        return Placed(model, (), ())
    within = within or folder.name
    files: list[WeightFile] = []
    kept: dict[str, str] = {}
    present: dict[str, Path] = {}
    apart = {span.location for span in spans if span.rows > 1}
    for location, name in _names({span.location for span in spans}).items():
        source, original = originals.home / location, originals.paths[location]
        if original is not None:
            present[location] = original
            continue
        if location in apart:
            raise InputFileError(f"{source}: no such file; shards take parts of the weights in it")
        files.append(WeightFile(stage, f"{within}/{name}", "missing", (source,)))
        kept[location] = name
    runs = _packed(span for span in spans if span.location in present)
    if runs:
        size, digest = _write(runs, present, folder / DATA_FILE, copying)
        files.append(
            WeightFile(
                stage,
                f"{within}/{DATA_FILE}",
                "copy",
                tuple(originals.home / location for location in present),
                size_bytes=size,
                padding_bytes=size - sum(run.span.size_bytes for run in runs),
                sha256=digest,
            )
        )
    return Placed(_relocated(model, kept, runs), tuple(files), tuple(run.span for run in runs))


def repeated_bytes(copied: Sequence[Span]) -> int:
    """Bytes of the original files that the copies hold, beyond the first copy of each.

    >>> repeated_bytes([Span("a", 0, 8), Span("a", 4, 8), Span("b", 0, 8)])
    4
    """
    joined = [s for s in copied if s.rows == 1]
    apart = {s: None for s in copied if s.rows > 1}
    once = sum(s.size_bytes for s in (*_merged(joined), *apart))
    return sum(s.size_bytes for s in copied) - once


def _names(locations: Collection[str]) -> dict[str, str]:
    """A name for each weight file, in the folder of a stage: its location, unless that is taken.

    >>> _names(["model.onnx", "w.bin"])
    {'model.onnx': 'weights-model.onnx', 'w.bin': 'w.bin'}
    """
    taken = {location.split("/")[0] for location in locations} | {MODEL_FILE, DATA_FILE}
    names = {}
    for location in sorted(locations):
        name = location
        if location.split("/")[0] in (MODEL_FILE, DATA_FILE):
            while name.split("/")[0] in taken:
                name = f"weights-{name}"
        names[location] = name
    return names


def _merged(spans: Iterable[Span]) -> list[Span]:
    """The spans in the order of the files, with those that overlap made one."""
    merged: list[Span] = []
    for span in sorted(spans):
        last = merged[-1] if merged else None
        if last is not None and span.location == last.location and span.offset < last.end:
            end = max(last.end, span.end)
            merged[-1] = Span(last.location, last.offset, end - last.offset)
        else:
            merged.append(span)
    return merged


def _packed(spans: Iterable[Span]) -> list[_ByteRun]:
    """Place of the spans in a file of them and padding.

    They stay in the order of the original files, which are then read from front to back.
    """
    runs: list[_ByteRun] = []
    at, wanted = 0, list(spans)
    joined = _merged(span for span in wanted if span.rows == 1)
    for span in sorted([*joined, *{s for s in wanted if s.rows > 1}]):
        step = PAGE_BYTES if span.size_bytes >= LARGE_BYTES else LINE_BYTES
        at += -at % step
        runs.append(_ByteRun(span, at))
        at += span.size_bytes
    return runs


def _write(
    runs: Sequence[_ByteRun],
    originals: Mapping[str, Path],
    target: Path,
    copying: Callable[[int], None],
) -> tuple[int, str]:
    """Write the runs to a file, a chunk at a time; its size, and its SHA-256 taken on the way."""
    digest = hashlib.sha256()
    with target.open("xb") as file:
        for data in _contents(runs, originals):
            file.write(data)
            digest.update(data)
            copying(len(data))
        return file.tell(), digest.hexdigest()


def _contents(runs: Sequence[_ByteRun], originals: Mapping[str, Path]) -> Iterator[bytes]:
    """Contents of a file with the runs, in chunks."""
    at = 0
    for location, group in groupby(runs, lambda run: run.span.location):
        original = originals[location]
        file, _ = open_regular(original)
        with file:
            for run in group:
                yield bytes(run.at - at)
                yield from _chunks(file, run.span, original)
                at = run.at + run.span.size_bytes


def _chunks(file: BinaryIO, span: Span, original: Path) -> Iterator[bytes]:
    """The bytes of a span."""
    try:
        for row in range(span.rows):
            file.seek(span.offset + row * span.stride)
            left = span.row_bytes
            while left:
                data = file.read(min(left, CHUNK_BYTES))
                if not data:
                    raise InputFileError(f"{original}: became shorter while it was read")
                left -= len(data)
                yield data
    except OSError as error:
        raise InputFileError(f"{original}: {error.strerror}") from None


def _relocated(
    model: onnx.ModelProto, kept: Mapping[str, str], runs: Sequence[_ByteRun]
) -> onnx.ModelProto:
    """The model with the places where its external data now is.

    Files in `kept` have a name in the folder of the stage; the others are in `runs`.
    """
    joined = [run for run in runs if run.span.rows == 1]
    starts = [(run.span.location, run.span.offset) for run in joined]
    apart = {run.span: run for run in runs if run.span.rows > 1}
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for tensor in held_tensors(copy):
        span = span_of(tensor)
        if span is None:
            continue
        if span in apart:
            point_to(tensor, Span(DATA_FILE, apart[span].at, span.size_bytes))
        elif span.location in kept:
            for entry in tensor.external_data:
                if entry.key == "location":
                    entry.value = kept[span.location]
        else:
            run = joined[bisect_right(starts, (span.location, span.offset)) - 1]
            offset = run.at + span.offset - run.span.offset
            point_to(tensor, Span(DATA_FILE, offset, span.size_bytes))
    return copy
