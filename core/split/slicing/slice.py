"""SliceGraph: cut a line into intervals with the least largest load (MTPP Algorithm 1).

Exact for the line's order. Instead of the paper's O(n^2 k) table the least feasible bottleneck
is searched. An infeasible sweep also returns the least load above its target that it met, below
which nothing changes, so the search soon ends with a proof.

A sweep decides a bottleneck, over the starts of intervals from right to left.
For a start l the sweep needs, for every end r, the cost of the nets that [l, r] cuts. With `d`
the changes of that cost along r, moving l to an item touches d at two or three places for each
of the item's pins:

    pins q0 < q1 < q2 of a net of cost c, l has just become q1:
        r:      q1 ........ q2 ........
        cost:   +c          +c (cut: q0 is outside)        d[q1] += c, d[q2] -= c
    (d[q2] held +c from the time when l passed q2)

and when l reaches q0, d[last pin] -= c, since [l, r] then holds the whole net.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dnnp.core.cost.items import LinearizedItems
from dnnp.core.cost.load import Steps, memory_row, most_memory, no_steps, tree_size
from dnnp.core.cost.load_formula import COMM, DUPLEX, ROUNDING, SUM, combine, load_of
from dnnp.core.kernels.kernel import callee, inlined, kernel, lean, plain
from dnnp.core.model.device import offered
from dnnp.core.model.errors import InfeasibleError, LimitError
from dnnp.core.model.graph import Floats, Ints, csr, distinct, totals
from dnnp.core.model.search_context import PLAIN, SearchContext

MAX_HELD = 50_000_000
"""Intervals whose memory is kept between sweeps; 8 bytes each."""

FAR = 5_000
"""Items from which on a sweep may need a tree."""

PATIENCE = 100
"""Ends tried for each item before a sweep makes a tree: it costs about as much."""

MAX_STATES = 50_000_000
"""Items times mixes of device classes; 24 bytes each."""


class SweepProblem(NamedTuple):
    """Arrays that the kernels read. Classes are reordered: the last one is minimised."""

    comm: int
    prefix: Floats
    """f64[C, n + 1], work of the items before each position; 0 where unsupported."""
    reach: Ints
    """i64[C, n], last item of an interval by support and memory."""
    strides: Ints
    """i64[C], mixed-radix strides of the budgets of the first C - 1 classes; last: states."""
    event_ptr: Ints
    """Pins grouped by item (CSR)."""
    following: Ints
    """Next pin of the net, or n."""
    final: Ints
    """Last pin of the net, or n when the whole net still costs."""
    kind: Ints
    """Bit 0: first pin of a net that an interval holding all of it spares; bit 1: producer."""
    cost: Floats
    """f64[C, pins], cost of the pin's net."""
    streamed: bool
    """Memory above capacity costs time."""
    capacity: Floats
    bandwidth: Floats
    steps: Steps
    held: Ints
    """i64[n], where the memory of intervals from an item starts in `rows`; -1: not held."""
    rows: Floats


def sweep_for(line: LinearizedItems, *, streamed: bool) -> Callable[..., float]:
    """The kernel that decides a bottleneck for the devices of a line."""
    one: Callable[..., float] = decide_one if line.n < FAR else decide_far
    return _sweep if len(line.devices) > 1 or streamed else one


def sweep_problem(
    line: LinearizedItems, order: list[int], comm: str, overflow: Steps | None
) -> SweepProblem:
    """Arrange a line for the sweep."""
    n, counts = line.n, line.nets.sizes
    devices = [line.devices[c] for c in order]
    work = np.where(np.isfinite(line.work), line.work, 0.0)[order]
    radix = np.array([d.count for d in devices[:-1]], dtype=np.int64) + 1
    net = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
    first = np.zeros(len(line.nets.pins), dtype=np.bool_)
    first[line.nets.net_ptr[:-1]] = True
    last = np.zeros(len(line.nets.pins), dtype=np.bool_)
    last[line.nets.net_ptr[1:] - 1] = True
    following = np.where(last, n, np.append(line.nets.pins[1:], n))
    final = np.where(line.nets.always[net], n, line.nets.pins[line.nets.net_ptr[1:] - 1][net])
    kind = (first & ~line.nets.always[net]).astype(np.int64) + 2 * (
        line.nets.source[net] == line.nets.pins
    )
    event_ptr, by_item = csr(line.nets.pins, np.arange(len(line.nets.pins)), n)
    capacity = [np.inf if d.is_cpu else d.memory_bytes for d in devices]
    prefix, reach, event_ptr, following, final, kind, cost = plain(
        np.concatenate([np.zeros((len(order), 1)), np.cumsum(work, axis=1)], axis=1),
        line.reach[order],
        event_ptr,
        following[by_item],
        final[by_item],
        kind[by_item],
        line.cost[order][:, net[by_item]],
    )
    return SweepProblem(
        comm=COMM[comm],
        prefix=prefix,
        reach=reach,
        strides=np.cumprod(np.append(1, radix)).astype(np.int64),
        event_ptr=event_ptr,
        following=following,
        final=final,
        kind=kind,
        cost=cost,
        streamed=overflow is not None,
        capacity=np.array(capacity, dtype=np.float64),
        bandwidth=np.array([d.bandwidth_bytes_per_s for d in devices], dtype=np.float64),
        steps=no_steps() if overflow is None else overflow,
        held=np.full(n, -1, dtype=np.int64),
        rows=np.zeros(1),
    )


def hold_rows(problem: SweepProblem, target: float) -> SweepProblem:
    """Compute the memory of every interval that a sweep up to `target` asks for, once.

    At most MAX_HELD intervals are held; a sweep computes the others anew.
    """
    if not problem.streamed:
        return problem
    held = np.full(problem.reach.shape[1], -1, dtype=np.int64)
    rows = np.empty(_place_rows(target, problem, MAX_HELD, held))
    _fill_rows(problem, held, rows)
    return problem._replace(held=held, rows=rows)


@callee
def _enter(problem, c, start, total, out):  # type: ignore[no-untyped-def]
    """Move the start of intervals to an item: update the changes of cost along their end."""
    n = len(problem.event_ptr) - 1
    for i in range(problem.event_ptr[start], problem.event_ptr[start + 1]):
        cost = problem.cost[c, i]
        spared = problem.kind[i] & 1 and problem.final[i] < n
        total[start] += cost
        if problem.following[i] < n:
            total[problem.following[i]] -= cost
        if spared:
            total[problem.final[i]] -= cost
            out[problem.final[i]] -= cost
        if problem.kind[i] & 2:
            out[start] += cost


@callee
def load_of_cut(comm, compute, total, out, extra):  # type: ignore[no-untyped-def]
    """Load of an interval that cuts nets of cost `total`; `out` of these are its own."""
    if comm == DUPLEX:
        return load_of(comm, total - out, compute, extra, out)
    return load_of(comm, total, compute, extra, 0.0)


@callee
def _last_end(problem, c, start, target):  # type: ignore[no-untyped-def]
    """Last item of the intervals of class c from `start` whose compute is within `target`."""
    end = start
    before = problem.prefix[c, start]
    while end < problem.reach[c, start] and problem.prefix[c, end + 2] - before <= target:
        end += 1
    return end


@lean
def _place_rows(target, problem, limit, held):  # type: ignore[no-untyped-def]
    """Give each start its place in the held rows, as far as `limit` goes; return their size."""
    classes, n = problem.reach.shape
    used = 0
    for start in range(n):
        end = start
        for c in range(classes):
            if problem.capacity[c] < np.inf:
                end = max(end, _last_end(problem, c, start, target))
        if used + end - start + 1 <= limit:
            held[start] = used
            used += end - start + 1
    return used


@kernel
def _fill_rows(problem, held, rows):  # type: ignore[no-untyped-def]
    """Memory of every held interval."""
    n = len(held)
    row = np.zeros(n)
    size = tree_size(problem.steps)
    tree_sum = np.zeros(size)
    tree_best = np.zeros(size)
    until = len(rows)
    for start in range(n - 1, -1, -1):
        if held[start] >= 0:
            end = start + until - held[start] - 1
            memory_row(problem.steps, start, end, tree_sum, tree_best, row)
            for i in range(start, end + 1):
                rows[held[start] - start + i] = row[i]
            until = held[start]


@kernel
def _sweep(target, problem, least, choice):  # type: ignore[no-untyped-def]
    """Fill `least` (but for its last row) and `choice` for loads up to `target`; return the least
    load above it met.

    least[l, s]: fewest devices of the last class for the items from l on, with budgets s of
    the other classes. choice[l, s]: end and class of the interval that starts at l.
    """
    classes, n = problem.reach.shape
    strides = problem.strides
    states = strides[classes - 1]
    above = np.inf
    total = np.zeros((classes, n + 1))
    out = np.zeros((classes, n + 1))
    row = np.zeros(n if problem.streamed else 1)
    size = tree_size(problem.steps) if problem.streamed else 1
    tree_sum = np.zeros(size)
    tree_best = np.zeros(size)
    for start in range(n - 1, -1, -1):
        for s in range(states):
            least[start, s] = 1 << 40
        for c in range(classes):
            _enter(problem, c, start, total[c], out[c])
            stop = problem.reach[c, start]
            before = problem.prefix[c, start]
            streamed = problem.streamed and problem.capacity[c] < np.inf and stop >= start
            memory, base = row, 0
            if problem.held[start] >= 0:
                memory, base = problem.rows, problem.held[start] - start
            elif streamed:
                end = _last_end(problem, c, start, target)
                memory_row(problem.steps, start, end, tree_sum, tree_best, row)
            cut = 0.0
            leaving = 0.0
            for r in range(start, stop + 1):
                compute = problem.prefix[c, r + 1] - before
                if compute > target:
                    above = min(above, compute)
                    break
                cut += total[c, r]
                leaving += out[c, r]
                extra = 0.0
                if streamed:
                    excess = max(0.0, memory[base + r] - problem.capacity[c])
                    extra = excess / problem.bandwidth[c]
                load = load_of_cut(problem.comm, compute, cut, leaving, extra)
                if load > target:
                    above = min(above, load)
                elif c == classes - 1:
                    for s in range(states):
                        if least[r + 1, s] + 1 < least[start, s]:
                            least[start, s] = least[r + 1, s] + 1
                            choice[start, s, 0] = r + 1
                            choice[start, s, 1] = c
                else:
                    stride = strides[c]
                    radix = strides[c + 1] // stride
                    for s in range(states):
                        if (s // stride) % radix and least[r + 1, s - stride] < least[start, s]:
                            least[start, s] = least[r + 1, s - stride]
                            choice[start, s, 0] = r + 1
                            choice[start, s, 1] = c
    return above


@callee
def _add(tree, at, change):  # type: ignore[no-untyped-def]
    """Change a leaf: above it the sums, and the largest sum of a part at the end of each node."""
    tree[at, 0] += change
    while at > 1:
        at >>= 1
        tree[at, 0] = tree[2 * at, 0] + tree[2 * at + 1, 0]
        tree[at, 1] = max(tree[2 * at + 1, 1], tree[2 * at + 1, 0] + tree[2 * at, 1])


@callee
def _step_over(tree, work, start, end, cut, most):  # type: ignore[no-untyped-def]
    """Last end up to `end` that is in no block of ends whose loads are above `most`; its cut."""
    level = 0
    while end >= start:
        after = end + 1 - (1 << level)
        at = (len(tree) // 2 + end) >> level
        least = work[end + 1] - work[start] + cut - tree[at, 1]
        if after >= start and after >> level << level == after and least > most:
            cut -= tree[at, 0] - (work[end + 1] - work[after])
            end = after - 1
            level += 1
        elif level > 0:
            level -= 1
        else:
            break
    return end, cut


@inlined
def _decide(target, problem, least, choice, far):  # type: ignore[no-untyped-def]
    """`_sweep` for one class without streaming: near O(n) instead of the sum of windows.

    The window of a start only moves left, so the cost of its longest interval is kept up to
    date, and ends are tried from there backwards. A queue keeps the ends of the window after
    which, going on backwards, only greater values come: so the scan stops where what is left
    cannot be better. What it skips could not have improved this start, so the returned load
    stays valid.

    Where cuts are dear, scans are long. For `far` lines a tree over ends then knows the least load
    of blocks of them, and those are stepped over that are above the least load above the target
    that was met: they would change nothing.
    """
    n = problem.reach.shape[1]
    prefix, reach = problem.prefix[0], problem.reach[0]
    total = np.zeros(n + 1)
    out = np.zeros(n + 1)
    queue = np.empty(n + 1, np.int64)
    oldest = 0
    newest = -1
    above = np.inf
    least[n, 0] = 0
    end = n - 1
    cut = 0.0
    leaving = 0.0
    patience = PATIENCE * n
    tree, work = np.zeros((1, 2)), prefix
    for start in range(n - 1, -1, -1):
        if far and patience < 0 and len(tree) == 1 and problem.comm != DUPLEX:
            size = 1
            while size < n:
                size *= 2
            tree = np.zeros((2 * size, 2))
            work = prefix * (problem.comm == SUM)
            for r in range(n):
                _add(tree, size + r, total[r] + work[r + 1] - work[r])
        planted = far and len(tree) > 1
        for i in range(problem.event_ptr[start], problem.event_ptr[start + 1]):
            cost = problem.cost[0, i]
            total[start] += cost
            cut += cost
            following, final = problem.following[i], problem.final[i]
            if following < n:
                total[following] -= cost
                if planted:
                    _add(tree, len(tree) // 2 + following, -cost)
                if following <= end:
                    cut -= cost
            if problem.kind[i] & 1 and final < n:
                total[final] -= cost
                out[final] -= cost
                if planted:
                    _add(tree, len(tree) // 2 + final, -cost)
                if final <= end:
                    cut -= cost
                    leaving -= cost
            if problem.kind[i] & 2:
                out[start] += cost
                leaving += cost
        if planted:
            r = len(tree) // 2 + start
            _add(tree, r, total[start] + work[start + 1] - work[start] - tree[r, 0])
        while newest >= oldest and least[queue[newest], 0] >= least[start + 1, 0]:
            newest -= 1
        newest += 1
        queue[newest] = start + 1
        while end >= start and (end > reach[start] or prefix[end + 1] - prefix[start] > target):
            if end <= reach[start]:
                above = min(above, prefix[end + 1] - prefix[start])
            cut -= total[end]
            leaving -= out[end]
            end -= 1
        if end < n - 1 and end < reach[start]:
            above = min(above, prefix[end + 2] - prefix[start])
        while oldest <= newest and queue[oldest] > end + 1:
            oldest += 1
        least[start, 0] = 1 << 40
        if end < start:
            cut = 0.0
            leaving = 0.0
            end = start - 1
            oldest = 0
            newest = -1
            continue
        rest = cut
        rest_out = leaving
        best = oldest
        r = end
        while r >= start:
            if planted:
                r, rest = _step_over(tree, work, start, r, rest, above * (1 + ROUNDING))
                if r < start:
                    break
            while queue[best] > r + 1:
                best += 1
            if least[queue[best], 0] + 1 >= least[start, 0]:
                break
            load = load_of_cut(problem.comm, prefix[r + 1] - prefix[start], rest, rest_out, 0.0)
            if load > target:
                above = min(above, load)
            elif least[r + 1, 0] + 1 < least[start, 0]:
                least[start, 0] = least[r + 1, 0] + 1
                choice[start, 0, 0] = r + 1
                choice[start, 0, 1] = 0
            rest -= total[r]
            rest_out -= out[r]
            r -= 1
        if far:
            patience -= end - r
    return above


@kernel
def decide_one(target, problem, least, choice):  # type: ignore[no-untyped-def]
    """`_decide` for lines of a few thousand items."""
    return _decide(target, problem, least, choice, False)


@kernel
def decide_far(target, problem, least, choice):  # type: ignore[no-untyped-def]
    """`_decide` for longer lines."""
    return _decide(target, problem, least, choice, True)


@dataclass(frozen=True)
class Slicing:
    """Intervals of a line: item bounds i64[b + 1], and the class of each interval i64[b]."""

    bounds: Ints
    classes: Ints
    value: float
    """Largest load; NaN if not requested."""


def slice_line(
    line: LinearizedItems,
    comm: str,
    overflow: Steps | None = None,
    below: float = np.inf,
    run: SearchContext = PLAIN,
) -> Slicing | None:
    """Cut `line` into at most `count` intervals of each class, at the least largest load.

    Parameters
    ----------
    line
        Items, nets, costs and reach.
    comm
        `sum`, `overlap` or `duplex`.
    overflow
        The steps of the line, when memory above capacity is streamed (MTPP Eq. 2).
    below
        Look only for slicings with a smaller largest load; None if there is none.
    run
        Asked between sweeps whether to end with the best slicing so far.

    Raises
    ------
    InfeasibleError
        No slicing of this order meets the capacities with the devices there are.
    LimitError
        The mixes of several device classes need too much memory.
    """
    offered_devices, whole = offered(line.devices), line
    line = line.counted() if line.exactly else line
    counts = [d.count for d in line.devices]
    # The class with the most devices is minimised; the others are budgets of the state.
    main = len(counts) - 1 if line.exactly else counts.index(max(counts))
    order = [c for c in range(len(counts)) if c != main] + [main]
    problem = sweep_problem(line, order, comm, _needed(line, overflow))
    states = int(problem.strides[-1])
    if line.n * states > MAX_STATES:
        raise LimitError(
            f"{line.n} items and {states} mixes of device classes are too many for slicing; "
            "coarsen first, or offer fewer classes"
        )
    least = np.empty((line.n + 1, states), dtype=np.int64)
    choice = np.empty((line.n, states, 2), dtype=np.int64)

    starts = np.array([states - 1])
    least[line.n] = 0
    if line.exactly:  # no device is left in the end
        starts = np.flatnonzero(line.ends(problem.strides))
        least[line.n, 1:] = 1 << 40
    sweep = sweep_for(line, streamed=problem.streamed)

    def feasible(target: float) -> tuple[bool, float]:
        above = float(sweep(target, problem, least, choice))
        return bool((least[0, starts] <= counts[main]).any()), above

    def traced() -> Slicing:
        state = int(starts[least[0, starts].argmin()])
        return _trace(line, problem, comm, choice, order, state)

    low = _floor(whole)
    limit = float(np.nextafter(below, 0.0)) if below < np.inf else np.inf
    target, ceiling = 1.5 * low, float(problem.prefix[:, -1].max() + line.cost.sum())
    while True:
        target = min(limit, target if target < ceiling else np.inf)
        done, above = feasible(target)
        if done:
            break
        if target == limit:
            if limit < np.inf:
                return None
            raise InfeasibleError(f"infeasible: no slicing of this order fits {offered_devices}")
        low = max(low, above)
        target = max(above, 2 * target)
    problem = hold_rows(problem, target)
    best = traced()
    high = best.value
    while high - low > ROUNDING * high and not run.stop():
        middle = low + (high - low) / 2
        done, above = feasible(middle)
        if done:
            best = traced()
            high = min(middle, best.value)
        else:
            low = max(above, np.nextafter(middle, np.inf))
    # The sweep adds up in another order, so its idea of `below` may differ by a rounding error.
    return best if best.value < below else None


def _needed(line: LinearizedItems, overflow: Steps | None) -> Steps | None:
    """The steps, if some device could overflow at all."""
    if overflow is None:
        return None
    capacity = min(d.memory_bytes for d in line.devices)
    return overflow if most_memory(overflow) > capacity else None


def _floor(line: LinearizedItems) -> float:
    """Largest of: the mean work of a device, and the largest single item."""
    least = line.work.min(axis=0)
    total = sum(d.count for d in line.devices)
    return float(max(least.max(initial=0.0), least.sum() / max(total, 1) * (1 - ROUNDING)))


def _trace(
    line: LinearizedItems, problem: SweepProblem, comm: str, choice: Ints, order: list[int],
    state: int,
) -> Slicing:  # fmt: skip
    """Slicing of the last sweep, which was feasible from a state."""
    bounds, classes = [0], []
    while bounds[-1] < line.n:
        end, c = choice[bounds[-1], state].tolist()
        bounds.append(end)
        classes.append(order[c])
        if c < len(order) - 1:
            state -= int(problem.strides[c])
    starts, rows = np.array(bounds, dtype=np.int64), np.array(classes, dtype=np.int64)
    return Slicing(starts, rows, float(_interval_loads(line, problem, comm, starts, rows).max()))


def _interval_loads(
    line: LinearizedItems, problem: SweepProblem, comm: str, bounds: Ints, classes: Ints
) -> Floats:
    """Load of every interval, f64[b], from the nets it cuts."""
    blocks = len(classes)
    block = np.repeat(np.arange(blocks), np.diff(bounds))
    compute = totals(block, line.work[classes[block], np.arange(line.n)], blocks)
    net = line.nets.net_of_pin
    pairs = distinct(net * blocks + block[line.nets.pins])
    net, at = pairs // blocks, pairs % blocks
    paid = line.nets.always[net] | (np.bincount(net, minlength=line.nets.net_count) > 1)[net]
    price = np.where(paid, line.cost[classes[at], net], 0.0)
    made = line.nets.source[net] >= 0
    leaving = made & (block[line.nets.source[net]] == at)
    out_s = totals(at, price * leaving, blocks)
    in_s = totals(at, price * ~leaving, blocks)
    loads = np.empty(blocks)
    for b, c in enumerate(classes):
        device, extra = line.devices[c], 0.0
        if problem.streamed and np.isfinite(device.memory_bytes) and not device.is_cpu:
            row = np.zeros(line.n)
            trees = np.zeros((2, tree_size(problem.steps)))
            memory_row(problem.steps, bounds[b], bounds[b + 1] - 1, trees[0], trees[1], row)
            excess = max(0.0, row[bounds[b + 1] - 1] - device.memory_bytes)
            extra = excess / device.bandwidth_bytes_per_s
        loads[b] = combine(COMM[comm], in_s[b], compute[b], extra, out_s[b])
    return loads
