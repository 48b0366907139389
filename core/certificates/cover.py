"""Verify prices of items: that no stage with a small load is worth more than its share.

If k stages with loads below a bound held all items, one of them would be worth more than
t = (sum of prices - 1) / k, rounded down. That there is no such set is found by branch and bound in
whole numbers, over sets that hold whatever lies between two of their items. With some items in,
some out and the others open, a set has at least the load

    work + cost of the nets that are surely paid
    + cost of the nets with pins in and open, less cost / open for each open pin that joins
    + cost / open for each that joins, of nets with none in, but some out, or always paid.

So the open items are those of a knapsack: each has a price and adds to the load. With any ratio
a / b >= 0 no set is worth more than the price of what is in, plus a / b times the room that is
left, plus the sum over open items of the price less a / b times what it adds, where that is above
0. An item whose being in, or out, lowers this to t or less is decided.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from dnnp.core.certificates.cuts import one_class
from dnnp.core.certificates.exact import (
    Exact,
    UncheckedError,
    UnprovenError,
    bits,
    prices_of,
    short,
)

MOST_ITEMS = 250
"""Items that are looked at."""


def cover_units(exact: Exact, certificate: Mapping[str, Any], bound: int) -> int:
    """`bound`, if no stage with a load below it is worth more than its share of the prices."""
    name = one_class(exact, objectives=("throughput",))
    prices = prices_of(exact, certificate)
    if exact.n > MOST_ITEMS:
        raise UncheckedError(f"more than {MOST_ITEMS} items are too many to search")
    stages = min(exact.devices[name].count, exact.n)
    search = Sets(exact, name, prices, bound - 1, (sum(prices) - 1) // stages)
    found = search.run()
    if found is not None:
        raise UnprovenError(
            f"a stage below {short(bound)} quanta may hold item {exact.names[found]} and others, "
            "and be worth more than its share of the prices"
        )
    return bound


FINE = 64
"""Bits after the point of ratios that items are sorted by."""

Net = tuple[int, int, bool]
"""Its pins (a bit mask), its cost, whether it is always paid."""


@dataclass
class CoverState:
    """Items that are in and open, as bit masks, and their cost."""

    inside: int
    open: int
    load: int
    """Work that is in, and nets that are decided."""
    value: int
    nets: list[Net]
    """Nets that are not decided."""
    need: list[int]
    """Items that each open item brings in with it."""


class Sets:
    """Sets of items with a load of at most `room` that are worth more than `share`."""

    def __init__(self, exact: Exact, name: str, prices: list[int], room: int, share: int) -> None:
        n = exact.n
        self.spend = exact.budget.spend
        self.n, self.prices, self.room, self.goal = n, prices, room, share + 1
        self.work = [w or 0 for w in exact.work[name]]
        nets: dict[tuple[int, bool], int] = {}
        for tensor, (pins, always, _) in exact.nets.items():
            key = sum(1 << v for v in pins), always
            nets[key] = nets.get(key, 0) + exact.cost(name, tensor)
        self.nets = [(mask, cost, always) for (mask, always), cost in nets.items() if cost]
        self.hold = [[exact.between(u, v) for v in range(n)] for u in range(n)]
        self.apart = [0] * n
        """Items that are in no such set together with each item, as a bit mask."""
        for u in range(n):
            for v in range(u, n):
                if self._least(self.hold[u][v]) > room:
                    self.apart[u] |= 1 << v
                    self.apart[v] |= 1 << u

    def _least(self, some: int) -> int:
        """Least cost of a set with some items; every other one may save its net's cost."""
        steps = len(self.nets) // 2
        load = sum(self.work[v] for v in bits(some))
        saved: dict[int, int] = {}
        for mask, cost, always in self.nets:
            if mask & some and (always or mask & ~some):
                load += cost
                if not always:
                    others = mask & ~some
                    steps += others.bit_count()
                    part = -(-cost // others.bit_count())
                    for v in bits(others):
                        saved[v] = saved.get(v, 0) + part
        self.spend(steps + 1)
        return load - sum(max(0, s - self.work[v]) for v, s in saved.items())

    def run(self) -> int | None:
        """An item of such a set, or None if there is none."""
        alone = sum(1 << v for v in range(self.n) if not self.apart[v] >> v & 1)
        waiting = [CoverState(0, alone, 0, 0, self.nets, [self.hold[v][v] for v in range(self.n)])]
        while waiting:
            state = waiting.pop()
            while True:
                decided = self._decided(state)
                if decided is None:
                    break
                if not state.open:
                    return next(bits(state.inside))
                enter, leave = decided
                if not enter and not leave:
                    enter = 1 << self._branch(state)
                    waiting.append(replace(state, open=state.open & ~enter))
                state.open &= ~leave
                if enter and not self._join(state, enter):
                    break
        return None

    def _branch(self, state: CoverState) -> int:
        """An open item, of large price, and near to what is in."""
        near = 0
        for mask, _, _ in state.nets:
            if mask & state.inside:
                near |= mask
        near &= state.open
        return max(bits(near or state.open), key=lambda v: (self.prices[v], -v))

    def _join(self, state: CoverState, enter: int) -> bool:
        """Put items in, with all that lies between; whether that may be."""
        need = list(state.need)
        allowed = state.inside | state.open
        while enter:
            if enter & ~allowed:
                return False
            new = enter & -enter
            a = new.bit_length() - 1
            state.inside |= new
            state.open &= ~new
            state.load += self.work[a]
            state.value += self.prices[a]
            enter = (enter | need[a]) & ~state.inside
            if self.apart[a] & (state.inside | enter):
                return False
            self.spend(state.open.bit_count())
            for u in bits(state.open):
                need[u] |= self.hold[a][u]
            state.open &= ~self.apart[a]
        state.need = need
        return True

    def _decided(self, state: CoverState) -> tuple[int, int] | None:
        """Items that must be in, and out, as bit masks; None if there is no such set.

        Takes out what needs an item that is out, and adds the cost of nets that are surely paid.
        """
        self._leave(state)
        room, adds = self._knapsack(state)
        items = list(bits(state.open))
        steps = 3 * len(items)
        left = room - sum(adds[v] for v in items if adds[v] < 0)
        if left < 0:
            return None
        a, b = self._ratio(left, items, adds)
        slack = (state.value - self.goal) * b + a * room
        gain = {v: self.prices[v] * b - a * adds[v] for v in items}
        slack += sum(g for g in gain.values() if g > 0)
        if slack < 0:
            return None
        enter = leave = 0
        for v, g in gain.items():
            if g > slack:
                enter |= 1 << v
            else:
                loss = 0
                steps += (state.need[v] & state.open).bit_count()
                for u in bits(state.need[v] & state.open):
                    loss += min(gain[u], 0)
                if loss < -slack:
                    leave |= 1 << v
        self.spend(steps)
        return None if enter & leave else (enter, leave)

    def _leave(self, state: CoverState) -> None:
        """Take out the open items that need one that is out."""
        while True:
            allowed = state.inside | state.open
            gone = 0
            for v in bits(state.open):
                if state.need[v] & ~allowed:
                    gone |= 1 << v
            if not gone:
                return
            state.open ^= gone

    def _knapsack(self, state: CoverState) -> tuple[int, list[int]]:
        """Load that is left, and what each item adds at least."""
        inside, still = state.inside, state.open
        room, adds, nets = self.room - state.load, list(self.work), []
        steps = 2 * len(state.nets) + 10
        for net in state.nets:
            mask, cost, always = net
            rest = mask & still
            if mask & inside:
                if always or mask & ~(inside | still):
                    state.load += cost
                    room -= cost
                elif rest:
                    nets.append(net)
                    room -= cost
                    steps += rest.bit_count()
                    part = -(-cost // rest.bit_count())
                    for v in bits(rest):
                        adds[v] -= part
            elif rest:
                nets.append(net)
                if always or rest != mask:
                    steps += rest.bit_count()
                    part = cost // rest.bit_count()
                    for v in bits(rest):
                        adds[v] += part
        self.spend(steps)
        state.nets = nets
        return room, adds

    def _ratio(self, left: int, items: list[int], adds: list[int]) -> tuple[int, int]:
        """Price and addition of the first item that does not fit, the best ratio first."""
        prices = self.prices
        ranked = [((prices[v] << FINE) // adds[v], v) for v in items if adds[v] > 0 and prices[v]]
        for _, v in sorted(ranked, reverse=True):
            if adds[v] > left:
                return prices[v], adds[v]
            left -= adds[v]
        return 0, 1
