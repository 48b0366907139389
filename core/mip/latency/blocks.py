"""The latency of blocks: what a model of it is built from, and splits in terms of the model."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from dnnp.core.cost.invocations import (
    POOL,
    BlockTimes,
    Invocations,
    pool_times,
    time_invocations,
)
from dnnp.core.cost.latency import LatencyProblem
from dnnp.core.mip.latency.formulation import Formulation
from dnnp.core.mip.latency.items import BlockGame, game_of
from dnnp.core.mip.latency.model import Model
from dnnp.core.mip.latency.order import in_order
from dnnp.core.mip.latency.windows import block_windows, carried
from dnnp.core.model.graph import Floats, Ints

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
