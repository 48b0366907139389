"""Everything on one device, and devices filled one after the other (2020 paper, Section 7)."""

from __future__ import annotations

import numpy as np

from dnnp.core.cost.combine import ROOM
from dnnp.core.cost.invocations import POOL
from dnnp.core.cost.latency import LatencyProblem, LatencySolution, Split
from dnnp.core.latency.homes import split_of_homes
from dnnp.core.latency.lists.room import by_first, room_of
from dnnp.core.latency.lists.schedule import repaired_answer, schedule_order
from dnnp.core.model.asked import Asked
from dnnp.core.model.errors import InfeasibleError, UsageError
from dnnp.core.model.run import Run
from dnnp.core.model.text import shown_bytes


def single(problem: LatencyProblem, asked: Asked, run: Run) -> LatencySolution:
    """All tasks on the fastest device that runs and holds them.

    Raises
    ------
    InfeasibleError
        There is none.
    """
    tasks, machine = problem.tasks, problem.machine
    total, needed = tasks.time.sum(axis=1), float(tasks.memory.sum())
    runs = np.isfinite(total)
    holds = needed <= machine.capacity * ROOM
    if not (runs & holds).any():
        if not runs.any():
            raise InfeasibleError("infeasible: no single device runs every task")
        raise InfeasibleError(
            f"infeasible: all tasks need {shown_bytes(needed, 6)}, a single device that runs them "
            f"has at most {shown_bytes(machine.capacity[runs].max(), 6)}"
        )
    device = int(np.argmin(np.where(runs & holds, total, np.inf)))
    return LatencySolution(schedule_order(problem, np.full(tasks.n, device), tasks.order))


def single_block(problem: LatencyProblem, asked: Asked, run: Run) -> LatencySolution:
    """Everything on one accelerator, or in the pool: whichever is fastest.

    Raises
    ------
    InfeasibleError
        Nothing holds it all.
    """
    best: tuple[float, Split] | None = None
    reason = InfeasibleError("infeasible: there is no device")
    for device in [POOL, *np.flatnonzero(~problem.machine.is_cpu).tolist()]:
        split = split_of_homes(problem, np.full(problem.tasks.n, device))
        try:
            value = problem.value(split)
        except InfeasibleError as error:
            reason = error
            continue
        if best is None or value < best[0]:
            best = value, split
    if best is None:
        raise reason
    return LatencySolution(best[1])


def greedy_operators(problem: LatencyProblem, asked: Asked, run: Run) -> LatencySolution:
    """Fill accelerator after accelerator in topological order; CPUs take what is left.

    The greedy algorithm of the 2020 paper, for single tasks: an accelerator takes tasks, with
    their colours, as long as the next one fits. What an accelerator cannot run waits for one that
    can. Neither times nor transfers count. Where something is left that way, its place is looked
    for anew, and the method is called `greedy-repaired`.

    Raises
    ------
    InfeasibleError, LimitError
        It is proven, or just so, that the tasks do not fit.
    UsageError
        An order is asked for, which greedy of blocks alone knows.
    """
    if asked.order != "best" or asked.sequence is not None:
        raise UsageError("--order and --sequence of method greedy are for --execution blocks")
    tasks, room = problem.tasks, room_of(problem)
    is_cpu = problem.machine.is_cpu
    devices = [*np.flatnonzero(~is_cpu).tolist(), *np.flatnonzero(is_cpu).tolist()]
    home = np.full(len(room.memory), -1, dtype=np.int64)
    left = by_first(tasks.together[tasks.order]).tolist()
    for d in devices:
        free, full = float(room.limit[d]), False
        for c in left:
            if full or not room.able[d, c]:
                continue
            full = bool(room.memory[c] > free)
            if not full:
                home[c] = d
                free -= room.memory[c]
        left = [c for c in left if home[c] < 0]
    return repaired_answer(problem, room, home, "greedy", run)
