"""Which parts of a model are timed as they will run, and what their times say of the units in them.

Units are groups of operators, or operators. Times of units alone are right among neighbours, not in
all: caches, fusions, layouts and neighbours differ. So the model is cut into parts like stages, and
these into segments; a part takes what it takes, its segments take their shares of that, and units
their shares of a segment.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from dnnp.formats.onnx_scope import reads, writes

if TYPE_CHECKING:
    from onnx import ModelProto

Floats = np.ndarray[Any, np.dtype[np.float64]]

SEGMENTS = 6
"""Segments of a part, at most."""
SHORTEST_S = 4e-4
"""No segment is to take less, so that the call of its session does not matter."""


@dataclass(frozen=True)
class Part:
    """A part of a model: neighbouring segments, of neighbouring units each."""

    segments: tuple[tuple[int, ...], ...]

    @property
    def units(self) -> tuple[int, ...]:
        """All of them, in order."""
        return tuple(u for segment in self.segments for u in segment)


def order_of(model: ModelProto, units: Sequence[Sequence[int]]) -> list[int]:
    """A topological order of units of nodes that ends one branch before it begins the next.

    Of units that wait for each other in a circle, which no split may have, the order means nothing.
    """
    nodes = model.graph.node
    maker = {name: i for i, unit in enumerate(units) for v in unit for name in writes(nodes[v])}
    before = [
        sorted({maker[name] for v in unit for name in reads(nodes[v]) if name in maker} - {i})
        for i, unit in enumerate(units)
    ]
    order: list[int] = []
    entered = [False] * len(units)
    for first in range(len(units)):
        todo: list[tuple[int, Iterator[int]]] = []
        if not entered[first]:
            entered[first] = True
            todo.append((first, iter(before[first])))
        while todo:
            unit, rest = todo[-1]
            following = next((u for u in rest if not entered[u]), None)
            if following is None:
                order.append(unit)
                todo.pop()
            else:
                entered[following] = True
                todo.append((following, iter(before[following])))
    return order


def slices(order: Sequence[int], weight: Floats, count: int) -> list[tuple[int, ...]]:
    """Cut an order into at most `count` pieces of about the same weight; none is empty."""
    if not order:
        return []
    ends = np.cumsum(weight[list(order)])
    middles = ends - weight[list(order)] / 2
    total = float(ends[-1])
    piece = np.minimum((middles * count / total).astype(int), count - 1) if total > 0 else 0 * ends
    cuts = [0, *(np.flatnonzero(np.diff(piece)) + 1).tolist(), len(order)]
    return [tuple(order[a:b]) for a, b in pairwise(cuts)]


def parts_of(order: Sequence[int], alone_s: Floats, count: int) -> list[Part]:
    """Cut an order of units into at most `count` parts, and these into segments."""
    parts = []
    for units in slices(order, alone_s, count):
        room = math.floor(float(alone_s[list(units)].sum()) / SHORTEST_S)
        segments = slices(units, alone_s, max(min(room, SEGMENTS), 1))
        parts.append(Part(tuple(segments)))
    return parts


def coarser(parts: Sequence[Part]) -> list[list[Part]]:
    """The parts, then cuts with fewer borders: without segments, and all in one piece."""
    plain = [Part((part.units,)) for part in parts]
    return [list(parts), plain, [Part((tuple(u for part in parts for u in part.units),))]]


def expanded(parts: Sequence[Part], units: Sequence[Sequence[int]]) -> list[Part]:
    """Parts of units as parts of the nodes in these."""
    return [
        Part(tuple(tuple(v for u in segment for v in units[u]) for segment in part.segments))
        for part in parts
    ]


def carried(
    alone_s: Floats, parts: Sequence[Part], part_s: Sequence[float], segment_s: Sequence[float]
) -> Floats:
    """Times of units, whose sums are those of the parts.

    Parameters
    ----------
    alone_s
        f64[units], seconds of each unit alone.
    part_s
        Seconds of each part.
    segment_s
        Seconds of each segment, part by part.

    Returns
    -------
    ndarray
        f64[units]; of units in no part what they take alone.
    """
    times = np.array(alone_s, dtype=np.float64)
    left = iter(segment_s)
    for part, whole_s in zip(parts, part_s, strict=True):
        own = np.array([next(left) for _ in part.segments])
        for segment, share in zip(part.segments, _shares(own), strict=True):
            members = list(segment)
            times[members] = whole_s * share * _shares(times[members])
    return times


def spreads(
    count: int, parts: Sequence[Part], part: Sequence[float], segment: Sequence[float]
) -> Floats:
    """f64[units], relative spread of each of `count` units, from those of its part and segment."""
    result = np.zeros(count)
    left = iter(segment)
    for one, whole in zip(parts, part, strict=True):
        for members in one.segments:
            # A part of one segment has nothing to share out.
            own = next(left) * (len(one.segments) > 1)
            result[list(members)] = math.hypot(whole, own)
    return result


def _shares(weights: Floats) -> Floats:
    """Of 1, by weight; the same for all where nothing has any."""
    total = float(weights.sum())
    return weights / total if total > 0 else np.full(len(weights), 1 / max(len(weights), 1))
