"""Insertion: every task goes where it ends first, into the first gap that takes it."""

from __future__ import annotations

import numpy as np

from dnnp.core.kernels.kernel import kernel
from dnnp.core.latency.lists.net import Net
from dnnp.core.model.graph import Bools, Floats, Ints

DONE = -1
"""What kernels of list scheduling say when every task has a place; else one that has none."""


@kernel
def insertion(
    net: Net, order: Ints, home: Ints, able: Bools, memory: Floats, limit: Floats
) -> tuple[int, Ints, Floats]:
    """Place tasks in `order`, each where it ends first, in the first gap that takes it.

    Transfers do not wait for each other here. Colours with a home (i64[c], else -1) keep it.
    Returns `DONE` or a task without a place, the device and the start of each task.
    """
    n, count = len(order), len(net.rate)
    home = home.copy()
    room = limit.copy()
    for c in range(len(home)):
        if home[c] >= 0:
            room[home[c]] -= memory[c]
    device = np.full(n, -1, dtype=np.int64)
    start, end = np.zeros(n), np.zeros(n)
    # Busy intervals of each device, in the order of time.
    busy = np.zeros((count, n, 2))
    filled = np.zeros(count, dtype=np.int64)
    for v in order:
        c = net.color[v]
        best, where, begin, gap = np.inf, -1, 0.0, 0
        for d in range(count):
            if home[c] >= 0:
                if home[c] != d:
                    continue
            elif not able[d, c] or memory[c] > room[d]:
                continue
            ready = 0.0
            for a in range(net.in_ptr[v], net.in_ptr[v + 1]):
                f = net.in_idx[a]
                u = net.maker[f]
                if u < 0:
                    continue
                source = device[u]
                when = end[u]
                if source != d:
                    when += (
                        net.latency[source, d]
                        + net.size[f] * net.rate[source, d]
                        + net.fixed[f] * net.charged[source, d]
                    )
                ready = max(ready, when)
            # The first interval that ends after the task could begin.
            low, high = 0, filled[d]
            while low < high:
                middle = (low + high) // 2
                if busy[d, middle, 1] <= ready:
                    low = middle + 1
                else:
                    high = middle
            at = ready
            while low < filled[d] and at + net.time[d, v] > busy[d, low, 0]:
                at = max(ready, busy[d, low, 1])
                low += 1
            if at + net.time[d, v] < best:
                best, where, begin, gap = at + net.time[d, v], d, at, low
        if where < 0:
            return v, device, start
        if home[c] < 0:
            home[c] = where
            room[where] -= memory[c]
        device[v], start[v], end[v] = where, begin, best
        for k in range(filled[where], gap, -1):
            busy[where, k, 0] = busy[where, k - 1, 0]
            busy[where, k, 1] = busy[where, k - 1, 1]
        busy[where, gap, 0], busy[where, gap, 1] = begin, best
        filled[where] += 1
    return DONE, device, start
