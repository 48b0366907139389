"""Start times from an order: every block as early as its predecessors and its units allow."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from dnnp.core.kernels.kernel import interpreted, lean
from dnnp.core.model.errors import FormatError
from dnnp.core.model.graph import Floats, Ints, csr
from dnnp.core.schedule.problem import ScheduleProblem


@lean
def _shift(sequence, ptr, unit, time, before_ptr, before, delay, begun, free, start):  # type: ignore[no-untyped-def]
    """Kernel of `left_shift`; `before` are the predecessors of each block, by `before_ptr`.

    Fills `start`; `begun` and `free`, of each unit, come as zeros.
    """
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

    `sequence` holds every block once, predecessors first. What a unit holds depends on the order
    of its blocks alone, so shifting never exceeds a limit that the order keeps. Not `compiled` is
    slow, but at once, while another thread may be compiling.
    """
    before_ptr, by_head = csr(problem.head, np.arange(len(problem.head)), problem.b)
    shift = _shift if compiled else interpreted(_shift)
    start = np.zeros(problem.b)
    shift(
        np.asarray(sequence, dtype=np.int64),
        problem.ptr,
        problem.unit,
        problem.time,
        before_ptr,
        problem.tail[by_head],
        problem.delay[by_head],
        np.zeros(problem.units),
        np.zeros(problem.units),
        start,
    )
    return start


def merged(problem: ScheduleProblem, orders: Sequence[Ints]) -> Ints:
    """One sequence that agrees with the order of blocks on every unit and with all waits.

    Of the blocks that could be next the one with the least number is.

    Raises
    ------
    FormatError
        The orders wait for each other in a circle: a deadlock.
    """
    tail = np.concatenate([problem.tail, *(order[:-1] for order in orders)])
    head = np.concatenate([problem.head, *(order[1:] for order in orders)])
    sequence = topological(problem.b, tail, head)
    if len(sequence) < problem.b:
        raise FormatError("the orders of the devices wait for each other in a circle")
    return sequence


def topological(count: int, tail: Ints, head: Ints, key: Floats | None = None) -> Ints:
    """Blocks 0 to count - 1, i64[count], each after all that it waits for.

    Of those that could be next the one of the least key is, f64[count], or else of the least
    number. Blocks that wait for each other in a circle, or for such blocks, are left out.
    """
    followers: list[list[int]] = [[] for _ in range(count)]
    for a, b in zip(tail.tolist(), head.tolist(), strict=True):
        followers[a].append(b)
    waiting = np.bincount(head, minlength=count).tolist()
    keys = [0.0] * count if key is None else key.tolist()
    ready = [(keys[i], i) for i, w in enumerate(waiting) if not w]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        i = heapq.heappop(ready)[1]
        order.append(i)
        for j in followers[i]:
            waiting[j] -= 1
            if not waiting[j]:
                heapq.heappush(ready, (keys[j], j))
    return np.array(order, dtype=np.int64)
