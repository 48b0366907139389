"""A graph as people write one down: named nodes, edges between two of them, and attributes.

Readers of CSV, DOT and GraphML, of task graphs, and of graphs of networkx, make a `Drawn` of what
they read; `drawn_stream` knows what its attributes mean.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dnnp.core.model.errors import FormatError, UsageError
from dnnp.core.model.text import closest, did_you_mean, instead, printable
from dnnp.formats.acyclic import find_cycle
from dnnp.formats.fields import MAX_ID, MAX_NUMBER, shown
from dnnp.formats.limits import Room
from dnnp.formats.stream import Record, Stream
from dnnp.formats.workloads.records import device_record, node_record, tensor_record

_TRUE, _FALSE = ("true", "1", "yes"), ("false", "0", "no", "")
_HINTED = 10_000
"""Nodes among which a misspelt one is looked for."""


class Item(NamedTuple):
    """Attributes of a node or an edge, and where they stand."""

    values: dict[str, Any]
    """Attributes; those without a value are left out."""
    file: str
    """Of a graph in memory, or in JSON: which node or edge it is."""
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
    """The rest of it; a graph in memory has no limit."""
    ours: Mapping[str, str] = field(default_factory=dict)
    """Attribute of dnnp -> what the graph calls it."""
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
        name = self.ours.get("tensor", "tensor")
        tensor = edge.item.text(name) if name in edge.item.values else None
        first = self._seen.setdefault((edge.tail, edge.head, tensor), edge.item)
        if first is not edge.item:
            pair = f"{shown(edge.tail)} -> {shown(edge.head)}"
            reason = f"a second edge {pair}{_first_one(first)}"
            raise edge.item.fault(f"{reason}; edges with tensors of their own name them (tensor)")
        self.edges.append(edge)


def values_of(data: Mapping[Any, Any]) -> dict[str, Any]:
    """Attributes that have a value; integers too large for a number of a stream are infinite."""
    return {
        str(name).encode(errors="replace").decode(): (
            math.copysign(math.inf, 1 if value > 0 else -1)
            if isinstance(value, int) and abs(value) > MAX_NUMBER
            else value
        )
        for name, value in data.items()
        if value is not None and not (isinstance(value, str) and not value)
    }


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
OPERATORS = ("op", "operator", "op_type", "type")
PLAIN = ("name", "flop", "bytes", "layer", "scope", "color_class", "backward")
"""Attributes of nodes that have one name."""
OF_NODES = (TIMES, MEMORY, OPERATORS, *((name,) for name in PLAIN))
OF_EDGES = (SIZES, TRANSFERS, ("tensor",))
"""Names of each attribute of nodes, and of edges."""

_LISTED, _COMPARED = 6, 100
"""Attributes that mean nothing: those that are named, those that are looked at for a hint."""


class _Names(NamedTuple):
    """Attribute names that a graph uses; empty: it has none of them."""

    time: str
    memory: str
    op: str
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
    UsageError
        `drawn.ours` has a name that dnnp does not know, or that no node or edge has.
    FormatError
        A value that is no number or out of range, nodes partly without times, times with and
        without a unit, a cycle, or no nodes.
    """
    if not drawn.nodes:
        raise FormatError("there are no nodes", drawn.file)
    _rename(drawn)
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


def _rename(drawn: Drawn) -> None:
    """Give attributes our names, in place; others that mean the same are left out."""
    every = [name for names in OF_NODES + OF_EDGES for name in names]
    for ours in drawn.ours:
        if ours.partition(":")[0] not in every:
            raise UsageError(f"--attribute {ours}: no attribute of dnnp{instead(ours, every)}")
    of_edges = [edge.item for edge in drawn.edges]
    for items, known in (([*drawn.nodes.values()], OF_NODES), (of_edges, OF_EDGES)):
        given: dict[str, str] = {}
        taken: set[str] = set()
        for names in known:
            mine = {o: t for o, t in drawn.ours.items() if o.partition(":")[0] in names}
            given |= mine
            taken.update(names if mine else (), mine.values())
        there = _attributes(items) if given else {}
        for ours, theirs in given.items():
            if theirs not in there:
                what = "node" if known is OF_NODES else "edge"
                some = ", ".join(map(printable, [*there][:_LISTED])) or "none"
                more = ", ..." if len(there) > _LISTED else ""
                reason = f"no attribute {shown(theirs)} on any {what}; there are: {some}{more}"
                raise UsageError(f"{drawn.file}: --attribute {ours}={theirs}: {reason}")
        for item in items if given else ():
            left = {n: v for n, v in item.values.items() if taken.isdisjoint((n, n.split(":")[0]))}
            left |= {o: item.values[t] for o, t in given.items() if t in item.values}
            item.values.clear()
            item.values.update(left)


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
    classes = {name: of or DEVICE_CLASS for name, start, _, of in parts if start == time != ""}
    return _Names(
        time, first(MEMORY, of_nodes), first(OPERATORS, of_nodes), first(SIZES, of_edges),
        first(TRANSFERS, of_edges), classes,
    )  # fmt: skip


def _device(name: str, unit: str, others: bool) -> Record:
    """Without a unit a byte takes one unit of time, as for other graphs whose unit is unknown."""
    kind = "cpu" if name == PROCESSOR and others else "accelerator"
    if unit == "unknown" and kind == "accelerator":
        return device_record(name, bandwidth_bytes_per_s=1)
    return device_record(name, kind)


def _nodes(drawn: Drawn, names: _Names) -> list[Record]:
    """Records of nodes, without their tensors."""
    numbers = {"flop": "flop", "bytes": "bytes", "memory_bytes": names.memory}
    colors: dict[str, int] = {}
    place = {name: i for i, name in enumerate(names.classes)}
    records = []
    for i, (key, item) in enumerate(drawn.nodes.items()):
        record = node_record(i, item.text("name", key), item.text(names.op or "op"))
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
    """Refuse times of some nodes alone or in two units, and cycles."""
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
    return tensor_record(identity, name, stated.pop("size_bytes", 0), **stated)


def _warnings(names: _Names, of_nodes: dict[str, None], of_edges: dict[str, None]) -> list[str]:
    """Warnings: attributes that were not understood, and costs that are still to come."""
    found = []
    if not names.time:
        found.append(
            f"no node has a time ({', '.join(TIMES)}; another by --attribute time=NAME); "
            "dnnp-profile prices nodes that state flop and bytes"
        )
    used = {*names.classes, names.memory, names.op, *PLAIN}
    found += _unread("nodes", of_nodes, used, (*TIMES, *MEMORY))
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
tailtarget tailtooltip target tooltip url vertices width x xlabel xlp y z LabelGraphics graphics
"""
"""Attributes that dnnp-view adds of a plan; then those that Graphviz and editors draw by."""
DRAWING = frozenset(_NAMES.split())
