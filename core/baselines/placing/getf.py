"""GETF: generalised earliest time first (Su, Ren, Vardi and Wierman 2020).

Devices of similar speed form groups, a linear program says which group suits each task, and tasks
are scheduled earliest start first on the devices of their group.
"""

from __future__ import annotations

import math

import numpy as np

from dnnp.core.baselines.placing.fluid import fluid_shares
from dnnp.core.cost.latency import LatencyProblem, LatencySolution
from dnnp.core.latency.lists.net import mean_times, net_of, upward_rank
from dnnp.core.latency.lists.room import Room, repaired, room_of
from dnnp.core.latency.lists.schedule import approximated, list_schedule, schedule_homes
from dnnp.core.mip.ask import ask
from dnnp.core.mip.program import Program
from dnnp.core.model.asked import Asked
from dnnp.core.model.errors import LimitError
from dnnp.core.model.graph import Bools, Floats, Ints
from dnnp.core.model.run import Run

MOST_CHOICES = 8_000
"""Colours times devices up to which the program is solved."""

PATIENCE_S = 60.0

TOLERANCE = 0.05
"""Speeds that differ by so little, relatively, are not told apart: they are means."""

ROUNDS = 200
"""Of `fluid_shares`, at effort 1."""


def getf(problem: LatencyProblem, asked: Asked, run: Run) -> LatencySolution:
    """Group assignment by the relaxed program, then earliest start first within the groups.

    Tasks leave their group only if all devices there are full. Where the program is too large, or
    the solver gives no answer in time, its solution is approximated (`fluid_shares`), and the
    method is called `getf-fluid`.

    Raises
    ------
    InfeasibleError, LimitError
        It is proven, or just so, that the tasks do not fit.
    """
    room = room_of(problem)
    group, speed = groups_of(problem)
    share, solved = None, True
    if room.able.size <= MOST_CHOICES:
        share = _solved(problem, room, integer=False, seconds=PATIENCE_S, run=run)
    if share is None:
        rounds = max(1, round(ROUNDS * run.effort))
        share = fluid_shares(net_of(problem), room.able, room.memory, room.limit, rounds)[1]
        solved = False
    chosen = assigned(share, room.able, group, speed)
    preferred = group[:, None] == chosen[problem.tasks.together]
    level = upward_rank(problem, net_of(problem), moves=False)
    found = list_schedule(problem, room, level, preferred=preferred, run=run)
    return LatencySolution(found) if solved else approximated(found, "getf", "getf-fluid", run)


def getf_milp(problem: LatencyProblem, asked: Asked, run: Run) -> LatencySolution:
    """Devices by the program with whole tasks, solved for at most 60 seconds times `effort`.

    Raises
    ------
    InfeasibleError
        It is proven that the tasks do not fit.
    LimitError
        The solver found nothing in time.
    """
    room = room_of(problem)
    share = _solved(problem, room, integer=True, seconds=PATIENCE_S * run.effort, run=run)
    if share is None:
        raise LimitError("the program of GETF has no solution yet; try another method")
    home = repaired(room, np.argmax(share, axis=0), run)
    return LatencySolution(schedule_homes(problem, home[problem.tasks.together]))


def groups_of(problem: LatencyProblem) -> tuple[Ints, Floats]:
    """Group of each device, i64[D], slow ones first, and its speed, f64[D].

    The speed is the mean time of the tasks that a device runs over its own time for them. With
    the slowest device at 1, group k holds the speeds from g^k to g^(k+1), g = log m / log log m
    for m devices, but at least 2. Devices more than m times slower than the fastest are in
    group -1.
    """
    time = problem.tasks.time
    count = len(time)
    mean, able = mean_times(time), np.isfinite(time)
    own = np.where(able, time, 0.0).sum(axis=1)
    usual = np.where(able, mean, 0.0).sum(axis=1)
    speed = np.where(own > 0, usual / np.where(own > 0, own, 1.0), 1.0)
    speed = np.where(speed > 0, speed, 1.0)
    kept = speed * count >= speed.max() * (1 - TOLERANCE)
    base = 2.0
    if count > 4:
        base = max(base, math.log2(count) / math.log2(math.log2(count)))
    ratio = np.log(speed / speed[kept].min()) / math.log(base)
    group = np.where(kept, np.floor(ratio + TOLERANCE), -1.0)
    return group.astype(np.int64), speed


def assigned(share: Floats, able: Bools, group: Ints, speed: Floats) -> Ints:
    """Group of each colour, i64[c], given its shares on the devices, f64[D, c].

    Of the groups that are no slower than the one at which the shares, from fast to slow, reach
    one half, the one with the largest total speed of devices that are able.
    """
    count = share.shape[1]
    chosen = np.full(count, -1, dtype=np.int64)
    running = np.zeros(count)
    most = np.full(count, -1.0)
    for k in range(int(group.max(initial=0)), -2, -1):
        mine = group == k
        if not mine.any():
            continue
        total = (speed[mine, None] * able[mine]).sum(axis=0)
        # Faster groups have been seen already and held less than one half.
        better = (running < 0.5 - 1e-9) & (total > most)
        chosen[better] = k
        most[better] = total[better]
        running += share[mine].sum(axis=0)
    return chosen


def _solved(
    problem: LatencyProblem,
    room: Room,
    *,
    integer: bool,
    seconds: float,
    run: Run,
) -> Floats | None:
    """Shares of the program, f64[D, c]; None: the solver has no solution."""
    program, column = program_of(problem, room, integer=integer)
    outcome = ask(program, seconds=seconds if integer else None, patience=seconds, run=run)
    if outcome.values is None or outcome.status not in ("optimal", "feasible"):
        return None
    share: Floats = np.append(outcome.values, 0.0)[column]
    return share


def program_of(problem: LatencyProblem, room: Room, *, integer: bool) -> tuple[Program, Ints]:
    """The program of GETF, and its columns x, i64[D, c] (-1: none).

    With x the share of a colour on a device, p the time of a task and C its end:

        minimise  T
        sum over d of x_d,c = 1
        p_j = sum over d of time_d,j x_d,c(j)
        p_j <= C_j,  C_i + p_j <= C_j for every edge,  C_j <= T
        sum over j of time_d,j x_d,c(j) <= T    for every device
        memory of every device

    Transfers take no time in it, as published; times of single tasks stand for work over speed,
    and the rows for memory are an addition.
    """
    tasks = problem.tasks
    program = Program()
    column = np.full(room.able.shape, -1, dtype=np.int64)
    for d, c in np.argwhere(room.able).tolist():
        column[d, c] = program.column(integer=integer)
    scale = float(mean_times(tasks.time).sum()) / max(tasks.n, 1) or 1.0
    end = [program.column(np.inf) for _ in range(tasks.n)]
    length = [program.column(np.inf) for _ in range(tasks.n)]
    last = program.column(np.inf, cost=1.0)
    for c in range(room.able.shape[1]):
        mine = column[room.able[:, c], c].tolist()
        program.row(mine, [1.0] * len(mine), "=", 1.0)
    for j, c in enumerate(tasks.together.tolist()):
        on = np.flatnonzero(room.able[:, c])
        times = (tasks.time[on, j] / scale).tolist()
        program.row([*column[on, c].tolist(), length[j]], [*times, -1.0], "=", 0.0)
        program.row([length[j], end[j]], [1.0, -1.0], "<", 0.0)
        program.row([end[j], last], [1.0, -1.0], "<", 0.0)
    for i, j in zip(*(x.tolist() for x in tasks.edges), strict=True):
        program.row([end[i], length[j], end[j]], [1.0, 1.0, -1.0], "<", 0.0)
    for d in range(len(column)):
        on = np.flatnonzero(room.able[d])
        program.row(
            [*column[d, on].tolist(), last], [*(room.work[d, on] / scale).tolist(), -1.0], "<", 0.0
        )
        if math.isfinite(room.limit[d]) and room.memory[on].sum() > room.limit[d]:
            size = max(float(room.limit[d]), 1e-300)
            program.row(column[d, on].tolist(), (room.memory[on] / size).tolist(), "<", 1.0)
    return program, column
