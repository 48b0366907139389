"""Tables as text and as CSV, for the programs here that repeat those of papers."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from dnnp.core.model import text


class Table(NamedTuple):
    """One table or figure, as text."""

    name: str
    title: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


def show(table: Table, folder: Path | None, *more: str) -> None:
    """Print a table and `more` lines, and write it as `NAME.csv` where a folder is given."""
    print(table.title, *text.table(table.header, table.rows), *more, sep="\n", flush=True)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f"{table.name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([table.header, *table.rows])
