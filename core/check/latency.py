"""Validate a plan of the objective latency: the time of one sample.

`blocks`: everything is recomputed from the stages and their order (2020 paper, Section 4). An
accelerator is invoked for a block when all that the block reads is in the memory of the host and
its block before is done: it reads, computes and writes back. CPU units start when what they read is
there.

`operators`: the plan states when every unit and every transfer starts; that these times are
possible is checked (Moirai, Eq. 4 to 8), not that they are the earliest. Times are compared as they
stand after the first start (`early`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import NamedTuple

from dnnp.core.check.devices import Mesh, number_of
from dnnp.core.check.graph import Tables, shown
from dnnp.core.check.latency_case import PlanCase
from dnnp.core.check.live import peaks_of_blocks, peaks_of_operators
from dnnp.core.check.load import Cost, Units, check_parts, crossing
from dnnp.core.check.violation import (
    ROUNDING,
    TOLERANCE,
    Violation,
    differs,
    early,
    fits,
    same,
)
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.graph import Graph
from dnnp.core.model.plan import Plan, Transfer
from dnnp.core.model.text import shown_bytes


def make_case(
    graph: Graph,
    plan: Plan,
    tables: Tables,
    units: Units,
    blocks: Sequence[Sequence[int]],
    devices: Mapping[str, DeviceClass],
) -> PlanCase:
    """Lay out what is checked."""
    case = PlanCase(plan, tables, units, blocks, devices, graph.tensor_ids.tolist())
    for node in range(tables.n):
        case.members.setdefault(units.of_node[node], []).append(node)
    for number, block in enumerate(blocks):
        for v in block:
            case.stage_of[units.of_node[v]] = number
    case.peaks.extend(_peaks(case))
    return case


def _peaks(case: PlanCase) -> list[float | None]:
    """Peak of live tensors of each stage, bytes; None where they do not count."""
    stages = case.plan.stages
    if case.plan.options.memory_model == "peak":
        if case.plan.options.execution == "blocks":
            return peaks_of_blocks(case, lambda i: _is_cpu(case, stages[i].device_class))
        # `check_operators` says so where starts are missing.
        if all(len(s.starts_s or ()) == len(case.held(i)) for i, s in enumerate(stages)):
            times = _times(case)
            return peaks_of_operators(case, times.start, times.length, times.receives)
    return [None] * len(stages)


def check_span(
    case: PlanCase, number: int, begin: float, end: float, whole: float, first: float = 0.0
) -> Iterator[Violation]:
    """Test whether a stage states its begin and end, which count from `first`.

    `whole` is the scale of such times.
    """
    stage = case.plan.stages[number]
    for name, stated, expected in (("begin_s", stage.begin_s, begin), ("end_s", stage.end_s, end)):
        if stated is None or not same(stated - first, expected, whole):
            message = f"{name} is {stated!r}, recomputed {first + expected!r}"
            yield Violation("load", f"stage {number}", message, first + expected, stated)


def check_latency(case: PlanCase, graph: Graph) -> tuple[list[Violation], float | None, list[Cost]]:
    """Check a plan; return what is wrong, the recomputed latency (None: it has none), and costs."""
    found = [*_devices(case), *_capacities(case), *_colors(case, graph)]
    check = check_blocks if case.plan.options.execution == "blocks" else check_operators
    wrong, value, costs = check(case)
    for number, cost in enumerate(costs):
        wrong += check_parts(case.plan.stages[number], cost, f"stage {number}")
        wrong += _peak(case, number)
    return found + wrong, value, costs


def _peak(case: PlanCase, number: int) -> Iterator[Violation]:
    """A stage states its peak of live tensors where they count."""
    stated, expected = case.plan.stages[number].peak_bytes, case.peaks[number]
    if stated is not None and expected is not None:
        yield from differs("load", f"stage {number}", "peak_bytes", stated, expected)
    elif stated is not None or expected is not None:
        message = f"peak_bytes is {stated!r}, recomputed {expected!r}"
        yield Violation("load", f"stage {number}", message, expected, stated)


def _devices(case: PlanCase) -> Iterator[Violation]:
    """Stages sit on devices that exist, and have no replicas."""
    for number, stage in enumerate(case.plan.stages):
        subject = f"stage {number}"
        device, first = case.devices.get(stage.device_class), number_of(stage)
        if device is None or first is None or first >= device.count:
            message = f"there is no device '{stage.device}'"
            yield Violation("device", subject, message)
        if stage.replicas != 1:
            message = f"has {stage.replicas} replicas, but one sample runs once"
            yield Violation("replicas", subject, message, 1, stage.replicas)
    used = {s.device for s in case.plan.stages}
    used -= {s.device for s in case.plan.stages if _is_cpu(case, s.device_class)}
    if len(used) > case.plan.k:
        message = f"{len(used)} accelerators are in use, but k is {case.plan.k}"
        yield Violation("stages", "plan", message, case.plan.k, len(used))


def _is_cpu(case: PlanCase, name: str) -> bool:
    device = case.devices.get(name)
    return device is not None and device.is_cpu


def _capacities(case: PlanCase) -> Iterator[Violation]:
    """Everything on a device fits into its memory, unless capacities are ignored."""
    if case.plan.options.memory_mode == "ignore":
        return
    total: dict[str, float] = {}
    live: dict[str, float] = {}
    for number, stage in enumerate(case.plan.stages):
        total[stage.device] = total.get(stage.device, 0.0) + case.static(number)
        # A device runs one invocation after the other.
        live[stage.device] = max(live.get(stage.device, 0.0), case.peaks[number] or 0.0)
    for number, stage in enumerate(case.plan.stages):
        device = case.devices.get(stage.device_class)
        if device is None or device.is_cpu or stage.device not in total:
            continue
        needed = total.pop(stage.device) + live[stage.device]
        if not fits(needed, device.memory_bytes):
            there = shown_bytes(device.memory_bytes, 6)
            message = f"{stage.device} needs {shown_bytes(needed, 6)}, it has {there}"
            subject = f"stage {number}"
            yield Violation("capacity", subject, message, device.memory_bytes, needed)


def _colors(case: PlanCase, graph: Graph) -> Iterator[Violation]:
    """Nodes of one colour are on one device; the CPUs of a pool are one."""
    blocks = case.plan.options.execution == "blocks"
    classes: dict[int, dict[str, list[int]]] = {}
    for node, color in enumerate(graph.color.tolist()):
        stage = case.stage_of.get(case.units.of_node[node])
        if color < 0 or stage is None:
            continue
        name = case.plan.stages[stage].device
        if blocks and _is_cpu(case, case.plan.stages[stage].device_class):
            name = "cpu"
        classes.setdefault(color, {}).setdefault(name, []).append(case.tables.ids[node])
    for color, homes in sorted(classes.items()):
        if len(homes) > 1:
            message = f"its nodes are on {shown(sorted(homes))}, not on one device"
            yield Violation("color", f"color {color}", message, 1, len(homes))


def check_blocks(case: PlanCase) -> tuple[list[Violation], float | None, list[Cost]]:
    """Recompute all times; see `check_latency`."""
    plan = case.plan
    found = list(_invocations(case))
    on_cpu = [
        case.devices[s.device_class].is_cpu if s.device_class in case.devices else False
        for s in plan.stages
    ]
    if sum(on_cpu) > 1:
        message = f"there are {sum(on_cpu)} stages on CPUs; the pool is one"
        found.append(Violation("stages", "plan", message, 1, sum(on_cpu)))
    costs = [_cost(case, number, cpu) for number, cpu in enumerate(on_cpu)]
    # A vertex is a stage, or a unit of the pool, numbered from the stages on.
    count = len(plan.stages)
    length: dict[int, float] = {}
    waits: dict[int, set[int]] = {}
    vertex: dict[int, int] = {}
    last: dict[str, int] = {}
    for number, stage in enumerate(plan.stages):
        if on_cpu[number]:
            for unit in case.held(number):
                vertex[unit] = count + unit
                length[count + unit] = case.time(unit, stage.device_class)
                waits[count + unit] = set()
            continue
        for unit in case.held(number):
            vertex[unit] = number
        length[number] = costs[number].load_s
        waits[number] = {last[stage.device]} if stage.device in last else set()
        last[stage.device] = number
    for node in range(case.tables.n):
        here = vertex.get(case.units.of_node[node])
        for maker in case.tables.producers(node):
            there = vertex.get(case.units.of_node[maker])
            if here is not None and there is not None and here != there:
                waits[here].add(there)
    start = _starts(waits, length)
    if start is None:
        message = "blocks of the split wait for each other"
        return [*found, Violation("order", "plan", message)], None, costs
    end = {v: start[v] + length[v] for v in start}
    value = max(end.values(), default=0.0)
    for number in range(count):
        mine = [number]
        if on_cpu[number]:
            mine = [count + unit for unit in case.held(number)]
        if mine and all(v in start for v in mine):
            begin, done = min(start[v] for v in mine), max(end[v] for v in mine)
            found += check_span(case, number, begin, done, value)
    return found, value, costs


def _starts(waits: dict[int, set[int]], length: dict[int, float]) -> dict[int, float] | None:
    """Earliest start of every vertex; None if some wait for each other."""
    start: dict[int, float] = {}
    try:
        for v in TopologicalSorter(waits).static_order():
            start[v] = max((start[u] + length[u] for u in waits[v]), default=0.0)
    except CycleError:
        return None
    return start


def _invocations(case: PlanCase) -> Iterator[Violation]:
    """No block of two passes, no device invoked too often in a pass."""
    used: dict[tuple[str, bool], int] = {}
    for number, stage in enumerate(case.plan.stages):
        device = case.devices.get(stage.device_class)
        if device is None or device.is_cpu:
            continue
        passes = {case.units.backward[u] for u in case.held(number)}
        if len(passes) > 1:
            message = "its block has units of both passes"
            yield Violation("order", f"stage {number}", message)
        for late in passes:
            used[stage.device, late] = used.get((stage.device, late), 0) + 1
    most = case.plan.options.invocations
    for (name, _), times in sorted(used.items()):
        if times > most:
            message = f"{name} is invoked {times} times in a pass, above the {most} allowed"
            yield Violation("stages", "plan", message, most, times)


def _cost(case: PlanCase, number: int, cpu: bool) -> Cost:
    """Transfers and compute of one stage."""
    stage = case.plan.stages[number]
    compute = math.fsum(case.time(unit, stage.device_class) for unit in case.held(number))
    moved = [0.0, 0.0]
    device = case.devices.get(stage.device_class)
    if not cpu and device is not None:
        tables, nodes = case.tables, set(case.blocks[number])
        ways = crossing(tables, case.blocks[number], case.plan.options.charge_io)
        for way, tensors in enumerate(ways):
            for t in sorted(tensors):
                readers = [v for v in tables.users.get(t, ()) if (v in nodes) == (way == 0)]
                units = {case.units.of_node[v] for v in readers}
                times = max(len(units), 1) if case.edge else 1
                moved[way] += times * tables.moving(t, device.bandwidth_bytes_per_s)
    load = moved[0] + compute + moved[1]
    return Cost(moved[0], compute, 0.0, moved[1], case.memory(number), load, 0.0)


Arrivals = dict[tuple[int, int, int], Transfer]
"""Tensor, unit that reads it (-1: any, where a tensor moves once), stage -> what brings it."""


@dataclass(frozen=True)
class _Times:
    """Times of units and transfers, since the first of them starts."""

    first: float
    """That start as it is stated."""
    start: dict[int, float] = field(default_factory=dict)
    """Of each unit that is placed."""
    length: dict[int, float] = field(default_factory=dict)
    receives: list[list[Transfer]] = field(default_factory=list)
    """What each stage receives."""

    def end(self, unit: int) -> float:
        """End of a unit."""
        return self.start[unit] + self.length[unit]


class _Wanted(NamedTuple):
    """Tensors that the units of each stage read."""

    read: set[tuple[int, int]]
    """Tensor, and a stage with a unit that reads it."""
    waiting: dict[tuple[int, int, frozenset[int]], list[int]]
    """Stage, maker and tensors -> units of the stage that read just these of it, the first to
    start last; those that a transfer was found for are taken out."""


def check_operators(case: PlanCase) -> tuple[list[Violation], float | None, list[Cost]]:
    """Check all times; see `check_latency`."""
    found = list(_once(case))
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
    found += [*wrong, *_needs(case, times, arrivals), *_congestion(case, times)]
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
        costs.append(Cost(moved_in, compute, 0.0, moved_out, case.memory(number), compute, 0.0))
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


def _once(case: PlanCase) -> Iterator[Violation]:
    """One stage a device."""
    seen: dict[str, int] = {}
    for number, stage in enumerate(case.plan.stages):
        if stage.device in seen:
            message = f"device {stage.device} is already used by stage {seen[stage.device]}"
            yield Violation("device", f"stage {number}", message)
        seen.setdefault(stage.device, number)


def _together(case: PlanCase, number: int) -> Iterator[Violation]:
    """The nodes of a unit stand side by side."""
    labels = [case.units.of_node[v] for v in case.blocks[number]]
    changes = 1 + sum(a != b for a, b in pairwise(labels))
    if not labels or changes == len(set(labels)):
        return
    yield Violation("order", f"stage {number}", "the nodes of a group do not stand together")


def _exclusive(case: PlanCase, number: int, times: _Times) -> Iterator[Violation]:
    """A device runs one unit at a time, in the order stated."""
    for one, other in pairwise(case.held(number)):
        if early(times.start[other], times.end(one), times.length[one]):
            start, end = times.first + times.start[other], times.first + times.end(one)
            message = f"{case.units.what} {case.units.ids[other]} starts at {start!r}, "
            message += f"before {case.units.ids[one]} ends at {end!r}"
            yield Violation("order", f"stage {number}", message, end, start)


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
    """Needs that a transfer meets; with `edge`, of the one unit that reads just these tensors.

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
) -> Iterator[Violation]:
    """Sender, start and length of one transfer; `ends` are the stage and the unit it is from."""
    number, maker = ends
    subject = f"stage {number}"
    stage = case.plan.stages[number]
    source = case.plan.stages[case.stage_of[maker]].device if maker in case.stage_of else ""
    what = f"the transfer of tensors {list(move.tensors)}"
    if move.source != source or source == stage.device:
        message = f"{what} comes from '{move.source}', but they are made on '{source}'"
        yield Violation("order", subject, message, source, move.source)
        return
    if maker in times.start and early(move.start_s, times.end(maker), times.length[maker]):
        begin, made = times.first + move.start_s, times.first + times.end(maker)
        message = f"{what} starts at {begin!r}, before they are made at {made!r}"
        yield Violation("order", subject, message, made, begin)
    lengths = [
        mesh.time(source, stage.device, case.tables.size[t], case.tables.transfer[t])
        for t in tensors
    ]
    path = mesh.path(source, stage.device)
    known = [length for length in lengths if length is not None]
    if path is None or len(known) < len(lengths):
        message = f"there is no path from {source} to {stage.device}"
        yield Violation("device", subject, message)
        return
    # One transfer pays the latency of its path once, whatever it carries.
    length = math.fsum(known) - (len(known) - 1) * path.latency
    took = move.end_s - move.start_s
    if not abs(took - length) <= TOLERANCE * length + ROUNDING * move.end_s:
        message = f"{what} takes {took!r}, recomputed {length!r}"
        yield Violation("load", subject, message, length, took)


def _needs(case: PlanCase, times: _Times, arrivals: Arrivals) -> Iterator[Violation]:
    """No unit starts before what it reads is on its device."""
    tables = case.tables
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
                    yield Violation("order", f"stage {number}", message)
                    continue
                there = arrivals[key].end_s
                length = there - arrivals[key].start_s
            if early(times.start[unit], there, length):
                begin, there = times.first + times.start[unit], times.first + there
                message = f"{case.units.what} {ids[unit]} starts at {begin!r}, before "
                message += f"tensor {case.tensor_ids[tensor]} is there at {there!r}"
                yield Violation("order", f"stage {number}", message, there, begin)


def _congestion(case: PlanCase, times: _Times) -> Iterator[Violation]:
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
    for lane, moves in sorted(lanes.items()):
        moves.sort(key=lambda m: (m.start_s, m.end_s))
        for one, other in pairwise(moves):
            if early(other.start_s, one.end_s, one.end_s - one.start_s):
                end, start = times.first + one.end_s, times.first + other.start_s
                message = f"transfers {' '.join(lane)} overlap: one ends at {end!r}, "
                message += f"the next starts at {start!r}"
                yield Violation("order", "plan", message, end, start)
