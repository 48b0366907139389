"""Latency of `blocks`, recomputed plainly (2020 paper, Section 4).

An accelerator is invoked for a block when all that the block reads is in the memory of the host
and its block before is done: it reads, computes and writes back. CPU units start when what they
read is there.
"""

from __future__ import annotations

import math

from dnnp.core.check.case import PlanCase, check_span
from dnnp.core.check.load import Cost
from dnnp.core.check.violation import Violation
from dnnp.core.model.graph import ACTIVATION, INPUT


def check_blocks(case: PlanCase) -> tuple[list[Violation], float | None, list[Cost]]:
    """Recompute all times; see `check_latency`."""
    plan = case.plan
    found = _invocations(case)
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
    after: dict[int, list[int]] = {v: [] for v in waits}
    missing = {v: len(before) for v, before in waits.items()}
    for v, before in waits.items():
        for u in before:
            after[u].append(v)
    start = dict.fromkeys(waits, 0.0)
    ready = [v for v in waits if not missing[v]]
    for v in ready:
        for w in after[v]:
            start[w] = max(start[w], start[v] + length[v])
            missing[w] -= 1
            if not missing[w]:
                ready.append(w)
    return start if len(ready) == len(waits) else None


def _invocations(case: PlanCase) -> list[Violation]:
    """No block of two passes, no device invoked too often in a pass."""
    found = []
    used: dict[tuple[str, bool], int] = {}
    for number, stage in enumerate(case.plan.stages):
        device = case.devices.get(stage.device_class)
        if device is None or device.is_cpu:
            continue
        passes = {case.units.backward[u] for u in case.held(number)}
        if len(passes) > 1:
            message = "its block has units of both passes"
            found.append(Violation("order", f"stage {number}", message))
        for late in passes:
            used[stage.device, late] = used.get((stage.device, late), 0) + 1
    most = case.plan.options.invocations
    for (name, _), times in sorted(used.items()):
        if times > most:
            message = f"{name} is invoked {times} times in a pass, above the {most} allowed"
            found.append(Violation("stages", "plan", message, most, times))
    return found


def _cost(case: PlanCase, number: int, cpu: bool) -> Cost:
    """Transfers and compute of one stage."""
    stage = case.plan.stages[number]
    compute = math.fsum(case.time(unit, stage.device_class) for unit in case.held(number))
    moved_in = moved_out = 0.0
    device = case.devices.get(stage.device_class)
    if not cpu and device is not None:
        for times, tensor in _arriving(case, number):
            moved_in += times * _move(case, tensor, device.bandwidth_bytes_per_s)
        for times, tensor in _leaving(case, number):
            moved_out += times * _move(case, tensor, device.bandwidth_bytes_per_s)
    load = moved_in + compute + moved_out
    return Cost(moved_in, compute, 0.0, moved_out, case.memory(number), load, 0.0)


def _move(case: PlanCase, tensor: int, bandwidth: float) -> float:
    stated = case.tables.transfer[tensor]
    return case.tables.size[tensor] / bandwidth if math.isnan(stated) else stated


def _arriving(case: PlanCase, number: int) -> list[tuple[int, int]]:
    """(times it is moved, tensor) of all that a block reads."""
    tables, of_node = case.tables, case.units.of_node
    inside = set(case.blocks[number])
    readers: dict[int, set[int]] = {}
    for node in case.blocks[number]:
        for tensor in tables.reads[node]:
            made = tables.kind[tensor] == ACTIVATION and tables.writer[tensor] not in inside
            if made or (tables.kind[tensor] == INPUT and case.plan.options.charge_io):
                readers.setdefault(tensor, set()).add(of_node[node])
    return [(len(units) if case.edge else 1, t) for t, units in sorted(readers.items())]


def _leaving(case: PlanCase, number: int) -> list[tuple[int, int]]:
    """(times it is moved, tensor) of all that a block writes and others read."""
    tables, of_node = case.tables, case.units.of_node
    inside = set(case.blocks[number])
    found = []
    for node in case.blocks[number]:
        for tensor in tables.writes[node]:
            others = {of_node[v] for v in tables.users.get(tensor, ()) if v not in inside}
            if others:
                found.append((len(others) if case.edge else 1, tensor))
            elif tables.output[tensor] and case.plan.options.charge_io:
                found.append((1, tensor))
    return found
