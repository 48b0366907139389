"""Favourite children: whom a task would have run right after it, on its own device.

The program of Hanen and Munier (1995), as Baechi uses it (Jeon et al. 2020). With
p the time of a task, c that of what goes over an edge and x 0 for the edge to a favourite child,
1 for all others:

    minimise  w
    start_i + p_i + c_ij x_ij <= start_j         for every edge
    sum over j of x_ij >= successors of i - 1    a task has at most one favourite child
    sum over i of x_ij >= predecessors of j - 1  and is that of at most one other
    start_i + p_i <= w

The relaxation is rounded: a child is a favourite if its x is below 1/2; no two of one task are.
"""

from __future__ import annotations

import numpy as np

from dnnp.core.cost.latency import LatencyProblem
from dnnp.core.latency.lists.net import edge_moves, mean_times, net_of, upward_rank
from dnnp.core.mip.ask import ask
from dnnp.core.mip.program import Program
from dnnp.core.model.graph import Ints
from dnnp.core.model.run import PLAIN, Run

MOST_EDGES = 20_000
"""Edges up to which the program is solved."""

PATIENCE_S = 60.0

THRESHOLD = 0.5


def favourite_children(problem: LatencyProblem, run: Run = PLAIN) -> tuple[Ints, bool]:
    """The favourite child of each task, or -1, i64[n]; and whether the relaxation says so.

    Where that is too large, or has no answer in time, they are found greedily, see
    `greedy_children`.
    """
    found = None
    if len(problem.tasks.edges[0]) <= MOST_EDGES:
        found = relaxed_children(problem, run)
    return (greedy_children(problem), False) if found is None else (found, True)


def relaxed_children(problem: LatencyProblem, run: Run = PLAIN) -> Ints | None:
    """The favourite children that the relaxation gives; None: no answer in time."""
    n = problem.tasks.n
    tail, head, move = edge_moves(problem)
    child = np.full(n, -1, dtype=np.int64)
    if not len(tail):
        return child
    work = mean_times(problem.tasks.time)
    # Not by the longest path: what single edges save must stay above the solver's tolerance.
    scale = float(np.mean([*work, *move])) or 1.0
    program = Program()
    edges = len(tail)
    for _ in range(edges):
        program.column(1.0)
    for _ in range(n):
        program.column(np.inf)
    end = program.column(np.inf, cost=1.0)
    away: list[list[int]] = [[] for _ in range(n)]
    come: list[list[int]] = [[] for _ in range(n)]
    for e, (i, j, c) in enumerate(zip(tail.tolist(), head.tolist(), move.tolist(), strict=True)):
        program.row([edges + i, edges + j, e], [1.0, -1.0, c / scale], "<", -float(work[i]) / scale)
        away[i].append(e)
        come[j].append(e)
    for mine in away + come:
        if len(mine) > 1:
            program.row(mine, [1.0] * len(mine), ">", len(mine) - 1.0)
    for i in range(n):
        if not away[i]:
            program.row([edges + i, end], [1.0, -1.0], "<", -float(work[i]) / scale)
    outcome = ask(program, patience=PATIENCE_S, run=run)
    if outcome.status != "optimal" or outcome.values is None:
        return None
    x = np.array(outcome.values[:edges])
    # Exact ties at 1/2 are out, so that rounding keeps both sums.
    for e in np.flatnonzero(x < THRESHOLD - 1e-6).tolist():
        child[tail[e]] = head[e]
    return child


def greedy_children(problem: LatencyProblem) -> Ints:
    """Favourite children without a program; i64[n].

    Edges by what the longest path over them saves when they are free: of the longest paths (mean
    work, transfers and the rest of the path), those with the longest transfer first, as long as
    both ends are without a partner. O(edges log edges).
    """
    n = problem.tasks.n
    tail, head, move = edge_moves(problem)
    rank = upward_rank(problem, net_of(problem))
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
