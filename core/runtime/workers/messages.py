"""Messages between processes: what they say, and how they travel."""

from __future__ import annotations

import array
import pickle
import socket
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

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


_HEAD = struct.Struct("=QI")
"""Bytes of a message, and descriptors that come with its head."""

_MOST = 200
"""Descriptors that go with one message; the system takes some 250."""

_FLAGS = getattr(socket, "MSG_CMSG_CLOEXEC", 0)


def send(link: socket.socket, message: Any, fds: Sequence[int] = ()) -> None:
    """Send a message; raises `OSError` if the other end is closed."""
    while len(fds) > _MOST:
        _send(link, b"", fds[:_MOST])
        fds = fds[_MOST:]
    _send(link, pickle.dumps(message, pickle.HIGHEST_PROTOCOL), fds)


def _send(link: socket.socket, data: bytes, fds: Sequence[int]) -> None:
    head = _HEAD.pack(len(data), len(fds))
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    # At once: whoever waits for it wakes up once.
    sent = link.sendmsg([head, data], rights)
    if sent < len(head) + len(data):
        link.sendall((head + data)[sent:])


def receive(link: socket.socket) -> tuple[Any, list[int]]:
    """The next message and its descriptors; raises `EOFError` at the end, or `OSError`."""
    fds: list[int] = []
    while True:
        space = socket.CMSG_SPACE(_MOST * array.array("i").itemsize)
        head, rights, flags, _ = link.recvmsg(_HEAD.size, space, _FLAGS)
        for _, kind, data in rights:
            if kind == socket.SCM_RIGHTS:
                got = array.array("i")
                got.frombytes(data[: len(data) - len(data) % got.itemsize])
                fds.extend(got)
        if flags & socket.MSG_CTRUNC:
            raise OSError("descriptors were lost: too many open files")
        size, _ = _HEAD.unpack(head + _read(link, _HEAD.size - len(head)))
        if size:
            return pickle.loads(_read(link, size)), fds


def _read(link: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    rest = memoryview(data)
    while rest:
        got = link.recv_into(rest)
        if not got:
            raise EOFError
        rest = rest[got:]
    return data
