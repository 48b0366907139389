"""Tables as text and as CSV, for the programs here that repeat those of papers."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple


class Table(NamedTuple):
    """One table or figure, as text."""

    name: str
    title: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


def text(table: Table) -> Iterator[str]:
    """Lines of a table; all columns but the first are right-aligned."""
    lines = [table.header, *table.rows]
    width = [max(len(line[c]) for line in lines) for c in range(len(table.header))]
    yield table.title
    for line in lines:
        cells = (cell.rjust(w) for cell, w in zip(line[1:], width[1:], strict=True))
        yield "  ".join((line[0].ljust(width[0]), *cells)).rstrip()


def show(table: Table, folder: Path | None, *more: str) -> None:
    """Print a table and `more` lines, and write it as `NAME.csv` where a folder is given."""
    print(*text(table), *more, sep="\n", flush=True)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f"{table.name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([table.header, *table.rows])
