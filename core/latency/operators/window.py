"""How far apart two tasks must be: kernels of the bound on latency (`operators`).

Positions are those of a topological order. For a task u, a task v at most W positions later that
waits for it, and devices a, b of the two, `gap` is a lower bound of the time from the end of u on
a to the start of v on b. It is the larger of two things. One is the longest way between them, every
task on the way on the device that suits it best. The other is how long the devices need for all
tasks S between them: for weights w >= 0, if task j of S takes time t(j, d) on device d, and no
task of S can start there sooner than h(d) after u, nor end later than r(d) before v,

    sum over j of min over d of w(d) t(j, d) <= sum over d of w(d) (T - h(d) - r(d))

where j may use d only if way to, time and way from there fit into T together. A T for which this
fails is impossible. Devices that no schedule below `upper` can use do not count anywhere.
"""

from __future__ import annotations

import numpy as np

from dnnp.core.kernels.kernel import inlined, kernel, lean
from dnnp.core.latency.operators.kernel import move_time

ROUNDS = 20
"""Raises of one gap, at most."""

LITTLE = 1e-9
"""Relative; what fits but for rounding fits."""


@lean
def heads(board, order, place, gap, reach, usable, head):  # type: ignore[no-untyped-def]
    """Raise `head` (f64[n, D], earliest end of each task on each device) along all ways."""
    n, count = head.shape
    most = gap.shape[1]
    for i in range(n):
        v = order[i]
        for b in range(count):
            if not usable[v, b]:
                continue
            start = 0.0
            for k in range(board.in_ptr[v], board.in_ptr[v + 1]):
                f = board.in_idx[k]
                u = board.maker[f]
                least = np.inf
                for a in range(count):
                    if usable[u, a]:
                        move = move_time(board, f, a, b) if a != b else 0.0
                        least = min(least, head[u, a] + move)
                start = max(start, least)
            for k in range(1, min(most, i + 1)):
                if not reach[i - k, k]:
                    continue
                u = order[i - k]
                least = np.inf
                for a in range(count):
                    if usable[u, a]:
                        least = min(least, head[u, a] + gap[i - k, k, a, b])
                start = max(start, least)
            head[v, b] = max(head[v, b], start + board.time[v, b])


@lean
def tails(board, order, place, gap, reach, usable, tail):  # type: ignore[no-untyped-def]
    """Raise `tail` (f64[n, D], least time from the end of each task to the end of all)."""
    n, count = tail.shape
    most = gap.shape[1]
    for i in range(n - 1, -1, -1):
        u = order[i]
        for a in range(count):
            if not usable[u, a]:
                continue
            rest = tail[u, a]
            for k in range(board.out_ptr[u], board.out_ptr[u + 1]):
                f = board.out_idx[k]
                for j in range(board.use_ptr[f], board.use_ptr[f + 1]):
                    v = board.use_idx[j]
                    least = np.inf
                    for b in range(count):
                        if usable[v, b]:
                            move = move_time(board, f, a, b) if a != b else 0.0
                            least = min(least, move + board.time[v, b] + tail[v, b])
                    rest = max(rest, least)
            for k in range(1, min(most, n - i)):
                if not reach[i, k]:
                    continue
                v = order[i + k]
                least = np.inf
                for b in range(count):
                    if usable[v, b]:
                        least = min(least, gap[i, k, a, b] + board.time[v, b] + tail[v, b])
                rest = max(rest, least)
            tail[u, a] = rest


@lean
def exclude(usable, head, tail, upper):  # type: ignore[no-untyped-def]
    """Drop devices that no schedule below `upper` uses for a task; least latency left."""
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
def _way(board, place, gap, reach, usable, i, k, v, a, b):  # type: ignore[no-untyped-def]
    """Longest way from the task at position i on device a to the start of v on b."""
    count = usable.shape[1]
    start = 0.0
    for x in range(board.in_ptr[v], board.in_ptr[v + 1]):
        f = board.in_idx[x]
        j = board.maker[f]
        q = place[j] - i
        if q == 0:
            start = max(start, move_time(board, f, a, b) if a != b else 0.0)
        elif q > 0 and reach[i, q]:
            least = np.inf
            for d in range(count):
                if usable[j, d]:
                    move = move_time(board, f, d, b) if d != b else 0.0
                    least = min(least, gap[i, q, a, d] + board.time[j, d] + move)
            start = max(start, least)
    return start


@inlined
def raised(board, order, gap, weights, usable, i, k, a, b, inner, many, start, scratch):  # type: ignore[no-untyped-def]
    """Least time from `start` on that the tasks `inner[:many]` between two tasks leave possible."""
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
            j = order[i + q]
            nearest = np.inf
            for d in range(count):
                least[x, d] = np.inf
                if not usable[j, d]:
                    continue
                to, off = gap[i, q, a, d], gap[i + q, k - q, d, b]
                whole = to + board.time[j, d] + off
                nearest = min(nearest, whole)
                if whole <= room:
                    least[x, d] = board.time[j, d]
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
def spread(board, order, place, weights, usable, head, tail, upper, gap, reach, i):  # type: ignore[no-untyped-def]
    """Fill `gap[i]` and `reach[i]`; those of later positions are there."""
    n, count = usable.shape
    most = gap.shape[1]
    u = order[i]
    inner = np.empty(most, np.int64)
    scratch = (np.empty(count), np.empty(count), np.empty((most, count)))
    for k in range(1, min(most, n - i)):
        v = order[i + k]
        reach[i, k] = False
        for x in range(board.pred_ptr[v], board.pred_ptr[v + 1]):
            q = place[board.pred_idx[x]] - i
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
                length = _way(board, place, gap, reach, usable, i, k, v, a, b)
                rest = head[u, a] + board.time[v, b] + tail[v, b]
                if many > 1 and rest + length <= upper * (1 + LITTLE):
                    length = raised(
                        board, order, gap, weights, usable, i, k, a, b, inner, many, length, scratch
                    )
                if rest + length <= upper * (1 + LITTLE):
                    gap[i, k, a, b] = length


@kernel
def crowded(board, usable, weights, head, tail, upper, at, order):  # type: ignore[no-untyped-def]
    """Least latency that leaves room for all tasks that cannot start before `at` (f64[k]), nor
    end later than something before the end; the tasks by falling least tail in `order`."""
    n, count = usable.shape
    best = 0.0
    soon, need, rest = np.empty(n), np.empty(n), np.empty(n)
    for v in range(n):
        soon[v] = np.inf
        for d in range(count):
            if usable[v, d]:
                soon[v] = min(soon[v], head[v, d] - board.time[v, d])
    for w in range(len(weights)):
        share = 0.0
        for d in range(count):
            share += weights[w, d]
        for v in range(n):
            need[v] = np.inf
            rest[v] = np.inf
            for d in range(count):
                if usable[v, d]:
                    need[v] = min(need[v], weights[w, d] * board.time[v, d])
                    rest[v] = min(rest[v], tail[v, d])
        for x in at:
            total = 0.0
            for v in order:
                if soon[v] >= x:
                    total += need[v]
                    best = max(best, x + total / share + rest[v])
    return best
