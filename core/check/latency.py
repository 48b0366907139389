"""Validate a plan of the objective latency: the time of one sample.

`blocks`: everything is recomputed from the stages and their order (2020 paper, Section 4). An
accelerator is invoked for a block when all that the block reads is in the memory of the host and
its block before is done: it reads, computes and writes back. CPU units start when what they read is
there.

`operators`: the plan states when every unit and every transfer starts; that these times are
possible is checked (Moirai, Eq. 4 to 8), not that they are the earliest. Times are compared as they
stand after the first start (`early`).

Live tensors: a device holds the parameters of its units, each unit its own, and the tensors that
are alive on it. With `operators` (Moirai, Eq. 5) one is held where it is made from the start of its
unit until the last unit there that reads it and the last transfer of it end, an output of the model
to the end; where it is sent from the start of the transfer until the last unit there that reads it
ends; an input of the model from the first start on. Tensors inside a unit are held while that runs,
as much as the peak over its nodes. All that a unit reads and makes counts together. With `blocks`
an invocation holds what a stage of a pipeline does; the pool has no limit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import NamedTuple

from dnnp.core.check.claims import number_of
from dnnp.core.check.graph import Tables
from dnnp.core.check.load import (
    Cost,
    Mesh,
    PlanCase,
    check_parts,
    crossing,
    node_memory,
    peak_memory,
)
from dnnp.core.check.violation import (
    ROUNDING,
    TOLERANCE,
    Violation,
    differs,
    early,
    fits,
    same,
    shown,
)
from dnnp.core.model.graph import PARAMETER
from dnnp.core.model.plan import Transfer
from dnnp.core.model.text import shown_bytes


@dataclass(frozen=True, eq=False)
class LatencyCase(PlanCase):
    """A plan of the objective latency."""

    @cached_property
    def tensor_ids(self) -> list[int]:
        """Ids of the tensors in the stream."""
        return self.graph.tensor_ids.tolist()

    @cached_property
    def place(self) -> dict[int, int]:
        """Id of a tensor -> its position."""
        return {tensor: t for t, tensor in enumerate(self.tensor_ids)}

    @cached_property
    def times(self) -> _Times:
        """All times that the plan states, less the first one."""
        return _times(self)

    @cached_property
    def peaks(self) -> list[float | None]:
        """Peak of live tensors of each stage, bytes; None where they do not count."""
        stages = self.plan.stages
        if self.plan.options.memory_model == "peak":
            if self.plan.options.execution == "blocks":
                return [
                    None if self.is_cpu(stage.device_class) else peak_memory(self.tables, nodes)[1]
                    for stage, nodes in zip(stages, self.blocks, strict=True)
                ]
            # `check_operators` reports missing starts.
            if all(len(s.starts_s or ()) == len(self.held(i)) for i, s in enumerate(stages)):
                return peaks_of_operators(self)
        return [None] * len(stages)

    def is_cpu(self, name: str) -> bool:
        """True for a device class of the plan that is a CPU."""
        device = self.devices.get(name)
        return device is not None and device.is_cpu

    @property
    def edge(self) -> bool:
        """True if each pair of units has a transfer of its own."""
        return self.plan.options.transfers == "edge"

    def held(self, stage: int) -> list[int]:
        """Units of a stage, in the order of their first nodes."""
        return list(dict.fromkeys(self.units.of_node[v] for v in self.blocks[stage]))

    def time(self, unit: int, device_class: str) -> float:
        """Time of a unit on a class; inf where that is not stated."""
        times = self.units.times.get(device_class)
        return float("inf") if times is None else times[unit]

    def memory(self, stage: int) -> float:
        """Memory of a stage, bytes."""
        return self.static(stage) + (self.peaks[stage] or 0.0)

    def static(self, stage: int) -> float:
        """Memory of the units of a stage, bytes, live tensors aside."""
        if self.plan.options.memory_model == "sum":
            return sum(node_memory(self.tables, v) for v in self.blocks[stage])
        return sum(self.own(unit) for unit in self.held(stage))

    def own(self, unit: int) -> float:
        """Memory of a unit, bytes, live tensors aside.

        Added up, or stated memory of nodes, and for the others their parameters, each once.
        """
        if self.plan.options.memory_model == "sum":
            return sum(node_memory(self.tables, v) for v in self.members[unit])
        tables, total = self.tables.in_memory, 0.0
        read: set[int] = set()
        for v in self.members[unit]:
            stated = self.plan.options.memory_model == "weights"
            if stated and tables.memory[v] == tables.memory[v]:
                total += tables.memory[v]
            else:
                read.update(t for t in tables.reads[v] if tables.kind[t] >= PARAMETER)
        return total + sum(tables.size[t] for t in read)


Span = tuple[float, float, float]
"""Begin, end and bytes of a tensor on a device."""


def peaks_of_operators(case: LatencyCase) -> list[float | None]:
    """Peak of live tensors of each stage, bytes; all times count from the first start."""
    start, length, receives = case.times.start, case.times.length, case.times.receives
    tables, of_node = case.tables.in_memory, case.units.of_node
    end = {unit: _less(start[unit] + length[unit], length[unit]) for unit in start}
    finish = max(end.values(), default=0.0)
    wanted = _wanted_of(case, tables)
    spans: list[list[Span]] = [[] for _ in receives]
    floor = dict.fromkeys(start, 0.0)
    until: dict[tuple[int, int], float] = {}
    for t, size in enumerate(tables.size):
        if tables.kind[t] >= PARAMETER:
            continue
        maker = of_node[tables.writer[t]] if t in tables.writer else -1
        units = {of_node[v] for v in tables.users.get(t, ())} - {maker}
        for unit in units & start.keys():
            floor[unit] += size
            stage = case.stage_of[unit]
            until[t, stage] = max(until.get((t, stage), 0.0), end[unit])
        if maker in start and (units or tables.output[t]):
            floor[maker] += size
            last = max(end[maker], until.get((t, case.stage_of[maker]), 0.0))
            until[t, case.stage_of[maker]] = finish if tables.output[t] else last
    for number, moves in enumerate(receives):
        for move in sorted(moves, key=lambda m: m.start_s):
            tensors = [case.place[i] for i in move.tensors if i in case.place]
            tensors = [t for t in tensors if tables.kind[t] < PARAMETER]
            done = _less(move.end_s, move.end_s - move.start_s)
            last = max((until.get((t, number), 0.0) for t in tensors), default=0.0)
            if case.edge:
                makers = {of_node[tables.writer[t]] for t in tensors if t in tables.writer}
                maker = makers.pop() if len(makers) == 1 else -1
                readers = wanted.waiting.get((number, maker, frozenset(tensors)))
                last = end[readers.pop()] if readers else 0.0
            for t in tensors:
                spans[number].append((move.start_s, last, tables.size[t]))
                maker = of_node[tables.writer[t]] if t in tables.writer else -1
                if maker in start:
                    home = t, case.stage_of[maker]
                    until[home] = max(until.get(home, 0.0), done)
    for (t, number), last in until.items():
        maker = of_node[tables.writer[t]] if t in tables.writer else -1
        if maker < 0:
            spans[number].append((0.0, last, tables.size[t]))
        elif case.stage_of.get(maker) == number:
            spans[number].append((start[maker], last, tables.size[t]))
    found: list[float | None] = []
    for number, spanned in enumerate(spans):
        held = [unit for unit in case.held(number) if unit in start]
        own = {unit: _inner(case, unit) for unit in held}
        spanned += [(start[unit], end[unit], own[unit]) for unit in held]
        found.append(max([_most_bytes(spanned), *(floor[unit] + own[unit] for unit in held)]))
    return found


def _less(end: float, length: float) -> float:
    """An end that what begins then is not before, as in `early`."""
    return max(end - TOLERANCE * length - ROUNDING * end, end - length)


def _most_bytes(spans: Sequence[Span]) -> float:
    """Most bytes at a time; what ends is gone before anything begins."""
    events = [(begin, 1, size) for begin, _, size in spans]
    events += [(max(end, begin), 0, -size) for begin, end, size in spans]
    events.sort()
    most = total = 0.0
    for _, _, change in events:
        total += change
        most = max(most, total)
    return most


def _inner(case: LatencyCase, unit: int) -> float:
    """Peak over the nodes of a unit of what only they know."""
    tables, nodes = case.tables.in_memory, case.members[unit]
    stage = set(nodes)
    ordered = [v for v in case.blocks[case.stage_of[unit]] if v in stage]
    step = {v: i for i, v in enumerate(ordered)}
    spans: list[Span] = []
    for v in ordered:
        for t in tables.writes[v]:
            users = tables.users.get(t, ())
            if not tables.output[t] and all(u in step for u in users):
                last = max([step[v], *(step[u] for u in users)])
                spans.append((step[v], last + 1, tables.size[t]))
    return _most_bytes(spans)


def check_span(
    case: LatencyCase, number: int, begin: float, end: float, whole: float, first: float = 0.0
) -> Iterator[Violation]:
    """True if a stage states its begin and end, which count from `first`.

    `whole` is the scale of such times.
    """
    stage = case.plan.stages[number]
    for name, stated, expected in (("begin_s", stage.begin_s, begin), ("end_s", stage.end_s, end)):
        if stated is None or not same(stated - first, expected, whole):
            message = f"{name} is {stated!r}, recomputed {first + expected!r}"
            yield Violation("load", f"stage {number}", message, first + expected, stated)


def check_latency(case: LatencyCase) -> tuple[list[Violation], float | None, list[Cost]]:
    """Check a plan; return what is wrong, the recomputed latency (None: it has none), and costs."""
    found = [*_devices(case), *_capacities(case), *_colors(case)]
    check = check_blocks if case.plan.options.execution == "blocks" else check_operators
    wrong, value, costs = check(case)
    for number, cost in enumerate(costs):
        wrong += check_parts(case.plan.stages[number], cost, f"stage {number}")
        wrong += _peak(case, number)
    return found + wrong, value, costs


def _peak(case: LatencyCase, number: int) -> Iterator[Violation]:
    """A stage states its peak of live tensors where they count."""
    stated, expected = case.plan.stages[number].peak_bytes, case.peaks[number]
    if stated is not None and expected is not None:
        yield from differs("load", f"stage {number}", "peak_bytes", stated, expected)
    elif stated is not None or expected is not None:
        message = f"peak_bytes is {stated!r}, recomputed {expected!r}"
        yield Violation("load", f"stage {number}", message, expected, stated)


def _devices(case: LatencyCase) -> Iterator[Violation]:
    """Check that stages have existing devices and no replicas."""
    for number, stage in enumerate(case.plan.stages):
        subject = f"stage {number}"
        device = case.devices.get(stage.device_class)
        first = number_of(stage, device)
        if device is None or first is None or first >= device.count:
            message = f"there is no device '{stage.device}'"
            yield Violation("device", subject, message)
        if stage.replicas != 1:
            message = f"has {stage.replicas} replicas, but one sample runs once"
            yield Violation("replicas", subject, message, 1, stage.replicas)
    used = {s.device for s in case.plan.stages}
    used -= {s.device for s in case.plan.stages if case.is_cpu(s.device_class)}
    if len(used) > case.plan.k:
        message = f"{len(used)} accelerators are in use, but k is {case.plan.k}"
        yield Violation("stages", "plan", message, case.plan.k, len(used))


def _capacities(case: LatencyCase) -> Iterator[Violation]:
    """Check that each device holds its stages, unless capacities are ignored."""
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


def _colors(case: LatencyCase) -> Iterator[Violation]:
    """Check that nodes of one colour are on one device; a CPU pool counts as one."""
    blocks = case.plan.options.execution == "blocks"
    classes: dict[int, dict[str, list[int]]] = {}
    for node, color in enumerate(case.graph.color.tolist()):
        stage = case.stage_of.get(case.units.of_node[node])
        if color < 0 or stage is None:
            continue
        name = case.plan.stages[stage].device
        if blocks and case.is_cpu(case.plan.stages[stage].device_class):
            name = "cpu"
        classes.setdefault(color, {}).setdefault(name, []).append(case.tables.ids[node])
    for color, homes in sorted(classes.items()):
        if len(homes) > 1:
            message = f"its nodes are on {shown(sorted(homes))}, not on one device"
            yield Violation("color", f"color {color}", message, 1, len(homes))


def check_blocks(case: LatencyCase) -> tuple[list[Violation], float | None, list[Cost]]:
    """Recompute all times; see `check_latency`."""
    plan = case.plan
    found = list(_invocations(case))
    on_cpu = [case.is_cpu(stage.device_class) for stage in plan.stages]
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


def _invocations(case: LatencyCase) -> Iterator[Violation]:
    """Check that blocks are of one pass, and invocations of a device within the limit."""
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


def _cost(case: LatencyCase, number: int, cpu: bool) -> Cost:
    """Transfers and compute of one stage."""
    stage = case.plan.stages[number]
    compute = math.fsum(case.time(unit, stage.device_class) for unit in case.held(number))
    moved = [0.0, 0.0]
    device = case.devices.get(stage.device_class)
    if not cpu and device is not None:
        tables, nodes = case.tables, set(case.blocks[number])
        charged = case.plan.options.charge_io
        ways = crossing(tables, case.blocks[number], charged)
        for way, tensors in enumerate(ways):
            for t in sorted(tensors):
                readers = [v for v in tables.users.get(t, ()) if (v in nodes) == (way == 0)]
                units = {case.units.of_node[v] for v in readers}
                host = way == 1 and tables.output[t] and charged
                times = len(units) + host if case.edge else 1
                moved[way] += times * tables.moving(t, device.bandwidth_bytes_per_s)
    load = moved[0] + compute + moved[1]
    return Cost(moved[0], compute, 0.0, moved[1], case.memory(number), load, 0.0)


Arrivals = dict[tuple[int, int, int], Transfer]
"""Tensor, unit that reads it (-1: any, where a tensor moves once), stage -> what brings it."""


@dataclass(frozen=True)
class _Times:
    """Times of units and transfers, since the first of them starts."""

    first: float
    """The first start, as stated."""
    start: dict[int, float] = field(default_factory=dict)
    """Start of each placed unit."""
    length: dict[int, float] = field(default_factory=dict)
    receives: list[list[Transfer]] = field(default_factory=list)
    """Transfers that each stage receives."""

    def end(self, unit: int) -> float:
        """End of a unit."""
        return self.start[unit] + self.length[unit]


class _Wanted(NamedTuple):
    """Tensors that the units of each stage read."""

    read: set[tuple[int, int]]
    """Tensor, and a stage with a unit that reads it."""
    waiting: dict[tuple[int, int, frozenset[int]], list[int]]
    """Stage, maker and tensors -> units that read exactly these, latest start first. A unit is
    removed once a transfer is matched to it."""


def check_operators(case: LatencyCase) -> tuple[list[Violation], float | None, list[Cost]]:
    """Check all times; see `check_latency`."""
    found = list(_once(case))
    for number, stage in enumerate(case.plan.stages):
        held = case.held(number)
        if stage.starts_s is None or len(stage.starts_s) != len(held):
            given = "none" if stage.starts_s is None else len(stage.starts_s)
            message = f"has {len(held)} units but states {given} starts"
            found.append(Violation("order", f"stage {number}", message, len(held)))
            return found, None, []
    times = case.times
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


def _times(case: LatencyCase) -> _Times:
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


def _once(case: LatencyCase) -> Iterator[Violation]:
    """Check that each device has one stage."""
    seen: dict[str, int] = {}
    for number, stage in enumerate(case.plan.stages):
        if stage.device in seen:
            message = f"device {stage.device} is already used by stage {seen[stage.device]}"
            yield Violation("device", f"stage {number}", message)
        seen.setdefault(stage.device, number)


def _together(case: LatencyCase, number: int) -> Iterator[Violation]:
    """Check that the nodes of a unit are consecutive."""
    labels = [case.units.of_node[v] for v in case.blocks[number]]
    changes = 1 + sum(a != b for a, b in pairwise(labels))
    if not labels or changes == len(set(labels)):
        return
    yield Violation("order", f"stage {number}", "the nodes of a group do not stand together")


def _exclusive(case: LatencyCase, number: int, times: _Times) -> Iterator[Violation]:
    """Check that a device runs one unit at a time, in the stated order."""
    for one, other in pairwise(case.held(number)):
        if early(times.start[other], times.end(one), times.length[one]):
            start, end = times.first + times.start[other], times.first + times.end(one)
            message = f"{case.units.what} {case.units.ids[other]} starts at {start!r}, "
            message += f"before {case.units.ids[one]} ends at {end!r}"
            yield Violation("order", f"stage {number}", message, end, start)


def _transfers(case: LatencyCase, times: _Times) -> tuple[list[Violation], Arrivals]:
    """Check that transfers start after their tensors are made and take the time of their link."""
    mesh, tables, wanted = Mesh(case.plan), case.tables, _wanted_of(case, case.tables)
    found: list[Violation] = []
    arrivals: Arrivals = {}
    for number, moves in enumerate(times.receives):
        subject = f"stage {number}"
        for move in moves:
            tensors = [case.place[i] for i in move.tensors if i in case.place]
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


def _wanted_of(case: LatencyCase, tables: Tables) -> _Wanted:
    """Tensors that stages wait for, by the reads in `tables`."""
    of_node = case.units.of_node
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
        units.sort(key=lambda unit: (case.times.start[unit], unit), reverse=True)
    return _Wanted(read, waiting)


def _keys(
    case: LatencyCase, number: int, tensors: list[int], maker: int, wanted: _Wanted
) -> list[tuple[int, int, int]]:
    """Needs that a transfer meets; with `edge`, those of one unit that reads exactly these tensors.

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
    case: LatencyCase,
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
    # One transfer pays the latency of its path once, for all its tensors.
    length = math.fsum(known) - (len(known) - 1) * path.latency
    took = move.end_s - move.start_s
    if not abs(took - length) <= TOLERANCE * length + ROUNDING * move.end_s:
        message = f"{what} takes {took!r}, recomputed {length!r}"
        yield Violation("load", subject, message, length, took)


def _needs(case: LatencyCase, times: _Times, arrivals: Arrivals) -> Iterator[Violation]:
    """Check that no unit starts before its inputs are on its device."""
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


def _congestion(case: LatencyCase, times: _Times) -> Iterator[Violation]:
    """Check that transfers on one lane do not overlap."""
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
