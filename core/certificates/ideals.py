"""Verify the bound `ideal`: that stages of smaller loads do not get from nothing to everything.

An ordered split is a chain of order ideals, from the empty set to all vertices
(`dnnp.core.certificates.contract`). Ideals are visited by size. From each the stages whose load may
stay below the bound are walked: a stage grows by vertices in ascending number, and what was passed
over stays outside of it, so that

* every set is met once,
* the nets with a pin inside and one passed over are surely paid, and nothing that is added later
  makes the stage cheaper.

Each ideal keeps the least mixes of devices that get there. It is given up where the devices that
are left cannot carry what is left: its least work and, for one class of accelerators under `sum`,
the nets across the border of the ideal, each of which a stage behind it pays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dnnp.core.certificates.contract import Lattice, lattices
from dnnp.core.certificates.exact import Exact, bits
from dnnp.core.check.fields import Budget, UnprovenError

Mix = tuple[int, ...]
"""Devices of each class that are in use."""


def ideal_units(exact: Exact, units: int) -> int:
    """`units`, if no ordered split has all loads below so many quanta.

    Raises
    ------
    UnprovenError
        Stages of smaller loads may hold all vertices, or it is for another problem.
    UncheckedError
        There is too much to look at.
    """
    if exact.validity != "ordered" or exact.options.objective != "throughput":
        raise UnprovenError("it is for the throughput of ordered splits only")
    for lattice in lattices(exact, units):
        if _Walk(exact.budget, lattice, units).reaches_end():
            raise UnprovenError("stages of smaller loads may hold all items")
    return units


class _Stage(NamedTuple):
    """A stage that grows from an ideal."""

    inside: int
    """Its vertices, as a bit mask."""
    last: int
    """Place of the last vertex among those that were open at first."""
    open: int
    """Vertices whose predecessors are all inside or in the ideal."""
    work: int
    least: int
    """Its work on the class where each vertex takes the least."""
    memory: int
    touched: int
    """Nets with a pin inside."""
    missed: int
    """Nets with a pin that is in the ideal or was passed over."""
    paid: int
    """Nets that are both, or always paid."""
    cost: int
    """Of the nets that are paid."""


@dataclass
class _Ideal:
    """What is known of an ideal."""

    least: int
    """Its least work."""
    mixes: list[Mix]
    """Those that get there; none is better than another in all classes."""

    def offer(self, mix: Mix) -> None:
        """Take over a mix, unless there is a better one."""
        if any(all(a <= b for a, b in zip(m, mix, strict=True)) for m in self.mixes):
            return
        kept = [m for m in self.mixes if any(a < b for a, b in zip(m, mix, strict=True))]
        self.mixes = [*kept, mix]


class _Walk:
    """The ideals that stages of loads below a bound lead to."""

    def __init__(self, budget: Budget, lattice: Lattice, units: int) -> None:
        self.budget, self.lattice, self.units = budget, lattice, units
        self.counts = tuple(c.count for c in lattice.classes)
        self.total = sum(lattice.least)
        only = lattice.classes[0]
        self.adds_up = len(lattice.classes) == 1 and not only.is_cpu and lattice.comm == "sum"
        self.found: list[dict[int, _Ideal]] = [{} for _ in range(lattice.n + 1)]
        """Ideals by their number of vertices."""

    def reaches_end(self) -> bool:
        """Whether the stages get to the ideal of all vertices."""
        n = self.lattice.n
        self.found[0][0] = _Ideal(0, [(0,) * len(self.counts)])
        for size in range(n):
            for ideal, known in self.found[size].items():
                self._expand(ideal, known)
            self.found[size] = {}
        return bool(self.found[n])

    def _expand(self, ideal: int, known: _Ideal) -> None:
        """Walk all stages that start at an ideal."""
        across = self._across(ideal) if self.adds_up else 0
        mixes = [m for m in known.mixes if self._carries(m, self.total - known.least + across)]
        for c, of_class in enumerate(self.lattice.classes):
            able = [m for m in mixes if m[c] < of_class.count]
            for load, stage in self._stages(ideal, c) if able else ():
                copies = load // self.units + 1
                least = known.least + stage.least
                for mix in able:
                    used = (*mix[:c], mix[c] + copies, *mix[c + 1 :])
                    if used[c] <= of_class.count and self._carries(used, self.total - least):
                        self._offer(ideal | stage.inside, least, used)

    def _offer(self, ideal: int, least: int, mix: Mix) -> None:
        found = self.found[ideal.bit_count()]
        if ideal not in found:
            found[ideal] = _Ideal(least, [mix])
        else:
            found[ideal].offer(mix)

    def _carries(self, used: Mix, work: int) -> bool:
        """Whether the devices that are left may carry so much."""
        left = sum(self.counts) - sum(used)
        # r replicas carry less than r times the bound.
        whole = self.lattice.most_replicas == 1
        return work <= left * (self.units - 1 if whole else self.units)

    def _across(self, ideal: int) -> int:
        """Cost of the nets with a pin in an ideal and one behind it."""
        lattice = self.lattice
        self.budget.spend(lattice.n)
        within = lattice.nets_of(bits(ideal))
        behind = lattice.nets_of(v for v in range(lattice.n) if not ideal >> v & 1)
        return lattice.classes[0].total(within & behind)

    def _stages(self, ideal: int, c: int) -> Iterator[tuple[int, _Stage]]:
        """Stages from an ideal on class `c` that may be below the bound, with their loads."""
        lattice, of_class = self.lattice, self.lattice.classes[c]
        limit = min(lattice.most_replicas, of_class.count) * self.units - 1
        rest = [v for v in range(lattice.n) if not ideal >> v & 1]
        missed = lattice.nets_of(bits(ideal))
        self.budget.spend(lattice.n)
        start = _Stage(0, -1, lattice.addable(ideal, rest), 0, 0, 0, 0, missed, 0, 0)
        waiting = [start]
        while waiting:
            stage = waiting.pop()
            if stage.inside:
                load = self._load(c, stage, rest)
                if load <= limit:
                    yield load, stage
            waiting += self._grown(ideal, c, stage, rest, limit)

    def _grown(
        self, ideal: int, c: int, stage: _Stage, rest: Sequence[int], limit: int
    ) -> Iterator[_Stage]:
        """The stage with one vertex more, for each that may come next."""
        lattice, of_class = self.lattice, self.lattice.classes[c]
        missed, paid, cost = stage.missed, stage.paid, stage.cost
        end = stage.open.bit_length()
        for place in range(stage.last + 1, len(rest)):
            v = rest[place]
            if v >= end:
                break
            self.budget.spend(2)
            nets, work = lattice.nets[v], of_class.work[v]
            if stage.open >> v & 1 and work is not None:
                touched = stage.touched | nets
                more = (touched & missed | nets & lattice.always) & ~paid
                charged = cost + of_class.total(more)
                memory = stage.memory + lattice.memory[v]
                if self._may(c, stage.work + work, charged, memory) <= limit:
                    inside = stage.inside | 1 << v
                    self.budget.spend(6 + len(lattice.after[v]))
                    yield _Stage(
                        inside,
                        place,
                        stage.open & ~(1 << v) | lattice.addable(ideal | inside, lattice.after[v]),
                        stage.work + work,
                        stage.least + lattice.least[v],
                        memory,
                        touched,
                        missed,
                        paid | more,
                        charged,
                    )
            missed |= nets
            more = stage.touched & missed & ~paid
            if more:
                paid |= more
                cost += of_class.total(more)
                if self._may(c, stage.work, cost, stage.memory) > limit:
                    break

    def _may(self, c: int, work: int, cost: int, memory: int) -> int:
        """The least load of a stage with so much work, nets and memory."""
        of_class, comm = self.lattice.classes[c], self.lattice.comm
        if memory > of_class.room:
            return self.lattice.never
        if comm == "sum":
            return work + cost
        # Of two directions one takes at least half.
        return max(work, cost if comm == "overlap" else -(-cost // 2))

    def _load(self, c: int, stage: _Stage, rest: Sequence[int]) -> int:
        """Load of a stage that has all its vertices."""
        lattice, of_class = self.lattice, self.lattice.classes[c]
        behind = lattice.reaching[rest[stage.last]] & stage.touched & ~stage.paid
        over = of_class.overflow(stage.memory)
        cost = stage.cost + of_class.total(behind)
        if lattice.comm == "sum":
            return stage.work + cost + over
        if lattice.comm == "overlap":
            return max(stage.work, cost + over)
        arriving = sum(
            of_class.cost[e]
            for e in bits(stage.paid | behind)
            if not lattice.writer[e] & stage.inside
        )
        return max(stage.work, arriving + over, cost - arriving)
