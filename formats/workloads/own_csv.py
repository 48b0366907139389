"""Reader of a graph as tables of comma-separated values: a list of nodes, and one of edges.

The first row names the columns (see `drawn_stream` for those that mean something). A table with the
columns `from` and `to` is one of edges, and may stand alone: then nodes are what edges name.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from dnnp.core.model.errors import FormatError
from dnnp.core.model.text import closest, unguarded
from dnnp.formats.fields import shown
from dnnp.formats.files import what_it_is
from dnnp.formats.limits import COLUMNS, Room
from dnnp.formats.workloads.drawn import MEMORY, PLAIN, TIMES, Drawn, Edge, Item

TAILS, HEADS, KEYS = ("from", "source"), ("to", "target"), ("id", "name")
"""Names of columns, unless others are asked for; a graph uses the first that is there."""
COLOR = "color"
"""Short for `color_class`: there is nothing to paint in a table."""


class Table(NamedTuple):
    """A file of rows."""

    data: bytes
    path: str
    """Its name, for messages."""


def read_tables(
    nodes: Table, edges: Table | None = None, ours: Mapping[str, str] | None = None
) -> Drawn:
    """Read a list of nodes and one of edges, or one of edges alone.

    Parameters
    ----------
    nodes
        The list of nodes; of edges, if there is no other file.
    edges
        The list of edges.
    ours
        Attribute of dnnp, or `id`, `from`, `to` -> the column that stands for it.

    Raises
    ------
    FormatError
        Not such tables; the message names file, line and column.
    """
    size = len(nodes.data) + (0 if edges is None else len(edges.data))
    theirs = {name: _normal(column) for name, column in (ours or {}).items()}
    ends = [(theirs.pop(names[0]),) if names[0] in theirs else names for names in (TAILS, HEADS)]
    keys = (theirs.pop("id"),) if "id" in theirs else ("id", theirs.get("name", "name"))
    drawn = Drawn(nodes.path, Room(nodes.path, size), theirs)
    columns = columns_of(nodes)
    alone = all(_one_of(names, columns) for names in ends)
    if alone and edges is not None:
        raise FormatError("is a list of edges too; the first file must name nodes", nodes.path, 1)
    if not alone:
        _add_nodes(drawn, nodes, columns, keys)
    listed = nodes if alone else edges
    if listed is not None:
        _add_edges(drawn, listed, alone, ends)
    return drawn


def _one_of(names: tuple[str, ...], columns: list[str]) -> str:
    return next((name for name in names if name in columns), "")


def _add_nodes(drawn: Drawn, table: Table, columns: list[str], keys: tuple[str, ...]) -> None:
    key = _one_of(keys, columns)
    if not key:
        known = (*KEYS, *TIMES, *MEMORY, *PLAIN, *TAILS, *HEADS)
        hints = [(c, m) for c in columns[:100] if (m := closest(c, known)) and m != c]
        hint = f"; did you mean '{hints[0][1]}' by {shown(hints[0][0])}?" if hints else ""
        raise FormatError(
            f"the first row names neither a column {shown(keys[-1])}, of nodes, nor columns "
            f"'from' and 'to', of edges{hint}", table.path, 1,
        )  # fmt: skip
    for line, row in rows_of(table, columns):
        if key not in row:
            raise FormatError("is empty", table.path, line, key)
        identity = row.pop(key)
        if key in ("name", drawn.ours.get("name")):
            row[key] = identity
        if COLOR in row:
            row.setdefault("color_class", row.pop(COLOR))
        drawn.add(identity, Item(row, table.path, line))


def _add_edges(
    drawn: Drawn, table: Table, alone: bool, known: Sequence[tuple[str, ...]]
) -> None:  # fmt: skip
    columns = columns_of(table)
    ends = [_one_of(names, columns) for names in known]
    if not all(ends):
        missing = known[bool(ends[0])][0]
        raise FormatError(f"the first row names no column {shown(missing)}", table.path, 1)
    for line, row in rows_of(table, columns):
        for end in ends:
            if end not in row:
                raise FormatError("is empty", table.path, line, end)
        tail, head = (row.pop(end) for end in ends)
        if alone:
            for key in (tail, head):
                drawn.nodes.setdefault(key, Item({}, table.path, line))
        drawn.join(Edge(tail, head, Item(row, table.path, line)))


def _normal(column: str) -> str:
    """The name of a column, in lower case but for a class of devices."""
    name, colon, device = column.partition(":")
    return name.strip().lower() + colon + device.strip()


def columns_of(table: Table) -> list[str]:
    """Names of the columns."""
    _, cells = next(_cells(table), (0, [""]))
    if not any(cells):
        raise FormatError("the file is empty", table.path)
    columns = [_normal(cell) for cell in cells]
    if len(columns) > COLUMNS:
        raise FormatError(f"more than {COLUMNS} columns", table.path, 1)
    seen: set[str] = set()
    for name in columns:
        if name in seen and name:
            raise FormatError("the column is there twice", table.path, 1, name)
        seen.add(name)
        if name.endswith(":"):
            raise FormatError("names no class of devices after ':'", table.path, 1, name)
    if len(columns) == 1 and any(c in columns[0] for c in ";\t"):
        raise FormatError("columns are separated by commas", table.path, 1)
    return columns


def rows_of(table: Table, columns: list[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """Line and values of each row; empty ones are left out."""
    rows = _cells(table)
    next(rows)
    for line, cells in rows:
        if len(cells) != len(columns):
            reason = f"{len(cells)} values for {len(columns)} columns"
            raise FormatError(reason, table.path, line)
        yield line, {c: v for c, v in zip(columns, cells, strict=True) if v}


def _cells(table: Table) -> Iterator[tuple[int, list[str]]]:
    """Line and values of each row that is not empty, by RFC 4180."""
    hint = what_it_is(table.data)
    if hint:
        raise FormatError(f"no comma-separated values{hint}", table.path)
    try:
        text = table.data.decode("utf-8-sig")
    except UnicodeDecodeError:
        reason = "no comma-separated values: the text is not UTF-8"
        raise FormatError(reason, table.path) from None
    rows = csv.reader(io.StringIO(text, newline=""), strict=True, skipinitialspace=True)
    line = 1
    try:
        for row in rows:
            cells = [unguarded(cell.strip()) for cell in row]
            if any(cells):
                yield line, cells
            line = rows.line_num + 1
    except csv.Error as error:
        reason = f"not a table of comma-separated values: {error}"
        raise FormatError(reason, table.path, line) from None
