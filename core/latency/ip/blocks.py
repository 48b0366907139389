"""The latency of blocks: what a model of it is built from, and splits in terms of the model.

Items of a split into blocks, the slots they may go to, and what moves between them. Tasks of one
colour and pass share a device, and what lies on a path between two of them comes along: an item
lies in one block, or runs on the pool, task by task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
from dnnp.core.latency.ip.formulation import Formulation, in_order
from dnnp.core.latency.ip.windows import block_windows, carried
from dnnp.core.model.graph import Bools, Floats, Ints
from dnnp.core.solver.scheduling_model import Model

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


class BlockFormulation(Formulation[Invocations]):
    """That of `blocks`; `BlockProgram` (`block_model`) makes the model."""

    def __init__(self, problem: LatencyProblem) -> None:
        super().__init__(problem, block_windows(problem))
        self.game: BlockGame = game_of(problem)
        self.pool = pool_times(problem.tasks, problem.machine)
        self.devices = np.flatnonzero(~problem.machine.is_cpu).tolist()
        tasks, rate = problem.tasks, problem.machine.host_rate
        self.edges = [
            (u, v, tasks.size[flows].sum() * rate + tasks.fixed[flows].sum())
            for (u, v), flows in sorted(carried(tasks).items())
        ]
        """Pairs of tasks, and the time of what goes from one to the other; f64[D]."""
        self.cuts: list[Cut] = []

    def solution(
        self, model: Model, times: Sequence[float], flags: Sequence[float]
    ) -> Invocations | None:
        """The split that values of the model stand for; None if its blocks wait for each other.

        Only blocks that take no time can do so; `cuts` says from then on that they must not.
        """
        game, tasks = self.game, self.problem.tasks
        place = np.array(model.placed(flags), dtype=np.int64) - 1
        count = len(game.slots)
        of_task = place[game.label]
        vertex = np.where(of_task >= 0, of_task, count + np.arange(tasks.n))
        edges = {
            (int(vertex[u]), int(vertex[v])): (int(game.label[u]), int(game.label[v]))
            for u, v in zip(*(e.tolist() for e in tasks.edges), strict=True)
            if vertex[u] != vertex[v]
        }
        used = sorted(set(place.tolist()) - {POOL})
        order = [(a, b) for a, b in pairwise(used) if game.slots[a][:2] == game.slots[b][:2]]
        took = _lengths(game, place)
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
        return Invocations(np.array([game.slots[s].device for s in blocks], dtype=np.int64), block)

    def known(self, solution: Invocations) -> Known | None:
        """A split as the model numbers it; None if the model has no such split."""
        game, tasks, split = self.game, self.problem.tasks, solution
        home = split.block[[int(own[0]) for own in game.members]]
        if any((split.block[own] != b).any() for own, b in zip(game.members, home, strict=True)):
            return None
        names = self.renamed(split.device[home[home >= 0]].tolist()).tolist()
        slot_of = {(s.device, s.late, s.number): i for i, s in enumerate(game.slots)}
        taken: dict[tuple[int, bool], int] = {}
        slots = {}
        for b, device in enumerate(split.device.tolist()):
            key = names[device], bool(tasks.backward[split.block == b][0])
            slots[b] = slot_of[(*key, taken.get(key, 0))]
            taken[key] = taken.get(key, 0) + 1
        times: BlockTimes = time_invocations(tasks, self.problem.machine, split)
        start, end = np.full(len(game.slots), np.nan), np.full(len(game.slots), np.nan)
        for b, s in slots.items():
            start[s], end[s] = times.start_s[b], times.end_s[b]
        for s, slot in enumerate(game.slots):
            if np.isnan(start[s]):
                start[s] = end[s] = end[s - 1] if slot.number else 0.0
        place = np.array([slots[b] if b >= 0 else POOL for b in home.tolist()], dtype=np.int64)
        return Known(place, start, end, times.ready_s, self._done(place), times.value)

    def _done(self, place: Ints) -> Floats:
        """Ends of longest paths, for a slot of each item; f64[n]."""
        tasks, game = self.problem.tasks, self.game
        device = [game.slots[s].device if s != POOL else POOL for s in place.tolist()]
        before: list[list[tuple[int, Floats]]] = [[] for _ in range(tasks.n)]
        for u, v, cost in self.edges:
            before[v].append((u, cost))
        done = np.zeros(tasks.n)
        for v in tasks.order.tolist():
            j = game.label[v]
            ready = 0.0
            for u, cost in before[v]:
                i = game.label[u]
                apart = [device[k] for k in (i, j) if place[i] != place[j] and device[k] != POOL]
                ready = max(ready, done[u] + sum(float(cost[d]) for d in apart))
            took = self.pool[v] if device[j] == POOL else tasks.time[device[j], v]
            done[v] = ready + took
        return done


def _lengths(game: BlockGame, place: Ints) -> Floats:
    """Time of each slot, for a slot (or `POOL`) of each item; f64[slots]."""
    took = np.zeros(len(game.slots))
    device = [slot.device for slot in game.slots]
    for i, s in enumerate(place.tolist()):
        if s != POOL:
            took[s] += game.time[device[s], i]
    for net in game.nets:
        home = int(place[net.maker]) if net.maker >= 0 else POOL
        there = {int(place[v]) for v in net.readers}
        for s in there - {home, POOL}:
            took[s] += net.cost[device[s]]
        if home != POOL and (net.leaves or there - {home}):
            took[home] += net.cost[device[home]]
    return took


class Slot(NamedTuple):
    """A block that a device may be invoked for."""

    device: int
    late: bool
    """Whether it is for the backward pass."""
    number: int
    """Among those of the same device and pass, in the order in which they run."""


@dataclass(frozen=True)
class Net:
    """What one item makes and the same others read."""

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


@dataclass(frozen=True, eq=False)
class BlockGame:
    """A problem of `blocks` in terms of `m` items."""

    problem: LatencyProblem
    label: Ints
    """i64[n], item of each task; numbered by their first task in the order."""
    members: list[Ints]
    """Tasks of each item."""
    late: Bools
    """bool[m]"""
    time: Floats
    """f64[D, m], compute time of each item in a block."""
    memory: Floats
    """f64[m]"""
    slots: list[Slot]
    nets: list[Net]
    tied: list[tuple[int, int]]
    """Pairs of items that share a device, or both run on the pool."""


def items_of_tasks(tasks: Tasks) -> Ints:
    """Item of each task; i64[n].

    Unlike in `dnnp.core.latency.blocks.items`, edges between the passes count for nothing: that
    no blocks wait for each other is seen by the times of the model.
    """
    label = np.unique(2 * tasks.together + tasks.backward, return_inverse=True)[1]
    tail, head = tasks.edges
    same = tasks.backward[tail] == tasks.backward[head]
    item = components(label, tail[same], head[same])
    return by_first(item[tasks.order])[item]


def game_of(problem: LatencyProblem) -> BlockGame:
    """Lay out a problem of `blocks`."""
    tasks, machine = problem.tasks, problem.machine
    label = items_of_tasks(tasks)
    count = int(label.max(initial=-1)) + 1
    members = [np.flatnonzero(label == i) for i in range(count)]
    late = np.array([tasks.backward[own[0]] for own in members], dtype=np.bool_)
    time = np.array([tasks.time[:, own].sum(axis=1) for own in members]).reshape(count, -1).T
    slots = [
        Slot(d, backward, j)
        for d in np.flatnonzero(~machine.is_cpu).tolist()
        for backward in (False, True)
        for j in range(min(problem.options.invocations, int((late == backward).sum())))
    ]
    return BlockGame(
        problem,
        label,
        members,
        late,
        time,
        np.array([tasks.memory[own].sum() for own in members]),
        slots,
        _nets(problem, label),
        _tied(tasks, label),
    )


def _nets(problem: LatencyProblem, label: Ints) -> list[Net]:
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
        Net(
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
