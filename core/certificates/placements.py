"""Search for a latency plan below a limit: exact, of the verifier's own.

First every task gets a device, the one with the fewest left first. Longest paths in both
directions, with the delays between devices that are certain, say where it can be; so does the work
of each device, after the heads and before the tails of its tasks (Jackson's preemptive rule). Of
places that can change places with each other only the first unused one is tried.

Where all have one, the jobs of every resource are put in order, as for a job shop: of those that
meet on resources before the first of them could end, one is next (Giffler and Thompson 1960).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import NamedTuple

from dnnp.core.certificates.exact import Budget
from dnnp.core.certificates.tasks import Tasks, sweep, topological

Domain = list[list[int]]
"""Places that are left to each task."""


Lane = tuple[int, int]
"""Resource of a job: a place (twice), or what moves from a place (-1: any) to one."""


class Jobs(NamedTuple):
    """Jobs that a placement leaves to be put in order."""

    time: list[float]
    before: list[list[tuple[int, float]]]
    """Jobs before each one, and the delays in between."""
    lanes: list[list[Lane]]


class Operators:
    """Tasks that wait for each other on their places, and transfers."""

    def __init__(self, tasks: Tasks, congestion: str) -> None:
        self.tasks, self.congestion = tasks, congestion

    def jobs(self, home: list[int]) -> Iterable[Jobs]:
        """All that a placement leaves to be put in order; one of these will do."""
        time = [row[q] for row, q in zip(self.tasks.time, home, strict=True)]
        before: list[list[tuple[int, float]]] = [[] for _ in home]
        lanes = [[(q, q)] for q in home]
        for maker, readers, times in self.tasks.flows:
            source = home[maker]
            for target in dict.fromkeys(home[v] for v in readers):
                sender, delay = maker, times[self.tasks.kind[source][target]]
                if source != target and self.congestion != "none":
                    sender = len(time)
                    time.append(delay)
                    before.append([(maker, 0.0)])
                    ends = [(source, -1), (-1, target)]
                    lanes.append(ends if self.congestion == "device" else [(source, target)])
                    delay = 0.0
                for v in readers:
                    if home[v] == target:
                        before[v].append((sender, delay))
        yield Jobs(time, before, lanes)

    def paid(self, home: list[int]) -> Mapping[int, float]:
        """Time that places are busy with transfers at least; -1: a task has no place yet."""
        del home
        return {}


class Placements:
    """Tasks of a plan, the limit, the accelerators that may be in use, and the steps left."""

    def __init__(self, problem: Operators, limit: float, used: int, budget: Budget) -> None:
        self.problem, self.tasks = problem, problem.tasks
        self.limit, self.used, self.budget = limit, used, budget
        tasks = self.tasks
        self.edges = sum(len(row) for row in tasks.before) + tasks.n

    def below(self) -> float | None:
        """Latency of a plan below the limit; None: there is none.

        Raises UncheckedError: it takes too many steps.
        """
        tasks = self.tasks
        start = [[q for q in row if tasks.twin[q] == q] for row in tasks.domain()]
        waiting = [([-1] * tasks.n, start)]
        while waiting:
            home, domain = waiting.pop()
            through = self._narrowed(home, domain)
            if through is None:
                continue
            if not through:
                for jobs in self.problem.jobs(home):
                    value = first_end(jobs, self.limit, self.budget)
                    if value is not None:
                        return value
                continue
            v = min(through, key=lambda v: (len(domain[v]), -through[v], v))
            further = (self._placed(home, domain, v, q) for q in reversed(domain[v]))
            waiting += [found for found in further if found is not None]
        return None

    def _placed(
        self, home: list[int], domain: Domain, task: int, place: int
    ) -> tuple[list[int], Domain] | None:
        """Put a task, with its colour, on a place; None: that cannot be."""
        tasks, busy = self.tasks, {*home, place} - {-1}
        if any(place not in domain[v] for v in tasks.group[task]):
            return None
        twins = [q for q, twin in enumerate(tasks.twin) if twin == tasks.twin[place]]
        opened = [q for q in twins if q not in busy][:1] if place not in home else []
        full = sum(not tasks.is_cpu[q] for q in busy) >= self.used
        rows = (row + opened if place in row else row for row in domain)
        domain = [
            [q for q in row if at >= 0 or not full or q in busy or tasks.is_cpu[q]]
            for at, row in zip(home, rows, strict=True)
        ]
        home = home[:]
        for v in tasks.group[task]:
            home[v], domain[v] = place, [place]
        return home, domain

    def _narrowed(self, home: list[int], domain: Domain) -> dict[int, float] | None:
        """Take away places that are too late or too full; the path through each free task.

        None: there is no plan below the limit.
        """
        tasks = self.tasks
        if not all(domain):
            return None
        self.budget.spend(self.edges * max(map(len, domain), default=0) ** 2)
        head, end = sweep(tasks, domain)
        tail, _ = sweep(tasks, domain, forward=False)
        through = [
            {q: late for q in row if (late := end[v][q] + tail[v][q]) < self.limit}
            for v, row in enumerate(domain)
        ]
        domain[:] = [list(row) for row in through]
        free = [v for v, q in enumerate(home) if q < 0]
        paid = self.problem.paid(home)
        for place in sorted({q for row in domain for q in row}):
            held = [v for v, q in enumerate(home) if q == place]
            others = [v for v in free if place in domain[v]]
            left = tasks.room[place] - sum(tasks.memory[v] for v in held)
            slack = inf
            self.budget.spend(tasks.n + len(held) ** 2)
            if tasks.serial[place]:
                jobs = [(head[v][place], tasks.time[v][place], tail[v][place]) for v in held]
                if one_machine(jobs) >= self.limit:
                    return None
                slack = self.limit - sum(time for _, time, _ in jobs) - paid.get(place, 0.0)
                slack -= min(head[v][place] for v in held + others)
                slack -= min(tail[v][place] for v in held + others)
            if left < 0 or slack <= 0:
                return None
            for v in others:
                needed = sum(tasks.memory[w] for w in tasks.group[v])
                if tasks.time[v][place] >= slack or needed > left:
                    domain[v].remove(place)
        return {v: min(through[v].values()) for v in free} if all(domain) else None


def one_machine(jobs: Sequence[tuple[float, float, float]]) -> float:
    """Least time for jobs (head, time, tail) on one machine that may interrupt them.

    It is the largest sum of head, work and tail of any of them (Carlier 1982).
    """
    latest = 0.0
    for head, _, _ in jobs:
        work = 0.0
        for _, time, tail in sorted((j for j in jobs if j[0] >= head), key=lambda j: -j[2]):
            work += time
            latest = max(latest, head + work + tail)
    return latest


def first_end(jobs: Jobs, limit: float, budget: Budget) -> float | None:
    """The end of jobs in an order that ends below the limit; None: there is none."""
    time, before, lanes = jobs
    order = topological(before)
    if order is None:
        return None
    tail = [0.0] * len(time)
    for v in reversed(order):
        for u, delay in before[v]:
            tail[u] = max(tail[u], delay + time[v] + tail[v])
    waiting: list[tuple[dict[int, float], dict[Lane, float]]] = [({}, {})]
    while waiting:
        end, free = waiting.pop()
        if len(end) == len(time):
            return max(end.values(), default=0.0)
        budget.spend(len(time) + sum(map(len, before)))
        start: dict[int, float] = {}
        lane: dict[Lane, list[tuple[float, float, float]]] = {}
        for v in (v for v in order if v not in end):
            ready = [(end[u] if u in end else start[u] + time[u]) + delay for u, delay in before[v]]
            start[v] = max([0.0, *ready, *(free.get(x, 0.0) for x in lanes[v])])
            for x in lanes[v]:
                lane.setdefault(x, []).append((start[v], time[v], tail[v]))
        budget.spend(sum(len(row) ** 2 for row in lane.values()))
        late = any(start[v] + time[v] + tail[v] >= limit for v in start)
        if late or any(one_machine(row) >= limit for row in lane.values()):
            continue
        able = [v for v in start if all(u in end for u, _ in before[v])]
        rivals = [min(able, key=lambda v: start[v] + time[v])]
        until = start[rivals[0]] + time[rivals[0]]
        for v in rivals:
            meets = (w for w in able if start[w] < until and {*lanes[w]} & {*lanes[v]})
            rivals += [w for w in meets if w not in rivals]
        for v in sorted(rivals, key=lambda v: tail[v]):
            done = start[v] + time[v]
            waiting.append(({**end, v: done}, {**free, **dict.fromkeys(lanes[v], done)}))
    return None
