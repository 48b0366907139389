"""The constraints of the scheduling model of blocks (2020 paper, Fig. 3, Fig. 4, Section 4.2).

Numbers in brackets are the constraints of the paper. Beyond these the model holds what follows
from them and is not seen by a linear relaxation: windows, longest paths, steps along single
edges, and an order among devices that can change places.

Tasks of one colour and pass share a device, and so do all tasks on paths between two of them: an
*item* lies in one block, or runs on the pool, task by task. A *slot* is an invocation of a device,
for one block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from dnnp.core.cost.items import by_first, components
from dnnp.core.cost.latency import (
    POOL,
    BlockTimes,
    Invocations,
    LatencyProblem,
    Tasks,
    host_times,
    pool_times,
    time_invocations,
)
from dnnp.core.cost.load_formula import MARGIN
from dnnp.core.latency.ip.formulation import (
    Formulation,
    block_windows,
    carried,
    descendants,
    in_order,
)
from dnnp.core.model.graph import Floats, Ints, distinct
from dnnp.core.solver.scheduling_model import NEVER, ORIGIN, Model, Rule
from dnnp.core.split.ip.task import without_shortcuts

Cut = tuple[tuple[int, int], ...]
"""Items and their slots that cannot all be so."""


class Known(NamedTuple):
    """A split in terms of the model."""

    place: Ints
    """i64[m], slot of each item, -1: the pool."""
    start: Floats
    end: Floats
    """f64[slots]; an empty slot takes no time after the one before it."""
    ready: Floats
    """f64[n]"""
    done: Floats
    """f64[n], when each task is computed at the earliest, for its predecessors' sake."""
    value: float


class Slot(NamedTuple):
    """An invocation of a device, for one block."""

    device: int
    late: bool
    """True: for the backward pass."""
    number: int
    """Among those of the same device and pass, in the order in which they run."""


@dataclass(frozen=True)
class ItemFlow:
    """Flows that one item makes and the same others read."""

    maker: int
    """Item; -1: an input of the model."""
    readers: tuple[int, ...]
    """Other items."""
    leaves: bool
    """An output of the model, which costs a transfer in any case."""
    makers: tuple[int, ...]
    """Tasks of the item that make it."""
    cost: Floats
    """f64[D], time between each device and the memory of the host."""


class BlockProgram(Formulation[Invocations]):
    """The formulation of `blocks`."""

    def __init__(self, problem: LatencyProblem) -> None:
        super().__init__(problem, block_windows(problem))
        tasks, machine = problem.tasks, problem.machine
        self.devices = np.flatnonzero(~machine.is_cpu).tolist()
        self.label = label = items_of_tasks(tasks)
        """i64[n], item of each task; numbered by their first task in the order."""
        self.members = [np.flatnonzero(label == i) for i in range(int(label.max(initial=-1)) + 1)]
        """Tasks of each item; `m` items."""
        count = len(self.members)
        self.late = np.array([tasks.backward[own[0]] for own in self.members], dtype=np.bool_)
        """bool[m]"""
        times = [tasks.time[:, own].sum(axis=1) for own in self.members]
        self.time = np.array(times).reshape(count, -1).T
        """f64[D, m], compute time of each item in a block."""
        self.memory = np.array([tasks.memory[own].sum() for own in self.members])
        self.floor = np.array([self.floor[own].max() for own in self.members])
        self.slots = [
            Slot(d, late, j)
            for d in self.devices
            for late in (False, True)
            for j in range(min(problem.options.invocations, int((self.late == late).sum())))
        ]
        self.nets = _nets(problem, label)
        self.tied = _tied(tasks, label)
        """Pairs of items that share a device, or both run on the pool."""
        self.pool = pool_times(tasks, machine)
        rate = machine.host_rate
        self.edges = [
            (u, v, tasks.size[flows].sum() * rate + tasks.fixed[flows].sum())
            for (u, v), flows in sorted(carried(tasks).items())
        ]
        """Pairs of tasks, and the time of what goes from one to the other; f64[D]."""
        self.cuts: list[Cut] = []

    def model(self, upper: float) -> Model:
        """The model of all splits with a latency of at most `upper`."""
        return _Builder(self, upper).model

    def solution(
        self, model: Model, times: Sequence[float], flags: Sequence[float]
    ) -> Invocations | None:
        """Split by values of the model; None if its blocks wait for each other.

        Only blocks that take no time can do so; a cut excludes that from then on.
        """
        tasks = self.problem.tasks
        place = np.array(model.placed(flags), dtype=np.int64) - 1
        count = len(self.slots)
        of_task = place[self.label]
        vertex = np.where(of_task >= 0, of_task, count + np.arange(tasks.n))
        edges = {
            (int(vertex[u]), int(vertex[v])): (int(self.label[u]), int(self.label[v]))
            for u, v in zip(*(e.tolist() for e in tasks.edges), strict=True)
            if vertex[u] != vertex[v]
        }
        used = sorted(set(place.tolist()) - {POOL})
        order = [(a, b) for a, b in pairwise(used) if self.slots[a][:2] == self.slots[b][:2]]
        took = self._lengths(place)
        when = {s: 2 * times[1 + 2 * s] + float(took[s]) for s in used}
        for v in np.flatnonzero(of_task < 0).tolist():
            when[count + v] = 2 * times[1 + 2 * count + v]
        done, waiting = in_order(when, [*edges, *order])
        if waiting:
            items = {i for e in edges if set(e) <= waiting for i in edges[e]}
            self.cuts.append(tuple((i, int(place[i])) for i in sorted(items)))
            return None
        block = np.full(tasks.n, POOL, dtype=np.int64)
        blocks = [s for s in done if s < count]
        for b, s in enumerate(blocks):
            block[of_task == s] = b
        return Invocations(np.array([self.slots[s].device for s in blocks], dtype=np.int64), block)

    def known(self, solution: Invocations) -> Known | None:
        """A split as the model numbers it; None if the model has no such split."""
        tasks, split = self.problem.tasks, solution
        home = split.block[[int(own[0]) for own in self.members]]
        if any((split.block[own] != b).any() for own, b in zip(self.members, home, strict=True)):
            return None
        names = self.renamed(split.device[home[home >= 0]].tolist()).tolist()
        slot_of = {(s.device, s.late, s.number): i for i, s in enumerate(self.slots)}
        taken: dict[tuple[int, bool], int] = {}
        slots = {}
        for b, device in enumerate(split.device.tolist()):
            key = names[device], bool(tasks.backward[split.block == b][0])
            slots[b] = slot_of[(*key, taken.get(key, 0))]
            taken[key] = taken.get(key, 0) + 1
        times: BlockTimes = time_invocations(tasks, self.problem.machine, split)
        start, end = np.full(len(self.slots), np.nan), np.full(len(self.slots), np.nan)
        for b, s in slots.items():
            start[s], end[s] = times.start_s[b], times.end_s[b]
        for s, slot in enumerate(self.slots):
            if np.isnan(start[s]):
                start[s] = end[s] = end[s - 1] if slot.number else 0.0
        place = np.array([slots[b] if b >= 0 else POOL for b in home.tolist()], dtype=np.int64)
        return Known(place, start, end, times.ready_s, self._done(place), times.value)

    def _done(self, place: Ints) -> Floats:
        """Ends of longest paths, for a slot of each item; f64[n]."""
        tasks = self.problem.tasks
        device = [self.slots[s].device if s != POOL else POOL for s in place.tolist()]
        before: list[list[tuple[int, Floats]]] = [[] for _ in range(tasks.n)]
        for u, v, cost in self.edges:
            before[v].append((u, cost))
        done = np.zeros(tasks.n)
        for v in tasks.order.tolist():
            j = self.label[v]
            ready = 0.0
            for u, cost in before[v]:
                i = self.label[u]
                apart = [device[k] for k in (i, j) if place[i] != place[j] and device[k] != POOL]
                ready = max(ready, done[u] + sum(float(cost[d]) for d in apart))
            took = self.pool[v] if device[j] == POOL else tasks.time[device[j], v]
            done[v] = ready + took
        return done

    def _lengths(self, place: Ints) -> Floats:
        """Time of each slot, for a slot (or `POOL`) of each item; f64[slots]."""
        took = np.zeros(len(self.slots))
        device = [slot.device for slot in self.slots]
        for i, s in enumerate(place.tolist()):
            if s != POOL:
                took[s] += self.time[device[s], i]
        for net in self.nets:
            home = int(place[net.maker]) if net.maker >= 0 else POOL
            there = {int(place[v]) for v in net.readers}
            for s in there - {home, POOL}:
                took[s] += net.cost[device[s]]
            if home != POOL and (net.leaves or there - {home}):
                took[home] += net.cost[device[home]]
        return took


def items_of_tasks(tasks: Tasks) -> Ints:
    """Item of each task; i64[n].

    Unlike in `dnnp.core.latency.blocks.items`, edges between the passes do not count: the times of
    the model exclude blocks that wait for each other.
    """
    label = np.unique(2 * tasks.together + tasks.backward, return_inverse=True)[1]
    tail, head = tasks.edges
    same = tasks.backward[tail] == tasks.backward[head]
    item = components(label, tail[same], head[same])
    return by_first(item[tasks.order])[item]


def _nets(problem: LatencyProblem, label: Ints) -> list[ItemFlow]:
    tasks, machine = problem.tasks, problem.machine
    cost = np.array([host_times(tasks, machine, d) for d in range(machine.count)])
    found: dict[tuple[int, tuple[int, ...], bool], list[int]] = {}
    for f, maker in enumerate(tasks.maker.tolist()):
        item = int(label[maker]) if maker >= 0 else -1
        readers = set(label[tasks.use_idx[tasks.use_ptr[f] : tasks.use_ptr[f + 1]]].tolist())
        key = item, tuple(sorted(readers - {item})), bool(tasks.leaves[f])
        if key[1] or key[2]:
            found.setdefault(key, []).append(f)
    return [
        ItemFlow(
            maker,
            readers,
            leaves,
            tuple(sorted(set(tasks.maker[flows].tolist()) - {-1})),
            cost[:, flows].sum(axis=1),
        )
        for (maker, readers, leaves), flows in sorted(found.items())
    ]


def _tied(tasks: Tasks, label: Ints) -> list[tuple[int, int]]:
    """Pairs of items of one colour, enough of them."""
    last: dict[int, int] = {}
    pairs = set()
    for v in tasks.order.tolist():
        color, item = int(tasks.together[v]), int(label[v])
        if last.setdefault(color, item) != item:
            pairs.add((min(last[color], item), max(last[color], item)))
    return sorted(pairs)


class _Builder:
    """Builds a model; times are the latency, start and end of each slot, and each task's end."""

    def __init__(self, formulation: BlockProgram, upper: float) -> None:
        self.f = formulation
        self.problem = formulation.problem
        self.windows = formulation.windows
        self.model = model = Model(upper)
        count = len(self.f.slots)
        self.top = model.time(lambda at: at.value, self.windows.least)
        self.start, self.end = [], []
        for s in range(count):
            self.start.append(model.time(_picks("start", s)))
            self.end.append(model.time(_picks("end", s)))
        least = self.windows.end.min(axis=1, initial=np.inf).tolist()
        self.ready = [model.time(_picks("ready", v), low) for v, low in enumerate(least)]
        self.done = [model.time(_picks("done", v), low) for v, low in enumerate(least)]
        self._place(upper)
        self._share()
        self._run()
        self._order()
        self._paths()
        self._between()
        self._break_symmetry()
        for cut in formulation.cuts:
            terms = [(model.places[i][s + 1], 1.0) for i, s in cut]
            model.row(terms, "<", len(cut) - 1)

    def x(self, i: int, s: int) -> int:
        """Flag of an item in a slot, or in the pool."""
        return self.model.places[i][s + 1]

    def _place(self, upper: float) -> None:
        """Every item in one place (1), as far as the device supports it and windows allow."""
        f, model = self.f, self.model
        capacity = self.problem.machine.capacity
        out = self.windows.hopeless(upper)
        column = {d: c for c, d in enumerate(self.f.devices)}
        for i, own in enumerate(f.members):
            row = []
            for s, slot in [(POOL, None), *enumerate(f.slots)]:
                if slot is None:
                    never = bool(out[own, -1].any())
                else:
                    never = bool(
                        slot.late != f.late[i]
                        or out[own, column[slot.device]].any()
                        or f.memory[i] > capacity[slot.device] * (1 + MARGIN)
                    )
                row.append(NEVER if never else model.flag(_is_at([i], [s]), whole=True))
            model.places.append(row)
            model.row([(c, 1.0) for c in row], "=", 1.0)

    def _share(self) -> None:
        """Memory (3*), and tasks that share a device (Section 4.1, end)."""
        f, model = self.f, self.model
        for d in self.f.devices:
            mine = [s for s, slot in enumerate(f.slots) if slot.device == d]
            there = [[self.x(i, s) for s in mine] for i in range(len(f.members))]
            f.room(model, d, there, partial(_is_at, slots=mine))
            for i, j in f.tied:
                model.row(
                    [*((self.x(i, s), 1.0) for s in mine), *((self.x(j, s), -1.0) for s in mine)],
                    "=",
                    0.0,
                )
        for i, j in f.tied:
            model.row([(self.x(i, POOL), 1.0), (self.x(j, POOL), -1.0)], "=", 0.0)

    def _run(self) -> None:
        """Slots wait for what they read (4, 6), move and compute (5, 7); tasks end (8, 9, 10)."""
        f, model, tasks = self.f, self.model, self.problem.tasks
        makes = np.diff(tasks.out_ptr) > 0
        for s, slot in enumerate(f.slots):
            terms = [
                (self.x(i, s), float(f.time[slot.device, i]))
                for i in range(len(f.members))
                if self.x(i, s) != NEVER
            ]
            for net in f.nets:
                cost = float(net.cost[slot.device])
                enters = self._enters(net, s)
                for v in net.makers:
                    model.after(self.start[s], self.ready[v], given=[enters])
                leaves = self._leaves(net, s) if cost else NEVER
                terms += [(enters, cost), (leaves, cost)]
            model.after(self.end[s], self.start[s], terms)
            model.after(self.top, self.end[s])
            for i, own in enumerate(f.members):
                for v in own[makes[own]].tolist():
                    model.after(self.ready[v], self.end[s], given=[self.x(i, s)])
        for v in range(tasks.n):
            took = [(self.x(int(f.label[v]), POOL), _finite(self.f.pool[v]))]
            model.after(self.ready[v], ORIGIN, took)
            rest = _finite(self.windows.rest[v, -1])
            model.after(self.top, self.ready[v], [(took[0][0], rest)])
            reads = tasks.in_idx[tasks.in_ptr[v] : tasks.in_ptr[v + 1]]
            for u in distinct(tasks.maker[reads]).tolist():
                if u >= 0:
                    model.after(self.ready[v], self.ready[u], took)

    def _enters(self, net: ItemFlow, s: int) -> int:
        """CommIn: whether a net enters a slot."""
        mine = [self.x(v, s) for v in net.readers if self.x(v, s) != NEVER]
        own = self.x(net.maker, s) if net.maker >= 0 else NEVER
        if not mine or (own == NEVER and len(mine) == 1):
            return mine[0] if mine else NEVER

        def rule(at: Known) -> float:
            inside = net.maker >= 0 and at.place[net.maker] == s
            return float(not inside and any(at.place[v] == s for v in net.readers))

        flag = self.model.flag(rule)
        for c in mine:
            self.model.row([(flag, 1.0), (c, -1.0), (own, 1.0)], ">", 0.0)
        return flag

    def _leaves(self, net: ItemFlow, s: int) -> int:
        """CommOut: whether a net leaves a slot."""
        own = self.x(net.maker, s) if net.maker >= 0 else NEVER
        if own == NEVER or net.leaves or any(self.x(v, s) == NEVER for v in net.readers):
            return own

        def rule(at: Known) -> float:
            return float(at.place[net.maker] == s and any(at.place[v] != s for v in net.readers))

        flag = self.model.flag(rule)
        for v in net.readers:
            self.model.row([(flag, 1.0), (own, -1.0), (self.x(v, s), 1.0)], ">", 0.0)
        return flag

    def _order(self) -> None:
        """The slots of a device run one after the other (14), used from the first on."""
        f, model = self.f, self.model
        items = range(len(f.members))
        for s, slot in enumerate(f.slots):
            if slot.number:
                model.after(self.start[s], self.end[s - 1])
                used = model.flag(_is_at(items, [s - 1]))
                before = [(self.x(i, s - 1), -1.0) for i in items]
                model.row([(used, 1.0), *before], "<", 0.0)
                for i in items:
                    if self.x(i, s) != NEVER:
                        model.row([(self.x(i, s), 1.0), (used, -1.0)], "<", 0.0)
        for a, first in enumerate(f.slots):
            for b, second in enumerate(f.slots):
                if first.device == second.device and not first.late and second.late:
                    ahead, behind = self._either(a, b)
                    model.after(self.start[b], self.end[a], given=[ahead])
                    model.after(self.start[a], self.end[b], given=[behind])

    def _either(self, a: int, b: int) -> tuple[int, int]:
        """Two flags: slot `a` runs before slot `b`, or after it."""

        def first(at: Known) -> bool:
            # They do not overlap, but for rounding.
            return bool(at.start[a] + at.end[a] <= at.start[b] + at.end[b])

        ahead = self.model.flag(first, whole=True)
        behind = self.model.flag(lambda at: not first(at))
        self.model.row([(ahead, 1.0), (behind, 1.0)], "=", 1.0)
        return ahead, behind

    def _paths(self) -> None:
        """A task is computed after its predecessors and the transfers between them."""
        f, model, windows = self.f, self.model, self.windows
        tasks = self.problem.tasks
        flags: dict[tuple[int, int], tuple[int, int]] = {}
        took, left = [], []
        for v in range(tasks.n):
            row = model.places[int(f.label[v])]
            column = [-1, *(self.f.devices.index(slot.device) for slot in f.slots)]
            there = [(c, k) for c, k in zip(row, column, strict=True) if c != NEVER]
            took.append([(c, float(windows.time[v, k])) for c, k in there])
            left.append([(c, float(windows.rest[v, k])) for c, k in there])
            model.after(self.done[v], ORIGIN, took[v])
            model.after(self.ready[v], self.done[v])
            model.after(self.top, self.done[v], left[v])
        for u, v, cost in self.f.edges:
            i, j = pair = int(f.label[u]), int(f.label[v])
            moves: list[tuple[int, float]] = []
            if i != j:
                least = float(cost[self.f.devices].min(initial=np.inf))
                if pair not in flags:
                    flags[pair] = self._crosses(i, j), self._crosses(j, i)
                moves = [(flag, _finite(least)) for flag in flags[pair]]
            model.after(self.done[v], self.done[u], [*took[v], *moves])

    def _crosses(self, i: int, j: int) -> int:
        """Flag that is 1 where item `i` is in a slot and item `j` is not in it."""
        flag = self.model.flag(lambda at: float(at.place[i] != POOL and at.place[i] != at.place[j]))
        for s in range(len(self.f.slots)):
            if self.x(i, s) != NEVER:
                self.model.row([(flag, 1.0), (self.x(i, s), -1.0), (self.x(j, s), 1.0)], ">", 0.0)
        return flag

    def _between(self) -> None:
        """Contiguity (2, 11 to 13), and the time of a single edge between two places."""
        f, model = self.f, self.model
        rest, ready = self._edge_times()
        tail, head = (
            (np.array(e, dtype=np.int64) for e in zip(*rest, strict=True))
            if rest
            else (np.zeros((2, 0), dtype=np.int64))
        )
        same = f.late[tail] == f.late[head]
        kept = without_shortcuts(len(f.members), tail[same], head[same])
        inner = list(zip(*(e.tolist() for e in kept), strict=True))
        reaches = descendants(inner, len(f.members))
        makes = np.diff(self.problem.tasks.out_ptr) > 0
        steps = [
            edge for edge in self.f.edges if makes[edge[1]] and f.label[edge[0]] != f.label[edge[1]]
        ]
        for s in range(len(f.slots)):
            device = f.slots[s].device
            for (u, v), left in rest.items():
                crosses = [(self.x(u, s), left), (self.x(v, s), -left)]
                if self.x(u, s) != NEVER:
                    model.after(self.top, self.end[s], crosses)
                if self.x(v, s) != NEVER:
                    early = ready[u, v]
                    comes = [(self.x(v, s), early), (self.x(u, s), -early)]
                    model.after(self.start[s], ORIGIN, comes)
            for u, w, cost in steps:
                i, j = int(f.label[u]), int(f.label[w])
                if self.x(j, s) != NEVER:
                    step = float(f.time[device, j]) + float(cost[device])
                    comes = [(self.x(j, s), step), (self.x(i, s), -step)]
                    model.after(self.ready[w], self.ready[u], comes)
            self._contiguous(s, inner, reaches)

    def _contiguous(self, s: int, inner: list[tuple[int, int]], reaches: list[int]) -> None:
        """z[v]: some item of the slot can be reached from v."""
        f, model = self.f, self.model
        z = {}
        for v in range(len(f.members)):
            if f.late[v] != f.slots[s].late:
                continue

            def rule(at: Known, v: int = v) -> float:
                return float(
                    at.place[v] == s
                    or any(reaches[v] >> w & 1 for w in np.flatnonzero(at.place == s).tolist())
                )

            z[v] = model.flag(rule)
            model.row([(z[v], 1.0), (self.x(v, s), -1.0)], ">", 0.0)
        for u, v in inner:
            if u in z:
                model.row([(z[v], 1.0), (z[u], -1.0)], "<", 0.0)
                model.row([(z[v], 1.0), (self.x(v, s), -1.0), (self.x(u, s), 1.0)], "<", 1.0)

    def _edge_times(self) -> tuple[dict[tuple[int, int], float], dict[tuple[int, int], float]]:
        """Edges between different items: least time from the end of the first to the end of all,
        and earliest arrival of the flows."""
        f, windows, tasks = self.f, self.windows, self.problem.tasks
        host = np.zeros((len(self.f.devices) + 1, tasks.flows))
        for c, d in enumerate(self.f.devices):
            host[c] = host_times(tasks, self.problem.machine, d)
        rest: dict[tuple[int, int], float] = {}
        ready: dict[tuple[int, int], float] = {}
        for (u, v), flows in carried(tasks).items():
            key = int(f.label[u]), int(f.label[v])
            if key[0] == key[1]:
                continue
            cost = host[:, flows].sum(axis=1)
            left = (cost + windows.time[v] + windows.rest[v]).min()
            early = (windows.end[u] + cost).min()
            rest[key] = max(rest.get(key, 0.0), _finite(left))
            ready[key] = max(ready.get(key, 0.0), _finite(early))
        return rest, ready

    def _break_symmetry(self) -> None:
        """Symmetry breaking: of identical devices the first one has the first item."""
        items = range(len(self.f.members))
        for d in self.f.devices:
            e = int(self.f.before[d])
            if e < 0:
                continue
            mine, theirs = (
                [s for s, slot in enumerate(self.f.slots) if slot.device == k] for k in (d, e)
            )
            self.model.break_symmetry(
                [[self.x(i, s) for s in mine] for i in items],
                [[self.x(i, s) for s in theirs] for i in items],
                lambda count, theirs=theirs: _is_at(range(count), theirs),  # type: ignore[misc]
            )


def _picks(field: str, i: int) -> Rule:
    """One of the times of a known split."""
    return lambda at: float(getattr(at, field)[i])


def _is_at(items: Sequence[int], slots: Sequence[int]) -> Rule:
    """1 if some of these items are in one of these slots."""
    return lambda at: float(np.isin(at.place[list(items)], slots).any())


def _finite(seconds: float) -> float:
    """The time if finite, else 0: the flag of an infinite time is never 1."""
    return float(seconds) if np.isfinite(seconds) else 0.0
