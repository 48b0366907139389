"""Reader and writer of the stream: one JSON record a line (see dnnp-graph(5))."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from itertools import chain, compress, count, islice
from operator import lt
from typing import Any, BinaryIO

import orjson

from dnnp.core.model.errors import FormatError
from dnnp.formats.fields import describe_fault, fault, shown
from dnnp.formats.files import what_it_is
from dnnp.formats.limits import DEPTH, deep_line, said
from dnnp.formats.records import RECORDS, SINGLE, UNIQUE, VERSION, VERSIONS, WITH_RULES, WITH_STATE
from dnnp.formats.rows import CHUNK, REPEATED, Rows, closed_fields, keep_numbers, uncollected

Record = dict[str, Any]

LEVELS = (
    ("cost",),
    ("group",),
    ("plan", "stage"),
    ("bound",),
    ("schedule", "block"),
    ("run", "generation"),
)
"""Levels of records; replacing one drops all later ones."""

COMPUTED = ("group", "plan", "stage", "bound", "schedule", "block")
"""Records whose numbers are sums and quotients of what was read."""

BODY = tuple(kind for kind in RECORDS if kind not in ("header", "end"))


@dataclass
class Stream:
    """Everything a stream holds, by record type, in file order.

    In fields of unknown meaning, numbers that would be written in another way than they were read
    are `orjson.Fragment`.
    """

    header: Record
    records: dict[str, list[Record] | Rows] = field(default_factory=dict)
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
        """Records of one type, which may be changed; empty if there are none."""
        found = self.records.get(kind, [])
        if isinstance(found, Rows):
            self.records[kind] = found = found.listed()
        return found

    def rows(self, kind: str) -> list[Record] | Rows:
        """Records of one type to look at, decoded in passing where they are very many."""
        return self.records.get(kind, [])

    def put(self, kind: str, name: str, value: Callable[[int], Any], column: Any) -> None:
        """Set a field of all records of a type; see `Rows.put`."""
        found = self.records.get(kind, [])
        if isinstance(found, Rows):
            found.put(name, value, column)
        else:
            for i, record in enumerate(found):
                record[name] = value(i)

    def drop(self, kind: str, names: Iterable[str]) -> None:
        """Remove fields of all records of a type."""
        found = self.records.get(kind, [])
        if isinstance(found, Rows):
            found.drop(names)
        else:
            for record in found:
                for name in names:
                    record.pop(name, None)

    def fault_at(self, kind: str, index: int, field_name: str | None, reason: str) -> FormatError:
        """An error that names the line of record `index` of type `kind`."""
        lines = self.lines.get(kind)
        return FormatError(reason, self.name, lines[index] if lines else None, field_name)

    def replace(self, kind: str, records: list[Record] | Rows) -> list[str]:
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
        if kind == "group":
            for phase in self.get("phase"):
                for name in ("group_times", "basis"):
                    phase.pop(name, None)
        dropped = [k for k in later if self.records.pop(k, None)]
        for k in later:
            self.lines.pop(k, None)
        return dropped


@dataclass
class _Kind:
    """Records of one type while they are read."""

    kind: str
    file: str
    rows: list[Record] | Rows
    numbers: array[int] = field(default_factory=partial(array, "q"))
    """Their lines."""
    keys: list[Any] = field(default_factory=list)
    """Values of the field of which no two may be equal."""
    fault: FormatError | None = None
    """Error about the first record that is not as it must be."""

    def take(self, records: list[Record], block: bytes, numbers: Iterable[int]) -> None:
        """Check some records, and add them to those before."""
        before = len(self.numbers)
        self.numbers.extend(numbers)
        fields = RECORDS.get(self.kind, {})
        names = set().union(*records)
        full: dict[str, list[Any]] = {}
        if self.fault is None and fault(fields, records, names, full) is not None:
            faults = (describe_fault(fields, record) for record in records)
            at, said = next((i, f) for i, f in enumerate(faults, before) if f)
            self.fault = FormatError(said[1], self.file, self.numbers[at], said[0])
        if self.fault is not None:
            return
        if self.kind in UNIQUE:
            self.keys += full[UNIQUE[self.kind]]
        unknown = not names <= closed_fields(self.kind)
        if isinstance(self.rows, Rows):
            self.rows.take(records, block, names, full, exact=unknown)
        else:
            if unknown:
                keep_numbers(fields, records, block.split(b"\n"))
            self.rows += records

    def check_unique(self, key: str) -> None:
        """Refuse a second record with an equal field."""
        keys = self.keys
        if all(map(lt, keys, islice(keys, 1, None))) or len({*keys}) == len(keys):
            return
        seen: dict[int | str, int] = {}
        for value, number in zip(keys, self.numbers, strict=True):
            first = seen.setdefault(value, number)
            if first != number:
                reason = f"{self.kind} {value} was already defined in line {first}"
                raise FormatError(reason, self.file, number, key)


@uncollected()
def read_bytes(data: bytes, name: str = "<stream>") -> Stream:
    """Parse and check a whole stream; `name` is its file, for messages.

    Of records of which there may be very many the lines are kept, and decoded when they are asked
    for.

    Raises
    ------
    FormatError
        The stream is malformed; the message names file, line and field.
    """
    if not data:
        raise FormatError("empty stream; did the command before it fail?", name)
    found: dict[str, _Kind] = {}
    first: Record = {}
    file, number, start = BytesIO(data), 1, 0
    while lines := list(islice(file, CHUNK)):
        records = _parse(lines, name, number)
        first = first or records[0]
        end = file.tell()
        kinds = [record["type"] for record in records]
        for kind in dict.fromkeys(kinds):
            if kind not in found:
                found[kind] = _Kind(kind, name, Rows(kind) if kind in REPEATED else [])
            if kinds.count(kind) == len(kinds):
                block = data[start : end - lines[-1].endswith(b"\n")]
                found[kind].take(records, block, range(number, number + len(lines)))
                continue
            mine = [other == kind for other in kinds]
            some = b"".join(compress(lines, mine)).removesuffix(b"\n")
            found[kind].take(list(compress(records, mine)), some, compress(count(number), mine))
        number, start = number + len(lines), end
    _check_frame(first, number - 1, found, name)
    for kind in RECORDS:
        if kind in found and (error := found[kind].fault) is not None:
            raise error
    for kind, key in UNIQUE.items():
        if kind in found:
            found[kind].check_unique(key)
    for kind in SINGLE:
        if kind in found and len(found[kind].rows) > 1:
            raise FormatError(f"a second {kind}; a stream holds one", name, found[kind].numbers[1])
    stream = Stream(header=first, name=name)
    declared = found["end"].rows[0]["records"]
    if declared != number - 2:
        stream.warnings.append(
            f"{name}: the end record counts {declared} records, there are {number - 2}"
        )
    stream.records = {kind: found[kind].rows for kind in BODY if kind in found}
    stream.lines = {kind: found[kind].numbers for kind in stream.records}
    stream.other = [r for kind, one in found.items() if kind not in RECORDS for r in one.rows]
    return stream


def _parse(lines: Sequence[bytes], name: str, number: int) -> list[Record]:
    """Decode lines, the first of which has a number."""
    try:
        records = list(map(orjson.loads, lines))
    except orjson.JSONDecodeError:
        records = []
    plain = set(map(type, records)) == {dict}
    named = plain and set(map(type, [record.get("type") for record in records])) == {str}
    # A line that is nested too deep has as many brackets at both ends.
    long = max(map(len, lines)) > 2 * DEPTH
    if named and not (long and any(map(_is_deep, lines))):
        return records
    return [_parse_line(line, name, i) for i, line in enumerate(lines, number)]


def _parse_line(line: bytes, name: str, number: int) -> Record:
    """Decode a line, or find words for its fault."""
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        hint = what_it_is(line, "stream") if number == 1 else ""
        if hint:
            raise FormatError(f"not a stream{hint}", name) from None
        raise FormatError(_json_reason(line, str(error)), name, number) from None
    if _is_deep(line):
        raise FormatError(f"nested more than {DEPTH} levels deep", name, number)
    if type(record) is not dict:
        raise FormatError(f"{shown(record)} is not a JSON object", name, number)
    if type(record.get("type")) is not str:
        fault_text = "is missing" if "type" not in record else "is not a string"
        fault_text += "; is this a stream? dnnp-import makes one" * (number == 1)
        raise FormatError(fault_text, name, number, "type")
    return record


def _is_deep(line: bytes) -> bool:
    """True if a line has too many lists and objects inside each other.

    Of the text: what a key that is there twice had at first is in no record.
    """
    many = line.count(b"[") > DEPTH or line.count(b"{") > DEPTH
    return many and deep_line(line) is not None


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


def _check_frame(first: Record, count: int, found: Mapping[str, _Kind], name: str) -> None:
    """Header first, end last, each once."""
    if first["type"] != "header":
        raise FormatError(
            f"the first record is of type {shown(first['type'])}, not 'header'; not a dnnp stream?",
            name,
            1,
        )
    version = first.get("version")
    if first.get("format") == "dnnp" and type(version) is int and version not in VERSIONS:
        known = ", ".join(map(str, VERSIONS))
        reason = f"version {version} of the format; this dnnp reads {known}"
        raise FormatError(reason, name, 1, "version")
    if {"state", "phase"} & found.keys() and version not in VERSIONS[1:]:
        reason = f"streams with states or phases are of version {WITH_STATE} of the format"
        raise FormatError(reason, name, 1, "version")
    if "end" not in found:
        raise FormatError(
            f"the stream was cut off after line {count}: the 'end' record is missing", name
        )
    for kind, place in (("header", 1), ("end", count)):
        stray = [line for line in found[kind].numbers if line != place]
        if stray:
            raise FormatError(
                f"'{kind}' record in the middle of the stream; two streams joined?", name, stray[0]
            )


def _unwritable(stream: Stream, kind: str, field_name: str, reason: str) -> FormatError:
    """An error about a computed number; names the largest of the read ones it comes from."""
    largest, where, path = 0.0, None, field_name
    for source, lines in stream.lines.items():
        if source in ("tensor", "node", "group"):
            for line, record in zip(lines, stream.rows(source), strict=True):
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
        rows = stream.rows(kind)
        records = [] if isinstance(rows, Rows) and not rows.is_edited else list(rows)
        if fault(RECORDS[kind], records) is not None:
            faults = (describe_fault(RECORDS[kind], record) for record in records)
            raise _unwritable(stream, kind, *next(filter(None, faults)))
    ruled = any({"rules", "names"} & {*p, *chain(*p["devices"])} for p in stream.get("plan"))
    if ruled or stream.header["version"] == WITH_RULES:
        states = stream.rows("state") or stream.rows("phase")
        stream.header["version"] = WITH_RULES if ruled else WITH_STATE if states else VERSION
    tables = [[stream.header], *map(stream.rows, BODY), stream.other]
    end = {"type": "end", "records": sum(map(len, tables))}
    for table in (*tables, [end]):
        for part in table.encoded() if isinstance(table, Rows) else _encoded(table):
            file.write(part)


def _encoded(records: Sequence[Record]) -> Iterator[bytes]:
    """The lines of records, some at a time."""
    for i in range(0, len(records), CHUNK):
        yield b"\n".join([*map(orjson.dumps, records[i : i + CHUNK]), b""])


def forward_pass(stream: Stream) -> Stream:
    """Nodes that are not of the backward pass, and the tensors that they read and write.

    Groups and what was computed from them are left out; lines stay, for messages.
    """
    all_nodes, all_tensors = stream.get("node"), stream.get("tensor")
    nodes = [i for i, node in enumerate(all_nodes) if not node.get("backward")]
    used = {t for i in nodes for side in ("inputs", "outputs") for t in all_nodes[i][side]}
    tensors = [i for i, tensor in enumerate(all_tensors) if tensor["id"] in used]
    part = Stream(stream.header, name=stream.name)
    part.records = {kind: stream.get(kind) for kind in ("device", "link")}
    for kind, kept in (("tensor", tensors), ("node", nodes)):
        part.records[kind] = [stream.get(kind)[i] for i in kept]
        if kind in stream.lines:
            part.lines[kind] = [stream.lines[kind][i] for i in kept]
    return part
