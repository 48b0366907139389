"""Base of all commands: options, messages, Ctrl-C, files, the way to an exit status."""

from __future__ import annotations

import os

CLEAR = "\r\x1b[K"
"""Clears the line of a terminal on which the cursor is."""


def is_able() -> bool:
    """True if the terminal, if there is one, can clear a line."""
    return os.environ.get("TERM", "dumb") != "dumb"
