"""Best-first search over the sets of nodes that have run, for an order of least peak.

States are expanded in the order of the largest step on the way to them, those with more nodes
first among equals: the first complete one is an optimum, and the least of the open ones bounds
it all the time (Dijkstra's algorithm for bottleneck paths).
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from dnnp.core.cost.kernel import kernel
from dnnp.core.model.graph import Ints
from dnnp.core.peak.state import PeakState, copy, mark, new_state, run, set_up, settle, trace, undo
from dnnp.core.peak.steps import Steps

MAX_STATES = 200_000
"""Sets that are stored at most."""

STATE_WORK = 20
"""Work that making a set to be stored takes, at least."""


class FoundPeak(NamedTuple):
    """Outcome of a search."""

    order: Ints
    """An order whose peak is below the one asked for; empty: none was found."""
    bound: float
    """No order has a smaller peak, if the floor is a bound."""
    work: int
    """Work done, in visits of nodes and tensors."""


def search(steps: Steps, start: float, floor: float, peak: float, work: float) -> FoundPeak:
    """Look for an order with a peak below `peak`.

    Parameters
    ----------
    start
        Bytes live before the first step.
    floor
        A known lower bound, or a peak below which nothing is of use.
    work
        Visits of nodes and tensors after which the search ends without a proof.
    """
    floor = max(floor, start)
    n = len(steps.made)
    if not n or floor >= peak:
        return FoundPeak(np.zeros(0, dtype=np.int64), min(floor, peak), 0)
    room = int(min(work / STATE_WORK, MAX_STATES)) + 1
    order, bound, done = best_first(steps, start, floor, peak, int(work), room)
    return FoundPeak(order, min(bound, peak), done)


@kernel
def best_first(steps, start, floor, limit, work, room):  # type: ignore[no-untyped-def]
    n = len(steps.made)
    words = (n + 63) >> 6
    state = PeakState(*new_state(steps))
    bits = np.zeros((room + 1, words), np.uint64)
    live = np.zeros(room + 1)
    peak = np.zeros(room + 1)
    size = np.zeros(room + 1, np.int64)
    parent = np.full(room + 1, -1, np.int64)
    node = np.full(room + 1, -1, np.int64)
    table_size = 16
    while table_size < 2 * (room + 1):
        table_size *= 2
    table = np.full(table_size, -1, np.int64)
    child = np.zeros(words, np.uint64)
    # The first state: what may run before anything else.
    set_up(steps, state, child, start)
    settle(steps, state, floor)
    mark(state, child)
    copy(child, bits[0])
    live[0], peak[0] = state.live[state.counts[1]], floor
    size[0] = state.counts[1]
    _place(table, bits, 0)
    stored = 1
    heap = [(floor, -size[0], 0)]
    bound = limit
    goal = -1
    while len(heap) > 0:
        top, _, s = heappop(heap)
        if top > peak[s]:
            continue
        if size[s] == n:
            bound, goal = top, s
            break
        if stored > room or state.counts[2] > work:
            bound = top
            break
        set_up(steps, state, bits[s], live[s])
        ready = state.counts[0]
        for i in range(ready):
            v = state.ready[i]
            if state.counts[2] > work:
                heappush(heap, (top, -size[s], s))
                break
            cost = max(top, live[s] + steps.made[v])
            if cost >= limit:
                continue
            run(steps, state, v)
            settle(steps, state, cost)
            copy(bits[s], child)
            mark(state, child)
            done = size[s] + state.counts[1]
            after = state.live[state.counts[1]]
            for _ in range(state.counts[1]):
                undo(steps, state)
            q = _slot(table, bits, child)
            c = table[q]
            if c < 0:
                if stored > room:
                    # No room: what is open bounds the optimum.
                    heappush(heap, (top, -size[s], s))
                    break
                c = stored
                stored += 1
                table[q] = c
                copy(child, bits[c])
                live[c], size[c] = after, done
            elif peak[c] <= cost:
                continue
            peak[c], parent[c], node[c] = cost, s, v
            heappush(heap, (cost, -done, c))
    if goal < 0:
        return np.zeros(0, np.int64), bound, state.counts[2]
    order = trace(steps, state, bits, live, peak, parent, node, goal, start, floor)
    return order, bound, state.counts[2]


@kernel
def _slot(table, bits, key):  # type: ignore[no-untyped-def]
    """Place of a set in the hash table, or where it would go."""
    value = np.uint64(1469598103934665603)
    for w in range(len(key)):
        # Marsaglia's xorshift, twice: all bits of a word must reach the low ones.
        value ^= key[w]
        for _ in range(2):
            value ^= value << np.uint64(13)
            value ^= value >> np.uint64(7)
            value ^= value << np.uint64(17)
        value ^= value >> np.uint64(32)
    q = np.int64(value & np.uint64(len(table) - 1))
    while table[q] >= 0:
        same = True
        for w in range(len(key)):
            if bits[table[q], w] != key[w]:
                same = False
                break
        if same:
            break
        q = (q + 1) & (len(table) - 1)
    return q


@kernel
def _place(table, bits, s):  # type: ignore[no-untyped-def]
    table[_slot(table, bits, bits[s])] = s
