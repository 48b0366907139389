"""Limits of what a file may expand to: in many formats a few characters can stand for very many.

Limits that real files do not meet, however large they are, in one place.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from dnnp.core.model.errors import FormatError

DEPTH, MESSAGES = 100, 64
"""Subgraphs, or lists and objects, inside each other; messages of protobuf text."""
DEEP = f"more than {DEPTH} lists and objects inside each other"
PIECES = 1_000
"""Strings that are joined to one."""
COLUMNS = 100_000
"""Columns of a table."""
MOST_TIMES = 20_000_000
"""Records times device classes; 8 bytes each, and more while they are read."""
ADDRESS = 1_000
"""Characters of an XML namespace, which every name in it has in front."""
HEADER = 10_000
"""Bytes of the header of an array, which numpy would unpack before it looks at it."""
FREE, FACTOR = 1_000_000, 10
"""Characters of a file that is written out in full: that many, or that many times its own bytes."""

_BRACKETS = rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}\n]'
"""Compiled when it is needed, which most streams do not."""


class Room:
    """Room that is left for a file to expand to.

    Readers take from it what the file would be longer by, if each default, each edge of a pair of
    sets and each name made of others stood there in full.
    """

    def __init__(self, file: str = "", size: float = math.inf) -> None:
        self._file, self._size = file, size
        self._most = max(FREE, FACTOR * size)
        self._left = self._most

    def take(self, characters: int, line: int | None = None, field: str | None = None) -> None:
        """Count characters.

        Raises
        ------
        FormatError
            All together are too many; `line` or `field` is where it was noticed.
        """
        self._left -= characters
        if self._left < 0:
            raise FormatError(
                f"expands to more than {self._most} characters, the limit for {self._size} bytes, "
                "by defaults, sets that are joined or names that are repeated",
                self._file, line, field,
            )  # fmt: skip


def length(values: Mapping[str, str]) -> int:
    """Characters of attributes, as ` name="value"`."""
    return sum(map(len, values)) + sum(map(len, values.values())) + 4 * len(values)


def said(reason: str) -> str:
    """The reason why something is not JSON, as orjson says; of depth with the limit.

    >>> said("depth limit exceeded"), said("unexpected character")
    ('more than 100 lists and objects inside each other', 'unexpected character')
    """
    return reason.replace("depth limit exceeded", DEEP)


def deep_line(data: bytes) -> int | None:
    """Line in which a JSON document has more than `DEPTH` lists and objects inside each other."""
    depth, line = 0, 1
    for found in re.finditer(_BRACKETS, data, re.DOTALL):
        mark = found[0]
        line += mark == b"\n"
        depth += (mark in b"[{") - (mark in b"]}")
        if depth > DEPTH:
            return line
    return None
