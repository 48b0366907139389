"""What a process that computes is told, and what it answers; actors fail by the same words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dnnp.core.model import errors
from dnnp.core.model.errors import DnnpError, InputFileError
from dnnp.core.runtime.workers.tensors import BlockId, Ref


class Offer(NamedTuple):
    """News about blocks; their descriptors go with the message."""

    blocks: Sequence[tuple[BlockId, int, bool]]
    """Number, bytes, and whether to write there, of blocks that are new to the process."""
    gone: Sequence[BlockId]
    """Blocks that are not used any more."""


class Begin(NamedTuple):
    """The first message."""

    offer: Offer
    recipe: bytes
    """What to make, pickled."""
    values: Mapping[str, Ref]
    """What to make it of."""
    cores: tuple[int, ...]
    """The process computes on the first of these; empty: anywhere."""
    path: Sequence[str]
    """Where to look for modules."""


class Job(NamedTuple):
    """One sample to compute."""

    offer: Offer
    values: Mapping[str, Ref]
    room: Sequence[tuple[BlockId, int]]
    """Blocks for outputs, and their bytes."""


class Ready(NamedTuple):
    """The stage is made."""

    threads: tuple[int, ...]
    """The threads that compute with the first one."""


class Failed(NamedTuple):
    """It could not be made, or a sample not be computed."""

    kind: str
    """Name of a class of `core.model.errors`."""
    reason: str


class Done(NamedTuple):
    """A sample was computed."""

    values: Mapping[str, Ref]
    start_ns: int
    """By `time.perf_counter_ns`, which all processes of a machine share."""
    end_ns: int
    waited_ns: int
    made: Sequence[tuple[BlockId, int]]
    """Numbers and bytes of blocks that the process has made for it."""


def failure_of(error: Exception) -> Failed:
    """What is said about an error; of one that is not ours its kind and first line."""
    if isinstance(error, DnnpError):
        return Failed(type(error).__name__, str(error))
    kind = type(error).__name__
    text = (str(error).strip().splitlines() or [""])[0]
    return Failed(InputFileError.__name__, f"{kind}: {text}" if text else kind)


def error_of(failed: Failed) -> DnnpError:
    """The error of ours that a worker reports."""
    found = getattr(errors, failed.kind, None)
    if isinstance(found, type) and issubclass(found, DnnpError):
        return found(failed.reason)
    return InputFileError(failed.reason)
