"""Verify cuts: that no set with certain items has a small load, and what follows.

For a class of accelerators let f(S) be the work of a set S of items plus the cost of the nets that
S pays: those with pins inside and outside, and those with pins inside that are always paid. A
certificate gives amounts g(t, i) that items i push into nets t. If

* i is a pin of t, the positive amounts of t add up to at most its cost, and all amounts of t to 0,
  or to 0 or more where it is always paid,
* every item i outside of the sources R that the class can run takes out at most its work more than
  it pushes,

then f(S) >= work(R) + what R pushes, less what it takes out, for each S that contains R. For the
items of S push together at most the cost of the nets that S pays: a net whose pins are all
inside gives back what it got. And the items of S outside of R push at least minus their work.

Pairs of items that a cut keeps apart limit how often nets are paid: `pairs` counts cliques of them,
`same-block` takes multipliers of a linear program about which items share a stage (`Sums`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from fractions import Fraction
from typing import Any

from dnnp.core.certificates.exact import (
    WORD,
    Exact,
    UncheckedError,
    UnprovenError,
    bits,
    field,
    of_kind,
    rows,
    short,
    whole,
)
from dnnp.core.check.violation import MEMORY
from dnnp.core.model.plan import CostOptions

FITS = Fraction(1 + 2 * MEMORY)
"""Share of a capacity that no memory exceeds which fits, however its own sums were rounded: an
argument may call what is more too much."""


def cut_bound(
    exact: Exact,
    name: str,
    sources: set[int],
    flows: object,
    mix: tuple[int, int] = (1, 1),
    outside: Collection[int] = (),
) -> int:
    """Least cost of every set with the sources, and no item `outside`, on class `name`; quanta.

    With `mix` (a, b) a set costs a times its work plus b times its nets.
    """
    a, b = mix
    exact.budget.spend(len(sources) + 1)
    balance: dict[int, int] = {}
    seen = set()
    for tensor, amounts in rows(flows, 2, "flows"):
        tensor = of_kind(tensor, int, "a tensor")
        if tensor not in exact.nets or tensor in seen:
            raise UnprovenError(f"tensor {short(tensor)} is no net, or is listed twice")
        seen.add(tensor)
        pins, always, _ = exact.nets[tensor]
        into = out = 0
        listed = set()
        amounts = rows(amounts, 2, "flows")
        exact.budget.spend(len(amounts) + 1)
        for named, amount in amounts:
            item = exact.named(named)
            if item not in pins or item in listed:
                raise UnprovenError(
                    f"item {named} is no pin of tensor {tensor}, or is listed twice"
                )
            listed.add(item)
            amount = of_kind(amount, int, "an amount")
            into += max(amount, 0)
            out += max(-amount, 0)
            balance[item] = balance.get(item, 0) + amount
        if into > b * exact.cost(name, tensor):
            raise UnprovenError(f"more flows through tensor {tensor} than it costs")
        if out > into or (out < into and not always):
            raise UnprovenError(f"what flows into tensor {tensor} is not what flows out of it")
    for item, amount in balance.items():
        limit = exact.work[name][item]
        if item in sources or item in outside or limit is None:
            continue
        if -amount > a * limit:
            raise UnprovenError(f"item {exact.names[item]} takes more than its work")
    found = sum(balance.get(item, 0) for item in sources)
    return found + a * sum(exact.work[name][item] or 0 for item in sources)


def node_cut_units(exact: Exact, certificate: Mapping[str, Any]) -> int:
    """Least load of the device of one item, on any class that can run it."""
    if exact.options.objective not in ("throughput", "gpipe"):
        raise UnprovenError("it is for throughput only")
    proven = _device_units(exact, certificate, list(exact.devices), set())
    if not proven:
        raise UnprovenError("no class that is offered can run the item")
    return min(proven)


def cpu_cut_units(exact: Exact, certificate: Mapping[str, Any]) -> int:
    """Least of what items cost on accelerators without those before, and of the mean CPU's time."""
    if exact.options.objective not in ("throughput", "gpipe"):
        raise UnprovenError("it is for throughput only")
    accelerators = [name for name, device in exact.devices.items() if not device.is_cpu]
    cpus = [name for name in exact.devices if name not in accelerators]
    count = sum(exact.devices[name].count for name in cpus)
    if not count:
        raise UnprovenError("there are no CPUs")
    outside: set[int] = set()
    proven, load, limited = [], 0, True
    for row in of_kind(certificate.get("items"), list, "the list of items"):
        item = exact.named(field(row, "item", int))
        if item in outside:
            raise UnprovenError(f"item {exact.names[item]} is listed twice")
        proven += _device_units(exact, row, accelerators, outside)
        outside.add(item)
        times = [time for name in cpus if (time := exact.work[name][item]) is not None]
        load, limited = load + min(times, default=0), limited and bool(times)
    if limited or not proven:
        proven.append(load // count)
    return min(proven)


def _device_units(
    exact: Exact, proof: Mapping[str, Any], names: Sequence[str], outside: set[int]
) -> list[int]:
    """Least load of the device of one item, on each of some classes that can run it.

    Items `outside` are on none of them.
    """
    item = exact.named(field(proof, "item", int))
    classes = field(proof, "classes", dict)
    proven = []
    for name in names:
        if exact.work[name][item] is None:
            continue
        if name not in classes:
            raise UnprovenError(f"device class '{name}' can run the item, but has no cut")
        mix = field(classes[name], "mix", list)
        if len(mix) != 3:
            raise UnprovenError("a mix has not three parts")
        a, b, parts = (whole(x, "a part of a mix") for x in mix)
        if not _is_mean(exact.options, a, b, parts):
            raise UnprovenError(
                f"the mix is no mean of the parts of a load under {exact.options.comm}"
            )
        flows = field(classes[name], "flows", list)
        found = cut_bound(exact, name, {item}, flows, (a, b), outside)
        copies = min(exact.options.max_replicas, exact.devices[name].count)
        proven.append(found // (parts * copies))
    if set(classes) - set(names):
        raise UnprovenError("its classes are not those that are offered")
    return proven


def _is_mean(options: CostOptions, a: int, b: int, parts: int) -> bool:
    """True if (a * work + b * cut) / parts is at most the load of a stage.

    The cut is what comes in plus what goes out; each of them may hide behind the work under
    `duplex`, only both together under `overlap`.
    """
    if parts < 1:
        return False
    if options.comm == "sum":
        return max(a, b) <= parts
    return a + (2 * b if options.comm == "duplex" else b) <= parts


class Apart:
    """Pairs of items that share no stage with a load below a bound.

    A certificate lists some, each with a cut around what lies between both, or says that this
    exceeds the memory of every device. A pair with a listed pair between it is one too.
    """

    def __init__(self, exact: Exact, name: str, cuts: object, bound: int) -> None:
        self.exact = exact
        self.partners: dict[int, int] = {}
        """First item of listed pairs -> the second ones, as a bit mask."""
        self.firsts = 0
        """First items of listed pairs, as a bit mask."""
        for row in of_kind(cuts, list, "the list of cuts"):
            pair = field(row, "items", list)
            if len(pair) != 2:
                raise UnprovenError("a cut has not two items")
            u, v = (exact.named(named) for named in pair)
            exact.budget.spend(exact.n // WORD + 1)
            sources = set(bits(exact.between(u, v)))
            if "memory" in row:
                if not self._too_large(name, sources):
                    raise UnprovenError(f"items {pair[0]} and {pair[1]} fit into memory")
            elif exact.options.comm != "sum":
                raise UnprovenError("no cut bounds a load where transfers and compute overlap")
            else:
                found = cut_bound(exact, name, sources, field(row, "flows", list))
                if found < bound:
                    raise UnprovenError(
                        f"the cut around items {pair[0]} and {pair[1]} is {short(found)}, "
                        f"less than {short(bound)}"
                    )
            first, second = sorted((u, v))
            self.partners[first] = self.partners.get(first, 0) | 1 << second
            self.firsts |= 1 << first
        self._known: dict[tuple[int, int], bool] = {}

    def _too_large(self, name: str, items: set[int]) -> bool:
        """True if some items exceed the memory of a device of class `name`."""
        options = self.exact.options
        if options.memory_mode != "hard" or options.memory_model != "sum":
            return False
        room = self.exact.devices[name].memory_bytes
        return room < float("inf") and self.exact.memory(items) > Fraction(room) * FITS

    def holds(self, u: int, v: int) -> bool:
        """True if items u and v are such a pair."""
        pair = (u, v) if u <= v else (v, u)
        if pair not in self._known:
            held = self.exact.between(u, v)
            within = self.firsts & held
            self.exact.budget.spend((within.bit_count() + 3) * (self.exact.n // WORD + 1))
            self._known[pair] = bool(self.partners.get(pair[0], 0) >> pair[1] & 1) or any(
                self.partners[first] & held for first in bits(within)
            )
        return self._known[pair]


def one_class(
    exact: Exact, *, overlapping: bool = False, objectives: Sequence[str] = ("throughput",)
) -> str:
    """The only class that is offered, of accelerators, where no stage is replicated.

    Transfers add to compute, unless they may be `overlapping`.
    """
    names = list(exact.devices)
    if len(names) != 1 or exact.devices[names[0]].is_cpu:
        raise UnprovenError("it is for one class of accelerators only")
    if exact.options.max_replicas != 1:
        raise UnprovenError("it is for stages without replicas only")
    if exact.options.comm != "sum" and not overlapping:
        raise UnprovenError("it is for transfers that add to compute only")
    if exact.options.objective not in objectives:
        raise UnprovenError("it is for throughput only")
    return names[0]


def pairs_units(exact: Exact, certificate: Mapping[str, Any], bound: int) -> int:
    """`bound`, if loads below it would cut nets so often that they do not add up."""
    name = one_class(exact, objectives=("throughput", "gpipe"))
    apart = Apart(exact, name, field(certificate, "cuts", list), bound)
    times = {t: 1 for t, (_, always, _) in exact.nets.items() if always}
    seen = set()
    for tensor, members in rows(field(certificate, "cliques", list), 2, "cliques"):
        tensor = of_kind(tensor, int, "a tensor")
        if tensor not in exact.nets or tensor in seen:
            raise UnprovenError(f"tensor {short(tensor)} is no net, or is listed twice")
        seen.add(tensor)
        items = [exact.named(named) for named in of_kind(members, list, "a clique")]
        if len(items) < 2 or len(set(items)) < len(items):
            raise UnprovenError(f"the clique of tensor {tensor} has not two items or more")
        exact.budget.spend(len(items) ** 2 // 2)
        for place, u in enumerate(items):
            if u not in exact.nets[tensor][0]:
                raise UnprovenError(f"item {exact.names[u]} is no pin of tensor {tensor}")
            for v in items[:place]:
                if not apart.holds(u, v):
                    names = f"{exact.names[v]} and {exact.names[u]}"
                    raise UnprovenError(f"nothing keeps items {names} apart")
        times[tensor] = len(items)
    load = exact.total(name) + sum(q * exact.cost(name, t) for t, q in times.items())
    stages = min(exact.devices[name].count, exact.n)
    if load <= stages * (bound - 1):
        raise UnprovenError(
            f"{stages} stages below {short(bound)} quanta can carry {short(load)} in all"
        )
    return bound


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
    """Rows times their multipliers, added up: (sum of weight * column) >= `number`.

    For any split let T be the largest load; X(u, v) whether items u and v share a stage, with
    X(u, u) = 1; Y(e, v) whether the stage of v pays for net e; P(e) how many stages do. Nets with
    the same pins, always paid or not, are one. A row says that a sum of these is at least a number;
    it is named by its kind and what it is about:

    total     [part]           a * all work + b * sum of cost * P(e) <= s * T * stages
    stage     [part, v]        a * work * X(u, v) over u, + b * cost * Y(e, v) over e, <= s * T
    cut       [e, v, p, q]     X(p, v) - X(q, v) <= Y(e, v) for pins p and q
    inside    [e, v, p]        X(p, v) <= Y(e, v) for a pin p of a net that is always paid
    paid      [e, p, q]        2 - 2 X(p, q) <= P(e) for a net that is not always paid
    paid      [e, p, q, ...]   how many pins - the sum of X over their pairs <= P(e)
    between   [u, w, v]        X(u, v) <= X(u, w) for w between u and v
    triangle  [u, v, w]        X(u, v) + X(v, w) - 1 <= X(u, w)

    (s, a, b) is (1, 1, 1) under `sum`; otherwise (1, 1, 0) in part 0, and in part 1 (1, 0, 1) under
    `overlap` and (2, 0, 1) under `duplex`: the larger of what comes in and goes out is at least
    half of both. `paid`: q pins in one stage have q (q - 1) / 2 pairs, which is q - 1 or more; if
    one stage holds them all and need not pay, there are three, and as many pairs or more.

    No split has a largest load below a target, or its T is at least

        sum of multiplier * least + sum over X, Y and P of limit * min(0, reduced cost)

    where T alone has a cost. The limit of P is the number of pins, of the others 1; 0 for an X
    whose items share no stage with a load below the target.
    """

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
        """Lower bound of the sum; weight of T."""
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
        """Bound of T from all rows, times its weight and all that it is short of the scale."""
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
        """Row: what lies between two items is with them."""
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
