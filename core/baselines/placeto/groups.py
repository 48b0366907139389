"""Groups of operators that Placeto places as one, and what its policy sees of them.

Placeto groups operators before it places them, those that must be together first (section 4).
Here tasks of one colour are a group; where these are more than `MOST_GROUPS`, neighbours in a
topological order are merged, so that all groups have about the same work.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dnnp.core.cost.latency import LatencyProblem
from dnnp.core.latency.lists.net import Net, edge_moves, mean_times
from dnnp.core.latency.lists.room import Room
from dnnp.core.model.graph import Bools, Floats, Ints, totals

MOST_GROUPS = 128
"""Groups above which neighbours are merged: an episode visits all, and each may be related to
each."""


class Groups(NamedTuple):
    """`q` groups of `n` tasks on `D` devices."""

    label: Ints
    """i64[n], group of each task."""
    features: Floats
    """f64[q, D + 2]: time on each device; time to send what others read; memory."""
    able: Bools
    """bool[q, D]: the device runs all of the group, and holds it if it is empty."""
    memory: Floats
    """f64[q], bytes."""
    limit: Floats
    """f64[D], bytes that each device holds."""
    reads: Floats
    """f64[q, q], 1 where the row's group reads from the column's."""
    related: Bools
    """bool[3, q, q]: [p, v, u] is whether there is a path from u to v (p = 0; also on cycles), only
    one from v to u (1), or neither (2)."""
    visits: Ints
    """i64[q], the order in which an episode visits them: topological as far as there is one."""


def groups_of(problem: LatencyProblem, net: Net, room: Room) -> Groups:
    """Group a problem; complexity O(q^3 log q + edges)."""
    tasks = problem.tasks
    colors = len(room.memory)
    group_of = _merged(net, room) if colors > MOST_GROUPS else np.arange(colors)
    label = group_of[tasks.together]
    q = int(label.max(initial=-1)) + 1
    memory = totals(group_of, room.memory, q)
    time = np.array([totals(group_of, work, q) for work in room.work]).T
    tail, head, move = edge_moves(problem)
    apart = label[tail] != label[head]
    mean = totals(label, mean_times(tasks.time), q)
    send = totals(label[tail], np.where(apart, move, 0.0), q)
    reads = np.zeros((q, q))
    reads[label[head[apart]], label[tail[apart]]] = 1.0
    scale = float(mean.mean()) if q and mean.any() else 1.0
    known = np.where(np.isfinite(time), time, mean[:, None])
    held = np.minimum(memory / max(float(room.limit.min()), 1.0), 1.0)
    return Groups(
        label=label,
        features=np.column_stack([np.log1p(known / scale), np.log1p(send / scale), held]),
        able=np.isfinite(time) & (memory[:, None] <= room.limit),
        memory=memory,
        limit=room.limit,
        reads=reads,
        related=_related(reads),
        visits=_visits(label, net.order),
    )


def _visits(label: Ints, order: Ints) -> Ints:
    """Groups by their first task in a topological order; i64[q]."""
    found, first = np.unique(label[order], return_index=True)
    return found[np.argsort(first)].astype(np.int64)


def _merged(net: Net, room: Room) -> Ints:
    """Group of each colour: runs of a topological order with about equal work; i64[c].

    A run ends, too, where no device could take more of it.
    """
    work = np.where(np.isfinite(room.work), room.work, 0.0).mean(axis=0)
    most = max(float(work.sum()) / MOST_GROUPS, 0.0)
    each = max(len(work) // MOST_GROUPS, 1)
    group_of = np.empty(len(work), dtype=np.int64)
    group, done, members = 0, 0.0, 0
    fits, held = np.ones(len(room.limit), dtype=bool), 0.0
    for c in _visits(net.color, net.order).tolist():
        both = fits & np.isfinite(room.work[:, c])
        wide = (held + room.memory[c] <= room.limit / 2)[both].any()
        full = done >= most * (group + 1) if most else members >= each
        if members and (full or not wide):
            group, members, held = group + 1, 0, 0.0
            both = np.isfinite(room.work[:, c])
        group_of[c], fits = group, both
        members, done, held = members + 1, done + work[c], held + room.memory[c]
    return group_of


def _related(reads: Floats) -> Bools:
    """Relations by paths of any length, as in `Groups`."""
    reach = reads + np.eye(len(reads)) > 0
    for _ in range(len(reads).bit_length()):  # the length of the paths doubles each time
        reach = reach.astype(np.float64) @ reach > 0
    before = reach & ~np.eye(len(reads), dtype=np.bool_)
    after = before.T & ~before
    return np.array([before, after, ~reach & ~reach.T])
