"""Lower bound of latency by segments: what lies between tasks that every way passes (`waists`).

Networks of layers are narrow between these: from the first to the last task of the longest way all
ways meet again and again. Whatever is done elsewhere, from the end of one waist to the start of the
next there passes at least the time that windows need for the tasks between them, for each device
of the one and each of the other (`spread`). Along the waists these add up. Segments that are alike,
as layers mostly are, are bounded once, and whole, where windows over all tasks span few of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np

from dnnp.core.cost.latency import LatencyProblem, Tasks
from dnnp.core.latency.lists.net import net_of
from dnnp.core.latency.operators.bound import area_bound, spread
from dnnp.core.model.graph import Bools, Floats, Ints, csr, csr_rows, distinct, place_of
from dnnp.core.model.search_context import SearchContext

MOST_GAPS = 2**22
"""Pairs of tasks times pairs of devices of a segment that is bounded by windows."""

PIECES = 4
"""Of that size, at least, between waists that are farther apart."""

MANY = 8
"""Segments that there are at least; of fewer, windows over all tasks prove as much."""

COVERED = 0.75
"""Share of the tasks that lie in segments where windows over all are not worth their time."""

MOST_WORK = 1e9
"""Steps that all of them may take, roughly; after those that are left out paths go on."""


def segments_bound(
    problem: LatencyProblem, usable: Bools, head: Floats, tail: Floats, run: SearchContext
) -> tuple[float, bool]:
    """Least latency, and whether windows span most tasks; 0 if there are few of these.

    What it has when it is stopped is a bound, too.

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
    segments = list(_line(problem, np.where(usable, head, np.inf).min(axis=1), longest))
    if len(segments) < MANY:
        return 0.0, False
    whole = sum(len(mine) - 1 for mine in segments) >= COVERED * tasks.n
    v = int(segments[0][0])
    ready = np.where(usable[v], head[v], np.inf)
    for mine in segments:
        if run.stop():
            whole = False
            break
        part = _part(problem, mine, usable, number)
        shape = part.tasks
        parts = (shape.time, shape.memory, shape.together, shape.use_ptr, shape.use_idx)
        key = tuple(x.tobytes() for x in (*parts, shape.maker, shape.size, shape.fixed))
        if key not in found:
            work = _triples(shape) * count**4 if len(mine) <= longest else np.inf
            small = work <= left
            left -= work if small else 0.0
            whole &= small
            found[key] = _gaps(part) if small else np.zeros((count, count))
        v = int(mine[-1])
        ready = (ready[:, None] + found[key]).min(axis=0) + tasks.time[:, v]
        ready = np.where(usable[v], np.maximum(ready, head[v]), np.inf)
    return float((ready + tail[v]).min()), whole


def _line(problem: LatencyProblem, head: Floats, longest: int) -> Iterator[Ints]:
    """Tasks of each segment from one end to the other, both included, in topological order.

    A task is a waist if no edge passes over its position. Where waists are more than `longest`
    positions apart, tasks of the longest way, over which few edges pass, are ends in between.
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
    """Tasks between two others, over all pairs of these: what windows over all of them look at."""
    reach = np.zeros((tasks.n, tasks.n), dtype=np.float32)
    make, read = tasks.edges
    for u, v in zip(make[::-1].tolist(), read[::-1].tolist(), strict=True):
        np.maximum(reach[u], reach[v], out=reach[u])
        reach[u, v] = 1.0
    return int((reach @ reach)[reach > 0].sum())


def _part(problem: LatencyProblem, mine: Ints, usable: Bools, number: Ints) -> LatencyProblem:
    """Tasks of a segment, its waists at both ends, with the flows among them.

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


def _gaps(part: LatencyProblem) -> Floats:
    """Least time from the end of the first task to the start of the last, by their devices."""
    net = net_of(part)
    usable = net.allowed[net.together]
    n, count = usable.shape
    weights = area_bound(part, net, usable)[2]
    gap, reach = np.full((n, n, count, count), np.inf), np.zeros((n, n), dtype=np.bool_)
    none, place = np.zeros((n, count)), np.arange(n)
    for i in range(n - 1, -1, -1):
        spread(net, place, weights, usable, none, none, np.inf, gap, reach, i)
    gaps: Floats = gap[0, n - 1].copy()
    return gaps
