"""A graph as people write one down: named nodes, edges between two of them, and attributes.

Readers of CSV, DOT and GraphML, and of graphs of networkx, make a `Drawn` of what they read;
`drawn_stream` knows what its attributes mean.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dnnp.core.model.errors import FormatError
from dnnp.core.model.text import did_you_mean, printable
from dnnp.formats.fields import MAX_ID, MAX_NUMBER, shown
from dnnp.formats.limits import Room

_TRUE, _FALSE = ("true", "1", "yes"), ("false", "0", "no", "")
_HINTED = 10_000
"""Nodes among which a misspelt one is looked for."""


class Item(NamedTuple):
    """What is said about a node or an edge, and where."""

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
    """What a reader found; `add` and `join` refuse what cannot be."""

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
