"""Invocations of a plan of blocks whose units have their devices, for every division into blocks.

A block runs as one job: what it reads and writes takes its time, too. Units of the pool are jobs of
their own, and wait for no other. In a block are whole items: units of one pass that share a colour,
and all that lies between them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from dnnp.core.certificates.exact import Budget, components, gathered
from dnnp.core.certificates.placements import Jobs, Operators
from dnnp.core.certificates.tasks import Tasks
from dnnp.core.check.latency import LatencyCase
from dnnp.core.model.graph import ACTIVATION, INPUT

_Move = tuple[int, int, set[int], bool]
"""A tensor, the units that make it (-1: an input) and read it, whether it leaves, which is charged.

It moves once to each block that reads it, and once from that of its maker."""


class Blocks(Operators):
    """Units of a plan, and what moves between them."""

    def __init__(self, case: LatencyCase, tasks: Tasks, budget: Budget) -> None:
        self.case, self.budget, self.late = case, budget, case.units.backward
        self.moves = list(_moves(case))
        self.item = _items(case, tasks)
        pairs = {(v, u) for v, group in enumerate(tasks.group) for u in (*group, self.item[v])}
        groups = gathered(components(tasks.n, pairs | {(b, a) for a, b in pairs}))
        super().__init__(replace(tasks, group=groups), "none")
        self.rate = [case.devices[name].bandwidth_bytes_per_s for name in tasks.classes]

    def jobs(self, home: list[int]) -> Iterator[Jobs]:
        """Blocks and units of the pool, for each way to divide what each device holds."""
        tasks = self.tasks
        for number in self._divided(home):
            place = dict(zip(number, home, strict=True))
            paid = self._moved(number, place)
            time = [paid.get(b, 0.0) for b in range(len(place))]
            before: list[set[int]] = [set() for _ in place]
            for v, b in enumerate(number):
                time[b] += tasks.time[v][place[b]]
                before[b] |= {number[u] for u, _ in tasks.before[v]} - {b}
            lanes = [[(place[b], place[b])] * tasks.serial[place[b]] for b in range(len(place))]
            yield Jobs(time, [[(b, 0.0) for b in row] for row in before], lanes)

    def paid(self, home: list[int]) -> dict[int, float]:
        """Time of transfers of places, as far as units have one."""
        return self._moved(home, {q: q for q in home})

    def _moved(self, label: list[int], place: dict[int, int]) -> dict[int, float]:
        """Time of what surely moves to and from each place or block; -1: a unit has none yet."""
        found: dict[int, float] = {}
        for tensor, maker, readers, leaves in self.moves:
            here = {label[maker]} if maker >= 0 else set()
            away = {label[v] for v in readers} - here - {-1}
            for x in (here if away or leaves else set()) | away if -1 not in here else ():
                if self.tasks.serial[place[x]]:
                    time = self.case.tables.moving(tensor, self.rate[place[x]])
                    found[x] = found.get(x, 0.0) + time
        return found

    def _divided(self, home: list[int]) -> Iterator[list[int]]:
        """Numbers of blocks, from 0, that the units of a placement are in; each way once."""
        serial, late, most = self.tasks.serial, self.late, self.case.plan.options.invocations
        items = [v for v in dict.fromkeys(self.item) if serial[home[v]]]
        waiting: list[dict[int, int]] = [{}]
        while waiting:
            way = waiting.pop()
            self.budget.spend(len(home) + sum(len(readers) for _, _, readers, _ in self.moves))
            if len(way) < len(items):
                v = items[len(way)]
                beside = [way[u] for u in way if (home[u], late[u]) == (home[v], late[v])]
                fresh = max(beside, default=-1) + 1
                waiting += [{**way, v: b} for b in range(min(fresh + 1, most))]
                continue
            keys = [
                (q, late[v], way[self.item[v]]) if serial[q] else (v,) for v, q in enumerate(home)
            ]
            number = {key: b for b, key in enumerate(dict.fromkeys(keys))}
            yield [number[key] for key in keys]


def _items(case: LatencyCase, tasks: Tasks) -> list[int]:
    """A unit of each unit's item."""
    late = case.units.backward
    first = [next(u for u in group if late[u] == late[v]) for v, group in enumerate(tasks.group)]
    pairs = {(u, v) for v, row in enumerate(tasks.before) for u, _ in row if late[u] == late[v]}
    pairs |= {*enumerate(first)} | {(u, v) for v, u in enumerate(first)}
    return components(tasks.n, pairs)


def _moves(case: LatencyCase) -> Iterator[_Move]:
    """Moves to and from blocks; of inputs and outputs if they are charged."""
    tables, of_node, charged = case.tables, case.units.of_node, case.plan.options.charge_io
    for t, kind in enumerate(tables.kind):
        if kind == ACTIVATION or (kind == INPUT and charged):
            maker = of_node[tables.writer[t]] if t in tables.writer else -1
            readers = {of_node[v] for v in tables.users.get(t, ())} - {maker}
            leaves = tables.output[t] and charged
            for some in [{v} for v in sorted(readers)] if case.edge else [readers]:
                yield t, maker, some, leaves
