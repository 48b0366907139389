"""Tensors in shared memory without a name: where each one lies, written and read in place."""

from __future__ import annotations

import errno
import mmap
import os
import pickle
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dnnp.core.model.errors import InputFileError
from dnnp.core.model.text import shown_bytes
from dnnp.core.runtime.values import Values, to_numpy

ALIGN = 64
"""Tensors begin at multiples of this, bytes."""

OWN = 1 << 16
"""Tensors of so many bytes have a block of their own, so that they leave with their last reader."""

BlockId = int | str


class Ref(NamedTuple):
    """Where a value lies."""

    block: BlockId
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
    """(block, offset) of tensors of so many bytes, and the bytes of each block.

    Small tensors share one, and so do those without any bytes.

    >>> layout([10, 65536, 100])
    ([(0, 0), (1, 0), (0, 64)], [164, 65536])
    >>> layout([70000])
    ([(0, 0)], [70000])
    """
    places: list[tuple[int, int]] = []
    blocks: list[int] = []
    common = -1
    for size in sizes:
        if size >= OWN:
            places.append((len(blocks), 0))
            blocks.append(size)
            continue
        if common < 0:
            common = len(blocks)
            blocks.append(0)
        offset = -(-blocks[common] // ALIGN) * ALIGN
        places.append((common, offset))
        blocks[common] = offset + size
    return places, [max(size, 1) for size in blocks]


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
