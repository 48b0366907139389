"""Output files that appear as a whole or not at all."""

from __future__ import annotations

import errno
import os

from dnnp.core.model.errors import InputFileError
from dnnp.formats.unfinished import atomic_output, remove_unfinished, unfinished

__all__ = ["atomic_output", "check_output", "remove_unfinished", "unfinished"]


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
