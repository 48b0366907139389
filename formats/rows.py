"""Records of kinds of which a stream may hold very many: their lines, and columns of their fields.

Together they take less than half of the memory that the records would. A record is decoded when it
is asked for; graphs are made of the columns.
"""

from __future__ import annotations

import gc
import json
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import chain
from typing import Any, overload

import orjson

from dnnp.core.model.errors import FormatError
from dnnp.formats.fields import Field
from dnnp.formats.limits import MOST_TIMES
from dnnp.formats.records import RECORDS

Record = dict[str, Any]

CHUNK = 512
"""Lines that are read, decoded or written at a time.

Small chunks reuse the memory of their lines; a fresh page for each costs ten times more.
"""

REPEATED = {
    "tensor": ("kind", "dtype"),
    "node": ("op", "domain", "layer", "scope"),
    "group": ("rule", "cost"),
}
"""Fields of texts that many records have in common, by kinds of which there may be very many."""


@contextmanager
def uncollected() -> Iterator[None]:
    """Look for no circles while very many records are made, which have none: half of the time."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


class Rows(Sequence[Record]):
    """Records as the lines that were read, decoded whenever they are asked for, and as columns.

    Fields are set and removed for all at once; a change of one record is lost (see `Stream.get`).
    """

    def __init__(self, kind: str) -> None:
        self._fields, self._repeated = RECORDS[kind], REPEATED[kind]
        self._blocks: list[bytes] = []
        """Lines, some at a time."""
        self._firsts: list[int] = []
        """Position of the first record of each block."""
        self._count = 0
        self._edits: list[tuple[str, Callable[[int], Any] | None]] = []
        """Fields in the order in which they were set, by position of the record, or removed."""
        self._written = True
        """Every line is what would be written."""
        self._added = True
        """No field that was set or removed is in a line."""
        self._exact = False
        """Numbers of unknown meaning are to be kept as they are written."""
        self._parts: dict[str, list[Any]] = {}
        """Field -> what `_packed` makes of its values, a part a block."""
        self._columns: dict[str, Any] = {}
        """Field -> its parts together."""
        self._shared: dict[Any, Any] = {}

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, i: int) -> Record: ...

    @overload
    def __getitem__(self, i: slice) -> list[Record]: ...

    def __getitem__(self, i: int | slice) -> Record | list[Record]:
        if isinstance(i, slice):
            return [self[j] for j in range(*i.indices(len(self)))]
        i = range(len(self))[i]
        block = bisect_right(self._firsts, i) - 1
        first = self._firsts[block]
        line = self._blocks[block].split(b"\n")[i - first]
        return self._decoded([line], i)[0]

    def __iter__(self) -> Iterator[Record]:
        for first, block in zip(self._firsts, self._blocks, strict=True):
            yield from self._decoded(block.split(b"\n"), first)

    def take(
        self,
        records: list[Record],
        block: bytes,
        names: set[str],
        full: Mapping[str, list[Any]],
        *,
        exact: bool,
    ) -> None:
        """Add lines, the records that they hold, and the fields of these; `exact`: see there.

        `full`: values of fields that all of them have.
        """
        self._blocks.append(block)
        self._firsts.append(self._count)
        text = block.replace(b"\n", b",")
        self._written = self._written and orjson.dumps(records) == b"[%b]" % text
        self._exact = self._exact or exact
        for name in names - self._parts.keys() - {"type"}:
            spec = self._fields.get(name)
            before = zip(self._firsts, self._firsts[1:], strict=False)
            self._parts[name] = [_packed(spec, [None] * (b - a)) for a, b in before]
        for name, parts in self._parts.items():
            values = full.get(name) or [record.get(name) for record in records]
            if name in self._repeated:
                values = list(map(self._shared.setdefault, values, values))
            parts.append(_packed(self._fields.get(name), values))
        self._count += len(records)

    def has(self, name: str) -> bool:
        """True if a record has a field."""
        return name in self._parts

    def column(self, name: str) -> Any:
        """All values of a declared field that some record has; see `_packed`."""
        if name not in self._columns:
            self._columns[name] = _joined(self._parts[name])
            self._parts[name] = [self._columns[name]]
        return self._columns[name]

    def put(self, name: str, value: Callable[[int], Any], column: Any) -> None:
        """Set a field to what a function gives for each position, which are those of a column."""
        self._edits.append((name, value))
        self._added = self._added and not self.has(name)
        self._parts[name], self._columns[name] = [column], column

    def drop(self, names: Iterable[str]) -> None:
        """Remove some fields."""
        for name in names:
            if self._parts.pop(name, None) is not None:
                self._columns.pop(name, None)
                self._edits.append((name, None))
                self._added = False

    def copy(self) -> Rows:
        """The same rows, to be changed."""
        rows = Rows.__new__(Rows)
        for name, value in vars(self).items():
            setattr(rows, name, value.copy() if isinstance(value, list | dict) else value)
        return rows

    def listed(self) -> list[Record]:
        """The records; texts of few values are one object in all, a third less memory."""
        records, shared = [], self._shared.setdefault
        keys = ["type", *filter(self.has, self._repeated)]
        with uncollected():
            for record in self:
                for key in keys:
                    if key in record:
                        record[key] = shared(record[key], record[key])
                records.append(record)
        return records

    def encoded(self) -> Iterator[bytes]:
        """The lines to be written, some at a time."""
        for first, block in zip(self._firsts, self._blocks, strict=True):
            if self._written and not self._edits:
                yield block + b"\n"
            elif self._written and self._added:
                lines = []
                for i, line in enumerate(block.split(b"\n"), first):
                    more = orjson.dumps({name: value(i) for name, value in self._edits if value})
                    lines.append(b"%b,%b" % (line[:-1], more[1:]))
                yield b"\n".join([*lines, b""])
            else:
                records = self._decoded(block.split(b"\n"), first)
                yield b"\n".join([*map(orjson.dumps, records), b""])

    @property
    def is_edited(self) -> bool:
        """True if fields were set."""
        return bool(self._edits)

    def _decoded(self, lines: list[bytes], first: int) -> list[Record]:
        """Records of lines, the first of which has a position."""
        records = list(map(orjson.loads, lines))
        if self._exact and not self._written:
            keep_numbers(self._fields, records, lines)
        for name, value in self._edits:
            for i, record in enumerate(records, first):
                if value is None:
                    record.pop(name, None)
                else:
                    record[name] = value(i)
        return records


def _packed(spec: Field | None, values: list[Any]) -> Any:
    """Values of a field in little memory; None stands for those that are absent.

    Ids (absent: -1), truths (absent: False), numbers of one type (absent: nan) are arrays, other
    numbers and texts lists; lists of whole numbers are an array of their lengths (absent: -1) and
    one of all values; maps of numbers an array of which are there and one for each name (absent:
    nan). Of others nothing is kept.
    """
    import numpy as np

    if spec is None:
        return None
    if spec.type == "bool":
        return np.array(values, dtype=np.bool_)
    if spec.type == "id":
        full = None not in values
        values = values if full else [-1 if x is None else x for x in values]
        return np.array(values, dtype=np.int64)
    if spec.type in ("int", "number"):
        kinds = set(map(type, values))
        if kinds == {int}:
            found = np.array(values)
            return found if found.dtype == np.int64 else values
        return np.array(values, dtype=np.float64) if int not in kinds else values
    if spec.type == "string":
        return values
    if spec.type == "list" and spec.items is not None and spec.items.type in ("id", "int"):
        lists = values if None not in values else [x for x in values if x is not None]
        sizes = np.array([-1 if x is None else len(x) for x in values], dtype=np.int64)
        return sizes, np.array(list(chain.from_iterable(lists)), dtype=np.int64)
    if spec.type == "map" and spec.items is not None and spec.items.type == "number":
        stated = np.array([x is not None for x in values])
        maps = [x or {} for x in values]
        names = _few(dict.fromkeys(chain.from_iterable(maps)), len(values))
        return stated, {c: np.array([x.get(c) for x in maps], dtype=np.float64) for c in names}
    return None


def _few(names: dict[str, None], count: int) -> dict[str, None]:
    """Refuse so many device classes that the times of all records would fill the memory."""
    if len(names) * count > MOST_TIMES:
        raise FormatError(
            f"{count} records are priced for {len(names)} device classes; at most {MOST_TIMES} "
            "times are read",
            field="time_s",
        )
    return names


def _joined(parts: list[Any]) -> Any:
    """The parts of a column together."""
    import numpy as np

    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], tuple) and isinstance(parts[0][1], dict):
        stated = np.concatenate([there for there, _ in parts])
        names = _few(dict.fromkeys(chain.from_iterable(maps for _, maps in parts)), len(stated))
        ends = np.cumsum([0, *(len(there) for there, _ in parts)]).tolist()
        found = {}
        for name in names:
            found[name] = np.full(len(stated), np.nan)
            for (_, maps), first, last in zip(parts, ends, ends[1:], strict=False):
                if name in maps:
                    found[name][first:last] = maps[name]
        return stated, found
    if isinstance(parts[0], tuple):
        return tuple(np.concatenate(column) for column in zip(*parts, strict=True))
    if len({getattr(part, "dtype", None) for part in parts}) == 1 and parts[0] is not None:
        if not isinstance(parts[0], list):
            return np.concatenate(parts)
        return list(chain.from_iterable(parts))
    return list(chain.from_iterable(map(_listed, parts)))


def _listed(part: Any) -> list[Any]:
    """Numbers of a part of a column; None: absent."""
    return part if isinstance(part, list) else [None if x != x else x for x in part.tolist()]


def columns(
    records: list[Record] | Rows, defaults: Mapping[str, Any], lists: Sequence[str] = ()
) -> dict[str, Any]:
    """Fields of records as columns: arrays of the types of their defaults, or lists (texts, None).

    Those of `lists`, of whole numbers, are pairs of arrays: their lengths (absent: -1), and all of
    their values.
    """
    import numpy as np

    found: dict[str, Any] = {}
    for name, default in defaults.items():
        plain = default is None or isinstance(default, str)
        if not isinstance(records, Rows):
            values = [record.get(name, default) for record in records]
            found[name] = values if plain else np.array(values, dtype=type(default))
        elif not records.has(name):
            count = len(records)
            found[name] = [default] * count if plain else np.full(count, default)
        elif plain:
            values = _listed(records.column(name))
            full = default is None or None not in values
            found[name] = values if full else [default if x is None else x for x in values]
        else:
            column = records.column(name)
            if isinstance(column, list):
                column = [default if x is None else x for x in column]
            found[name] = np.asarray(column, dtype=type(default))
            if type(default) is float and default == default:
                found[name] = np.where(np.isnan(found[name]), default, found[name])
    for name in lists:
        spec = Field("list", "", items=Field("int", ""))
        if isinstance(records, Rows) and records.has(name):
            found[name] = records.column(name)
        else:
            found[name] = _packed(spec, [record.get(name) for record in records])
    return found


def times_of(records: list[Record] | Rows) -> tuple[Any, dict[str, Any]]:
    """Times of records: which have any, bool[n], and device class -> f64[n], nan where absent.

    Classes stand in the order in which they appear.

    FormatError: so many classes that their times would fill the memory.
    """
    import numpy as np

    if isinstance(records, Rows):
        if not records.has("time_s"):
            return np.zeros(len(records), dtype=np.bool_), {}
        return records.column("time_s")
    return _packed(Field("map", "", items=Field("number", "")), [r.get("time_s") for r in records])


def has(records: list[Record] | Rows, name: str) -> bool:
    """True if a record has a field."""
    if isinstance(records, Rows):
        return records.has(name)
    return any(name in record for record in records)


def keep_numbers(
    fields: Mapping[str, Field], records: Sequence[Record], lines: Iterable[bytes]
) -> None:
    """Restore the text of numbers that JSON would write otherwise, in fields not in `fields`.

    A number of a JSON document may have more digits than a float; it becomes an
    `orjson.Fragment`, which is written as it is and is not interpreted.

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


@cache
def closed_fields(kind: str) -> frozenset[str]:
    """Fields of a kind of record inside which no unknown field can be."""
    fields = RECORDS.get(kind, {})
    return frozenset(["type", *(name for name in fields if not _holds_objects(fields[name]))])


def _holds_objects(spec: Field) -> bool:
    """Test whether objects of known fields are inside, which may hold further ones."""
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
