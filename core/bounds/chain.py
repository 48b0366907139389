"""A bound from the heaviest path: an ordered split can only be cut in certain places.

Let b1 < b2 < ... < bm be items on a path. Every ideal holds a first part of the path, b1..bi: it
lies in zone i, and its work between that of the ancestors of bi and what the descendants of
b(i+1) leave. Boundaries of stages are ideals. A target T is infeasible if the devices, each going
as far as T and the zones allow, do not get to the end; further within a zone is never worse.

With one class of accelerators and `sum` a stage between zones i' < i also pays for the nets that
it cuts whatever its ideals are. An item is surely inside if it follows b(i'+1) and precedes bi
(or is one of them), surely outside if it precedes bi' or follows b(i+1); a net with a pin of
both kinds is paid.

Otherwise transfers and memory, which only add to loads, do not count. A device of class c gets the
weight y_c: a stage of load T on r of them advances the weighed work, that of each item on the class
where it weighs least, by at most r * y_c * T. The mixes of devices that are used up say how far.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, product
from math import isfinite

import numpy as np

from dnnp.core.bounds.lower_bound import (
    LIMIT,
    SOLVED,
    BoundTask,
    LowerBound,
    Whole,
    mixes_passes,
    refused,
    whole_of,
)
from dnnp.core.cost.items import Items
from dnnp.core.cost.load_formula import MARGIN
from dnnp.core.cost.problem import SplitProblem, spread
from dnnp.core.kernels.kernel import kernel, part, plain
from dnnp.core.model.graph import Floats, Ints, csr, totals
from dnnp.core.model.plan import CostOptions
from dnnp.core.model.search_context import PLAIN, SearchContext


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


def never_near(nets: int) -> tuple[Ints, Ints]:
    """First and last zones for `surely_paid` where every net counts for all pairs of zones."""
    return np.zeros(nets, dtype=np.int64), np.zeros(nets, dtype=np.int64)


@kernel
def surely_paid(nets, cost, after, until, first, last, paid):  # type: ignore[no-untyped-def]
    """Add to `paid[i', i - i']` the cost of each net that any stage between these zones pays.

    A pin is surely inside if after > i' and until <= i, surely outside if until <= i' or
    after > i. Pairs with an end in the zones first[e]..last[e] - 1 of a net do not count it.
    `paid` is f64[m + 1, width]; zones that are further apart are left out.
    """
    pin_ptr, pins, always = nets.net_ptr, nets.pins, nets.always
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


MOST_ZONES = 2_500
"""Items of the path that are looked at, where transfers count; zones^2 costs of 8 bytes."""

MOST_STATES = 2_000
"""Mixes of device classes."""

MOST_CHECKED = 1_000
"""Items of the path in a certificate."""

SHARPNESS = 2**40
"""Steps of the weights of several classes in a certificate."""


def chain_bound(problem: SplitProblem, above: float = 0.0) -> float:
    """Lower bound of the largest load of any ordered split; 0: none `above` what is known."""
    if problem.options.objective != "throughput" or not problem.graph.n:
        return 0.0
    wholes = [whole_of(problem, "ordered", items=items) for items in problem.item_choices]
    known = BoundTask("ordered", floor=above)
    return min(_claim(problem, whole, known, PLAIN, MOST_ZONES, MARGIN).value for whole in wholes)


def chain_claim(problem: SplitProblem, known: BoundTask, run: SearchContext = PLAIN) -> LowerBound:
    """The bound with a certificate, for `ordered` splits.

    Graphs with a backward pass have more than one order of items; there the bound has no
    certificate.
    """
    if known.validity != "ordered" or problem.options.objective != "throughput":
        return refused("only for the throughput of ordered splits")
    if mixes_passes(problem):
        return refused("a group holds nodes of both passes")
    if problem.graph.backward.any():
        value = chain_bound(problem)
        return LowerBound(value, certificate={"argument": "chain", "checkable": False})
    return _claim(problem, whole_of(problem, known.validity), known, run, MOST_CHECKED, 0.0)


def _claim(
    problem: SplitProblem,
    whole: Whole,
    known: BoundTask,
    run: SearchContext,
    zones: int,
    precision: float,
) -> LowerBound:
    """Find the largest whole target that is infeasible by bisection."""
    options = problem.options
    counts = [min(d.count, whole.items.count * options.max_replicas) for d in whole.devices]
    if np.prod([float(c + 1) for c in counts]) > MOST_STATES:
        return refused(f"more than {MOST_STATES} mixes of devices")
    if not np.isfinite(whole.work.min(axis=0)).all():
        return refused("a unit runs on no device that is offered")
    chain = _Chain(whole, counts, options, zones)
    lower, upper = int(known.floor * (1 + precision) / whole.quantum) - chain.step, chain.most
    status = SOLVED
    if lower >= upper or chain.feasible(max(lower, 0)):
        return LowerBound(0.0)
    lower = max(lower, 0)
    while upper - lower > max(precision * upper, 1):
        if run.stop():
            status = LIMIT
            break
        middle = (lower + upper) // 2
        if chain.feasible(middle):
            upper = middle
        else:
            lower = middle
    return whole.claim("chain", lower + chain.step, chain.proof, status)


class _Chain:
    """Judge of targets in quanta."""

    def __init__(self, whole: Whole, counts: list[int], options: CostOptions, zones: int) -> None:
        self.counts, self.most_replicas = counts, options.max_replicas
        items, device = whole.items, whole.devices[0]
        # Without replicas loads are whole, so that a split beats an infeasible target by 1.
        self.step = 1 if options.max_replicas == 1 else 0
        self.with_nets = (
            len(whole.devices) == 1
            and options.comm == "sum"
            and options.max_replicas == 1
            and not device.is_cpu
        )
        weights = [1]
        if len(whole.devices) > 1:
            found = spread(whole.work, np.array(counts, dtype=np.float64))[1]
            weights = [round(w / float(found.max()) * SHARPNESS) for w in found.tolist()]
        self.weights = weights
        exact = [] if self.with_nets else _least_weighed(whole.work, weights)
        share = whole.work[0] if self.with_nets else np.array(exact, dtype=np.float64)
        path = heaviest_path(items, share)
        path = path[:: -(-len(path) // zones)]
        m = len(path)
        after, until = zones_of(items, path)
        self.total = int(share.sum()) if self.with_nets else sum(exact)
        names = [d.name for d in whole.devices]
        self.proof = {
            "path": [int(whole.names[v]) for v in path],
            "weights": dict(zip(names, weights, strict=True)),
        }
        self.most = self.total // max(weights) + 1
        if self.with_nets:
            works = [np.cumsum(totals(ends, share, m + 2))[: m + 1] for ends in (until, after)]
            self.least, self.reach = works
            self.paid = np.zeros((m + 1, m + 2))
            (cost,) = plain(whole.cost[0])
            surely_paid(whole.nets, cost, after, until, *never_near(len(cost)), self.paid)
            self.most += int(whole.cost[0].sum())
        else:
            works_of = (exact_works(exact, ends, m) for ends in (until, after))
            self.low, self.high = _merged(*works_of)

    def feasible(self, target: int) -> bool:
        """True if the devices may get to the end if no load is above `target` quanta."""
        if self.with_nets:
            return bool(
                _reaches_end(
                    self.least,
                    self.reach,
                    self.paid,
                    float(target),
                    self.counts[0],
                    float(self.total),
                )
            )
        steps = [y * target for y in self.weights]
        return _covers(self.low, self.high, steps, self.counts, self.most_replicas, self.total)


def _least_weighed(work: Floats, weights: list[int]) -> list[int]:
    """Work of each item on the class where it weighs least, exactly; `work` is f64[C, n]."""
    columns = (zip(column, weights, strict=True) for column in work.T.tolist())
    return [min(y * int(t) for t, y in column if isfinite(t)) for column in columns]


def _merged(least: Sequence[float], most: Sequence[float]) -> tuple[list[float], list[float]]:
    """Disjoint intervals, ascending, that hold the work of every ideal."""
    low, high = [least[0]], [most[0]]
    for a, b in zip(least[1:], most[1:], strict=True):
        if a > high[-1]:
            low.append(a)
            high.append(b)
        else:
            high[-1] = max(high[-1], b)
    return low, high


@kernel
def _reaches_end(least, most, paid, target, stages, end):  # type: ignore[no-untyped-def]
    """True if `stages` stages of load `target` may get to work `end`."""
    m = len(least) - 1
    place = np.full(m + 1, -np.inf)
    place[0] = 0.0
    for _ in range(stages):
        further = place.copy()
        for before in range(m + 1):
            if place[before] == -np.inf:
                continue
            far = place[before] + target
            further[before] = max(further[before], min(most[before], far))
            for i in range(before + 1, m + 1):
                if least[i] > far:
                    break
                reached = min(most[i], far - paid[before, i - before])
                if reached >= least[i] and reached > further[i]:
                    further[i] = reached
        place = further
        if place[m] >= end:
            return True
    return False


def _covers(
    low: Sequence[float],
    high: Sequence[float],
    steps: Sequence[float],
    counts: list[int],
    max_replicas: int,
    end: float,
) -> bool:
    """True if the devices, `counts` of each class, get to the end in these steps of work."""
    furthest = {(0,) * len(counts): high[0]}
    # Mixes of devices come before those with one device more.
    for used in product(*(range(c + 1) for c in counts)):
        reached = furthest.get(used)
        if reached is None:
            continue
        if reached >= end:
            return True
        for c, step in enumerate(steps):
            for r in range(1, min(max_replicas, counts[c] - used[c]) + 1):
                far = reached + r * step
                # The furthest place that is not beyond it.
                at = min(far, high[bisect_right(low, far) - 1])
                mix = (*used[:c], used[c] + r, *used[c + 1 :])
                furthest[mix] = max(furthest.get(mix, 0), at)
    return False
