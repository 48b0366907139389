"""Latency of `operators`: whether the times of a plan are possible (Moirai, Eq. 4 to 8)."""

from __future__ import annotations

import math
from itertools import pairwise

from dnnp.core.check.latency import Case, check_span
from dnnp.core.check.load import Cost
from dnnp.core.check.mesh import Mesh
from dnnp.core.check.violation import Violation, above, same
from dnnp.core.model.plan import Transfer

Arrivals = dict[tuple[int, int, int], float]
"""Tensor, unit that reads it (-1: any, where a tensor moves once), stage -> when it is there."""


def check_operators(case: Case) -> tuple[list[Violation], float | None, list[Cost]]:
    """Check all times; see `check_latency`."""
    start: dict[int, float] = {}
    end: dict[int, float] = {}
    found = _once(case)
    for number, stage in enumerate(case.plan.stages):
        held = case.held(number)
        if stage.starts_s is None or len(stage.starts_s) != len(held):
            given = "none" if stage.starts_s is None else len(stage.starts_s)
            message = f"has {len(held)} units but states {given} starts"
            found.append(Violation("order", f"stage {number}", message, len(held)))
            return found, None, []
        found += _together(case, number)
        for unit, begin in zip(held, stage.starts_s, strict=True):
            start[unit], end[unit] = begin, begin + case.time(unit, stage.device_class)
        found += _exclusive(case, number, held, start, end)
    value = max(end.values(), default=0.0)
    wrong, arrivals = _transfers(case, start, end)
    found += wrong + _needs(case, start, end, arrivals) + _congestion(case)
    costs = []
    for number, stage in enumerate(case.plan.stages):
        held = case.held(number)
        coming = case.plan.stages[number].receives or ()
        going = [m for s in case.plan.stages for m in s.receives or () if m.source == stage.device]
        compute = math.fsum(case.time(unit, stage.device_class) for unit in held)
        moved_in = math.fsum(m.end_s - m.start_s for m in coming)
        moved_out = math.fsum(m.end_s - m.start_s for m in going)
        costs.append(
            Cost(moved_in, compute, 0.0, moved_out, case.memory(number), compute, value)
        )  # fmt: skip
        begin = min([start[u] for u in held] + [m.start_s for m in coming], default=0.0)
        done = max([end[u] for u in held] + [m.end_s for m in going], default=0.0)
        found += check_span(case, number, begin, done, value)
    return found, value, costs


def _once(case: Case) -> list[Violation]:
    """One stage a device."""
    seen: dict[str, int] = {}
    found = []
    for number, stage in enumerate(case.plan.stages):
        if stage.device in seen:
            message = f"device {stage.device} is already used by stage {seen[stage.device]}"
            found.append(Violation("device", f"stage {number}", message))
        seen.setdefault(stage.device, number)
    return found


def _together(case: Case, number: int) -> list[Violation]:
    """The nodes of a unit stand side by side."""
    labels = [case.units.of_node[v] for v in case.blocks[number]]
    changes = 1 + sum(a != b for a, b in pairwise(labels))
    if not labels or changes == len(set(labels)):
        return []
    return [Violation("order", f"stage {number}", "the nodes of a group do not stand together")]


def _exclusive(
    case: Case, number: int, held: list[int], start: dict[int, float], end: dict[int, float]
) -> list[Violation]:
    """A device runs one unit at a time, in the order stated."""
    found = []
    for one, other in pairwise(held):
        if above(end[one], start[other]):
            message = f"{case.units.what} {case.units.ids[other]} starts at {start[other]!r}, "
            message += f"before {case.units.ids[one]} ends at {end[one]!r}"
            found.append(Violation("order", f"stage {number}", message, end[one], start[other]))
    return found


def _transfers(
    case: Case, start: dict[int, float], end: dict[int, float]
) -> tuple[list[Violation], Arrivals]:
    """Every transfer starts when its tensors are made and takes what its link takes."""
    mesh, tables = Mesh(case.plan), case.tables
    place = {tensor: t for t, tensor in enumerate(case.tensor_ids)}
    found: list[Violation] = []
    arrivals: Arrivals = {}
    for number, stage in enumerate(case.plan.stages):
        subject = f"stage {number}"
        for move in stage.receives or ():
            tensors = [place[i] for i in move.tensors if i in place]
            makers = {case.units.of_node[tables.writer[t]] for t in tensors if t in tables.writer}
            if len(tensors) < len(move.tensors) or len(makers) != 1 or not tensors:
                message = f"receives tensors {list(move.tensors)}, which no one unit makes"
                found.append(Violation("order", subject, message))
                continue
            maker = makers.pop()
            found += _one(case, mesh, number, move, tensors, maker, end)
            keys = _keys(case, number, tensors, maker, start)
            if not keys or any(key in arrivals for key in keys):
                message = f"receives tensors {list(move.tensors)} without need"
                found.append(Violation("order", subject, message))
            for key in keys:
                arrivals[key] = move.end_s
    return found, arrivals


def _keys(
    case: Case, number: int, tensors: list[int], maker: int, start: dict[int, float]
) -> list[tuple[int, int, int]]:
    """What a transfer provides; with `edge`, for the one unit that reads just these tensors.

    If several do, the first to start gets the first to come: transfers are sorted, and of equal
    length.
    """
    tables, of_node = case.tables, case.units.of_node
    users = [{of_node[v] for v in tables.users.get(t, ())} for t in tensors]
    here = [{u for u in units if case.stage_of.get(u) == number} for units in users]
    if not case.edge:
        return [(t, -1, number) for t, units in zip(tensors, here, strict=True) if units]
    free = [
        unit
        for unit in set.intersection(*here)
        if (tensors[0], unit, number) not in case.taken
        and _carried(case, maker, unit) == set(tensors)
    ]
    if not free:
        return []
    first = min(free, key=lambda unit: (start[unit], unit))
    keys = [(t, first, number) for t in tensors]
    case.taken.update(keys)
    return keys


def _carried(case: Case, maker: int, reader: int) -> set[int]:
    """Tensors that one unit makes and one other reads."""
    tables, of_node = case.tables, case.units.of_node
    return {
        t
        for v in case.members[reader]
        for t in tables.reads[v]
        if t in tables.writer and of_node[tables.writer[t]] == maker
    }


def _one(
    case: Case,
    mesh: Mesh,
    number: int,
    move: Transfer,
    tensors: list[int],
    maker: int,
    end: dict[int, float],
) -> list[Violation]:
    """Sender, start and length of one transfer."""
    found, subject = [], f"stage {number}"
    stage = case.plan.stages[number]
    source = case.plan.stages[case.stage_of[maker]].device if maker in case.stage_of else ""
    what = f"the transfer of tensors {list(move.tensors)}"
    if move.source != source or source == stage.device:
        message = f"{what} comes from '{move.source}', but they are made on '{source}'"
        return [Violation("order", subject, message, source, move.source)]
    if above(end[maker], move.start_s):
        message = f"{what} starts at {move.start_s!r}, before they are made at {end[maker]!r}"
        found.append(Violation("order", subject, message, end[maker], move.start_s))
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
    if not same(move.end_s - move.start_s, length, move.end_s):
        message = f"{what} takes {move.end_s - move.start_s!r}, recomputed {length!r}"
        found.append(Violation("load", subject, message, length, move.end_s - move.start_s))
    return found


def _needs(
    case: Case, start: dict[int, float], end: dict[int, float], arrivals: Arrivals
) -> list[Violation]:
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
            there = end[maker]
            if case.stage_of[maker] != number:
                key = (tensor, unit if case.edge else -1, number)
                if key not in arrivals:
                    message = f"{case.units.what} {ids[unit]} reads tensor "
                    message += f"{case.tensor_ids[tensor]}, which is not sent to its device"
                    found.append(Violation("order", f"stage {number}", message))
                    continue
                there = arrivals[key]
            if above(there, start[unit]):
                message = f"{case.units.what} {ids[unit]} starts at {start[unit]!r}, before "
                message += f"tensor {case.tensor_ids[tensor]} is there at {there!r}"
                found.append(Violation("order", f"stage {number}", message, there, start[unit]))
    return found


def _congestion(case: Case) -> list[Violation]:
    """Transfers that share a lane do not overlap."""
    rule = case.plan.options.congestion
    lanes: dict[tuple[str, ...], list[Transfer]] = {}
    for stage in case.plan.stages:
        for move in stage.receives or ():
            if rule == "device":
                lanes.setdefault(("sent by", move.source), []).append(move)
                lanes.setdefault(("received by", stage.device), []).append(move)
            elif rule == "channel":
                lanes.setdefault(("from", move.source, "to", stage.device), []).append(move)
    found = []
    for lane, moves in sorted(lanes.items()):
        moves.sort(key=lambda m: (m.start_s, m.end_s))
        for one, other in pairwise(moves):
            if above(one.end_s, other.start_s):
                message = f"transfers {' '.join(lane)} overlap: one ends at {one.end_s!r}, "
                message += f"the next starts at {other.start_s!r}"
                found.append(Violation("order", "plan", message, one.end_s, other.start_s))
    return found
