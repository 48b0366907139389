"""Output files that appear as a whole or not at all."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from dnnp.core.model.errors import InputFileError
from dnnp.formats.unfinished import remove_unfinished, replacement, unfinished

__all__ = ["atomic_output", "check_output", "remove_unfinished", "unfinished"]


@contextmanager
def atomic_output(path: str) -> Iterator[BinaryIO]:
    """Write a temporary file beside `path` and rename it when all went well.

    A file that is there keeps its mode; a link keeps pointing where it does.
    """
    if os.path.exists(path) and not os.path.isfile(path):
        with open(path, "wb") as device:
            yield device
        return
    with replacement(os.path.realpath(path)) as file:
        yield file


def check_output(path: str) -> None:
    """Refuse an output that cannot be written before any work is done for it.

    Raises
    ------
    InputFileError
        `path` is a folder, or its folder is missing or may not be written to.
    """
    folder = os.path.dirname(path) or "."
    reason = None
    if not path:
        reason = "an empty file name"
    elif os.path.isdir(path):
        reason = os.strerror(errno.EISDIR)
    elif not os.path.isdir(folder):
        reason = os.strerror(errno.ENOENT)
    elif not os.path.exists(path) and not os.access(folder, os.W_OK):
        reason = os.strerror(errno.EACCES)
    if reason is not None:
        raise InputFileError(f"{path}: {reason}")
