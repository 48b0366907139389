"""The three placers of Baechi (Jeon et al. 2020): m-TOPO, m-ETF and m-SCT.

m-SCT knows favourite children: the best successor to run right after a task, on its device. They
come from the program of Hanen and Munier (1995). With p the time of a task, c that of what goes
over an edge and x 0 for the edge to a favourite child, 1 for all others:

    minimise  w
    start_i + p_i + c_ij x_ij <= start_j         for every edge
    sum over j of x_ij >= successors of i - 1    a task has at most one favourite child
    sum over i of x_ij >= predecessors of j - 1  and is that of at most one other
    start_i + p_i <= w

The relaxation is rounded: a child is a favourite if its x is below 1/2; no two of one task are.
"""

from __future__ import annotations

import numpy as np

from dnnp.core.cost.latency import LatencyProblem, LatencySolution
from dnnp.core.cost.load_formula import ROOM
from dnnp.core.latency.lists.net import edge_moves, mean_times, net_of, upward_rank
from dnnp.core.latency.lists.schedule import (
    answer,
    by_first,
    list_schedule,
    memory_limits,
    repaired_answer,
)
from dnnp.core.model.graph import Floats, Ints, totals
from dnnp.core.model.search_context import PLAIN, MethodOptions, SearchContext
from dnnp.core.solver.program import Sparse, SparseProgram
from dnnp.core.solver.slices import ask_sparse

MOST_EDGES = 250_000
"""Edges up to which the program is solved."""

PATIENCE_S = 1200.0
"""Patience with the program; 200,000 edges of a random graph take some minutes."""


def favourite_children(problem: LatencyProblem, run: SearchContext = PLAIN) -> tuple[Ints, str]:
    """The favourite child of each task, or -1, i64[n]; and why the relaxation does not say so.

    Where that is too large, or has no answer in time, they are found greedily, see
    `greedy_children`. Otherwise the reason is empty.
    """
    edges = len(problem.tasks.edges[0])
    if edges > MOST_EDGES:
        return greedy_children(problem), f"{edges} edges are too many for its linear program"
    found = relaxed_children(problem, run)
    if found is None:
        return greedy_children(problem), "its linear program was not solved in time"
    return found, ""


def relaxed_children(problem: LatencyProblem, run: SearchContext = PLAIN) -> Ints | None:
    """The favourite children that the relaxation gives; None: no answer in time."""
    child = np.full(problem.tasks.n, -1, dtype=np.int64)
    tail, head, move = edge_moves(net_of(problem))
    if not len(tail):
        return child
    program = program_of(mean_times(problem.tasks.time), tail, head, move)
    outcome = ask_sparse(program, patience=PATIENCE_S, run=run)
    if outcome.status != "optimal" or outcome.values is None:
        return None
    x = np.array(outcome.values[: len(tail)])
    # Exact ties at 1/2 are out, so that rounding keeps both sums.
    near = x < 0.5 - 1e-6
    child[tail[near]] = head[near]
    return child


def program_of(work: Floats, tail: Ints, head: Ints, move: Floats) -> SparseProgram:
    """The relaxation: columns are x of each edge, the start of each task, and w.

    `work` f64[n] has the tasks' times, `move` f64[e] those of what goes over the edges.
    """
    n = len(work)
    # Not by the longest path: what single edges save must stay above the solver's tolerance.
    scale = float(np.mean([*work, *move])) or 1.0
    made = Sparse()
    x, start = made.columns(len(tail)), made.columns(n, np.inf)
    end = made.columns(1, np.inf, cost=1.0)
    row = made.rows(len(tail), -np.inf, -work[tail] / scale)
    made.put(row, start[tail], 1.0)
    made.put(row, start[head], -1.0)
    made.put(row, x, move / scale)
    for at in (tail, head):
        degree = np.bincount(at, minlength=n)
        several = np.flatnonzero(degree > 1)
        number = np.zeros(n, dtype=np.int64)
        number[several] = made.rows(len(several), degree[several] - 1.0, np.inf)
        mine = degree[at] > 1
        made.put(number[at[mine]], x[mine], 1.0)
    last = np.setdiff1d(np.arange(n), tail)
    row = made.rows(len(last), -np.inf, -work[last] / scale)
    made.put(row, start[last], 1.0)
    made.put(row, end, -1.0)
    return made.program()


def greedy_children(problem: LatencyProblem) -> Ints:
    """Favourite children without a program; i64[n].

    Edges by what the longest path over them saves when they are free: of the longest paths (mean
    work, transfers and the rest of the path), those with the longest transfer first, as long as
    both ends are without a partner. O(edges log edges).
    """
    n, net = problem.tasks.n, net_of(problem)
    tail, head, move = edge_moves(net)
    rank = upward_rank(net)
    child = np.full(n, -1, dtype=np.int64)
    taken = np.zeros(n, dtype=np.bool_)
    through = move + rank[head]
    order = np.lexsort((head, tail, -move, -through))
    for e in order.tolist():
        i, j = int(tail[e]), int(head[e])
        if child[i] < 0 and not taken[j]:
            child[i] = j
            taken[j] = True
    return child


def m_topo(problem: LatencyProblem, asked: MethodOptions, run: SearchContext) -> LatencySolution:
    """Fill device after device in topological order, each up to a share of the memory.

    The share is the mean over the devices plus the largest task, and at most what
    the device holds; where nothing needs memory, times take its place. A colour goes where its
    first task goes. What the device at hand does not run is passed over, and goes wherever it fits
    in the end; where something else is left then, the method is called `m-topo-repaired`.
    """
    tasks, room = problem.tasks, memory_limits(problem)
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


def m_etf(problem: LatencyProblem, asked: MethodOptions, run: SearchContext) -> LatencySolution:
    """Earliest start time first, on devices that are not full.

    Of equal starts the task with the highest static level (longest path of work) goes first. A
    transfer waits for its channel while the schedule is built, as in Baechi's own queues.
    """
    net = net_of(problem)
    level = upward_rank(net, moves=False)
    return answer(list_schedule(net, memory_limits(problem), level, run=run), "m-etf", run)


def m_sct(problem: LatencyProblem, asked: MethodOptions, run: SearchContext) -> LatencySolution:
    """Small communication times: m-ETF that keeps favourite children near.

    A device waits for the favourite child of its last task, if that is ready and starts nowhere
    earlier, and runs only urgent tasks meanwhile. See `favourite_children`; without
    the relaxation the method is called `m-sct-greedy`.
    """
    room, net = memory_limits(problem), net_of(problem)
    child, why = favourite_children(problem, run)
    level = upward_rank(net, moves=False)
    found = list_schedule(net, room, level, favourite=child, run=run)
    return answer(found, "m-sct", run, instead="m-sct-greedy", why=why)
