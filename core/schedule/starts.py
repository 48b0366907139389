"""Earliest start times where the order of blocks on every unit is known: once, or periodically.

Once: every block as early as its predecessors and its units allow (`left_shift`). Periodically:
units keep the cyclic order of their blocks, and how many periods apart they are (`tightened`).
Difference constraints s_v - s_u >= w + k T remain, which hold for some starts s unless they have a
positive cycle. The least T is the largest ratio of w to -k over all cycles, the maximum cycle
ratio; it is found from below, cycle by cycle (Newton's method), and is exact up to the rounding of
one division.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dnnp.core.kernels.kernel import inlined, lean
from dnnp.core.model.errors import FormatError
from dnnp.core.model.graph import Floats, Ints, kahn, place_of
from dnnp.core.schedule.problem import TOLERANCE, ScheduleProblem


@lean
def _shift(sequence, blocks, begun, free, start):  # type: ignore[no-untyped-def]
    """Kernel of `left_shift`: fills `start`; `begun` and `free`, of each unit, come as zeros."""
    ptr, unit, time = blocks.ptr, blocks.unit, blocks.time
    before_ptr, before, delay = blocks.before_ptr, blocks.before, blocks.delay
    for q in range(len(sequence)):
        block = sequence[q]
        at = 0.0
        for i in range(before_ptr[block], before_ptr[block + 1]):
            at = max(at, start[before[i]] + time[before[i]] + delay[i])
        for i in range(ptr[block], ptr[block + 1]):
            at = max(at, begun[unit[i]])
            # A block without duration keeps its place in the order but waits for no block to end.
            if time[block] > 0:
                at = max(at, free[unit[i]])
        start[block] = at
        for i in range(ptr[block], ptr[block + 1]):
            begun[unit[i]] = at
            if time[block] > 0:
                free[unit[i]] = at + time[block]


def left_shift(problem: ScheduleProblem, sequence: Ints, *, compiled: bool = True) -> Floats:
    """Earliest start times where every unit runs its blocks in the order of `sequence`.

    `sequence` holds every block once, predecessors first. The memory of a unit depends on the order
    of its blocks alone, so shifting never exceeds a limit that the order keeps. Not `compiled`:
    slow, but without waiting for another thread that compiles.
    """
    shift = _shift if compiled else getattr(_shift, "py_func", _shift)
    start = np.zeros(problem.b)
    begun, free = np.zeros(problem.units), np.zeros(problem.units)
    shift(np.asarray(sequence, dtype=np.int64), problem.arrays, begun, free, start)
    return start


def merged(problem: ScheduleProblem, orders: Sequence[Ints]) -> Ints:
    """One sequence that agrees with the order of blocks on every unit and with all waits.

    Of the blocks that could be next the one with the least number is.

    Raises FormatError: the orders wait for each other in a circle: a deadlock.
    """
    tail = np.concatenate([problem.tail, *(order[:-1] for order in orders)])
    head = np.concatenate([problem.head, *(order[1:] for order in orders)])
    sequence = topological_order(problem.b, tail, head)
    if len(sequence) < problem.b:
        raise FormatError("the orders of the devices wait for each other in a circle")
    return sequence


def topological_order(count: int, tail: Ints, head: Ints, key: Floats | None = None) -> Ints:
    """Blocks 0 to count - 1, i64[count], each after all that it waits for.

    Of those that could be next the one of the least key is, f64[count], or else of the least
    number. Blocks that wait for each other in a circle, or for such blocks, are left out.
    """
    if key is None:
        return kahn(tail, head, count)[0]
    order = np.argsort(key, kind="stable")
    place = place_of(order)
    return order[kahn(place[tail], place[head], count)[0]]


class Arcs(NamedTuple):
    """Block `head` starts at least `weight` + `lag` periods after block `tail`."""

    tail: Ints
    head: Ints
    weight: Floats
    lag: Ints


@inlined
def _earliest(arcs, start, period, eps, via, seen):  # type: ignore[no-untyped-def]
    """Longest paths from all blocks, in place; an arc of a positive cycle, or -1.

    `via` i64[n] are the arcs that set the starts, or -1; `seen` is scratch.
    """
    n, m = len(start), len(arcs.tail)
    for v in range(n):
        start[v] = 0.0
        via[v] = -1
    for _ in range(2 * n + 2):
        changed = -1
        for a in range(m):
            v = arcs.head[a]
            new = start[arcs.tail[a]] + arcs.weight[a] + arcs.lag[a] * period
            if new > start[v] + eps:
                start[v] = new
                via[v] = a
                changed = a
        if changed < 0:
            return -1
        # Is there a positive cycle among the arcs that set the starts?
        for v in range(n):
            seen[v] = 0
        for v in range(n):
            at = v
            while via[at] >= 0 and seen[at] == 0:
                seen[at] = v + 1
                at = arcs.tail[via[at]]
            if via[at] >= 0 and seen[at] == v + 1:
                return via[at]
    return changed


@lean
def _tighten(arcs, start, period, eps, via, seen):  # type: ignore[no-untyped-def]
    """Least period of at least `period`, inf if there is none; starts are set."""
    while True:
        last = _earliest(arcs, start, period, eps, via, seen)
        if last < 0:
            return period
        weight, lag = 0.0, 0
        a = last
        while True:
            weight += arcs.weight[a]
            lag += arcs.lag[a]
            a = via[arcs.tail[a]]
            if a == last or a < 0:
                break
        if lag >= 0 or a < 0 or weight / -lag <= period:
            return np.inf
        period = weight / -lag


def max_cycle_ratio(arcs: Arcs, count: int, least: float, eps: float) -> tuple[float, Floats]:
    """The shortest period of at least `least`, and the earliest starts from 0, f64[count].

    Times `eps` apart count as equal. The period is inf if the arcs contradict each other at every
    period, or it would be shorter than `least`.
    """
    start = np.zeros(count)
    via, seen = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    period: float = _tighten(arcs, start, least, eps, via, seen)
    return period, start


CLOSE = 1e-13
"""Relative tolerance for equal times."""


def arcs_of(problem: ScheduleProblem, start: Floats, period: float) -> Arcs:
    """Waits, and the orders on all units that starts f64[b] imply.

    Blocks without time follow only others that hold memory of a unit. Of blocks that start at the
    same time those come first that release memory.
    """
    waits = problem.time[problem.tail] + problem.delay
    tail, head, weight = [problem.tail], [problem.head], [waits]
    lag = [np.zeros(len(waits), dtype=np.int64)]
    slack = TOLERANCE * period
    turn = np.floor((start + slack) / period).astype(np.int64)
    phase = np.maximum(start - turn * period, 0.0)
    busy, matters = problem.time > 0, problem.memory != 0
    for mine in problem.by_unit():
        groups = [(mine[busy[mine]], problem.time)]
        if (matters & ~busy)[mine].any():
            groups.append((mine[matters[mine]], np.zeros(problem.b)))
        for group, length in groups:
            if len(group) < 2:
                continue
            order = group[np.lexsort((problem.memory[group], phase[group]))]
            order = _releases_first(order, phase, problem.memory, slack)
            tail.append(order)
            head.append(np.roll(order, -1))
            weight.append(length[order])
            apart = turn[np.roll(order, -1)] - turn[order]
            apart[-1] -= 1
            # The next period's first block follows the last one: s_v + T >= s_u + t_u.
            lag.append(apart)
    tails = np.concatenate(tail)
    # In the order of starts most paths are found at once.
    order = np.argsort(start[tails], kind="stable")
    return Arcs(
        tails[order],
        np.concatenate(head)[order],
        np.concatenate(weight)[order],
        np.concatenate(lag)[order],
    )


def _releases_first(order: Ints, phase: Floats, memory: Floats, slack: float) -> Ints:
    """Among phases that are almost equal, what releases memory comes first."""
    group = np.concatenate([[0], np.cumsum(np.diff(phase[order]) > slack)])
    if group[-1] == len(order) - 1:
        return order
    return order[np.lexsort((memory[order], group))]


def tightened(
    problem: ScheduleProblem, start: Floats, period: float, least: float = 0.0
) -> tuple[float, Floats] | None:
    """The shortest period, but at least `least`, that keeps all orders, and earliest starts.

    None: the orders contradict each other; `start` was no schedule. The shortest span goes with
    the earliest starts.
    """
    arcs = arcs_of(problem, start, period)
    eps = CLOSE * (float(problem.time.sum() + problem.delay.sum()) + period)
    floor = max(float(problem.load().max(initial=0.0)), least)
    short, found = max_cycle_ratio(arcs, problem.b, floor, eps)
    return (short, found - found.min()) if np.isfinite(short) else None
