"""What the orders of a periodic schedule allow: the shortest period and the earliest starts.

When every unit keeps the cyclic order of its blocks, and how many periods apart they are, what is
left are difference constraints (`core.schedule.cycle`).
"""

from __future__ import annotations

import numpy as np

from dnnp.core.model.graph import Floats, Ints
from dnnp.core.schedule.cycle import Arcs, least_period
from dnnp.core.schedule.problem import TOLERANCE, ScheduleProblem

CLOSE = 1e-13
"""Times this much apart, relative to the sum of all, count as equal."""


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
    ptr, block = problem.on_unit()
    busy, matters = problem.time > 0, problem.memory != 0
    for d in range(problem.units):
        mine = block[ptr[d] : ptr[d + 1]]
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
    short, found = least_period(arcs, problem.b, floor, eps)
    return (short, found - found.min()) if np.isfinite(short) else None
