"""The most valuable set of items with a small load, by branch and bound over minimum cuts.

Items have prices p >= 0; the load of a set S on a device is f(S), its work plus its cut
(`dnnp.core.split.cuts`), a submodular function. For any rate r >= 0, no set with a load of at
most `room` has a price above

    r * room + the largest p(S) - r * f(S) over all sets S,

and the least r * f(S) - p(S) is a minimum cut: an arc from a source to each item carries its price,
one from each item to the sink r times its work, and a net r times its cost. The best rate makes it
the Lagrangian dual of the knapsack; where it is no proof, the sets on both sides of that rate, one
of which is too heavy, differ in items. Where the tree branches one of them is in, or out.

Prices are whole numbers, so that a bound below t + 1 is one of t. The fewer different numbers they
are, the more that closes at once: of ten items of price 1, of which 4.7 fit, four fit.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from math import frexp, inf
from typing import NamedTuple

import numpy as np

from dnnp.core.kernels.kernel import kernel, plain
from dnnp.core.model.graph import Bools, Floats, Ints
from dnnp.core.split.cuts import IN, OPEN, OUT, Nets, Residual, lay_out, max_flow, reached

MOST_RATES = 12
"""Rates that are tried at a node of the tree."""

NEAR = 1.3
"""Ratio of the first two rates at a node."""

RATE_BITS, MOST_SHIFT = 40, 62
"""Bits of a rate, and the largest power of two that it is divided by."""

LIGHTEST, DEAREST = (1, 0), (0, 1)
"""Rates at which loads count alone, exactly, and prices alone."""

ERROR = 2.0**-43
"""Relative error of flows, far more than rounding makes."""


class Carrier(NamedTuple):
    """Items and nets as the devices of one class pay for them.

    Nodes of its network: the items, two for each net of more than two pins, source, sink.
    """

    work: Floats
    """f64[n], whole numbers; inf: unsupported."""
    nets: Nets
    net: Ints
    """i64[pins], the net of each pin."""
    arcs: Residual
    capacity: Floats
    """Without the arcs that depend on prices and rates."""
    gain: Ints
    """i64[n], arcs from the source."""
    loss: Ints
    """i64[n], arcs to the sink."""
    cut: Ints
    """Arcs that carry the cost of a net; one each way for two pins."""
    paid: Floats
    """What each of them costs."""

    def load(self, some: Bools) -> float:
        """Load of a set."""
        nets, p = self.nets, len(self.nets.cost)
        inside = np.bincount(self.net[some[nets.pins]], minlength=p)
        paid = (inside > 0) & (nets.always | (inside < np.diff(nets.ptr)))
        return float(self.work[some].sum() + nets.cost[paid].sum())


def carrier_of(work: Floats, nets: Nets) -> Carrier:
    """Lay out the network of a class."""
    n, p = len(work), len(nets.cost)
    net = np.repeat(np.arange(p, dtype=np.int64), np.diff(nets.ptr))
    is_pair = (np.diff(nets.ptr) == 2) & ~nets.always
    pair, other = np.flatnonzero(is_pair), np.flatnonzero(~is_pair)
    left, right = nets.pins[nets.ptr[pair]], nets.pins[nets.ptr[pair] + 1]
    source = n + 2 * len(other)
    sink = source + 1
    first = np.zeros(p, dtype=np.int64)
    first[other] = n + 2 * np.arange(len(other))
    enters, leaves = ~is_pair[net], ~(is_pair | nets.always)[net]
    parts = (
        (np.full(n, source), np.arange(n), 0.0),
        (np.arange(n), np.full(n, sink), 0.0),
        (first[other], np.where(nets.always[other], sink, first[other] + 1), 0.0),
        (left, right, 0.0),
        (right, left, 0.0),
        (nets.pins[enters], first[net][enters], inf),
        (first[net][leaves] + 1, nets.pins[leaves], inf),
    )
    arcs, capacity, places = lay_out(parts, sink + 1)
    cut, paid = np.concatenate(places[2:5]), nets.cost[np.concatenate([other, pair, pair])]
    return Carrier(work, nets, net, arcs, capacity, *plain(places[0], places[1], cut, paid))


def rate_of(value: float) -> tuple[int, int]:
    """Round a rate to a fraction of whole numbers below 2^63, the second one a power of two."""
    mantissa, exponent = frexp(value)
    shift = min(max(RATE_BITS - exponent, 0), MOST_SHIFT)
    exponent = min(exponent, MOST_SHIFT)
    return int(mantissa * 2.0 ** (exponent + shift)), 1 << shift


@dataclass
class _Node:
    """A node of the tree."""

    item: int = -1
    """Item to branch on."""
    children: tuple[int, int] = (-1, -1)
    """Nodes in which the item is in, and out; -1: it ends here."""
    rate: tuple[int, int] = (0, 1)
    """Fraction that proves most."""
    most: float = inf
    """No set of this node is worth more."""


class PricedSets:
    """Sets with a load of at most `room` that are worth more than a price, and the tree.

    `price`: f64[n], whole numbers; `stop` is asked at each node.
    """

    def __init__(
        self, carrier: Carrier, price: Floats, room: float, least: int, stop: Callable[[], bool]
    ) -> None:
        self.of, self.price, self.room, self.stop = carrier, price, room, stop
        self.best = float(least)
        """The price above which sets are looked for."""
        self.total = float(price.sum())
        self.found: list[Bools] = []
        """Each worth more than the last."""
        self.nodes = [_Node()]

    def search(self, most: int, enough: int) -> bool:
        """Tell whether all was seen: not where `enough` sets were found, or after `most` nodes."""
        state = np.where(self.of.work <= self.room, OPEN, OUT)
        self.nodes[0].rate = rate_of(float(self.price.sum()) / max(self.room, 1.0))
        waiting: list[tuple[float, int, Ints]] = []
        self._open(0, state, waiting)
        while waiting and -waiting[0][0] >= self.best + 1:
            if len(self.found) >= enough or len(self.nodes) > most or self.stop():
                return False
            _, number, state = heapq.heappop(waiting)
            node = self.nodes[number]
            node.children = len(self.nodes), len(self.nodes) + 1
            for child, value in zip(node.children, (IN, OUT), strict=True):
                self.nodes.append(_Node(rate=node.rate))
                fixed = state.copy()
                fixed[node.item] = value
                self._open(child, fixed, waiting)
        return True

    def rows(self, names: Ints) -> list[list[int]]:
        """The tree from its root on: [name of the item], then the trees of it in and out, or the
        two parts of a rate where that is enough."""
        found, waiting = [], [0]
        while waiting:
            node = self.nodes[waiting.pop()]
            if node.children[0] < 0:
                found.append([*node.rate])
            else:
                found.append([int(names[node.item])])
                waiting += node.children[::-1]
        return found

    def _open(self, number: int, state: Ints, waiting: list[tuple[float, int, Ints]]) -> None:
        """Bound a node, and let it wait if it may hold something better."""
        node = self.nodes[number]
        light, heavy = self._dual(node, state)
        if node.most < self.best + 1:
            return
        choice = state == OPEN
        if light is not None and heavy is not None and (choice & (light != heavy)).any():
            choice &= light != heavy
        items = np.flatnonzero(choice)
        each = node.rate[0] / max(node.rate[1], 1)
        node.item = int(items[(each * self.of.work[items] + self.price[items]).argmax()])
        heapq.heappush(waiting, (-node.most, number, state))

    def _dual(self, node: _Node, state: Ints) -> tuple[Bools | None, Bools | None]:
        """Lower the bound of a node over rates; a set that fits, and one that does not."""
        light = heavy = None
        low = high = (0.0, 0.0)
        rate, tried = node.rate, None
        for number in range(MOST_RATES):
            if rate == tried:
                break
            (some, load, worth), tried = self._cut(rate, state), rate
            most = self._most(rate, load, worth)
            if most < node.most:
                node.most, node.rate = most, rate
            if load > self.room:
                heavy, high = some, (load, worth)
            else:
                if worth > self.best:
                    self.best = worth
                    self.found.append(some)
                light, low = some, (load, worth)
            if node.most < self.best + 1:
                break
            if light is not None and heavy is not None:
                rate = rate_of(max(high[1] - low[1], 0.0) / (high[0] - low[0]))
            elif number == 0:  # mostly that of the node above, and not far
                rate = rate_of(rate[0] / rate[1] * (NEAR if light is None else 1 / NEAR))
            else:
                rate = LIGHTEST if light is None else DEAREST
        return light, heavy

    def _most(self, rate: tuple[int, int], load: float, worth: float) -> float:
        """Bound of the price of a set that fits, from the set that is best at a rate."""
        if rate == LIGHTEST:  # in whole numbers alone
            return -inf if load > self.room else inf
        each = rate[0] / rate[1]
        error = ERROR * (self.total + each * max(load, self.room))
        return worth - each * (load - self.room) + error

    def _cut(self, rate: tuple[int, int], state: Ints) -> tuple[Bools, float, float]:
        """A set with the least load times `rate`, less its price; its load, and its price."""
        wanted, each = (0.0, 1.0) if rate == LIGHTEST else (1.0, rate[0] / rate[1])
        some, load, worth = cheapest(self.of, self.price, state, each, wanted)
        return some, float(load), float(worth)


@kernel
def cheapest(of, price, state, each, wanted):  # type: ignore[no-untyped-def]
    """The set with the least load times `each` less prices times `wanted`, its load and price."""
    arcs, capacity, n = of.arcs, of.capacity.copy(), len(of.work)
    for v in range(n):
        gain, loss = 0.0, np.inf
        if state[v] != OUT:
            gain = np.inf if state[v] == IN else wanted * price[v]
            loss = each * of.work[v]
        common = min(gain, loss)
        capacity[of.gain[v]] = gain - common
        capacity[of.loss[v]] = loss - common
    for i in range(len(of.cut)):
        capacity[of.cut[i]] = each * of.paid[i]
    source = len(arcs.ptr) - 3
    max_flow(arcs, capacity, np.full(1, source, np.int64), np.inf)
    some = reached(arcs, capacity, source)[:n]
    load = worth = 0.0
    for v in range(n):
        if some[v]:
            load += of.work[v]
            worth += price[v]
    ptr, pins = of.nets.ptr, of.nets.pins
    for e in range(len(of.nets.cost)):
        inside = 0
        for q in range(ptr[e], ptr[e + 1]):
            inside += some[pins[q]]
        if inside > 0 and (of.nets.always[e] or inside < ptr[e + 1] - ptr[e]):
            load += of.nets.cost[e]
    return some, load, worth
