"""Lower bounds of latency where every task is placed by itself (`operators`).

All of them ignore that transfers wait for each other, and of colours count only which devices
support all tasks of one:

    critical path    longest path through the graph, every task on the device that suits it best,
                     transfers between different devices included
    area             no device has time for more than the latency, nor memory for more than it
                     has: a linear program over fractional placements
    memory path      a path through the graph where devices have a price for memory
                     (Lagrange multipliers of the capacities)
    windows          critical path where tasks are as far apart as all between them need, and
                     tasks crowd into the time left between earliest starts and latest ends
    segments         the same along the longest path alone, between waists, which all paths pass

`upper` sharpens windows: no placement below it uses certain devices for certain tasks.

Networks of layers have many waists. Between the end of one waist and the start of the next passes
at least the time that windows need for the tasks between them, for each pair of their devices.
Along the waists these times add up. Segments that are alike, as layers mostly are, are bounded
once, and as a whole, where windows over all tasks span few of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np

from dnnp.core.cost.latency import LatencyProblem, Tasks
from dnnp.core.latency.lists.net import FlowNet, net_of
from dnnp.core.latency.operators.windows import (
    SAFE,
    WINDOW,
    area_bound,
    exclude,
    fill_gaps,
    heads,
    memory_path,
    windows_bound,
)
from dnnp.core.model.errors import InfeasibleError
from dnnp.core.model.graph import Bools, Floats, Ints, csr, csr_rows, distinct, place_of
from dnnp.core.model.search_context import PLAIN, SearchContext


def operators_bound(
    problem: LatencyProblem, *, upper: float = np.inf, run: SearchContext = PLAIN
) -> tuple[float, str]:
    """Best lower bound of the latency of a placement, and its method.

    Windows over all tasks are left out where windows span each of many segments.

    Parameters
    ----------
    upper
        Latency of a placement that is known. The bound is at most that.

    Raises InfeasibleError: a colour that no device supports or holds.
    """
    if problem.tasks.n == 0:
        return 0.0, "critical path"
    net = net_of(problem, tails=True)
    usable = net.allowed[net.together]
    if not usable.any(axis=1).all():
        v = int(np.flatnonzero(~usable.any(axis=1))[0])
        raise InfeasibleError(f"infeasible: no device supports and holds task {v} and its colour")
    n = problem.tasks.n
    head, tail = earliest_ends(net, usable), net.tail.copy()
    found = [(float(exclude(usable.copy(), head, tail, np.inf)), "critical path")]
    area, prices, weights = area_bound(problem, net, usable)
    found.append((area, "area"))
    if not run.stop() and (prices > 0).any():
        found.append((memory_path(net, usable, prices), "memory path"))
    spanned = False
    if n > WINDOW and not run.stop():
        value, spanned = segments_bound(problem, usable, head, tail, run)
        found.append((value, "segments"))
    if not (spanned or run.stop()):
        least = max(found)[0]
        value = windows_bound(net, usable, head, tail, weights, least, upper, run)
        found.append((value, "windows"))
    # A later bound is named only if it is larger beyond rounding.
    value, name = found[0]
    for other in found[1:]:
        if other[0] > value * (1 + 1e-9):
            value, name = other
    return min(value * SAFE, upper), name


def earliest_ends(net: FlowNet, usable: Bools) -> Floats:
    """Lower bound of the end of each task on each device by paths; f64[n, D]."""
    n, count = net.time.shape
    head = np.zeros((n, count))
    heads(net, np.zeros((n, 1, count, count)), np.zeros((n, 1), np.bool_), usable, head)
    return head


MOST_GAPS = 2**22
"""Pairs of tasks times pairs of devices of a segment that is bounded by windows."""

PIECES = 4
"""Of that size, at least, between waists that are farther apart."""

MANY = 8
"""Segments that there are at least; of fewer, windows over all tasks prove as much."""

COVERED = 0.75
"""Share of the tasks that lie in segments where windows over all are not worth their time."""

MOST_WORK = 1e9
"""Steps for all of them, roughly; gaps of further segments are 0."""


def segments_bound(
    problem: LatencyProblem, usable: Bools, head: Floats, tail: Floats, run: SearchContext
) -> tuple[float, bool]:
    """Lower bound by segments, 0 if they are few; and True if windows span most tasks.

    Its value when it is stopped is a bound, too.

    Parameters
    ----------
    usable
        bool[n, D], devices that a task can be on.
    head, tail
        f64[n, D], earliest end of each task on each device, and least time from there to the end.
    """
    tasks, count = problem.tasks, problem.machine.count
    longest = int(MOST_GAPS**0.5) // max(count, 4)
    number = np.full(tasks.n, -1, dtype=np.int64)
    found: dict[tuple[bytes, ...], Floats] = {}
    left = MOST_WORK * run.effort
    segments = list(line_of(problem, np.where(usable, head, np.inf).min(axis=1), longest))
    if len(segments) < MANY:
        return 0.0, False
    whole = sum(len(mine) - 1 for mine in segments) >= COVERED * tasks.n
    v = int(segments[0][0])
    ready = np.where(usable[v], head[v], np.inf)
    for mine in segments:
        if run.stop():
            whole = False
            break
        part = part_of(problem, mine, usable, number)
        shape, key = part.tasks, kind_of(part)
        if key not in found:
            work = _triples(shape) * count**4 if len(mine) <= longest else np.inf
            small = work <= left
            left -= work if small else 0.0
            whole &= small
            found[key] = gaps_of(part) if small else np.zeros((count, count))
        v = int(mine[-1])
        ready = (ready[:, None] + found[key]).min(axis=0) + tasks.time[:, v]
        ready = np.where(usable[v], np.maximum(ready, head[v]), np.inf)
    return float((ready + tail[v]).min()), whole


def line_of(problem: LatencyProblem, head: Floats, longest: int) -> Iterator[Ints]:
    """Tasks of each segment, both ends included, in topological order.

    A task is a waist if no edge passes over its position. Where waists are more than `longest`
    positions apart, tasks of the longest path with few edges over them are ends in between.
    """
    tasks = problem.tasks
    make, read = tasks.edges
    succ_ptr, succ = csr(make, read, tasks.n)
    pred_ptr, pred = csr(read, make, tasks.n)

    def between(first: int, last: int, some: list[int]) -> list[int]:
        after, before = {first}, {last}
        for v in some:
            if v in after:
                after.update(succ[succ_ptr[v] : succ_ptr[v + 1]].tolist())
        for v in reversed(some):
            if v in before:
                before.update(pred[pred_ptr[v] : pred_ptr[v + 1]].tolist())
        return [v for v in some if v in after and v in before]

    way = [int(np.argmax(head))]
    while len(before := pred[pred_ptr[way[-1]] : pred_ptr[way[-1] + 1]]):
        way.append(int(before[np.argmax(head[before])]))
    line = between(way[-1], way[0], tasks.order.tolist())
    place = place_of(line, tasks.n)
    here = (place[make] >= 0) & (place[read] >= 0)
    over = np.bincount(place[make[here]] + 1, minlength=len(line) + 1)
    over = np.cumsum(over - np.bincount(place[read[here]], minlength=len(line) + 1))[:-1]
    ends, along, step = [0], place[way[::-1]], max(longest // PIECES, 1)
    for waist in np.flatnonzero(over == 0)[1:].tolist():
        most = longest
        while waist - ends[-1] > most:
            most = 2 * step
            further = along[along > ends[-1] + step // 2]
            near = further[further <= ends[-1] + step]
            ends.append(int(near[np.argmin(over[near])] if len(near) else further[0]))
        if waist > ends[-1]:
            ends.append(waist)
    for i, j in pairwise(ends):
        mine = between(line[i], line[j], line[i : j + 1])
        yield np.array(mine, dtype=np.int64)


def _triples(tasks: Tasks) -> int:
    """Number of triples of tasks on one path: the size of windows over all tasks."""
    reach = np.zeros((tasks.n, tasks.n), dtype=np.float32)
    make, read = tasks.edges
    for u, v in zip(make[::-1].tolist(), read[::-1].tolist(), strict=True):
        np.maximum(reach[u], reach[v], out=reach[u])
        reach[u, v] = 1.0
    return int((reach @ reach)[reach > 0].sum())


def part_of(problem: LatencyProblem, mine: Ints, usable: Bools, number: Ints) -> LatencyProblem:
    """Problem of a segment with its waists, and the flows among them.

    `number`: i64[n] of -1, which it is again afterwards.
    """
    tasks, n = problem.tasks, len(mine)
    number[mine] = np.arange(n)
    made, flow = csr_rows(tasks.out_ptr, tasks.out_idx, mine)
    read, reader = csr_rows(tasks.use_ptr, tasks.use_idx, flow)
    maker = np.repeat(np.arange(n), np.diff(made))
    use, owner = number[reader], np.repeat(np.arange(len(flow)), np.diff(read))
    number[mine] = -1
    owner, use = owner[use >= 0], use[use >= 0]
    kept = distinct(owner)
    flow, maker, owner = flow[kept], maker[kept], np.searchsorted(kept, owner)
    use_ptr, use_idx = csr(owner, use, len(flow))
    in_ptr, in_idx = csr(use, owner, n)
    out_ptr, out_idx = csr(maker, np.arange(len(flow)), n)
    part = replace(
        tasks,
        time=np.where(usable[mine].T, tasks.time[:, mine], np.inf),
        memory=tasks.memory[mine],
        together=np.unique(tasks.together[mine], return_inverse=True)[1].astype(np.int64),
        backward=tasks.backward[mine],
        order=np.arange(n),
        maker=maker,
        leaves=tasks.leaves[flow],
        size=tasks.size[flow],
        fixed=tasks.fixed[flow],
        use_ptr=use_ptr,
        use_idx=use_idx,
        in_ptr=in_ptr,
        in_idx=in_idx,
        out_ptr=out_ptr,
        out_idx=out_idx,
    )
    return LatencyProblem(part, problem.machine, problem.options)


def kind_of(part: LatencyProblem) -> tuple[bytes, ...]:
    """All that tells the problem of a segment from those of others."""
    tasks = part.tasks
    parts = (tasks.time, tasks.memory, tasks.together, tasks.use_ptr, tasks.use_idx)
    return tuple(x.tobytes() for x in (*parts, tasks.maker, tasks.size, tasks.fixed))


def gaps_of(part: LatencyProblem) -> Floats:
    """Least time from the end of the first task to the start of the last, by their devices."""
    net = net_of(part)
    usable = net.allowed[net.together]
    n, count = usable.shape
    weights = area_bound(part, net, usable)[2]
    gap, reach = np.full((n, n, count, count), np.inf), np.zeros((n, n), dtype=np.bool_)
    none, place = np.zeros((n, count)), np.arange(n)
    for i in range(n - 1, -1, -1):
        fill_gaps(net, place, weights, usable, none, none, np.inf, gap, reach, i)
    gaps: Floats = gap[0, n - 1].copy()
    return gaps
