"""Move one item of a split into blocks; its latency, and what it breaks: kernels."""

from __future__ import annotations

import numpy as np

from dnnp.core.kernels.kernel import callee, inlined, lean
from dnnp.core.latency.blocks.state import POOL_SLOT, pool_insert, pool_remove


@callee
def relocate(fixed, state, i, label):  # type: ignore[no-untyped-def]
    """Give an item another label; O(its flows and their readers). Order is the caller's matter."""
    home, readers, needs, spent, move = (
        state.home,
        state.readers,
        state.needs,
        state.spent,
        fixed.move,
    )
    a = home[i]
    b = state.slot[label // 2] if label % 2 else POOL_SLOT
    if a < 0:
        pool_remove(state, i)
    state.at[i] = label
    if b < 0:
        pool_insert(state, i)
    if a == b:
        return
    da = state.device[a] if a >= 0 else len(state.used)
    db = state.device[b] if b >= 0 else len(state.used)
    if a >= 0:
        state.size[a] -= 1
        state.used[da] -= fixed.memory[i]
        if fixed.time[da, i] < np.inf:
            spent[a] -= fixed.time[da, i]
        else:
            state.wrong[0] -= 1
    elif not fixed.pooled[i]:
        state.wrong[0] -= 1
    if b >= 0:
        state.size[b] += 1
        state.used[db] += fixed.memory[i]
        if fixed.time[db, i] < np.inf:
            spent[b] += fixed.time[db, i]
        else:
            state.wrong[0] += 1
    elif not fixed.pooled[i]:
        state.wrong[0] += 1
    if da != db:
        spread, g = state.spread, fixed.group[i]
        spread[g, da] -= 1
        state.wrong[1] -= spread[g, da] == 0
        state.wrong[1] += spread[g, db] == 0
        spread[g, db] += 1
    for q in range(fixed.in_ptr[i], fixed.in_ptr[i + 1]):
        e = fixed.in_idx[q]
        m = fixed.maker[e]
        s = home[m] if m >= 0 else POOL_SLOT
        total = fixed.use_ptr[e + 1] - fixed.use_ptr[e]
        if a >= 0:
            if s == a:
                if readers[e, a] == total and not fixed.leaves[e]:
                    spent[a] += move[da, e]
                readers[e, a] -= 1
            else:
                readers[e, a] -= 1
                if readers[e, a] == 0:
                    spent[a] -= move[da, e]
            if s >= 0:
                needs[s, a] -= 1
        if b >= 0:
            if s == b:
                readers[e, b] += 1
                if readers[e, b] == total and not fixed.leaves[e]:
                    spent[b] -= move[db, e]
            else:
                if readers[e, b] == 0:
                    spent[b] += move[db, e]
                readers[e, b] += 1
            if s >= 0:
                needs[s, b] += 1
    for q in range(fixed.out_ptr[i], fixed.out_ptr[i + 1]):
        e = fixed.out_idx[q]
        first, stop = fixed.use_ptr[e], fixed.use_ptr[e + 1]
        if a >= 0:
            if fixed.leaves[e] or readers[e, a] < stop - first:
                spent[a] -= move[da, e]
            if readers[e, a] > 0:
                spent[a] += move[da, e]
        if b >= 0:
            if fixed.leaves[e] or readers[e, b] < stop - first:
                spent[b] += move[db, e]
            if readers[e, b] > 0:
                spent[b] -= move[db, e]
        for z in range(first, stop):
            t = home[fixed.use_idx[z]]
            if t >= 0:
                if a >= 0:
                    needs[a, t] -= 1
                if b >= 0:
                    needs[b, t] += 1
    home[i] = b


@lean
def latency(fixed, state):  # type: ignore[no-untyped-def]
    """Latency of the split: as `time_invocations`, where every item is supported.

    O(S^2 + flows of the pool). What is not supported takes no time.
    """
    start, end, last, ready, home, device = (
        state.start,
        state.end,
        state.last,
        state.ready,
        state.home,
        state.device,
    )
    for s in range(len(start)):
        start[s] = 0.0
    for d in range(len(last)):
        last[d] = 0.0
    value = 0.0
    k, slots, pooled = 0, len(state.slot), state.counts[0]
    for p in range(slots + 1):
        while k < pooled and state.at[state.pool[k]] == 2 * p:
            i = state.pool[k]
            k += 1
            for q in range(fixed.member_ptr[i], fixed.member_ptr[i + 1]):
                v = fixed.member_idx[q]
                begin = 0.0
                for z in range(fixed.task_before_ptr[v], fixed.task_before_ptr[v + 1]):
                    u = fixed.task_before_idx[z]
                    s = home[fixed.label[u]]
                    begin = max(begin, end[s] if s >= 0 else ready[u])
                if fixed.pool[v] < np.inf:
                    begin += fixed.pool[v]
                ready[v] = begin
                value = max(value, begin)
                for z in range(fixed.task_after_ptr[v], fixed.task_after_ptr[v + 1]):
                    s = home[fixed.label[fixed.task_after_idx[z]]]
                    if s >= 0:
                        start[s] = max(start[s], begin)
        if p == slots:
            break
        s = state.slot[p]
        if state.size[s] == 0:
            continue
        begin = max(start[s], last[device[s]])
        for r in range(p):
            t = state.slot[r]
            if state.needs[t, s] > 0:
                begin = max(begin, end[t])
        start[s] = begin
        end[s] = begin + spent_of(state, s)
        last[device[s]] = end[s]
        value = max(value, end[s])
    return value


@inlined
def spent_of(state, s):  # type: ignore[no-untyped-def]
    """Time of a slot, free of what rounding leaves below zero."""
    return max(state.spent[s], 0.0)


@lean
def excess(fixed, state):  # type: ignore[no-untyped-def]
    """Bytes above the capacities, relative to the largest: one figure for all accelerators."""
    over = 0.0
    for d in range(len(state.used)):
        capacity = fixed.capacity[d]
        if state.used[d] > capacity:
            over += (state.used[d] - capacity) / max(capacity, 1.0)
    return over


@lean
def fits(fixed, state):  # type: ignore[no-untyped-def]
    """Whether the split is valid; memory is summed anew."""
    if state.wrong[0] > 0 or state.wrong[1] > 0:
        return False
    for d in range(len(state.used)):
        state.used[d] = 0.0
    for i in range(len(state.home)):
        if state.home[i] >= 0:
            state.used[state.device[state.home[i]]] += fixed.memory[i]
    fit = True
    for d in range(len(state.used)):
        fit = fit and state.used[d] <= fixed.capacity[d]
    return fit
