"""Graphs of networkx, and GML as it reads that."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dnnp.core.model.errors import FormatError, UnavailableError
from dnnp.formats.fields import shown
from dnnp.formats.files import what_it_is
from dnnp.formats.limits import DEEP, Room, deep_line
from dnnp.formats.workloads.drawn import Drawn, Edge, Item, values_of

_WHOLE = re.compile(r"^([ \t]*\w+[ \t]+[+-]?[0-9]+)([eE][+-]?[0-9]+[ \t\r]*)$", re.MULTILINE)
"""A number with an exponent but no point, which igraph writes and networkx cannot read."""

_FAULTS = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""What networkx raises of text that is not what it expects, besides errors of its own."""


def drawn_of(graph: Any, drawn: Drawn, where: str = "") -> Drawn:
    """Add the nodes and edges of a directed graph of networkx; `where`: its file, for messages."""
    for key, data in graph.nodes(data=True):
        drawn.add(key, Item(values_of(data), f"{where}node {shown(key)}"))
    for tail, head, data in graph.edges(data=True):
        pair = f"{where}edge {shown(tail)} -> {shown(head)}"
        drawn.join(Edge(tail, head, Item(values_of(data), pair)))
    return drawn


def read_gml(data: bytes, file: str, ours: Mapping[str, str]) -> Drawn:
    """Read a directed graph, whose nodes are called by their labels unless they have a name.

    UnavailableError: networkx is not installed. FormatError: not such a graph.
    """
    try:
        import networkx
    except ImportError:
        raise UnavailableError("GML needs networkx: pip install 'dnnp[graphs]'") from None
    line = deep_line(data)
    if line is not None:
        raise FormatError(f"no graph in GML that can be read: {DEEP}", file, line)
    try:
        text = _WHOLE.sub(r"\1.\2", data.decode("utf-8-sig"))
        graph = networkx.parse_gml(text.split("\n"), label="id")
    except (networkx.NetworkXException, *_FAULTS) as error:
        hint = what_it_is(data) or f": {shown(str(error) or type(error).__name__)}"
        raise FormatError(f"no graph in GML{hint}", file) from None
    if not graph.is_directed():
        raise FormatError("an undirected graph; its edges need directions: 'directed 1'", file)
    for _, values in graph.nodes(data=True):
        values.setdefault("name", values.get("label"))
    return drawn_of(graph, Drawn(file, Room(file, len(data)), ours), f"{file}: ")
