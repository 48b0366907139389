"""One device for all, devices filled one after the other (2020 paper, Section 7), and HEFT."""

from __future__ import annotations

import numpy as np

from dnnp.core.cost.latency import POOL, LatencyProblem, LatencySolution, Split
from dnnp.core.cost.load_formula import ROOM
from dnnp.core.latency.homes import split_of_homes
from dnnp.core.latency.lists.net import falling, net_of, upward_rank
from dnnp.core.latency.lists.schedule import (
    FULL,
    answer,
    attempts,
    by_first,
    inserted,
    list_schedule,
    memory_limits,
    repaired_answer,
    schedule_order,
)
from dnnp.core.model.errors import InfeasibleError, LimitError, UsageError
from dnnp.core.model.search_context import MethodOptions, SearchContext
from dnnp.core.model.text import shown_bytes


def single(problem: LatencyProblem, asked: MethodOptions, run: SearchContext) -> LatencySolution:
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
    return LatencySolution(schedule_order(net_of(problem), np.full(tasks.n, device), tasks.order))


def single_block(
    problem: LatencyProblem, asked: MethodOptions, run: SearchContext
) -> LatencySolution:
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


def greedy_operators(
    problem: LatencyProblem, asked: MethodOptions, run: SearchContext
) -> LatencySolution:
    """Fill accelerator after accelerator in topological order; CPUs take what is left.

    The greedy algorithm of the 2020 paper, for single tasks: an accelerator takes tasks, with
    their colours, as long as the next one fits. What an accelerator cannot run waits for one that
    can. Neither times nor transfers count. Where something is left that way, its place is looked
    for anew, and the method is called `greedy-repaired`.

    Raises
    ------
    UsageError
        An order is asked for, which greedy of blocks alone knows.
    """
    if asked.order != "best" or asked.sequence is not None:
        raise UsageError("--order and --sequence of method greedy are for --execution blocks")
    tasks, room = problem.tasks, memory_limits(problem)
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


def heft(problem: LatencyProblem, asked: MethodOptions, run: SearchContext) -> LatencySolution:
    """Tasks by falling upward rank, each on the device where it ends first, gaps included.

    Devices are chosen, as published, as if transfers did not wait for each other; the schedule
    is then followed under the congestion rule. A device that is full is not chosen, and colours
    stay with their first task. Where that leaves no place for a task, large ones are packed
    beforehand, and the method is called `heft-packed`. O(n D (degree + gaps)).
    """
    net, room = net_of(problem), memory_limits(problem)
    order = falling(net, upward_rank(net))
    alone = room.applied_to(net).without_waiting()
    for home in attempts(room, run):
        found = inserted(alone, order, home[net.together])
        if found is not None:
            placement = schedule_order(net, found[1].device, found[0])
            return answer((placement, bool((home >= 0).any())), "heft", run)
    raise LimitError(FULL)


def heft_congested(
    problem: LatencyProblem, asked: MethodOptions, run: SearchContext
) -> LatencySolution:
    """HEFT where devices are chosen under the congestion rule, without insertion.

    Transfers occupy their channels while the schedule is built (Sinnen and Sousa 2005).
    """
    net = net_of(problem)
    found = list_schedule(net, memory_limits(problem), upward_rank(net), by_end=True, run=run)
    return answer(found, "heft-congested", run)
