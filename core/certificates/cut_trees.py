"""Verify trees of cases, in each of which a minimum cut is large enough: `halves`, `cover-cut`.

The cuts are found anew here, as largest flows in whole numbers. Of a net with the pins u,

    u -> p (unlimited)   p -> q (its cost)   q -> u (unlimited),

where p is the source if a pin is in, q the sink if one is out.

`halves`: two stages are an ideal of items and the rest. Where the tree branches, an item is in the
ideal with all before it, or out with all after it. Where it ends, there are weights a and d - a:
for each ideal of the case a times its load plus d - a times that of the rest is above d times any
load below the bound, so that one of both is not below it. Costs of nets are taken d times, and

    source -> v (d - a times work)   v -> sink (a times work)   v -> u (unlimited) if u precedes v.

A net that is always paid has u -> p, p -> sink (a times its cost), source -> q (d - a times its
cost) and q -> u.

`cover-cut`: if no set of items with a load below the bound on a device of class c is worth more
than a share t(c), the devices hold at most the sum of their shares, less than all prices. For each
class there is a tree. Where it branches, an item is in the set, or out. Where it ends, there are
whole numbers a and b: for each set S of the case

    b * price(S) - a * load(S) < b * (t + 1) - a * (bound - 1),

so that it is not both worth t + 1 and of a load of at most bound - 1. The largest left side is the
price of all items that are not out, times b, less a minimum cut where costs of nets are taken a
times, and

    source -> v (b times its price)   v -> sink (a times its work).

q is the sink of a net that is always paid, too; a net of two pins is an arc each way. An item that
the class cannot run, or whose work alone is as much as the bound, is out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dnnp.core.certificates.cuts import one_class
from dnnp.core.certificates.exact import (
    WORD,
    Budget,
    Exact,
    UnprovenError,
    field,
    of_kind,
    prices_of,
    short,
    whole,
)

SOURCE, SINK = -1, -2


class Network:
    """Arcs with what they may still carry."""

    def __init__(self) -> None:
        self.arcs: dict[int, list[int]] = {SOURCE: [], SINK: []}
        """Numbers of the arcs from each node; the reverse of arc i is i ^ 1."""
        self.head: list[int] = []
        self.left: list[int | None] = []
        """None: unlimited."""

    def add(self, tail: int, head: int, capacity: int | None) -> None:
        """An arc; one that carries nothing is left out."""
        if capacity == 0:
            return
        for a, b, room in ((tail, head, capacity), (head, tail, 0)):
            self.arcs.setdefault(a, []).append(len(self.head))
            self.head.append(b)
            self.left.append(room)

    def carries(self, wanted: int, budget: Budget) -> bool:
        """True if so much flows from the source to the sink."""
        return self.flow(wanted, budget) >= wanted

    def flow(self, wanted: int | None, budget: Budget) -> int:
        """Largest flow from source to sink (Dinic); where it is as `wanted`, perhaps more."""
        flow = 0
        while wanted is None or flow < wanted:
            level = self._levels(budget)
            if SINK not in level:
                return flow
            at = dict.fromkeys(level, 0)
            path: list[int] = []
            node = SOURCE
            while True:
                budget.spend(1)
                if node == SINK:
                    flow += self._push(path)
                    path, node = [], SOURCE
                    continue
                arc = self._next(node, level, at)
                if arc is not None:
                    path.append(arc)
                    node = self.head[arc]
                elif not path:
                    break
                else:
                    level[node] = -1
                    node = self.head[path.pop() ^ 1]
                    at[node] += 1
        return flow

    def _levels(self, budget: Budget) -> dict[int, int]:
        """Distance of what the source still reaches."""
        level = {SOURCE: 0}
        waiting = [SOURCE]
        for node in waiting:
            budget.spend(1)
            for arc in self.arcs[node]:
                if self.left[arc] != 0 and self.head[arc] not in level:
                    level[self.head[arc]] = level[node] + 1
                    waiting.append(self.head[arc])
        return level

    def _next(self, node: int, level: dict[int, int], at: dict[int, int]) -> int | None:
        """An arc to the next level that carries more, if there is one."""
        arcs = self.arcs[node]
        for place in range(at[node], len(arcs)):
            arc = arcs[place]
            if self.left[arc] != 0 and level.get(self.head[arc], -1) == level[node] + 1:
                at[node] = place
                return arc
        at[node] = len(arcs)
        return None

    def _push(self, path: Sequence[int]) -> int:
        """Send what a path may carry; source and sink have limited arcs between them."""
        rooms = [room for room in (self.left[arc] for arc in path) if room is not None]
        if not rooms:
            raise UnprovenError("nothing limits a flow")
        amount = min(rooms)
        for arc in path:
            for changed, more in ((arc, -amount), (arc ^ 1, amount)):
                room = self.left[changed]
                if room is not None:
                    self.left[changed] = room + more
        return amount


def bisection_units(exact: Exact, certificate: Mapping[str, Any], units: int) -> int:
    """`units`, if no split into two stages has both loads below so many quanta."""
    name = one_class(exact)
    if not exact.in_order:
        raise UnprovenError("it is for ordered splits without a backward pass only")
    if exact.devices[name].count > 2:
        raise UnprovenError("it is for two devices only")
    if any(work is None for work in exact.work[name]):
        raise UnprovenError("an item runs on no device that is offered")
    for inside, outside, weight, parts in tree_cases(exact, field(certificate, "tree", list)):
        if weight > parts:
            raise UnprovenError(f"a weight of {short(weight)} is above {short(parts)}")
        if inside & outside:
            continue  # no ideal is like that
        case = _TwoStages(exact, inside, outside, weight, parts - weight)
        if not case.exceeds(name, parts * (units - 1)):
            raise UnprovenError("a cut is too small where its tree ends")
    return units


def tree_cases(
    exact: Exact, tree: Sequence[object], *, alone: bool = False
) -> Iterator[tuple[int, int, int, int]]:
    """Leaves of the tree: items that are in, and out, as bit masks, and the two numbers there.

    An item comes in with all before it, and goes out with all after it, or `alone`.
    """
    waiting = [(0, 0)]
    for row in tree:
        numbers = of_kind(row, list, "a row of the tree")
        if not waiting:
            raise UnprovenError("its tree has more rows than branches")
        inside, outside = waiting.pop()
        exact.budget.spend(exact.n // WORD + 1)
        if len(numbers) == 1:
            item = exact.named(numbers[0])
            after, before = (1 << item if alone else exact.met(item, on) for on in (True, False))
            waiting += [(inside, outside | after), (inside | before, outside)]
        elif len(numbers) == 2:
            weight, parts = whole(numbers[0], "a weight"), whole(numbers[1], "its whole", 1 - alone)
            yield inside, outside, weight, parts
        else:
            raise UnprovenError("a row of the tree has neither one part nor two")
    if waiting:
        raise UnprovenError("its tree has branches without an end")


class _TwoStages:
    """Ideals with some items, and without others, and what they pay weighed."""

    def __init__(self, exact: Exact, inside: int, outside: int, ahead: int, behind: int) -> None:
        self.exact, self.inside, self.outside = exact, inside, outside
        self.ahead, self.behind = ahead, behind
        self.paid = 0
        """Load that every one of these ideals pays."""
        self.network = Network()

    def exceeds(self, name: str, limit: int) -> bool:
        """True if every one of them pays more than the limit on a class."""
        exact = self.exact
        for item, work in enumerate(exact.work[name]):
            self._pay(item, work or 0)
        for a, b in exact.edges:
            if self._is_open(a) and self._is_open(b):
                self.network.add(b, a, None)
        exact.budget.spend(exact.n + len(exact.edges))
        for number, (tensor, (pins, always, _)) in enumerate(exact.nets.items()):
            exact.budget.spend(len(pins))
            cost = exact.cost(name, tensor)
            self._pay_net(exact.n + 2 * number, pins, cost, always=always)
        return self.paid > limit or self.network.carries(limit + 1 - self.paid, exact.budget)

    def _is_open(self, item: int) -> bool:
        return not (self.inside | self.outside) >> item & 1

    def _pay(self, item: int, work: int) -> None:
        if self.inside >> item & 1:
            self.paid += self.ahead * work
        elif self.outside >> item & 1:
            self.paid += self.behind * work
        else:
            # One of both is paid in any case, so that the lesser one is.
            common = min(self.ahead, self.behind)
            self.paid += common * work
            self.network.add(SOURCE, item, (self.behind - common) * work)
            self.network.add(item, SINK, (self.ahead - common) * work)

    def _pay_net(self, first: int, pins: frozenset[int], cost: int, *, always: bool) -> None:
        has_in = any(self.inside >> v & 1 for v in pins)
        has_out = any(self.outside >> v & 1 for v in pins)
        if always:
            if has_in:
                self.paid += self.ahead * cost
            else:
                self.network.add(first, SINK, self.ahead * cost)
            if has_out:
                self.paid += self.behind * cost
            else:
                self.network.add(SOURCE, first + 1, self.behind * cost)
        elif has_in and has_out:
            self.paid += (self.ahead + self.behind) * cost
        else:
            both = (self.ahead + self.behind) * cost
            self.network.add(SOURCE if has_in else first, SINK if has_out else first + 1, both)
        for v in pins:
            if not self._is_open(v):
                continue
            if not has_in:
                self.network.add(v, first, None)
            if not has_out:
                self.network.add(first + 1, v, None)


def cover_cut_units(exact: Exact, certificate: Mapping[str, Any], bound: int) -> int:
    """`bound`, if the devices hold less than all prices with loads below it."""
    options = exact.options
    if options.objective not in ("throughput", "gpipe"):
        raise UnprovenError("it is for throughput only")
    if options.max_replicas != 1:
        raise UnprovenError("it is for stages without replicas only")
    if options.comm != "sum":
        raise UnprovenError("it is for transfers that add to compute only")
    prices = prices_of(exact, certificate)
    classes = field(certificate, "classes", dict)
    if set(classes) != set(exact.devices):
        raise UnprovenError("its classes are not those that are offered")
    held = 0
    for name, device in exact.devices.items():
        share = whole(field(classes[name], "share", int), "a share")
        held += min(device.count, exact.n) * share
        tree = field(classes[name], "tree", list)
        for inside, outside, a, b in tree_cases(exact, tree, alone=True):
            case = _SetCase(exact, name, prices, inside, outside, bound)
            if not case.holds(a, b, share):
                raise UnprovenError(f"a cut of class '{name}' is too small where its tree ends")
    if held >= sum(prices):
        raise UnprovenError(f"shares of {short(held)} hold all prices")
    return bound


class _SetCase:
    """Sets with some items, and without others, bit masks, and with a load below the bound."""

    def __init__(
        self, exact: Exact, name: str, prices: list[int], inside: int, outside: int, bound: int
    ) -> None:
        self.exact, self.name, self.prices, self.bound = exact, name, prices, bound
        self.inside, self.outside = inside, outside
        for v, work in enumerate(exact.work[name]):
            if work is None or work >= bound:
                self.outside |= 1 << v
        exact.budget.spend(exact.n)

    def holds(self, a: int, b: int, share: int) -> bool:
        """True if none of them is worth more than a share, with these numbers."""
        if self.inside & self.outside:
            return True  # there is no such set
        exact, network, paid, all_ = self.exact, Network(), 0, 0
        for v, work in enumerate(exact.work[self.name]):
            if self.outside >> v & 1:
                continue
            gain, loss = b * self.prices[v], a * (work or 0)
            all_ += gain
            common = loss if self.inside >> v & 1 else min(gain, loss)
            paid += common
            if not self.inside >> v & 1:
                network.add(SOURCE, v, gain - common)
                network.add(v, SINK, loss - common)
        exact.budget.spend(exact.n)
        for number, (tensor, (pins, always, _)) in enumerate(exact.nets.items()):
            exact.budget.spend(len(pins))
            cost = a * exact.cost(self.name, tensor)
            if cost:
                paid += self._net(network, exact.n + 2 * number, pins, cost, always=always)
        wanted = all_ - b * (share + 1) + a * (self.bound - 1) + 1
        return paid >= wanted or network.carries(wanted - paid, exact.budget)

    def _net(
        self, network: Network, first: int, pins: frozenset[int], cost: int, *, always: bool
    ) -> int:
        """Put a net into the network; what is paid of it in any case."""
        has_in = any(self.inside >> v & 1 for v in pins)
        ends = always or any(self.outside >> v & 1 for v in pins)
        if has_in and ends:
            return cost
        if len(pins) == 2 and not has_in and not ends:
            u, v = pins
            network.add(u, v, cost)
            network.add(v, u, cost)
            return 0
        network.add(SOURCE if has_in else first, SINK if ends else first + 1, cost)
        for v in pins:
            if not (self.inside | self.outside) >> v & 1:
                if not has_in:
                    network.add(v, first, None)
                if not ends:
                    network.add(first + 1, v, None)
        return 0
