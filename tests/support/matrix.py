"""SliceGraph with tables: all segment costs at once (MTPP Algorithms 1, 4 and 5).

For orders of some hundred items, in O(n^2) memory; `dnnp.core.split.slicing.slice` needs O(n) and
finds the same value. The paper adds a tensor's size to rectangles of segments (l, r) with a Fenwick
tree; here the corners of the rectangles are noted, and two running sums fill them all.
"""

from __future__ import annotations

import numpy as np

from dnnp.core.cost.items import LinearizedItems
from dnnp.core.cost.load import Steps, memory_row, tree_size
from dnnp.core.cost.load_formula import COMM, combine_arrays
from dnnp.core.model.errors import InfeasibleError, LimitError
from dnnp.core.model.graph import Floats, Ints

MAX_ITEMS = 4_000
"""Items of a line; a table of their segments takes 128 MB, and there are up to six of them."""


def segment_costs(
    line: LinearizedItems, comm: str, c: int = 0, overflow: Steps | None = None
) -> Floats:
    """Load of every interval of a line on class `c`, f64[n, n]; O(n^2 + pins).

    Row l, column r is that of the items l..r; inf where l > r, or where the class cannot run
    them all or hold them.

    Parameters
    ----------
    comm
        `sum`, `overlap` or `duplex`.
    overflow
        The steps of the line, when memory above capacity is streamed (MTPP Eq. 2); this takes
        O(log n) for each interval and pin.

    Raises
    ------
    LimitError
        More than `MAX_ITEMS` items.
    """
    n, device = line.n, line.devices[c]
    if n > MAX_ITEMS:
        raise LimitError(
            f"{n} items are too many for a table of segment costs: at most {MAX_ITEMS}"
        )
    both, leaving = _transfers(line, c)
    before = np.append(0.0, np.cumsum(np.where(np.isfinite(line.work[c]), line.work[c], 0.0)))
    compute = before[None, 1:] - before[:-1, None]
    extra = np.zeros((1, 1))
    if overflow is not None and np.isfinite(device.memory_bytes) and not device.is_cpu:
        held = _memory(overflow, line.reach[c])
        extra = np.maximum(held - device.memory_bytes, 0.0) / device.bandwidth_bytes_per_s
    sent: Floats = leaving if comm == "duplex" else np.zeros((1, 1))  # else in and out add up
    costs = combine_arrays(COMM[comm], both - sent, compute, extra, sent)
    ends = np.arange(n)
    costs[(ends < ends[:, None]) | (ends > line.reach[c][:, None])] = np.inf
    return costs


def slice_matrix(costs: Floats, k: int) -> tuple[float, Ints]:
    """Cut a line into at most `k` intervals, at the least largest cost (MTPP Algorithm 1).

    Parameters
    ----------
    costs
        f64[n, n] of `segment_costs`; O(n^2 k).
    k
        Devices.

    Returns
    -------
    The largest cost, and the bounds of the intervals, i64[b + 1] from 0 to n.

    Raises
    ------
    InfeasibleError
        No `k` intervals have a finite cost.
    """
    n = len(costs)
    # least[r]: value of the first r items, in at most as many intervals as were counted so far.
    least = np.full(n + 1, np.inf)
    least[0] = 0.0
    choices: list[Ints] = []
    for _ in range(k):
        values = np.maximum(least[:-1, None], costs)
        start = values.argmin(axis=0) if n else np.zeros(0, dtype=np.int64)
        value = values[start, np.arange(n)]
        better = value < least[1:]
        if not better.any():
            break
        choices.append(np.where(better, start, -1))
        least[1:] = np.where(better, value, least[1:])
    if least[n] == np.inf:
        raise InfeasibleError(f"infeasible: no slicing of this order fits {k} devices")
    bounds = [n]
    for choice in reversed(choices):
        if bounds[-1] > 0 and choice[bounds[-1] - 1] >= 0:
            bounds.append(int(choice[bounds[-1] - 1]))
    return float(least[n]), np.array(bounds[::-1], dtype=np.int64)


def _transfers(line: LinearizedItems, c: int) -> tuple[Floats, Floats]:
    """Transfer time of every interval, in both directions and outwards; f64[n, n] each.

    An interval that holds a pin of a net pays for it, but for one that spares the net by holding
    all of its pins. The interval belongs to the first pin it holds: that is a rectangle for each
    pin, of the starts after the pin before and the ends from the pin on.
    """
    n, cost = line.n, line.cost[c]
    count = line.nets.sizes
    net = np.repeat(np.arange(len(count)), count)
    before = np.append(-1, line.nets.pins[:-1]) if len(line.nets.pins) else line.nets.pins
    before[line.nets.net_ptr[:-1]] = -1
    spared = np.flatnonzero(~line.nets.always)
    first, last = line.nets.pins[line.nets.net_ptr[:-1]], line.nets.pins[line.nets.net_ptr[1:] - 1]
    made = np.flatnonzero(line.nets.source >= 0)
    both = _rectangles(
        n,
        (before + 1, line.nets.pins, line.nets.pins, cost[net]),
        (np.zeros_like(spared), first[spared], last[spared], -cost[spared]),
    )
    own = np.intersect1d(spared, made)
    leaving = _rectangles(
        n,
        (np.zeros_like(made), line.nets.source[made], line.nets.source[made], cost[made]),
        (np.zeros_like(own), first[own], last[own], -cost[own]),
    )
    return both, leaving


def _rectangles(n: int, *parts: tuple[Ints, Ints, Ints, Floats]) -> Floats:
    """Add up weights over rectangles (first start, last start, first end; weight); f64[n, n]."""
    low, high, end, weight = (np.concatenate(column) for column in zip(*parts, strict=True))
    corners = np.concatenate([low * n + end, (high + 1) * n + end])
    flat = np.bincount(corners, np.concatenate([weight, -weight]), minlength=(n + 1) * n)
    table = flat.reshape(n + 1, n)[:n]
    return np.cumsum(np.cumsum(table, axis=0), axis=1)


def _memory(steps: Steps, reach: Ints) -> Floats:
    """Memory of every interval, as far as it may reach; f64[n, n], bytes."""
    n = len(reach)
    held = np.zeros((n, n))
    trees = np.zeros((2, tree_size(steps)))
    for start in range(n):
        if reach[start] >= start:
            memory_row(steps, start, int(reach[start]), trees[0], trees[1], held[start])
    return held
