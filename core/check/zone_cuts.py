"""Verify the bound `zone-cut`: stages of a target do not get to the end, whatever they pay.

First some vertices follow a neighbour into its stage, which is free (`dnnp.core.check.contract`).
The others, and a path of them, have zones as for the bound of a path (`dnnp.core.check.zones`). A
net that a node makes is near zone i, for a span s, if no pin is in an ideal of zone i - s and each
is in those of zone i + s. With x the cost of the nets near the zone of an ideal that have pins on
both sides of it, a stage between ideals in zones b and i, s or more apart, has a load of at least

    (work + x of the latter) - (work - x of the former) + nets near neither that are surely paid,

for a net near i has no pin in the former, and one near b none outside of the latter. Of the ideals
of a zone no p * work - q * x is above v, which is what a minimum cut leaves, found anew here; so
work + x <= r leaves a work of at most (v + q r) / (p + q), and so on.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from dnnp.core.check.contract import Draft
from dnnp.core.check.cuts import one_class
from dnnp.core.check.exact import Exact
from dnnp.core.check.fields import Budget, UnprovenError, field, rows, short, whole
from dnnp.core.check.flow import SINK, SOURCE, Network

MOST_ZONES = 4_000
"""Items of a path that is looked at."""

MOST_RATES = 20

ENDLESS = 1 << 200
"""No load is as large."""

Rates = Sequence[tuple[int, int]]


class Net(NamedTuple):
    """A net between vertices, and the zones first..last - 1 that it is near to."""

    pins: Sequence[int]
    cost: int
    always: bool
    first: int
    last: int


def zone_cut_units(exact: Exact, certificate: Mapping[str, Any], bound: int) -> int:
    """`bound`, if no ordered split has all loads below it."""
    name = one_class(exact)
    if not exact.in_order:
        raise UnprovenError("it is for ordered splits without a backward pass only")
    if any(work is None for work in exact.work[name]):
        raise UnprovenError("an item runs on no device that is offered")
    span = whole(field(certificate, "span", int), "its span", 1)
    rates = []
    for p, q in rows(field(certificate, "rates", list), 2, "rates"):
        rates.append((whole(p, "a rate"), whole(q, "a rate", 1)))
        if p > q:
            raise UnprovenError(f"a rate of {short(p)} is above {short(q)}")
    if not 0 < len(rates) <= MOST_RATES:
        raise UnprovenError(f"it has {len(rates)} rates, expected 1 to {MOST_RATES}")
    zones = _Zones(exact, name, _joined(exact, certificate), field(certificate, "path", list))
    zones.near(span)
    stages = min(exact.devices[name].count, exact.n)
    if zones.gets_through(bound - 1, stages, span, rates):
        raise UnprovenError("loads below its value may get to the end of the path")
    return bound


def _joined(exact: Exact, certificate: Mapping[str, Any]) -> Draft:
    """Vertices, after those that the certificate names have followed others."""
    draft = Draft(exact, set(exact.edges), ENDLESS)
    for named in rows(field(certificate, "joined", list), 2, "its joined items"):
        x, y = (draft.vertex[exact.named(one)] for one in named)
        alone = draft.succ[x] == {y} or draft.pred[x] == {y}
        exact.budget.spend(
            len(draft.succ[x]) + len(draft.pred[x]) + sum(len(draft.pins[e]) for e in draft.nets[x])
        )
        if draft.into[x] != x or draft.into[y] != y or not alone or not draft.is_free(x, y):
            raise UnprovenError(f"item {named[0]} may not follow item {named[1]} for free")
        draft.join(x, y)
    return draft


class _Zones:
    """What the ideals of each zone of a path hold and cut."""

    def __init__(self, exact: Exact, name: str, draft: Draft, path: Sequence[object]) -> None:
        self.budget, self.draft = exact.budget, draft
        self.vertices = [v for v in draft.alive if draft.into[v] == v]
        self.path = [draft.vertex[exact.named(named)] for named in path]
        self.m = len(self.path)
        if not 0 < self.m <= MOST_ZONES:
            raise UnprovenError(f"its path has {self.m} items, expected 1 to {MOST_ZONES}")
        if any(draft.into[v] != v for v in self.path):
            raise UnprovenError("an item of its path has followed another")
        self.after = self._met(draft.succ, self.path[::-1], range(self.m, 0, -1), 0)
        for number, v in enumerate(self.path[1:], 1):
            # Of the path, the last item that reaches what v reads is the one before v.
            if max((self.after[u] for u in draft.pred[v]), default=0) != number:
                raise UnprovenError("its path does not lead from one of its items to the next")
        self.until = self._met(draft.pred, self.path, range(1, self.m + 1), self.m + 1)
        work = draft.work[0]
        self.work = [w or 0 for w in work]
        least, most = [0] * (self.m + 2), [0] * (self.m + 2)
        for v in self.vertices:
            most[self.after[v]] += self.work[v]
            least[self.until[v]] += self.work[v]
        self.least = list(accumulate(least[: self.m + 1]))
        self.most = list(accumulate(most[: self.m + 1]))
        made = exact.tables.writer
        self.nets = []
        for e, pins in enumerate(draft.pins):
            tensor = draft.tensors[e]
            _, always, place = exact.nets[tensor]
            cost = exact.cost(name, tensor)
            if cost and (len(pins) > 1 or always):
                written = place in made
                self.nets.append(Net(sorted(pins), cost, always, 0, int(written)))
        self.budget.spend(self.m + len(self.vertices) + sum(len(net.pins) for net in self.nets))

    def _met(
        self, steps: Sequence[set[int]], path: Sequence[int], numbers: range, never: int
    ) -> list[int]:
        """Number of the first vertex of the path from which each vertex is met."""
        met, seen = [never] * len(steps), [False] * len(steps)
        for number, root in zip(numbers, path, strict=True):
            waiting = [] if seen[root] else [root]
            seen[root] = True
            while waiting:
                u = waiting.pop()
                met[u] = number
                self.budget.spend(len(steps[u]) + 1)
                for v in steps[u]:
                    if not seen[v]:
                        seen[v] = True
                        waiting.append(v)
        return met

    def near(self, span: int) -> None:
        """Note to which zones nets are near."""
        nets = []
        for net in self.nets:
            first = max(max(self.until[v] for v in net.pins) - span, 0)
            last = min(self.after[v] for v in net.pins) + span
            nets.append(net._replace(first=first, last=max(last, first) if net.last else first))
        self.nets = nets

    def gets_through(self, target: int, stages: int, span: int, rates: Rates) -> bool:
        """Whether so many stages of load `target` may get to the end."""
        m, least, most = self.m, self.least, self.most
        beyond = [bisect_right(least, work + target) for work in most]
        width = max(end - b for b, end in enumerate(beyond))
        paid, others = self._paid(width, near=False), self._paid(width, near=True)
        worth = self._worth(rates)
        work, left = {0: 0}, {0: 0}
        grown = {0}
        for _ in range(stages):
            new_work, new_left, again = dict(work), dict(left), set()
            for b in sorted(grown):
                far = work[b] + target
                end = bisect_right(least, far)
                self.budget.spend((end - b) * len(rates))
                for i in range(b, end):
                    w = min(most[i], far - paid[b][i - b])
                    reach = ENDLESS
                    if i - b >= span:
                        reach = left[b] + target - others[b][i - b]
                        w = min(w, *((v + q * reach) // (p + q) for p, q, v in worth[i]))
                    if w < least[i]:
                        continue
                    x = min(w, *((v + (q - p) * w) // q for p, q, v in worth[i]))
                    x = min(x, *((2 * v + (q - p) * reach) // (p + q) for p, q, v in worth[i]))
                    for found, so_far in ((w, new_work), (x, new_left)):
                        if i not in so_far or found > so_far[i]:
                            so_far[i] = found
                            again.add(i)
            work, left, grown = new_work, new_left, again
            if work.get(m, -1) >= most[m]:
                return True
        return False

    def _paid(self, width: int, *, near: bool) -> list[list[int]]:
        """[b][i - b]: what any stage from zone b to zone i pays for nets; 0 for b itself.

        `near`: nets that are near one of both zones do not count.
        """
        self.budget.spend((self.m + 1) * width)
        change = [[0] * (width + 1) for _ in range(self.m + 1)]
        for net in self.nets:
            begun = min(self.after[v] for v in net.pins)
            right = max(self.after[v] for v in net.pins)
            left = min(self.until[v] for v in net.pins)
            self.budget.spend(right - max(begun - width, 0) + 1)
            for b in range(max(begun - width, 0), right):
                if near and net.first <= b < net.last:
                    continue
                start = min((self.until[v] for v in net.pins if self.after[v] > b), default=0)
                end = self.m if net.always or b >= left else right - 1
                parts = [(start, end)]
                if near and net.first < net.last:
                    parts = [(start, min(end, net.first - 1)), (max(start, net.last), end)]
                for low, high in parts:
                    if low <= high and low - b < width:
                        change[b][low - b] += net.cost
                        change[b][min(high + 1 - b, width)] -= net.cost
        return [list(accumulate(row[:width])) for row in change]

    def _worth(self, rates: Rates) -> list[list[tuple[int, int, int]]]:
        """For each zone (p, q, the most p * work - q * x of its ideals), one for each rate."""
        solved: dict[Any, list[int]] = {}
        found = []
        for i, (vertices, nets) in enumerate(self._zones()):
            place = {v: number for number, v in enumerate(vertices)}
            self.budget.spend(len(vertices) + sum(len(net.pins) for net in nets) + 1)
            ends = [
                (
                    net.cost,
                    any(self.until[v] <= i for v in net.pins),
                    any(self.after[v] > i for v in net.pins),
                    tuple(place[v] for v in net.pins if v in place),
                )
                for net in nets
            ]
            edges = [
                (place[u], place[v])
                for u in vertices
                for v in sorted(self.draft.succ[u])
                if v in place
            ]
            works = [self.work[v] for v in vertices]
            key = tuple(works), tuple(ends), tuple(edges)
            if key not in solved:
                solved[key] = [_most(works, ends, edges, rate, self.budget) for rate in rates]
            pairs = zip(rates, solved[key], strict=True)
            found.append([(p, q, p * self.least[i] + v) for (p, q), v in pairs])
        return found

    def _zones(self) -> Iterator[tuple[list[int], list[Net]]]:
        """Of each zone what its ideals may hold or not, and the nets near it."""
        vertices: list[list[int]] = [[] for _ in range(self.m + 1)]
        nets: list[list[Net]] = [[] for _ in range(self.m + 1)]
        for v in self.vertices:
            self.budget.spend(self.until[v] - self.after[v])
            for i in range(self.after[v], min(self.until[v], self.m + 1)):
                vertices[i].append(v)
        for net in self.nets:
            self.budget.spend(max(net.last - net.first, 0) + 1)
            for i in range(net.first, min(net.last, self.m + 1)):
                nets[i].append(net)
        yield from zip(vertices, nets, strict=True)


def _most(
    works: Sequence[int],
    nets: Sequence[tuple[int, bool, bool, tuple[int, ...]]],
    edges: Sequence[tuple[int, int]],
    rate: tuple[int, int],
    budget: Budget,
) -> int:
    """The most p * work - q * cut nets of the sets that hold what precedes their vertices.

    Nets are given by their cost, whether a pin is surely in, whether one is surely out, and their
    other pins.
    """
    p, q = rate
    network, count, cut = Network(), len(works), 0
    for v, work in enumerate(works):
        network.add(SOURCE, v, p * work)
    for u, v in edges:
        network.add(v, u, None)
    for e, (cost, some_in, some_out, pins) in enumerate(nets):
        if some_in and some_out:
            cut += q * cost
            continue
        if not pins:
            continue
        a, b = count + 2 * e, count + 2 * e + 1
        network.add(SOURCE if some_in else a, SINK if some_out else b, q * cost)
        for v in pins:
            if not some_in:
                network.add(v, a, None)
            if not some_out:
                network.add(b, v, None)
    budget.spend(len(works) + len(edges) + sum(len(net[3]) for net in nets))
    return p * sum(works) - cut - network.flow(None, budget)
