"""Processes that do not outlive the one that started them."""

from __future__ import annotations

import signal
from contextlib import suppress

_PR_SET_PDEATHSIG = 1


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Have the system send this process a signal when its parent ends, however it does (Linux).

    Whoever may be too late to ask looks at its parent afterwards. The parent is the thread that
    started this process: a process that outlives that thread must not ask.
    """
    import ctypes

    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
