"""Peak memory of every interval of a line: how far one may reach, and what it needs.

For an interval [l, r] of a fixed order, a tensor made inside lives until its last reader, or
to the end if that lies outside; so it is live at step p exactly when its last reader is at p
or later, whatever r is. A tensor that enters lives until its last reader inside. Hence peak
memory never falls when an interval grows, and the live set of the whole order bounds it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dnnp.core.cost.load_formula import ROOM
from dnnp.core.kernels.kernel import callee, inlined, kernel, lean, plain
from dnnp.core.model.graph import PARAMETER, Floats, Graph, Ints, csr, place_of, totals


class Steps(NamedTuple):
    """Nodes in execution order, with what each step reads and makes.

    Steps are 0..n-1. Uses are grouped by step (`use_ptr`); each knows the step of the previous
    use of its tensor (-1: none) and the tensor's birth (-1: before the start).
    """

    bounds: Ints
    """i64[items + 1], first step of each item."""
    use_ptr: Ints
    use_previous: Ints
    use_next: Ints
    """Next use of the tensor; n: none."""
    use_birth: Ints
    use_bytes: Floats
    made_ptr: Ints
    made_bytes: Floats
    made_last: Ints
    """Last use of a tensor made here; n if it is a model output, the step itself if unused."""
    param_ptr: Ints
    param_previous: Ints
    param_next: Ints
    param_bytes: Floats
    live: Floats
    """f64[n], bytes live at each step when the whole order is one interval."""
    own: Floats
    """f64[n], bytes of the activations a step reads and makes; a floor of any interval's peak."""


def peak_steps(graph: Graph, bounds: Ints, nodes: Ints) -> Steps:
    """Steps of `nodes` (positions in execution order) for the `peak` model."""
    graph = graph.in_memory
    n = len(nodes)
    step = place_of(nodes)
    static = graph.tensor_kind >= PARAMETER
    tensor = np.repeat(np.arange(graph.m, dtype=np.int64), np.diff(graph.use_ptr))
    at = step[graph.use_idx]
    order = np.lexsort((at, tensor))
    tensor, at = tensor[order], at[order]
    same_before = np.append(False, tensor[1:] == tensor[:-1]) if len(tensor) else np.zeros(0, bool)
    previous = np.where(same_before, np.roll(at, 1), -1)
    same_after = np.append(tensor[1:] == tensor[:-1], False) if len(tensor) else np.zeros(0, bool)
    following = np.where(same_after, np.roll(at, -1), n)
    last = np.full(graph.m, -1, dtype=np.int64)
    np.maximum.at(last, tensor, at)
    birth = np.where(graph.producer >= 0, step[graph.producer], -1)
    made = np.flatnonzero(graph.producer >= 0)
    made_ptr, made = csr(birth[made], made, n)
    ends = np.where(graph.is_output[made], n, np.maximum(last[made], birth[made]))
    use, param = ~static[tensor], static[tensor]
    use_ptr, use_order = csr(at[use], np.flatnonzero(use), n)
    param_ptr, param_order = csr(at[param], np.flatnonzero(param), n)
    size = graph.tensor_bytes
    entered = np.flatnonzero((graph.producer < 0) & ~static & (last >= 0))
    starts = np.concatenate([birth[made], np.zeros(len(entered), dtype=np.int64)])
    stops = np.concatenate([np.minimum(ends, n - 1), last[entered]]) + 1
    weights = size[np.concatenate([made, entered])]
    change = totals(starts, weights, n + 1)
    change -= totals(stops, weights, n + 1)
    own = totals(at[use], size[tensor[use]], n)
    own += totals(birth[made], size[made], n)
    steps = Steps(
        bounds=bounds,
        use_ptr=use_ptr,
        use_previous=previous[use_order],
        use_next=following[use_order],
        use_birth=birth[tensor[use_order]],
        use_bytes=size[tensor[use_order]],
        made_ptr=made_ptr,
        made_bytes=size[made],
        made_last=ends,
        param_ptr=param_ptr,
        param_previous=previous[param_order],
        param_next=following[param_order],
        param_bytes=size[tensor[param_order]],
        live=np.cumsum(change)[:n],
        own=own,
    )
    return Steps(*plain(*steps))


def summed_steps(bounds: Ints, memory: Floats) -> Steps:
    """Steps for the `sum` model: each holds `memory` (f64[n], bytes) to itself."""
    n = len(memory)
    none, nothing = np.zeros(0, dtype=np.int64), np.zeros(0)
    empty, index = np.zeros(n + 1, dtype=np.int64), np.arange(n + 1, dtype=np.int64)
    steps = Steps(
        bounds=bounds,
        use_ptr=empty,
        use_previous=none,
        use_next=none,
        use_birth=none,
        use_bytes=nothing,
        made_ptr=empty,
        made_bytes=nothing,
        made_last=none,
        param_ptr=index,
        param_previous=np.full(n, -1, dtype=np.int64),
        param_next=np.full(n, n, dtype=np.int64),
        param_bytes=memory,
        live=np.zeros(n),
        own=np.zeros(n),
    )
    return Steps(*plain(*steps))


def no_steps() -> Steps:
    """No steps at all; for kernels that must be given some."""
    return summed_steps(np.zeros(1, dtype=np.int64), np.zeros(0))


def most_memory(steps: Steps) -> float:
    """Bytes that no interval of these steps can exceed."""
    unique = steps.param_bytes[steps.param_previous < 0]
    return float(unique.sum() + steps.live.max(initial=0.0))


def peak_reach(steps: Steps, capacity: float) -> Ints:
    """Last item of the longest interval from each item that fits `capacity` bytes; i64[items].

    An item that alone does not fit gives its own position minus one.
    """
    reach: Ints = _peak_reach(steps, capacity * ROOM)
    return reach


@inlined
def _peak(steps, left, right, change):  # type: ignore[no-untyped-def]
    """Peak of live activations over the steps left..right run as one interval."""
    for p in range(right - left + 2):
        change[p] = 0.0
    for p in range(left, right + 1):
        for i in range(steps.made_ptr[p], steps.made_ptr[p + 1]):
            change[p - left] += steps.made_bytes[i]
            change[min(steps.made_last[i], right) - left + 1] -= steps.made_bytes[i]
        for i in range(steps.use_ptr[p], steps.use_ptr[p + 1]):
            # A tensor that enters: its last use inside ends its life.
            if steps.use_birth[i] < left and steps.use_next[i] > right:
                change[0] += steps.use_bytes[i]
                change[p - left + 1] -= steps.use_bytes[i]
    best = 0.0
    total = 0.0
    for p in range(right - left + 1):
        total += change[p]
        best = max(best, total)
    return best


@kernel
def _peak_reach(steps, capacity):  # type: ignore[no-untyped-def]
    bounds = steps.bounds
    items = len(bounds) - 1
    reach = np.empty(items, np.int64)
    change = np.zeros(bounds[items] + 2)
    item_live = np.zeros(items)
    item_own = np.zeros(items)
    for i in range(items):
        for p in range(bounds[i], bounds[i + 1]):
            item_live[i] = max(item_live[i], steps.live[p])
            item_own[i] = max(item_own[i], steps.own[p])
    # Queues of items whose values fall from the left; the oldest holds the window's maximum.
    live_queue, own_queue = np.empty(items, np.int64), np.empty(items, np.int64)
    live_old, live_new, own_old, own_new = 0, -1, 0, -1
    params = 0.0
    last = items - 1
    for first in range(items - 1, -1, -1):
        left = bounds[first]
        right = bounds[last + 1] - 1
        for p in range(bounds[first + 1] - 1, left - 1, -1):
            for i in range(steps.param_ptr[p], steps.param_ptr[p + 1]):
                if steps.param_next[i] > right:
                    params += steps.param_bytes[i]
        live_new = _push(live_queue, live_old, live_new, item_live, first)
        own_new = _push(own_queue, own_old, own_new, item_own, first)
        while last >= first:
            while live_queue[live_old] > last:
                live_old += 1
            while own_queue[own_old] > last:
                own_old += 1
            if params + item_live[live_queue[live_old]] <= capacity:
                break
            if params + item_own[own_queue[own_old]] <= capacity and (
                params + _peak(steps, left, right, change) <= capacity
            ):
                break
            for p in range(bounds[last], bounds[last + 1]):
                for i in range(steps.param_ptr[p], steps.param_ptr[p + 1]):
                    if steps.param_previous[i] < left:
                        params -= steps.param_bytes[i]
            last -= 1
            right = bounds[last + 1] - 1
        if last < first:
            live_old, live_new, own_old, own_new = 0, -1, 0, -1
        reach[first] = last
    return reach


@callee
def _push(queue, oldest, newest, values, item):  # type: ignore[no-untyped-def]
    """Put `item` in front of a queue of window maxima; return the new front."""
    while newest >= oldest and values[queue[newest]] <= values[item]:
        newest -= 1
    queue[newest + 1] = item
    return newest + 1


@lean
def memory_row(steps, first, last, tree_sum, tree_best, row):  # type: ignore[no-untyped-def]
    """Memory of the intervals [first, r] for r = first..last, into row[first..last].

    Live bytes are prefix sums of the changes at each step; a tree over the steps keeps the
    largest prefix sum under point updates. `tree_size` says how long the trees must be.
    """
    bounds = steps.bounds
    left = bounds[first]
    width = 1
    while width < bounds[last + 1] - left + 1:
        width *= 2
    for i in range(2 * width):
        tree_sum[i] = 0.0
        tree_best[i] = 0.0
    params = 0.0
    for item in range(first, last + 1):
        for p in range(bounds[item], bounds[item + 1]):
            for i in range(steps.param_ptr[p], steps.param_ptr[p + 1]):
                if steps.param_previous[i] < left:
                    params += steps.param_bytes[i]
            for i in range(steps.made_ptr[p], steps.made_ptr[p + 1]):
                size = steps.made_bytes[i]
                _add(tree_sum, tree_best, width, p - left, size)
                if steps.made_last[i] + 1 - left < width:
                    _add(tree_sum, tree_best, width, steps.made_last[i] + 1 - left, -size)
            for i in range(steps.use_ptr[p], steps.use_ptr[p + 1]):
                if steps.use_birth[i] < left:
                    size = steps.use_bytes[i]
                    since = max(steps.use_previous[i] + 1, left)
                    _add(tree_sum, tree_best, width, since - left, size)
                    _add(tree_sum, tree_best, width, p + 1 - left, -size)
        row[item] = params + tree_best[1]


@lean
def tree_size(steps):  # type: ignore[no-untyped-def]
    """Length of the trees that `memory_row` works in."""
    size = 4
    while size < 2 * (steps.bounds[-1] + 1):
        size *= 2
    return size


@callee
def _add(tree_sum, tree_best, width, place, value):  # type: ignore[no-untyped-def]
    i = width + place
    tree_sum[i] += value
    tree_best[i] = max(tree_sum[i], 0.0)
    i //= 2
    while i:
        tree_sum[i] = tree_sum[2 * i] + tree_sum[2 * i + 1]
        tree_best[i] = max(tree_best[2 * i], tree_sum[2 * i] + tree_best[2 * i + 1])
        i //= 2
