"""Lengths of sequences: `prompt=512,tokens=256`, or a file with a prompt and its tokens a line."""

from __future__ import annotations

import re

from dnnp.core.model.errors import FormatError, UsageError

MOST_TOKENS = 10**9
"""Tokens of the longest sequence that is read."""

_SEPARATOR = re.compile(r"[,;\s]+")


def parse_workload(text: str) -> tuple[int, int] | None:
    """Tokens of the prompt and those that follow; None: the text names a file.

    UsageError: it looks like lengths, and is none.
    """
    if "=" not in text:
        return None
    found: dict[str, int] = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        if name not in ("prompt", "tokens") or not value.isdecimal() or name in found:
            raise UsageError(f"--workload {text}: give prompt=P,tokens=T, or a file of lengths")
        found[name] = int(value)
    if len(found) < 2 or not all(1 <= size <= MOST_TOKENS for size in found.values()):
        raise UsageError(f"--workload {text}: prompt and tokens: each from 1 to {MOST_TOKENS}")
    return found["prompt"], found["tokens"]


def read_lengths(data: bytes, file: str) -> list[tuple[int, int]]:
    """Lengths from the last two columns of each line; the first line may name the columns.

    FormatError: a line without two whole numbers of at least 1, or no line at all.
    """
    found: list[tuple[int, int]] = []
    for number, line in enumerate(data.decode(errors="replace").splitlines(), 1):
        words = [word for word in _SEPARATOR.split(line.strip()) if word]
        if not words:
            continue
        last = words[-2:]
        if len(last) == 2 and all(w.isdecimal() and 1 <= int(w) <= MOST_TOKENS for w in last):
            found.append((int(last[0]), int(last[1])))
        elif number > 1 or any(word.isdecimal() for word in last):
            reason = f"'{line.strip()[:40]}' has no tokens of a prompt and of what follows"
            raise FormatError(reason, file, number)
    if not found:
        raise FormatError("no lengths of sequences", file)
    return found
