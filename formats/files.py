"""Bytes of files that the user names or that come along; what a file is, by its beginning."""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path
from typing import BinaryIO

from dnnp.core.model.errors import FormatError, InputFileError

_SAMPLES = Path(__file__).parent.parent / "samples"
"""The package `dnnp.samples`, which stands beside this one."""


def read_file(path: str | Path) -> bytes:
    """All bytes of a file that the user names; it may be a pipe.

    Raises
    ------
    InputFileError
        The file is missing or cannot be read.
    """
    try:
        return Path(path).read_bytes()
    except ValueError:
        raise InputFileError(f"{str(path)!r}: not a file name") from None
    except OSError as error:
        raise InputFileError(f"{path}: {error.strerror}") from None


def open_regular(path: str | Path) -> tuple[BinaryIO, int]:
    """Open a file that a stream or a model may have chosen; and its size in bytes.

    A pipe would wait for ever, a device such as `/dev/zero` never end: neither is opened.

    Raises
    ------
    InputFileError
        The file is missing, cannot be read, or is not a regular file.
    """
    try:
        _check_regular(os.stat(path))
        # What stands there may have changed since: opening it must not wait even then.
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            size = _check_regular(os.fstat(number))
        except OSError:
            os.close(number)
            raise
    except ValueError:
        raise InputFileError(f"{str(path)!r}: not a file name") from None
    except OSError as error:
        raise InputFileError(f"{path}: {error.strerror}") from None
    return os.fdopen(number, "rb"), size


def read_regular(path: str | Path, limit: int, reason: str) -> bytes:
    """All bytes of a file as for `open_regular`, if there are at most `limit`.

    Raises
    ------
    InputFileError
        See `open_regular`.
    FormatError
        There are more; the message gives their number and `reason`.
    """
    file, size = open_regular(path)
    with file:
        if size > limit:
            raise FormatError(f"{size} bytes; {reason}", str(path))
        try:
            return file.read(size)
        except OSError as error:
            raise InputFileError(f"{path}: {error.strerror}") from None


def _check_regular(found: os.stat_result) -> int:
    """Size of a regular file; raises `OSError` for anything else."""
    if stat.S_ISDIR(found.st_mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "not a regular file")
    return found.st_size


def bundled_names(folder: str) -> list[str]:
    """Names of the JSON files in a folder of `dnnp.samples`, sorted, without their ending."""
    found = (file.name for file in (_SAMPLES / folder).iterdir())
    return sorted(name.removesuffix(".json") for name in found if name.endswith(".json"))


def read_bundled(folder: str, name: str) -> bytes:
    """Bytes of the file with one of the `bundled_names`."""
    return (_SAMPLES / folder / f"{name}.json").read_bytes()


_STREAM = re.compile(rb'\s*\{\s*"type"\s*:\s*"header"')
_ONNX = re.compile(rb"\x08[\x01-\x20][\x12\x1a\x22\x3a\x42]", re.DOTALL)
"""A small version of the format, then the next field of a model: producer, domain, graph, ..."""

KINDS: dict[str, tuple[re.Pattern[bytes], str]] = {
    "stream": (_STREAM, "a stream, which the commands after dnnp-import read"),
    "model": (_ONNX, "an ONNX model; dnnp-import makes a stream of it"),
    "lfs": (re.compile(rb"version https://git-lfs"), "a pointer of Git LFS; git lfs pull gets it"),
    "gzip": (re.compile(rb"\x1f\x8b"), "compressed by gzip; gunzip it first"),
    "zstd": (re.compile(rb"\x28\xb5\x2f\xfd"), "compressed by zstd; unzstd it first"),
    "zip": (re.compile(rb"PK\x03\x04"), "a zip archive; unzip it first"),
    "page": (re.compile(rb"\s*<(!DOCTYPE|html|HTML)"), "a web page"),
}
"""Kind -> how it begins, and what it is, with what to do about it."""


def what_it_is(data: bytes, wanted: str = "") -> str:
    """The end of a message about a file that is not of the kind wanted; empty if nobody knows.

    >>> what_it_is(b'{"type":"header"}', "model")
    '; it is a stream, which the commands after dnnp-import read'
    >>> what_it_is(b'{"type":"header"}', "stream"), what_it_is(b"???")
    ('', '')
    """
    start = data[:200]
    for kind, (beginning, text) in KINDS.items():
        if beginning.match(start):
            return "" if kind == wanted else f"; it is {text}"
    return ""
