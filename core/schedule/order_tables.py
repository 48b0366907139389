"""Tables of the search over orders: pairs of blocks, gaps before any branching, memory matches."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dnnp.core.cost.load_formula import ROUNDING
from dnnp.core.model.graph import Floats, Ints, connected, offsets
from dnnp.core.schedule.order_kernel import PairTables, close
from dnnp.core.schedule.problem import TOLERANCE, ScheduleProblem


class OrderTables(NamedTuple):
    """A problem as the search sees it."""

    problem: ScheduleProblem
    pairs: PairTables
    path: Floats
    """f64[b, b], longest path of waits between two blocks; -inf: there is none."""
    extra: tuple[Arc, ...]
    """Constraints that lose nothing: copies of a block in order."""
    bridges: tuple[Arc, ...]
    """A wait that alone connects two parts of a micro-batch need not take a period longer than
    it must; see `bridges_of`."""
    short_bridges: tuple[Arc, ...]
    """Those of `bridges` that are valid at the shortest span, too."""
    roots: tuple[int, ...]
    """One block of every connected component of waits but the first."""
    shared: NDArray[np.bool_]
    """bool[P], pairs that exclude each other; others only share memory."""
    units: tuple[tuple[int, ...], ...]
    """Units that the blocks of each pair share."""
    even: bool
    """Every release gives back what blocks before it took: no part of a micro-batch holds a
    negative amount, so starts far apart are of no use."""
    tracked: NDArray[np.bool_]
    """bool[D], units on which nothing is left behind: only their memory counts."""
    known: dict[float, tuple[Ints, Floats, Floats] | None]
    """Intervals of pairs at the last period."""

    def eps(self, period: float) -> float:
        """Times this much apart count as equal."""
        return ROUNDING * (self.far + self.periods * period)

    @property
    def whole(self) -> float:
        """Time of all blocks and waits one after the other."""
        return float((self.problem.time + _delays(self.problem)).sum())

    @property
    def far(self) -> float:
        """Starts are at most this and `periods` periods apart in some schedule, if there is one.

        Let starts be at least 0 and their sum the least of all schedules. If no wait from a start
        before x > T to one after x were shorter than its time plus T, all blocks after x could
        start a period earlier: they hold no more memory then, as blocks before x hold at least
        0. So such waits cover everything after T, each block at the head of at most one.
        """
        parts = 2 if self.roots else 1
        return parts * self.whole + float(self.problem.time.max(initial=0.0))

    @property
    def periods(self) -> int:
        """See `far`."""
        return (2 if self.roots else 1) * (self.problem.b + 2)


def order_tables(problem: ScheduleProblem) -> OrderTables:
    """Pairs, longest paths and matches of a problem of b blocks: O(b^3) time, O(b^2) memory."""
    b = problem.b
    path = np.full((b, b), -np.inf)
    np.fill_diagonal(path, 0.0)
    waits = problem.time[problem.tail] + problem.delay
    np.maximum.at(path, (problem.tail, problem.head), waits)
    close(path)  # not `bound.longest_paths`: gaps are closed by the same additions
    slack = TOLERANCE * float(np.abs(problem.memory).sum())
    tracked = problem.tracked()
    first, second, shared, units = _pairs(problem, tracked)
    pair = np.full((b, b), -1, dtype=np.int64)
    pair[first, second] = np.arange(len(first))
    pair[second, first] = np.arange(len(first))
    touch: list[list[int]] = []
    for i, j, on in zip(first.tolist(), second.tolist(), units, strict=True):
        both = problem.memory[i] != 0 and problem.memory[j] != 0
        touch.append([d for d in on if both and tracked[d]])
    takers, matches, even = [], [], True
    for d, mine in enumerate(problem.by_unit()):
        mine = mine[problem.memory[mine] != 0] if tracked[d] else mine[:0]
        takers.append(mine[problem.memory[mine] > 0].tolist())
        found, fine = matches_of(problem, path, mine, slack)
        matches.append(found)
        even = even and fine
    flat = [m for found in matches for m in found]
    pairs = PairTables(
        first=first,
        second=second,
        pair=pair,
        touch_ptr=_ptr(touch),
        touch=_ints([d for on in touch for d in on]),
        taker_ptr=_ptr(takers),
        taker=_ints([i for taker in takers for i in taker]),
        match_ptr=_ptr(matches),
        match_f=_ints([m[0] for m in flat]),
        match_r=_ints([m[1] for m in flat]),
        match_a=np.array([m[2] for m in flat], dtype=np.float64),
    )
    extra = copies_in_order(problem)
    roots = roots_of(problem, extra) if even else ()
    bridges, short = bridges_of(problem, path) if even else ((), ())
    return OrderTables(
        problem, pairs, path, extra, bridges, short, roots, shared, units, even, tracked, {}
    )


def _ptr(lists: Sequence[Sequence[object]]) -> Ints:
    return offsets([len(x) for x in lists])


def _ints(values: list[int]) -> Ints:
    return np.array(values, dtype=np.int64)


def _delays(problem: ScheduleProblem) -> Floats:
    """Longest delay after each block; f64[b]."""
    delays = np.zeros(problem.b)
    np.maximum.at(delays, problem.tail, problem.delay)
    return delays


def _pairs(
    problem: ScheduleProblem, tracked: NDArray[np.bool_]
) -> tuple[Ints, Ints, NDArray[np.bool_], tuple[tuple[int, ...], ...]]:
    """Pairs on one unit that exclude each other or, without time, share its memory.

    Of two blocks that start at the same time a release counts first, so it comes first.
    """
    busy, holds = problem.time > 0, problem.memory != 0
    units: dict[tuple[int, int], list[int]] = {}
    for d, on in enumerate(problem.by_unit()):
        mine = sorted(on.tolist(), key=lambda i: (problem.memory[i] > 0, i))
        for x, i in enumerate(mine):
            for j in mine[x + 1 :]:
                if (busy[i] and busy[j]) or (tracked[d] and holds[i] and holds[j]):
                    units.setdefault((i, j), []).append(d)
    keys = sorted(units)
    first, second = _ints([i for i, _ in keys]), _ints([j for _, j in keys])
    return first, second, busy[first] & busy[second], tuple(tuple(units[key]) for key in keys)


def matches_of(
    problem: ScheduleProblem, path: Floats, mine: Ints, slack: float
) -> tuple[list[tuple[int, int, float]], bool]:
    """Match releases with what other blocks took: taker, releaser, amount.

    Equal amounts and blocks that come after each other are matched first. Whether every release
    has a block before it that took as much.
    """
    takes = {i: float(problem.memory[i]) for i in mine.tolist() if problem.memory[i] > 0}
    gives = {i: -float(problem.memory[i]) for i in mine.tolist() if problem.memory[i] < 0}
    found, fine = [], True
    for alike, after in ((True, True), (False, True), (False, False)):
        for r in sorted(gives, key=lambda r: (path[:, r].max(), r)):
            for f in sorted(takes, key=lambda f: (path[f, r], f)):
                if gives[r] <= slack:
                    break
                if after and path[f, r] == -np.inf:
                    continue
                if takes[f] <= slack or (alike and abs(takes[f] - gives[r]) > slack):
                    continue
                amount = min(takes[f], gives[r])
                takes[f] -= amount
                gives[r] -= amount
                found.append((f, r, amount))
                fine = fine and after
    return found, fine


def start_matrix(tables: OrderTables, period: float, span: float | None) -> Floats:
    """Matrix of gaps before any branching, closed.

    `span`: limit from the first start to the last end; None: constraints that lose no schedule of
    the period.
    """
    problem = tables.problem
    gap = tables.path.copy()
    far = span if span is not None else tables.far + tables.periods * period
    np.maximum(gap, (problem.time - far)[:, None], out=gap)
    np.fill_diagonal(gap, np.maximum(0.0, problem.time - far))
    for tail, head, weight, lag in (
        *tables.extra,
        *(tables.bridges if span is None else tables.short_bridges),
    ):
        gap[tail, head] = max(gap[tail, head], weight + lag * period)
    if span is None:
        for root in tables.roots:
            gap[0, root] = max(gap[0, root], 0.0)
            gap[root, 0] = max(gap[root, 0], -period)
    close(gap)
    return gap


Arc = tuple[int, int, float, int]
"""Tail, head, weight, lag: a block starts at least weight + lag * period after another one."""


def copies_in_order(problem: ScheduleProblem) -> tuple[Arc, ...]:
    """Symmetry breaking: order of micro-batches with the same homes of all blocks.

    Sorting the starts of each block among them changes neither load nor memory of units nor the
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
    """Upper bounds of waits across bridges, which alone connect two blocks.

    Let waits connect a part A of a micro-batch, which holds block i, and the rest B, which holds
    block j, only by j waiting for i. A has no predecessors elsewhere, so if no release comes before
    its memory is taken A holds at least 0 on every unit. Starting B a period earlier reduces the
    memory of units by that. So s_j - s_i may be assumed to be less than a period longer than it
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
    for (i, j), wait in sorted(waits.items()):
        here = _reached(near, i, j)
        if j in here:
            continue
        before = all(path[a, i] > -np.inf for a in here)
        after = all(path[j, a] > -np.inf for a in _reached(near, j, i))
        for copy in range(problem.unroll):
            arc = (copy * k + j, copy * k + i, -wait, -1)
            bridges.append(arc)
            if before or after:
                short.append(arc)
    return tuple(bridges), tuple(short)


def _reached(near: list[list[int]], origin: int, other: int) -> set[int]:
    """Blocks connected to `origin` without its edge to `other`."""
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
    tail = np.concatenate([problem.tail, _ints([arc[0] for arc in extra])])
    head = np.concatenate([problem.head, _ints([arc[1] for arc in extra])])
    label = connected(problem.b, tail, head)
    return tuple(np.unique(label, return_index=True)[1][1:].tolist())
