"""Numbers in fields that nobody here knows, with every digit that they were written with."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson

from dnnp.formats.fields import Field

Record = dict[str, Any]


def may_hold_unknown(fields: Mapping[str, Field], present: set[str]) -> bool:
    """Whether records with the names `present` may hold anything that is not among `fields`."""
    return not present <= {"type", *fields} or any(map(_holds_objects, fields.values()))


def keep_numbers(
    fields: Mapping[str, Field], records: Sequence[Record], lines: Iterable[bytes]
) -> None:
    """Put numbers that would be written in another way back into fields not among `fields`.

    A number of a JSON document may have more digits than a float; it becomes an
    `orjson.Fragment`, which is written as it is and means nothing to anybody here.

    Parameters
    ----------
    fields
        What is known of these records, all of one type.
    records, lines
        The records, which are changed in place, and the lines that they come from.
    """
    for record, line in zip(records, lines, strict=True):
        if orjson.dumps(record) != line:
            _restore(record, json.loads(line, parse_int=_number, parse_float=_number), fields)


def _holds_objects(spec: Field) -> bool:
    """Whether objects of known fields are inside, which may hold further ones."""
    return spec.type == "object" or (spec.items is not None and _holds_objects(spec.items))


def _restore(record: Record, exact: Record, fields: Mapping[str, Field]) -> None:
    """Replace the values of all fields that are not known by those of `exact`."""
    for name, value in record.items():
        spec = fields.get(name)
        if spec is None:
            record[name] = exact[name]
        elif spec.type == "object" and not spec.open:
            _restore(value, exact[name], spec.fields)
        elif spec.type == "list" and spec.items is not None and spec.items.type == "object":
            for item, twin in zip(value, exact[name], strict=True):
                _restore(item, twin, spec.items.fields)


def _number(text: str) -> Any:
    """A number, or its text where it would be written in another way."""
    value = orjson.loads(text)
    return value if orjson.dumps(value) == text.encode() else orjson.Fragment(text)
