"""Callbacks and file access of steps, and search contexts that report to them."""

from __future__ import annotations

import os
import warnings
from _thread import allocate_lock
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, BinaryIO

from dnnp.core.model.errors import LimitError, UsageError

if TYPE_CHECKING:  # what takes longer to import than `--help` to print
    from pathlib import Path

    from onnx import ModelProto

    from dnnp.core.model.search_context import Progress, SearchContext
    from dnnp.formats.stream import Stream


class DnnpWarning(UserWarning):
    """Something that the user of a result must know."""


class Bar:
    """Display of the progress of long work; this one shows nothing."""

    def update(self, standing: Progress) -> None:
        """Told where the work stands; often, and by any thread."""

    def close(self) -> None:
        """Told that the work is over, however it ended."""

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Shown:
    """Shows the best that is known, whatever a step says last."""

    def __init__(self, bar: Bar, doing: str = "", about: str = "") -> None:
        from dnnp.core.model.search_context import Progress

        self._bar, self._about = bar, about
        self._known = Progress(doing)
        self._one_at_a_time = allocate_lock()

    def take(self, standing: Progress) -> None:
        """Told where a step stands, by any thread."""
        with self._one_at_a_time:
            self._known = standing.after(self._known)
            self._bar.update(self._known._replace(doing=self._about + self._known.doing))


class Callbacks:
    """Callbacks of a step; these pass warnings on and ignore the rest."""

    interrupted: bool = False
    """True where the step is to end with what it has. Looked at often."""
    began: float | None = None
    """Time at which the input was there, by `time.monotonic`: limits of time count from it."""
    notes_compiling: bool = False
    """True once it is told of kernels that are compiled."""
    about: str = ""
    """Words before what a search is doing, such as `k = 5: `, where there are several."""

    def warn(self, message: str) -> None:
        """Told what the user must know."""
        warnings.warn(message, DnnpWarning, stacklevel=2)

    def note(self, message: str) -> None:
        """Told something useful."""

    def detail(self, message: str) -> None:
        """Told a detail, for verbose output."""

    def elapsed(self, what: str) -> None:
        """Told that a part of the work is over."""

    def progress(self, doing: str, limit_s: float | None = None) -> Bar:
        """Told that something begins that may take long; in `limit_s` seconds it is over.

        What the bar is then told never gets worse: neither the value, nor the bound, nor the share
        of the work that is done.
        """
        return Bar()

    def read_input(self, path: str) -> bytes:
        """All bytes of a file that an option names.

        Raises InputFileError: it cannot be read.
        """
        from dnnp.formats.files import read_file

        return read_file(path)

    def standard_input(self, option: str) -> BinaryIO:
        """Standard input, where an option says to read it.

        Raises UsageError: there is nothing to read from, or it holds something else.
        """
        raise UsageError(f"{option}: only commands read standard input; give a list")

    def spare(self, path: str | os.PathLike[str], what: str) -> None:
        """Told the file or folder that is read, so that nothing is written there.

        Raises UsageError: it is about to be overwritten.
        """

    @contextmanager
    def held(self) -> Iterator[None]:
        """Messages may wait until the block is over, or `release`."""
        yield

    def release(self) -> None:
        """Nothing that was given can be wrong any more: messages need not wait."""

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Inside, what asks for an end sets `interrupted`, and ends nothing by itself."""
        yield


CALLBACKS = Callbacks()


def read_json(
    caller: Callbacks, value: str | os.PathLike[str] | Sequence[Any], flag: str
) -> tuple[bytes, str]:
    """JSON of the file or the list that an option gives; with a name for messages."""
    if isinstance(value, str | os.PathLike):
        return caller.read_input(os.fspath(value)), os.fspath(value)
    import orjson

    return orjson.dumps(list(value), option=orjson.OPT_SERIALIZE_NUMPY), flag


def open_source(
    caller: Callbacks, stream: Stream, override: str | None, *, light: bool = False
) -> tuple[ModelProto, Path, str]:
    """The source model of a stream, its path and SHA-256; see `load_model.source_model`.

    Raises UsageError: the command would overwrite the model or its weights.
    """
    from dnnp.formats.onnx.load_model import source_model

    model, path, digest = source_model(stream.header, override, light=light)
    spare_model(caller, model, path)
    return model, path, digest


def check_nodes(stream: Stream, model: ModelProto, path: Path) -> None:
    """Raise a FormatError if a node of a stream is not that of the model at `path`."""
    nodes = model.graph.node
    for i, record in enumerate(stream.get("node")):
        v = record["id"]
        if v >= len(nodes) or nodes[v].op_type != record["op"]:
            raise stream.fault_at("node", i, "id", f"{path} has no {record['op']} there")


def spare_model(caller: Callbacks, model: ModelProto, path: Path) -> None:
    """Make sure that no output is the file of a model, or one with its weights."""
    from dnnp.formats.onnx.scope import held_tensors
    from dnnp.formats.onnx.weights import external_fields

    caller.spare(path, "the model")
    fields = (external_fields(tensor) for tensor in held_tensors(model))
    for location in sorted({place["location"] for place in fields if "location" in place}):
        caller.spare(path.parent / location, "weights of the model")


MANY = 400
"""Units from which on a search surely needs compiled kernels."""


def run_of(
    caller: Callbacks,
    *,
    seed: int = 0,
    effort: float = 1.0,
    seconds: float | None = None,
    since: float | None = None,
    units: int = 0,
    in_seconds: bool = False,
    max_gap: float = 0.0,
) -> SearchContext:
    """Create a search context for a caller, and report compilation of kernels to it.

    `seconds`: after which it is over, counted from when the caller had the input, or else from
    `since` on the clock of `time.monotonic`, or else from now; None: no limit. `units`: of the
    problem, where known. `in_seconds`, `max_gap`: see `SearchContext`.
    """
    from dnnp.core.kernels.kernel import load_soon
    from dnnp.core.model.search_context import SearchContext

    note_compiling(caller)
    if units >= MANY:
        load_soon()
    began = since if caller.began is None else caller.began
    if seconds is not None and began is not None:
        seconds -= monotonic() - began
    return SearchContext(
        seed,
        effort,
        interrupted=partial(getattr, caller, "interrupted"),
        log=caller.detail,
        warn=caller.warn,
        in_seconds=in_seconds,
        max_gap=max_gap,
    ).within(seconds)


@contextmanager
def with_bar(
    caller: Callbacks, run: SearchContext, doing: str = "searching"
) -> Iterator[SearchContext]:
    """Show the caller meanwhile where the search stands.

    Raises KeyboardInterrupt: it was interrupted before there was anything to show, whichever limit
    was met.
    """
    from dataclasses import replace

    bar = caller.progress(caller.about + doing, run.time_left())
    caller.release()
    try:
        with bar:
            yield replace(run, watch=Shown(bar, doing, caller.about).take)
    except LimitError:
        if caller.interrupted:
            raise KeyboardInterrupt from None
        raise


def note_compiling(caller: Callbacks) -> None:
    """Say once when kernels are compiled from now on."""
    from dnnp.core.kernels.kernel import when_compiling

    if not caller.notes_compiling:
        caller.notes_compiling = True
        when_compiling(lambda: caller.note(_compiling()))


def _compiling() -> str:
    """Message for when kernels are compiled."""
    from dnnp.core.kernels.cache import folders, writable

    if writable() is not None:
        return "compiling kernels; this happens once and takes up to a minute"
    return (
        f"compiling kernels, every time anew: nothing can be kept in "
        f"{' or '.join(map(str, folders()))}; set NUMBA_CACHE_DIR to a folder that can be written "
        "to, or run python -m dnnp.warm once where these can"
    )
