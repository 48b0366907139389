"""Standard error: what a command tells the user, which decides nothing."""

from __future__ import annotations

import os
import sys
from _thread import LockType, allocate_lock, start_new_thread
from collections.abc import Callable
from contextlib import suppress
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, TextIO

from dnnp.callbacks import Bar
from dnnp.core.model.text import printable, shown_share, shown_time

if TYPE_CHECKING:
    from dnnp.core.model.search_context import Progress


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


CLEAR = "\r\x1b[K"
"""Clears the line of a terminal on which the cursor is."""

TICK_S = 1.0
"""Interval in which a bar is drawn anew while nothing new is told, seconds."""

REDRAWN_S = 0.1
"""Least interval between two drawings, seconds."""

PATIENCE_S = 1.0
"""Time that work may take without a bar on a terminal, seconds."""

FIRST_S, LINE_S = 2.0, 30.0
"""Time before the first line where there is no terminal, and most time between two, which grows."""

BAR, WIDE = 20, 110
"""Characters of a bar, and of a line that has room for one."""


def draws(console: TextIO) -> bool:
    """Tell whether bars can be drawn: on a terminal that can clear a line."""
    return console.isatty() and is_able()


def is_able() -> bool:
    """Tell whether the terminal, if there is one, can clear a line."""
    return os.environ.get("TERM", "dumb") != "dumb"


class ProgressBar(Bar):
    """Progress of long work: one line, drawn again and again on a terminal; elsewhere a line now
    and then.

    Parameters
    ----------
    name
        Of the command.
    doing
        What it does, until it says that itself.
    console
        Where to write.
    writing
        Held by whoever writes there.
    limit_s
        Seconds after which the work is over at the latest.
    since
        When the command last gave a sign of life, by the clock; None: now.
    clock
        The time, in seconds.
    """

    def __init__(
        self,
        name: str,
        doing: str,
        console: TextIO,
        writing: LockType,
        *,
        limit_s: float | None = None,
        since: float | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._name, self._console, self._writing = name, console, writing
        self._doing = doing
        self._standing: Progress | None = None
        self._limit_s, self._clock = limit_s, clock
        self._drawn = draws(console)
        self._begun = clock()
        self._due = self._begun if since is None else since
        self._due += PATIENCE_S if self._drawn else FIRST_S
        self.shown_at: float | None = None
        """When a line was written last, by the clock."""
        self._there = ""
        """Text that stands on the terminal now."""
        self._under_way = allocate_lock()
        self._under_way.acquire()
        self._closed = False
        # Where memory is short it does without: it is then drawn when something is told.
        with suppress(RuntimeError, MemoryError):
            start_new_thread(self._tick, ())

    def update(self, standing: Progress) -> None:
        """Show where the work stands, unless that was shown a moment ago."""
        self._standing = standing
        self._look()

    def _look(self) -> None:
        """Show the standing if it is time."""
        # Whoever cannot write, since somebody else does, goes on with the work.
        if self._clock() >= self._due and self._writing.acquire(blocking=False):
            try:
                self._show()
            finally:
                self._writing.release()

    def close(self) -> None:
        """Clear the line."""
        with self._writing:
            self.hide()
            if not self._closed:
                self._closed = True
                self._under_way.release()

    def hide(self) -> None:
        """Clear the line while something else is written; for who holds the lock."""
        if self._there:
            tell(self._console, CLEAR)
        self._there = ""

    def _tick(self) -> None:
        while not self._under_way.acquire(timeout=TICK_S):
            self._look()

    def _show(self) -> None:
        now = self._clock()
        if self._closed or now < self._due:
            return
        if not self._drawn:
            self.shown_at = now
            self._due = now + min(max(now - self._begun, FIRST_S), LINE_S)
            tell(self._console, printable(self._line(now - self._begun)) + "\n")
            return
        self._due = now + REDRAWN_S
        line = printable(self._line(now - self._begun, _columns(self._console) - 1))
        if line != self._there:
            tell(self._console, CLEAR + line)
            self._there = line

    def _line(self, elapsed_s: float, width: int = 0) -> str:
        """Line after some seconds, in `width` characters; 0: in as many as it takes."""
        from dnnp.core.model.search_context import Progress

        limit_s = self._limit_s
        standing = self._standing or Progress(self._doing)
        share, time = standing.share, f"{elapsed_s:.0f} s"
        if limit_s:
            share, time = elapsed_s / limit_s, f"{elapsed_s:.0f} of at most {limit_s:g} s"
        doing, bar = standing.doing, ""
        if share is not None:
            done = min(int(100 * share), 100)
            doing += f" {done} %"
            bar = f"[{'#' * (done * BAR // 100):{BAR}}] " if width >= WIDE else ""
        words = [doing, time]

        def shown(value: float) -> str:
            return shown_time(value, standing.in_seconds)

        if standing.value < inf:
            words.append(f"{standing.what or 'value'} {shown(standing.value)}")
        if standing.bound > 0:
            words.append(f"bound {shown(min(standing.bound, standing.value))}")
        if standing.gap is not None:
            words.append(f"gap {shown_share(standing.gap)}")
        line = f"{self._name}: {bar}{', '.join(words)}"
        return line if not width else line[:width]


def _columns(console: TextIO) -> int:
    """Characters that a line of the terminal has."""
    try:
        return os.get_terminal_size(console.fileno()).columns or 80
    except (OSError, ValueError):
        return 80
