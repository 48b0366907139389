"""Orders made elsewhere: a JSON list of unit ids, or of priorities."""

from __future__ import annotations

from typing import Any

import numpy as np

from dnnp.core.model.errors import FormatError
from dnnp.core.model.graph import Floats, Ints
from dnnp.formats.fields import MAX_NUMBER, shown
from dnnp.formats.inputs.checked_json import parse_json


def read_sequence(data: bytes, name: str, ids: Ints) -> Ints:
    """Read an order of units: positions in `ids`, i64[g].

    Raises
    ------
    FormatError
        No list of all the ids, each once.
    """
    entries = _list(data, name)
    position = {unit: i for i, unit in enumerate(ids.tolist())}
    order = []
    for entry in entries:
        # True is an int to Python.
        at = position.pop(entry, None) if type(entry) is int else None
        if at is None:
            known = type(entry) is int and entry in ids
            fault = "is in the order twice" if known else "is no id of a unit of the stream"
            raise FormatError(f"{shown(entry)} {fault}", name)
        order.append(at)
    if position:
        raise FormatError(f"the order lacks {next(iter(position))}", name)
    return np.array(order, dtype=np.int64)


def read_priorities(data: bytes, name: str, g: int) -> Floats:
    """Read a priority for each of `g` units, in the stream's order; f64[g].

    Raises
    ------
    FormatError
        No list of `g` numbers.
    """
    entries = _list(data, name)
    if len(entries) != g:
        raise FormatError(f"{len(entries)} priorities for {g} units", name)
    for i, entry in enumerate(entries):
        if type(entry) not in (int, float) or not abs(entry) <= MAX_NUMBER:
            raise FormatError(f"priority {i} is {shown(entry)}, not a number up to 1e100", name)
    return np.array(entries, dtype=np.float64)


def _list(data: bytes, name: str) -> list[Any]:
    content = parse_json(data, name)
    if not isinstance(content, list):
        raise FormatError("not a JSON list", name)
    return content
