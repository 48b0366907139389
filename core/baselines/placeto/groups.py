"""What the policy of Placeto sees of a problem: groups of operators that are placed as one.

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
from dnnp.core.model.graph import Bools, Floats, Ints, csr, distinct, totals

MOST_GROUPS = 128
"""Groups above which neighbours are merged: an episode visits all, and each may be related to
each."""

ITSELF, PARENT, CHILD, PARALLEL = range(4)
"""What a group is to another: the other one, before it, after it, or neither."""


class Groups(NamedTuple):
    """`q` groups of `n` tasks on `D` devices; CSR lists have no group twice."""

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
    in_ptr: Ints
    in_idx: Ints
    """Groups that each group reads from."""
    out_ptr: Ints
    out_idx: Ints
    """Groups that read from each group."""
    relation: np.ndarray
    """i8[q, q]: what [v, u] says u is to v."""
    visits: Ints
    """i64[q], the order in which an episode visits them: topological as far as there is one."""
    unit: float
    """Time in which costs are measured: that of the placement which episodes start from."""


def groups_of(problem: LatencyProblem, net: Net, room: Room) -> Groups:
    """Group a problem; complexity O(q^2 + edges)."""
    tasks = problem.tasks
    colors = len(room.memory)
    group_of = _merged(net, room) if colors > MOST_GROUPS else np.arange(colors)
    label = group_of[tasks.together]
    q = int(label.max(initial=-1)) + 1
    memory = totals(group_of, room.memory, q)
    time = np.array([totals(group_of, work, q) for work in room.work]).T
    able = np.isfinite(time) & (memory[:, None] <= room.limit)
    tail, head, move = edge_moves(problem)
    mean = totals(label, mean_times(tasks.time), q)
    send = totals(label[tail], np.where(label[tail] != label[head], move, 0.0), q)
    pairs = distinct(label[tail] * max(q, 1) + label[head])
    tail, head = pairs // max(q, 1), pairs % max(q, 1)
    apart = tail != head
    tail, head = tail[apart], head[apart]
    visits = _visits(label, net.order)
    in_ptr, in_idx = csr(head, tail, q)
    out_ptr, out_idx = csr(tail, head, q)
    scale = float(mean.mean()) if q and mean.any() else 1.0
    known = np.where(np.isfinite(time), time, mean[:, None])
    held = np.minimum(memory / max(float(room.limit.min()), 1.0), 1.0)
    features = np.column_stack([np.log1p(known / scale), np.log1p(send / scale), held])
    return Groups(
        label=label,
        features=np.ascontiguousarray(features),
        able=np.ascontiguousarray(able),
        memory=memory,
        limit=room.limit,
        in_ptr=in_ptr,
        in_idx=in_idx,
        out_ptr=out_ptr,
        out_idx=out_idx,
        relation=_relations(q, tail, head, visits),
        visits=visits,
        unit=1.0,
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


def _relations(q: int, tail: Ints, head: Ints, visits: Ints) -> np.ndarray:
    """What each group is to each other one, by paths of any length; i8[q, q].

    Groups on a cycle are parents of each other.
    """
    reach = np.eye(q, dtype=bool)
    follows: list[list[int]] = [[] for _ in range(q)]
    for a, b in zip(tail.tolist(), head.tolist(), strict=True):
        follows[a].append(b)
    changed = True
    while changed:
        changed = False
        for v in visits[::-1].tolist():
            row = reach[v] | reach[follows[v]].any(axis=0) if follows[v] else reach[v]
            if (row != reach[v]).any():
                reach[v], changed = row, True
    relation = np.full((q, q), PARALLEL, dtype=np.int8)
    relation[reach] = CHILD
    relation[reach.T] = PARENT
    np.fill_diagonal(relation, ITSELF)
    return relation
