"""Reader and writer of the stream: one JSON record a line (see dnnp-graph(5))."""

from __future__ import annotations

import gc
import json
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any, BinaryIO

import orjson

from dnnp.core.model.errors import FormatError
from dnnp.formats.fields import Field, describe_fault, fault, shown
from dnnp.formats.files import what_it_is
from dnnp.formats.limits import DEPTH, deep_line, said
from dnnp.formats.records import RECORDS, SINGLE, UNIQUE, VERSION

Record = dict[str, Any]

LEVELS = (("cost",), ("group",), ("plan", "stage"), ("bound",), ("schedule", "block"), ("run",))
"""What depends on what: replacing one level drops all later ones."""

COMPUTED = ("group", "plan", "stage", "bound", "schedule", "block")
"""Records whose numbers are sums and quotients of what was read."""

BATCH = 256
"""Records that are encoded at a time."""

REPEATED = {"tensor": ("kind", "dtype"), "node": ("op", "scope"), "group": ("rule", "cost")}
"""Fields of texts that many records have in common."""

BODY = tuple(kind for kind in RECORDS if kind not in ("header", "end"))


@dataclass
class Stream:
    """Everything a stream holds, by record type, in file order.

    In fields of unknown meaning, numbers that would be written in another way than they were read
    are `orjson.Fragment`.
    """

    header: Record
    records: dict[str, list[Record]] = field(default_factory=dict)
    other: list[Record] = field(default_factory=list)
    """Records of unknown type; they pass through."""
    name: str = "<stream>"
    """File name for messages."""
    lines: dict[str, Sequence[int]] = field(default_factory=dict)
    """1-based line of each record, by type; empty for records made in memory."""
    warnings: list[str] = field(default_factory=list)

    @property
    def in_seconds(self) -> bool:
        """Test whether times are in seconds; else their unit is not known."""
        return bool(self.header["units"]["time"] == "s")

    def get(self, kind: str) -> list[Record]:
        """Records of one type; empty if there are none."""
        return self.records.get(kind, [])

    def fault_at(self, kind: str, index: int, field_name: str | None, reason: str) -> FormatError:
        """An error that names the line of record `index` of type `kind`."""
        lines = self.lines.get(kind)
        return FormatError(reason, self.name, lines[index] if lines else None, field_name)

    def replace(self, kind: str, records: list[Record]) -> list[str]:
        """Set the records of one type and drop every kind computed from it.

        Returns the kinds that were dropped. `cost` stands for the prices on nodes: pass the
        node records. Stages come with their plan: set them after it.
        """
        target = "node" if kind == "cost" else kind
        self.records[target] = records
        self.lines.pop(target, None)
        level = next((i for i, kinds in enumerate(LEVELS) if kind in kinds), len(LEVELS))
        later = [k for kinds in LEVELS[level + 1 :] for k in kinds]
        if kind == "cost":
            later.remove("group")
        dropped = [k for k in later if self.records.pop(k, None)]
        for k in later:
            self.lines.pop(k, None)
        return dropped


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


@uncollected()
def read_bytes(data: bytes, name: str = "<stream>") -> Stream:
    """Parse and check a whole stream; `name` is its file, for messages.

    Raises
    ------
    FormatError
        The stream is malformed; the message names file, line and field.
    """
    if not data:
        raise FormatError("empty stream; did the command before it fail?", name)
    records = _parse(data, name)
    stream = Stream(header=records[0], name=name)
    by_type: dict[str, list[Record]] = {}
    numbers: dict[str, array[int]] = {}
    for number, record in enumerate(records, 1):
        kind = record["type"]
        if kind not in by_type:
            by_type[kind], numbers[kind] = [], array("q")
        by_type[kind].append(record)
        numbers[kind].append(number)
    _check_frame(records, numbers, name)
    present = {kind: set[str]().union(*of_kind) for kind, of_kind in by_type.items()}
    for kind, fields in RECORDS.items():
        if kind in by_type and fault(fields, by_type[kind], present[kind]) is not None:
            for number, record in zip(numbers[kind], by_type[kind], strict=True):
                found = describe_fault(fields, record)
                if found is not None:
                    raise FormatError(found[1], name, number, found[0])
    for kind, key in UNIQUE.items():
        _check_unique(by_type.get(kind, []), kind, numbers.get(kind, []), name, key)
    for kind in SINGLE:
        if len(by_type.get(kind, [])) > 1:
            raise FormatError(f"a second {kind}; a stream holds one", name, numbers[kind][1])
    for kind, of_kind in by_type.items():
        fields = RECORDS.get(kind, {})
        if any(f not in fields or _holds_objects(fields[f]) for f in present[kind] - {"type"}):
            keep_numbers(fields, of_kind, _lines(data, numbers[kind]))
    declared = records[-1]["records"]
    if declared != len(records) - 1:
        stream.warnings.append(
            f"{name}: the end record counts {declared} records, there are {len(records) - 1}"
        )
    stream.records = {kind: by_type[kind] for kind in BODY if kind in by_type}
    stream.lines = {kind: numbers[kind] for kind in stream.records}
    stream.other = [r for kind, rs in by_type.items() if kind not in RECORDS for r in rs]
    return stream


def _lines(data: bytes, numbers: Iterable[int]) -> Iterable[bytes]:
    """The lines of these numbers, which ascend. All lines at once would double the memory."""
    numbered = enumerate(BytesIO(data), 1)
    for wanted in numbers:
        yield next(line for number, line in numbered if number == wanted).removesuffix(b"\n")


def _parse(data: bytes, name: str) -> list[Record]:
    """Decode and look at line after line; texts of few values are the same object in all records,
    which takes a third less memory."""
    records: list[Record] = []
    shared: dict[str, str] = {}
    for number, line in enumerate(BytesIO(data), 1):
        try:
            record = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            hint = what_it_is(line, "stream") if number == 1 else ""
            if hint:
                raise FormatError(f"not a stream{hint}", name) from None
            raise FormatError(_json_reason(line, str(error)), name, number) from None
        # Of the text: what a key that is there twice had at first is in no record.
        if (line.count(b"[") > DEPTH or line.count(b"{") > DEPTH) and deep_line(line):
            raise FormatError(f"nested more than {DEPTH} levels deep", name, number)
        if type(record) is not dict:
            raise FormatError(f"{shown(record)} is not a JSON object", name, number)
        kind = record.get("type")
        if type(kind) is not str:
            fault_text = "is missing" if "type" not in record else "is not a string"
            fault_text += "; is this a stream? dnnp-import makes one" * (number == 1)
            raise FormatError(fault_text, name, number, "type")
        record["type"] = shared.setdefault(kind, kind)
        for key in REPEATED.get(kind, ()):
            text = record.get(key)
            if type(text) is str:
                record[key] = shared.setdefault(text, text)
        records.append(record)
    return records


def _json_reason(line: bytes, reason: str) -> str:
    """The reason why a line is not JSON, with a hint for the usual causes."""
    text = line.strip()
    if not text:
        return "empty line"
    if text in (b"{", b"[") or (text.startswith(b'"') and text.endswith((b",", b"{", b"["))):
        return "not one record a line; write JSON lines (jq -c)"
    if b"NaN" in text or b"Infinity" in text:
        return "not JSON: NaN and Infinity are not JSON numbers"
    detail = " ".join(reason.split(":")[0].split())
    return f"not JSON: {said(detail)}"


def _check_frame(records: list[Record], numbers: Mapping[str, Sequence[int]], name: str) -> None:
    """Header first, end last, each once."""
    first = records[0]
    if first["type"] != "header":
        raise FormatError(
            f"the first record is of type {shown(first['type'])}, not 'header'; not a dnnp stream?",
            name,
            1,
        )
    version = first.get("version")
    if first.get("format") == "dnnp" and type(version) is int and version != VERSION:
        raise FormatError(
            f"version {version} of the format; this dnnp reads version {VERSION}",
            name,
            1,
            "version",
        )
    if "end" not in numbers:
        raise FormatError(
            f"the stream was cut off after line {len(records)}: the 'end' record is missing", name
        )
    for kind, place in (("header", 1), ("end", len(records))):
        stray = [line for line in numbers[kind] if line != place]
        if stray:
            raise FormatError(
                f"'{kind}' record in the middle of the stream; two streams joined?", name, stray[0]
            )


def _check_unique(
    records: list[Record], kind: str, numbers: Sequence[int], name: str, key: str
) -> None:
    if len({r[key] for r in records}) == len(records):
        return
    seen: dict[int | str, int] = {}
    for record, number in zip(records, numbers, strict=True):
        first = seen.setdefault(record[key], number)
        if first != number:
            raise FormatError(
                f"{kind} {record[key]} was already defined in line {first}", name, number, key
            )


def records_in_order(stream: Stream) -> Iterable[Record]:
    """Header, the records by type, those of unknown type; without `end`."""
    yield stream.header
    for kind in BODY:
        yield from stream.records.get(kind, ())
    yield from stream.other


def _unwritable(stream: Stream, kind: str, field_name: str, reason: str) -> FormatError:
    """An error about a computed number; names the largest of the read ones it comes from."""
    largest, where, path = 0.0, None, field_name
    for source, lines in stream.lines.items():
        if source in ("tensor", "node", "group"):
            for line, record in zip(lines, stream.get(source), strict=True):
                times = {
                    f"time_s.{key}": value for key, value in (record.get("time_s") or {}).items()
                }
                for name, value in (*record.items(), *times.items()):
                    if type(value) in (int, float) and value > largest:
                        largest, where, path = value, line, name
    text = f"cannot write a {kind} record: its '{field_name}', {reason}"
    if where is None:
        return FormatError(text, stream.name)
    return FormatError(f"{text}; the largest number read is {largest}", stream.name, where, path)


def write(stream: Stream, file: BinaryIO) -> None:
    """Write the whole stream, ending with its `end` record.

    Raises
    ------
    FormatError
        A computed number lies beyond what a record may hold.
    """
    for kind in COMPUTED:
        records = stream.get(kind)
        if records and fault(RECORDS[kind], records) is not None:
            for record in records:
                found = describe_fault(RECORDS[kind], record)
                if found is not None:
                    raise _unwritable(stream, kind, *found)
    records = list(records_in_order(stream))
    records.append({"type": "end", "records": len(records)})
    # Small batches reuse the memory of their lines; a fresh page for each costs ten times more.
    for i in range(0, len(records), BATCH):
        file.write(b"\n".join([*map(orjson.dumps, records[i : i + BATCH]), b""]))


def forward_pass(stream: Stream) -> Stream:
    """Nodes that are not of the backward pass, and the tensors that they read and write.

    Groups and what was computed from them are left out; lines stay, for messages.
    """
    nodes = [i for i, node in enumerate(stream.get("node")) if not node.get("backward")]
    used: set[int] = set()
    for i in nodes:
        used.update(stream.get("node")[i]["inputs"], stream.get("node")[i]["outputs"])
    tensors = [i for i, tensor in enumerate(stream.get("tensor")) if tensor["id"] in used]
    part = Stream(stream.header, name=stream.name)
    part.records = {kind: stream.get(kind) for kind in ("device", "link")}
    for kind, kept in (("tensor", tensors), ("node", nodes)):
        part.records[kind] = [stream.get(kind)[i] for i in kept]
        if kind in stream.lines:
            part.lines[kind] = [stream.lines[kind][i] for i in kept]
    return part


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
