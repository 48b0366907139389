"""GETF: generalised earliest time first (Su, Ren, Vardi and Wierman 2020).

Devices of similar speed form groups, a linear program says which group suits each task, and tasks
are scheduled earliest start first on the devices of their group.

Tasks that are alike share their columns: classes of tasks of equal times and memory, split until
the tasks of a class have equally many predecessors and successors in every other class (colour
refinement). Averages over the classes of a solution of a linear program are again a solution, no
worse (Grohe, Kersting, Mladenov and Selman 2014): heads of attention side by side become one.

Where the program is too large, shares balance devices and the longest path without a solver:

    minimise over x   max( load of every device, longest path in mean times under x )

which is the same relaxation, by multiplicative weights (Freund and Schapire 1999): an adversary
puts weight on devices and on the path, and shares move away from what is weighted. The mean over
the rounds approaches the optimum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dnnp.core.cost.latency import LatencyProblem, LatencySolution, Tasks
from dnnp.core.kernels.kernel import kernel
from dnnp.core.latency.lists.net import FlowNet, mean_times, net_of, upward_rank
from dnnp.core.latency.lists.schedule import (
    MemoryLimits,
    answer,
    list_schedule,
    memory_limits,
    repaired_answer,
)
from dnnp.core.model.errors import LimitError
from dnnp.core.model.graph import Bools, Floats, Ints, csr, csr_lists
from dnnp.core.model.search_context import MethodOptions, SearchContext
from dnnp.core.solver.program import Outcome, Sparse, SparseProgram
from dnnp.core.solver.slices import ask_sparse

MOST_CHOICES = 80_000
"""Columns of shares up to which the program is solved."""

PATIENCE_S = 1200.0
"""Patience with the program; 80,000 columns take a minute or two."""

MILP_S = 60.0
"""Seconds of the program with whole tasks, at effort 1."""

TOLERANCE = 0.05
"""Speeds that differ by so little, relatively, are not told apart: they are means."""

ROUNDS = 200
"""Rounds of `fluid_shares` at effort 1."""

STEP = 4.0
"""Step of the first round; that of round k is smaller by the root of k."""

SOFTNESS = 0.02
"""Relative distance below the largest load or path within which others have weight."""


def getf(problem: LatencyProblem, asked: MethodOptions, run: SearchContext) -> LatencySolution:
    """Group assignment by the relaxed program, then earliest start first within the groups.

    Tasks leave their group only if all devices there are full. Where the program is too large, or
    the solver gives no answer in time, its solution is approximated (`fluid_shares`), and the
    method is called `getf-fluid`.
    """
    room, net = memory_limits(problem), net_of(problem)
    group, speed = groups_of(problem)
    share, why = _shares(problem, room, run)
    if why:
        rounds = max(1, round(ROUNDS * run.effort))
        share = fluid_shares(room.applied_to(net), rounds)[1]
    chosen = assigned(share, room.able, group, speed)
    preferred = group[:, None] == chosen[problem.tasks.together]
    level = upward_rank(net, moves=False)
    found = list_schedule(net, room, level, preferred=preferred, run=run)
    return answer(found, "getf", run, instead="getf-fluid", why=why)


def getf_milp(problem: LatencyProblem, asked: MethodOptions, run: SearchContext) -> LatencySolution:
    """Devices by the program with whole tasks, solved for at most 60 seconds times `effort`.

    The run is warned where that ended without a proof.

    Raises
    ------
    InfeasibleError
        It is proven that the tasks do not fit.
    LimitError
        The solver found nothing in time.
    """
    room = memory_limits(problem)
    program, column = program_of(problem, room, integer=True)
    seconds = MILP_S * run.effort
    outcome = ask_sparse(program, seconds=seconds, patience=seconds, run=run)
    share = _read(outcome, column)
    if share is None:
        raise LimitError("the program of GETF has no solution yet; try another method")
    if outcome.status != "optimal":
        run.warn(f"getf-milp: its program was ended after {seconds:g} s without a proof")
    return repaired_answer(problem, room, np.argmax(share, axis=0), "getf-milp", run)


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


def _shares(problem: LatencyProblem, room: MemoryLimits, run: SearchContext) -> tuple[Floats, str]:
    """Shares of the relaxed program, f64[D, c]; and why there are none."""
    program, column = program_of(problem, room, integer=False)
    columns = len(np.unique(column)) - bool((column < 0).any())
    if columns > MOST_CHOICES:
        return np.zeros(0), f"{columns} choices are too many for its linear program"
    share = _read(ask_sparse(program, patience=PATIENCE_S, run=run), column)
    if share is None:
        return np.zeros(0), "its linear program was not solved in time"
    return share, ""


def _read(outcome: Outcome, column: Ints) -> Floats | None:
    """Shares of a solution, f64[D, c], if there is one."""
    if outcome.values is None or outcome.status not in ("optimal", "feasible"):
        return None
    share: Floats = np.append(outcome.values, 0.0)[column]
    return share


def program_of(
    problem: LatencyProblem, room: MemoryLimits, *, integer: bool
) -> tuple[SparseProgram, Ints]:
    """The program of GETF, and its columns x, i64[D, c] (-1: none).

    With x the share of a colour on a device, p the time of a task and C its end:

        minimise  T
        sum over d of x_d,c = 1
        p_j = sum over d of time_d,j x_d,c(j)
        p_j <= C_j,  C_i + p_j <= C_j for every edge,  C_j <= T
        sum over j of time_d,j x_d,c(j) <= T    for every device
        memory of every device

    Transfers take no time in it, as published; times of single tasks stand for work over speed,
    and the rows for memory are an addition. Tasks that are `alike` share their columns and rows,
    unless they are whole (`integer`).
    """
    tasks = problem.tasks
    label = np.arange(tasks.n) if integer else alike(tasks)
    # Class of each colour, and one of its tasks and one of its colours for each class.
    kinds, task = np.unique(label, return_index=True)
    label = np.searchsorted(kinds, label)
    owner = np.zeros(room.able.shape[1], dtype=np.int64)
    alone = np.bincount(tasks.together, minlength=1)[tasks.together] == 1
    owner[tasks.together] = np.where(alone, label, len(kinds) + tasks.together)
    groups, color, owner = np.unique(owner, return_index=True, return_inverse=True)
    many = np.bincount(owner, minlength=len(groups))
    made = Sparse()
    share = np.full((len(room.able), len(groups)), -1, dtype=np.int64)
    on, group = np.nonzero(room.able[:, color])
    share[on, group] = made.columns(len(on), integer=integer)
    scale = float(mean_times(tasks.time).sum()) / max(tasks.n, 1) or 1.0
    _put_tasks(made, problem, label, task, share[:, owner[tasks.together[task]]], scale)
    last = made.width - 1
    made.put(made.rows(len(groups), 1.0, 1.0)[group], share[on, group], 1.0)
    row = made.rows(len(room.able), -np.inf, 0.0)
    made.put(row[on], share[on, group], room.work[on, color[group]] * many[group] / scale)
    made.put(row, last, -1.0)
    memory = room.memory[color] * many
    for d in np.flatnonzero(np.isfinite(room.limit)).tolist():
        mine = np.flatnonzero(room.able[d, color])
        if memory[mine].sum() > room.limit[d]:
            size = max(float(room.limit[d]), 1e-300)
            made.put(made.rows(1, -np.inf, 1.0), share[d, mine], memory[mine] / size)
    return made.program(), share[:, owner]


def _put_tasks(
    made: Sparse, problem: LatencyProblem, label: Ints, task: Ints, share: Ints, scale: float
) -> None:
    """Ends and times of classes of tasks, and the last end as the last column.

    `label` i64[n] has the class of each task, `task` i64[k] one of each class, `share` i64[D, k]
    the columns of its shares.
    """
    count = len(task)
    end, length = made.columns(count, np.inf), made.columns(count, np.inf)
    last = made.columns(1, np.inf, cost=1.0)
    on, k = np.nonzero(share >= 0)
    row = made.rows(count, 0.0, 0.0)
    made.put(row[k], share[on, k], problem.tasks.time[on, task[k]] / scale)
    made.put(row, length, -1.0)
    tail, head = problem.tasks.edges
    pairs = np.unique(label[tail] * count + label[head])
    row = made.rows(len(pairs), -np.inf, 0.0)
    made.put(row, end[pairs // count], 1.0)
    made.put(row, length[pairs % count], 1.0)
    made.put(row, end[pairs % count], -1.0)
    row = made.rows(count, -np.inf, 0.0)
    made.put(row, length, 1.0)
    made.put(row, end, -1.0)
    row = made.rows(count, -np.inf, 0.0)
    made.put(row, end, 1.0)
    made.put(row, last, -1.0)


def alike(tasks: Tasks) -> Ints:
    """Class of each task, i64[n]; tasks that share a device with others have one of their own.

    Sweeps along the graph, to and fro, until one splits nothing: O(n + e) dictionary steps each.
    """
    tail, head = tasks.edges
    before, after = (csr_lists(*csr(a, b, tasks.n)) for a, b in ((head, tail), (tail, head)))
    order = tasks.order.tolist()
    kinds = np.column_stack([tasks.time.T, tasks.memory, tasks.backward])
    label = np.unique(kinds, axis=0, return_inverse=True)[1].reshape(-1)
    bound = np.bincount(tasks.together, minlength=tasks.n)[tasks.together] > 1
    label[bound] = tasks.n + np.flatnonzero(bound)
    current, count, found = label.tolist(), -1, 0
    while found != count:
        count = found
        current, found = _sweep(current, before, order)
        before, after, order = after, before, order[::-1]
    return np.array(current, dtype=np.int64)


def _sweep(
    label: list[int], near: Sequence[Sequence[int]], order: Sequence[int]
) -> tuple[list[int], int]:
    """Split classes by the classes of neighbours on one side; classes, and how many."""
    numbers: dict[tuple[int, ...], int] = {}
    new = [0] * len(label)
    for v in order:
        key = (label[v], *sorted(new[u] for u in near[v]))
        new[v] = numbers.setdefault(key, len(numbers))
    return new, len(numbers)


@kernel
def fluid_shares(net: FlowNet, rounds: int) -> tuple[float, Floats]:
    """Value, and the share of each colour on each device, f64[D, c].

    Memory beyond what a device holds weighs like load. O(rounds * (edges + n D)).
    """
    able, memory, limit = net.allowed, net.bytes, net.capacity
    count, devices = able.shape
    n = len(net.order)
    score, mean = np.zeros((devices, count)), np.zeros((devices, count))
    share = np.zeros((devices, count))
    # Time of a colour where it is fastest: prices are compared with that.
    least = np.full(count, 0.0)
    total = np.zeros((devices, count))
    for v in range(n):
        for d in range(devices):
            total[d, net.together[v]] += net.time[v, d]
    for c in range(count):
        best = np.inf
        for d in range(devices):
            if able[c, d]:
                best = min(best, total[d, c])
        least[c] = best
    work, end = np.zeros(n), np.zeros(n)
    before = np.full(n, -1, dtype=np.int64)
    load, held, weight = np.zeros(devices), np.zeros(devices), np.zeros(devices)
    on_path = np.zeros(count)
    value = np.inf
    for k in range(1, rounds + 2):
        last = k == rounds + 1
        for c in range(count):
            high = -np.inf
            for d in range(devices):
                if able[c, d]:
                    high = max(high, score[d, c])
            whole = 0.0
            for d in range(devices):
                share[d, c] = math.exp(score[d, c] - high) if able[c, d] else 0.0
                whole += share[d, c]
            for d in range(devices):
                share[d, c] /= whole
                if not last:
                    mean[d, c] += share[d, c]
                else:
                    share[d, c] = mean[d, c] / rounds
        load[:] = 0.0
        held[:] = 0.0
        for c in range(count):
            for d in range(devices):
                if share[d, c] > 0.0:
                    load[d] += share[d, c] * total[d, c]
                    held[d] += share[d, c] * memory[c]
        longest, tip = 0.0, -1
        for v in net.order:
            c = net.together[v]
            work[v] = 0.0
            for d in range(devices):
                if share[d, c] > 0.0:
                    work[v] += share[d, c] * net.time[v, d]
            begin = 0.0
            before[v] = -1
            for a in range(net.in_ptr[v], net.in_ptr[v + 1]):
                u = net.maker[net.in_idx[a]]
                if end[u] > begin:
                    begin = end[u]
                    before[v] = u
            end[v] = begin + work[v]
            if end[v] > longest:
                longest, tip = end[v], v
        top = longest
        for d in range(devices):
            top = max(top, load[d])
        if last:
            value = top
            break
        if top <= 0.0:
            continue
        path = math.exp((longest - top) / (SOFTNESS * top))
        whole = path
        for d in range(devices):
            full = load[d]
            if held[d] > limit[d]:
                full = max(full, top * held[d] / limit[d])
            weight[d] = math.exp(min(full - top, top) / (SOFTNESS * top))
            whole += weight[d]
        on_path[:] = 0.0
        while tip >= 0:
            on_path[net.together[tip]] = 1.0
            tip = before[tip]
        step = STEP / np.sqrt(k)
        for c in range(count):
            if least[c] <= 0.0:
                continue
            for d in range(devices):
                if able[c, d]:
                    price = (weight[d] + path * on_path[c]) / whole
                    score[d, c] -= step * price * total[d, c] / least[c]
    return value, share
