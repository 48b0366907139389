"""Topological orders by the hundred thousand: from node priorities to the value of a slicing.

The decoder of MTPP Algorithm 2 in compiled form. Kahn's algorithm with priorities (Algorithm 3)
gives an order; the order is laid out for the sweep of `dnnp.core.split.slicing.slice`, and the
least bottleneck is searched. A candidate that cannot beat an incumbent is rejected by one sweep.

Orders that are given, as a sequence of units or by priorities of them, are Kahn's, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, NamedTuple

import numpy as np

from dnnp.core.cost.items import Items, LinearizedItems
from dnnp.core.cost.load import no_steps
from dnnp.core.cost.load_formula import COMM, ROUNDING
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.kernels.kernel import callee, inlined, kernel, lean, plain, scratch
from dnnp.core.model.errors import FormatError, UsageError
from dnnp.core.model.graph import Clustering, Floats, Ints, contract, csr, offsets, place_of
from dnnp.core.model.hypergraph import Hypergraph
from dnnp.core.model.processes import search_threads
from dnnp.core.split.slicing.slice import SweepProblem, decide_one, load_of_cut

CHUNK_ITEMS, MOST_CHUNK = 20_000, 32
"""Items, and orders at most, that one thread takes at a time; for any number of threads."""

FIRST_STEP = 0.004
"""Relative step away from a guessed bottleneck."""

SLICING, LENGTH = 0, 1
"""Goals: the bottleneck of the best slicing, or the length of all edges."""


class OrderProblem(NamedTuple):
    """Items without an order and the nets among them, for one class of devices."""

    nets: Hypergraph
    devices: int
    comm: int
    ptr: Ints
    successors: Ints
    indegree: Ints
    weight: Floats
    """f64[edges], weight of each edge for `LENGTH`."""
    work: Floats
    """f64[n]."""
    cost: Floats
    """f64[p]."""


def order_problem(line: LinearizedItems, comm: str, *, weighted: bool) -> OrderProblem:
    """The items of a line, to be put in other orders; slicing heeds its first class only.

    `weighted` says whether an edge weighs the time to move the tensors on it, or 1.
    """
    by_tail = np.lexsort((line.head, line.tail))
    tail, head = line.tail[by_tail], line.head[by_tail]
    weight = np.ones(len(head))
    if weighted:
        net, source = line.nets.net_of_pin, line.nets.source
        made = (source >= 0)[net]
        key = source[net] * line.n + line.nets.pins
        cost = line.cost[0, net] * made
        edges = tail * line.n + head
        at = np.searchsorted(edges, key)
        hit = made & (at < len(edges))
        hit[hit] = edges[at[hit]] == key[hit]
        weight = np.bincount(at[hit], cost[hit], minlength=len(edges)).astype(np.float64)
    indegree = np.bincount(head, minlength=line.n).astype(np.int64)
    ptr = offsets(np.bincount(tail, minlength=line.n))
    arrays = plain(ptr, head, indegree, weight, line.work[0], line.cost[0])
    return OrderProblem(line.nets, line.devices[0].count, COMM[comm], *arrays)


def kahn_with_priorities(tail: Ints, head: Ints, priorities: Sequence[float] | Floats) -> Ints:
    """Kahn's order that takes the ready item of highest priority (MTPP Algorithm 3).

    Parameters
    ----------
    tail, head
        Edges among items 0..n-1; acyclic.
    priorities
        f64[n], one for each item; ties go to the item that comes first.

    Raises UsageError: priorities that are too few or not numbers.
    """
    values = np.ascontiguousarray(priorities, dtype=np.float64)
    n = len(values)
    if values.ndim != 1 or max(tail.max(initial=-1), head.max(initial=-1)) >= n:
        raise UsageError(f"{values.size} priorities are too few for the items")
    if np.isnan(values).any():
        raise UsageError(f"the priority of item {int(np.isnan(values).argmax())} is not a number")
    order = np.empty(n, dtype=np.int64)
    ptr, successors = csr(tail, head, n)
    left = np.bincount(head, minlength=n).astype(np.int64)
    _kahn(ptr, np.ascontiguousarray(successors), left, values, order, _heaps(n))
    return order


def _heaps(n: int) -> Ints:
    return np.empty((2, n + 1), dtype=np.int64)


@lean
def _kahn(ptr, successors, indegree, priorities, order, scratch):  # type: ignore[no-untyped-def]
    """Fill `order`; the heap holds the ready items, highest priority and then first item on top."""
    n = len(order)
    left, heap = scratch[0], scratch[1]
    size = 0
    for v in range(n):
        left[v] = indegree[v]
        if indegree[v] == 0:
            size = _push(heap, size, priorities, v)
    for i in range(n):
        u = heap[0]
        size = _pop(heap, size, priorities)
        order[i] = u
        for q in range(ptr[u], ptr[u + 1]):
            v = successors[q]
            left[v] -= 1
            if left[v] == 0:
                size = _push(heap, size, priorities, v)


@inlined
def _before(priorities, a, b):  # type: ignore[no-untyped-def]
    return priorities[a] > priorities[b] or (priorities[a] == priorities[b] and a < b)


@inlined
def _push(heap, size, priorities, item):  # type: ignore[no-untyped-def]
    at = size
    while at > 0:
        above = (at - 1) >> 1
        if not _before(priorities, item, heap[above]):
            break
        heap[at] = heap[above]
        at = above
    heap[at] = item
    return size + 1


@inlined
def _pop(heap, size, priorities):  # type: ignore[no-untyped-def]
    """Take the top away."""
    size -= 1
    item = heap[size]
    at = 0
    while True:
        below = 2 * at + 1
        if below >= size:
            break
        if below + 1 < size and _before(priorities, heap[below + 1], heap[below]):
            below += 1
        if not _before(priorities, heap[below], item):
            break
        heap[at] = heap[below]
        at = below
    heap[at] = item
    return size


class Layout(NamedTuple):
    """Memory to lay one order out in and slice it."""

    sweep: SweepProblem
    place: Annotated[Ints, "i64[items]"]
    """Position of each item."""
    first: Annotated[Ints, "i64[nets]"]
    last: Annotated[Ints, "i64[nets]"]
    """First and last position of each net."""
    order: Annotated[Ints, "i64[items]"]
    heaps: Annotated[Ints, "i64[2, ends]"]
    least: Annotated[Ints, "i64[ends, 1]"]
    choice: Annotated[Ints, "i64[items, 1, 2]"]


def _layout(problem: OrderProblem) -> Layout:
    n, events = len(problem.work), len(problem.nets.pins)
    none = np.zeros(events, dtype=np.int64)
    sweep = SweepProblem(
        comm=problem.comm,
        prefix=np.zeros((1, n + 1)),
        reach=np.full((1, n), n - 1, dtype=np.int64),
        strides=np.ones(1, dtype=np.int64),
        event_ptr=np.zeros(n + 1, dtype=np.int64),
        following=none,
        final=none.copy(),
        kind=none.copy(),
        cost=np.zeros((1, events)),
        streamed=False,
        capacity=np.full(1, np.inf),
        bandwidth=np.full(1, np.inf),
        steps=no_steps(),
        held=np.full(n, -1, dtype=np.int64),
        rows=np.zeros(1),
    )
    return scratch(Layout, {"items": n, "ends": n + 1, "nets": len(problem.cost)}, sweep=sweep)


@inlined
def _lay_out(problem, layout):  # type: ignore[no-untyped-def]
    """Arrange the sweep for `layout.order`, as `sweep_problem` does; O(n + pins)."""
    n = len(problem.work)
    sweep, first, last, order = layout.sweep, layout.first, layout.last, layout.order
    item_ptr, item_net = problem.nets.item_ptr, problem.nets.item_net
    source, always = problem.nets.source, problem.nets.always
    for e in range(len(first)):
        first[e] = n
    event = len(item_net)
    for i in range(n - 1, -1, -1):
        item = order[i]
        layout.place[item] = i
        sweep.event_ptr[i + 1] = event
        for q in range(item_ptr[item], item_ptr[item + 1]):
            event -= 1
            e = item_net[q]
            if first[e] == n:
                last[e] = i
            sweep.following[event] = first[e]
            sweep.final[event] = n if always[e] else last[e]
            sweep.kind[event] = 2 if source[e] == item else 0
            sweep.cost[0, event] = problem.cost[e]
            first[e] = i
    event = 0
    total = 0.0
    for i in range(n):
        item = order[i]
        total += problem.work[item]
        sweep.prefix[0, i + 1] = total
        for q in range(item_ptr[item + 1] - 1, item_ptr[item] - 1, -1):
            e = item_net[q]
            if first[e] == i and not always[e]:
                sweep.kind[event] += 1
            event += 1


@callee
def _largest(problem, layout):  # type: ignore[no-untyped-def]
    """Largest load of the slicing that the last sweep found; O(n + pins)."""
    n = len(problem.work)
    sweep, choice, first, last = layout.sweep, layout.choice, layout.first, layout.last
    item_ptr, item_net = problem.nets.item_ptr, problem.nets.item_net
    always = problem.nets.always
    largest = 0.0
    start = 0
    while start < n:
        end = choice[start, 0, 0]
        compute = sweep.prefix[0, end] - sweep.prefix[0, start]
        total = 0.0
        leaving = 0.0
        for i in range(start, end):
            item = layout.order[i]
            event = sweep.event_ptr[i + 1]
            for q in range(item_ptr[item], item_ptr[item + 1]):
                event -= 1
                e = item_net[q]
                # Only the last pin within the interval speaks for the net.
                if sweep.following[event] < end:
                    continue
                if always[e] or first[e] < start or last[e] >= end:
                    total += problem.cost[e]
                    source = problem.nets.source[e]
                    if source >= 0 and layout.place[source] >= start:
                        leaving += problem.cost[e] * (layout.place[source] < end)
        largest = max(largest, load_of_cut(problem.comm, compute, total, leaving, 0.0))
        start = end
    return largest


@inlined
def _slice(problem, layout, below, guess):  # type: ignore[no-untyped-def]
    """Least largest load of slicing `layout.order`, if it is smaller than `below`; else inf.

    A good `guess` (0: none) saves sweeps: targets leave it in growing steps, both ways.
    """
    sweep, least, choice = layout.sweep, layout.least, layout.choice
    n = len(problem.work)
    low = 0.0
    for i in range(n):
        low = max(low, problem.work[i])
    low = max(low, sweep.prefix[0, n] / problem.devices * (1 - ROUNDING))
    high = below
    limit = below * (1 - ROUNDING)
    step = FIRST_STEP if guess > low else 0.25
    target = limit if below < np.inf else max(guess, 1.25 * low if guess <= low else low)
    while True:
        above = decide_one(target, sweep, least, choice)
        if least[0, 0] <= problem.devices:
            high = _largest(problem, layout)
            break
        if target >= limit:
            return np.inf
        low = max(low, above)
        target = min(limit, max(above, (1 + step) * target))
        step *= 2
    step = FIRST_STEP
    while high - low > ROUNDING * high:
        middle = max(low + (high - low) / 2, (1 - step) * high)
        step *= 2
        above = decide_one(middle, sweep, least, choice)
        if least[0, 0] <= problem.devices:
            high = min(middle, _largest(problem, layout))
        else:
            low = max(above, np.nextafter(middle, np.inf))
            step = 1.0
    return high


@inlined
def _length(problem, layout):  # type: ignore[no-untyped-def]
    """Length of all edges, weighted, in `layout.order` (minimum linear arrangement)."""
    for i in range(len(problem.work)):
        layout.place[layout.order[i]] = i
    total = 0.0
    for u in range(len(problem.work)):
        for q in range(problem.ptr[u], problem.ptr[u + 1]):
            total += problem.weight[q] * (layout.place[problem.successors[q]] - layout.place[u])
    return total


@kernel
def values_of_rows(problem, layout, goal, priorities, below, reject, values):  # type: ignore[no-untyped-def]
    """Value of the order of each row of `priorities`, f64[c, n], into `values`.

    With `reject`, inf where a value is no smaller than `below` or than one before it.
    """
    guess = 0.0
    for c in range(len(priorities)):
        _kahn(
            problem.ptr,
            problem.successors,
            problem.indegree,
            priorities[c],
            layout.order,
            layout.heaps,
        )
        if goal == LENGTH:
            values[c] = _length(problem, layout)
        else:
            _lay_out(problem, layout)
            values[c] = _slice(problem, layout, below, guess)
            guess = values[c] if values[c] < np.inf else guess
        if reject:
            below = min(below, values[c])


def values_of_orders(
    problem: OrderProblem,
    priorities: Floats,
    goal: int,
    below: float,
    *,
    reject: bool,
    threads: int,
) -> Floats:
    """Value of the order of each row of priorities, f64[c]; the same for any number of threads.

    With `reject`, inf where the value is no smaller than `below`, and perhaps where it is no
    smaller than that of an earlier row; the first least value is right. Without `threads` there is
    one for each processor.
    """
    values = np.empty(len(priorities))
    limit = below if reject else np.inf
    chunk = min(max(CHUNK_ITEMS // len(problem.work), 1), MOST_CHUNK)
    layouts: list[Layout] = []

    def work(start: int) -> None:
        try:
            layout = layouts.pop()  # which threads do without a lock
        except IndexError:
            layout = _layout(problem)
        rows = slice(start, start + chunk)
        values_of_rows(problem, layout, goal, priorities[rows], limit, reject, values[rows])
        layouts.append(layout)

    with ThreadPoolExecutor(threads or search_threads()) as pool:
        for _ in pool.map(work, range(0, len(priorities), chunk)):
            pass
    return values


def given_order(problem: SplitProblem, sequence: Ints) -> Ints:
    """Order of the items by a sequence of units (i64[g]); an item comes where its first unit does.

    What an item needs for its other units comes before it, too.

    Raises FormatError: the sequence is not topological; the message names two units.
    """
    items, units = problem.items, problem.units
    at = place_of(sequence)
    item = _item_of_unit(items, units)
    tail, head = contract(problem.graph, units).edges
    wrong = np.flatnonzero((at[tail] > at[head]) & (item[tail] != item[head]))
    if len(wrong):
        first, needs = units.group_ids[[head[wrong[0]], tail[wrong[0]]]]
        raise FormatError(
            f"the order is not topological: {first} comes before {needs}, which it needs"
        )
    place = np.full(items.count, units.g, dtype=np.int64)
    np.minimum.at(place, item, at)
    return kahn_with_priorities(items.tail, items.head, -place.astype(np.float64))


def prioritised_order(problem: SplitProblem, priorities: Floats) -> Ints:
    """Kahn's order of the items by priorities of the units, f64[g] (MTPP Algorithm 3).

    An item has the largest priority of its units; ties go to the first item.
    """
    items = problem.items
    best = np.full(items.count, -np.inf)
    item = _item_of_unit(items, problem.units)
    np.maximum.at(best, item, priorities)
    return kahn_with_priorities(items.tail, items.head, best)


def _item_of_unit(items: Items, units: Clustering) -> Ints:
    return items.label[units.member_idx[units.member_ptr[:-1]]]
