"""Text for messages: numbers of things; and what others wrote, safe for terminals and for XML."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # C0, DEL, C1: what terminals obey
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # marks that turn the direction of writing
    "\u2028\u2029\ufeff\ud800-\udfff\ufffe\uffff]"  # line breaks, and what XML does not admit
)


def printable(text: str) -> str:
    r"""Text on one line, with control characters shown as escapes.

    Names are bytes that somebody else chose: raw, they could move the cursor, ring the bell,
    rewrite the line above or turn the direction of writing. What is printable already stays as
    it is, so that it does no harm to call this twice.

    >>> print(printable("\x1b[31mred\x00 a\u202eb\n"))
    \x1b[31mred\x00 a\u202eb\n
    """
    return _UNSAFE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def operator_name(op: str, domain: str) -> str:
    """Type of an operator for people, with its domain if that is not the usual one."""
    return f"{domain}:{op}" if domain else op


def counted(count: int, noun: str) -> str:
    """A number of things, for messages.

    >>> counted(1, "group"), counted(2, "group")
    ('1 group', '2 groups')
    """
    return f"{count} {noun}{'s' * (count != 1)}"


def table(
    header: Sequence[str], rows: Sequence[Sequence[str]], left: Collection[int] = (0,)
) -> list[str]:
    """Lines of a table: the columns `left` to the left, the others to the right."""
    rows = [header, *([printable(cell) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(header))]
    return [
        "  ".join(
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
