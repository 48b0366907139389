"""Verify prices of items by minimum cuts: that all devices together hold less than there is.

If no set of items with a load below the bound on a device of class c is worth more than a share
t(c), the devices hold at most the sum of their shares, less than all prices. For each class
there is a tree of cases. Where it branches, an item is in the set, or out. Where it ends, there are
whole numbers a and b: for each set S of the case

    b * price(S) - a * load(S) < b * (t + 1) - a * (bound - 1),

so that it is not both worth t + 1 and of a load of at most bound - 1. The largest left side is the
price of all items that are not out, times b, less a minimum cut, found anew here as a largest flow
in whole numbers:

    source -> v (b times its price)   v -> sink (a times its work)

and for a net u -> p (unlimited), p -> q (a times its cost), q -> u (unlimited) over its pins u; p
is the source where a pin is in, q the sink where one is out, or where the net is always paid; a net
of two pins is an arc each way. An item that the class cannot run, or whose work alone is as much as
the bound, is out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dnnp.core.certificates.bisection import SINK, SOURCE, Network, tree_cases
from dnnp.core.certificates.exact import Exact, UnprovenError, field, prices_of, short, whole


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
            case = _Case(exact, name, prices, inside, outside, bound)
            if not case.holds(a, b, share):
                raise UnprovenError(f"a cut of class '{name}' is too small where its tree ends")
    if held >= sum(prices):
        raise UnprovenError(f"shares of {short(held)} hold all prices")
    return bound


class _Case:
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
        """Test whether none of them is worth more than a share, with these numbers."""
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
