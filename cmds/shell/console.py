"""Standard error: what a command tells the user, which decides nothing."""

from __future__ import annotations

import os
import sys
from typing import TextIO


def tell(console: TextIO, text: str) -> None:
    """Write text, if it can be written; if not, nothing more is."""
    try:
        console.write(text)
        console.flush()
    except (OSError, ValueError):
        if console is sys.stderr:
            # What is left in its buffer would fail again when the interpreter ends.
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, 2)
            os.close(nothing)


class Progress:
    """A progress bar on a terminal; silent elsewhere."""

    def __init__(self, label: str, total: int, console: TextIO | None) -> None:
        self._label = label
        self._total = max(total, 1)
        self._console = console
        self._shown = -1

    def update(self, done: int) -> None:
        """Show that `done` of the total steps are over."""
        percent = min(100, 100 * done // self._total)
        if self._console is None or percent == self._shown:
            return
        self._shown = percent
        bar = ("#" * (percent * 30 // 100)).ljust(30)
        tell(self._console, f"\r{self._label} [{bar}] {percent:3d}%")

    def close(self) -> None:
        """Clear the bar."""
        if self._console is not None and self._shown >= 0:
            tell(self._console, "\r\x1b[K")
        self._console = None
