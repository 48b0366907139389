"""Bytes of files that the user names or that come along; files that are being written.

Files and folders that are being written: removed when the work fails, or the process is ended. This
is their one register. Code that makes something that must not stay behind half done, or not at all,
makes it inside `unfinished`.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, BinaryIO

from dnnp.core.model.errors import FormatError, InputFileError

if TYPE_CHECKING:
    from io import BufferedReader
    from pathlib import Path  # takes longer to import than `--help` to print

_SAMPLES = os.path.join(os.path.dirname(__file__), os.pardir, "samples")
"""The package `dnnp.samples`, which stands beside this one."""


def read_file(path: str | Path) -> bytes:
    """All bytes of a file that the user names; it may be a pipe.

    Raises
    ------
    InputFileError
        The file is missing or cannot be read.
    """
    try:
        with open(path, "rb") as file:
            return file.read()
    except ValueError:
        raise InputFileError(f"{str(path)!r}: not a file name") from None
    except OSError as error:
        raise InputFileError(f"{path}: {error.strerror}") from None


def open_regular(path: str | Path) -> tuple[BufferedReader, int]:
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
    found = os.listdir(os.path.join(_SAMPLES, folder))
    return sorted(name.removesuffix(".json") for name in found if name.endswith(".json"))


def read_bundled(folder: str, name: str) -> bytes:
    """Bytes of the file with one of the `bundled_names`."""
    with open(os.path.join(_SAMPLES, folder, f"{name}.json"), "rb") as file:
        return file.read()


_STREAM = rb'\s*\{\s*"type"\s*:\s*"header"'
_ONNX = rb"\x08([\x01-\x20][\x12\x1a\x22\x3a\x42]|$)"
"""A small version of the format, then the next field of a model: producer, domain, graph, ...

Version 10 ends a line.
"""

KINDS: dict[str, tuple[bytes, str]] = {
    "stream": (_STREAM, "a stream, which the commands after dnnp-import read"),
    "model": (_ONNX, "an ONNX model; dnnp-import makes a stream of it"),
    "lfs": (rb"version https://git-lfs", "a pointer of Git LFS; git lfs pull gets it"),
    "gzip": (rb"\x1f\x8b", "compressed by gzip; gunzip it first"),
    "zstd": (rb"\x28\xb5\x2f\xfd", "compressed by zstd; unzstd it first"),
    "torch": (
        rb"(?s)PK\x03\x04.{26}[^\0]*/data\.pkl",
        "of PyTorch; torch.onnx.export makes a model",
    ),
    "keras": (rb"\x89HDF", "HDF5, as Keras writes it; tf2onnx makes a model of it"),
    "tflite": (rb"(?s).{4}TFL3", "of TensorFlow Lite; tf2onnx makes a model of it"),
    "zip": (rb"PK\x03\x04", "a zip archive; unzip it first"),
    "page": (rb"\s*<(!DOCTYPE|html|HTML)", "a web page"),
}
"""Kind -> how it begins, and what it is, with what to do about it; compiled where it is asked."""


def what_it_is(data: bytes, wanted: str = "") -> str:
    """The end of a message about a file that is not of the kind wanted; empty if unknown.

    >>> what_it_is(b'{"type":"header"}', "model")
    '; it is a stream, which the commands after dnnp-import read'
    >>> what_it_is(b'{"type":"header"}', "stream"), what_it_is(b"???")
    ('', '')
    """
    start = data[:200]
    for kind, (beginning, text) in KINDS.items():
        if re.match(beginning, start):
            return "" if kind == wanted else f"; it is {text}"
    return ""


_owners: dict[str, int] = {}
"""Path -> the process that writes there; a process that was forked off does not own it."""

_listeners: list[Callable[[str, bool], None]] = []

WHOLE = ""
"""Listeners are told of it, in place of a path, while something goes on that must be done whole."""

_later: list[Callable[[], object]] | None = None
"""Signals that wait for its end; None: no critical section is active."""


def listen(listener: Callable[[str, bool], None]) -> None:
    """Tell a process that outlives this one of every path that it registers (True) and releases.

    Processes that are forked off do not.
    """
    owner = os.getpid()
    _listeners.append(lambda path, there: listener(path, there) if os.getpid() == owner else None)


@contextmanager
def unfinished(path: str) -> Iterator[str]:
    """Register a file or folder that the caller is about to make; remove what is left of it.

    The caller renames it before the block ends. No other process may use the name: see
    `fresh_name`.
    """
    path = os.path.abspath(path)
    _owners[path] = os.getpid()
    for listener in _listeners:
        listener(path, True)
    try:
        yield path
    finally:
        if _owners.get(path) == os.getpid():
            remove(path)
            del _owners[path]
            for listener in _listeners:
                listener(path, False)


@contextmanager
def whole() -> Iterator[None]:
    """Critical section: defer termination signals until it ends.

    See `when_whole`. Only what kills at once, such as a crash, leaves it half done.
    """
    global _later
    _later = []
    for listener in _listeners:
        listener(WHOLE, True)
    try:
        yield
    finally:
        for listener in _listeners:
            listener(WHOLE, False)
        actions, _later = _later, None
        for action in actions:
            action()


def when_whole(action: Callable[[], object]) -> None:
    """Do something now, or after what has to be done whole."""
    if _later is None:
        action()
    else:
        _later.append(action)


def remove_unfinished() -> None:
    """Remove every unfinished file and folder of this process, which is about to end."""
    for path, owner in list(_owners.items()):
        if owner == os.getpid():
            remove(path)


def any_unfinished() -> bool:
    """Test whether this process is writing something that it would have to remove."""
    return os.getpid() in _owners.values()


def fresh_name(prefix: str, suffix: str = "") -> str:
    """An unpredictable file name."""
    return f"{prefix}{os.urandom(8).hex()}{suffix}"


@contextmanager
def scratch_folder() -> Iterator[str]:
    """A folder of this process alone among the temporary files, gone after the block.

    Raises
    ------
    OSError
        It cannot be made.
    """
    import tempfile

    with unfinished(os.path.join(tempfile.gettempdir(), fresh_name("dnnp-"))) as folder:
        os.mkdir(folder, 0o700)
        yield folder


@contextmanager
def replacement(path: str) -> Iterator[BinaryIO]:
    """Write a file that takes the place of `path` when the block ends without an error.

    It takes over the mode of a file that is there. A link is replaced, not followed.

    Raises
    ------
    OSError
        It cannot be written.
    """
    with unfinished(os.path.join(os.path.dirname(path), fresh_name(".dnnp-", ".tmp"))) as temporary:
        # Whoever foresees the name could else plant a link to a file that we would overwrite.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(temporary, flags, 0o666), "wb") as file:
            yield file
            file.flush()
            if os.path.isfile(path):
                os.fchmod(file.fileno(), os.stat(path).st_mode & 0o7777)
            os.fsync(file.fileno())
        os.replace(temporary, path)


def remove(path: str) -> None:
    """Remove a file, a link, or a folder with all that is in it; links in it are not followed."""
    if os.path.isdir(path) and not os.path.islink(path):
        import shutil

        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            os.unlink(path)


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


@contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Write a file that the user names, atomically.

    Raises
    ------
    InputFileError
        It cannot be written.
    """
    try:
        with atomic_output(os.fspath(path)) as file:
            yield file
    except OSError as error:
        raise InputFileError(f"{os.fspath(path)}: {error.strerror or error}") from None
