"""The end of a command's process."""

from __future__ import annotations

import atexit
import os
import sys
from contextlib import suppress
from typing import NoReturn


def leave(status: int) -> NoReturn:
    """End the process at once, with everything written.

    Taking down the interpreter, its compiler and the memory of both takes a processor for a good
    tenth of a second or more, on which the next command of a pipeline may be measuring by then.
    What has registered to be called at the end is called; threads are not waited for.
    """
    atexit._run_exitfuncs()
    for file in (sys.stdout, sys.stderr):
        if file is not None:
            with suppress(OSError, ValueError):
                file.flush()
    os._exit(status)
