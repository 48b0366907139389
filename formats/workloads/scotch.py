"""Files of Scotch: the graph that its `gpart` reads, and the mapping that it writes.

A graph file has the version (0), the numbers of vertices and of arcs (every edge twice), then
the number of the first vertex and three flags: labels (0), edge weights (1), vertex weights (1).
One line a vertex follows: weight, degree, and weight and end of every arc. A mapping has the
number of vertices, then a vertex and its part on each line.
"""

from __future__ import annotations

from collections.abc import Sequence

from dnnp.core.model.errors import FormatError


def write_graph(
    ptr: Sequence[int],
    neighbors: Sequence[int],
    edge_weights: Sequence[int],
    weights: Sequence[int],
) -> bytes:
    """The graph file of an undirected graph.

    Parameters
    ----------
    ptr, neighbors
        Neighbours of each vertex (CSR); every edge at both of its ends.
    edge_weights
        Of each entry of `neighbors`, positive.
    weights
        Of each vertex.
    """
    lines = ["0", f"{len(weights)} {len(neighbors)}", "0 011"]
    for vertex, weight in enumerate(weights):
        arcs = range(ptr[vertex], ptr[vertex + 1])
        words = [f"{edge_weights[i]} {neighbors[i]}" for i in arcs]
        lines.append(" ".join([str(weight), str(len(words)), *words]))
    return ("\n".join(lines) + "\n").encode()


def read_mapping(data: bytes, vertices: int, parts: int, name: str) -> list[int]:
    """Part of each vertex, from a mapping file.

    Raises
    ------
    FormatError
        Not a mapping of this many vertices to this many parts.
    """
    lines = data.split(b"\n")
    (stated,) = _numbers(lines[0], 1, name, 1)
    if stated != vertices:
        raise FormatError(f"{stated} vertices, expected {vertices}", name, 1)
    part = [-1] * vertices
    for at, line in enumerate(lines[1:], 2):
        if not line.strip():
            continue
        vertex, where = _numbers(line, 2, name, at)
        if not 0 <= vertex < vertices or part[vertex] >= 0:
            raise FormatError(f"vertex {vertex} is unknown, or has a part already", name, at)
        if not 0 <= where < parts:
            raise FormatError(f"vertex {vertex} is in part {where} of {parts}", name, at)
        part[vertex] = where
    if -1 in part:
        raise FormatError(f"vertex {part.index(-1)} has no part", name, len(lines))
    return part


def _numbers(line: bytes, count: int, name: str, at: int) -> list[int]:
    """The integers of a line."""
    try:
        numbers = [int(word) for word in line.split()]
    except ValueError:
        numbers = []
    if len(numbers) != count:
        raise FormatError(f"expected {count} integer{'s' * (count > 1)}", name, at)
    return numbers
