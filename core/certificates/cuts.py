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
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from dnnp.core.certificates.exact import Exact, bits
from dnnp.core.check.fields import WORD, UnprovenError, field, of_kind, rows, short, whole
from dnnp.core.check.violation import MEMORY
from dnnp.core.model.plan import CostOptions

FITS = Fraction(1 + 2 * MEMORY)
"""Share of a capacity that no memory exceeds which fits, however its own sums were rounded: an
argument may call what is more too much."""


def cut_bound(
    exact: Exact, name: str, sources: set[int], flows: object, mix: tuple[int, int] = (1, 1)
) -> int:
    """What every set with the sources costs at least on class `name`; quanta.

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
        if item not in sources and limit is not None and -amount > a * limit:
            raise UnprovenError(f"item {exact.names[item]} takes more than its work")
    found = sum(balance.get(item, 0) for item in sources)
    return found + a * sum(exact.work[name][item] or 0 for item in sources)


def node_cut_units(exact: Exact, certificate: Mapping[str, Any]) -> int:
    """What the device of one item pays at least, on any class that can run it."""
    if exact.options.objective not in ("throughput", "gpipe"):
        raise UnprovenError("it is for throughput only")
    item = exact.named(field(certificate, "item", int))
    classes = field(certificate, "classes", dict)
    proven = []
    for name in exact.devices:
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
        found = cut_bound(exact, name, {item}, field(classes[name], "flows", list), (a, b))
        copies = min(exact.options.max_replicas, exact.devices[name].count)
        proven.append(found // (parts * copies))
    if not proven or set(classes) - set(exact.devices):
        raise UnprovenError("its classes are not those that are offered")
    return min(proven)


def _is_mean(options: CostOptions, a: int, b: int, parts: int) -> bool:
    """Whether (a * work + b * cut) / parts is at most the load of a stage.

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
        """Those first items, as a bit mask."""
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
        """Whether some items exceed the memory of a device of class `name`."""
        options = self.exact.options
        if options.memory_mode != "hard" or options.memory_model != "sum":
            return False
        room = self.exact.devices[name].memory_bytes
        return room < float("inf") and self.exact.memory(items) > Fraction(room) * FITS

    def holds(self, u: int, v: int) -> bool:
        """Whether items u and v are such a pair."""
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
    exact: Exact,
    *,
    overlapping: bool = False,
    objectives: Sequence[str] = ("throughput",),
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
