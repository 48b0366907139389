"""Validate a plan of the objective latency: the time of one sample.

`blocks`: everything is recomputed from the stages and their order (2020 paper, Section 4). An
accelerator is invoked for a block when all that the block reads is in the memory of the host and
its block before is done: it reads, computes and writes back. CPU units start when what they read is
there.

`operators`: the plan states when every unit and every transfer starts; that these times are
possible is checked (`dnnp.core.check.placed`), not that they are the earliest.
"""

from __future__ import annotations

import math

from dnnp.core.check.case import PlanCase, check_span
from dnnp.core.check.devices import number_of
from dnnp.core.check.graph import shown
from dnnp.core.check.load import Cost
from dnnp.core.check.placed import check_operators
from dnnp.core.check.violation import Violation, fits, same
from dnnp.core.model.graph import ACTIVATION, INPUT, Graph
from dnnp.core.model.text import shown_bytes


def check_latency(case: PlanCase, graph: Graph) -> tuple[list[Violation], float | None, list[Cost]]:
    """Check a plan; return what is wrong, the recomputed latency (None: it has none), and costs."""
    found = _devices(case) + _capacities(case) + _colors(case, graph)
    check = check_blocks if case.plan.options.execution == "blocks" else check_operators
    wrong, value, costs = check(case)
    for number, cost in enumerate(costs):
        wrong += _parts(case, number, cost)
    return found + wrong, value, costs


def _devices(case: PlanCase) -> list[Violation]:
    """Stages sit on devices that exist, and have no replicas."""
    found = []
    for number, stage in enumerate(case.plan.stages):
        subject = f"stage {number}"
        device, first = case.devices.get(stage.device_class), number_of(stage)
        if device is None or first is None or first >= device.count:
            message = f"there is no device '{stage.device}'"
            found.append(Violation("device", subject, message))
        if stage.replicas != 1:
            message = f"has {stage.replicas} replicas, but one sample runs once"
            found.append(Violation("replicas", subject, message, 1, stage.replicas))
    used = {s.device for s in case.plan.stages}
    used -= {s.device for s in case.plan.stages if _is_cpu(case, s.device_class)}
    if len(used) > case.plan.k:
        message = f"{len(used)} accelerators are in use, but k is {case.plan.k}"
        found.append(Violation("stages", "plan", message, case.plan.k, len(used)))
    return found


def _is_cpu(case: PlanCase, name: str) -> bool:
    device = case.devices.get(name)
    return device is not None and device.is_cpu


def _capacities(case: PlanCase) -> list[Violation]:
    """Everything on a device fits into its memory, unless capacities are ignored."""
    if case.plan.options.memory_mode == "ignore":
        return []
    total: dict[str, float] = {}
    for number, stage in enumerate(case.plan.stages):
        total[stage.device] = total.get(stage.device, 0.0) + case.memory(number)
    found = []
    for number, stage in enumerate(case.plan.stages):
        device = case.devices.get(stage.device_class)
        if device is None or device.is_cpu or stage.device not in total:
            continue
        needed = total.pop(stage.device)
        if not fits(needed, device.memory_bytes):
            there = shown_bytes(device.memory_bytes, 6)
            message = f"{stage.device} needs {shown_bytes(needed, 6)}, it has {there}"
            subject = f"stage {number}"
            found.append(Violation("capacity", subject, message, device.memory_bytes, needed))
    return found


def _colors(case: PlanCase, graph: Graph) -> list[Violation]:
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
    found = []
    for color, homes in sorted(classes.items()):
        if len(homes) > 1:
            message = f"its nodes are on {shown(sorted(homes))}, not on one device"
            found.append(Violation("color", f"color {color}", message, 1, len(homes)))
    return found


def _parts(case: PlanCase, number: int, cost: Cost) -> list[Violation]:
    """The numbers that a stage states."""
    stage, found = case.plan.stages[number], []
    for name in ("in_s", "compute_s", "overflow_s", "out_s", "memory_bytes", "load_s", "sync_s"):
        stated, expected = getattr(stage, name), getattr(cost, name)
        if not same(stated, expected):
            message = f"{name} is {stated!r}, recomputed {expected!r}"
            found.append(Violation("load", f"stage {number}", message, expected, stated))
    return found


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
