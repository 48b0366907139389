"""Zones of ideals: how many items of a path an ideal holds, what follows for all others.

Let b1 < b2 < ... < bm be items on a path. Every ideal holds a first part of the path, b1..bi: it
lies in zone i. What precedes bi is in it, what follows b(i+1) is not.
"""

from __future__ import annotations

from itertools import accumulate

import numpy as np

from dnnp.core.cost.items import Items
from dnnp.core.cost.load_formula import MARGIN
from dnnp.core.kernels.kernel import kernel, part
from dnnp.core.model.graph import Floats, Ints, csr, totals


def exact_works(share: list[int], first: Ints, m: int) -> list[int]:
    """Work of the items whose `first` zone is at most each of 0..m."""
    sums = [0] * (m + 2)
    for work, zone in zip(share, first.tolist(), strict=True):
        sums[zone] += work
    return list(accumulate(sums[: m + 1]))


def heaviest_path(items: Items, share: Floats) -> Ints:
    """Items of the path with the most work, from its start."""
    ptr, successors = csr(items.tail, items.head, items.count)
    starts, targets = ptr.tolist(), successors.tolist()
    longest, came = share.tolist(), [-1] * items.count
    work = share.tolist()
    for u in items.order.tolist():
        far = longest[u]
        for v in targets[starts[u] : starts[u + 1]]:
            if far + work[v] > longest[v]:
                longest[v], came[v] = far + work[v], u
    path = [int(np.argmax(longest))]
    while came[path[-1]] >= 0:
        path.append(came[path[-1]])
    return np.array(path[::-1], dtype=np.int64)


def zones_of(items: Items, path: Ints) -> tuple[Ints, Ints]:
    """(after, until), i64[n] each: an item is in no ideal of a zone below `after`, and in all from
    zone `until` on. 0 and m + 1 where the path says nothing. O(items + edges).
    """
    n, m = items.count, len(path)
    after = _first_met(*csr(items.tail, items.head, n), path[::-1], m, -1, 0)
    until = _first_met(*csr(items.head, items.tail, n), path, 1, 1, m + 1)
    return after, until


def _first_met(ptr: Ints, others: Ints, path: Ints, first: int, step: int, never: int) -> Ints:
    """Number of the first item of `path` from which each item is reached, or `never`."""
    starts, targets = ptr.tolist(), others.tolist()
    met = [never] * (len(starts) - 1)
    seen = [False] * len(met)
    number = first
    for root in path.tolist():
        if not seen[root]:
            seen[root] = True
            stack = [root]
            while stack:
                u = stack.pop()
                met[u] = number
                for v in targets[starts[u] : starts[u + 1]]:
                    if not seen[v]:
                        seen[v] = True
                        stack.append(v)
        number += step
    return np.array(met, dtype=np.int64)


def works_of(share: Floats, after: Ints, until: Ints, m: int) -> tuple[Floats, Floats]:
    """Least and most work of the ideals of each zone, f64[m + 1] each."""
    total = float(share.sum())
    least = np.cumsum(totals(until, share, m + 2))[: m + 1] - MARGIN * total
    most = np.cumsum(totals(after, share, m + 2))[: m + 1] + MARGIN * total
    return least, np.maximum(most, least)


def never_near(nets: int) -> tuple[Ints, Ints]:
    """For `surely_paid`: every net counts for all pairs of zones."""
    return np.zeros(nets, dtype=np.int64), np.zeros(nets, dtype=np.int64)


@kernel
def surely_paid(pin_ptr, pins, always, cost, after, until, first, last, paid):  # type: ignore[no-untyped-def]
    """Add to `paid[i', i - i']` the cost of each net that any stage between these zones pays.

    A pin is surely inside if after > i' and until <= i, surely outside if until <= i' or
    after > i. Pairs with an end in the zones first[e]..last[e] - 1 of a net do not count it.
    `paid` is f64[m + 1, width]; zones that are further apart are left out.
    """
    m, width = len(paid) - 1, paid.shape[1]
    # soonest[i']: the first zone i by which some pin with after > i' is surely inside.
    soonest = np.empty(m + 1, np.int64)
    for e in range(len(cost)):
        left, right, begun = m + 1, 0, m
        for q in range(pin_ptr[e], pin_ptr[e + 1]):
            v = pins[q]
            left = min(left, until[v])
            right = max(right, after[v])
            begun = min(begun, after[v])
        begun = max(begun - width, 0)  # nothing is surely inside soon enough before that
        soonest[begun:right] = m + 1
        for q in range(pin_ptr[e], pin_ptr[e + 1]):
            v = pins[q]
            if after[v] > begun:
                soonest[after[v] - 1] = min(soonest[after[v] - 1], until[v])
        for before in range(right - 1, begun - 1, -1):
            if before + 1 < right:
                soonest[before] = min(soonest[before], soonest[before + 1])
            if first[e] <= before < last[e]:
                continue
            end = m if always[e] or before >= left else right - 1
            start = soonest[before]
            if first[e] < last[e]:
                _pay(paid, before, start, min(end, first[e] - 1), cost[e])
                start = max(start, last[e])
            _pay(paid, before, start, end, cost[e])
    for before in range(m + 1):
        total = 0.0
        for i in range(width):
            total += paid[before, i]
            paid[before, i] = total


@part
def _pay(paid, before, start, end, cost):  # type: ignore[no-untyped-def]
    """Add to the changes of a row what zones start..end pay."""
    if start <= end and start - before < paid.shape[1]:
        paid[before, start - before] += cost
        if end + 1 - before < paid.shape[1]:
            paid[before, end + 1 - before] -= cost
