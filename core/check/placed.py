"""Latency of `operators`: whether the times of a plan are possible (Moirai, Eq. 4 to 8).

Times are compared as they stand after the first start (`early`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from dnnp.core.check.case import PlanCase, check_span
from dnnp.core.check.devices import Mesh
from dnnp.core.check.load import Cost
from dnnp.core.check.violation import ROUNDING, TOLERANCE, Violation, early
from dnnp.core.model.plan import Transfer

Arrivals = dict[tuple[int, int, int], Transfer]
"""Tensor, unit that reads it (-1: any, where a tensor moves once), stage -> what brings it."""


@dataclass(frozen=True)
class _Times:
    """When units run and transfers happen, since the first of them starts."""

    first: float
    """That start as it is stated."""
    start: dict[int, float] = field(default_factory=dict)
    """Of each unit that is placed."""
    length: dict[int, float] = field(default_factory=dict)
    receives: list[list[Transfer]] = field(default_factory=list)
    """What each stage receives."""

    def end(self, unit: int) -> float:
        """When a unit is done."""
        return self.start[unit] + self.length[unit]


class _Wanted(NamedTuple):
    """What the units of each stage read."""

    read: set[tuple[int, int]]
    """Tensor, and a stage with a unit that reads it."""
    waiting: dict[tuple[int, int, frozenset[int]], list[int]]
    """Stage, maker and tensors -> units of the stage that read just these of it, the first to
    start last; those that a transfer was found for are taken out."""


def check_operators(case: PlanCase) -> tuple[list[Violation], float | None, list[Cost]]:
    """Check all times; see `check_latency`."""
    found = _once(case)
    for number, stage in enumerate(case.plan.stages):
        held = case.held(number)
        if stage.starts_s is None or len(stage.starts_s) != len(held):
            given = "none" if stage.starts_s is None else len(stage.starts_s)
            message = f"has {len(held)} units but states {given} starts"
            found.append(Violation("order", f"stage {number}", message, len(held)))
            return found, None, []
    times = _times(case)
    for number in range(len(case.plan.stages)):
        found += _together(case, number)
        found += _exclusive(case, number, times)
    value = max(map(times.end, times.start), default=0.0)
    wrong, arrivals = _transfers(case, times)
    found += wrong + _needs(case, times, arrivals) + _congestion(case, times)
    sent: dict[str, list[Transfer]] = {}
    for row in times.receives:
        for move in row:
            sent.setdefault(move.source, []).append(move)
    costs = []
    for number, stage in enumerate(case.plan.stages):
        held, coming = case.held(number), times.receives[number]
        going = sent.get(stage.device, [])
        compute = math.fsum(case.time(unit, stage.device_class) for unit in held)
        moved_in = math.fsum(m.end_s - m.start_s for m in coming)
        moved_out = math.fsum(m.end_s - m.start_s for m in going)
        costs.append(Cost(moved_in, compute, 0.0, moved_out, case.memory(number), compute, value))
        begin = min([times.start[u] for u in held] + [m.start_s for m in coming], default=0.0)
        done = max([times.end(u) for u in held] + [m.end_s for m in going], default=0.0)
        found += check_span(case, number, begin, done, value, times.first)
    return found, times.first + value, costs


def _times(case: PlanCase) -> _Times:
    """All times that a plan states, less the first one."""
    stages = case.plan.stages
    stated = [t for stage in stages for t in stage.starts_s or ()]
    stated += [move.start_s for stage in stages for move in stage.receives or ()]
    times = _Times(min(stated, default=0.0))
    for number, stage in enumerate(stages):
        for unit, begin in zip(case.held(number), stage.starts_s or (), strict=True):
            times.start[unit] = begin - times.first
            times.length[unit] = case.time(unit, stage.device_class)
        times.receives.append(
            [
                move._replace(start_s=move.start_s - times.first, end_s=move.end_s - times.first)
                for move in stage.receives or ()
            ]
        )
    return times


def _once(case: PlanCase) -> list[Violation]:
    """One stage a device."""
    seen: dict[str, int] = {}
    found = []
    for number, stage in enumerate(case.plan.stages):
        if stage.device in seen:
            message = f"device {stage.device} is already used by stage {seen[stage.device]}"
            found.append(Violation("device", f"stage {number}", message))
        seen.setdefault(stage.device, number)
    return found


def _together(case: PlanCase, number: int) -> list[Violation]:
    """The nodes of a unit stand side by side."""
    labels = [case.units.of_node[v] for v in case.blocks[number]]
    changes = 1 + sum(a != b for a, b in pairwise(labels))
    if not labels or changes == len(set(labels)):
        return []
    return [Violation("order", f"stage {number}", "the nodes of a group do not stand together")]


def _exclusive(case: PlanCase, number: int, times: _Times) -> list[Violation]:
    """A device runs one unit at a time, in the order stated."""
    found = []
    for one, other in pairwise(case.held(number)):
        if early(times.start[other], times.end(one), times.length[one]):
            start, end = times.first + times.start[other], times.first + times.end(one)
            message = f"{case.units.what} {case.units.ids[other]} starts at {start!r}, "
            message += f"before {case.units.ids[one]} ends at {end!r}"
            found.append(Violation("order", f"stage {number}", message, end, start))
    return found


def _transfers(case: PlanCase, times: _Times) -> tuple[list[Violation], Arrivals]:
    """Every transfer starts when its tensors are made and takes what its link takes."""
    mesh, tables, wanted = Mesh(case.plan), case.tables, _wanted_of(case, times)
    place = {tensor: t for t, tensor in enumerate(case.tensor_ids)}
    found: list[Violation] = []
    arrivals: Arrivals = {}
    for number, moves in enumerate(times.receives):
        subject = f"stage {number}"
        for move in moves:
            tensors = [place[i] for i in move.tensors if i in place]
            makers = {case.units.of_node[tables.writer[t]] for t in tensors if t in tables.writer}
            if len(tensors) < len(move.tensors) or len(makers) != 1 or not tensors:
                message = f"receives tensors {list(move.tensors)}, which no one unit makes"
                found.append(Violation("order", subject, message))
                continue
            maker = makers.pop()
            found += _one(case, mesh, times, (number, maker), move, tensors)
            keys = _keys(case, number, tensors, maker, wanted)
            if not keys or any(key in arrivals for key in keys):
                message = f"receives tensors {list(move.tensors)} without need"
                found.append(Violation("order", subject, message))
            for key in keys:
                arrivals[key] = move
    return found, arrivals


def _wanted_of(case: PlanCase, times: _Times) -> _Wanted:
    """Look at every read of every node, once."""
    tables, of_node = case.tables, case.units.of_node
    read: set[tuple[int, int]] = set()
    carried: dict[tuple[int, int, int], set[int]] = {}
    for node in range(tables.n):
        unit = of_node[node]
        number = case.stage_of.get(unit)
        if number is None:
            continue
        for t in tables.reads[node]:
            read.add((t, number))
            if t in tables.writer:
                maker = of_node[tables.writer[t]]
                carried.setdefault((number, maker, unit), set()).add(t)
    waiting: dict[tuple[int, int, frozenset[int]], list[int]] = {}
    for (number, maker, unit), tensors in carried.items():
        waiting.setdefault((number, maker, frozenset(tensors)), []).append(unit)
    for units in waiting.values():
        units.sort(key=lambda unit: (times.start[unit], unit), reverse=True)
    return _Wanted(read, waiting)


def _keys(
    case: PlanCase, number: int, tensors: list[int], maker: int, wanted: _Wanted
) -> list[tuple[int, int, int]]:
    """What a transfer provides; with `edge`, for the one unit that reads just these tensors.

    If several do, the first to start gets the first to come: transfers are sorted, and of equal
    length.
    """
    if not case.edge:
        return [(t, -1, number) for t in tensors if (t, number) in wanted.read]
    units = wanted.waiting.get((number, maker, frozenset(tensors)))
    if not units:
        return []
    first = units.pop()
    return [(t, first, number) for t in tensors]


def _one(
    case: PlanCase,
    mesh: Mesh,
    times: _Times,
    ends: tuple[int, int],
    move: Transfer,
    tensors: list[int],
) -> list[Violation]:
    """Sender, start and length of one transfer; `ends` are the stage and the unit it is from."""
    number, maker = ends
    found, subject = [], f"stage {number}"
    stage = case.plan.stages[number]
    source = case.plan.stages[case.stage_of[maker]].device if maker in case.stage_of else ""
    what = f"the transfer of tensors {list(move.tensors)}"
    if move.source != source or source == stage.device:
        message = f"{what} comes from '{move.source}', but they are made on '{source}'"
        return [Violation("order", subject, message, source, move.source)]
    if maker in times.start and early(move.start_s, times.end(maker), times.length[maker]):
        begin, made = times.first + move.start_s, times.first + times.end(maker)
        message = f"{what} starts at {begin!r}, before they are made at {made!r}"
        found.append(Violation("order", subject, message, made, begin))
    lengths = [
        mesh.time(source, stage.device, case.tables.size[t], case.tables.transfer[t])
        for t in tensors
    ]
    path = mesh.path(source, stage.device)
    known = [length for length in lengths if length is not None]
    if path is None or len(known) < len(lengths):
        message = f"there is no path from {source} to {stage.device}"
        return [*found, Violation("device", subject, message)]
    # One transfer pays the latency of its path once, whatever it carries.
    length = math.fsum(known) - (len(known) - 1) * path.latency
    took = move.end_s - move.start_s
    if not abs(took - length) <= TOLERANCE * length + ROUNDING * move.end_s:
        message = f"{what} takes {took!r}, recomputed {length!r}"
        found.append(Violation("load", subject, message, length, took))
    return found


def _needs(case: PlanCase, times: _Times, arrivals: Arrivals) -> list[Violation]:
    """No unit starts before what it reads is on its device."""
    tables, found = case.tables, []
    of_node, ids = case.units.of_node, case.units.ids
    for node in range(tables.n):
        unit = of_node[node]
        if unit not in case.stage_of:
            continue
        number = case.stage_of[unit]
        for tensor in tables.reads[node]:
            maker = of_node[tables.writer[tensor]] if tensor in tables.writer else unit
            if maker == unit or maker not in case.stage_of:
                continue
            there, length = times.end(maker), times.length[maker]
            if case.stage_of[maker] != number:
                key = (tensor, unit if case.edge else -1, number)
                if key not in arrivals:
                    message = f"{case.units.what} {ids[unit]} reads tensor "
                    message += f"{case.tensor_ids[tensor]}, which is not sent to its device"
                    found.append(Violation("order", f"stage {number}", message))
                    continue
                there = arrivals[key].end_s
                length = there - arrivals[key].start_s
            if early(times.start[unit], there, length):
                begin, there = times.first + times.start[unit], times.first + there
                message = f"{case.units.what} {ids[unit]} starts at {begin!r}, before "
                message += f"tensor {case.tensor_ids[tensor]} is there at {there!r}"
                found.append(Violation("order", f"stage {number}", message, there, begin))
    return found


def _congestion(case: PlanCase, times: _Times) -> list[Violation]:
    """Transfers that share a lane do not overlap."""
    rule = case.plan.options.congestion
    lanes: dict[tuple[str, ...], list[Transfer]] = {}
    for stage, received in zip(case.plan.stages, times.receives, strict=True):
        for move in received:
            if rule == "device":
                lanes.setdefault(("sent by", move.source), []).append(move)
                lanes.setdefault(("received by", stage.device), []).append(move)
            elif rule == "channel":
                lanes.setdefault(("from", move.source, "to", stage.device), []).append(move)
    found = []
    for lane, moves in sorted(lanes.items()):
        moves.sort(key=lambda m: (m.start_s, m.end_s))
        for one, other in pairwise(moves):
            if early(other.start_s, one.end_s, one.end_s - one.start_s):
                end, start = times.first + one.end_s, times.first + other.start_s
                message = f"transfers {' '.join(lane)} overlap: one ends at {end!r}, "
                message += f"the next starts at {start!r}"
                found.append(Violation("order", "plan", message, end, start))
    return found
