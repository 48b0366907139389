"""Verify trees of cases, in each of which a minimum cut is large enough: `halves`, `cover-cut`.

The cuts are found anew here, as largest flows in whole numbers, of

    source -> v (what item v pays if it is out)   v -> sink (what it pays if it is in)

and for a net with the pins u, which is paid where one is in and one out,

    u -> p (unlimited)   p -> q (its cost)   q -> u (unlimited),

where p is the source if a pin is in, q the sink if one is out; a net of two pins is an arc each
way. A net that is always paid has p at the source, or q at the sink.

`halves`: two stages are an ideal of items and the rest. Where the tree branches, an item is in the
ideal with all before it, or out with all after it. Where it ends, there are weights a and d - a:
for each ideal of the case a times its load plus d - a times that of the rest is above d times any
load below the bound, so that one of both is not below it. An item that precedes v has an unlimited
arc from v.

`cover-cut`: if no set of items with a load below the bound on a device of class c is worth more
than a share t(c), the devices hold at most the sum of their shares, less than all prices. For each
class there is a tree. Where it branches, an item is in the set, or out. Where it ends, there are
whole numbers a and b: for each set S of the case

    b * price(S) - a * load(S) < b * (t + 1) - a * (bound - 1),

so that it is not both worth t + 1 and of a load of at most bound - 1. So an item pays a times its
work, or b times its price. One that the class cannot run, or whose work alone is as much as the
bound, is out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
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

    def flow(self, wanted: int | None, budget: Budget) -> int:
        """Largest flow from source to sink (Dinic); where it is as `wanted`, perhaps more."""
        flow = 0
        while wanted is None or flow < wanted:
            level = self._levels(budget)
            if SINK not in level:
                break
            ahead = {
                node: [arc for arc in self.arcs[node] if level.get(self.head[arc], 0) > far]
                for node, far in level.items()
            }
            path: list[int] = []
            node = SOURCE
            while True:
                budget.spend(1)
                arcs = ahead[node]
                while arcs and self.left[arcs[-1]] == 0:
                    arcs.pop()
                if node == SINK:
                    flow += self._push(path)
                    path = []
                elif arcs:
                    path.append(arcs[-1])
                elif path:
                    ahead[self.head[path.pop() ^ 1]].pop()
                else:
                    break
                node = self.head[path[-1]] if path else SOURCE
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


Choice = tuple[int, int]
"""Costs of an item that is in, and of one that is out."""

CutNet = tuple[Collection[int], int, bool, bool]
"""Pins and cost of a net, paid where some pin is in, and some out; flags for either in any case."""


def cut_network(
    items: Sequence[Choice], nets: Iterable[CutNet], inside: int, outside: int
) -> tuple[Network, int]:
    """The network of the sets with some items and without others; what all of them pay besides."""
    network, paid = Network(), 0
    for v, (here, there) in enumerate(items):
        if (inside | outside) >> v & 1:
            paid += here if inside >> v & 1 else there
        else:
            # One of both is paid in any case, so that the lesser one is.
            common = min(here, there)
            paid += common
            network.add(SOURCE, v, there - common)
            network.add(v, SINK, here - common)
    for number, (pins, cost, some_in, some_out) in enumerate(nets):
        begin = some_in or any(inside >> v & 1 for v in pins)
        end = some_out or any(outside >> v & 1 for v in pins)
        if begin and end:
            paid += cost
        elif begin or end or len(pins) != 2:
            first, last = len(items) + 2 * number, len(items) + 2 * number + 1
            network.add(SOURCE if begin else first, SINK if end else last, cost)
            for v in pins if cost else ():
                if not (begin or outside >> v & 1):
                    network.add(v, first, None)
                if not (end or inside >> v & 1):
                    network.add(last, v, None)
        else:
            u, v = pins
            network.add(u, v, cost)
            network.add(v, u, cost)
    return network, paid


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
        items = [(weight * (w or 0), (parts - weight) * (w or 0)) for w in exact.work[name]]
        nets: list[CutNet] = []
        for tensor, (pins, always, _) in exact.nets.items():
            cost = exact.cost(name, tensor)
            if always:
                nets.append((pins, weight * cost, False, True))
                nets.append((pins, (parts - weight) * cost, True, False))
            else:
                nets.append((pins, parts * cost, False, False))
        exact.budget.spend(exact.n + len(exact.edges) + sum(len(net[0]) for net in nets))
        network, paid = cut_network(items, nets, inside, outside)
        for a, b in exact.edges:
            network.add(b, a, None)
        wanted = parts * (units - 1) + 1 - paid
        if network.flow(wanted, exact.budget) < wanted:
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
        work = exact.work[name]
        unfit = sum(1 << v for v, w in enumerate(work) if w is None or w >= bound)
        for inside, outside, a, b in tree_cases(exact, tree, alone=True):
            if inside & (outside | unfit):
                continue  # no set is like that
            items = [(a * (w or 0), b * price) for w, price in zip(work, prices, strict=True)]
            nets = [
                (pins, a * exact.cost(name, tensor), False, always)
                for tensor, (pins, always, _) in exact.nets.items()
            ]
            exact.budget.spend(2 * exact.n + sum(len(net[0]) for net in nets))
            network, paid = cut_network(items, nets, inside, outside | unfit)
            wanted = b * (sum(prices) - share - 1) + a * (bound - 1) + 1 - paid
            if network.flow(wanted, exact.budget) < wanted:
                raise UnprovenError(f"a cut of class '{name}' is too small where its tree ends")
    if held >= sum(prices):
        raise UnprovenError(f"shares of {short(held)} hold all prices")
    return bound
