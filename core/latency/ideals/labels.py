"""Labels of an ideal, those that come in and those that are kept: kernels."""

from __future__ import annotations

import numpy as np

from dnnp.core.cost.kernel import callee


@callee
def offer_label(net, tables, s, ideal, way, done, came):  # type: ignore[no-untyped-def]
    """Keep the label `s.value`, `done` unless one that is there is nowhere above it.

    Where there is no room it becomes one with the nearest, the least of both in each value.
    """
    begin, width = net.live_ptr[ideal], net.live_ptr[ideal + 1] - net.live_ptr[ideal]
    first = way * net.slots
    free, near, least = -1, -1, np.inf
    for c in range(first, first + net.slots):
        if tables.done[ideal, c] == np.inf:
            if free < 0:
                free = c
            continue
        above, below, apart = tables.done[ideal, c] <= done, done <= tables.done[ideal, c], 0.0
        for p in range(width):
            more = s.value[p] - tables.early[begin + p, c]
            above, below, apart = above and more >= 0.0, below and more <= 0.0, apart + abs(more)
        if above:
            return
        if below:
            tables.done[ideal, c] = np.inf
            if free < 0:
                free = c
        elif apart < least:
            near, least = c, apart
    if free >= 0:
        tables.done[ideal, free] = done
        tables.came[ideal, free] = came
        for p in range(width):
            tables.early[begin + p, free] = s.value[p]
        return
    tables.merged[0] += 1
    if done < tables.done[ideal, near]:
        tables.done[ideal, near] = done
        tables.came[ideal, near] = came
    for p in range(width):
        tables.early[begin + p, near] = min(tables.early[begin + p, near], s.value[p])
