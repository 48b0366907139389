"""Search for a plan of blocks with a latency below a limit: every split of few units.

Units join the pool, a block or a new one anywhere among those of its device, each after all that it
reads. So the transfers that are paid for those so far stay paid, blocks only grow, and a unit that
follows takes its time after them or makes its block as much longer.
"""

from __future__ import annotations

from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from math import inf
from typing import NamedTuple

from dnnp.core.certificates.exact import Budget, components
from dnnp.core.certificates.tasks import Tasks
from dnnp.core.check.latency import LatencyCase
from dnnp.core.model.graph import ACTIVATION, INPUT

POOL = -1


class _Split(NamedTuple):
    """Units placed so far, in the order of the tasks."""

    block: tuple[int, ...]
    """Block of each, or the pool."""
    blocks: tuple[tuple[int, bool], ...]
    """Place and pass of each block."""
    turns: tuple[int, ...]
    """Blocks; those of one place run in this order."""


class Blocks:
    """Units of a plan, the limit, and the steps that are left."""

    def __init__(
        self, case: LatencyCase, tasks: Tasks, limit: float, pool: str | None, budget: Budget
    ) -> None:
        self.case, self.tasks, self.limit, self.budget = case, tasks, limit, budget
        self.reads, self.leaves = _transfers(case)
        self.pooled = [inf if pool is None else case.time(v, pool) for v in range(tasks.n)]
        self.item = _items(case, tasks)
        place = {v: i for i, v in enumerate(tasks.order)}
        self.after = [sorted(place[w] for w, _, _ in tasks.after[v]) for v in tasks.order]
        devices = [q for q, is_cpu in enumerate(tasks.is_cpu) if not is_cpu]
        fastest = [
            min(self.pooled[v], *(row[q] for q in devices), inf) for v, row in enumerate(tasks.time)
        ]
        self.path = [0.0] * tasks.n
        """Longest path from each unit on, by its position, with its own time."""
        for i in reversed(range(tasks.n)):
            later = max((self.path[j] for j in self.after[i]), default=0.0)
            self.path[i] = fastest[tasks.order[i]] + later

    def below(self) -> float | None:
        """Latency of a split below the limit; None: there is none."""
        waiting = [_Split((), (), ())]
        while waiting:
            split = waiting.pop()
            value = self._value(split)
            if value >= self.limit:
                continue
            if len(split.block) == self.tasks.n:
                return value
            waiting += self._with_one_more(split)
        return None

    def _with_one_more(self, split: _Split) -> Iterator[_Split]:
        """Splits with the next unit in the pool, a block, or a new one."""
        tasks, order = self.tasks, self.tasks.order
        v = order[len(split.block)]
        homes = [POOL if b == POOL else split.blocks[b][0] for b in split.block]
        mates = {home for home, u in zip(homes, order, strict=False) if u in tasks.group[v]}
        late, most = self.case.units.backward[v], self.case.plan.options.invocations
        pairs = zip(split.block, order, strict=False)
        tied = {b for b, u in pairs if self.item[u] == self.item[v]}
        if self.pooled[v] < inf and mates | tied <= {POOL}:
            yield split._replace(block=(*split.block, POOL))
        for place in self._places(homes):
            held = [u for home, u in zip(homes, order, strict=False) if home == place]
            needed = sum(tasks.memory[u] for u in [*held, v])
            if tasks.time[v][place] == inf or needed > tasks.room[place] or not mates <= {place}:
                continue
            mine = [b for b, one in enumerate(split.blocks) if one == (place, late)]
            for b in mine:
                if tied <= {b}:
                    yield split._replace(block=(*split.block, b))
            turns = [t for t, b in enumerate(split.turns) if split.blocks[b][0] == place]
            for t in [*turns, len(split.turns)] if len(mine) < most and not tied else []:
                b = len(split.blocks)
                yield _Split(
                    (*split.block, b),
                    (*split.blocks, (place, late)),
                    (*split.turns[:t], b, *split.turns[t:]),
                )

    def _places(self, homes: list[int]) -> Iterator[int]:
        """Accelerators in use, and the first unused one of each class."""
        tasks, used = self.tasks, set(homes) - {POOL}
        yield from sorted(used)
        classes = [name.rpartition("/")[0] for name in tasks.places]
        fresh = {c: q for q, c in reversed(list(enumerate(classes))) if q not in used}
        if len(used) < self.case.plan.k:
            yield from (q for q in sorted(fresh.values()) if not tasks.is_cpu[q])

    def _value(self, split: _Split) -> float:
        """Latency of the units placed so far and what must follow, or more; inf: a circle."""
        tasks, count = self.tasks, len(split.blocks)
        self.budget.spend(3 * len(split.block) + 3 * sum(map(len, self.reads)))
        vertex = [count + i if b == POOL else b for i, b in enumerate(split.block)]
        waits: dict[int, set[int]] = {v: set() for v in (*range(count), *vertex)}
        last: dict[int, int] = {}
        for b in split.turns:
            place = split.blocks[b][0]
            waits[b] |= {last[place]} if place in last else set()
            last[place] = b
        number = dict(zip(tasks.order, vertex, strict=False))
        for v, here in number.items():
            waits[here] |= {number[u] for u, _, _ in tasks.before[v]} - {here}
        length = self._lengths(split, number)
        end: dict[int, float] = {}
        try:
            for x in TopologicalSorter(waits).static_order():
                end[x] = max((end[y] for y in waits[x]), default=0.0) + length[x]
        except CycleError:
            return inf
        done = len(split.block)
        rest = (
            max((self.path[j] for j in self.after[i] if j >= done), default=0.0)
            for i in range(done)
        )
        return max((end[x] + more for x, more in zip(vertex, rest, strict=True)), default=0.0)

    def _lengths(self, split: _Split, number: dict[int, int]) -> dict[int, float]:
        """Time of each block, and of each unit of the pool."""
        tasks, count = self.tasks, len(split.blocks)
        length = dict.fromkeys(range(count), 0.0)
        moved: dict[tuple[int, bool, int], set[int]] = {}
        for v, here in number.items():
            if here >= count:
                length[here] = self.pooled[v]
            else:
                length[here] += tasks.time[v][split.blocks[here][0]]
                moved.update(((here, True, t), set()) for t in self.leaves[v])
        for v, here in number.items():
            for t, maker in self.reads[v]:
                there = number.get(maker, -1)
                if here != there and here < count:
                    moved.setdefault((here, False, t), set()).add(v)
                if here != there and 0 <= there < count:
                    moved.setdefault((there, True, t), set()).add(v)
        for (b, _, t), units in moved.items():
            device = self.case.devices[tasks.places[split.blocks[b][0]].rpartition("/")[0]]
            times = max(len(units), 1) if self.case.edge else 1
            length[b] += times * self.case.tables.moving(t, device.bandwidth_bytes_per_s)
        return length


def _items(case: LatencyCase, tasks: Tasks) -> list[int]:
    """A unit of each unit's item: those of its pass and colour, and all that lies between them."""
    late = case.units.backward
    first = [next(u for u in group if late[u] == late[v]) for v, group in enumerate(tasks.group)]
    edges = {
        (first[u], first[v])
        for v, row in enumerate(tasks.before)
        for u, _, _ in row
        if late[u] == late[v] and first[u] != first[v]
    }
    owner = components(tasks.n, edges)
    return [owner[x] for x in first]


def _transfers(case: LatencyCase) -> tuple[list[list[tuple[int, int]]], list[list[int]]]:
    """Tensors that each unit reads from elsewhere, with the unit that makes each (-1: none), and
    those it makes that leave the model; inputs and outputs count if they are charged."""
    tables, of_node, charged = case.tables, case.units.of_node, case.plan.options.charge_io
    reads: list[dict[tuple[int, int], None]] = [{} for _ in case.units.ids]
    leaves: list[list[int]] = [[] for _ in case.units.ids]
    for node, unit in enumerate(of_node):
        for t in tables.reads[node]:
            if tables.kind[t] == ACTIVATION and of_node[tables.writer[t]] != unit:
                reads[unit][t, of_node[tables.writer[t]]] = None
            elif tables.kind[t] == INPUT and charged:
                reads[unit][t, -1] = None
        leaves[unit] += [t for t in tables.writes[node] if tables.output[t] and charged]
    return [list(row) for row in reads], leaves
