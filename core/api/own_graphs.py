"""Graphs that people have already: tables, DOT, GraphML, graphs of networkx."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from dnnp.core.model.errors import FormatError
from dnnp.formats.fields import MAX_NUMBER
from dnnp.formats.stream import Stream

if TYPE_CHECKING:
    from dnnp.formats.workloads.drawn import Drawn


@runtime_checkable
class DirectedGraph(Protocol):
    """What is asked of a graph of networkx, which need not be installed."""

    nodes: Any
    edges: Any

    def is_directed(self) -> bool:
        """Whether its edges have directions."""


def read_own(
    kind: str, data: bytes, path: str, name: str | None, edges: tuple[str, bytes] | None = None
) -> Stream:
    """The stream of a graph as one of `choices.OWN_GRAPHS`.

    Parameters
    ----------
    data, path
        The file, and its name (`-` for standard input).
    name
        Model name for the header; None: the file's name without its ending.
    edges
        `csv`: path of the list of edges, and the list.

    Raises
    ------
    FormatError
        Not such a graph; the message names file, line and attribute.
    """
    import hashlib

    from dnnp.formats.header import new_header
    from dnnp.formats.workloads.drawn import drawn_stream

    file = _shown(path)
    header = new_header(kind, path, hashlib.sha256(data).hexdigest(), name, "s")
    if edges is not None:
        digest = hashlib.sha256(edges[1]).hexdigest()
        header["source"]["edges"] = {"path": edges[0], "sha256": digest}
    if kind == "csv":
        from dnnp.formats.workloads.own_csv import Table, read_tables

        listed = None if edges is None else Table(edges[1], _shown(edges[0]))
        return drawn_stream(read_tables(Table(data, file), listed), header)
    if kind == "dot":
        from dnnp.formats.workloads.own_dot import read_dot

        return drawn_stream(read_dot(data, file), header)
    from dnnp.formats.workloads.own_graphml import read_graphml

    return drawn_stream(read_graphml(data, file), header)


def _shown(path: str) -> str:
    """A path for messages."""
    return "<stdin>" if path == "-" else path


def read_networkx(graph: DirectedGraph, name: str | None) -> Stream:
    """The stream of a graph in memory; it has no source.

    Raises
    ------
    FormatError
        Its edges have no directions, or its attributes are wrong.
    """
    from dnnp.formats.records import FORMAT, VERSION
    from dnnp.formats.workloads.drawn import drawn_stream

    if not graph.is_directed():
        raise FormatError("an undirected graph; its edges need directions, as in networkx.DiGraph")
    called = name or getattr(graph, "name", "") or "graph"
    header = {
        "type": "header", "format": FORMAT, "version": VERSION, "model": str(called),
        "provenance": [],
    }  # fmt: skip
    return drawn_stream(_drawn(graph), header)


def _drawn(graph: DirectedGraph) -> Drawn:
    from dnnp.formats.fields import shown
    from dnnp.formats.workloads.drawn import Drawn, Edge, Item

    drawn = Drawn("<graph>")
    for key, data in graph.nodes(data=True):
        drawn.add(key, Item(_values(data), f"node {shown(key)}"))
    for tail, head, data in graph.edges(data=True):
        pair = f"edge {shown(tail)} -> {shown(head)}"
        drawn.join(Edge(tail, head, Item(_values(data), pair)))
    return drawn


def _values(data: dict[object, Any]) -> dict[str, Any]:
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
