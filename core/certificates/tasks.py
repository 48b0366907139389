"""Tasks of a latency plan on places, and bounds that are recomputed along paths and over loads.

A place is a device, or a class of them where one device stands for all: without links no path
gains by a second device of a class. Transfers do not wait for each other here, and live tensors do
not count; both make a latency longer only, so that bounds hold with them. So do the transfers of
blocks, which move through the host and take no time here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import permutations
from math import fsum, inf
from typing import NamedTuple

import numpy as np

from dnnp.core.certificates.exact import Budget, UncheckedError, color_pairs, components, gathered
from dnnp.core.check.latency import LatencyCase
from dnnp.core.check.load import Mesh
from dnnp.core.check.violation import MEMORY
from dnnp.core.model.device import DeviceClass

Times = list[list[float]]
"""A time of each task on each place."""


class Flow(NamedTuple):
    """Tensors from one task that move at once, and the tasks that read them."""

    maker: int
    readers: tuple[int, ...]
    times: list[float]
    """Time over each kind of path; the last one stays where it is, for nothing."""


Edge = tuple[int, list[float]]
"""Task before or after, and the times of the flow in between."""


@dataclass(frozen=True, eq=False)
class Tasks:
    """`n` tasks and the places where they may run."""

    places: list[str]
    """Device of each place."""
    classes: list[str]
    """Its class."""
    spare: list[int]
    """Devices for which each place stands."""
    kind: list[list[int]]
    """Kind of the path between any two places, -1 within one."""
    twin: list[int]
    """The first place with which each can change places."""
    is_cpu: list[bool]
    serial: list[bool]
    """True for places that run one task at a time."""
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
    order: list[int]
    """Tasks in topological order."""

    @property
    def n(self) -> int:
        """Number of tasks."""
        return len(self.memory)

    def domain(self) -> list[list[int]]:
        """Places that support and hold each task and all that shares its device."""
        needed = [sum(self.memory[v] for v in group) for group in self.group]
        able = [{q for q, time in enumerate(row) if time < inf} for row in self.time]
        return [
            [q for q in sorted(set.intersection(*(able[u] for u in group))) if self.room[q] >= most]
            for group, most in zip(self.group, needed, strict=True)
        ]


def tasks_of(
    case: LatencyCase, devices: Iterable[DeviceClass], budget: Budget, *, by_class: bool = False
) -> Tasks:
    """Lay out a plan's units on some devices; `by_class`: on one of each class, without links.

    Raises UncheckedError: units wait for each other, or it takes too many steps.
    """
    plan, n = case.plan, len(case.units.ids)
    blocks, hard = plan.options.execution == "blocks", plan.options.memory_mode == "hard"
    single = by_class and not plan.links
    homes = []
    for d in devices:
        count = d.count if plan.links or d.levels else min(d.count, n)
        count = min(count, 1) if single or (blocks and d.is_cpu) else count
        homes += [(d, d.device_name(i)) for i in range(count)]
    budget.spend(len(homes) ** 2 + n * len(homes) + case.graph.n + len(case.graph.in_idx))
    kind, pairs = path_kinds(Mesh(plan), [name for _, name in homes])
    flows = list(_flows(case, [] if blocks else pairs, budget))
    if blocks:
        flows = [flow._replace(times=[0.0] * (len(pairs) + 1)) for flow in flows]
    before: list[list[Edge]] = [[] for _ in range(n)]
    after: list[list[Edge]] = [[] for _ in range(n)]
    for flow in flows:
        for reader in flow.readers:
            before[reader].append((flow.maker, flow.times))
            after[flow.maker].append((reader, flow.times))
    order = topological(before)
    if order is None:
        raise UncheckedError("its units wait for each other")
    return Tasks(
        places=[name for _, name in homes],
        classes=[d.name for d, _ in homes],
        spare=[d.count if single else 1 for d, _ in homes],
        kind=kind,
        twin=twins_of([d.name for d, _ in homes], kind, budget),
        is_cpu=[d.is_cpu for d, _ in homes],
        serial=[not (blocks and d.is_cpu) for d, _ in homes],
        room=[d.memory_bytes * (1 + MEMORY) if hard and not d.is_cpu else inf for d, _ in homes],
        time=[[case.time(v, d.name) for d, _ in homes] for v in range(n)],
        memory=[case.own(v) for v in range(n)],
        group=_color_groups(case),
        flows=flows,
        before=before,
        after=after,
        order=order,
    )


def _color_groups(case: LatencyCase) -> list[list[int]]:
    """Units that share a device with each unit, by the colours of their nodes; ascending."""
    pairs = color_pairs(case.units.of_node, case.graph.color.tolist())
    return gathered(components(len(case.units.ids), pairs))


def topological(before: Sequence[Sequence[tuple[int, object]]]) -> list[int] | None:
    """Tasks, or jobs, after all that they wait for; None: some wait for each other."""
    waits = {v: [u for u, _ in row] for v, row in enumerate(before)}
    try:
        return list(TopologicalSorter(waits).static_order())
    except CycleError:
        return None


def _flows(case: LatencyCase, pairs: Sequence[tuple[str, str]], budget: Budget) -> Iterator[Flow]:
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
        budget.spend(len(tensors) * len(pairs))
        times = [_moving(case, mesh, pair, tensors) for pair in pairs]
        yield Flow(maker, tuple(readers), [*times, 0.0])


def _moving(
    case: LatencyCase, mesh: Mesh, pair: tuple[str, str], tensors: Collection[int]
) -> float:
    """Time of one transfer of some tensors, which pays the latency of its path once."""
    path = mesh.path(*pair)
    if path is None:
        return inf
    tables = case.tables
    times = [mesh.time(*pair, tables.size[t], tables.transfer[t]) or 0.0 for t in tensors]
    return fsum(times) - (len(tensors) - 1) * path.latency


def path_kinds(mesh: Mesh, places: Sequence[str]) -> tuple[list[list[int]], list[tuple[str, str]]]:
    """Kind of the path between any two places, -1 within one; a pair of each kind."""
    number: dict[object, int] = {}
    pairs: list[tuple[str, str]] = []
    kind = [[-1] * len(places) for _ in places]
    for (i, a), (j, b) in permutations(enumerate(places), 2):
        key = mesh.path(a, b), mesh.time(a, b, 0.0, 1.0)
        if key not in number:
            number[key] = len(pairs)
            pairs.append((a, b))
        kind[i][j] = number[key]
    return kind, pairs


def twins_of(owner: Sequence[str], kind: list[list[int]], budget: Budget) -> list[int]:
    """The first place that each can change places with: of its class, as far from all others."""
    twin: list[int] = []

    def alike(a: int, b: int) -> bool:
        budget.spend(len(owner))
        others = [x for x in range(len(owner)) if x not in (a, b)]
        return kind[a][b] == kind[b][a] and all(
            kind[a][x] == kind[b][x] and kind[x][a] == kind[x][b] for x in others
        )

    for a, name in enumerate(owner):
        same = (b for b in range(a) if owner[b] == name and twin[b] == b)
        twin.append(next((b for b in same if alike(a, b)), a))
    return twin


def sweep(tasks: Tasks, domain: list[list[int]], *, forward: bool = True) -> tuple[Times, Times]:
    """Longest paths up to each task on each place, without and with its own time; inf: not there.

    Parameters
    ----------
    domain
        Places where each task may be.
    forward
        False: paths against the edges, from the ends.
    """
    ready, done = ([[inf] * len(tasks.places) for _ in range(tasks.n)] for _ in range(2))
    edges, kind = (tasks.before, [*zip(*tasks.kind, strict=True)])
    if not forward:
        edges, kind = tasks.after, [tuple(row) for row in tasks.kind]
    for v in tasks.order if forward else reversed(tasks.order):
        for q in domain[v]:
            latest = 0.0
            for u, times in edges[v]:
                there = min([done[u][p] + times[kind[q][p]] for p in domain[u]], default=inf)
                latest = max(latest, there)
            ready[v][q], done[v][q] = latest, latest + tasks.time[v][q]
    return ready, done


def simple_bounds(tasks: Tasks, budget: Budget) -> Iterator[tuple[float, str]]:
    """Bounds of the latency, each with its name: paths, and what all places do together."""
    domain = tasks.domain()
    if not all(domain):
        raise UncheckedError("a unit fits no device")
    if tasks.n == 0:
        return
    steps = sum(len(tasks.places) ** 2 * (1 + len(row)) for row in tasks.before)
    budget.spend(2 * steps)
    yield max(min(row) for row in sweep(tasks, domain)[1]), "critical path"
    if not all(tasks.serial):
        return
    budget.spend(10 * steps)
    speed, price = _prices(tasks, domain)
    held = sum(z * room * k for z, room, k in zip(price, tasks.room, tasks.spare, strict=True) if z)
    least = (
        min(speed[q] * row[q] + price[q] * memory for q in places)
        for places, row, memory in zip(domain, tasks.time, tasks.memory, strict=True)
    )
    yield fsum(least) - held, "area"


def _prices(tasks: Tasks, domain: list[list[int]]) -> tuple[list[float], list[float]]:
    """Share of each place in a weighed mean of times, and price of its memory (time a byte).

    The shares of all devices add up to 1. Such numbers >= 0 make a bound, those of the linear
    program the best: what a task costs at least, less what all memory is worth.
    """
    from scipy.optimize import linprog
    from scipy.sparse import coo_array

    n, size, spare = tasks.n, len(tasks.places), np.array(tasks.spare)
    worth = [r * k if r < inf else 0.0 for r, k in zip(tasks.room, tasks.spare, strict=True)]
    mean = [1 / int(spare.sum())] * size, [0.0] * size
    if size == 1 and not any(worth):
        return mean
    task, place = np.array([(v, q) for v, row in enumerate(domain) for q in row]).T
    times, memory = np.array(tasks.time)[task, place], np.array(tasks.memory)[task]
    long, large = float(times.max()) or 1.0, float(memory.max()) or 1.0
    values = np.concatenate([np.ones(len(task)), -times / long, -memory / large])
    cells = np.tile(np.arange(len(task)), 3), np.concatenate([task, n + place, n + size + place])
    found = linprog(
        np.concatenate([-np.ones(n), np.zeros(size), np.array(worth) / large]),
        A_ub=coo_array((values, cells), shape=(len(task), n + 2 * size)).tocsr(),
        b_ub=np.zeros(len(task)),
        A_eq=np.concatenate([np.zeros(n), spare, np.zeros(size)])[None],
        b_eq=[1.0],
        bounds=[(None, None)] * n + [(0, None)] * size + [(0, None if w else 0) for w in worth],
        method="highs",
    )
    if found.x is None:
        return mean
    shares, prices = np.maximum(found.x[n:], 0.0).reshape(2, size)
    return (shares / (shares @ spare)).tolist(), (prices * long / large).tolist()
