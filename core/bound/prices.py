"""The most valuable stage: a search for sets of items with a large price and a small load.

Branch and bound over sets that hold whatever lies between their items. With the items that are in
or out so far, a superset has at least the load

    work + cost of the nets with pins inside and others elsewhere,

less what nets save whose open pins all join: at most cost / open for each that does. A net with
pins outside, but none inside yet, costs at least cost / open for each open pin that joins. So what
is still to be won is at most a fractional knapsack of the open items.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dnnp.core.bound.between import Between
from dnnp.core.bound.flows import Nets
from dnnp.core.cost.kernel import kernel
from dnnp.core.model.graph import Bools, Floats, Ints, csr

SAFETY = 1e-9
"""Relative, added to bounds of prices against rounding."""

NEAR = 4.0
"""How much an item that shares a net with the set is preferred to others."""

OPEN, IN, OUT = 0, 1, 2


class Field(NamedTuple):
    """What sets are made of; numbers are whole."""

    work: Floats
    """f64[n]."""
    size: Ints
    """i64[p], pins of each net; one more, which is outside, if the net is always paid."""
    outside: Ints
    """i64[p], pins that no set holds: 1 if the net is always paid."""
    cost: Floats
    """f64[p]."""
    hook_ptr: Ints
    hooks: Ints
    """Nets of each item (CSR)."""
    held: Bools
    """bool[n, n, n], what lies between two items."""
    pairs: Floats
    """f64[n, n], least load of a set with two items."""


def field_of(work: Floats, nets: Nets, between: Between, pairs: Floats) -> Field:
    """Lay out items and nets for the search. O(n^3) bytes."""
    n = len(work)
    net = np.repeat(np.arange(len(nets.cost), dtype=np.int64), np.diff(nets.ptr))
    hook_ptr, hooks = csr(nets.pins, net, n)
    held = np.zeros((n, n, n), dtype=np.bool_)
    for u in range(n):
        for v in range(n):
            held[u, v, between.holds(u, v)] = True
    outside = nets.always.astype(np.int64)
    return Field(
        work, np.diff(nets.ptr) + outside, outside, nets.cost, hook_ptr, hooks, held, pairs
    )


@kernel
def best_sets(  # type: ignore[no-untyped-def]
    work, size, outside, cost, hook_ptr, hooks, held, pairs,
    price, target, least, roots, first, step, limit, halt, sets, found, ended,
):  # fmt: skip
    """For roots first, first + step, ...: the set with a load below `target`, the root, none of
    the roots before it, and the greatest price above `least`.

    Fills sets[i], bool[n]; found[i], its price, or 0 if there is none; and ended[i], whether the
    search took no more than `limit` steps and was not halted. Returns the steps.
    """
    n, p = len(work), len(cost)
    kept = len(sets) // len(roots)
    state = np.zeros((n + 2, n), np.int8)
    inner = np.zeros((n + 2, p), np.int32)
    outer = np.zeros((n + 2, p), np.int32)
    chosen = np.zeros(n + 2, np.int64)
    phase = np.zeros(n + 2, np.int8)
    ratio = np.empty(n)
    weight = np.empty(n)
    added = np.empty(n, np.int64)
    steps = 0
    for i in range(first, len(roots), step):
        root = roots[i]
        found[i] = 0
        best = least
        state[0] = 0
        inner[0] = 0
        outer[0] = outside
        for j in range(n):
            v = roots[j]
            if j < i or (v != root and pairs[root, v] >= target):
                state[0, v] = 2
                for q in range(hook_ptr[v], hook_ptr[v + 1]):
                    outer[0, hooks[q]] += 1
        state[0, root] = 1
        for q in range(hook_ptr[root], hook_ptr[root + 1]):
            inner[0, hooks[q]] += 1
        phase[0] = 0
        depth = 0 if pairs[root, root] < target else -1
        last = steps + limit
        while depth >= 0:
            if phase[depth] == 2:
                depth -= 1
                continue
            now, into, out = state[depth], inner[depth], outer[depth]
            if phase[depth] == 1:
                phase[depth] = 2
                u = chosen[depth]
                state[depth + 1] = now
                inner[depth + 1] = into
                outer[depth + 1] = out
                state[depth + 1, u] = 2
                for q in range(hook_ptr[u], hook_ptr[u + 1]):
                    outer[depth + 1, hooks[q]] += 1
                depth += 1
                phase[depth] = 0
                continue
            steps += 1
            if steps > last or halt[0]:
                break
            load = 0.0
            value = 0.0
            for v in range(n):
                if now[v] == 1:
                    load += work[v]
                    value += price[v]
            for e in range(p):
                if 0 < into[e] < size[e]:
                    load += cost[e]
            if load < target and value > best:
                best = value
                at = i * kept + found[i] % kept
                found[i] += 1
                for v in range(n):
                    sets[at, v] = now[v] == 1
            room = target - load
            count = 0
            branch, promise = -1, -1.0
            for v in range(n):
                if now[v] != 0:
                    continue
                heavy = work[v]
                near = False
                for q in range(hook_ptr[v], hook_ptr[v + 1]):
                    e = hooks[q]
                    if into[e] > 0:
                        near = True
                        if out[e] == 0:
                            heavy -= cost[e] / (size[e] - into[e])
                    elif out[e] > 0:
                        heavy += cost[e] / (size[e] - out[e])
                if heavy <= 0.0:
                    room -= heavy
                    value += price[v]
                    branch, promise = v, np.inf
                    continue
                if price[v] <= 0.0:
                    continue
                rate = price[v] / heavy
                at = count
                while at > 0 and ratio[at - 1] < rate:
                    ratio[at] = ratio[at - 1]
                    weight[at] = weight[at - 1]
                    at -= 1
                ratio[at] = rate
                weight[at] = heavy
                count += 1
                if near:
                    rate *= 4.0
                if rate > promise:
                    branch, promise = v, rate
            if branch < 0 or room <= 0.0:
                depth -= 1
                continue
            for at in range(count):
                if room <= 0.0:
                    break
                taken = min(weight[at], room)
                value += ratio[at] * taken
                room -= taken
            if value * (1.0 + 1e-9) <= best:
                depth -= 1
                continue
            chosen[depth] = branch
            phase[depth] = 1
            # The branch joins, with all that lies between it and the others.
            after, inside, outs = state[depth + 1], inner[depth + 1], outer[depth + 1]
            after[:] = now
            inside[:] = into
            outs[:] = out
            after[branch] = 1
            added[0] = branch
            new = 1
            fits = True
            done = 0
            while fits and done < new:
                a = added[done]
                done += 1
                for q in range(hook_ptr[a], hook_ptr[a + 1]):
                    inside[hooks[q]] += 1
                for v in range(n):
                    if after[v] == 1:
                        if pairs[a, v] >= target:
                            fits = False
                            break
                        for x in range(n):
                            if held[a, v, x] and after[x] != 1:
                                if after[x] == 2:
                                    fits = False
                                    break
                                after[x] = 1
                                added[new] = x
                                new += 1
                        if not fits:
                            break
            if not fits:
                continue
            for j in range(new):
                a = added[j]
                for v in range(n):
                    if after[v] == 0 and pairs[a, v] >= target:
                        after[v] = 2
                        for q in range(hook_ptr[v], hook_ptr[v + 1]):
                            outs[hooks[q]] += 1
            depth += 1
            phase[depth] = 0
        ended[i] = depth < 0
    return steps
