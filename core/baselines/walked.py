"""Items and ideals as the dynamic program of the 2020 paper meets them (section 5.1.1)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dnnp.core.cost.items import Items
from dnnp.core.cost.line import Line
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.errors import LimitError
from dnnp.core.model.graph import Ints, distinct

MAX_IDEALS = 200_000
"""Ideals of a graph up to which the table is filled."""


class Ideals(NamedTuple):
    """All ideals, numbered as they are met."""

    masks: list[int]
    """Items of each ideal, a bit each."""
    parents: list[list[int]]
    """Ideals with one item less, in the order in which they were completed."""
    children: list[list[tuple[int, int]]]
    """Items that can be added, and the ideals that they lead to."""


def without_idle_ends(problem: SplitProblem) -> tuple[Items, Ints]:
    """Items, with those that take no time and have a single neighbour joined to that one.

    The program does so before it counts ideals, until there are none. Returned with the rank of
    each item, i64[count]: by colour, which for those that others were joined to is their own.
    """
    items, line = problem.items, problem.line()
    idle = np.empty(items.count, dtype=np.bool_)
    idle[items.order] = (line.work == 0).all(axis=0)
    into = list(range(items.count))
    beside: list[set[int]] = [set() for _ in into]
    for u, v in zip(items.tail.tolist(), items.head.tolist(), strict=True):
        beside[v].add(u)
        beside[u].add(v)
    ends = [v for v in into if idle[v] and len(beside[v]) == 1]
    while ends:
        u = ends.pop()
        if not beside[u]:  # its neighbour was joined to it
            continue
        (v,) = beside[u]
        into[u], beside[u] = v, set()
        beside[v].discard(u)
        if idle[v] and len(beside[v]) == 1:
            ends.append(v)
    for u in range(items.count):
        while into[into[u]] != into[u]:
            into[u] = into[into[u]]
    kept, at = np.unique(np.array(into, dtype=np.int64), return_inverse=True)
    tail, head, width = at[items.tail], at[items.head], max(len(kept), 1)
    pairs = distinct((tail * width + head)[tail != head])
    joined = Items(at[items.label].astype(np.int64), len(kept), pairs // width, pairs % width)
    # Nodes without a colour come first, in the order of the stream.
    color = problem.graph.color
    key = np.where(color >= 0, color + problem.graph.n, np.arange(problem.graph.n))
    least = np.full(items.count, key.max(initial=0))
    np.minimum.at(least, items.label, key)
    return joined, least[kept]


def ideals_of(line: Line, rank: Ints) -> Ideals:
    """Walk all ideals depth first; of several items, the one of least rank is added first.

    Raises
    ------
    LimitError
        There are more than `MAX_IDEALS`.
    """
    n = line.n
    needs = [0] * n
    for u, v in zip(line.tail.tolist(), line.head.tolist(), strict=True):
        needs[v] |= 1 << u
    by_rank = np.argsort(rank, kind="stable").tolist()
    found = Ideals([0], [[]], [[]])
    number = {0: 0}
    path = [(0, iter([v for v in by_rank if not needs[v]]), -1)]
    while path:
        ideal, choices, entered_from = path[-1]
        v = next(choices, -1)
        if v < 0:
            path.pop()
            if entered_from >= 0:
                found.parents[ideal].append(entered_from)
            continue
        mask = found.masks[ideal] | 1 << v
        child = number.get(mask)
        if child is None:
            child = number[mask] = len(found.masks)
            if child >= MAX_IDEALS:
                raise LimitError(f"the graph has more than {MAX_IDEALS} ideals")
            found.masks.append(mask)
            found.parents.append([])
            found.children.append([])
            free = [w for w in by_rank if not mask >> w & 1 and not needs[w] & ~mask]
            path.append((child, iter(free), ideal))
        else:
            found.parents[child].append(ideal)
        found.children[ideal].append((v, child))
    return found
