"""The most valuable stage: a search for sets of items with a large price and a small load.

Branch and bound over sets that hold whatever lies between their items. With some items in, some
out and the others open, a set has at least the load

    work + cost of the nets with pins in and others elsewhere
         - cost / open for each open pin that joins, of nets without pins out
         + cost / open for each that joins, of nets with pins out and none in.

(A net is saved only if all its open pins join; it is paid as soon as one of them does.) So the open
items are those of a knapsack. With the ratio a of price and load of the item that no longer fits,
a set is worth at most the price of what is in, plus a times the room, plus the gains above 0; the
gain of an item is its price less a times what it adds. An item without whose gain, or with whose
loss and that of all it pulls in, too little would be left is in, or out.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dnnp.core.bound.between import Between
from dnnp.core.bound.flows import Nets
from dnnp.core.cost.combine import MARGIN
from dnnp.core.cost.kernel import kernel
from dnnp.core.model.graph import Floats, Ints, csr

WORD = 63
"""Items to a word of a set."""


class Field(NamedTuple):
    """What sets are made of; numbers are whole."""

    work: Floats
    """f64[n]."""
    size: Ints
    """i64[p], pins of each net; one more, which is out, if the net is always paid."""
    outside: Ints
    """i64[p], 1 if the net is always paid."""
    cost: Floats
    """f64[p]."""
    hook_ptr: Ints
    hooks: Ints
    """Nets of each item (CSR)."""
    held: Ints
    """i64[n, n, words], what lies between two items, as bits."""
    pairs: Floats
    """f64[n, n], least load of a set with two items."""


def field_of(work: Floats, nets: Nets, between: Between, pairs: Floats) -> Field:
    """Lay out items and nets for the search. O(n^3) bits."""
    n = len(work)
    net = np.repeat(np.arange(len(nets.cost), dtype=np.int64), np.diff(nets.ptr))
    hook_ptr, hooks = csr(nets.pins, net, n)
    bit = np.int64(1) << (np.arange(n, dtype=np.int64) % WORD)
    held = np.zeros((n, n, n // WORD + 1), dtype=np.int64)
    for u in range(n):
        for v in range(n):
            some = between.holds(u, v)
            np.bitwise_or.at(held[u, v], some // WORD, bit[some])
    outside = nets.always.astype(np.int64)
    return Field(
        work, np.diff(nets.ptr) + outside, outside, nets.cost, hook_ptr, hooks, held, pairs
    )


@kernel
def best_sets(  # type: ignore[no-untyped-def]
    work,
    size,
    outside,
    cost,
    hook_ptr,
    hooks,
    held,
    pairs,
    price,
    target,
    least,
    roots,
    first,
    step,
    limit,
    halt,
    sets,
    found,
    ended,
):
    """For roots first, first + step, ...: sets with a load below `target`, the root, none of the
    roots before it, and a price above `least`, each of more value than the last.

    Writes the last ones into the rows of `sets`, bool[kept * n, n], that belong to the root, and
    found[i], how many there were. ended[i]: the search took no more than `limit` steps and was not
    halted, so there is no better one. Returns the steps.
    """
    n, p, words = len(work), len(cost), held.shape[2]
    kept = len(sets) // len(roots)
    state = np.zeros((n + 2, n), np.int8)  # 0: open, 1: in, 2: out
    inner = np.zeros((n + 2, p), np.int32)
    outer = np.zeros((n + 2, p), np.int32)
    need = np.zeros((n + 2, n, words), np.int64)
    tried = np.zeros(n + 2, np.bool_)
    chosen = np.zeros(n + 2, np.int64)
    ratio = np.empty(n)
    weight = np.empty(n)
    heavy = np.empty(n)
    near = np.empty(n, np.bool_)
    queue = np.empty(n, np.int64)
    gone = np.empty(words, np.int64)
    opened = np.empty(words, np.int64)
    steps = 0
    for i in range(first, len(roots), step):
        root = roots[i]
        best = least
        found[i] = 0
        last = steps + limit
        state[0] = 0
        inner[0] = 0
        outer[0] = outside
        for v in range(n):
            need[0, v] = held[v, v]
        for j in range(i):
            v = roots[j]
            state[0, v] = 2
            for q in range(hook_ptr[v], hook_ptr[v + 1]):
                outer[0, hooks[q]] += 1
        depth = 0
        entering = root
        while depth >= 0:
            now, into, out, wants = state[depth], inner[depth], outer[depth], need[depth]
            fits = True
            waiting = 0
            if entering >= 0:
                queue[0] = entering
                waiting = 1
                now[entering] = 1
            entering = -1
            while True:
                # Items join, with all that lies between them and the others.
                done = 0
                while fits and done < waiting:
                    a = queue[done]
                    done += 1
                    for q in range(hook_ptr[a], hook_ptr[a + 1]):
                        into[hooks[q]] += 1
                    for v in range(n):
                        if now[v] == 2:
                            continue
                        if pairs[a, v] >= target:
                            if now[v] == 1:
                                fits = False
                                break
                            now[v] = 2
                            for q in range(hook_ptr[v], hook_ptr[v + 1]):
                                out[hooks[q]] += 1
                            continue
                        for w in range(words):
                            wants[v, w] |= held[a, v, w]
                    if not fits:
                        break
                    for x in range(n):
                        if now[x] != 1 and wants[a, x // WORD] >> (x % WORD) & 1:
                            if now[x] == 2:
                                fits = False
                                break
                            now[x] = 1
                            queue[waiting] = x
                            waiting += 1
                if not fits:
                    break
                # Open items that need one that is out are out.
                changed = True
                while changed:
                    changed = False
                    gone[:] = 0
                    for v in range(n):
                        if now[v] == 2:
                            gone[v // WORD] |= np.int64(1) << (v % WORD)
                    for v in range(n):
                        if now[v] == 0:
                            for w in range(words):
                                if wants[v, w] & gone[w]:
                                    now[v] = 2
                                    changed = True
                                    for q in range(hook_ptr[v], hook_ptr[v + 1]):
                                        out[hooks[q]] += 1
                                    break
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
                for v in range(n):
                    if now[v] != 0:
                        continue
                    adds = work[v]
                    near[v] = False
                    for q in range(hook_ptr[v], hook_ptr[v + 1]):
                        e = hooks[q]
                        if into[e] > 0:
                            near[v] = True
                            if out[e] == 0:
                                adds -= cost[e] / (size[e] - into[e])
                        elif out[e] > 0:
                            adds += cost[e] / (size[e] - out[e])
                    heavy[v] = adds
                    if adds <= 0.0:
                        room -= adds
                        value += price[v]
                    elif price[v] > 0.0:
                        rate = price[v] / adds
                        at = count
                        while at > 0 and ratio[at - 1] < rate:
                            ratio[at] = ratio[at - 1]
                            weight[at] = weight[at - 1]
                            at -= 1
                        ratio[at] = rate
                        weight[at] = adds
                        count += 1
                if room <= 0.0:
                    fits = False
                    break
                rate = 0.0
                for at in range(count):
                    if weight[at] > room:
                        rate = ratio[at]
                        value += rate * room
                        break
                    value += ratio[at] * weight[at]
                    room -= weight[at]
                safe = MARGIN * value
                slack = value + safe - best
                if slack <= 0.0:
                    fits = False
                    break
                # What is decided by gains and losses.
                waiting = 0
                forced = False
                for v in range(n):
                    if now[v] != 0:
                        continue
                    if price[v] - rate * heavy[v] > slack + safe:
                        now[v] = 1
                        queue[waiting] = v
                        waiting += 1
                        forced = True
                opened[:] = 0
                for v in range(n):
                    if now[v] == 0:
                        opened[v // WORD] |= np.int64(1) << (v % WORD)
                for v in range(n):
                    if now[v] != 0:
                        continue
                    loss = 0.0
                    for w in range(words):
                        rest = wants[v, w] & opened[w]
                        if w == v // WORD:
                            loss -= min(price[v] - rate * heavy[v], 0.0)
                            rest &= ~(np.int64(1) << (v % WORD))
                        x = w * WORD
                        while rest:
                            if rest & 1 and now[x] == 0:
                                loss -= min(price[x] - rate * heavy[x], 0.0)
                            rest >>= 1
                            x += 1
                    if loss > slack + safe:
                        now[v] = 2
                        forced = True
                        for q in range(hook_ptr[v], hook_ptr[v + 1]):
                            out[hooks[q]] += 1
                if not forced:
                    break
            if steps > last or halt[0]:
                break
            if fits:
                branch, promise, close = -1, -1.0, False
                for v in range(n):
                    if now[v] == 0:
                        if near[v] and not close:
                            branch, promise, close = v, price[v], True
                        elif near[v] == close and price[v] > promise:
                            branch, promise = v, price[v]
                fits = branch >= 0
            if fits:
                chosen[depth] = branch
                tried[depth] = False
                state[depth + 1] = now
                inner[depth + 1] = into
                outer[depth + 1] = out
                need[depth + 1] = wants
                depth += 1
                entering = branch
                continue
            # Back to the last branch that was not tried without its item.
            depth -= 1
            while depth >= 0 and tried[depth]:
                depth -= 1
            if depth >= 0:
                tried[depth] = True
                u = chosen[depth]
                state[depth + 1] = state[depth]
                inner[depth + 1] = inner[depth]
                outer[depth + 1] = outer[depth]
                need[depth + 1] = need[depth]
                state[depth + 1, u] = 2
                for q in range(hook_ptr[u], hook_ptr[u + 1]):
                    outer[depth + 1, hooks[q]] += 1
                depth += 1
        ended[i] = depth < 0
        if halt[0]:
            ended[i] = False
    return steps
