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
from dnnp.core.mip.ask import ask_sparse
from dnnp.core.mip.sparse import Sparse, SparseProgram
from dnnp.core.model.graph import Floats, Ints
from dnnp.core.model.run import PLAIN, Run

MOST_EDGES = 250_000
"""Edges up to which the program is solved."""

PATIENCE_S = 1200.0
"""How long it may take; 200,000 edges of a random graph take some minutes."""

THRESHOLD = 0.5


def favourite_children(problem: LatencyProblem, run: Run = PLAIN) -> tuple[Ints, str]:
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


def relaxed_children(problem: LatencyProblem, run: Run = PLAIN) -> Ints | None:
    """The favourite children that the relaxation gives; None: no answer in time."""
    child = np.full(problem.tasks.n, -1, dtype=np.int64)
    tail, head, move = edge_moves(problem)
    if not len(tail):
        return child
    program = program_of(mean_times(problem.tasks.time), tail, head, move)
    outcome = ask_sparse(program, patience=PATIENCE_S, run=run)
    if outcome.status != "optimal" or outcome.values is None:
        return None
    x = np.array(outcome.values[: len(tail)])
    # Exact ties at 1/2 are out, so that rounding keeps both sums.
    near = x < THRESHOLD - 1e-6
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
