"""Verify the bound `ideal`: that stages of smaller loads do not get from nothing to everything.

An ordered split is a chain of order ideals, from the empty set to all vertices (`Lattice`). Ideals
are visited by size. From each the stages whose load may stay below the bound are walked: a stage
grows by vertices in ascending number, and what was passed over stays outside of it, so that

* every set is met once,
* the nets with a pin inside and one passed over are surely paid, and nothing that is added later
  makes the stage cheaper.

Each ideal keeps the least mixes of devices that get there. It is given up where the devices that
are left cannot carry what is left: its least work and, for one class of accelerators under `sum`,
the nets across the border of the ideal, each of which a stage behind it pays.

Vertices are items that no split below the bound need part. Items become one vertex

* where they lie on a cycle of the order that stages keep,
* where they are pins of a net that costs every accelerator the bound or more, if there is at most
  one CPU, which could hold one of them for nothing,
* where one may follow the other into its stage without any load growing: x has work and nets, and
  y is the only vertex right behind it, or the only one right before. With x at y the stage of y
  pays the nets of x without y more, and the nets between the two alone no more; the one that loses
  x pays the former more, and work and the latter less. So this is free if the work of x and its
  nets without y cost no more than those between the two, on each accelerator, and no CPU that may
  hold y works for x. It is done only where transfers add up with compute and memory sets no limit.

With a backward pass stages keep the order of the forward edges and that of the backward edges
turned round, or as they are: two lattices, and a split needs one of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from dnnp.core.certificates.cuts import FITS
from dnnp.core.certificates.exact import (
    Budget,
    Exact,
    UnprovenError,
    added,
    bits,
    components,
    edges_of,
)

ENDLESS = math.inf


@dataclass(frozen=True)
class Class:
    """Costs of vertices and nets on a class of devices, in quanta."""

    count: int
    is_cpu: bool
    work: Sequence[int | None]
    """Work of each vertex; None: it cannot run there."""
    cost: Sequence[int]
    """Cost of each net; 0 on a CPU."""
    room: Fraction | float
    """Memory that a stage may hold, in parts of a byte."""
    capacity: Fraction | float
    """Memory above which a stage overflows."""
    memory_per_quantum: Fraction | float
    """Memory that streams in a quantum of time where it overflows."""

    def total(self, nets: int) -> int:
        """Cost of some nets, a bit mask."""
        return sum(self.cost[e] for e in bits(nets)) if nets else 0

    def overflow(self, memory: int) -> int:
        """Cost of the overflow of a stage of so much memory."""
        if memory <= self.capacity:
            return 0
        return int((memory - Fraction(self.capacity)) / self.memory_per_quantum)


@dataclass(frozen=True)
class Lattice:
    """Vertices in a topological order, and nets."""

    comm: str
    most_replicas: int
    classes: Sequence[Class]
    before: Sequence[int]
    """Predecessors of each vertex, as a bit mask."""
    after: Sequence[Sequence[int]]
    nets: Sequence[int]
    """Nets of each vertex, as a bit mask."""
    always: int
    """Nets that every stage with a pin pays."""
    writer: Sequence[int]
    """Vertex that makes the tensor of each net, as a bit mask; 0: none does."""
    reaching: Sequence[int]
    """Nets with a pin behind each vertex, in the order, as a bit mask."""
    least: Sequence[int]
    """Work of each vertex on the class where it takes the least."""
    memory: Sequence[int]
    never: int
    """More than any load that matters."""

    @property
    def n(self) -> int:
        """Number of vertices."""
        return len(self.nets)

    def nets_of(self, vertices: Iterable[int]) -> int:
        """Nets with a pin among some vertices."""
        found = 0
        for v in vertices:
            found |= self.nets[v]
        return found

    def addable(self, ideal: int, vertices: Iterable[int]) -> int:
        """Vertices among some with all predecessors in an ideal; a bit mask."""
        found = 0
        for v in vertices:
            if not self.before[v] & ~ideal:
                found |= 1 << v
        return found


Edges = set[tuple[int, int]]

MOST_TOUCHED = 4_000_000
"""Vertices times vertices up to which contraction is tried: reachability takes as many bits."""


def _orders(exact: Exact) -> list[Edges]:
    """Edges between items that stages keep: one of these sets."""
    if not exact.tables.training:
        return [set(exact.edges)]
    label = [exact.item_of[unit] for unit in exact.unit_of]
    return [edges_of(exact.tables, label, turned=turned) for turned in (True, False)]


class Draft:
    """Vertices and nets that are still being joined."""

    def __init__(self, exact: Exact, edges: Edges, units: int) -> None:
        self.exact, self.units = exact, units
        self.names = list(exact.devices)
        self.most_load = units * exact.options.max_replicas
        """A stage is below the bound only if it is below this before replicas share it."""
        component = components(exact.n, edges | self._dear())
        number = {root: i for i, root in enumerate(dict.fromkeys(component))}
        vertex = [number[root] for root in component]
        n = len(number)
        exact.budget.spend(len(edges) + len(self.names) * exact.n)
        self.alive = list(range(n))
        self.work = [added(vertex, exact.work[name], n) for name in self.names]
        self.memory, self.parts = self._memory(vertex, n)
        self.pins: list[set[int]] = []
        self.tensors: list[int] = []
        self.nets: list[set[int]] = [set() for _ in range(n)]
        for tensor, (pins, always, _) in exact.nets.items():
            joined = {vertex[i] for i in pins}
            if len(joined) > 1 or always:
                for v in joined:
                    self.nets[v].add(len(self.pins))
                self.pins.append(joined)
                self.tensors.append(tensor)
        self.succ: list[set[int]] = [set() for _ in range(n)]
        self.pred: list[set[int]] = [set() for _ in range(n)]
        for a, b in edges:
            if vertex[a] != vertex[b]:
                self.succ[vertex[a]].add(vertex[b])
                self.pred[vertex[b]].add(vertex[a])
        self.into = list(range(n))
        self.vertex = vertex
        """Vertex of each item, before contraction."""

    def _dear(self) -> Edges:
        """Edges both ways between the pins of nets that no split below the bound cuts."""
        exact = self.exact
        accelerators = [name for name, d in exact.devices.items() if not d.is_cpu]
        cpus = sum(d.count for d in exact.devices.values() if d.is_cpu)
        found: Edges = set()
        if cpus > 1 or not accelerators:
            return found
        for tensor, (pins, always, _) in exact.nets.items():
            exact.budget.spend(len(pins))
            least = min(exact.cost(name, tensor) for name in accelerators)
            if least >= self.most_load and not always:
                first = min(pins)
                for other in pins - {first}:
                    found |= {(first, other), (other, first)}
        return found

    def _memory(self, vertex: Sequence[int], n: int) -> tuple[list[int], int]:
        """Memory of vertices in whole parts of a byte, and how many there are; 0 if none count."""
        exact = self.exact
        limits = [d.memory_bytes for d in exact.devices.values() if not d.is_cpu]
        counted = exact.options.memory_model == "sum" and exact.options.memory_mode != "ignore"
        if not counted or min(limits, default=ENDLESS) == ENDLESS:
            return [0] * n, 1
        held = [Fraction(0)] * n
        for item, v in enumerate(vertex):
            held[v] += exact.memory({item})
        parts = max((h.denominator for h in held), default=1)  # powers of two
        return [int(h * parts) for h in held], parts

    def contract(self) -> None:
        """Let vertices follow others as long as that is free."""
        n = len(self.alive)
        if self.exact.options.comm != "sum" or n * n > MOST_TOUCHED:
            return
        limits = [d.memory_bytes for d in self.exact.devices.values() if not d.is_cpu]
        fixed = Fraction(sum(self.memory), self.parts) > min(limits, default=ENDLESS)
        reach = self._reach()
        waiting = list(self.alive)
        queued = [True] * n
        while waiting:
            x = waiting.pop()
            queued[x] = False
            if self.into[x] != x or (fixed and self.memory[x]):
                continue
            self.exact.budget.spend(
                len(self.succ[x]) + len(self.pred[x]) + 4 * len(self.nets[x]) + 1
            )
            for y in self._neighbours(x, reach):
                if self.is_free(x, y):
                    around = self.succ[x] | self.pred[x] | self.succ[y] | self.pred[y] | {y}
                    self.join(x, y)
                    for v in sorted(around - {x}):
                        if not queued[v]:
                            queued[v] = True
                            waiting.append(v)
                    break
        self.alive = [v for v in self.alive if self.into[v] == v]

    def _sorted(self) -> list[int]:
        """Living vertices in a topological order, what follows close behind what it follows."""
        missing = {v: len(self.pred[v]) for v in self.alive}
        ready = [v for v in reversed(self.alive) if not missing[v]]
        order = []
        while ready:
            v = ready.pop()
            order.append(v)
            for w in sorted(self.succ[v], reverse=True):
                missing[w] -= 1
                if not missing[w]:
                    ready.append(w)
        return order

    def _reach(self) -> list[int]:
        """Vertices behind each one, as a bit mask; joining leaves it as it is."""
        reach = [0] * len(self.alive)
        for v in reversed(self._sorted()):
            self.exact.budget.spend(len(self.succ[v]) * (len(reach) // 64 + 1))
            for w in self.succ[v]:
                reach[v] |= reach[w] | 1 << w
        return reach

    def _neighbours(self, x: int, reach: Sequence[int]) -> Iterator[int]:
        """The only vertex right behind x, and the only one right before, where there is one."""
        for near, onward in ((self.succ[x], True), (self.pred[x], False)):
            for y in near:
                others = near - {y}
                if all(reach[y] >> w & 1 if onward else reach[w] >> y & 1 for w in others):
                    yield y
                    break

    def is_free(self, x: int, y: int) -> bool:
        """True if x may follow y into any stage; see the module."""
        for name, work in zip(self.names, self.work, strict=True):
            mine, theirs = work[x], work[y]
            if theirs is None:
                continue
            if mine is None:
                return False
            if self.exact.devices[name].is_cpu:
                if mine and theirs < self.most_load:
                    return False
                continue
            between = without = 0
            for e in self.nets[x]:
                pins, tensor = self.pins[e], self.tensors[e]
                if y not in pins:
                    without += self.exact.cost(name, tensor)
                elif len(pins) == 2 and not self.exact.nets[tensor][1]:
                    between += self.exact.cost(name, tensor)
            if mine + without > between:
                return False
        return True

    def join(self, x: int, y: int) -> None:
        """Let x become part of y."""
        self.into[x] = y
        self.memory[y] += self.memory[x]
        for work in self.work:
            a, b = work[x], work[y]
            work[y] = None if a is None or b is None else a + b
        for e in self.nets[x]:
            self.pins[e].discard(x)
            self.pins[e].add(y)
            alone = len(self.pins[e]) == 1 and not self.exact.nets[self.tensors[e]][1]
            (self.nets[y].discard if alone else self.nets[y].add)(e)
        for mine, theirs in ((self.succ, self.pred), (self.pred, self.succ)):
            for v in mine[x]:
                theirs[v].discard(x)
                if v != y:
                    theirs[v].add(y)
                    mine[y].add(v)
            mine[y].discard(x)

    def lattice(self) -> Lattice:
        """The lattice of what is left, numbered in a topological order."""
        order = self._sorted()
        place = {v: i for i, v in enumerate(order)}
        kept = sorted({e for v in order for e in self.nets[v]})
        net = {e: i for i, e in enumerate(kept)}
        nets = [sum(1 << net[e] for e in self.nets[v]) for v in order]
        reaching = [0] * len(order)
        for i in reversed(range(len(order) - 1)):
            reaching[i] = reaching[i + 1] | nets[i + 1]
        exact = self.exact
        classes = [
            self._class(name, work, order, kept)
            for name, work in zip(self.names, self.work, strict=True)
        ]
        works = [c.work for c in classes]
        return Lattice(
            comm=exact.options.comm,
            most_replicas=exact.options.max_replicas,
            classes=classes,
            before=[sum(1 << place[u] for u in self.pred[v]) for v in order],
            after=[sorted(place[w] for w in self.succ[v]) for v in order],
            nets=nets,
            always=sum(1 << net[e] for e in kept if exact.nets[self.tensors[e]][1]),
            writer=[self._writer(self.tensors[e], place) for e in kept],
            reaching=reaching,
            least=[
                min((w for w in row if w is not None), default=0)
                for row in zip(*works, strict=True)
            ],
            memory=[self.memory[v] for v in order],
            never=self.most_load + 1,
        )

    def _class(
        self, name: str, work: Sequence[int | None], order: Sequence[int], kept: Sequence[int]
    ) -> Class:
        exact, device, parts = self.exact, self.exact.devices[name], self.parts
        limit: Fraction | float = ENDLESS
        if not device.is_cpu and device.memory_bytes < ENDLESS:
            limit = Fraction(device.memory_bytes) * parts
        hard = exact.options.memory_mode == "hard"
        moved: Fraction | float = ENDLESS
        if device.bandwidth_bytes_per_s < ENDLESS:
            moved = parts * Fraction(device.bandwidth_bytes_per_s) * exact.quantum
        return Class(
            count=device.count,
            is_cpu=device.is_cpu,
            work=[work[v] for v in order],
            cost=[exact.cost(name, self.tensors[e]) for e in kept],
            room=limit * FITS if hard else ENDLESS,
            capacity=ENDLESS if hard else limit,
            memory_per_quantum=moved,
        )

    def _writer(self, tensor: int, place: dict[int, int]) -> int:
        """The vertex that makes a tensor, as a bit mask; 0: none does."""
        exact = self.exact
        node = exact.tables.writer.get(exact.nets[tensor][2])
        if node is None:
            return 0
        v = self.vertex[exact.item_of[exact.unit_of[node]]]
        while self.into[v] != v:
            v = self.into[v]
        return 1 << place[v]


Mix = tuple[int, ...]
"""Devices of each class that are in use."""


def ideal_units(exact: Exact, units: int) -> int:
    """`units`, if no ordered split has all loads below so many quanta."""
    if exact.validity != "ordered" or exact.options.objective != "throughput":
        raise UnprovenError("it is for the throughput of ordered splits only")
    # Every split with all loads below is a chain of ideals of one of these lattices.
    for edges in _orders(exact):
        draft = Draft(exact, edges, units)
        draft.contract()
        if _Walk(exact.budget, draft.lattice(), units).reaches_end():
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
    """Cost of the nets that are paid."""


def _undominated(mixes: list[Mix], mix: Mix) -> list[Mix]:
    """Mixes of devices with one more, without those that are no better."""
    if any(all(a <= b for a, b in zip(m, mix, strict=True)) for m in mixes):
        return mixes
    return [mix, *(m for m in mixes if any(a < b for a, b in zip(m, mix, strict=True)))]


class _Walk:
    """The ideals that stages of loads below a bound lead to."""

    def __init__(self, budget: Budget, lattice: Lattice, units: int) -> None:
        self.budget, self.lattice, self.units = budget, lattice, units
        self.counts = tuple(c.count for c in lattice.classes)
        self.total = sum(lattice.least)
        only = lattice.classes[0]
        self.adds_up = len(lattice.classes) == 1 and not only.is_cpu and lattice.comm == "sum"
        self.found: list[dict[int, list[Mix]]] = [{} for _ in range(lattice.n + 1)]
        """Ideals by their number of vertices, and the mixes of devices that get there."""

    def reaches_end(self) -> bool:
        """True if the stages get to the ideal of all vertices."""
        n = self.lattice.n
        self.found[0][0] = [(0,) * len(self.counts)]
        for size in range(n):
            for ideal, known in self.found[size].items():
                self._expand(ideal, known)
            self.found[size] = {}
        return bool(self.found[n])

    def _expand(self, ideal: int, mixes: list[Mix]) -> None:
        """Walk all stages that start at an ideal."""
        self.budget.spend(self.lattice.n)
        left = self.total - sum(self.lattice.least[v] for v in bits(ideal))
        across = self._across(ideal) if self.adds_up else 0
        mixes = [m for m in mixes if self._carries(m, left + across)]
        for c, of_class in enumerate(self.lattice.classes):
            able = [m for m in mixes if m[c] < of_class.count]
            for load, stage in self._stages(ideal, c) if able else ():
                found = self.found[(ideal | stage.inside).bit_count()]
                for mix in able:
                    used = (*mix[:c], mix[c] + load // self.units + 1, *mix[c + 1 :])
                    if used[c] <= of_class.count and self._carries(used, left - stage.least):
                        known = found.get(ideal | stage.inside, [])
                        found[ideal | stage.inside] = _undominated(known, used)

    def _carries(self, used: Mix, work: int) -> bool:
        """True if the devices that are left may carry so much."""
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
