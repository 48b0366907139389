"""What a search over orders may ask for without loss: freedom that no optimum needs."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from dnnp.core.model.graph import Floats
from dnnp.core.pipeline.problem import ScheduleProblem

Arc = tuple[int, int, float, int]
"""Tail, head, weight, lag: a block starts at least weight + lag * period after another one."""


def copies_in_order(problem: ScheduleProblem) -> tuple[Arc, ...]:
    """Order among micro-batches whose blocks all have the same homes.

    Sorting the starts of each block among them changes neither what units run and hold nor the
    range of starts, and keeps all waits.
    """
    k, u = problem.k, problem.unroll
    if u < 2 or k == 0:
        return ()
    alike: dict[tuple[object, ...], list[int]] = {}
    for j in range(u):
        mine = slice(j * k, (j + 1) * k)
        waits = (problem.tail >= j * k) & (problem.tail < (j + 1) * k)
        edges = zip(
            (problem.tail[waits] - j * k).tolist(),
            (problem.head[waits] - j * k).tolist(),
            problem.delay[waits].tolist(),
            strict=True,
        )
        key = (
            tuple(problem.time[mine].tolist()),
            tuple(problem.memory[mine].tolist()),
            tuple(np.diff(problem.ptr[j * k : (j + 1) * k + 1]).tolist()),
            tuple(problem.unit[problem.ptr[j * k] : problem.ptr[(j + 1) * k]].tolist()),
            tuple(sorted(edges)),
        )
        alike.setdefault(key, []).append(j)
    arcs: list[Arc] = []
    for same in alike.values():
        if len(same) < 2:
            continue
        for i in range(k):
            for a, c in pairwise(same):
                arcs.append((a * k + i, c * k + i, 0.0, 0))
            arcs.append((same[-1] * k + i, same[0] * k + i, 0.0, -1))
    return tuple(arcs)


def bridges_of(problem: ScheduleProblem, path: Floats) -> tuple[tuple[Arc, ...], tuple[Arc, ...]]:
    """Longest waits between blocks that nothing else connects.

    Let waits connect a part A of a micro-batch, which holds block i, and the rest B, which holds
    block j, only by j waiting for i. A has no predecessors elsewhere, so where no release comes
    before what it releases A holds at least 0 on every unit. Starting B a period earlier reduces
    what units hold by that. So s_j - s_i may be assumed to be less than a period longer than it
    must be. The span does not grow if all of A comes before i, or all of B after j.
    """
    k = problem.k
    waits: dict[tuple[int, int], float] = {}
    mine = problem.tail < k
    for i, j, delay in zip(
        problem.tail[mine].tolist(),
        problem.head[mine].tolist(),
        problem.delay[mine].tolist(),
        strict=True,
    ):
        waits[i, j] = max(waits.get((i, j), 0.0), float(problem.time[i]) + delay)
    near: list[list[int]] = [[] for _ in range(k)]
    for i, j in waits:
        near[i].append(j)
        near[j].append(i)
    bridges: list[Arc] = []
    short: list[Arc] = []
    for i, j in _cuts(near):
        if (i, j) not in waits:
            i, j = j, i
        wait = waits[i, j]
        sides = (_reached(near, i, j), _reached(near, j, i))
        before = all(path[a, i] > -np.inf for a in sides[0])
        after = all(path[j, a] > -np.inf for a in sides[1])
        for copy in range(problem.unroll):
            arc = (copy * k + j, copy * k + i, -wait, -1)
            bridges.append(arc)
            if before or after:
                short.append(arc)
    return tuple(bridges), tuple(short)


def _cuts(near: list[list[int]]) -> list[tuple[int, int]]:
    """Edges of an undirected graph without which it falls apart (Tarjan, 1974), ascending."""
    place = [-1] * len(near)
    low = [0] * len(near)
    found = []
    clock = 0
    for root in range(len(near)):
        if place[root] >= 0:
            continue
        stack = [(root, -1, iter(near[root]))]
        place[root] = low[root] = clock
        clock += 1
        while stack:
            i, parent, rest = stack[-1]
            for j in rest:
                if place[j] < 0:
                    place[j] = low[j] = clock
                    clock += 1
                    stack.append((j, i, iter(near[j])))
                    break
                if j != parent:
                    low[i] = min(low[i], place[j])
            else:
                stack.pop()
                if parent >= 0:
                    low[parent] = min(low[parent], low[i])
                    if low[i] > place[parent]:
                        found.append((parent, i))
    return sorted(found)


def _reached(near: list[list[int]], origin: int, other: int) -> set[int]:
    """What is connected to a block without the one connection between it and `other`."""
    seen, todo = {origin}, [origin]
    while todo:
        i = todo.pop()
        for j in near[i]:
            if j not in seen and (i, j) != (origin, other):
                seen.add(j)
                todo.append(j)
    return seen


def roots_of(problem: ScheduleProblem, extra: tuple[Arc, ...]) -> tuple[int, ...]:
    """The first block of every connected part but the first part."""
    group = list(range(problem.b))

    def find(i: int) -> int:
        while group[i] != i:
            group[i] = group[group[i]]
            i = group[i]
        return i

    for i, j in zip(problem.tail.tolist(), problem.head.tolist(), strict=True):
        group[find(i)] = find(j)
    for arc in extra:
        group[find(arc[0])] = find(arc[1])
    seen: dict[int, int] = {}
    for i in range(problem.b):
        seen.setdefault(find(i), i)
    return tuple(sorted(seen.values()))[1:]
