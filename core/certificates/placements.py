"""Search for a placement of tasks with a latency below a limit: exact, of the verifier's own.

First every task gets a device, the one with the fewest left first. Longest paths in both
directions, with the delays between devices that are certain, say where it can be; so do the work of
each device, after the heads and before the tails of its tasks (Jackson's preemptive rule), and that
of all. Of places that can change places with each other only the first unused one is tried.

Where all have one, tasks of a device, and transfers of a lane, are ordered pair by pair, as for a
job shop: heads and tails rule out one order of a pair, or the search takes both (Carlier and Pinson
1989).
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from math import inf
from typing import NamedTuple

from dnnp.core.certificates.exact import Budget
from dnnp.core.certificates.tasks import Tasks, Times, sweep

Domain = list[list[int]]
"""Places that are left to each task."""


class _Window(NamedTuple):
    """Longest paths up to each task and after it, on each of its places."""

    head: Times
    tail: Times


class Placements:
    """Tasks of a plan, the limit, and the steps that are left."""

    def __init__(
        self, tasks: Tasks, limit: float, congestion: str, used: int, budget: Budget
    ) -> None:
        self.tasks, self.limit, self.budget = tasks, limit, budget
        self.congestion, self.used = congestion, used
        self.edges = sum(len(row) for row in tasks.before) + tasks.n

    def below(self) -> float | None:
        """Latency of a placement below the limit; None: there is none.

        Raises UncheckedError: it takes too many steps.
        """
        tasks = self.tasks
        first = [tasks.usable(v) for v in range(tasks.n)]
        unused = [q for q, twin in enumerate(tasks.twin) if twin == q]
        start = [[q for q in row if q in unused] for row in first]
        waiting: list[tuple[list[int], Domain, tuple[int, int] | None]] = [
            ([-1] * tasks.n, start, None)
        ]
        while waiting:
            home, domain, choice = waiting.pop()
            home, domain = home[:], [row[:] for row in domain]
            if choice is not None and not self._place(home, domain, *choice):
                continue
            window = self._narrowed(home, domain)
            if window is None:
                continue
            free = [v for v in range(tasks.n) if home[v] < 0]
            if not free:
                value = Orders(self, home).below()
                if value is not None:
                    return value
                continue
            through = {
                v: min(window.head[v][q] + tasks.time[v][q] + window.tail[v][q] for q in domain[v])
                for v in free
            }
            v = min(free, key=lambda v: (len(domain[v]), -through[v], v))
            waiting += [(home, domain, (v, q)) for q in reversed(domain[v])]
        return None

    def _place(self, home: list[int], domain: Domain, task: int, place: int) -> bool:
        """Put a task, with its colour, on a place; False: that cannot be."""
        tasks = self.tasks
        if place not in home:
            self._open(home, domain, place)
        for v in tasks.group[task]:
            if place not in domain[v]:
                return False
            home[v], domain[v] = place, [place]
        return True

    def _open(self, home: list[int], domain: Domain, place: int) -> None:
        """Begin to use a place: the next of its twins can be used wherever it could."""
        tasks = self.tasks
        busy = {q for q in home if q >= 0} | {place}
        twins = (q for q, twin in enumerate(tasks.twin) if twin == tasks.twin[place])
        other = next((q for q in twins if q not in busy), None)
        full = sum(not tasks.is_cpu[q] for q in busy) >= self.used
        for v, row in enumerate(domain):
            if home[v] < 0 and place in row and other is not None:
                row.append(other)
            if full and home[v] < 0:
                row[:] = [q for q in row if q in busy or tasks.is_cpu[q]]

    def _narrowed(self, home: list[int], domain: Domain) -> _Window | None:
        """Take away places until nothing follows; None: a task has none left."""
        while True:
            window = self._windows(domain)
            if window is None:
                return None
            forced = [v for v in range(self.tasks.n) if home[v] < 0 and len(domain[v]) == 1]
            if forced:
                if not self._place(home, domain, forced[0], domain[forced[0]][0]):
                    return None
                continue
            fits = self._loads(home, domain, window)
            if fits is None:
                return None
            if not fits:
                return window

    def _windows(self, domain: Domain) -> _Window | None:
        """Heads and tails, without places from which no path is below the limit."""
        tasks = self.tasks
        while True:
            if not all(domain):
                return None
            self.budget.spend(2 * self.edges * max(map(len, domain), default=0))
            head, end = sweep(tasks, domain, forward=True, time=tasks.time)
            tail, _ = sweep(tasks, domain, forward=False, time=tasks.time)
            changed = False
            for v, row in enumerate(domain):
                kept = [q for q in row if end[v][q] + tail[v][q] < self.limit]
                changed |= len(kept) < len(row)
                domain[v] = kept
            if not changed:
                return _Window(head, tail)

    def _loads(self, home: list[int], domain: Domain, window: _Window) -> bool | None:
        """Look at the work and memory of each place, and of all; True: some cannot hold a task.

        None: there is too much of either.
        """
        tasks, (head, tail) = self.tasks, window
        free = [v for v in range(tasks.n) if home[v] < 0]
        self.budget.spend(tasks.n * max(map(len, domain), default=0))
        spare, room, changed, twins = 0.0, 0.0, False, Counter(tasks.twin)
        for place in {q: tasks.twin[q] for q in home if q >= 0}.values():
            twins[place] -= 1
        for place in sorted({q for row in domain for q in row}):
            copies = 1 if place in home else twins[tasks.twin[place]]
            held = [v for v, q in enumerate(home) if q == place]
            jobs = [(head[v][place], tasks.time[v][place], tail[v][place]) for v in held]
            others = [v for v in free if place in domain[v]]
            slack = self.limit - sum(time for _, time, _ in jobs)
            slack -= min(head[v][place] for v in held + others)
            slack -= min(tail[v][place] for v in held + others)
            left = tasks.room[place] - sum(tasks.memory[v] for v in held)
            if slack <= 0 or left < 0 or one_machine(jobs) >= self.limit:
                return None
            spare += copies * slack if others else 0.0
            room += copies * left
            for v in others:
                needed = sum(tasks.memory[w] for w in tasks.group[v])
                if tasks.time[v][place] >= slack or needed > left:
                    domain[v].remove(place)
                    changed = True
        if not free:
            return False
        if sum(tasks.memory[v] for v in free) > room or not all(domain):
            return None
        work = sum(min(tasks.time[v][q] for q in domain[v]) for v in free)
        return None if work >= spare else changed


def one_machine(jobs: Sequence[tuple[float, float, float]]) -> float:
    """Least time for jobs (head, time, tail) on one machine that may interrupt them."""
    waiting = sorted(jobs, reverse=True)
    active: list[tuple[float, float]] = []
    now = latest = 0.0
    while waiting or active:
        if not active:
            now = max(now, waiting[-1][0])
        while waiting and waiting[-1][0] <= now:
            _, time, tail = waiting.pop()
            heapq.heappush(active, (-tail, time))
        tail, time = heapq.heappop(active)
        until = waiting[-1][0] if waiting else inf
        if now + time <= until:
            now += time
            latest = max(latest, now - tail)
        else:
            heapq.heappush(active, (tail, time - (until - now)))
            now = until
    return latest


Arc = tuple[int, float]


class _State(NamedTuple):
    """Earliest starts, times from the ends on, and what is decided."""

    head: list[float]
    tail: list[float]
    before: list[list[Arc]]
    after: list[list[Arc]]
    pairs: list[tuple[int, int]]
    """Jobs of one resource whose order is open."""


class Orders:
    """Orders of the jobs of a placement: tasks, and transfers that wait for each other."""

    def __init__(self, search: Placements, home: list[int]) -> None:
        self.tasks, self.limit, self.budget = search.tasks, search.limit, search.budget
        self.home = home
        self.time = [self.tasks.time[v][q] for v, q in enumerate(home)]
        self.before: list[list[Arc]] = [[] for _ in home]
        self.resources: dict[tuple[str, int, int], list[int]] = {}
        for v, q in enumerate(home):
            self.resources.setdefault(("runs", q, q), []).append(v)
        for flow in self.tasks.flows:
            for place in dict.fromkeys(home[v] for v in flow.readers):
                readers = [v for v in flow.readers if home[v] == place]
                self._move(
                    flow.maker, readers, flow.delay(home[flow.maker], place), search.congestion
                )

    def _move(self, maker: int, readers: list[int], delay: float, congestion: str) -> None:
        """Add what leads from a task to some that read it on one place."""
        source, target = self.home[maker], self.home[readers[0]]
        if source != target and congestion != "none":
            job = len(self.time)
            self.time.append(delay)
            self.before.append([(maker, 0.0)])
            lanes = [("sends", source, source), ("receives", target, target)]
            for lane in lanes if congestion == "device" else [("moves", source, target)]:
                self.resources.setdefault(lane, []).append(job)
            maker, delay = job, 0.0
        for v in readers:
            self.before[v].append((maker, delay))

    def below(self) -> float | None:
        """Latency of an order below the limit; None: there is none."""
        start = self._start()
        waiting: list[tuple[_State, tuple[int, int] | None]] = [(start, None)] if start else []
        while waiting:
            state, arc = waiting.pop()
            self.budget.spend(4 * len(self.time) + len(state.pairs))
            state = _State(
                state.head[:], state.tail[:], [row[:] for row in state.before],
                [row[:] for row in state.after], state.pairs[:],
            )  # fmt: skip
            if (arc is not None and not self._decide(state, *arc)) or not self._narrowed(state):
                continue
            head, time = state.head, self.time
            clash = [
                (a, b)
                for a, b in state.pairs
                if head[a] < head[b] + time[b] and head[b] < head[a] + time[a]
            ]
            if not clash:
                return max((h + t for h, t in zip(head, time, strict=True)), default=0.0)
            a, b = max(
                clash,
                key=lambda pair: max(
                    self._through(state, *pair), self._through(state, *pair[::-1])
                ),
            )
            state.pairs.remove((a, b))
            arcs = sorted([(a, b), (b, a)], key=lambda pair: -self._through(state, *pair))
            waiting += [(state, arc) for arc in arcs]
        return None

    def _through(self, state: _State, a: int, b: int) -> float:
        """Longest path through two jobs, one after the other."""
        return state.head[a] + self.time[a] + self.time[b] + state.tail[b]

    def _start(self) -> _State | None:
        """Heads, tails and pairs of jobs of one resource; None: a path is not below the limit."""
        count = len(self.time)
        after: list[list[Arc]] = [[] for _ in range(count)]
        for v, row in enumerate(self.before):
            for u, delay in row:
                after[u].append((v, delay))
        pairs = {pair for row in self.resources.values() for pair in combinations(sorted(row), 2)}
        self.budget.spend(len(pairs))
        state = _State([0.0] * count, [0.0] * count, self.before, after, sorted(pairs))
        paths = all(
            self._push(state.head, state.tail, after, v)
            and self._push(state.tail, state.head, self.before, v)
            for v in range(count)
        )
        return state if paths else None

    def _narrowed(self, state: _State) -> bool:
        """Order pairs of which one order is too late, until none is left; False: both are."""
        changed = True
        while changed:
            changed = False
            self.budget.spend(len(state.pairs))
            for a, b in list(state.pairs):
                late = [self._through(state, *arc) >= self.limit for arc in ((a, b), (b, a))]
                if all(late):
                    return False
                if any(late):
                    changed = True
                    state.pairs.remove((a, b))
                    if not self._decide(state, *((b, a) if late[0] else (a, b))):
                        return False
        return all(
            one_machine([(state.head[v], self.time[v], state.tail[v]) for v in row]) < self.limit
            for row in self.resources.values()
        )

    def _decide(self, state: _State, a: int, b: int) -> bool:
        """Put one job before another; False: a path is not below the limit."""
        state.before[b].append((a, 0.0))
        state.after[a].append((b, 0.0))
        return self._push(state.head, state.tail, state.after, a) and self._push(
            state.tail, state.head, state.before, b
        )

    def _push(
        self, reach: list[float], rest: list[float], onward: list[list[Arc]], job: int
    ) -> bool:
        """Raise the longest paths that lead through a job; False: one is not below the limit."""
        waiting = [job]
        while waiting:
            x = waiting.pop()
            done = reach[x] + self.time[x]
            if done + rest[x] >= self.limit:
                return False
            self.budget.spend(len(onward[x]) + 1)
            for y, delay in onward[x]:
                if done + delay > reach[y]:
                    reach[y] = done + delay
                    waiting.append(y)
        return True
