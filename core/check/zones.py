"""Verify the bound of a path: that stages of a target do not get to the end of an ordered split.

Every ideal of items holds a first part of the path: it lies in a zone, and its work between that
of what must be in it and of what may. A stage between two ideals pays for the nets with an item
that is inside and one that is outside for all ideals of these zones. The furthest that s stages
get in each zone follows from where s - 1 stages get; more work done is never worse.

Where there are several classes, replicas, CPUs or overlap, only weighed compute counts.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import product
from math import prod
from typing import Any

from dnnp.core.check.exact import Exact, weights_of
from dnnp.core.check.fields import Budget, UnprovenError, field

MOST_ZONES = 2_000
"""Items of a path that is looked at."""

MOST_STATES = 2_000
"""Mixes of devices that are looked at."""


def chain_units(exact: Exact, certificate: Mapping[str, Any], bound: int) -> int:
    """`bound`, if no ordered split has all loads below it."""
    options, devices = exact.options, exact.devices
    if not exact.in_order or options.objective != "throughput":
        raise UnprovenError(
            "it is for the throughput of ordered splits without a backward pass only"
        )
    path = [exact.named(named) for named in field(certificate, "path", list)]
    if not 0 < len(path) <= MOST_ZONES:
        raise UnprovenError(f"its path has {len(path)} items, expected 1 to {MOST_ZONES}")
    m = len(path)
    exact.budget.spend(m * m // 2)
    after = _numbers(exact.onward, path[::-1], range(m, 0, -1), 0)
    for number, v in enumerate(path[1:], 1):
        # Of the path, the last item that reaches what v reads is the one before v.
        if max((after[u] for u in exact.back[v]), default=0) != number:
            raise UnprovenError(f"no path leads to item {exact.names[v]} from the one before it")
    until = _numbers(exact.back, path, range(1, m + 1), m + 1)
    weights = weights_of(exact, field(certificate, "weights", dict))
    share = []
    for i in range(exact.n):
        supported = ((name, exact.work[name][i]) for name in devices)
        weighed = [weights[name] * w for name, w in supported if w is not None]
        share.append(min(weighed, default=0))
    low, high = _works(share, after, until, m)
    # Without replicas loads are whole numbers: below the bound is at most one less.
    target = bound - 1 if options.max_replicas == 1 else bound
    counts = [min(d.count, exact.n * options.max_replicas) for d in devices.values()]
    name, device = next(iter(devices.items()))
    alone = len(devices) == 1 and options.max_replicas == 1 and options.comm == "sum"
    if alone and weights[name] == 1 and not device.is_cpu:
        paid = _paid(exact, name, after, until, m)
        reached = _reaches_end(low, high, paid, (target, counts[0], sum(share)), exact.budget)
    elif prod(c + 1 for c in counts) > MOST_STATES:
        raise UnprovenError("there are too many mixes of devices to look at")
    else:
        steps = [weights[name] * target for name in devices]
        reached = _covers(*_merged(low, high), steps, counts, options.max_replicas, sum(share))
    if reached:
        raise UnprovenError("loads below its value may get to the end of the path")
    return bound


def _numbers(
    steps: Sequence[Sequence[int]], path: Sequence[int], numbers: range, never: int
) -> list[int]:
    """Number of the first item of the path from which each item is met."""
    met = [never] * len(steps)
    seen = [False] * len(steps)
    for number, root in zip(numbers, path, strict=True):
        waiting = [] if seen[root] else [root]
        seen[root] = True
        while waiting:
            u = waiting.pop()
            met[u] = number
            for v in steps[u]:
                if not seen[v]:
                    seen[v] = True
                    waiting.append(v)
    return met


def _works(
    share: Sequence[int], after: Sequence[int], until: Sequence[int], m: int
) -> tuple[list[int], list[int]]:
    """Least and most work of the ideals of each zone 0..m.

    An item is in no ideal of a zone below `after`, and in all from zone `until` on.
    """
    least, most = [0] * (m + 2), [0] * (m + 2)
    for w, first, last in zip(share, after, until, strict=True):
        most[first] += w
        least[last] += w
    for i in range(1, m + 1):
        most[i] += most[i - 1]
        least[i] += least[i - 1]
    return least[: m + 1], most[: m + 1]


def _paid(
    exact: Exact, name: str, after: Sequence[int], until: Sequence[int], m: int
) -> list[list[int]]:
    """[i'][i]: quanta that any stage from zone i' to zone i > i' pays for nets.

    A pin is surely inside if after > i' and until <= i, surely outside if until <= i' or
    after > i. Each net adds to rectangles of zones; their sums are taken at the end.
    """
    change = [[0] * (m + 2) for _ in range(m + 2)]
    for tensor, (pins, always, _) in exact.nets.items():
        cost = exact.cost(name, tensor)
        if not cost:
            continue
        left, right = min(until[v] for v in pins), max(after[v] for v in pins)
        # From zone `start` on, the pins with a larger `after` may be surely inside.
        edges = sorted({0, left, *(after[v] for v in pins)})
        waiting = sorted((after[v], until[v]) for v in pins)
        least, stop = m + 1, m + 1
        for start in reversed(edges):
            while waiting and waiting[-1][0] > start:
                least = min(least, waiting.pop()[1])
            first, last = start, min(stop, right)
            stop = start
            end = m if always or start >= left else right - 1
            if first < last and least <= end:
                for zone, sign in ((first, cost), (last, -cost)):
                    change[zone][least] += sign
                    change[zone][end + 1] -= sign
    above = [0] * (m + 2)
    for row in change:
        running = 0
        for i, more in enumerate(row):
            running += more
            above[i] += running
            row[i] = above[i]
    return change


def _reaches_end(
    low: Sequence[int],
    high: Sequence[int],
    paid: Sequence[Sequence[int]],
    asked: tuple[int, int, int],
    budget: Budget,
) -> bool:
    """Whether stages may get to the end: `asked` are their largest load, their number, all work."""
    target, stages, end = asked
    m = len(low) - 1
    place: dict[int, int] = {0: 0}
    last: dict[int, int] = {}
    for _ in range(stages):
        further = dict(place)
        for before, work in place.items():
            if last.get(before) == work:
                continue  # nothing new can come of it
            far = work + target
            further[before] = max(further[before], min(high[before], far))
            beyond = bisect_right(low, far)
            budget.spend(max(beyond - before, 1))
            for i in range(before + 1, beyond):
                reached = min(high[i], far - paid[before][i])
                if reached >= low[i] and reached > further.get(i, -1):
                    further[i] = reached
        if further.get(m, -1) >= end:
            return True
        if further == place:
            return False
        last, place = place, further
    return False


def _merged(low: Sequence[int], high: Sequence[int]) -> tuple[list[int], list[int]]:
    """Disjoint ranges of work, ascending, that hold the work of every ideal."""
    first, last = [low[0]], [high[0]]
    for a, b in zip(low[1:], high[1:], strict=True):
        if a > last[-1]:
            first.append(a)
            last.append(b)
        else:
            last[-1] = max(last[-1], b)
    return first, last


def _covers(
    first: Sequence[int],
    last: Sequence[int],
    steps: Sequence[int],
    counts: Sequence[int],
    most_replicas: int,
    end: int,
) -> bool:
    """Whether the devices get to work `end`, each replica a step of its class further."""
    furthest = {(0,) * len(counts): last[0]}
    for used in product(*(range(c + 1) for c in counts)):
        work = furthest.get(used)
        if work is None:
            continue
        if work >= end:
            return True
        for c, step in enumerate(steps):
            for r in range(1, min(most_replicas, counts[c] - used[c]) + 1):
                far = work + r * step
                far = min(far, last[bisect_right(first, far) - 1])
                mix = (*used[:c], used[c] + r, *used[c + 1 :])
                furthest[mix] = max(furthest.get(mix, 0), far)
    return False
