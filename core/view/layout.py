"""Layout of the boxes of a graph: in rows along its edges, with few crossings.

The usual way (Sugiyama et al. 1981, "Methods for visual understanding of hierarchical system
structures"): rows by longest paths, order in the rows by the medians of the neighbours, places as
near to these as room allows.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from dnnp.core.model.graph import Graph, Ints
from dnnp.core.view.facts import Facts

SWEEPS = 4
"""Times that rows are ordered anew, down and up."""

SWINGS = (0.0, 1.0, -1.0, 1.6, -1.6, 2.4, -2.4)
"""Columns that an edge may swing aside."""
POINTS = tuple(i / 12 for i in range(1, 12))
"""Parameters of a curve at which its overlap with boxes is counted."""
HALF = 0.46
"""Columns from the middle of a box to where an edge is seen beside it."""

Edges = dict[tuple[int, int], float]
"""Bytes that go from one box to another, by their numbers."""


@dataclass(frozen=True)
class Box:
    """Units that are shown as one."""

    name: str
    units: list[int]
    """Positions, in topological order."""
    stage: int
    """Number of the stage; -1: there is no plan."""
    time: float
    """Compute of all of them."""


@dataclass(frozen=True)
class Layout:
    """Places of boxes; a row is one high, boxes beside each other are one apart."""

    x: list[float]
    y: list[int]
    columns: float
    rows: int


def levels_of(graph: Graph) -> Ints:
    """Length of the longest chain of nodes before each node, i64[n]."""
    level = [0] * graph.n
    tail, head = graph.edges
    order = np.argsort(graph.rank[tail], kind="stable")
    for u, v in zip(tail[order].tolist(), head[order].tolist(), strict=True):
        level[v] = max(level[v], level[u] + 1)
    return np.array(level, dtype=np.int64)


def boxes_of(facts: Facts, most: int) -> tuple[list[Box], str]:
    """Group units into at most about `most` boxes; also the kind of box: `unit`, `layer` or `part`.

    A box is of one stage: a unit, where these are not too many; else all units of a layer; else
    units that follow one another.
    """
    graph, units = facts.unit_graph, facts.units
    if graph is None or units is None:
        return [], "unit"
    order = graph.order.tolist()
    stage = facts.stage_of.tolist()
    if graph.n <= most:
        return [_box(facts, units.names[u], [u], stage[u]) for u in order], "unit"
    by_layer: dict[tuple[int, str], list[int]] = {}
    for u in order:
        by_layer.setdefault((stage[u], facts.layers[u]), []).append(u)
    if most // 20 < len(by_layer) <= most and any(facts.layers):
        found = [_box(facts, layer or "other", us, s) for (s, layer), us in by_layer.items()]
        return found, "layer"
    by_stage: dict[int, list[int]] = {}
    for u in order:
        by_stage.setdefault(stage[u], []).append(u)
    size = max(1, -(-graph.n // max(most - len(by_stage), 1)))
    chunks = [(s, us[i : i + size]) for s, us in by_stage.items() for i in range(0, len(us), size)]
    return [_box(facts, _span(facts, us), us, s) for s, us in chunks], "part"


def _span(facts: Facts, units: Sequence[int]) -> str:
    """Name of units that follow one another."""
    names = facts.units.names if facts.units is not None else ()
    first, last = (facts.layers[u] or names[u] for u in (units[0], units[-1]))
    return first if first == last else f"{first} .. {last}"


def _box(facts: Facts, name: str, units: list[int], stage: int) -> Box:
    return Box(name, units, stage, float(np.nansum(facts.unit_times[units])))


def edges_of(graph: Graph, owner: Ints) -> Edges:
    """Sum up what moves between boxes; `owner` is the box of each unit, -1 for none.

    A tensor counts once for each box that reads it.
    """
    counts = np.diff(graph.use_ptr)
    tensor = np.repeat(np.arange(graph.m), counts)
    source, target = graph.producer[tensor], owner[graph.use_idx]
    made = source >= 0
    tensor, source, target = tensor[made], owner[source[made]], target[made]
    crossing = (source != target) & (source >= 0) & (target >= 0)
    found: Edges = {}
    triples = np.unique(
        np.stack([source[crossing], target[crossing], tensor[crossing]], axis=1), axis=0
    )
    sizes = graph.tensor_bytes[triples[:, 2]].tolist()
    for (a, b, _), size in zip(triples.tolist(), sizes, strict=True):
        found[a, b] = found.get((a, b), 0.0) + size
    return found


def lay_out(level: Sequence[float], edges: Edges) -> Layout:
    """Places of boxes.

    `level`: of each box, by which edges are turned where boxes are on a cycle.
    """
    n = len(level)
    down: list[list[int]] = [[] for _ in range(n)]
    up: list[list[int]] = [[] for _ in range(n)]
    for a, b in edges:
        first, last = (a, b) if (level[a], a) <= (level[b], b) else (b, a)
        down[first].append(last)
        up[last].append(first)
    row = [0] * n
    for v in sorted(range(n), key=lambda v: (level[v], v)):
        row[v] = max((row[u] + 1 for u in up[v]), default=0)
    rows: list[list[int]] = [[] for _ in range(max(row, default=-1) + 1)]
    for v in range(n):
        rows[row[v]].append(v)
    x = [0.0] * n
    for members in rows:
        for i, v in enumerate(members):
            x[v] = i - (len(members) - 1) / 2
    for sweep in range(2 * SWEEPS):
        near = up if sweep % 2 == 0 else down
        for members in rows if sweep % 2 == 0 else rows[::-1]:
            wanted = {v: median([x[u] for u in near[v]] or [x[v]]) for v in members}
            members.sort(key=lambda v: (wanted[v], v))
            _place(members, [wanted[v] for v in members], x)
    left = min(x, default=0.0)
    places = [value - left for value in x]
    return Layout(places, row, max(places, default=0.0) + 1, len(rows))


def _place(members: Sequence[int], wanted: Sequence[float], x: list[float]) -> None:
    """Place boxes of a row at least one apart, in order, near their wanted places."""
    places: list[float] = []
    for value in wanted:
        places.append(max(value, places[-1] + 1) if places else value)
    shift = sum(w - p for w, p in zip(wanted, places, strict=True)) / max(len(places), 1)
    for v, place in zip(members, places, strict=True):
        x[v] = place + shift


def heaviest(edges: Edges, most: int) -> Edges:
    """At most so many edges, those that carry the most; equals as they come."""
    if len(edges) <= most:
        return edges
    return dict(sorted(edges.items(), key=lambda edge: -edge[1])[:most])


def bows(layout: Layout, edges: Edges) -> list[float]:
    """Sideways swing of each edge, in columns, that keeps it visible beside boxes.

    An edge is a curve from below its first box to above its last one, whose inner control points
    are moved aside by so many columns. Of a few swings the first is taken with which the fewest
    boxes cover it.
    """
    rows: list[list[float]] = [[] for _ in range(layout.rows)]
    for x, y in zip(layout.x, layout.y, strict=True):
        rows[y].append(x)
    for row in rows:
        row.sort()

    def covered(a: int, b: int, swing: float) -> int:
        """Points of the curve that lie behind a box."""
        first, last = layout.y[a], layout.y[b]
        count = 0
        for t in POINTS:
            y = math.floor(first + (last - first) * (1.5 * t * (1 - t) + t**3) + 0.5)
            if y in (first, last):
                continue
            x = layout.x[a] + (layout.x[b] - layout.x[a]) * t * t * (3 - 2 * t)
            x += 3 * t * (1 - t) * swing
            at = bisect(rows[y], x - HALF)
            count += at < len(rows[y]) and rows[y][at] < x + HALF
        return count

    return [
        0.0 if abs(layout.y[b] - layout.y[a]) < 2 else min(SWINGS, key=lambda s: covered(a, b, s))
        for a, b in edges
    ]
