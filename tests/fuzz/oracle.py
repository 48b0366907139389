"""An independent opinion on a stream: the standard library's JSON and the jsonschema package."""

from __future__ import annotations

import functools
import json
from typing import Any

from jsonschema import Draft202012Validator

from dnnp.formats.records import json_schema


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


@functools.cache
def _validator() -> Draft202012Validator:
    return Draft202012Validator(json_schema())


@functools.lru_cache(maxsize=20_000)
def _line_fault(line: bytes) -> str | None:
    try:
        record = json.loads(line.decode("utf-8"), parse_constant=_no_constant)
        error = next(_validator().iter_errors(record), None)
    except RecursionError:
        return None  # nested too deeply for an opinion
    except ValueError as error:
        return f"not JSON: {error}"
    return None if error is None else error.message


def schema_fault(data: bytes) -> str | None:
    """The reason for which no reader may accept a stream, or None if the schema accepts it."""
    rows = data.split(b"\n")
    if rows and not rows[-1]:
        rows.pop()
    for number, row in enumerate(rows, 1):
        fault = _line_fault(row)
        if fault is not None:
            return f"line {number}: {fault}"
    if not rows:
        return "no records"
    try:
        kinds = [json.loads(row)["type"] for row in (rows[0], rows[-1])]
    except RecursionError:
        return None
    if kinds[0] != "header" or kinds[-1] != "end":
        return f"starts with {kinds[0]!r} and ends with {kinds[-1]!r}"
    return None
