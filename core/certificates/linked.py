"""Verify the bound `links`: that stages of smaller loads do not get to the end over the links.

All order ideals of the items are walked, from the empty one, by stages that are charged no more
than they cost, in whole quanta: what they compute and overflow, and for each tensor that crosses
the border of one the link

* from the stage before, where the tensor is made by the only item at the end of what lies behind,
  which that stage must hold;
* to the stage after, where the only item at the begin of what lies ahead reads it;
* that is the best one to or from the device of the stage, otherwise.

Devices that exchanging leaves all paths as they are count as one kind.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from dnnp.core.certificates.cuts import FITS
from dnnp.core.certificates.exact import (
    Exact,
    UncheckedError,
    UnprovenError,
    bits,
    gathered,
    ideals,
    ratio,
)
from dnnp.core.certificates.tasks import path_kinds, twins_of
from dnnp.core.check.load import Mesh
from dnnp.core.model.errors import UncheckableError
from dnnp.core.model.graph import ACTIVATION, INPUT
from dnnp.core.model.plan import Plan

MOST_IDEALS = 2_000
"""Ideals that are walked."""

Used = tuple[int, ...]
"""Devices of each kind that are in use."""
Step = tuple[int, int]
"""Kind of the last stage, and of the next; -1: there is none."""


def linked_units(exact: Exact, plan: Plan | None, units: int) -> int:
    """`units`, if no ordered split over the links has all loads below so many quanta."""
    if plan is None or not plan.links:
        raise UnprovenError("there are no links")
    if not exact.in_order or plan.objective != "throughput" or plan.options.max_replicas != 1:
        raise UnprovenError(
            "it is for the throughput of ordered splits without backward pass or replicas only"
        )
    try:
        walk = _Walk(exact, plan, units - 1)
    except UncheckableError as error:
        raise UncheckedError(str(error)) from None
    if walk.reaches_end():
        raise UnprovenError("stages of smaller loads may get to the end over the links")
    return units


@dataclass(frozen=True)
class _Net:
    """A tensor that may cross borders, with its times in quanta for each kind."""

    source: int
    """Bit of the item that makes it; 0: a model input."""
    readers: int
    """Bits of the other items that read it."""
    to_host: bool
    host: Sequence[int]
    over: Sequence[Sequence[int]]
    """[from][to]; last: the least from any kind, or to any."""


class _Walk:
    """The ideals, and what stages between them are charged."""

    def __init__(self, exact: Exact, plan: Plan, most: int) -> None:
        self.exact, self.plan, self.most = exact, plan, most
        self.classes = {d.name: d for d in plan.devices}
        names = [f"{d.name}/{i}" for d in plan.devices for i in range(d.count)]
        exact.budget.spend(len(names) ** 3)
        self.mesh = Mesh(plan, exact.tables.passes)
        kind, _ = path_kinds(self.mesh, names)
        twin = twins_of([name.rpartition("/")[0] for name in names], kind, exact.budget)
        self.kinds = [
            [names[i] for i in group] for group in dict.fromkeys(map(tuple, gathered(twin)))
        ]
        self.device = [self.classes[kind[0].rpartition("/")[0]] for kind in self.kinds]
        self.before, self.after = [0] * exact.n, [0] * exact.n
        for a, b in exact.edges:
            self.before[b] |= 1 << a
            self.after[a] |= 1 << b
        self.nets = list(self._nets())
        self.ideals = ideals(self.before, exact.budget, MOST_IDEALS)
        self.work = {
            name: {x: sum(exact.work[name][i] or 0 for i in self._bits(x)) for x in self.ideals}
            for name in {d.name for d in self.device}
        }
        self.unable = {
            name: sum(1 << i for i, w in enumerate(exact.work[name]) if w is None)
            for name in self.work
        }

    def reaches_end(self) -> bool:
        """True if stages that are charged no more than the target hold all items together."""
        full, kinds = self.ideals[-1], range(len(self.kinds))
        limit = [min(len(kind), self.exact.n) for kind in self.kinds]
        empty = (0,) * len(limit)
        states: dict[int, dict[Step, set[Used]]] = {0: {(-1, k): {empty} for k in kinds}}
        for at, start in enumerate(self.ideals):
            here = states.pop(start, {})
            if start == full:
                return bool(here)
            self.exact.budget.spend(len(self.ideals) - at if here else 1)
            for end in self.ideals[at + 1 :] if here else ():
                if start & ~end:
                    continue
                for before, kind, after in self._steps(start, end, here):
                    self.exact.budget.spend(len(here[before, kind]))
                    added = {
                        (*used[:kind], used[kind] + 1, *used[kind + 1 :])
                        for used in here[before, kind]
                    }
                    if after >= 0:
                        added = {used for used in added if used[after] < limit[after]}
                    if added:
                        there = states.setdefault(end, {})
                        there.setdefault((kind, after), set()).update(added)
        return False

    def _steps(
        self, start: int, end: int, here: dict[Step, set[Used]]
    ) -> Iterator[tuple[int, int, int]]:
        """Kinds before, of and after a stage from an ideal to another that is charged enough."""
        afters = [-1] if end == self.ideals[-1] else range(len(self.kinds))
        for kind in {k for _, k in here}:
            name = self.device[kind].name
            compute = self.work[name][end] - self.work[name][start]
            if compute > self.most or (end & ~start) & self.unable[name]:
                continue
            overflow = self._overflow(start, end, kind)
            if overflow is None:
                continue
            befores = [p for p, k in here if k == kind]
            into = {p: self._moved(start, end, kind, p, out=False) for p in befores}
            out = {q: self._moved(start, end, kind, q, out=True) for q in afters}
            for before in befores:
                for after in afters:
                    parts = into[before], compute, overflow, out[after]
                    if _combined(self.plan.options.comm, *parts) <= self.most:
                        yield before, kind, after

    def _moved(self, start: int, end: int, kind: int, near: int, *, out: bool) -> int:
        """Quanta of what comes into a stage, or goes out; `near`: the kind on that side."""
        if self.device[kind].is_cpu:
            return 0
        self.exact.budget.spend(len(self.nets))
        part, total = end & ~start, 0
        beyond, edges = (self.ideals[-1] & ~end, self.before) if out else (start, self.after)
        ends = [i for i in self._bits(beyond) if not edges[i] & beyond]
        only = 1 << ends[0] if len(ends) == 1 else 0
        for net in self.nets:
            if out and net.source & part:
                host = net.host[kind] if net.to_host else 0
                to_one = net.over[kind][near if net.readers & only else -1]
                total += max(host, to_one) if net.readers & beyond else host
            elif not out and net.readers & part and not net.source & part:
                from_one = net.over[near if net.source == only else -1][kind]
                total += from_one if net.source else net.host[kind]
        return total

    def _overflow(self, start: int, end: int, kind: int) -> int | None:
        """Quanta of what overflows; None: it does not fit."""
        device, options = self.device[kind], self.plan.options
        if device.is_cpu or options.memory_model != "sum" or math.isinf(device.memory_bytes):
            return 0
        held = self.exact.memory(set(self._bits(end & ~start)))
        if options.memory_mode == "ignore":
            return 0
        if options.memory_mode == "hard":
            return 0 if held <= Fraction(device.memory_bytes) * FITS else None
        above = max(held - Fraction(device.memory_bytes), Fraction(0))
        return self._quanta(above / Fraction(device.bandwidth_bytes_per_s))

    def _nets(self) -> Iterator[_Net]:
        """All tensors that may cost a transfer."""
        exact, tables, options = self.exact, self.exact.tables, self.plan.options
        item = [exact.item_of[unit] for unit in exact.unit_of]
        count = range(len(self.kinds))
        for t, kind in enumerate(tables.kind):
            source = 1 << item[tables.writer[t]] if t in tables.writer else 0
            readers = 0
            for v in tables.users.get(t, ()):
                readers |= 1 << item[v]
            readers &= ~source
            to_host = options.charge_io and tables.output[t] and kind == ACTIVATION
            moves = kind == ACTIVATION and (readers or to_host)
            if not moves and not (kind == INPUT and options.charge_io and readers):
                continue
            exact.budget.spend(10 * len(count) ** 2)
            size, stated = tables.size[t], tables.transfer[t]
            over = [[self._over(a, b, size, stated) for b in count] for a in count]
            over = [
                [*row, min(row)] for row in (*over, [min(row) for row in zip(*over, strict=True)])
            ]
            host = [self._quanta(exact.transfer(device, t)) for device in self.device]
            yield _Net(source, readers, to_host, host, over)

    def _over(self, a: int, b: int, size: float, stated: float) -> int:
        """Quanta of a tensor from a device of a kind to one of another, or to another of it."""
        if a == b and len(self.kinds[a]) == 1:
            return self.most + 1
        path = self.mesh.path(self.kinds[a][0], self.kinds[b][1 if a == b else 0])
        if path is None:
            return self.most + 1
        moving = ratio(size, path.bandwidth) if math.isnan(stated) else Fraction(stated)
        return self._quanta(Fraction(path.latency) + moving)

    def _quanta(self, time: Fraction) -> int:
        return int(time // self.exact.quantum)

    def _bits(self, mask: int) -> Iterator[int]:
        """Items of a mask."""
        self.exact.budget.spend(1 + mask.bit_count())
        return bits(mask)


def _combined(comm: str, into: int, compute: int, overflow: int, out: int) -> int:
    """Combine the parts of a load, in whole numbers; see `load.combined`."""
    if comm == "sum":
        return into + compute + overflow + out
    if comm == "overlap":
        return max(compute, into + overflow + out)
    return max(compute, into + overflow, out)
