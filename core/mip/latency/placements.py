"""Placements of operators in terms of a scheduling model: devices, times and moves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dnnp.core.cost.latency import LatencyProblem
from dnnp.core.cost.timeline import TASK, Placement, Timeline, simulate
from dnnp.core.mip.latency.formulation import Formulation
from dnnp.core.mip.latency.model import Model
from dnnp.core.mip.latency.order import in_order
from dnnp.core.mip.latency.windows import flow_times, operator_windows
from dnnp.core.model.graph import Ints


class Move(NamedTuple):
    """A flow on its way to one of some devices."""

    flow: int
    maker: int
    readers: tuple[int, ...]
    to: tuple[int, ...]
    """One device; all of them if there is one reader."""
    start: int
    end: int
    """Times of the model."""


def moves_of(problem: LatencyProblem) -> list[Move]:
    """Moves that there may be; their times come after those of the tasks."""
    tasks, count = problem.tasks, problem.machine.count
    moves: list[Move] = []
    for f, maker in enumerate(tasks.maker.tolist()):
        readers = tuple(tasks.use_idx[tasks.use_ptr[f] : tasks.use_ptr[f + 1]].tolist())
        everywhere = tuple(range(count))
        for to in [everywhere] if len(readers) == 1 else [(k,) for k in everywhere]:
            at = 1 + 2 * (tasks.n + len(moves))
            moves.append(Move(f, maker, readers, to, at, at + 1))
    return moves


class KnownPlacement(NamedTuple):
    """A placement in terms of the model."""

    device: Ints
    times: Timeline
    moves: dict[tuple[int, int], tuple[float, float]]
    """(Flow, receiver) -> start and end."""

    def move(self, move: Move) -> tuple[float, float]:
        """Start and end of a move; where there is none, it takes no time after its maker."""
        for to in move.to:
            if (move.flow, to) in self.moves:
                return self.moves[move.flow, to]
        made = float(self.times.end_s[move.maker])
        return made, made


class PlacementFormulation(Formulation[Placement]):
    """That of `operators`; `PlacementProgram` (`placement_model`) makes the model."""

    def __init__(self, problem: LatencyProblem) -> None:
        super().__init__(problem, operator_windows(problem))

    def known(self, solution: Placement) -> KnownPlacement:
        """A placement as the model numbers its devices."""
        tasks, machine = self.problem.tasks, self.problem.machine
        names = self.renamed(solution.device[tasks.order].tolist())
        events = solution.events.copy()
        moved = events[:, 0] != TASK
        events[moved, 1] = names[events[moved, 1]]
        device = names[solution.device]
        congestion = self.problem.options.congestion
        times = simulate(tasks, machine, Placement(device, events), congestion)
        spans = zip(times.move_start_s.tolist(), times.move_end_s.tolist(), strict=True)
        moves = {
            (f, to): span for (f, _, to), span in zip(times.moves.tolist(), spans, strict=True)
        }
        return KnownPlacement(device, times, moves)

    def solution(self, model: Model, times: Sequence[float], flags: Sequence[float]) -> Placement:
        """The placement that values of the model stand for, with its events by their start."""
        tasks = self.problem.tasks
        device = np.array(model.placed(flags), dtype=np.int64)
        moves = moves_of(self.problem)
        # Ends of the model may be late.
        took = tasks.time[device, np.arange(tasks.n)].tolist()
        when = {v: 2 * times[1 + 2 * v] + took[v] for v in range(tasks.n)}
        events = [(TASK, v) for v in range(tasks.n)]
        edges = []
        for maker, reader in zip(*(e.tolist() for e in tasks.edges), strict=True):
            if device[maker] == device[reader]:
                edges.append((maker, reader))
        for move in moves:
            there = {int(device[v]) for v in move.readers} - {int(device[move.maker])}
            for to in sorted(there & set(move.to)):
                e = len(events)
                events.append((move.flow, to))
                lasts = flow_times(tasks, self.problem.machine, move.flow)[device[move.maker], to]
                when[e] = 2 * times[move.start] + float(lasts)
                edges.append((move.maker, e))
                edges += [(e, v) for v in move.readers if device[v] == to]
        order = in_order(when, edges)[0]
        chosen = np.array([events[e] for e in order], dtype=np.int64).reshape(-1, 2)
        return Placement(device, chosen)
