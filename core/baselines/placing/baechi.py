"""The three placers of Baechi (Jeon et al. 2020): m-TOPO, m-ETF and m-SCT."""

from __future__ import annotations

import numpy as np

from dnnp.core.baselines.placing.favourite import favourite_children
from dnnp.core.cost.combine import ROOM
from dnnp.core.cost.latency import LatencyProblem, LatencySolution
from dnnp.core.latency.lists.net import mean_times, net_of, upward_rank
from dnnp.core.latency.lists.room import by_first, room_of
from dnnp.core.latency.lists.schedule import answer, list_schedule, repaired_answer
from dnnp.core.model.asked import Asked
from dnnp.core.model.graph import totals
from dnnp.core.model.run import Run


def m_topo(problem: LatencyProblem, asked: Asked, run: Run) -> LatencySolution:
    """Fill device after device in topological order, each up to a share of the memory.

    The share is the mean over the devices plus the largest task, and at most what
    the device holds; where nothing needs memory, times take its place. A colour goes where its
    first task goes. What the device at hand does not run is passed over, and goes wherever it fits
    in the end; where something else is left then, the method is called `m-topo-repaired`.

    Raises
    ------
    InfeasibleError, LimitError
        It is proven, or just so, that the tasks do not fit.
    """
    tasks, room = problem.tasks, room_of(problem)
    load = room.memory
    if not load.any():
        load = totals(tasks.together, mean_times(tasks.time), len(load))
    share = (load.sum() / len(room.limit) + load.max(initial=0.0)) * ROOM
    home = np.full(len(load), -1, dtype=np.int64)
    passed = np.zeros(len(load), dtype=np.bool_)
    d, filled, free = 0, 0.0, room.limit.copy()
    for c in by_first(tasks.together[tasks.order]).tolist():
        if d < len(free) and not room.able[d, c]:
            passed[c] = True
            continue
        while d < len(free) and (room.memory[c] > free[d] or filled + load[c] > share):
            d, filled = d + 1, 0.0
        if d == len(free):
            break
        if room.able[d, c]:
            home[c] = d
            free[d] -= room.memory[c]
            filled += load[c]
        else:
            passed[c] = True
    return repaired_answer(problem, room, home, "m-topo", run, passed=passed)


def m_etf(problem: LatencyProblem, asked: Asked, run: Run) -> LatencySolution:
    """Earliest start time first, on devices that are not full.

    Of equal starts the task with the highest static level (longest path of work) goes first. A
    transfer waits for its channel while the schedule is built, as in Baechi's own queues.

    Raises
    ------
    InfeasibleError, LimitError
        It is proven, or just so, that the tasks do not fit.
    """
    level = upward_rank(problem, net_of(problem), moves=False)
    return answer(list_schedule(problem, room_of(problem), level, run=run), "m-etf", run)


def m_sct(problem: LatencyProblem, asked: Asked, run: Run) -> LatencySolution:
    """Small communication times: m-ETF that keeps favourite children near.

    A device waits for the favourite child of its last task, if that is ready and starts nowhere
    earlier, and runs only urgent tasks meanwhile. See `favourite` for how they are found; without
    the relaxation the method is called `m-sct-greedy`.

    Raises
    ------
    InfeasibleError, LimitError
        It is proven, or just so, that the tasks do not fit.
    """
    room = room_of(problem)
    level = upward_rank(problem, net_of(problem), moves=False)
    child, why = favourite_children(problem, run)
    found = list_schedule(problem, room, level, favourite=child, run=run)
    return answer(found, "m-sct", run, instead="m-sct-greedy", why=why)
