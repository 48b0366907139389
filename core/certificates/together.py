"""Verify multipliers of a linear program about which items share a stage.

For any split let T be the largest load; X(u, v) whether items u and v share a stage, with
X(u, u) = 1; Y(e, v) whether the stage of v pays for net e; P(e) how many stages do. Nets with the
same pins, always paid or not, are one. A row says that a sum of these is at least a number; it is
named by its kind and what it is about:

total     [part]           a * all work + b * sum of cost * P(e) <= s * T * stages
stage     [part, v]        a * work * X(u, v) over u, + b * cost * Y(e, v) over e, <= s * T
cut       [e, v, p, q]     X(p, v) - X(q, v) <= Y(e, v) for pins p and q
inside    [e, v, p]        X(p, v) <= Y(e, v) for a pin p of a net that is always paid
paid      [e, p, q]        2 - 2 X(p, q) <= P(e) for a net that is not always paid
paid      [e, p, q, ...]   how many pins - the sum of X over their pairs <= P(e)
between   [u, w, v]        X(u, v) <= X(u, w) for w between u and v
triangle  [u, v, w]        X(u, v) + X(v, w) - 1 <= X(u, w)

(s, a, b) is (1, 1, 1) under `sum`; otherwise (1, 1, 0) in part 0, and in part 1 (1, 0, 1) under
`overlap` and (2, 0, 1) under `duplex`: the larger of what comes in and goes out is at least half of
both. `paid`: q pins in one stage have q (q - 1) / 2 pairs, which is q - 1 or more; if one stage
holds them all and need not pay, there are three, and as many pairs or more.

No split has a largest load below a target, or its T is at least

    sum of multiplier * least + sum over X, Y and P of limit * min(0, reduced cost)

where T alone has a cost. The limit of P is the number of pins, of the others 1; 0 for an X whose
items share no stage with a load below the target.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dnnp.core.certificates.cuts import Apart, one_class
from dnnp.core.certificates.exact import Exact
from dnnp.core.check.fields import UncheckedError, UnprovenError, field, of_kind, rows, short, whole

MOST_ITEMS = 1_000
"""Items that are looked at."""


def same_block_units(exact: Exact, certificate: Mapping[str, Any], bound: int) -> int:
    """The smaller one of the target and what the multipliers prove."""
    del bound
    name = one_class(exact, overlapping=True)
    target = whole(certificate.get("target"), "the field 'target'")
    scale = whole(certificate.get("scale"), "the field 'scale'", 1)
    listed = rows(field(certificate, "rows", list), 3, "rows")
    if exact.n > MOST_ITEMS:
        raise UncheckedError(f"more than {MOST_ITEMS} items are too many to look at")
    apart = Apart(exact, name, field(certificate, "cuts", list), target)
    sums = Sums(exact, name)
    for kind, about, y in listed:
        if of_kind(kind, str, "the kind of a row") not in ROWS:
            raise UnprovenError("there is no such kind of row")
        what = "what a row is about"
        numbers = [of_kind(number, int, what) for number in of_kind(about, list, what)]
        ROWS[kind](sums, numbers, whole(y, "a multiplier"))
    sums.spread()
    if sums.loads > scale:
        raise UnprovenError("the multipliers weigh the largest load more than once")
    return min(target, sums.least(apart) // scale)


class Sums:
    """Rows times their multipliers, added up: (sum of weight * column) >= `number`."""

    def __init__(self, exact: Exact, name: str) -> None:
        self.exact = exact
        self.work = [w or 0 for w in exact.work[name]]
        self.stages = min(exact.devices[name].count, exact.n)
        comm = exact.options.comm
        self.parts = (
            [(1, 1, 1)] if comm == "sum" else [(1, 1, 0), (2 if comm == "duplex" else 1, 0, 1)]
        )
        numbers: dict[tuple[frozenset[int], bool], int] = {}
        self.net_of: dict[int, int] = {}
        """Number of each tensor that is a net."""
        self.pins: list[frozenset[int]] = []
        self.always: list[bool] = []
        self.cost: list[int] = []
        for tensor, (pins, always, _) in exact.nets.items():
            e = numbers.setdefault((pins, always), len(numbers))
            self.net_of[tensor] = e
            if e == len(self.pins):
                self.pins.append(pins)
                self.always.append(always)
                self.cost.append(0)
            self.cost[e] += exact.cost(name, tensor)
        self.number = self.loads = 0
        """What the sum is at least; the weight of T."""
        self.together: dict[tuple[int, int], int] = {}
        self.paid = [0] * len(self.pins)
        self.pays: dict[tuple[int, int], int] = {}
        self.stage = [[0] * exact.n for _ in self.parts]
        """Multipliers of the rows of stages."""

    def spread(self) -> None:
        """Add the rows of stages, all at once."""
        for (_, a, b), multipliers in zip(self.parts, self.stage, strict=True):
            for v, y in enumerate(multipliers):
                if not y:
                    continue
                self.exact.budget.spend(len(self.work) * a + len(self.cost) * b)
                if a:
                    for u, work in enumerate(self.work):
                        if work:
                            self._share(u, v, -a * y * work)
                if b:
                    for e, cost in enumerate(self.cost):
                        if cost:
                            self.pays[e, v] = self.pays.get((e, v), 0) - b * y * cost

    def least(self, apart: Apart) -> int:
        """What all this says of T, times its weight and all that it is short of the scale."""
        found = self.number
        for (u, v), weight in self.together.items():
            if weight > 0 and not apart.holds(u, v):
                found -= weight
        found -= sum(w for w in self.pays.values() if w > 0)
        return found - sum(len(p) * max(w, 0) for p, w in zip(self.pins, self.paid, strict=True))

    def total(self, about: list[int], y: int) -> None:
        """All work and all that is paid."""
        (part,) = _of_size(about, 1)
        s, a, b = self._part(part)
        self.exact.budget.spend(len(self.work) + len(self.cost))
        self.loads += y * s * self.stages
        self.number += y * a * sum(self.work)
        for e, cost in enumerate(self.cost if b else ()):
            self.paid[e] -= y * b * cost

    def of_stage(self, about: list[int], y: int) -> None:
        """Work and what is paid in the stage of an item."""
        part, named = _of_size(about, 2)
        self.loads += y * self._part(part)[0]
        self.stage[part][self.exact.named(named)] += y

    def cut(self, about: list[int], y: int) -> None:
        """A pin is inside, another one is not."""
        tensor, *named = _of_size(about, 4)
        e = self._net(tensor)
        v, p, q = (self.exact.named(x) for x in named)
        self._pins(e, [p, q])
        self.pays[e, v] = self.pays.get((e, v), 0) + y
        self._share(p, v, -y)
        self._share(q, v, y)

    def inside(self, about: list[int], y: int) -> None:
        """A pin of a net that is always paid is inside."""
        tensor, *named = _of_size(about, 3)
        e = self._net(tensor)
        v, p = (self.exact.named(x) for x in named)
        self._pins(e, [p])
        if not self.always[e]:
            raise UnprovenError(f"tensor {short(tensor)} is not always paid")
        self.pays[e, v] = self.pays.get((e, v), 0) + y
        self._share(p, v, -y)

    def of_paid(self, about: list[int], y: int) -> None:
        """Pins in different stages."""
        if not about:
            raise UnprovenError("a row has nothing that it is about")
        e = self._net(about[0])
        pins = [self.exact.named(x) for x in about[1:]]
        self._pins(e, pins)
        if len(pins) < (1 if self.always[e] else 2):
            raise UnprovenError("a row of what is paid has too few pins")
        twice = 2 if len(pins) == 2 and not self.always[e] else 1
        self.exact.budget.spend(len(pins) ** 2)  # half as many pairs, each in a dictionary
        self.paid[e] += y
        self.number += y * len(pins)
        for place, p in enumerate(pins):
            for q in pins[:place]:
                self._share(p, q, y * twice)

    def between(self, about: list[int], y: int) -> None:
        """What lies between two items is with them."""
        u, w, v = (self.exact.named(x) for x in _of_size(about, 3))
        if not self.exact.between(u, v) >> w & 1:
            raise UnprovenError(f"item {about[1]} is not between items {about[0]} and {about[2]}")
        self._share(u, w, y)
        self._share(u, v, -y)

    def triangle(self, about: list[int], y: int) -> None:
        """Two items that are with a third one are together."""
        u, v, w = (self.exact.named(x) for x in _of_size(about, 3))
        self.number -= y
        self._share(u, w, y)
        self._share(u, v, -y)
        self._share(v, w, -y)

    def _share(self, u: int, v: int, weight: int) -> None:
        if u == v:
            self.number -= weight
        else:
            pair = (u, v) if u < v else (v, u)
            self.together[pair] = self.together.get(pair, 0) + weight

    def _part(self, part: int) -> tuple[int, int, int]:
        if not 0 <= part < len(self.parts):
            raise UnprovenError(f"loads have no part {short(part)}")
        return self.parts[part]

    def _net(self, tensor: int) -> int:
        if tensor not in self.net_of:
            raise UnprovenError(f"tensor {short(tensor)} is no net")
        return self.net_of[tensor]

    def _pins(self, e: int, pins: list[int]) -> None:
        if not self.pins[e].issuperset(pins) or len(set(pins)) < len(pins):
            raise UnprovenError("a row names what is no pin of its net, or a pin twice")


def _of_size(about: list[int], size: int) -> list[int]:
    if len(about) != size:
        raise UnprovenError(f"a row is about {len(about)} numbers, expected {size}")
    return about


ROWS = {
    "total": Sums.total,
    "stage": Sums.of_stage,
    "cut": Sums.cut,
    "inside": Sums.inside,
    "paid": Sums.of_paid,
    "between": Sums.between,
    "triangle": Sums.triangle,
}
"""Kind of a row -> what adds it."""
