"""The tree of the search over orders; see `core.schedule.orders`.

A node branches on a pair of blocks on one unit: "interval q or an earlier one", or a later one.
"""

from __future__ import annotations

import numpy as np

from dnnp.core.kernels.kernel import inlined, lean
from dnnp.core.schedule.orders.gaps import (
    DEPTH,
    FRONT,
    LEVEL,
    LIMIT,
    MODE,
    NODES,
    REAR,
    TRAIL,
    WORK,
    GapBoard,
    OrderLimits,
    OrderState,
    begin,
    begin_of,
    end_of,
    first_interval,
    insert,
    propagate,
)

FOUND, NONE, MORE, GROW, RESTART = range(5)
"""How a call of `search` ends."""

SELECT, BACK, ROOT = range(3)
"""What `search` goes on with: `OrderState.counts[MODE]`."""


@inlined
def _choose(board, limits, state):  # type: ignore[no-untyped-def]
    """The pair with the fewest intervals left, for its failures; -1: all orders are known."""
    box = state.box
    best, least = -1, np.inf
    for p in range(len(board.first)):
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
def _decide(board, limits, state, p, q, later):  # type: ignore[no-untyped-def]
    """Pair p lies in interval q or earlier, or else later than q; False: that cannot be."""
    i, j = board.first[p], board.second[p]
    state.counts[LEVEL] += 1
    if later:
        w = begin_of(limits, p, q + 1)
    else:
        i, j = j, i
        w = -end_of(limits, p, q)
    good = insert(board, limits, state, i, j, w)
    if good:
        return propagate(board, limits, state)
    state.weight[p] += 1.0
    while state.counts[FRONT] != state.counts[REAR]:
        state.queued[state.queue[state.counts[FRONT]]] = False
        state.counts[FRONT] = (state.counts[FRONT] + 1) % len(state.queue)
    return False


@lean
def search(board, limits, state, most_work):  # type: ignore[no-untyped-def]
    """Go on until all orders are known (FOUND), there is none (NONE), or enough was done.

    MORE: `most_work` entries were looked at. GROW: trail or stack are full. RESTART: more nodes
    than `counts[LIMIT]`. Called again after FOUND it looks for the next schedule. From ROOT it
    looks at the root only.
    """
    gap, count, stack = state.gap, state.counts, state.stack
    if count[MODE] == ROOT:
        count[MODE] = SELECT
        return MORE if begin(board, limits, state) else NONE
    n = len(gap)
    enough = count[WORK] + most_work
    most_saved = n * n + 4 * len(board.first)
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
            if _decide(board, limits, state, stack[top, 0], stack[top, 1], stack[top, 2] == 0):
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
        p = _choose(board, limits, state)
        count[WORK] += len(board.first)
        if p < 0:
            count[MODE] = BACK
            return FOUND
        i, j = board.first[p], board.second[p]
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
        if not _decide(board, limits, state, p, q, later == 1):
            count[MODE] = BACK


def is_open(board: GapBoard, limits: OrderLimits, state: OrderState) -> bool:
    """Look at every pair and unit once; False: there is no schedule."""
    state.counts[MODE] = ROOT
    return bool(search(board, limits, state, 0) != NONE)
