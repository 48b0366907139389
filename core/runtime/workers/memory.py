"""Memory that processes share and that has no name: it goes with the last one who has it."""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
from contextlib import suppress

from dnnp.core.model.errors import InputFileError
from dnnp.core.model.text import shown_bytes

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
