"""Verify the bounds `chain` and `zone-cut`: stages of a target do not get to the end of a path.

`chain`: every ideal of items holds a first part of the path: it lies in a zone, and its work
between that of what must be in it and of what may. A stage between two ideals pays for the nets
with an item that is inside and one that is outside for all ideals of these zones. The furthest that
s stages get in each zone follows from where s - 1 stages get; more work done is never worse. Where
there are several classes, replicas, CPUs or overlap, only weighed compute counts.

`zone-cut`: first some vertices follow a neighbour into its stage, which is free
(`dnnp.core.certificates.ideals`). The others, and a path of them, have zones as above. A net that
a node makes is near zone i, for a span s, if no pin is in an ideal of zone i - s and each is in
those of zone i + s. With x the cost of the nets near the zone of an ideal that have pins on both
sides of it, a stage between ideals in zones b and i, s or more apart, has a load of at least

    (work + x of the latter) - (work - x of the former) + nets near neither that are surely paid,

for a net near i has no pin in the former, and one near b none outside of the latter. Of the ideals
of a zone no p * work - q * x is above v, which is what a minimum cut leaves, found anew here; so
work + x <= r leaves a work of at most (v + q r) / (p + q), and so on. Nets near a zone that are
named, each with a pin in all of its ideals, part these: either all pins are in, or the net is paid.
All this holds case by case.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import accumulate, product
from math import prod
from typing import Any, NamedTuple

from dnnp.core.certificates.cut_trees import cut_network
from dnnp.core.certificates.cuts import one_class
from dnnp.core.certificates.exact import (
    Budget,
    Exact,
    UnprovenError,
    field,
    rows,
    short,
    weights_of,
    whole,
)
from dnnp.core.certificates.ideals import Draft

MOST_ZONES = 2_000
"""Items of a path that is looked at."""

MOST_STATES = 2_000
"""Mixes of devices that are looked at."""


class Net(NamedTuple):
    """A net between vertices, and the zones first..last - 1 that it is near to."""

    pins: Sequence[int]
    cost: int
    always: bool
    first: int
    last: int
    tensor: int


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
    after, until = _zones_of(path, exact.onward, exact.back)
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
        costs = ((exact.cost(name, t), pins, always) for t, (pins, always, _) in exact.nets.items())
        nets = [Net(sorted(pins), cost, always, 0, 0, 0) for cost, pins, always in costs if cost]
        paid = _paid(nets, after, until, m, m + 1)
        reached = _reaches_end(low, high, paid, (target, counts[0], sum(share)), exact.budget)
    elif prod(c + 1 for c in counts) > MOST_STATES:
        raise UnprovenError("there are too many mixes of devices to look at")
    else:
        steps = [weights[name] * target for name in devices]
        reached = _covers(*_merged(low, high), steps, counts, options.max_replicas, sum(share))
    if reached:
        raise UnprovenError("loads below its value may get to the end of the path")
    return bound


def _zones_of(
    path: Sequence[int], onward: Sequence[Collection[int]], back: Sequence[Collection[int]]
) -> tuple[list[int], list[int]]:
    """The last zone that each item is in no ideal of, and the first that it is in all of.

    Raises UnprovenError: what is called a path is none.
    """
    m = len(path)
    after = _numbers(onward, path[::-1], range(m, 0, -1), 0)
    for number, v in enumerate(path[1:], 1):
        # Of the path, the last item that reaches what v reads is the one before v.
        if max((after[u] for u in back[v]), default=0) != number:
            raise UnprovenError("its path does not lead from one of its items to the next")
    return after, _numbers(back, path, range(1, m + 1), m + 1)


def _numbers(
    steps: Sequence[Collection[int]], path: Sequence[int], numbers: range, never: int
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
    return list(accumulate(least[: m + 1])), list(accumulate(most[: m + 1]))


def _paid(
    nets: Sequence[Net], after: Sequence[int], until: Sequence[int], m: int, width: int
) -> list[list[int]]:
    """[b][i - b]: what any stage from zone b to zone i pays for nets near neither; 0 for b itself.

    A pin is surely inside if after > b and until <= i, surely outside if until <= b or after > i.
    Each net adds to rectangles of zones; their sums are taken at the end. None of those that hold
    zone b begins before zone b + 1.
    """
    change: list[dict[int, int]] = [{} for _ in range(m + 2)]
    for pins, cost, always, near, far, _ in nets:
        left, right = min(until[v] for v in pins), max(after[v] for v in pins)
        # From zone `start` on, the pins with a larger `after` may be surely inside.
        edges = sorted({0, left, near, far, *(after[v] for v in pins)})
        waiting = sorted((after[v], until[v]) for v in pins)
        least, stop = m + 1, m + 1
        for start in reversed(edges):
            while waiting and waiting[-1][0] > start:
                least = min(least, waiting.pop()[1])
            first, last = start, min(stop, right)
            stop = start
            if first >= last or near <= first < far:
                continue
            end = m if always or start >= left else right - 1
            for low, high in ((least, min(end, near - 1)), (max(least, far), end)):
                if low <= high:
                    for zone, sign in ((first, cost), (last, -cost)):
                        change[zone][low] = change[zone].get(low, 0) + sign
                        change[zone][high + 1] = change[zone].get(high + 1, 0) - sign
    above, paid = [0] * (m + 2), []
    for b, row in enumerate(change[:-1]):
        for i, more in row.items():
            above[i] += more
        paid.append(list(accumulate(above[b : b + width])))
    return paid


def _reaches_end(
    low: Sequence[int],
    high: Sequence[int],
    paid: Sequence[Sequence[int]],
    asked: tuple[int, int, int],
    budget: Budget,
) -> bool:
    """True if stages may get to the end; `asked`: their largest load and number, all work."""
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
                reached = min(high[i], far - paid[before][i - before])
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
    """True if the devices get to work `end`, each replica a step of its class further."""
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


MOST_CUT_ZONES = 4_000
"""Items of a path that is looked at."""

MOST_RATES = 20

MOST_PARTING = 4
"""Nets that part a zone."""

ENDLESS = 1 << 200
"""No load is as large."""

Rates = Sequence[tuple[int, int]]


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
    zones.part(rows(certificate.get("parted", []), 2, "its parted zones"))
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
    """Contents and cuts of the ideals of each zone of a path."""

    def __init__(self, exact: Exact, name: str, draft: Draft, path: Sequence[object]) -> None:
        self.budget, self.draft = exact.budget, draft
        self.vertices = [v for v in draft.alive if draft.into[v] == v]
        self.path = [draft.vertex[exact.named(named)] for named in path]
        self.m = len(self.path)
        if not 0 < self.m <= MOST_CUT_ZONES:
            raise UnprovenError(f"its path has {self.m} items, expected 1 to {MOST_CUT_ZONES}")
        if any(draft.into[v] != v for v in self.path):
            raise UnprovenError("an item of its path has followed another")
        self.budget.spend(2 * sum(len(some) + 1 for some in draft.succ))
        self.after, self.until = _zones_of(self.path, draft.succ, draft.pred)
        work = draft.work[0]
        self.work = [w or 0 for w in work]
        share, after, until = (
            [of[v] for v in self.vertices] for of in (self.work, self.after, self.until)
        )
        self.least, self.most = _works(share, after, until, self.m)
        made = exact.tables.writer
        self.nets = []
        for e, pins in enumerate(draft.pins):
            tensor = draft.tensors[e]
            _, always, place = exact.nets[tensor]
            cost = exact.cost(name, tensor)
            if cost and (len(pins) > 1 or always):
                written = place in made
                self.nets.append(Net(sorted(pins), cost, always, 0, int(written), tensor))
        self.parted: dict[int, set[int]] = {}
        """Tensors that part each zone."""
        self.budget.spend(self.m + len(self.vertices) + sum(len(net.pins) for net in self.nets))

    def near(self, span: int) -> None:
        """Note to which zones nets are near."""
        nets = []
        for net in self.nets:
            first = max(max(self.until[v] for v in net.pins) - span, 0)
            last = min(self.after[v] for v in net.pins) + span
            nets.append(net._replace(first=first, last=max(last, first) if net.last else first))
        self.nets = nets

    def part(self, named: Sequence[Sequence[object]]) -> None:
        """Note which nets part which zones."""
        for zone, tensor in named:
            tensors = self.parted.setdefault(whole(zone, "a zone"), set())
            tensors.add(whole(tensor, "a tensor"))
            if len(tensors) > MOST_PARTING:
                raise UnprovenError(f"more than {MOST_PARTING} nets part a zone")

    def gets_through(self, target: int, stages: int, span: int, rates: Rates) -> bool:
        """True if so many stages of load `target` may get to the end."""
        m, least, most = self.m, self.least, self.most
        beyond = [bisect_right(least, work + target) for work in most]
        width = max(end - b for b, end in enumerate(beyond))
        self.budget.spend(2 * ((m + 1) * width + sum(len(net.pins) + 2 for net in self.nets)))
        apart = [net._replace(first=0, last=0) for net in self.nets]
        paid, others = (_paid(n, self.after, self.until, m, width) for n in (apart, self.nets))
        worth = self._worth(rates)
        work, left = {0: 0}, {0: 0}
        grown = {0}
        for _ in range(stages):
            new_work, new_left, again = dict(work), dict(left), set()
            for b in sorted(grown):
                far = work[b] + target
                end = bisect_right(least, far)
                self.budget.spend(sum(len(cases) for cases in worth[b:end]) * len(rates))
                for i in range(b, end):
                    within = min(most[i], far - paid[b][i - b])
                    reach = ENDLESS
                    if i - b >= span:
                        reach = left[b] + target - others[b][i - b]
                    for held, case in worth[i]:
                        w = min(within, *((v + q * reach) // (p + q) for p, q, v in case))
                        if w < held:
                            continue
                        x = min(w, *((v + (q - p) * w) // q for p, q, v in case))
                        x = min(x, *((2 * v + (q - p) * reach) // (p + q) for p, q, v in case))
                        for found, so_far in ((w, new_work), (x, new_left)):
                            if i not in so_far or found > so_far[i]:
                                so_far[i] = found
                                again.add(i)
            work, left, grown = new_work, new_left, again
            if work.get(m, -1) >= most[m]:
                return True
        return False

    def _worth(self, rates: Rates) -> list[list[tuple[int, list[tuple[int, int, int]]]]]:
        """For each case of each zone the least work of its ideals, and for each rate (p, q, the
        most p * work - q * x of them).

        What no net near a zone has to do with is best in its ideals; what is left often looks the
        same.
        """
        solved: dict[Any, list[tuple[int, list[int]]]] = {}
        found = []
        for i, nets in enumerate(self._near()):
            vertices = self._with(nets, i)
            place = {v: number for number, v in enumerate(vertices)}
            sure, parted = 0, []
            ends: list[Ends] = []
            named = self.parted.pop(i, set())
            for net in nets:
                pins = tuple(place[v] for v in net.pins if v in place)
                some_in = any(self.until[v] <= i for v in net.pins)
                some_out = any(self.after[v] > i for v in net.pins)
                if some_in and some_out:
                    sure += net.cost
                elif pins:
                    if some_in and net.tensor in named:
                        parted.append(len(ends))
                    ends.append((net.cost, some_in, some_out, pins))
            if len(parted) < len(named):
                raise UnprovenError(f"a net that parts zone {i} is not near it, or surely paid")
            steps = ((u, v) for u in vertices for v in sorted(self.draft.succ[u]))
            edges = [(place[u], place[v]) for u, v in steps if v in place]
            works = [self.work[v] for v in vertices]
            key = tuple(works), tuple(ends), tuple(edges), tuple(parted)
            if key not in solved:
                solved[key] = []
                for inside, cut in _cases(ends, edges, parted, self.budget):
                    most = [_most(works, cut, edges, inside, rate, self.budget) for rate in rates]
                    solved[key].append((sum(works[v] for v in inside), most))
            best, cases = self.most[i] - sum(works), []
            for held, most in solved[key]:
                pairs = zip(rates, most, strict=True)
                values = [(p, q, p * best - q * sure + v) for (p, q), v in pairs]
                cases.append((self.least[i] + held, values))
            found.append(cases)
        if self.parted:
            raise UnprovenError("a net parts a zone that is not there")
        return found

    def _with(self, nets: Sequence[Net], i: int) -> list[int]:
        """Open vertices of the ideals of a zone that are connected to these nets."""
        after, until, draft = self.after, self.until, self.draft
        found = {v for net in nets for v in net.pins if after[v] <= i < until[v]}
        waiting = list(found)
        for u in waiting:
            for v in draft.succ[u] | draft.pred[u]:
                if v not in found and after[v] <= i < until[v]:
                    found.add(v)
                    waiting.append(v)
        steps = sum(len(draft.succ[v]) + len(draft.pred[v]) for v in waiting)
        self.budget.spend(steps + sum(len(net.pins) for net in nets) + 1)
        return sorted(found)

    def _near(self) -> list[list[Net]]:
        """The nets near each zone."""
        nets: list[list[Net]] = [[] for _ in range(self.m + 1)]
        for net in self.nets:
            self.budget.spend(max(net.last - net.first, 0) + 1)
            for i in range(net.first, min(net.last, self.m + 1)):
                nets[i].append(net)
        return nets


Ends = tuple[int, bool, bool, tuple[int, ...]]
"""Cost of a net, flags for a pin surely in and one surely out, and its other pins."""


def _cases(
    ends: Sequence[Ends], edges: Sequence[tuple[int, int]], parted: Sequence[int], budget: Budget
) -> Iterator[tuple[set[int], list[Ends]]]:
    """Vertices that are in all ideals of a case, and the nets, where a paid one is surely cut."""
    for paid in product((True, False), repeat=len(parted)):
        cut = list(ends)
        inside: set[int] = set()
        for e, left in zip(parted, paid, strict=True):
            if left:
                cut[e] = (ends[e][0], True, True, ())
            else:
                inside.update(ends[e][3])
        size = -1
        while size < len(inside):
            size = len(inside)
            budget.spend(len(edges) + len(ends))
            inside.update(u for u, v in edges if v in inside)
        if not any(cut[e][1:3] == (True, True) and inside.issuperset(ends[e][3]) for e in parted):
            yield inside, cut


def _most(
    works: Sequence[int],
    nets: Sequence[Ends],
    edges: Sequence[tuple[int, int]],
    inside: Collection[int],
    rate: tuple[int, int],
    budget: Budget,
) -> int:
    """The most p * work - q * cut nets of the sets that hold what precedes their vertices, and
    those `inside`."""
    p, q = rate
    items = [(0, p * work) for work in works]
    cut_nets = ((pins, q * cost, some_in, some_out) for cost, some_in, some_out, pins in nets)
    network, cut = cut_network(items, cut_nets, sum(1 << v for v in inside), 0)
    for u, v in edges:
        network.add(v, u, None)
    budget.spend(len(works) + len(edges) + sum(len(net[3]) for net in nets))
    return p * sum(works) - cut - network.flow(None, budget)
