"""The least latency of a tiny problem, found by trying everything that can matter.

Blocks: every item (what must lie in one block) goes to the pool or into one of the blocks of an
accelerator, in every order of these. Operators: every assignment, and for each every sequence of
events that gives an active schedule: one where no event can start earlier without moving another
(Giffler and Thompson 1960). Some active schedule is optimal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import permutations, product

import numpy as np

from dnnp.core.cost.latency import POOL, TASK, Invocations, LatencyProblem, Placement, pool_times
from dnnp.core.model.errors import FormatError, InfeasibleError

SLACK = 1e-12
"""By how much memory may be above a capacity, relatively, as in the cost model."""


def brute_blocks(
    problem: LatencyProblem,
    upper: float = math.inf,
    admits: Callable[[Invocations], bool] = lambda split: True,
) -> tuple[float, Invocations | None]:
    """Least latency of a split into blocks that is allowed, and a split that has it.

    `upper` and None: none that fits takes less than that.
    """
    search = _Blocks(problem)
    search.value, search.admits = upper, admits
    search.assign(0)
    return search.value, search.best


def brute_operators(
    problem: LatencyProblem, upper: float = math.inf
) -> tuple[float, Placement | None]:
    """Least latency of a placement, and one that has it; see `brute_blocks`."""
    search = _Operators(problem)
    search.value = upper
    search.assign(0)
    return search.value, search.best


def items(problem: LatencyProblem) -> list[list[int]]:
    """Tasks that lie in one block or in the pool: colours and cycles of each pass, contracted."""
    tasks = problem.tasks
    group = [(int(c), bool(b)) for c, b in zip(tasks.together, tasks.backward, strict=True)]
    edges = list(zip(*(e.tolist() for e in tasks.edges), strict=True))
    merged = True
    while merged:
        merged = False
        names = sorted(set(group))
        reach = {name: {name} for name in names}
        for _ in names:
            for u, v in edges:
                if group[u][1] == group[v][1]:
                    for name in names:
                        if group[u] in reach[name]:
                            reach[name].add(group[v])
        for a in names:
            for b in names:
                if a < b and b in reach[a] and a in reach[b]:
                    group = [a if g == b else g for g in group]
                    merged = True
                    break
            if merged:
                break
    place = {int(v): i for i, v in enumerate(tasks.order)}
    found: dict[tuple[int, bool], list[int]] = {}
    for v in tasks.order.tolist():
        found.setdefault(group[v], []).append(v)
    return sorted(found.values(), key=lambda item: place[item[0]])


def _twins(problem: LatencyProblem) -> list[int]:
    """The first device that each could change places with; i64[D]."""
    machine, tasks = problem.machine, problem.tasks
    first = list(range(machine.count))
    for a in range(machine.count):
        for b in range(a):
            swap = list(range(machine.count))
            swap[a], swap[b] = b, a
            same = all(
                np.array_equal(x[np.ix_(swap, swap)], x)
                for x in (machine.rate, machine.latency, machine.charged)
            ) and all(x[a] == x[b] for x in (machine.capacity, machine.host_rate, machine.is_cpu))
            same = same and machine.classes[a] == machine.classes[b]  # rules tell classes apart
            if same and np.array_equal(tasks.time[a], tasks.time[b]):
                first[a] = first[b]
                break
    return first


class _Blocks:
    """Assign the items one after the other, those that read others after them."""

    def __init__(self, problem: LatencyProblem) -> None:
        self.problem, self.items = problem, items(problem)
        tasks, machine = problem.tasks, problem.machine
        self.q = problem.options.invocations
        self.pool = pool_times(tasks, machine)
        self.devices = [d for d in range(machine.count) if not machine.is_cpu[d]]
        self.twins = _twins(problem)
        self.color = [{int(tasks.together[v]) for v in item} for item in self.items]
        self.late = [bool(tasks.backward[item[0]]) for item in self.items]
        self.place = [(POOL, 0)] * len(self.items)
        """Device and number of the block among those of its pass."""
        self.edges = list(zip(*(e.tolist() for e in tasks.edges), strict=True))
        self.before: list[list[int]] = [[] for _ in range(tasks.n)]
        for u, v in self.edges:
            self.before[v].append(u)
        least = np.min([self.pool, *(tasks.time[d] for d in self.devices)], axis=0)
        self.rest = [0.0] * tasks.n
        for v in tasks.order[::-1].tolist():
            for u in self.before[v]:
                self.rest[u] = max(self.rest[u], float(least[v]) + self.rest[v])
        self.value, self.best = math.inf, None
        self.admits: Callable[[Invocations], bool] = lambda split: True

    def assign(self, i: int) -> None:
        """Place the items from number `i` on; keep what is better."""
        if i == len(self.items):
            for split in self.splits():
                try:
                    value = self.problem.value(split)
                except (FormatError, InfeasibleError):
                    continue
                if value < self.value and self.admits(split):
                    self.value, self.best = value, split
            return
        for place in self.choices(i):
            self.place[i] = place
            if self.fits(i) and self.least(i) < self.value:
                self.assign(i + 1)

    def choices(self, i: int) -> Iterator[tuple[int, int]]:
        """Devices for an item: identical devices and blocks are taken up one after the other."""
        item = self.items[i]
        used = {d for d, _ in self.place[:i]}
        for d in self.devices:
            earlier = [e for e in self.devices if e < d and self.twins[e] == self.twins[d]]
            if np.isinf(self.problem.tasks.time[d, item]).any() or not used >= set(earlier):
                continue
            mine = {
                b
                for j, (e, b) in enumerate(self.place[:i])
                if e == d and self.late[j] == self.late[i]
            }
            for b in range(min(len(mine) + 1, self.q)):
                yield d, b
        if not np.isinf(self.pool[item]).any():
            yield POOL, 0

    def fits(self, i: int) -> bool:
        """True if memory and colours allow the items up to number `i`."""
        device = self.place[i][0]
        for j in range(i):
            if self.color[i] & self.color[j] and self.place[j][0] != device:
                return False
        if device == POOL:
            return True
        mine = [v for j in range(i + 1) if self.place[j][0] == device for v in self.items[j]]
        needed = float(self.problem.tasks.memory[mine].sum())
        return needed <= float(self.problem.machine.capacity[device]) * (1 + SLACK)

    def least(self, i: int) -> float:
        """Lower bound of the items up to number `i`: busy devices, and paths of compute.

        A device is busy with its tasks, and with all that moves whatever the later items do.
        """
        time = self.problem.tasks.time
        busy = self.moved(i)
        end: dict[int, float] = {}
        for j in range(i + 1):
            device = self.place[j][0]
            for v in self.items[j]:
                ready = max((end.get(u, 0.0) for u in self.before[v]), default=0.0)
                if device == POOL:
                    end[v] = ready + float(self.pool[v])
                else:
                    busy[device] = busy.get(device, 0.0) + float(time[device, v])
                    end[v] = ready + float(time[device, v])
        return max([*busy.values(), *(end[v] + self.rest[v] for v in end)])

    def moved(self, i: int) -> dict[int, float]:
        """Time of what the devices of the items up to number `i` read and write."""
        tasks, machine = self.problem.tasks, self.problem.machine
        where = {v: (*self.place[j], self.late[j]) for j in range(i + 1) for v in self.items[j]}
        busy: dict[int, float] = {}
        for f, u in enumerate(tasks.maker.tolist()):
            readers = tasks.use_idx[tasks.use_ptr[f] : tasks.use_ptr[f + 1]].tolist()
            here = where.get(u, (POOL,))
            others = {where[r] for r in readers if r in where and (u < 0 or where[r] != here)}
            moves = [to[0] for to in others] + [here[0]] * bool(others or tasks.leaves[f])
            for d in moves:
                if d != POOL:
                    length = float(tasks.size[f] * machine.host_rate[d] + tasks.fixed[f])
                    busy[d] = busy.get(d, 0.0) + length
        return busy

    def splits(self) -> Iterator[Invocations]:
        """The blocks of all items, in every order of those of one device."""
        keys = sorted({(*p, late) for p, late in zip(self.place, self.late, strict=True)})
        keys = [key for key in keys if key[0] != POOL]
        mine = [[key for key in keys if key[0] == d] for d in sorted({k[0] for k in keys})]
        for orders in product(*(permutations(group) for group in mine)):
            order = [key for group in orders for key in group]
            block = np.full(self.problem.tasks.n, POOL)
            for i, (place, late) in enumerate(zip(self.place, self.late, strict=True)):
                if place[0] != POOL:
                    block[self.items[i]] = order.index((*place, late))
            yield Invocations(np.array([key[0] for key in order], dtype=np.int64), block)


class _Operators:
    """Assign the tasks one after the other, then branch over the events that may come next."""

    def __init__(self, problem: LatencyProblem) -> None:
        self.problem = problem
        tasks = problem.tasks
        self.tasks, self.machine = tasks, problem.machine
        self.congestion = problem.options.congestion
        self.twins = _twins(problem)
        self.order = tasks.order.tolist()
        self.home = [-1] * tasks.n
        self.value, self.best = math.inf, None
        self.reads = [
            tasks.in_idx[tasks.in_ptr[v] : tasks.in_ptr[v + 1]].tolist() for v in range(tasks.n)
        ]
        self.maker = tasks.maker.tolist()

    def assign(self, i: int) -> None:
        """Place the tasks from number `i` of the order on; keep what is better."""
        if i == len(self.order):
            self.schedule()
            return
        v = self.order[i]
        used = {self.home[u] for u in self.order[:i]}
        for d in range(self.machine.count):
            earlier = {e for e in range(d) if self.twins[e] == self.twins[d]}
            if used >= earlier and np.isfinite(self.tasks.time[d, v]):
                self.home[v] = d
                if self.fits(i) and self.least(i) < self.value:
                    self.assign(i + 1)
        self.home[v] = -1

    def fits(self, i: int) -> bool:
        """True if memory and colours allow the tasks up to number `i` of the order."""
        v = self.order[i]
        mine = [u for u in self.order[: i + 1] if self.home[u] == self.home[v]]
        others = [u for u in self.order[:i] if self.home[u] != self.home[v]]
        if (self.tasks.together[others] == self.tasks.together[v]).any():
            return False
        needed = float(self.tasks.memory[mine].sum())
        if self.problem.live is not None:
            needed += float(self.problem.live.floor[mine].max())
        return needed <= float(self.machine.capacity[self.home[v]]) * (1 + SLACK)

    def move(self, flow: int, d: int) -> float:
        """Time of a transfer to a device."""
        source = self.home[self.maker[flow]]
        return float(
            self.machine.latency[source, d]
            + self.tasks.size[flow] * self.machine.rate[source, d]
            + self.tasks.fixed[flow] * self.machine.charged[source, d]
        )

    def least(self, i: int) -> float:
        """Longest path through the tasks placed so far, and their devices' work."""
        end: dict[int, float] = {}
        busy = [0.0] * self.machine.count
        for v in self.order[: i + 1]:
            d = self.home[v]
            ready = 0.0
            for f in self.reads[v]:
                u = self.maker[f]
                ready = max(ready, end[u] + (self.move(f, d) if self.home[u] != d else 0.0))
            end[v] = ready + float(self.tasks.time[d, v])
            busy[d] += float(self.tasks.time[d, v])
        return max(max(end.values()), *busy)

    def schedule(self) -> None:
        """Try the sequences of events of this assignment."""
        events: list[tuple[int, int]] = [(TASK, v) for v in self.order]
        for v in self.order:
            for f in self.reads[v]:
                event = (f, self.home[v])
                if self.home[self.maker[f]] != self.home[v] and event not in events:
                    events.append(event)
        number = {event: e for e, event in enumerate(events)}
        length, lanes, before = [], [], []
        for flow, what in events:
            if flow == TASK:
                d = self.home[what]
                length.append(float(self.tasks.time[d, what]))
                lanes.append([("runs", d)])
                before.append(
                    [
                        number[TASK, self.maker[f]]
                        if self.home[self.maker[f]] == d
                        else number[f, d]
                        for f in self.reads[what]
                    ]
                )
                continue
            source = self.home[self.maker[flow]]
            length.append(self.move(flow, what))
            before.append([number[TASK, self.maker[flow]]])
            lanes.append(
                {
                    "device": [("sends", source), ("receives", what)],
                    "channel": [("link", source * self.machine.count + what)],
                    "none": [],
                }[self.congestion]
            )
        _Sequences(self, events, length, lanes, before).run()

    def offer(self, value: float, events: list[tuple[int, int]]) -> None:
        """Take a sequence that is better; the cost model has to agree about its value."""
        placement = Placement(np.array(self.home), np.array(events, dtype=np.int64).reshape(-1, 2))
        try:
            judged = self.problem.value(placement)
        except InfeasibleError:
            return  # for its live tensors
        if not math.isclose(judged, value, rel_tol=1e-12, abs_tol=1e-300):
            raise AssertionError(f"the simulator says {judged}, brute force {value}")
        if judged < self.value:
            self.value, self.best = judged, placement


class _Sequences:
    """Branch and bound over the sequences of the events of one assignment."""

    def __init__(
        self,
        owner: _Operators,
        events: list[tuple[int, int]],
        length: list[float],
        lanes: list[list[tuple[str, int]]],
        before: list[list[int]],
    ) -> None:
        self.owner, self.events, self.length = owner, events, length
        self.lanes, self.before = lanes, before
        self.after: list[list[int]] = [[] for _ in events]
        for e, earlier in enumerate(before):
            for b in set(earlier):
                self.after[b].append(e)
        self.tail = [0.0] * len(events)
        """Time from the start of an event to the end of all, at least."""
        for e in self.topological()[::-1]:
            self.tail[e] = length[e] + max((self.tail[a] for a in self.after[e]), default=0.0)
        self.end: dict[int, float] = {}
        self.free: dict[tuple[str, int], float] = {}
        self.sequence: list[int] = []

    def topological(self) -> list[int]:
        """Events after those they wait for."""
        done: list[int] = []
        while len(done) < len(self.events):
            for e, earlier in enumerate(self.before):
                if e not in done and set(earlier) <= set(done):
                    done.append(e)
        return done

    def start(self, e: int) -> float:
        """Earliest start of an event, all it waits for being done."""
        ready = max((self.end[b] for b in self.before[e]), default=0.0)
        return max([ready, *(self.free.get(lane, 0.0) for lane in self.lanes[e])])

    def run(self) -> None:
        """Extend the sequence in every way that can matter."""
        if len(self.sequence) == len(self.events):
            value = max(self.end.values())
            if value < self.owner.value:
                self.owner.offer(value, [self.events[e] for e in self.sequence])
            return
        ready = [
            e
            for e in range(len(self.events))
            if e not in self.end and all(b in self.end for b in self.before[e])
        ]
        starts = {e: self.start(e) for e in ready}
        if max(starts[e] + self.tail[e] for e in ready) >= self.owner.value:
            return
        least = min(ready, key=lambda e: starts[e] + self.length[e])
        first_end = starts[least] + self.length[least]
        rivals = self.rivals(least, [e for e in ready if starts[e] < first_end])
        live = self.owner.problem.live
        # Where live tensors count, what needs no memory yet may be worth waiting for; of two events
        # next to each other that touch neither each other nor one lane, one order will do.
        if live is not None and live.binds:
            last = self.sequence[-1] if self.sequence else -1
            rivals = [e for e in ready if e > last or self.follows(last, e)]
        for e in rivals:
            kept = {lane: self.free.get(lane, 0.0) for lane in self.lanes[e]}
            self.end[e] = starts[e] + self.length[e]
            self.free.update(dict.fromkeys(self.lanes[e], self.end[e]))
            self.sequence.append(e)
            self.run()
            self.sequence.pop()
            self.free.update(kept)
            del self.end[e]

    def follows(self, last: int, e: int) -> bool:
        """True if an event waits for the one before it, or for one of its lanes."""
        return last in self.before[e] or bool(set(self.lanes[last]) & set(self.lanes[e]))

    def rivals(self, least: int, others: list[int]) -> list[int]:
        """An event and those that it may have to wait for, through any number of lanes."""
        found = [least]
        for e in found:
            mine = set(self.lanes[e])
            found += [o for o in others if o not in found and mine & set(self.lanes[o])]
        return found
