"""Messages between processes: what they say, and how they travel."""

from __future__ import annotations

import array
import errno
import mmap
import os
import pickle
import socket
import struct
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dnnp.core.model import errors
from dnnp.core.model.errors import DnnpError, InputFileError
from dnnp.core.model.text import shown_bytes
from dnnp.core.runtime.values import Values, to_numpy

ALIGN = 64
"""Tensors begin at multiples of this, bytes."""

OWN = 1 << 16
"""Bytes from which on a tensor has a buffer of its own, so that it leaves with its last reader."""

BufferId = int | str


class Ref(NamedTuple):
    """Place of a value."""

    buffer: BufferId
    offset: int
    dtype: np.dtype[Any] | None
    """None: not a tensor of numbers, but what `pickle` made of it."""
    shape: tuple[int, ...]


class OtherwiseError(Exception):
    """A stage has computed its outputs, but not where it was told to."""

    def __init__(self, values: Values) -> None:
        super().__init__()
        self.values = values


class Plain(NamedTuple):
    """A value as bytes."""

    data: NDArray[Any]
    dtype: np.dtype[Any] | None
    shape: tuple[int, ...]


def plain(value: Any) -> Plain:
    """The bytes of an array of numbers as they are; of strings, sequences and so on, a pickle."""
    value = to_numpy(value)
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        array = np.ascontiguousarray(value).reshape(value.shape)
        return Plain(array.view(np.uint8) if array.ndim else array, array.dtype, array.shape)
    data = np.frombuffer(pickle.dumps(value, pickle.HIGHEST_PROTOCOL), dtype=np.uint8)
    return Plain(data, None, data.shape)


def nbytes(dtype: np.dtype[Any], shape: Sequence[int]) -> int:
    """Bytes of a tensor."""
    return int(np.prod(shape, dtype=np.int64)) * dtype.itemsize


def array_at(memory: memoryview, ref: Ref) -> NDArray[Any]:
    """The array that lies there, sharing the memory."""
    dtype = np.dtype(np.uint8) if ref.dtype is None else ref.dtype
    size = nbytes(dtype, ref.shape)
    raw = np.frombuffer(memory, dtype=np.uint8, count=size, offset=ref.offset)
    return raw.view(dtype).reshape(ref.shape)


def value_at(memory: memoryview, ref: Ref) -> Any:
    """The value that lies there; an array shares the memory."""
    array = array_at(memory, ref)
    return pickle.loads(array.data) if ref.dtype is None else array


def write_at(memory: memoryview, ref: Ref, data: NDArray[Any]) -> None:
    """Copy bytes there."""
    size = data.nbytes
    target = np.frombuffer(memory, dtype=np.uint8, count=size, offset=ref.offset)
    np.copyto(target, np.frombuffer(data.reshape(-1).view(np.uint8), dtype=np.uint8))


def layout(sizes: Sequence[int]) -> tuple[list[tuple[int, int]], list[int]]:
    """(buffer, offset) of tensors of so many bytes, and the bytes of each buffer.

    Small tensors share one, and so do those without any bytes.

    >>> layout([10, 65536, 100])
    ([(0, 0), (1, 0), (0, 64)], [164, 65536])
    >>> layout([70000])
    ([(0, 0)], [70000])
    """
    places: list[tuple[int, int]] = []
    buffers: list[int] = []
    common = -1
    for size in sizes:
        if size >= OWN:
            places.append((len(buffers), 0))
            buffers.append(size)
            continue
        if common < 0:
            common = len(buffers)
            buffers.append(0)
        offset = -(-buffers[common] // ALIGN) * ALIGN
        places.append((common, offset))
        buffers[common] = offset + size
    return places, [max(size, 1) for size in buffers]


_FOLDERS = ("/dev/shm",)
"""Where files lie in memory, if the system makes no memory without names."""


def reserve(size: int) -> int:
    """A descriptor of so many bytes, all of them set aside, so that none is missing later.

    Raises
    ------
    InputFileError
        There is not so much shared memory, or there are too many open files.
    """
    try:
        fd = os.memfd_create("dnnp") if hasattr(os, "memfd_create") else _unlinked()
    except OSError as error:
        raise InputFileError(f"no shared memory: {error.strerror}") from None
    try:
        _set_aside(fd, size)
    except OSError as error:
        os.close(fd)
        full = error.errno in (errno.ENOSPC, errno.ENOMEM, errno.EDQUOT)
        reason = "it is full" if full else str(error.strerror)
        raise InputFileError(f"no shared memory for {shown_bytes(size)}: {reason}") from None
    return fd


def _unlinked() -> int:
    """A file that nobody else finds, in memory if there is a folder for that."""
    folder = next((f for f in _FOLDERS if os.access(f, os.W_OK)), None)
    fd, path = tempfile.mkstemp(dir=folder)
    os.unlink(path)
    return fd


def _set_aside(fd: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        with suppress(InterruptedError):
            os.posix_fallocate(fd, 0, size)
            return
        _set_aside(fd, size)
        return
    step = bytes(1 << 20)
    for at in range(0, size, len(step)):
        os.pwrite(fd, step[: size - at], at)


def view(fd: int, size: int, *, write: bool) -> memoryview:
    """The bytes of a descriptor, which may be closed then."""
    return memoryview(mmap.mmap(fd, size, access=mmap.ACCESS_WRITE if write else mmap.ACCESS_READ))


class Offer(NamedTuple):
    """News about buffers; their descriptors go with the message."""

    buffers: Sequence[tuple[BufferId, int, bool]]
    """Number, bytes, and whether to write there, of buffers that are new to the process."""
    gone: Sequence[BufferId]
    """Buffers that are not used any more."""


class Begin(NamedTuple):
    """A stage to make; those of a process come before all jobs."""

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
    part: int
    """By which of the stages, from 0, as they were made."""
    values: Mapping[str, Ref]
    room: Sequence[tuple[BufferId, int]]
    """Buffers for outputs, and their bytes."""


class Weigh(NamedTuple):
    """Ask for the memory that the process holds."""

    offer: Offer


class Weighed(NamedTuple):
    """The answer."""

    resident_bytes: int
    """Beyond an empty session; 0: the system does not tell."""


class Ready(NamedTuple):
    """A stage is made."""


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
    made: Sequence[tuple[BufferId, int]]
    """Numbers and bytes of buffers that the process has made for it."""


def failure_of(error: Exception) -> Failed:
    """Message about an error; of one that is not ours its kind and first line."""
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
