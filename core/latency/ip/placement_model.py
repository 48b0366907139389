"""The constraints of Moirai's integer program (Section III.D, Eq. 4 to 8; its numbers in brackets).

A *move* is a flow on its way: with one reader to wherever this is (Moirai's data flow q, with
u[q, k', k''] the channel), else once to each device that has readers of it.

What is different from the paper makes the relaxation tighter and changes no solution: the flags u
are the transport of the maker's device to the reader's; every conditional constraint has a
constant of its own (M^s, M^l and M^r are one number each in the paper); `delta` is shared by all
devices on which two tasks, or two moves, can meet.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from dnnp.core.cost.latency import TASK, LatencyProblem, Placement, Timeline, simulate
from dnnp.core.cost.load_formula import MARGIN
from dnnp.core.latency.ip.formulation import (
    Formulation,
    descendants,
    flow_times,
    in_order,
    operator_windows,
)
from dnnp.core.model.graph import Bools, Floats, Ints, place_of
from dnnp.core.solver.scheduling_model import NEVER, ORIGIN, Model, Rule, Turn


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


class PlacementProgram(Formulation[Placement]):
    """The formulation of `operators`."""

    def __init__(self, problem: LatencyProblem) -> None:
        super().__init__(problem, operator_windows(problem))

    def model(self, upper: float) -> Model:
        """The model of all placements with a latency of at most `upper`."""
        return _Builder(self, upper).model

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
        """Placement by values of the model, its events by start."""
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


Channels = dict[tuple[int, int], tuple[int, float]]
"""Flag and seconds from one device to one other."""


class _Builder:
    """Builds a model; times are the latency, start and end of every task, then of every move."""

    def __init__(self, formulation: PlacementProgram, upper: float) -> None:
        self.f, self.problem = formulation, formulation.problem
        self.windows = formulation.windows
        self.tasks, self.machine = self.problem.tasks, self.problem.machine
        self.devices = range(self.machine.count)
        self.model = model = Model(upper)
        self.out: Bools = self.windows.hopeless(upper)
        self.top = model.time(lambda at: at.times.value, self.windows.least)
        self.start, self.end = [], []
        time, end, rest = (np.where(self.out, np.inf, x) for x in self.windows)
        for v in range(self.tasks.n):
            latest = upper - float(rest[v].min())
            can = ~self.out[v]
            begin = float((end[v][can] - time[v][can]).min(initial=np.inf))
            finish = float(end[v].min())
            last = latest - float(time[v].min())
            self.start.append(model.time(_picks("start_s", v), begin, last))
            self.end.append(model.time(_picks("end_s", v), finish, latest))
        if not model.hopeless:
            self._place()
            self._run()
            self._move()
            self._break_symmetry()

    def x(self, v: int, d: int) -> int:
        """Flag of a task on a device."""
        return self.model.places[v][d]

    def _place(self) -> None:
        """Every task on one device (4c), memory (5), colours, and load of devices."""
        model, tasks = self.model, self.tasks
        for v in range(tasks.n):
            row = []
            for d in self.devices:
                never = self.out[v, d] or tasks.memory[v] > self.machine.capacity[d] * (1 + MARGIN)
                row.append(NEVER if never else model.flag(_is_on({v: d}), whole=True))
            model.places.append(row)
            model.row([(c, 1.0) for c in row], "=", 1.0)
        first: dict[int, int] = {}
        for v in tasks.order.tolist():
            u = first.setdefault(int(tasks.together[v]), v)
            if u != v:
                for d in self.devices:
                    model.row([(self.x(v, d), 1.0), (self.x(u, d), -1.0)], "=", 0.0)
        for d in self.devices:
            there = [[self.x(v, d)] for v in range(tasks.n)]
            self.f.room(model, d, there, partial(_is_any_on, device=d))

    def _run(self) -> None:
        """Tasks take their time (4b), one at a time on a device (6), within their windows."""
        model, windows = self.model, self.windows
        lanes: list[list[Turn]] = [[] for _ in self.devices]
        for v in range(self.tasks.n):
            there = [(d, self.x(v, d)) for d in self.devices if self.x(v, d) != NEVER]
            took = [(c, float(windows.time[v, d])) for d, c in there]
            heads = [(c, float(windows.end[v, d] - windows.time[v, d])) for d, c in there]
            model.after(self.end[v], self.start[v], took)
            model.after(self.start[v], ORIGIN, heads)
            model.after(self.top, self.end[v], [(c, float(windows.rest[v, d])) for d, c in there])
            span = model.span(self.start[v], self.end[v])
            for d, c in there:
                lanes[d].append(Turn(span, c, float(windows.time[v, d])))
        model.lanes += lanes
        for lane in lanes:
            model.after(self.top, ORIGIN, [(turn.flag, turn.seconds) for turn in lane])

    def _move(self) -> None:
        """Flows move where they are read (7), after they are made (4a), and congestion (8)."""
        model = self.model
        moves, tasks = moves_of(self.problem), self.tasks
        rank = place_of(tasks.order)
        edges = sorted(
            zip(*(e.tolist() for e in tasks.edges), strict=True), key=lambda e: -rank[e[0]]
        )
        reach = descendants(edges, tasks.n)
        model.ordered = partial(_ordered, moves, reach)
        for move in moves:
            for end in (0, 1):
                model.time(_moves_at(move, end), model.low[self.end[move.maker]])
        channels = [self._channels(move) for move in moves]
        of_flow: dict[int, list[int]] = {}
        for i, move in enumerate(moves):
            of_flow.setdefault(move.flow, []).append(i)
        for f in range(self.tasks.flows):
            if len(of_flow.get(f, ())) > 1:
                self._steps(moves, channels, of_flow[f])
        lanes: dict[tuple[str, int, int], list[Turn]] = {}
        for move, used in zip(moves, channels, strict=True):
            span = model.span(move.start, move.end)
            for (a, b), (flag, seconds) in used.items():
                turn = Turn(span, flag, seconds)
                if self.problem.options.congestion == "channel":
                    lanes.setdefault(("link", a, b), []).append(turn)
                elif self.problem.options.congestion == "device":
                    lanes.setdefault(("sends", a, 0), []).append(turn)
                    lanes.setdefault(("receives", b, 0), []).append(turn)
        model.lanes += lanes.values()
        for turns in lanes.values():
            model.after(self.top, ORIGIN, [(turn.flag, turn.seconds) for turn in turns])

    def _channels(self, move: Move) -> Channels:
        """Times of a move, and its channels."""
        model = self.model
        length = flow_times(self.tasks, self.machine, move.flow)
        if len(move.to) > 1:
            used = self._transport(move.maker, move.readers[0], length)
        else:
            used = {}
            to = move.to[0]
            for a in self.devices:
                own = self.x(move.maker, a)
                if a != to and own != NEVER:
                    flag = model.flag(_moves_from(move, a))
                    model.row([(flag, 1.0), (own, -1.0)], "<", 0.0)
                    used[a, to] = flag, float(length[a, to])
            own = self.x(move.maker, to)
            for v in move.readers:
                terms = [(flag, 1.0) for flag, _ in used.values()]
                model.row([*terms, (own, 1.0), (self.x(v, to), -1.0)], ">", 0.0)
        model.after(move.start, self.end[move.maker])
        model.after(move.end, move.start, used.values())
        for v in move.readers:
            given = [self.x(v, move.to[0])] if len(move.to) == 1 else []
            model.after(self.start[v], move.end, given=given)
        return used

    def _transport(self, u: int, v: int, length: Floats) -> Channels:
        """Flags of the pairs of devices that two tasks may be on; those that differ."""
        model = self.model
        flags: dict[tuple[int, int], int] = {}
        for a in self.devices:
            for b in self.devices:
                if self.x(u, a) != NEVER and self.x(v, b) != NEVER:
                    flags[a, b] = model.flag(_is_on({u: a, v: b}))
        for d in self.devices:
            out = [(c, 1.0) for (a, _), c in flags.items() if a == d]
            come = [(c, 1.0) for (_, b), c in flags.items() if b == d]
            if out or self.x(u, d) != NEVER:
                model.row([*out, (self.x(u, d), -1.0)], "=", 0.0)
            if come or self.x(v, d) != NEVER:
                model.row([*come, (self.x(v, d), -1.0)], "=", 0.0)
        return {(a, b): (c, float(length[a, b])) for (a, b), c in flags.items() if a != b}

    def _steps(
        self,
        moves: list[Move],
        channels: list[Channels],
        mine: list[int],
    ) -> None:
        """A reader of a flow with several waits for the transfer to it, wherever it is."""
        maker, length = moves[mine[0]].maker, {}
        times = flow_times(self.tasks, self.machine, moves[mine[0]].flow)
        for i in mine:
            length.update(channels[i])
        for v in moves[mine[0]].readers:
            used = self._transport(maker, v, times)
            self.model.after(self.start[v], self.end[maker], used.values())
            for key, (flag, _) in used.items():
                self.model.row([(length[key][0], 1.0), (flag, -1.0)], ">", 0.0)

    def _break_symmetry(self) -> None:
        """Symmetry breaking: of identical devices the first one has the first task."""
        order = self.tasks.order.tolist()
        for d in self.devices:
            e = int(self.f.before[d])
            if e >= 0:
                self.model.break_symmetry(
                    [[self.x(v, d)] for v in order],
                    [[self.x(v, e)] for v in order],
                    lambda count, e=e: _is_any_on(order[:count], e),  # type: ignore[misc]
                )


def _ordered(moves: list[Move], reach: list[int], first: int, second: int) -> bool:
    """True if one span comes before another: tasks along a path, and moves at both its ends.

    The spans are those of the tasks, then those of the moves. A move to one device exists only with
    a reader there, and the path may start at another reader, so that all have to be before the
    other.
    """
    n = len(reach)
    if first < n and second < n:
        return bool(reach[first] >> second & 1)
    if first < n or second < n:
        return False
    maker = moves[second - n].maker
    return all(v == maker or reach[v] >> maker & 1 for v in moves[first - n].readers)


def _picks(field: str, v: int) -> Rule:
    """Start or end of a task."""
    return lambda at: float(getattr(at.times, field)[v])


def _moves_at(move: Move, end: int) -> Rule:
    """Start or end of a move."""
    return lambda at: float(at.move(move)[end])


def _moves_from(move: Move, device: int) -> Rule:
    """1 if a move to one device comes from another."""
    return lambda at: float(at.device[move.maker] == device and (move.flow, move.to[0]) in at.moves)


def _is_on(homes: dict[int, int]) -> Rule:
    """1 if tasks are on these devices."""
    return lambda at: float(all(at.device[v] == d for v, d in homes.items()))


def _is_any_on(tasks: list[int], device: int) -> Rule:
    """1 if some of these tasks are on a device."""
    return lambda at: float((at.device[tasks] == device).any())
