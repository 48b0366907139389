"""Windows and areas: lower bounds of latency where every task is placed by itself.

Windows: positions are those of a topological order. For a task u, a descendant v at most W
positions later, and devices a, b of the two, `gap` is a lower bound of the time from the end of u
on a to the start of v on b: the larger of two bounds. One is the longest path between them, every
task of it on the device that suits it best. The other is the work of all tasks S between them: for
weights w >= 0, if task j of S takes time t(j, d) on device d, and no task of S can start there
sooner than h(d) after u, nor end later than r(d) before v,

    sum over j of min over d of w(d) t(j, d) <= sum over d of w(d) (T - h(d) - r(d))

where j may use d only if path to, time and path from there fit into T together. A T for which this
fails is impossible. Devices that no schedule below `upper` can use do not count anywhere.
"""

from __future__ import annotations

import numpy as np

from dnnp.core.cost.latency import LatencyProblem
from dnnp.core.cost.load_formula import ROOM
from dnnp.core.kernels.kernel import inlined, kernel, lean
from dnnp.core.latency.lists.net import FlowNet, move_time
from dnnp.core.model.graph import Bools, Floats, distinct, place_of
from dnnp.core.model.search_context import SearchContext

ROUNDS = 20
"""Times that one gap is raised, at most."""

LITTLE = 1e-9
"""Relative tolerance of rounding."""

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
"""Earliest starts for which crowding is bounded, at most."""

MOST_PROGRAM = 400_000
"""Tasks that differ times devices of the linear program."""

SAFE = 1 - 1e-11
"""Factor of every bound that is computed in floating point."""


@lean
def heads(net, gap, reach, usable, head):  # type: ignore[no-untyped-def]
    """Raise `head` (f64[n, D], earliest end of each task on each device) along all paths."""
    n, count = head.shape
    most = gap.shape[1]
    for i in range(n):
        v = net.order[i]
        for b in range(count):
            if not usable[v, b]:
                continue
            start = 0.0
            for k in range(net.in_ptr[v], net.in_ptr[v + 1]):
                f = net.in_idx[k]
                u = net.maker[f]
                least = np.inf
                for a in range(count):
                    if usable[u, a]:
                        move = move_time(net, f, a, b) if a != b else 0.0
                        least = min(least, head[u, a] + move)
                start = max(start, least)
            for k in range(1, min(most, i + 1)):
                if not reach[i - k, k]:
                    continue
                u = net.order[i - k]
                least = np.inf
                for a in range(count):
                    if usable[u, a]:
                        least = min(least, head[u, a] + gap[i - k, k, a, b])
                start = max(start, least)
            head[v, b] = max(head[v, b], start + net.time[v, b])


@lean
def tails(net, gap, reach, usable, tail):  # type: ignore[no-untyped-def]
    """Raise `tail` (f64[n, D], least time from the end of each task to the end of all)."""
    n, count = tail.shape
    most = gap.shape[1]
    for i in range(n - 1, -1, -1):
        u = net.order[i]
        for a in range(count):
            if not usable[u, a]:
                continue
            rest = tail[u, a]
            for k in range(net.out_ptr[u], net.out_ptr[u + 1]):
                f = net.out_idx[k]
                for j in range(net.use_ptr[f], net.use_ptr[f + 1]):
                    v = net.use_idx[j]
                    least = np.inf
                    for b in range(count):
                        if usable[v, b]:
                            move = move_time(net, f, a, b) if a != b else 0.0
                            least = min(least, move + net.time[v, b] + tail[v, b])
                    rest = max(rest, least)
            for k in range(1, min(most, n - i)):
                if not reach[i, k]:
                    continue
                v = net.order[i + k]
                least = np.inf
                for b in range(count):
                    if usable[v, b]:
                        least = min(least, gap[i, k, a, b] + net.time[v, b] + tail[v, b])
                rest = max(rest, least)
            tail[u, a] = rest


@lean
def exclude(usable, head, tail, upper):  # type: ignore[no-untyped-def]
    """Exclude devices that no schedule below `upper` uses for a task; returns a lower bound."""
    n, count = head.shape
    latest = 0.0
    for v in range(n):
        least = np.inf
        for d in range(count):
            if usable[v, d]:
                length = head[v, d] + tail[v, d]
                if length > upper * (1 + LITTLE):
                    usable[v, d] = False
                else:
                    least = min(least, length)
        latest = max(latest, least)
    return latest


@inlined
def _way(net, place, gap, reach, usable, i, k, v, a, b):  # type: ignore[no-untyped-def]
    """Longest path from the task at position i on device a to the start of v on b."""
    count = usable.shape[1]
    start = 0.0
    for x in range(net.in_ptr[v], net.in_ptr[v + 1]):
        f = net.in_idx[x]
        j = net.maker[f]
        q = place[j] - i
        if q == 0:
            start = max(start, move_time(net, f, a, b) if a != b else 0.0)
        elif q > 0 and reach[i, q]:
            least = np.inf
            for d in range(count):
                if usable[j, d]:
                    move = move_time(net, f, d, b) if d != b else 0.0
                    least = min(least, gap[i, q, a, d] + net.time[j, d] + move)
            start = max(start, least)
    return start


@inlined
def raise_gap(net, gap, weights, usable, i, k, a, b, inner, many, start, scratch):  # type: ignore[no-untyped-def]
    """Least time of at least `start` between two tasks for the tasks `inner[:many]` between."""
    count = usable.shape[1]
    soon, late, least = scratch
    length = start
    for _ in range(ROUNDS):
        if length == np.inf:
            break
        room = length * (1 + LITTLE)
        following, forced = np.inf, 0.0
        for d in range(count):
            soon[d] = np.inf
            late[d] = np.inf
        for x in range(many):
            q = inner[x]
            j = net.order[i + q]
            nearest = np.inf
            for d in range(count):
                least[x, d] = np.inf
                if not usable[j, d]:
                    continue
                to, off = gap[i, q, a, d], gap[i + q, k - q, d, b]
                whole = to + net.time[j, d] + off
                nearest = min(nearest, whole)
                if whole <= room:
                    least[x, d] = net.time[j, d]
                    soon[d] = min(soon[d], to)
                    late[d] = min(late[d], off)
                else:
                    following = min(following, whole)
            forced = max(forced, nearest)
        if forced > room:
            length = forced
            continue
        needed = 0.0
        for w in range(len(weights)):
            total, lost, share = 0.0, 0.0, 0.0
            for d in range(count):
                if soon[d] < np.inf and weights[w, d] > 0.0:
                    share += weights[w, d]
                    lost += weights[w, d] * (soon[d] + late[d])
            if share == 0.0:
                continue
            for x in range(many):
                cheapest = np.inf
                for d in range(count):
                    if least[x, d] < np.inf:
                        cheapest = min(cheapest, weights[w, d] * least[x, d])
                total += cheapest
            needed = max(needed, (total + lost) / share)
        if needed <= room:
            break
        length = min(needed, following)
    return length


@kernel
def fill_gaps(net, place, weights, usable, head, tail, upper, gap, reach, i):  # type: ignore[no-untyped-def]
    """Fill `gap[i]` and `reach[i]` from those of later positions."""
    n, count = usable.shape
    most = gap.shape[1]
    u = net.order[i]
    inner = np.empty(most, np.int64)
    scratch = (np.empty(count), np.empty(count), np.empty((most, count)))
    for k in range(1, min(most, n - i)):
        v = net.order[i + k]
        reach[i, k] = False
        for x in range(net.pred_ptr[v], net.pred_ptr[v + 1]):
            q = place[net.pred_idx[x]] - i
            if q == 0 or (q > 0 and reach[i, q]):
                reach[i, k] = True
        if not reach[i, k]:
            continue
        many = 0
        for q in range(1, k):
            if reach[i, q] and reach[i + q, k - q]:
                inner[many] = q
                many += 1
        for a in range(count):
            for b in range(count):
                gap[i, k, a, b] = np.inf
                if not usable[u, a] or not usable[v, b]:
                    continue
                length = _way(net, place, gap, reach, usable, i, k, v, a, b)
                rest = head[u, a] + net.time[v, b] + tail[v, b]
                if many > 1 and rest + length <= upper * (1 + LITTLE):
                    length = raise_gap(
                        net, gap, weights, usable, i, k, a, b, inner, many, length, scratch
                    )
                if rest + length <= upper * (1 + LITTLE):
                    gap[i, k, a, b] = length


@kernel
def crowding_bound(net, usable, weights, head, tail, upper, at, order):  # type: ignore[no-untyped-def]
    """Lower bound of latency by tasks that cannot start before `at` (f64[k]) nor end late.

    order: tasks by falling least tail.
    """
    n, count = usable.shape
    best = 0.0
    soon, need, rest = np.empty(n), np.empty(n), np.empty(n)
    for v in range(n):
        soon[v] = np.inf
        for d in range(count):
            if usable[v, d]:
                soon[v] = min(soon[v], head[v, d] - net.time[v, d])
    for w in range(len(weights)):
        share = 0.0
        for d in range(count):
            share += weights[w, d]
        for v in range(n):
            need[v] = np.inf
            rest[v] = np.inf
            for d in range(count):
                if usable[v, d]:
                    need[v] = min(need[v], weights[w, d] * net.time[v, d])
                    rest[v] = min(rest[v], tail[v, d])
        for x in at:
            total = 0.0
            for v in order:
                if soon[v] >= x:
                    total += need[v]
                    best = max(best, x + total / share + rest[v])
    return best


def windows_bound(
    net: FlowNet,
    usable: Bools,
    head: Floats,
    tail: Floats,
    weights: Floats,
    least: float,
    upper: float,
    run: SearchContext,
) -> float:
    """Best bound by windows from several trial latencies.

    For any T, every latency is at least T or the bound that windows prove for latencies below T.
    """
    high = upper if upper < np.inf else HIGH * least
    value, tried = least, high
    for trial in range(TRIALS):
        part = run.phase("bounding", trial / TRIALS, (trial + 1) / TRIALS)
        proven = _windows(net, usable, head.copy(), tail.copy(), weights, tried, part)
        value = max(value, proven)
        run.report_progress(bound=min(value, upper) * SAFE, by="windows")
        if proven < tried:
            high = min(high, tried)
        if run.stop() or value >= high * (1 - CLOSE):
            break
        tried = (value + high) / 2
    return min(value, upper)


def _windows(
    net: FlowNet,
    usable: Bools,
    head: Floats,
    tail: Floats,
    weights: Floats,
    upper: float,
    run: SearchContext,
) -> float:
    """Bound by windows for latencies below `upper`; weaker if it is stopped."""
    n, count = usable.shape
    usable = usable.copy()
    place = place_of(net.order)
    size = int((MOST_WORK * run.effort / (n * count**3 * len(weights))) ** 0.5)
    size = max(2, min(WINDOW, size, n))
    value = 0.0
    for number in range(PASSES):
        before = int(usable.sum()), value
        value = max(value, float(exclude(usable, head, tail, upper)))
        if not usable.any(axis=1).all():
            return upper
        value = max(value, _crowding(net, usable, head, tail, weights, upper))
        gap = np.full((n, size, count, count), np.inf)
        reach = np.zeros((n, size), dtype=np.bool_)
        for i in range(n - 1, -1, -1):
            fill_gaps(net, place, weights, usable, head, tail, upper, gap, reach, i)
            if i % 16 == 0:
                run.report_progress(share=(number + 1 - i / n) / PASSES)
                if run.stop():
                    return min(value, upper)
        heads(net, gap, reach, usable, head)
        tails(net, gap, reach, usable, tail)
        value = max(value, float(exclude(usable, head, tail, upper)))
        if not usable.any(axis=1).all():
            return upper
        value = max(value, _crowding(net, usable, head, tail, weights, upper))
        if value >= upper or (int(usable.sum()), value) == before:
            break
    return min(value, upper)


def _crowding(
    net: FlowNet, usable: Bools, head: Floats, tail: Floats, weights: Floats, upper: float
) -> float:
    """Bound by tasks that have to run between two times."""
    soon = np.where(usable, head - net.time, np.inf).min(axis=1)
    rest = np.where(usable, tail, np.inf).min(axis=1)
    at = distinct(soon)
    at = at[distinct(np.linspace(0, len(at) - 1, POINTS).astype(np.int64))]
    order = np.lexsort((np.arange(len(rest)), -rest))
    return float(crowding_bound(net, usable, weights, head, tail, upper, at, order))


def area_bound(
    problem: LatencyProblem, net: FlowNet, usable: Bools
) -> tuple[float, Floats, Floats]:
    """Area bound; prices of memory f64[D] (time per byte); weights of devices f64[k, D].

    The bound is computed from the prices, so that it holds for any accuracy of the solver.
    """
    count, memory = problem.machine.count, problem.tasks.memory
    limited = np.isfinite(net.capacity)
    time = np.where(usable, net.time, np.inf)
    typical = np.where(usable, net.time, 0.0).sum(axis=0) / np.maximum(usable.sum(axis=0), 1)
    speed = 1 / np.maximum(typical, 1e-300)
    rank = np.argsort(-speed, kind="stable")
    weights = [np.where(np.isin(np.arange(count), rank[: k + 1]), speed, 0.0) for k in range(count)]
    prices = np.zeros(count)
    best = 0.0
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
    """Times with a huge number instead of inf, so that weight 0 stays 0 there too."""
    result: Floats = np.where(np.isfinite(time), time, 1e300)
    return result


def _program(time: Floats, memory: Floats, capacity: Floats) -> tuple[Floats, Floats] | None:
    """Dual prices of time f64[D] and memory f64[D] of the fractional placement, if it exists.

    Minimise T where so much of task j is on device d as x(j, d): that of a task sums to 1, or to
    their number for all that are alike, times on each device to T at most, memory to its capacity.
    """
    from scipy.optimize import linprog
    from scipy.sparse import coo_array, hstack, vstack

    alike, many = np.unique(np.column_stack([time, memory]), axis=0, return_counts=True)
    if alike.size > MOST_PROGRAM:
        return None
    time, memory = alike[:, :-1], alike[:, -1]
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
        b_eq=many,
        bounds=(0, None),
        method="highs",
    )
    if done.status != 0:
        return None
    dual = np.maximum(-done.ineqlin.marginals, 0.0)
    prices = np.zeros(count)
    prices[limited] = dual[count:]
    return dual[:count], prices


def memory_path(net: FlowNet, usable: Bools, prices: Floats) -> float:
    """Longest path where tasks also pay for memory, less capacities times prices.

    The path to the last task visits some tasks of each device, which fit; so its payments are at
    most capacities times prices, for all prices of zero or more.
    """
    n, count = net.time.shape
    members = np.maximum(np.bincount(net.together, minlength=len(net.bytes)), 1)
    # A colour counts once: its tasks, of which a path visits some, share its memory evenly.
    memory = (net.bytes / members)[net.together]
    none, never = np.zeros((n, 1, count, count)), np.zeros((n, 1), dtype=np.bool_)
    capacity = np.where(np.isfinite(net.capacity), net.capacity, 0.0)
    best = 0.0
    for scale in np.geomspace(1 / 64, 8, 19).tolist():
        paid = net._replace(time=net.time + scale * prices * memory[:, None])
        head = np.zeros((n, count))
        heads(paid, none, never, usable, head)
        longest = float(np.where(usable, head, np.inf).min(axis=1).max())
        best = max(best, longest - scale * float((prices * capacity).sum()))
    return best
