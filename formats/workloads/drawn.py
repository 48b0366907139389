"""A graph as people write one down: named nodes, edges between two of them, and attributes.

Readers of CSV, DOT and GraphML, and of graphs of networkx, make a `Drawn` of what they read;
`drawn_stream` knows what its attributes mean.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dnnp.core.model.errors import FormatError
from dnnp.core.model.text import closest, did_you_mean, printable
from dnnp.formats.acyclic import find_cycle
from dnnp.formats.fields import MAX_ID, MAX_NUMBER, shown
from dnnp.formats.limits import Room
from dnnp.formats.stream import Record, Stream

_TRUE, _FALSE = ("true", "1", "yes"), ("false", "0", "no", "")
_HINTED = 10_000
"""Nodes among which a misspelt one is looked for."""


class Item(NamedTuple):
    """Attributes of a node or an edge, and where they stand."""

    values: dict[str, Any]
    """Attributes; those without a value are left out."""
    file: str
    """Of a graph in memory: which node or edge it is."""
    line: int | None = None

    def fault(self, reason: str, name: str | None = None) -> FormatError:
        """An error about it, or about one of its attributes."""
        return FormatError(reason, self.file, self.line, name and printable(name))

    def number(self, name: str) -> float:
        """An attribute from 0 to `MAX_NUMBER`; whole numbers are integers."""
        value = self.values[name]
        text = str(value).strip()
        if not isinstance(value, bool) and text.isascii() and "_" not in text:
            try:
                found = float(text)
            except ValueError:
                found = -1.0
            if 0 <= found <= MAX_NUMBER:
                whole = text.isdigit() and found <= MAX_ID
                return int(found) if whole else found + 0.0  # no -0.0
        raise self.fault(f"{shown(value)} is not a number from 0 to {MAX_NUMBER:g}", name)

    def text(self, name: str, default: object = "") -> str:
        """An attribute as text."""
        text = str(self.values.get(name, default))
        if not text.isascii() and text != text.encode(errors="replace").decode():
            raise self.fault(f"{text!a} is not UTF-8, so a stream cannot hold it", name)
        return text

    def flag(self, name: str) -> bool:
        """An attribute that is true or false; false where it is absent."""
        word = str(self.values.get(name, "")).strip().lower()
        if word not in (*_TRUE, *_FALSE):
            raise self.fault(f"{shown(self.values[name])} is not true or false", name)
        return word in _TRUE


class Edge(NamedTuple):
    """An edge between two nodes, by their keys."""

    tail: Hashable
    head: Hashable
    item: Item


@dataclass
class Drawn:
    """A graph that a reader found; `add` and `join` refuse what cannot be."""

    file: str
    """For messages."""
    room: Room = field(default_factory=Room)
    """What is left of it; a graph in memory has no limit."""
    nodes: dict[Hashable, Item] = field(default_factory=dict)
    edges: list[Edge] = field(default_factory=list)
    _seen: dict[Hashable, Item] = field(default_factory=dict)

    def add(self, key: Hashable, item: Item) -> None:
        """Add a node; no two have one key."""
        first = self.nodes.setdefault(key, item)
        if first is not item:
            raise item.fault(f"a second node {shown(key)}{_first_one(first)}")

    def join(self, edge: Edge) -> None:
        """Add an edge between nodes that are there; two edges of a pair carry two tensors."""
        for end in (edge.tail, edge.head):
            if end not in self.nodes:
                names = [str(key) for key in self.nodes] if len(self.nodes) <= _HINTED else []
                hint = did_you_mean(str(end), names)
                raise edge.item.fault(f"there is no node {shown(end)}{hint}")
        if edge.tail == edge.head:
            raise edge.item.fault(f"an edge from node {shown(edge.tail)} to itself")
        tensor = edge.item.text("tensor") if "tensor" in edge.item.values else None
        first = self._seen.setdefault((edge.tail, edge.head, tensor), edge.item)
        if first is not edge.item:
            pair = f"{shown(edge.tail)} -> {shown(edge.head)}"
            reason = f"a second edge {pair}{_first_one(first)}"
            raise edge.item.fault(f"{reason}; edges with tensors of their own name them (tensor)")
        self.edges.append(edge)


def _first_one(item: Item) -> str:
    return "" if item.line is None else f"; the first is in line {item.line}"


DEVICE_CLASS = "accelerator"
"""Class of times that name none."""
PROCESSOR = "cpu"
"""Class whose devices are CPUs, where there are others beside it."""

TIMES = ("time_s", "time", "cost", "weight")
"""Of a node, also for one class of devices, as in `time_s:v100`."""
MEMORY = ("memory_bytes", "memory")
SIZES = ("size_bytes", "size", "weight")
TRANSFERS = ("transfer_s", "transfer")
PLAIN = ("name", "op", "flop", "bytes", "layer", "scope", "color_class", "backward")
"""Attributes of nodes that have one name."""

_LISTED, _COMPARED = 6, 100
"""Attributes that mean nothing: those that are named, those that are looked at for a hint."""


class _Names(NamedTuple):
    """Attribute names that a graph uses; empty: it has none of them."""

    time: str
    memory: str
    size: str
    transfer: str
    classes: dict[str, str]
    """Attribute -> class of devices whose times it has."""

    @property
    def unit(self) -> str:
        """Transfers have that of times where there are any."""
        decides = self.time or self.transfer
        return "s" if decides in ("", "time_s", "transfer_s") else "unknown"


def drawn_stream(drawn: Drawn, header: Record) -> Stream:
    """The stream of a graph; its header gets the unit of time.

    Raises
    ------
    FormatError
        A value that is no number or out of range, nodes partly without times, times with and
        without a unit, a cycle, or no nodes.
    """
    if not drawn.nodes:
        raise FormatError("there are no nodes", drawn.file)
    said = _attributes(drawn.nodes.values()), _attributes(edge.item for edge in drawn.edges)
    names = _names(*said)
    classes = list(dict.fromkeys(names.classes.values()))
    if len(classes) < len(names.classes):
        reason = f"'{names.time}' and '{names.time}:{DEVICE_CLASS}' are times of the same class"
        raise FormatError(reason, drawn.file)
    nodes = _nodes(drawn, names)
    _check(drawn, names, nodes)
    tensors = _tensors(drawn, names, nodes)
    header["units"] = {"time": names.unit}
    if any("backward" in node for node in nodes):
        header["training"] = True
    stream = Stream(header, name=drawn.file)
    devices = [_device(name, names.unit, len(classes) > 1) for name in classes]
    stream.records = {"device": devices, "tensor": tensors, "node": nodes}
    stream.warnings = _warnings(names, *said)
    sized = any(t["size_bytes"] and "transfer_s" not in t for t in tensors)
    if sized and devices and names.unit == "s":
        stream.warnings.append("tensors have sizes, but links no bandwidth: transfers take no time "
                               "unless dnnp-partition gets --bandwidth")  # fmt: skip
    return stream


def _attributes(items: Iterable[Item]) -> dict[str, None]:
    """Names of attributes that some item has, in order."""
    names: dict[str, None] = {}
    for item in items:
        names.update(dict.fromkeys(item.values))
    return names


def _names(of_nodes: dict[str, None], of_edges: dict[str, None]) -> _Names:
    def first(known: tuple[str, ...], there: Iterable[str]) -> str:
        present = set(there)
        return next((name for name in known if name in present), "")

    time = first(TIMES, (name.partition(":")[0] for name in of_nodes))
    parts = [(name, *name.partition(":")) for name in of_nodes]
    classes = {name: of or DEVICE_CLASS for name, start, _, of in parts if start == time}
    return _Names(
        time, first(MEMORY, of_nodes), first(SIZES, of_edges), first(TRANSFERS, of_edges), classes
    )


def _device(name: str, unit: str, others: bool) -> Record:
    """Without a unit a byte takes one unit of time, as for other graphs whose unit is unknown."""
    kind = "cpu" if name == PROCESSOR and others else "accelerator"
    record: Record = {"type": "device", "class": name, "kind": kind}
    if unit == "unknown" and kind == "accelerator":
        record["bandwidth_bytes_per_s"] = 1
    return record


def _nodes(drawn: Drawn, names: _Names) -> list[Record]:
    """Records of nodes, without their tensors."""
    numbers = {"flop": "flop", "bytes": "bytes", "memory_bytes": names.memory}
    colors: dict[str, int] = {}
    place = {name: i for i, name in enumerate(names.classes)}
    records = []
    for i, (key, item) in enumerate(drawn.nodes.items()):
        record: Record = {
            "type": "node", "id": i, "name": item.text("name", key), "op": item.text("op"),
            "inputs": [], "outputs": [],
        }  # fmt: skip
        record |= {to: item.number(name) for to, name in numbers.items() if name in item.values}
        stated = sorted(place.keys() & item.values.keys(), key=place.__getitem__)
        times = {names.classes[name]: item.number(name) for name in stated}
        if times:
            record["time_s"] = times
        record |= {name: item.text(name) for name in ("layer", "scope") if name in item.values}
        if "color_class" in item.values:
            record["color"] = colors.setdefault(item.text("color_class"), len(colors))
        if item.flag("backward"):
            record["backward"] = True
        records.append(record)
    return records


def _check(drawn: Drawn, names: _Names, nodes: list[Record]) -> None:
    """All nodes have times or none has, in one unit; no edge belongs to a cycle."""
    if names.time:
        for (key, item), node in zip(drawn.nodes.items(), nodes, strict=True):
            if "time_s" not in node:
                raise item.fault(f"node {shown(key)} has no time, but others have one", names.time)
    if names.transfer == "transfer" and names.time == "time_s":
        item = next(e.item for e in drawn.edges if names.transfer in e.item.values)
        raise item.fault("has no unit, but times of nodes are in seconds", names.transfer)
    positions = {key: i for i, key in enumerate(drawn.nodes)}
    ends = [(positions[edge.tail], positions[edge.head]) for edge in drawn.edges]
    cycle = find_cycle(ends, len(nodes))
    if cycle:
        closing = drawn.edges[ends.index((cycle[0], cycle[1]))]
        path = " -> ".join(shown(nodes[i]["name"]) for i in cycle[:8])
        raise closing.item.fault(f"the graph has a cycle: {path}")


def _tensors(drawn: Drawn, names: _Names, nodes: list[Record]) -> list[Record]:
    """Tensors, in the order of the nodes that write them; fills in the nodes' ends."""
    record_of = dict(zip(drawn.nodes, nodes, strict=True))
    leaving: dict[Hashable, list[Edge]] = {key: [] for key in drawn.nodes}
    for edge in drawn.edges:
        leaving[edge.tail].append(edge)
    tensors: list[Record] = []
    for key, edges in leaving.items():
        for name, part in _parts(names, record_of, record_of[key]["name"], edges):
            record = _tensor(names, len(tensors), name, part)
            drawn.room.take(len(name), part[0].item.line)
            record_of[key]["outputs"].append(record["id"])
            for edge in part:
                record_of[edge.head]["inputs"].append(record["id"])
            tensors.append(record)
    return tensors


def _parts(
    names: _Names, record_of: dict[Hashable, Record], writer: str, edges: list[Edge]
) -> Iterator[tuple[str, list[Edge]]]:
    """Edges of a node that carry one tensor, and its name.

    Edges that name the same tensor do. Of the others, all do if they agree in size and time;
    where they differ each is a tensor.
    """
    named: dict[str, list[Edge]] = {}
    plain = []
    for edge in edges:
        if "tensor" in edge.item.values:
            named.setdefault(edge.item.text("tensor"), []).append(edge)
        else:
            plain.append(edge)
    yield from named.items()
    if len({tuple(_amounts(names, edge.item).items()) for edge in plain}) == 1:
        yield writer, plain
        return
    for edge in plain:
        yield f"{writer} to {record_of[edge.head]['name']}", [edge]


def _amounts(names: _Names, item: Item) -> dict[str, float]:
    pairs = (("size_bytes", names.size), ("transfer_s", names.transfer))
    return {to: item.number(name) for to, name in pairs if name in item.values}


def _tensor(names: _Names, identity: int, name: str, edges: list[Edge]) -> Record:
    stated: dict[str, float] = {}
    for edge in edges:
        for to, value in _amounts(names, edge.item).items():
            if stated.setdefault(to, value) != value:
                reason = f"{value:g}, but {stated[to]:g} on another edge of tensor {shown(name)}"
                raise edge.item.fault(reason, names.size if to == "size_bytes" else names.transfer)
    return {
        "type": "tensor", "id": identity, "name": name, "kind": "activation", "size_bytes": 0,
        **stated,
    }  # fmt: skip


def _warnings(names: _Names, of_nodes: dict[str, None], of_edges: dict[str, None]) -> list[str]:
    """Warnings: attributes that were not understood, and costs that are still to come."""
    found = []
    if not names.time:
        found.append(
            f"no node has a time ({', '.join(TIMES)}); dnnp-profile prices nodes that state "
            "flop and bytes"
        )
    found += _unread("nodes", of_nodes, {*names.classes, names.memory, *PLAIN}, (*TIMES, *MEMORY))
    used = {names.size, names.transfer, "tensor"}
    return found + _unread("edges", of_edges, used, (*SIZES, *TRANSFERS))


def _unread(what: str, there: Iterable[str], used: set[str], known: tuple[str, ...]) -> list[str]:
    names = [name for name in there if name not in used and name not in DRAWING]
    if not names:
        return []
    listed = ", ".join(printable(name) for name in names[:_LISTED])
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    meanings = [name for name in (*used, *known) if name]
    meant = next(
        (m for n in names[:_COMPARED] if n not in known and (m := closest(n, meanings))), None
    )
    hint = f"; did you mean '{meant}'?" if meant else ""
    return [f"attributes of {what} that mean nothing here: {listed}{more}{hint}"]


_NAMES = """
stage device
label fillcolor color class group
URL area arrowhead arrowsize arrowtail bgcolor colorscheme comment constraint decorate
description dir distortion edgeURL edgehref edgetarget edgetooltip fixedsize fontcolor fontname
fontsize gradientangle headURL head_lp headclip headhref headlabel headport headtarget
headtooltip height href id image imagepos imagescale key labelURL labelangle labeldistance
labelfloat labelfontcolor labelfontname labelfontsize labelhref labelloc labeltarget
labeltooltip len lhead lp ltail margin minlen nojustify ordering orientation penwidth
peripheries pin pos radius rank rects regular root samehead sametail samplepoints shape
shapefile showboxes sides skew sortv style tailURL tail_lp tailclip tailhref taillabel tailport
tailtarget tailtooltip target tooltip url vertices width x xlabel xlp y z
"""
"""What dnnp-view adds of a plan; then what Graphviz and editors draw by."""
DRAWING = frozenset(_NAMES.split())
