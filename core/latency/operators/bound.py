"""Lower bounds of latency where every task is placed by itself (`operators`).

All of them ignore that transfers wait for each other, and colours but for the devices that
support all of one:

    critical path    longest way through the graph, every task on the device that suits it best,
                     transfers between different devices included
    area             no device has time for more than the latency, nor memory for more than it
                     has: a linear program over fractional placements
    memory path      a way through the graph where devices have a price for memory
                     (Lagrange multipliers of the capacities)
    windows          critical path where tasks are as far apart as all between them need, and
                     tasks crowd into what is left between earliest starts and latest ends

`upper` sharpens the last: no placement below it uses certain devices for certain tasks.
"""

from __future__ import annotations

import numpy as np

from dnnp.core.cost.latency import LatencyProblem
from dnnp.core.cost.load_formula import ROOM
from dnnp.core.latency.operators.kernel import ListBoard, make_board
from dnnp.core.latency.operators.window import crowded, exclude, heads, spread, tails
from dnnp.core.model.errors import InfeasibleError
from dnnp.core.model.graph import Bools, Floats, Ints, distinct
from dnnp.core.model.search_context import PLAIN, Run

WINDOW = 64
"""Positions that a window spans, at most."""

MOST_WORK = 1.5e9
"""Steps that one pass over the windows may take, roughly."""

TRIALS = 6
"""Latencies to refute, at most."""

HIGH, CLOSE = 1.5, 1e-3
"""Latency to try first, over the bound so far, where none is known; relative distance that is
close enough."""

PASSES = 3
"""Passes over the windows, at most."""

POINTS = 400
"""Earliest starts to look at for crowds, at most."""

MOST_PROGRAM = 400_000
"""Tasks times devices of the linear program."""

SAFE = 1 - 1e-11
"""Factor of every bound that is computed in floating point."""


def operators_bound(
    problem: LatencyProblem, *, upper: float = np.inf, run: Run = PLAIN
) -> tuple[float, str]:
    """Best lower bound of the latency of a placement, and its name.

    Parameters
    ----------
    upper
        Latency of a placement that is known. The bound is at most that.

    Raises
    ------
    InfeasibleError
        A colour that no device supports or holds.
    """
    if problem.tasks.n == 0:
        return 0.0, "critical path"
    board = make_board(problem)
    usable = board.allowed[board.together]
    if not usable.any(axis=1).all():
        v = int(np.flatnonzero(~usable.any(axis=1))[0])
        raise InfeasibleError(f"infeasible: no device supports and holds task {v} and its colour")
    n, count = board.time.shape
    order = problem.tasks.order
    place = np.empty(n, dtype=np.int64)
    place[order] = np.arange(n)
    none, never = np.zeros((n, 1, count, count)), np.zeros((n, 1), dtype=np.bool_)
    head, tail = np.zeros((n, count)), board.tail.copy()
    heads(board, order, place, none, never, usable, head)
    found = [(float(exclude(usable.copy(), head, tail, np.inf)), "critical path")]
    area, prices, weights = _area(problem, board, usable)
    found.append((area, "area"))
    if not run.stop() and (prices > 0).any():
        found.append((_memory_path(board, order, place, usable, prices), "memory path"))
    if not run.stop():
        least = max(found)[0]
        found.append(
            (
                _destroyed(board, order, place, usable, head, tail, weights, least, upper, run),
                "windows",
            )
        )
    value, name = max(found, key=lambda x: x[0])
    if name == "windows" and value <= max(found[:-1])[0] * (1 + 1e-9):
        value, name = max(found[:-1], key=lambda x: x[0])
    return min(value * SAFE, upper), name


def _destroyed(
    board: ListBoard,
    order: Ints,
    place: Ints,
    usable: Bools,
    head: Floats,
    tail: Floats,
    weights: Floats,
    least: float,
    upper: float,
    run: Run,
) -> float:
    """Best bound by windows among several latencies that may or may not be refuted.

    For any T, every latency is at least T or what windows prove about those below T.
    """
    high = upper if upper < np.inf else HIGH * least
    value, tried = least, high
    for trial in range(TRIALS):
        part = run.begin("bounding", trial / TRIALS, (trial + 1) / TRIALS)
        proven = _windows(
            board, order, place, usable, head.copy(), tail.copy(), weights, tried, part
        )
        value = max(value, proven)
        run.stands(bound=min(value, upper) * SAFE, by="windows")
        if proven < tried:
            high = min(high, tried)
        if run.stop() or value >= high * (1 - CLOSE):
            break
        tried = (value + high) / 2
    return min(value, upper)


def _windows(
    board: ListBoard,
    order: Ints,
    place: Ints,
    usable: Bools,
    head: Floats,
    tail: Floats,
    weights: Floats,
    upper: float,
    run: Run,
) -> float:
    """Bound by windows; as far as it came when it was stopped."""
    n, count = usable.shape
    usable = usable.copy()
    size = int((MOST_WORK * run.effort / (n * count**3 * len(weights))) ** 0.5)
    size = max(2, min(WINDOW, size, n))
    value = 0.0
    for number in range(PASSES):
        before = int(usable.sum()), value
        value = max(value, float(exclude(usable, head, tail, upper)))
        if not usable.any(axis=1).all():
            return upper
        value = max(value, _crowds(board, usable, head, tail, weights, upper))
        gap = np.full((n, size, count, count), np.inf)
        reach = np.zeros((n, size), dtype=np.bool_)
        for i in range(n - 1, -1, -1):
            spread(board, order, place, weights, usable, head, tail, upper, gap, reach, i)
            if i % 16 == 0:
                run.stands(share=(number + 1 - i / n) / PASSES)
                if run.stop():
                    return min(value, upper)
        heads(board, order, place, gap, reach, usable, head)
        tails(board, order, place, gap, reach, usable, tail)
        value = max(value, float(exclude(usable, head, tail, upper)))
        if not usable.any(axis=1).all():
            return upper
        value = max(value, _crowds(board, usable, head, tail, weights, upper))
        if value >= upper or (int(usable.sum()), value) == before:
            break
    return min(value, upper)


def _crowds(
    board: ListBoard, usable: Bools, head: Floats, tail: Floats, weights: Floats, upper: float
) -> float:
    """Bound by tasks that have to fit between a time and another one."""
    soon = np.where(usable, head - board.time, np.inf).min(axis=1)
    rest = np.where(usable, tail, np.inf).min(axis=1)
    at = distinct(soon)
    at = at[distinct(np.linspace(0, len(at) - 1, POINTS).astype(np.int64))]
    order = np.lexsort((np.arange(len(rest)), -rest))
    return float(crowded(board, usable, weights, head, tail, upper, at, order))


def _area(problem: LatencyProblem, board: ListBoard, usable: Bools) -> tuple[float, Floats, Floats]:
    """Area bound; prices of memory f64[D] (time per byte); weights of devices f64[k, D].

    The bound is computed from the prices, so that it holds however exact the program was solved.
    """
    n, count = board.time.shape
    memory = problem.tasks.memory
    limited = np.isfinite(board.capacity)
    time = np.where(usable, board.time, np.inf)
    typical = np.where(usable, board.time, 0.0).sum(axis=0) / np.maximum(usable.sum(axis=0), 1)
    speed = 1 / np.maximum(typical, 1e-300)
    rank = np.argsort(-speed, kind="stable")
    weights = [np.where(np.isin(np.arange(count), rank[: k + 1]), speed, 0.0) for k in range(count)]
    prices = np.zeros(count)
    best = 0.0
    if n * count <= MOST_PROGRAM:
        dual = _program(time, memory, np.where(limited, problem.machine.capacity, np.inf))
        if dual is not None:
            weights.append(dual[0])
            total = float(dual[0].sum())
            if total > 0:
                prices = dual[1] / total
    for weight in weights:
        total = float(weight.sum())
        if total > 0 and np.isfinite(total):
            best = max(best, float((weight[None] / total * time_of(time)).min(axis=1).sum()))
    if (prices > 0).any():
        weight = weights[-1] / float(weights[-1].sum())
        cost = np.where(usable, weight * time_of(time) + prices * memory[:, None], np.inf)
        charge = float((prices[limited] * problem.machine.capacity[limited]).sum())
        best = max(best, float(cost.min(axis=1).sum()) - charge * ROOM)
    kept = [w / float(w.sum()) for w in weights if 0 < float(w.sum()) < np.inf]
    return best, prices, np.unique(np.array(kept), axis=0)


def time_of(time: Floats) -> Floats:
    """Times with a huge number for what is unsupported, so that weight 0 stays 0 there too."""
    result: Floats = np.where(np.isfinite(time), time, 1e300)
    return result


def _program(time: Floats, memory: Floats, capacity: Floats) -> tuple[Floats, Floats] | None:
    """Dual prices of time f64[D] and of memory f64[D] of the fractional placement, if there is one.

    Minimise T where task j is on device d to the part x(j, d): parts of a task sum to 1, times on
    each device to T at most, memory on each to its capacity.
    """
    from scipy.optimize import linprog
    from scipy.sparse import coo_array, hstack, vstack

    n, count = time.shape
    task, device = np.nonzero(np.isfinite(time))
    columns = np.arange(len(task))
    shape = (count, len(task))
    loads = coo_array((time[task, device], (device, columns)), shape=shape)
    bytes_ = coo_array((memory[task], (device, columns)), shape=shape).tocsr()
    limited = np.flatnonzero(np.isfinite(capacity))
    latest = coo_array((-np.ones(count), (np.arange(count), np.zeros(count, np.int64))))
    zero = coo_array((max(len(limited), 1), 1))
    above = hstack([loads, latest])
    limit = np.zeros(count)
    if len(limited):
        above = vstack([above, hstack([bytes_[limited], zero])])
        limit = np.concatenate([limit, capacity[limited]])
    once = hstack(
        [coo_array((np.ones(len(task)), (task, columns)), shape=(n, len(task))), coo_array((n, 1))]
    )
    cost = np.zeros(len(task) + 1)
    cost[-1] = 1.0
    done = linprog(
        cost,
        A_ub=above.tocsr(),
        b_ub=limit,
        A_eq=once.tocsr(),
        b_eq=np.ones(n),
        bounds=(0, None),
        method="highs",
    )
    if done.status != 0:
        return None
    dual = np.maximum(-done.ineqlin.marginals, 0.0)
    prices = np.zeros(count)
    prices[limited] = dual[count:]
    return dual[:count], prices


def _memory_path(
    board: ListBoard, order: Ints, place: Ints, usable: Bools, prices: Floats
) -> float:
    """Longest way where a task also pays for memory, less what the capacities are worth.

    The way to the last task visits some tasks of each device, which fit; so what it pays is at
    most capacities times prices, for all prices of zero or more.
    """
    n, count = board.time.shape
    members = np.maximum(np.bincount(board.together, minlength=len(board.bytes)), 1)
    # A colour counts once: its memory is shared evenly by its tasks, of which a way visits some.
    memory = (board.bytes / members)[board.together]
    none, never = np.zeros((n, 1, count, count)), np.zeros((n, 1), dtype=np.bool_)
    capacity = np.where(np.isfinite(board.capacity), board.capacity, 0.0)
    best = 0.0
    for scale in np.geomspace(1 / 64, 8, 19).tolist():
        paid = board._replace(time=board.time + scale * prices * memory[:, None])
        head = np.zeros((n, count))
        heads(paid, order, place, none, never, usable, head)
        longest = float(np.where(usable, head, np.inf).min(axis=1).max())
        best = max(best, longest - scale * float((prices * capacity).sum()))
    return best
