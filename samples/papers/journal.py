"""A journal of results: a line of JSON each, so that what was broken off goes on where it was."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Key = tuple[Any, ...]


class Journal:
    """Results in a file, by the fields that name them."""

    def __init__(self, path: Path, fields: Sequence[str]) -> None:
        self._path = path
        self._fields = fields
        self.found: dict[Key, dict[str, Any]] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        for line in lines:
            self._learn(line)
        # A line that was broken off is not to swallow the next one.
        if lines and not lines[-1].endswith(b"\n"):
            with path.open("ab") as file:
                file.write(b"\n")

    def _learn(self, line: bytes) -> None:
        try:
            entry = json.loads(line)
            self.found[self._key(entry)] = entry
        except (ValueError, KeyError, TypeError):
            return  # Broken off, or of another version.

    def _key(self, entry: dict[str, Any]) -> Key:
        return tuple(entry[field] for field in self._fields)

    def add(self, entries: Sequence[dict[str, Any]]) -> None:
        """Write results down, all in one piece."""
        text = "".join(json.dumps(entry) + "\n" for entry in entries)
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            os.write(file, text.encode())
        finally:
            os.close(file)
        for entry in entries:
            self.found[self._key(entry)] = entry
