"""Files and folders that are being written: removed when the work fails, or the process is ended.

This is their one register. Whoever makes something that must not stay behind half done, or not
at all, makes it inside `unfinished`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

_owners: dict[str, int] = {}
"""Path -> the process that writes there; a process that was forked off does not own it."""

_listeners: list[Callable[[str, bool], None]] = []

WHOLE = ""
"""Listeners are told of it, in place of a path, while something goes on that must be done whole."""

_later: list[Callable[[], object]] | None = None
"""What waits for the end of that; None: nothing of the kind goes on."""


def listen(listener: Callable[[str, bool], None]) -> None:
    """Tell someone who outlives this process of every path that it registers (True) and releases.

    Processes that are forked off tell nobody.
    """
    owner = os.getpid()
    _listeners.append(lambda path, there: listener(path, there) if os.getpid() == owner else None)


@contextmanager
def unfinished(path: str) -> Iterator[str]:
    """Register a file or folder that the caller is about to make; remove what is left of it.

    Whoever finishes it renames it before the block ends. The name must be one that nobody else
    can have taken: see `fresh_name`.
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
    """Do something short that nobody could undo: whoever ends this process waits for it.

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
    """Whether this process is writing something that it would have to remove."""
    return os.getpid() in _owners.values()


def fresh_name(prefix: str, suffix: str = "") -> str:
    """A file name that nobody can foresee."""
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
