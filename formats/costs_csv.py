"""A table of costs: name, class (which may be left out), seconds, with these words above."""

from __future__ import annotations

import csv
import math

from dnnp.core.model.errors import FormatError
from dnnp.core.model.similar import instead
from dnnp.formats.fields import MAX_NUMBER, shown
from dnnp.formats.given_cost import GivenCost
from dnnp.formats.kinds import what_it_is

COLUMNS = ("name", "class", "seconds")


def read_table(data: bytes, path: str) -> tuple[GivenCost, ...]:
    """Read comma-separated values with a header row; see `cost_files.read_costs`."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        hint = what_it_is(data) or ": the text is not UTF-8"
        raise FormatError(f"no table of costs{hint}", path) from None
    rows = csv.reader(text.splitlines(keepends=True), strict=True)
    columns: list[str] | None = None
    costs: list[GivenCost] = []
    seen: dict[tuple[str, str], int] = {}
    try:
        for row in rows:
            cells = [cell.strip() for cell in row]
            if not any(cells):
                continue
            line = rows.line_num
            if columns is None:
                columns = _columns(cells, path, line, data)
                continue
            cost = _cost(dict(zip(columns, cells, strict=False)), len(cells), columns, path, line)
            key = cost.name, cost.device or ""
            if key in seen:
                reason = f"{shown(cost.name)} has a cost in line {seen[key]} already"
                raise FormatError(reason, path, line, "name")
            seen[key] = line
            costs.append(cost)
    except csv.Error as error:
        raise FormatError(f"not a table of comma-separated values: {error}", path,
                          rows.line_num) from None  # fmt: skip
    if columns is None:
        raise FormatError("no costs: the file is empty", path)
    return tuple(costs)


def _columns(cells: list[str], path: str, line: int, data: bytes) -> list[str]:
    """The columns that the first row names."""
    columns = [cell.lower() for cell in cells]
    hint = what_it_is(data)
    if hint:
        raise FormatError(f"no table of costs{hint}", path)
    for name in ("name", "seconds"):
        if name not in columns:
            raise FormatError(
                f"the first row names no column {name}; it must be name,class,seconds, "
                "where class may be left out",
                path, line, name,
            )  # fmt: skip
    for i, name in enumerate(columns):
        if name not in COLUMNS:
            reason = f"{shown(cells[i])} is no column{instead(name, COLUMNS)}"
            raise FormatError(reason, path, line)
        if name in columns[:i]:
            raise FormatError("the column is there twice", path, line, name)
    return columns


def _cost(
    row: dict[str, str], count: int, columns: list[str], path: str, line: int
) -> GivenCost:  # fmt: skip
    if count != len(columns):
        raise FormatError(f"{count} values for {len(columns)} columns", path, line)
    if not row["name"]:
        raise FormatError("is empty", path, line, "name")
    try:
        seconds = float(row["seconds"])
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= MAX_NUMBER:
        reason = f"{shown(row['seconds'])} is not a number from 0 to {MAX_NUMBER:g}"
        raise FormatError(reason, path, line, "seconds")
    return GivenCost(row["name"], seconds, device=row.get("class") or None, line=line)
