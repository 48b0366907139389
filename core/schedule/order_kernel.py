"""Kernels of the search over orders: bounds on gaps, their propagation, and the search tree.

`gap[i, j]` is a lower bound of the start of block j minus that of block i; the matrix is closed:
gap[i, j] >= gap[i, l] + gap[l, j]. Of a pair p of blocks (i, j) on one unit s_j - s_i
lies in one of the intervals [low[r] + k T, high[r] + k T], where r runs through the
`ptr[p + 1] - ptr[p]` intervals of the pair and k through all whole numbers; intervals are numbered
by q = k * count + r. A node branches on a pair of blocks on one unit: "interval q or an earlier
one", or a later one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dnnp.core.kernels.kernel import callee, inlined, lean
from dnnp.core.model.graph import Floats, Ints

Bools = NDArray[np.bool_]

DEPTH, TRAIL, WORK, NODES, LEVEL, MODE, LIMIT, FRONT, REAR, COUNTS = range(10)
"""Places in `OrderState.counts`."""

MOST_LAG = 1e9
"""More micro-batches than could be between two starts."""


class PairTables(NamedTuple):
    """The part of a search that depends on no period or limit: P pairs, D units."""

    first: Ints
    """i64[P], i of each pair."""
    second: Ints
    """i64[P], j of each pair."""
    pair: Ints
    """i64[b, b], the pair of two blocks, or -1; symmetric."""
    touch_ptr: Ints
    """i64[P + 1]; a pair affects the memory of units `touch[touch_ptr[p]:touch_ptr[p + 1]]`."""
    touch: Ints
    taker_ptr: Ints
    """i64[D + 1]; blocks that take memory of unit d are `taker[taker_ptr[d]:taker_ptr[d + 1]]`."""
    taker: Ints
    match_ptr: Ints
    """i64[D + 1]; what block `match_f` takes of unit d block `match_r` releases."""
    match_f: Ints
    match_r: Ints
    match_a: Floats


class OrderLimits(NamedTuple):
    """Period and limits of one search."""

    period: float
    eps: float
    """Times this much apart count as equal."""
    ptr: Ints
    """i64[P + 1], intervals of each pair."""
    low: Floats
    high: Floats
    cap: Floats
    """f64[D], what each unit may hold, a tolerance included; inf: no limit."""
    active: Bools
    """bool[P], pairs of which the order is relevant."""


class OrderState(NamedTuple):
    """The state of a search, from which it can be continued."""

    gap: Floats
    stamp: Ints
    """i64[b, b], the level at which an entry was last saved."""
    trail_at: Ints
    trail_old: Floats
    queue: Ints
    """i64[P + 1], pairs to propagate: a ring."""
    queued: Bools
    dirty: Bools
    """bool[D], units to propagate."""
    box: Ints
    """i64[P, 4], first and last k and first and last interval that are left for each pair."""
    boxed: Ints
    """i64[P], the level at which a row of `box` was last saved."""
    weight: Floats
    """f64[P], how often a pair was seen to fail."""
    stack: Ints
    """i64[depth, 5]: pair, interval, whether later intervals come first, side, trail."""
    counts: Ints
    """i64[COUNTS]: depth of the stack, length of the trail, entries visited, nodes, level, next
    step, nodes before a restart, and front and rear of the queue."""


@lean
def close(gap):  # type: ignore[no-untyped-def]
    """Longest paths between all blocks, in place (Floyd and Warshall)."""
    n = len(gap)
    for v in range(n):
        for i in range(n):
            a = gap[i, v]
            if a == -np.inf:
                continue
            for j in range(n):
                if a + gap[v, j] > gap[i, j]:
                    gap[i, j] = a + gap[v, j]


@inlined
def first_interval(limits, p, x):  # type: ignore[no-untyped-def]
    """Earliest interval of pair p that reaches to x."""
    a = limits.ptr[p]
    count = limits.ptr[p + 1] - a
    k = int(np.ceil((x - limits.high[a + count - 1] - limits.eps) / limits.period))
    for r in range(count):
        if limits.high[a + r] + k * limits.period >= x - limits.eps:
            return k * count + r
    return (k + 1) * count


@inlined
def last_interval(limits, p, x):  # type: ignore[no-untyped-def]
    """Latest interval of pair p that begins by x."""
    a = limits.ptr[p]
    count = limits.ptr[p + 1] - a
    k = int(np.floor((x - limits.low[a] + limits.eps) / limits.period))
    for r in range(count - 1, -1, -1):
        if limits.low[a + r] + k * limits.period <= x + limits.eps:
            return k * count + r
    return k * count - 1


@inlined
def begin_of(limits, p, q):  # type: ignore[no-untyped-def]
    count = limits.ptr[p + 1] - limits.ptr[p]
    k = q // count
    return limits.low[limits.ptr[p] + q - k * count] + k * limits.period


@inlined
def end_of(limits, p, q):  # type: ignore[no-untyped-def]
    count = limits.ptr[p + 1] - limits.ptr[p]
    k = q // count
    return limits.high[limits.ptr[p] + q - k * count] + k * limits.period


@inlined
def least_lag(pairs, box, i, j):  # type: ignore[no-untyped-def]
    """Least k = floor((s_j - s_i) / T) of two blocks of a pair."""
    if i == j:
        return 0
    p = pairs.pair[i, j]
    return box[p, 0] if pairs.first[p] == i else -box[p, 1] - 1


@inlined
def most_lag(pairs, box, i, j):  # type: ignore[no-untyped-def]
    """Largest k = floor((s_j - s_i) / T) of two blocks of a pair."""
    if i == j:
        return 0
    p = pairs.pair[i, j]
    return box[p, 1] if pairs.first[p] == i else -box[p, 0] - 1


@callee
def measure(pairs, limits, state, p):  # type: ignore[no-untyped-def]
    """Bring the row of a pair in `box` up to date."""
    i, j = pairs.first[p], pairs.second[p]
    size = limits.ptr[p + 1] - limits.ptr[p]
    low = first_interval(limits, p, state.gap[i, j])
    high = last_interval(limits, p, -state.gap[j, i])
    box = state.box
    if box[p, 2] == low and box[p, 3] == high:
        return
    if state.boxed[p] != state.counts[LEVEL]:
        state.boxed[p] = state.counts[LEVEL]
        at = state.counts[TRAIL]
        for n in range(4):
            state.trail_at[at + n] = -(4 * p + n) - 1
            state.trail_old[at + n] = box[p, n]
        state.counts[TRAIL] = at + 4
    box[p, 0], box[p, 1], box[p, 2], box[p, 3] = low // size, high // size, low, high


@callee
def insert(pairs, limits, state, u, v, w):  # type: ignore[no-untyped-def]
    """Block v starts at least w after u; False: infeasible."""
    gap, count, eps = state.gap, state.counts, limits.eps
    n = len(gap)
    if w + gap[v, u] > eps:
        return False
    level = count[LEVEL]
    tiny = 0.1 * eps
    count[WORK] += n
    for i in range(n):
        base = gap[i, u] + w
        if base <= gap[i, v] + tiny:
            continue
        count[WORK] += n
        for j in range(n):
            new = base + gap[v, j]
            if new > gap[i, j] + tiny:
                if i == j:
                    if new > eps:
                        return False
                    continue
                if state.stamp[i, j] != level:
                    state.stamp[i, j] = level
                    at = count[TRAIL]
                    state.trail_at[at] = i * n + j
                    state.trail_old[at] = gap[i, j]
                    count[TRAIL] = at + 1
                gap[i, j] = new
                p = pairs.pair[i, j]
                if p >= 0 and not state.queued[p] and limits.active[p]:
                    state.queued[p] = True
                    state.queue[count[REAR]] = p
                    count[REAR] = (count[REAR] + 1) % len(state.queue)
    return True


@inlined
def keep_lag(pairs, limits, state, i, j, k):  # type: ignore[no-untyped-def]
    """floor((s_j - s_i) / T) is at most k; False: infeasible."""
    if k >= most_lag(pairs, state.box, i, j):
        return True
    p = pairs.pair[i, j]
    a, z = limits.ptr[p], limits.ptr[p + 1]
    if pairs.first[p] == i:
        w = -(limits.high[z - 1] + k * limits.period)
    else:
        w = limits.low[a] - (k + 1) * limits.period
    if w > state.gap[j, i] + limits.eps:
        return insert(pairs, limits, state, j, i, w)
    return True


@callee
def held(pairs, box, i, m):  # type: ignore[no-untyped-def]
    """Least number of micro-batches between the two blocks of match m when block i starts."""
    f, r = pairs.match_f[m], pairs.match_r[m]
    least = least_lag(pairs, box, f, r)
    if i == f:
        return least + 1
    return max(least, least_lag(pairs, box, f, i) - most_lag(pairs, box, r, i))


@lean
def memory_lower_bound(pairs, box, d):  # type: ignore[no-untyped-def]
    """Least memory of unit d at its peak."""
    most = 0.0
    for n in range(pairs.taker_ptr[d], pairs.taker_ptr[d + 1]):
        total = 0.0
        for m in range(pairs.match_ptr[d], pairs.match_ptr[d + 1]):
            total += pairs.match_a[m] * held(pairs, box, pairs.taker[n], m)
        most = max(most, total)
    return most


@inlined
def _memory(pairs, limits, state, d):  # type: ignore[no-untyped-def]
    """Propagate the memory limit of unit d; False: it cannot be kept."""
    box = state.box
    low, high = pairs.match_ptr[d], pairs.match_ptr[d + 1]
    for n in range(pairs.taker_ptr[d], pairs.taker_ptr[d + 1]):
        i = pairs.taker[n]
        state.counts[WORK] += 16 * (high - low)
        total = 0.0
        for m in range(low, high):
            total += pairs.match_a[m] * held(pairs, box, i, m)
        if total > limits.cap[d]:
            return False
        for m in range(low, high):
            f, r = pairs.match_f[m], pairs.match_r[m]
            spare = int(min(np.floor((limits.cap[d] - total) / pairs.match_a[m]), MOST_LAG))
            most = held(pairs, box, i, m) + spare
            # Three consequences in one loop: every call takes seconds to compile.
            for rule in range(1 if i == f else 3):
                x, y, k = f, r, most - 1 if i == f else most
                if rule == 1:
                    x, k = i, most - least_lag(pairs, box, f, i) - 1
                elif rule == 2:
                    y, k = i, most + most_lag(pairs, box, r, i)
                if not keep_lag(pairs, limits, state, x, y, k):
                    return False
    return True


@callee
def propagate(pairs, limits, state):  # type: ignore[no-untyped-def]
    """Propagate: round gaps by the intervals of pairs to a fixed point; False: infeasible."""
    gap, count = state.gap, state.counts
    size = len(state.queue)
    good = True
    while good:
        while count[FRONT] != count[REAR] and good:
            p = state.queue[count[FRONT]]
            count[FRONT] = (count[FRONT] + 1) % size
            state.queued[p] = False
            for n in range(pairs.touch_ptr[p], pairs.touch_ptr[p + 1]):
                state.dirty[pairs.touch[n]] = True
            i, j = pairs.first[p], pairs.second[p]
            for side in range(2):
                if side == 0:
                    w = begin_of(limits, p, first_interval(limits, p, gap[i, j]))
                else:
                    i, j = j, i
                    w = -end_of(limits, p, last_interval(limits, p, -gap[i, j]))
                if good and w > gap[i, j] + limits.eps:
                    good = insert(pairs, limits, state, i, j, w)
            if good:
                measure(pairs, limits, state, p)
            else:
                state.weight[p] += 1.0
        if not good:
            break
        some = -1
        for d in range(len(state.dirty)):
            if state.dirty[d]:
                some = d
                break
        if some < 0:
            return True
        state.dirty[some] = False
        if limits.cap[some] < np.inf:
            good = _memory(pairs, limits, state, some)
            if not good:
                for m in range(pairs.match_ptr[some], pairs.match_ptr[some + 1]):
                    state.weight[pairs.pair[pairs.match_f[m], pairs.match_r[m]]] += 1.0
    while count[FRONT] != count[REAR]:
        state.queued[state.queue[count[FRONT]]] = False
        count[FRONT] = (count[FRONT] + 1) % size
    for d in range(len(state.dirty)):
        state.dirty[d] = False
    return False


@inlined
def begin(pairs, limits, state):  # type: ignore[no-untyped-def]
    """Propagate every pair and unit once; False: there is no schedule."""
    count = state.counts
    for i in range(len(state.gap)):
        if state.gap[i, i] > limits.eps:
            return False
    for p in range(len(pairs.first)):
        if limits.active[p]:
            state.queued[p] = True
            state.queue[count[REAR]] = p
            count[REAR] += 1
    for d in range(len(state.dirty)):
        state.dirty[d] = True
    if not propagate(pairs, limits, state):
        return False
    for p in range(len(pairs.first)):
        measure(pairs, limits, state, p)
    return True


FOUND, NONE, MORE, GROW, RESTART = range(5)
"""Answers of `search`."""

SELECT, BACK, ROOT = range(3)
"""Steps of `search`: `OrderState.counts[MODE]`."""


@inlined
def _choose(pairs, limits, state):  # type: ignore[no-untyped-def]
    """The pair with the fewest intervals left, for its failures; -1: all orders are known."""
    box = state.box
    best, least = -1, np.inf
    for p in range(len(pairs.first)):
        if not limits.active[p]:
            continue
        if box[p, 0] >= box[p, 1]:
            continue
        score = (box[p, 3] - box[p, 2] + 1) / state.weight[p]
        if score < least:
            best, least = p, score
    return best


@lean
def undo(state, mark):  # type: ignore[no-untyped-def]
    n = len(state.gap)
    for at in range(state.counts[TRAIL] - 1, mark - 1, -1):
        where = state.trail_at[at]
        if where < 0:
            state.box[(-where - 1) // 4, (-where - 1) % 4] = int(state.trail_old[at])
            continue
        state.gap[where // n, where % n] = state.trail_old[at]
    state.counts[TRAIL] = mark


@inlined
def _decide(pairs, limits, state, p, q, later):  # type: ignore[no-untyped-def]
    """Pair p lies in interval q or earlier, or else later than q; False: infeasible."""
    i, j = pairs.first[p], pairs.second[p]
    state.counts[LEVEL] += 1
    if later:
        w = begin_of(limits, p, q + 1)
    else:
        i, j = j, i
        w = -end_of(limits, p, q)
    good = insert(pairs, limits, state, i, j, w)
    if good:
        return propagate(pairs, limits, state)
    state.weight[p] += 1.0
    while state.counts[FRONT] != state.counts[REAR]:
        state.queued[state.queue[state.counts[FRONT]]] = False
        state.counts[FRONT] = (state.counts[FRONT] + 1) % len(state.queue)
    return False


@lean
def search(pairs, limits, state, most_work):  # type: ignore[no-untyped-def]
    """Search until all orders are fixed (FOUND), there is no schedule (NONE), or a limit.

    MORE: `most_work` entries were visited. GROW: trail or stack are full. RESTART: more nodes than
    `counts[LIMIT]`. Called again after FOUND it searches for the next schedule. From ROOT it
    propagates the root only.
    """
    gap, count, stack = state.gap, state.counts, state.stack
    if count[MODE] == ROOT:
        count[MODE] = SELECT
        return MORE if begin(pairs, limits, state) else NONE
    n = len(gap)
    enough = count[WORK] + most_work
    most_saved = n * n + 4 * len(pairs.first)
    while True:
        while count[MODE] == BACK:
            if count[DEPTH] == 0:
                return NONE
            top = count[DEPTH] - 1
            undo(state, stack[top, 4])
            if stack[top, 3] == 1:
                count[DEPTH] = top
                continue
            stack[top, 3] = 1
            if _decide(pairs, limits, state, stack[top, 0], stack[top, 1], stack[top, 2] == 0):
                count[MODE] = SELECT
            if count[WORK] >= enough:
                return MORE
        if count[WORK] >= enough:
            return MORE
        top = count[DEPTH]
        if top == len(stack) or count[TRAIL] + most_saved > len(state.trail_at):
            return GROW
        if count[NODES] >= count[LIMIT]:
            return RESTART
        p = _choose(pairs, limits, state)
        count[WORK] += len(pairs.first)
        if p < 0:
            count[MODE] = BACK
            return FOUND
        i, j = pairs.first[p], pairs.second[p]
        low, high = state.box[p, 2], state.box[p, 3]
        # Where the pair would lie if every block started as early as is known.
        early_i, early_j = 0.0, 0.0
        for u in range(n):
            early_i = max(early_i, gap[u, i])
            early_j = max(early_j, gap[u, j])
        at = first_interval(limits, p, early_j - early_i)
        q, later = low, 0
        if at >= high:
            q, later = high - 1, 1
        elif at > low:
            q, later = at - 1, 1
        stack[top, 0], stack[top, 1], stack[top, 2], stack[top, 3] = p, q, later, 0
        stack[top, 4] = count[TRAIL]
        count[DEPTH] = top + 1
        count[NODES] += 1
        if not _decide(pairs, limits, state, p, q, later == 1):
            count[MODE] = BACK


def is_open(pairs: PairTables, limits: OrderLimits, state: OrderState) -> bool:
    """Propagate every pair and unit once; False: there is no schedule."""
    state.counts[MODE] = ROOT
    return bool(search(pairs, limits, state, 0) != NONE)
