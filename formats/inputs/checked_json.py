"""Typed access to the fields of a JSON document; every fault names its place."""

from __future__ import annotations

import json
from typing import Any

from dnnp.core.model.errors import FormatError
from dnnp.core.model.text import instead, printable
from dnnp.formats.fields import MAX_ID, MAX_NUMBER, shown
from dnnp.formats.files import what_it_is
from dnnp.formats.limits import DEEP, deep_line

_REQUIRED = object()


def parse_json(data: bytes, name: str) -> Any:
    """Decode a JSON document; NaN and infinity pass, so that their place can be named.

    Raises
    ------
    FormatError
        Not JSON, or not Unicode.
    """
    try:
        return json.loads(data)
    except json.JSONDecodeError as error:
        raise FormatError(f"not JSON: {error.msg}{what_it_is(data)}", name, error.lineno) from None
    except UnicodeDecodeError:
        hint = what_it_is(data) or ": the text is not UTF-8"
        raise FormatError(f"not JSON{hint}", name) from None
    except RecursionError:
        raise FormatError(f"not JSON that can be read: {DEEP}", name, deep_line(data)) from None
    except ValueError:
        raise FormatError("not JSON: a number has too many digits", name) from None


def headed(data: bytes, name: str, what: str, **stated: object) -> Fields:
    """The fields of a file that states what it is: its format, its version and so on.

    Raises FormatError: it is no such file (`what`), or states something else.
    """
    fields = Fields(parse_json(data, name), "", name)
    if fields.get("format", None) != stated["format"]:
        hint = what_it_is(data) or f"; its format would be '{stated['format']}'"
        raise FormatError(f"not a {what}{hint}", name, None, "format")
    for field, known in stated.items():
        if fields.get(field) != known:
            value = shown(fields.get(field))
            raise fields.fault(field, f"{value} is not known; this dnnp reads {known}")
    return fields


class Fields:
    """One JSON object, with its place in the document."""

    def __init__(self, value: Any, place: str, file: str) -> None:
        self._place = place
        self.file = file
        if not isinstance(value, dict):
            raise FormatError(f"{shown(value)} is not an object", file, None, place or None)
        self._values: dict[str, Any] = value

    def fault(self, name: str, reason: str) -> FormatError:
        """An error about one field."""
        return FormatError(reason, self.file, None, printable(self.place(name)) or None)

    def place(self, name: str) -> str:
        """The place of a field: `nodes[3].size`; without a name, that of the object itself."""
        return ".".join(filter(None, (self._place, name)))

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def names(self) -> list[str]:
        """Names of the fields that are there."""
        return list(self._values)

    def only(self, *names: str) -> None:
        """Refuse fields of other names: unread, they are misspelt."""
        for name in self._values:
            if name not in names:
                raise self.fault(name, f"is not known{instead(name, names)}")

    def get(self, name: str, default: Any = _REQUIRED) -> Any:
        """The value as it is."""
        if name in self._values:
            return self._values[name]
        if default is _REQUIRED:
            raise self.fault(name, "is missing")
        return default

    def fields(self, name: str) -> Fields:
        """An object."""
        return Fields(self.get(name), self.place(name), self.file)

    def texts(self, name: str) -> list[str]:
        """A list of strings; empty where it is absent."""
        values = self.get(name, [])
        if not isinstance(values, list) or not all(isinstance(v, str) for v in values):
            raise self.fault(name, f"{shown(values)} is not a list of strings")
        return values

    def objects(self, name: str, default: Any = _REQUIRED) -> list[Fields]:
        """A list of objects."""
        values = self.get(name, default)
        if not isinstance(values, list):
            raise self.fault(name, f"{shown(values)} is not a list")
        place = self.place(name)
        return [Fields(value, f"{place}[{i}]", self.file) for i, value in enumerate(values)]

    def number(
        self, name: str, default: Any = _REQUIRED, least: float = 0, most: float = MAX_NUMBER
    ) -> float:
        """A finite number in a range, of at least 0 unless that says otherwise, unchanged."""
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.fault(name, f"{shown(value)} is not a number")
        if not least <= value <= most:
            raise self.fault(name, f"{shown(value)} is not a number from {least:g} to {most:g}")
        return float(value) if value > MAX_ID else value

    def count(self, name: str, default: Any = _REQUIRED, least: int = 0, most: int = MAX_ID) -> int:
        """An integer in a range, of at least 0 unless that says otherwise; 6.0 counts as one."""
        value = self.number(name, default)
        if value != int(value) or not least <= value <= most:
            raise self.fault(name, f"{shown(value)} is not an integer from {least} to {most}")
        return int(value)

    def identity(self, name: str) -> int:
        """An integer that can be an id."""
        value = self.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_ID:
            raise self.fault(name, f"{shown(value)} is not an integer from 0 to {MAX_ID}")
        return value

    def flag(self, name: str, default: Any = _REQUIRED) -> bool:
        """True or false, also written 1 or 0."""
        value = self.get(name, default)
        if isinstance(value, bool | int | float) and value in (0, 1):
            return bool(value)
        raise self.fault(name, f"{shown(value)} is not true, false, 1 or 0")

    def text(self, name: str, default: Any = _REQUIRED) -> str:
        """A string of valid Unicode."""
        value = self.get(name, default)
        if not isinstance(value, str):
            raise self.fault(name, f"{shown(value)} is not a string")
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise self.fault(name, f"{shown(value)} holds half a surrogate pair") from None
        return value
