"""Tasks of a latency plan on places, and bounds that are recomputed along paths and over loads.

A place is a device, or a class of them where one device stands for all: without links no path
gains by a second device of a class. Transfers do not wait for each other here, and live tensors do
not count; both make a latency longer only, so that bounds hold with them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from math import fsum, inf
from typing import NamedTuple

import numpy as np

from dnnp.core.certificates.exact import Budget, UncheckedError, components
from dnnp.core.check.latency import LatencyCase
from dnnp.core.check.load import Mesh, PlanCase
from dnnp.core.check.violation import MEMORY
from dnnp.core.model.device import DeviceClass

Table = list[list[float]] | None
"""Times from each place to each other; None: one time between any two."""

Times = list[list[float]]
"""A time of each task on each place."""


class Flow(NamedTuple):
    """Tensors from one task that move at once, and the tasks that read them."""

    maker: int
    readers: tuple[int, ...]
    time: float
    """Time between two places, 0 where `table` has it."""
    table: Table

    def delay(self, source: int, target: int) -> float:
        """Time from one place to another, 0 to itself."""
        if source == target:
            return 0.0
        return self.time if self.table is None else self.table[source][target]


Edge = tuple[int, float, Table]
"""Task before or after, and the time and table of the slowest flow in between."""


@dataclass(frozen=True, eq=False)
class Tasks:
    """`n` tasks and the places where they may run."""

    places: list[str]
    """Device of each place."""
    spare: list[int]
    """Devices for which each place stands."""
    twin: list[int]
    """Places with equal numbers can change places with each other."""
    is_cpu: list[bool]
    room: list[float]
    """Bytes of each place, rounding included."""
    time: Times
    """Time of each task on each place; inf: unsupported."""
    memory: list[float]
    """Bytes of each task."""
    group: list[list[int]]
    """Tasks that share a device with each one, by colour; itself included."""
    flows: list[Flow]
    before: list[list[Edge]]
    after: list[list[Edge]]
    """Tables of `after` are transposed: from the place of the reader."""
    order: list[int]
    """Tasks in topological order."""

    @property
    def n(self) -> int:
        """Number of tasks."""
        return len(self.memory)

    def usable(self, task: int) -> list[int]:
        """Places that support and hold a task and all that shares its device."""
        members = self.group[task]
        needed = sum(self.memory[v] for v in members)
        return [
            q
            for q, room in enumerate(self.room)
            if needed <= room and all(self.time[v][q] < inf for v in members)
        ]


def tasks_of(case: LatencyCase, budget: Budget, *, by_class: bool = False) -> Tasks:
    """Lay out a plan's units on its devices; `by_class`: on one of each class, without links.

    Raises UncheckedError: units wait for each other, or it takes too many steps.
    """
    plan, n = case.plan, len(case.units.ids)
    single = by_class and not plan.links
    homes = [
        (number, d, f"{d.name}/{i}")
        for number, d in enumerate(plan.devices)
        for i in range(d.count if plan.links or d.levels else min(d.count, n))
        if i == 0 or not single
    ]
    budget.spend(len(homes) ** 2 + n * len(homes) + case.graph.n + len(case.graph.in_idx))
    kinds, pairs = _kinds(Mesh(plan), [name for _, _, name in homes])
    flows = list(_flows(case, kinds, pairs, budget))
    before, after = _edges(n, flows, budget)
    hard = plan.options.memory_mode == "hard"
    return Tasks(
        places=[name for _, _, name in homes],
        spare=[d.count if single else 1 for _, d, _ in homes],
        twin=_twins([number for number, _, _ in homes], kinds, budget),
        is_cpu=[d.is_cpu for _, d, _ in homes],
        room=[_room(d) if hard else inf for _, d, _ in homes],
        time=[[case.time(v, d.name) for _, d, _ in homes] for v in range(n)],
        memory=[case.own(v) for v in range(n)],
        group=color_groups(case),
        flows=flows,
        before=before,
        after=after,
        order=_order(before),
    )


def _room(device: DeviceClass) -> float:
    """Bytes that fit a device."""
    return inf if device.is_cpu else device.memory_bytes * (1 + MEMORY)


def color_groups(case: PlanCase) -> list[list[int]]:
    """Units that share a device with each unit, by the colours of their nodes; ascending."""
    first: dict[int, int] = {}
    pairs: set[tuple[int, int]] = set()
    for unit, color in zip(case.units.of_node, case.graph.color.tolist(), strict=True):
        one = first.setdefault(color, unit) if color >= 0 else unit
        pairs |= {(one, unit), (unit, one)}
    owner = components(len(case.units.ids), pairs)
    members: dict[int, list[int]] = {}
    for unit, x in enumerate(owner):
        members.setdefault(x, []).append(unit)
    return [members[x] for x in owner]


def _order(before: list[list[Edge]]) -> list[int]:
    """Tasks after all that they read from."""
    waits = {v: [u for u, _, _ in row] for v, row in enumerate(before)}
    try:
        return list(TopologicalSorter(waits).static_order())
    except CycleError:
        raise UncheckedError("its units wait for each other") from None


def _flows(
    case: LatencyCase, kinds: list[list[int]], pairs: list[tuple[str, str]], budget: Budget
) -> Iterator[Flow]:
    """Flows between units: tensors, or all that goes from one unit to one other."""
    tables, of_node, mesh = case.tables, case.units.of_node, Mesh(case.plan)
    found: dict[tuple[int, int], tuple[dict[int, None], dict[int, None]]] = {}
    for node in range(tables.n):
        for t in tables.reads[node]:
            unit, maker = of_node[node], of_node[tables.writer.get(t, node)]
            if maker != unit:
                tensors, readers = found.setdefault((maker, unit if case.edge else t), ({}, {}))
                tensors[t] = readers[unit] = None
    for (maker, _), (tensors, readers) in found.items():
        budget.spend(len(tensors) * len(pairs) + len(kinds) ** 2)
        times = [_moving(case, mesh, pair, tensors) for pair in pairs]
        single = len(set(times)) < 2
        table = None if single else [[0.0 if k < 0 else times[k] for k in row] for row in kinds]
        yield Flow(maker, tuple(readers), times[0] if single and times else 0.0, table)


def _moving(
    case: LatencyCase, mesh: Mesh, pair: tuple[str, str], tensors: Collection[int]
) -> float:
    """Time of one transfer of some tensors, which pays the latency of its path once."""
    path = mesh.path(*pair)
    tables = case.tables
    times = [mesh.time(*pair, tables.size[t], tables.transfer[t]) for t in tensors]
    if path is None:
        return inf
    return fsum(time for time in times if time is not None) - (len(tensors) - 1) * path.latency


def _kinds(mesh: Mesh, places: Sequence[str]) -> tuple[list[list[int]], list[tuple[str, str]]]:
    """Kind of the path between any two places, -1 within one; a pair of each kind."""
    number: dict[object, int] = {}
    pairs: list[tuple[str, str]] = []
    rows = []
    for a in places:
        row = []
        for b in places:
            key = mesh.path(a, b), mesh.time(a, b, 0.0, 1.0)
            if a != b and key not in number:
                number[key] = len(pairs)
                pairs.append((a, b))
            row.append(number[key] if a != b else -1)
        rows.append(row)
    return rows, pairs


def _edges(
    n: int, flows: Sequence[Flow], budget: Budget
) -> tuple[list[list[Edge]], list[list[Edge]]]:
    """Edges to each task and from each task, with the longest time of their flows."""
    found: dict[tuple[int, int], list[Flow]] = {}
    for flow in flows:
        for reader in flow.readers:
            found.setdefault((flow.maker, reader), []).append(flow)
    before: list[list[Edge]] = [[] for _ in range(n)]
    after: list[list[Edge]] = [[] for _ in range(n)]
    for (maker, reader), row in found.items():
        size = range(max(len(flow.table or ()) for flow in row))
        budget.spend(len(row) * len(size) ** 2)
        time = 0.0 if size else max(flow.time for flow in row)
        ahead, back = (
            [[max(f.delay(*((p, q)[::step])) for f in row) for q in size] for p in size] or None
            for step in (1, -1)
        )
        before[reader].append((maker, time, ahead))
        after[maker].append((reader, time, back))
    return before, after


def _twins(owner: Sequence[int], kinds: list[list[int]], budget: Budget) -> list[int]:
    """The first place that each can change places with: of its class, as far from all others."""
    twin = list(range(len(owner)))
    for a in twin:
        for b in (b for b in range(a) if owner[a] == owner[b] and twin[b] == b):
            budget.spend(len(owner))
            others = [x for x in range(len(owner)) if x not in (a, b)]
            if kinds[a][b] == kinds[b][a] and all(
                kinds[a][x] == kinds[b][x] and kinds[x][a] == kinds[x][b] for x in others
            ):
                twin[a] = b
                break
    return twin


def sweep(
    tasks: Tasks, domain: list[list[int]], *, forward: bool, time: Times
) -> tuple[Times, Times]:
    """Longest paths up to each task on each place, without and with its own time; inf: not there.

    Parameters
    ----------
    domain
        Places where each task may be.
    forward
        False: paths against the edges, from the ends.
    """
    edges, order = (tasks.before, tasks.order) if forward else (tasks.after, tasks.order[::-1])
    size = len(tasks.places)
    ready, done = ([[inf] * size for _ in range(tasks.n)] for _ in range(2))
    least = [0.0] * tasks.n
    for v in order:
        for q in domain[v]:
            latest = 0.0
            for u, delay, table in edges[v]:
                if table is None:
                    there = min(done[u][q], least[u] + delay)
                else:
                    there = min(done[u][p] + table[p][q] for p in domain[u])
                latest = max(latest, there)
            ready[v][q], done[v][q] = latest, latest + time[v][q]
        least[v] = min(done[v], default=inf)
    return ready, done


def simple_bounds(
    tasks: Tasks, budget: Budget, *, blocks: bool = False
) -> Iterator[tuple[float, str]]:
    """Bounds of the latency, each with its name: paths, and what all places do together.

    `blocks`: transfers are not those between devices, and CPUs are a pool where nothing waits.
    """
    domain = [tasks.usable(v) for v in range(tasks.n)]
    if not all(domain):
        raise UncheckedError("a unit fits no device")
    if tasks.n == 0:
        return
    steps = sum(len(tasks.places) * (1 + len(row)) for row in tasks.before)
    budget.spend(2 * steps)
    if blocks:
        before: list[list[Edge]] = [[(u, 0.0, None) for u, _, _ in row] for row in tasks.before]
        tasks = replace(tasks, before=before)
    yield _path(tasks, domain, tasks.time), "critical path"
    if blocks and any(tasks.is_cpu):
        return
    budget.spend(10 * steps)
    speed, price = _prices(tasks, domain)
    memory = tasks.memory
    charged = [
        [t + z * memory[v] for t, z in zip(row, price, strict=True)]
        for v, row in enumerate(tasks.time)
    ]
    held = sum(z * room * k for z, room, k in zip(price, tasks.room, tasks.spare, strict=True) if z)
    least = (
        min(speed[q] * tasks.time[v][q] + price[q] * memory[v] for q in domain[v])
        for v in range(tasks.n)
    )
    yield fsum(least) - held, "area"
    if held and not blocks:
        yield _path(tasks, domain, charged) - held, "memory path"


def _path(tasks: Tasks, domain: list[list[int]], time: Times) -> float:
    """Longest path, every task where it makes the path shortest."""
    return max(min(row) for row in sweep(tasks, domain, forward=True, time=time)[1])


def _prices(tasks: Tasks, domain: list[list[int]]) -> tuple[list[float], list[float]]:
    """Share of each place in a weighed mean of times, and price of its memory (time a byte).

    The shares of all devices add up to 1. Such numbers >= 0 make a bound, those of the linear
    program the best: what a task costs at least, less what all memory is worth.
    """
    from scipy.optimize import linprog
    from scipy.sparse import coo_array

    n, size, spare = tasks.n, len(tasks.places), np.array(tasks.spare)
    worth = [
        room * k if room < inf else 0.0 for room, k in zip(tasks.room, tasks.spare, strict=True)
    ]
    if size == 1 and not any(worth):
        return [1 / int(spare[0])], [0.0]
    pairs = [(v, q) for v, row in enumerate(domain) for q in row]
    task, place = (np.array(part) for part in zip(*pairs, strict=True))
    times, memory = np.array([tasks.time[v][q] for v, q in pairs]), np.array(tasks.memory)[task]
    long, large = float(times.max()) or 1.0, float(memory.max()) or 1.0
    values = np.concatenate([np.ones(len(pairs)), -times / long, -memory / large])
    columns = np.concatenate([task, n + place, n + size + place])
    shape = len(pairs), n + 2 * size
    found = linprog(
        np.concatenate([-np.ones(n), np.zeros(size), np.array(worth) / large]),
        A_ub=coo_array((values, (np.tile(np.arange(len(pairs)), 3), columns)), shape=shape).tocsr(),
        b_ub=np.zeros(len(pairs)),
        A_eq=np.concatenate([np.zeros(n), spare, np.zeros(size)])[None],
        b_eq=[1.0],
        bounds=[(None, None)] * n + [(0, None)] * size + [(0, None if w else 0) for w in worth],
        method="highs",
    )
    mean = [1 / int(spare.sum())] * size
    if found.x is None:
        return mean, [0.0] * size
    shares, prices = np.maximum(found.x[n:], 0.0).reshape(2, size)
    total = float(shares @ spare)
    return (shares / total).tolist() if total else mean, (prices * long / large).tolist()
