"""Reader of TensorFlow's CostGraphDef as protobuf text, the format of the REGAL graphs.

Numbers are kept as they are and the time unit is `unknown`: TensorFlow writes `compute_cost`
in microseconds, while the REGAL graphs have costs and sizes without a unit. The device class
gets a bandwidth of one byte per unit of time, so that a tensor's size is also its transfer
time, as in MTPP (Archer et al. 2024, Appendix B.1); --bandwidth of later commands replaces it.

`parse_text` reads protobuf text as lists of fields, without a schema, each with its line. Values
are numbers, strings, words (`true`, `DT_FLOAT`) and messages. Extensions and expanded `Any`
messages (`[type.name] {...}`) are read and kept under their bracketed name.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from dnnp.core.model.errors import FormatError
from dnnp.formats.acyclic import find_cycle
from dnnp.formats.fields import MAX_ID, MAX_NUMBER, shown
from dnnp.formats.header import new_header
from dnnp.formats.limits import MESSAGES, Room
from dnnp.formats.stream import Record, Stream
from dnnp.formats.workloads.records import device_record, node_record, tensor_record

DEVICE_CLASS = "accelerator"
"""The one device class that such a graph has costs for."""

_MEMORY = (
    "temporary_memory_size",
    "persistent_memory_size",
    "host_temp_memory_size",
    "device_temp_memory_size",
    "device_persistent_memory_size",
)
_DTYPES = {"float": "float32", "double": "float64", "half": "float16"}

_Key = tuple[str, int]
"""Device and id of a node; the device is empty where ids alone are unique."""


def read_costgraph(
    data: bytes, path: str, name: str | None = None, one_tensor: bool = False
) -> Stream:
    """Read a CostGraphDef.

    Each port of a node becomes a tensor. Control inputs become tensors of no bytes. A port
    that is an alias of an input keeps its own size, or takes that input's if it has none.

    With `one_tensor` a node makes one tensor, its first port; readers of another port read that
    (MTPP, B.1). The other parameters are those of `msr.read_workload`.

    Raises
    ------
    FormatError
        Not such a graph; the message names line and field.
    """
    file = "<stdin>" if path == "-" else path
    document = parse_text(data, file)
    nodes = document.messages("node")
    if not nodes:
        raise FormatError("not a CostGraphDef: there are no nodes", file)
    keys = _keys(nodes)
    builder = _Builder(nodes, keys, one_tensor, Room(file, len(data)))
    records, tensors = builder.build()
    cycle = find_cycle(builder.edges, len(nodes))
    if cycle:
        shown = " -> ".join(f"{records[i]['id']} '{records[i]['name']}'" for i in cycle[:8])
        raise FormatError(f"the graph has a cycle: {shown}", file, nodes[cycle[0]].line)
    device = device_record(DEVICE_CLASS, bandwidth_bytes_per_s=1)
    digest = hashlib.sha256(data).hexdigest()
    header = new_header("costgraph", path, digest, name, "unknown")
    return Stream(header, {"device": [device], "tensor": tensors, "node": records}, name=file)


def _keys(nodes: list[Message]) -> list[_Key]:
    """Keys of the nodes: ids are unique in the graph, or else on each device."""
    ids = [node.integer("id") for node in nodes]
    devices = [node.text("device") if len(set(ids)) < len(ids) else "" for node in nodes]
    keys = list(zip(devices, ids, strict=True))
    first: dict[_Key, int] = {}
    for key, node in zip(keys, nodes, strict=True):
        if key in first:
            where = f" on device '{key[0]}'" if key[0] else ""
            reason = f"{key[1]} is already the id of the node in line {first[key]}{where}"
            raise node.fault("id", reason)
        first[key] = node.line
    return keys


class _Builder:
    """Turns nodes into records."""

    def __init__(
        self, nodes: list[Message], keys: list[_Key], one_tensor: bool, room: Room
    ) -> None:
        self._nodes = nodes
        self._room = room
        self._one_tensor = one_tensor
        self._keys = keys
        self._positions = {key: i for i, key in enumerate(keys)}
        self._unique = len({number for _, number in keys}) == len(keys)
        self._tensors: list[Record] = []
        self._ports: list[list[int]] = []
        """Tensor of each port of each node; of all its ports where it makes one."""
        self._control: dict[int, int] = {}
        """Node position -> its control tensor."""
        self.edges: list[tuple[int, int]] = []

    def build(self) -> tuple[list[Record], list[Record]]:
        """Node and tensor records."""
        records = [self._node(i) for i in range(len(self._nodes))]
        for i, record in enumerate(records):
            record["inputs"] = self._inputs(i, records)
            self._size_aliases(i, record["inputs"])
        return records, self._tensors

    def _node(self, position: int) -> Record:
        node = self._nodes[position]
        number = self._keys[position][1]
        name, final = node.text("name"), node.flag("is_final")
        outputs = node.messages("output_info")
        ports: list[int] = []
        for port, output in enumerate(outputs):
            if port and self._one_tensor:
                ports.append(ports[0])
                continue
            self._room.take(len(name), output.line)
            called = name if self._one_tensor or len(outputs) == 1 else f"{name}:{port}"
            tensor = tensor_record(len(self._tensors), called, output.number("size"))
            dtype = output.word("dtype").removeprefix("DT_").removesuffix("_REF").lower()
            if dtype and dtype != "invalid":
                tensor["dtype"] = _DTYPES.get(dtype, dtype)
            shape = _shape(output)
            if shape is not None:
                tensor["shape"] = shape
            if final:
                tensor["output"] = True
            ports.append(tensor["id"])
            self._tensors.append(tensor)
        self._ports.append(ports)
        record = node_record(
            number if self._unique else position,
            name,
            outputs=list(dict.fromkeys(ports)),
            time_s={DEVICE_CLASS: node.number("compute_cost")},
        )
        memory = sum(node.number(field) for field in _MEMORY)
        if memory:
            record["memory_bytes"] = min(memory, MAX_NUMBER)
        return record

    def _inputs(self, position: int, records: list[Record]) -> list[int]:
        """Tensors a node reads; makes control tensors as they are needed."""
        node = self._nodes[position]
        found: dict[int, None] = {}
        for entry in node.messages("input_info"):
            number = entry.integer("preceding_node")
            producer = self._find(entry, "preceding_node", number, position)
            port = entry.integer("preceding_port")
            if port >= len(self._ports[producer]):
                name, count = records[producer]["name"], len(self._ports[producer])
                raise entry.fault("preceding_port", f"{port}; node '{name}' has {count} outputs")
            found[self._ports[producer][port]] = None
        for number in node.integers("control_input"):
            producer = self._find(node, "control_input", number, position)
            if producer not in self._control:
                self._control[producer] = len(self._tensors)
                records[producer]["outputs"].append(len(self._tensors))
                name = f"^{records[producer]['name']}"
                self._tensors.append(tensor_record(len(self._tensors), name, 0))
            found[self._control[producer]] = None
        return list(found)

    def _find(self, message: Message, field: str, number: int, reader: int) -> int:
        """Position of the node with an id, on the reader's device where ids repeat."""
        key = self._keys[reader][0], number
        if key not in self._positions:
            raise message.fault(field, f"there is no node {number}")
        producer = self._positions[key]
        if producer == reader:
            raise message.fault(field, "a node reads its own output")
        self.edges.append((producer, reader))
        return producer

    def _size_aliases(self, position: int, inputs: list[int]) -> None:
        node = self._nodes[position]
        entries = node.messages("input_info")
        for port, output in enumerate(node.messages("output_info")):
            if port and self._one_tensor:
                break
            alias = output.integer("alias_input_port", -1, -1)
            tensor = self._tensors[self._ports[position][port]]
            if 0 <= alias < len(entries) and not tensor["size_bytes"]:
                entry = entries[alias]
                key = self._keys[position][0], entry.integer("preceding_node")
                source = self._ports[self._positions[key]][entry.integer("preceding_port")]
                tensor["size_bytes"] = self._tensors[source]["size_bytes"]


def _shape(output: Message) -> list[int] | None:
    """A shape whose dimensions are all known, or None."""
    shape = output.message("shape")
    if shape is None or shape.flag("unknown_rank"):
        return None
    sizes = [dim.integer("size", 0, -1) for dim in shape.messages("dim")]
    return None if -1 in sizes else sizes


_TOKEN = re.compile(
    r"""(?P<skip>[\s]+|\#[^\n]*)
    |(?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    |(?P<number>0[xX][0-9a-fA-F]+|(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fF]?)
    |(?P<word>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<symbol>[{}<>\[\]:;,/.-])""",
    re.VERBOSE | re.ASCII,
)
_ESCAPE = re.compile(
    rb"\\(?:[xX]([0-9a-fA-F]{1,2})|([0-7]{1,3})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL
)
_PLAIN = {
    b"n": b"\n", b"t": b"\t", b"r": b"\r", b"a": b"\a", b"b": b"\b", b"f": b"\f", b"v": b"\v",
    b"\\": b"\\", b"'": b"'", b'"': b'"', b"?": b"?",
}  # fmt: skip
_CLOSERS = {"{": "}", "<": ">"}


@dataclass(frozen=True)
class Word:
    """An identifier as a value: an enum, or `true` and `false`."""

    text: str

    def __repr__(self) -> str:
        return self.text


Scalar = int | float | str | Word


@dataclass
class Message:
    """A message: its fields in order, each with the line it stands in."""

    file: str
    line: int
    fields: list[tuple[str, Scalar | Message, int]] = field(default_factory=list)

    def all(self, name: str) -> list[tuple[Scalar | Message, int]]:
        """Every value of a field, with its line."""
        return [(value, line) for key, value, line in self.fields if key == name]

    def messages(self, name: str) -> list[Message]:
        """The values of a repeated message field."""
        return [self._message(name, value, line) for value, line in self.all(name)]

    def _message(self, name: str, value: Scalar | Message, line: int) -> Message:
        if not isinstance(value, Message):
            raise self.fault(name, f"{shown(value)} is not a message", line)
        return value

    def _single(self, name: str) -> tuple[Scalar | Message, int] | None:
        values = self.all(name)
        if len(values) > 1:
            raise self.fault(name, "is given twice", values[1][1])
        return values[0] if values else None

    def message(self, name: str) -> Message | None:
        """A message field, None if it is absent."""
        found = self._single(name)
        return None if found is None else self._message(name, *found)

    def text(self, name: str) -> str:
        """A string field, empty if it is absent."""
        value, line = self._single(name) or ("", self.line)
        if not isinstance(value, str):
            raise self.fault(name, f"{shown(value)} is not a string", line)
        return value

    def word(self, name: str) -> str:
        """An enum field by name, empty if it is absent or a number."""
        value, _ = self._single(name) or ("", self.line)
        return value.text if isinstance(value, Word) else ""

    def flag(self, name: str) -> bool:
        """A bool field."""
        value, line = self._single(name) or (0, self.line)
        text = value.text if isinstance(value, Word) else value
        if text in ("true", "True", "t", 1) and not isinstance(text, float):
            return True
        if text in ("false", "False", "f", 0) and not isinstance(text, float):
            return False
        raise self.fault(name, f"{shown(value)} is not true or false", line)

    def integer(self, name: str, default: int = 0, least: int = 0) -> int:
        """An integer field."""
        value, line = self._single(name) or (default, self.line)
        return self._integer(name, value, line, least)

    def integers(self, name: str, least: int = 0) -> list[int]:
        """A repeated integer field."""
        return [self._integer(name, value, line, least) for value, line in self.all(name)]

    def _integer(self, name: str, value: Scalar | Message, line: int, least: int) -> int:
        if not isinstance(value, int) or not least <= value <= MAX_ID:
            raise self.fault(name, f"{shown(value)} is not an integer from {least}", line)
        return value

    def number(self, name: str) -> float:
        """A number of at least 0; 0 if it is absent."""
        value, line = self._single(name) or (0, self.line)
        if not isinstance(value, int | float) or not 0 <= value <= MAX_NUMBER:
            raise self.fault(name, f"{shown(value)} is not a number from 0 to {MAX_NUMBER:g}", line)
        return value if isinstance(value, int) and value <= MAX_ID else float(value)

    def fault(self, name: str, reason: str, line: int | None = None) -> FormatError:
        """An error about a field."""
        return FormatError(reason, self.file, line or self.line, name)


def parse_text(data: bytes, file: str) -> Message:
    """Parse a whole document.

    Raises
    ------
    FormatError
        It is no protobuf text; the message names the line.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise FormatError("the text is not UTF-8", file, line) from None
    return _Parser(text, file).document()


class _Parser:
    """Recursive descent over the tokens of a document."""

    def __init__(self, text: str, file: str) -> None:
        self._file = file
        self._tokens = self._scan(text)
        self._kind, self._text, self._line = "", "", 1
        self._next()

    def _scan(self, text: str) -> Iterator[tuple[str, str, int]]:
        position, line = 0, 1
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                raise FormatError(f"{shown(text[position])} is out of place", self._file, line)
            kind, token = match.lastgroup or "", match.group()
            if kind != "skip":
                yield kind, token, line
            line += token.count("\n")
            position = match.end()
        yield "end", "", line

    def _next(self) -> str:
        """Move on; returns the token that is left behind."""
        text = self._text
        self._kind, self._text, self._line = next(self._tokens, ("end", "", self._line))
        return text

    def _take(self, *texts: str) -> str:
        """Move past a symbol if it is one of `texts`; empty if not."""
        return self._next() if self._kind == "symbol" and self._text in texts else ""

    def _fault(self, expected: str) -> FormatError:
        got = "the end of the file" if self._kind == "end" else shown(self._text)
        return FormatError(f"expected {expected}, not {got}", self._file, self._line)

    def document(self) -> Message:
        message = Message(self._file, 1)
        while self._kind != "end":
            self._field(message, 0)
        return message

    def _field(self, message: Message, depth: int) -> None:
        line = self._line
        name = self._name()
        colon = self._take(":")
        if self._kind == "symbol" and self._text in _CLOSERS:
            message.fields.append((name, self._message(depth + 1), line))
        elif not colon:
            raise self._fault(f"':' or '{{' after '{name}'")
        elif self._take("["):
            while not self._take("]"):
                nested = self._kind == "symbol" and self._text in _CLOSERS
                value = self._message(depth + 1) if nested else self._scalar()
                message.fields.append((name, value, line))
                if not self._take(",") and self._text != "]":
                    raise self._fault("',' or ']'")
        else:
            message.fields.append((name, self._scalar(), line))
        self._take(";", ",")

    def _name(self) -> str:
        if self._kind == "word":
            return self._next()
        if not self._take("["):
            raise self._fault("a field name")
        parts = []
        while not self._take("]"):
            if self._kind != "word" and self._text not in ("/", ".", "-"):
                raise self._fault("']'")
            parts.append(self._next())
        return f"[{''.join(parts)}]"

    def _message(self, depth: int) -> Message:
        if depth > MESSAGES:
            reason = f"more than {MESSAGES} messages inside each other"
            raise FormatError(reason, self._file, self._line)
        message = Message(self._file, self._line)
        closer = _CLOSERS[self._next()]
        while not self._take(closer):
            self._field(message, depth)
        return message

    def _scalar(self) -> Scalar:
        sign = -1 if self._take("-") else 1
        if self._kind == "number":
            return sign * self._number(self._next())
        if self._kind == "word":
            word = self._next()
            if word.lower() in ("inf", "infinity", "nan"):
                return sign * float(word)
            if sign > 0:
                return Word(word)
        if self._kind == "string" and sign > 0:
            parts = []
            while self._kind == "string":
                parts.append(self._unescaped(self._text))
                self._next()
            return self._decoded(b"".join(parts))
        raise self._fault("a value")

    def _number(self, text: str) -> int | float:
        try:
            if text[:2] in ("0x", "0X"):
                return int(text, 16)
            if text.isdigit():
                return int(text, 8 if text[0] == "0" else 10)
            return float(text.rstrip("fF"))
        except ValueError:
            raise FormatError(f"{shown(text)} is not a number", self._file, self._line) from None

    def _unescaped(self, token: str) -> bytes:
        def value(match: re.Match[bytes]) -> bytes:
            two, octal, short, long, plain = match.groups()
            if two or octal:
                return bytes([int(two or octal, 16 if two else 8) & 255])
            if short or long:
                code = int(short or long, 16)
                return chr(code).encode(errors="surrogatepass") if code < 0x110000 else b"\xff"
            return _PLAIN.get(plain, b"\xff")  # no byte of UTF-8: refused when decoded

        return _ESCAPE.sub(value, token[1:-1].encode())

    def _decoded(self, data: bytes) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise FormatError(
                "a string with a bad escape, or that is not UTF-8", self._file, self._line
            ) from None
