"""Commands under little memory: room for libraries that do not say that they lack it.

OpenBLAS takes memory while it is loaded, and asks for it again for ever where there is none; no
signal handler of ours runs meanwhile. So the modules that load it are imported only where there
is room for it.
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Sequence

ROOM_BYTES = 100_000_000
"""More than each of the modules takes: 90 MB, of which OpenBLAS's buffer is a third."""

GREEDY = (
    "numpy._core._multiarray_umath",
    "numpy.core._multiarray_umath",  # up to numpy 1.26
    "scipy.linalg",
)
"""Modules that load a copy of OpenBLAS, each its own."""


class Room:
    """A finder that finds nothing, and looks whether there is room for what is imported."""

    @staticmethod
    def find_spec(name: str, _path: Sequence[str] | None, _target: object = None) -> None:
        """Leave a module to the finders that follow.

        Raises
        ------
        MemoryError
            There is no room for it.
        """
        if name in GREEDY:
            require(ROOM_BYTES)


def mind_memory() -> None:
    """From now on, look for room before imports that need much; one line is enough about it."""
    if Room not in sys.meta_path:
        sys.meta_path.insert(0, Room)
    sys.unraisablehook = _tell


def for_memory(error: BaseException | None) -> bool:
    """Whether an error is one for want of memory.

    Python 3.11 has no memory for the frame of a call, and says that it knows no reason.
    """
    return isinstance(error, MemoryError) or (
        isinstance(error, SystemError) and "error return without exception set" in str(error)
    )


def _tell(event: sys.UnraisableHookArgs) -> None:
    """Show an error that nobody can catch, unless it will come again where somebody does."""
    if not for_memory(event.exc_value):
        sys.__unraisablehook__(event)


def require(size: int) -> None:
    """Raise MemoryError unless the system gives so many bytes, which are given back at once."""
    try:
        mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
    except OSError:
        raise MemoryError from None
