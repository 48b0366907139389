"""Validate a plan of the objective latency: the time of one sample.

`blocks`: everything is recomputed from the stages and their order. `operators`: the plan states
when every unit and every transfer starts; that these times are possible is checked, not that
they are the earliest.
"""

from __future__ import annotations

from dnnp.core.check.case import PlanCase
from dnnp.core.check.devices import number_of
from dnnp.core.check.invoked import check_blocks
from dnnp.core.check.load import Cost
from dnnp.core.check.placed import check_operators
from dnnp.core.check.tables import shown
from dnnp.core.check.violation import Violation, above, same
from dnnp.core.model.graph import Graph
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
        if above(needed, device.memory_bytes):
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
