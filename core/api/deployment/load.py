"""Samples of a run: random inputs, given ones, or files; how many, and when."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, BinaryIO

from dnnp.core.model.errors import InputFileError, UsageError
from dnnp.core.model.text import counted
from dnnp.core.runtime.model.inputs import Sample, bind_names, input_specs, random_inputs
from dnnp.core.runtime.pipeline.sources import Arrivals, FileRun, Item, Traffic
from dnnp.formats.onnx.value_types import known_shapes
from dnnp.formats.stream import Stream
from dnnp.formats.tensors import read_inputs
from dnnp.options.run import SWEEP, RunOptions

if TYPE_CHECKING:
    from onnx import ModelProto

    from dnnp.core.runtime.comparisons import Sweep
    from dnnp.core.runtime.pipeline.schedule_orders import Program


SAMPLES = 32
"""Samples that are measured at least where nothing says how many."""

ENOUGH_S = 1.0
"""Seconds that are measured at least where nothing says how many samples."""

OPEN_S = 10.0
"""Seconds in which samples arrive where nothing says how long: the slowest ones are rare."""

STEP_S = 2.0
"""The same for each rate of a sweep."""

WARMUP = 3
"""Samples before them where nothing says how many, for each replica of a stage; after those that
go through until the rate is steady."""

DISTINCT = 4
"""Random inputs drawn when none are given; samples take them in turn."""

ENDINGS = (".npz", ".npy", ".pb")
"""Endings of files of tensors."""

Read = Callable[[str], "Sample"]


def load_of(
    options: RunOptions,
    stream: Stream,
    model: ModelProto,
    replicas: int,
    program: Program | None,
) -> Traffic:
    """Collect what is sent through; `replicas` are those of the stage that has most.

    Raises
    ------
    UsageError
        The options do not fit a schedule, or what the inputs are.
    FormatError, InputFileError
        Inputs that do not fit the model, or cannot be read.
    """
    read = _reader(options, stream, model)
    warmup = WARMUP if options.warmup is None else options.warmup
    load = Traffic([], 0, warmup, options.queue, program=program)
    if program is not None:
        for flag in ("duration", "rate", "outputs"):
            if getattr(options, flag) is not None:
                raise UsageError(_scheduled(f"--{flag}", program.count))
    files = _files(options, read)
    if files is not None:
        if program is not None:
            raise UsageError(_scheduled("inputs that go through once each", program.count))
        first = files.first()
        if files.error is not None:
            raise files.error
        return replace(load, samples=[] if first is None else [first], files=files)
    arrivals = None
    if options.rate is not None and options.rate != SWEEP:
        arrivals = Arrivals(options.arrivals, float(options.rate), options.seed)
    measured = _measured(options, program, arrivals)
    total = measured if program is not None else warmup * replicas + measured
    samples = _samples(options, stream, model, read, total)
    if len(samples) > total:
        how = "raise -n" if program is None else "the schedule is for as many"
        options.caller.note(f"only the first {total} of {len(samples)} inputs are used; {how}")
        del samples[total:]
    closed = options.rate == SWEEP or (options.rate is None and options.duration is None)
    return replace(
        load,
        samples=samples,
        count=measured,
        until_steady=options.warmup is None,
        least_s=ENOUGH_S if closed and options.samples is None else 0.0,
        seconds=options.duration if options.rate is None else None,
        arrivals=arrivals,
    )


def sweep_of(options: RunOptions) -> Sweep | None:
    """The rates to try after the measurement, if requested."""
    if options.rate != SWEEP:
        return None
    from dnnp.core.runtime.comparisons import Sweep

    return Sweep(
        options.arrivals,
        options.seed,
        options.samples,
        STEP_S if options.duration is None else options.duration,
        SAMPLES,
    )


def _measured(options: RunOptions, program: Program | None, arrivals: Arrivals | None) -> int:
    """Samples to measure, or the least of them."""
    if program is not None:
        return program.count
    if options.samples is not None:
        return options.samples
    if arrivals is not None:
        seconds = OPEN_S if options.duration is None else options.duration
        found = arrivals.within(seconds)
        return found if options.duration is not None else max(found, SAMPLES)
    return max(SAMPLES, len(options.inputs))


def _scheduled(what: str, count: int) -> str:
    return f"{what}: the stream holds a schedule, of {counted(count, 'sample')}"


def _reader(options: RunOptions, stream: Stream, model: ModelProto) -> Read:
    """Make a function that reads and checks a sample, and notes unexpected sizes once."""
    specs, shapes = input_specs(model), known_shapes(stream)
    told: set[str] = set()

    def read(path: str) -> Sample:
        bind = partial(bind_names, specs=specs, source=path)
        sample = bind(read_inputs(path, admit=bind))
        for name, value in sample.items():
            shape = list(getattr(value, "shape", ()))
            if name in shapes and shape != shapes[name] and name not in told:
                told.add(name)
                options.caller.note(
                    f"{path}: input '{name}' has shape {shape}, the loads were predicted for "
                    f"{shapes[name]}: expect other times"
                )
        return sample

    return read


def _samples(
    options: RunOptions, stream: Stream, model: ModelProto, read: Read, total: int
) -> list[Sample]:
    """The given inputs, or up to `total` random ones of the shapes that were imported."""
    if options.inputs:
        return [read(path) for path in options.inputs]
    shapes = known_shapes(stream)
    distinct = min(DISTINCT, total)
    return [random_inputs(model, [options.seed, i], shapes=shapes) for i in range(distinct)]


def _files(options: RunOptions, read: Read) -> FileRun | None:
    """The files that go through once each; None: the inputs are repeated, or random."""
    paths = [os.fspath(path) for path in options.inputs]
    many = [path for path in paths if path == "-" or _holds_many(path)]
    if options.outputs is None and not many:
        return None
    if options.outputs is None:
        if options.verify:
            raise UsageError("--verify: inputs of a folder go through once each, to --outputs")
        options.refuse_with_files("a folder of inputs")
    else:
        try:
            os.makedirs(options.outputs, exist_ok=True)
        except OSError as error:
            raise InputFileError(f"{options.outputs}: {error.strerror}") from None
    keep_going = options.caller.warn if options.keep_going else None
    if paths == ["-"]:
        file = options.caller.standard_input("--inputs -")
        names = names_in(file, b"\0" if options.null else b"\n")
        items = _items(names, options.outputs)
        return FileRun(items, read, most=options.samples, keep_going=keep_going, unique=False)
    found = [
        name for path in paths for name in (_listed(path, options) if path in many else [path])
    ]
    _refuse_same_names(found, options.outputs)
    items = _items(iter(found), options.outputs)
    files = FileRun(items, read, most=options.samples, keep_going=keep_going)
    files.found = len(found)
    return files


def _holds_many(path: str) -> bool:
    """True if a folder holds samples; one with `input_0.pb` is a sample itself."""
    if not os.path.isdir(path):
        return False
    try:
        names = os.listdir(path)
    except OSError as error:
        raise InputFileError(f"{path}: {error.strerror}") from None
    if any(re.fullmatch(r"input_\d+\.pb", name) for name in names):
        return False
    return any(_is_sample(path, name) for name in names)


def _is_sample(folder: str, name: str) -> bool:
    """True if an entry of a folder is a sample by its name, or a folder with one."""
    if name.startswith("."):
        return False
    return name.endswith(ENDINGS) or os.path.isfile(os.path.join(folder, name, "input_0.pb"))


def _listed(folder: str, options: RunOptions) -> list[str]:
    """Paths of the samples in a folder, by name; notes the files left out."""
    names = sorted(name for name in os.listdir(folder) if not name.startswith("."))
    samples = [name for name in names if _is_sample(folder, name)]
    others = len(names) - len(samples)
    if others:
        first = next(name for name in names if not _is_sample(folder, name))
        shown = first if others == 1 else f"{first} and {others - 1} more"
        options.caller.note(f"{folder}: holds no tensors, left out: {shown}")
    return [os.path.join(folder, name) for name in samples]


def _target(path: str, outputs: str | None) -> str | None:
    """File for the outputs of an input: the name is kept, its ending is `.npz`."""
    if outputs is None:
        return None
    name = os.path.basename(os.path.normpath(path))
    stem, ending = os.path.splitext(name)
    return os.path.join(outputs, f"{stem if ending in ENDINGS else name}.npz")


def _items(paths: Iterator[str], outputs: str | None) -> Iterator[Item]:
    return (Item(path, _target(path, outputs)) for path in paths)


def _refuse_same_names(paths: Sequence[str], outputs: str | None) -> None:
    """Refuse inputs whose outputs would be one file."""
    seen: dict[str, str] = {}
    for path in paths if outputs is not None else ():
        target = _target(path, outputs) or ""
        if target in seen:
            raise UsageError(f"{seen[target]} and {path} have the same output, {target}")
        seen[target] = path


def names_in(file: BinaryIO, separator: bytes) -> Iterator[str]:
    """File names, as they come; empty ones do not count.

    Raises `InputFileError` if they cannot be read.
    """
    some = getattr(file, "read1", file.read)
    rest = b""
    while True:
        try:
            data = some(1 << 16)
        except OSError as error:
            raise InputFileError(f"<stdin>: {error.strerror}") from None
        *names, rest = (rest + data).split(separator)
        if not data:
            names, rest = [*names, rest], b""
        yield from (os.fsdecode(name) for name in names if name)
        if not data:
            return
