"""Validate a plan: recompute everything it says, and return everything that does not hold."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dnnp.core.check.case import Units, compute_of, make_case, units_of
from dnnp.core.check.claims import (
    check_excess,
    check_objective,
    check_offer,
    check_shared,
    check_tried,
    fullest,
    together,
)
from dnnp.core.check.devices import Home, Wires, check_devices, clusters_of
from dnnp.core.check.graph import Tables, on_a_cycle, shown, tables_of
from dnnp.core.check.latency import check_latency
from dnnp.core.check.load import Cost, cost_of
from dnnp.core.check.replication_options import check_predicted, check_ways
from dnnp.core.check.validity import check_validity
from dnnp.core.check.violation import Violation, above, fits, same
from dnnp.core.model.cluster import Clustering
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.graph import Graph
from dnnp.core.model.plan import Plan, Stage
from dnnp.core.model.text import shown_bytes

INFEASIBLE = ("capacity",)
"""Kinds of violation of a plan that is what it says, but does not fit its devices."""


@dataclass(frozen=True)
class PlanReport:
    """What a plan is, recomputed, and what is wrong with it."""

    violations: tuple[Violation, ...]
    value: float | None
    """Recomputed objective; None where it is not defined: blocks that wait for each other, or no
    pass to speak of."""
    validity: str
    """The strongest one that holds."""
    costs: tuple[Cost, ...]
    """Recomputed load of every stage."""


def check_plan(graph: Graph, clustering: Clustering | None, plan: Plan) -> PlanReport:
    """Recompute a plan from its stages and compare.

    Parameters
    ----------
    graph, clustering
        What the plan splits; without groups every node stands alone.
    plan
        The plan; it may be wrong in any way that its types allow.
    """
    tables = tables_of(graph)
    position = {node_id: v for v, node_id in enumerate(tables.ids)}
    blocks = [[position[i] for i in stage.nodes if i in position] for stage in plan.stages]
    devices = {device.name: device for device in plan.devices}
    found = _assignment(tables, plan, position)
    found += _orders(tables, blocks)
    found += _groups(tables, clustering, blocks)
    found += check_offer(plan) + check_tried(plan)
    validity, weaker = check_validity(tables, blocks, plan.validity)
    found += weaker
    units = units_of(graph, clustering, tables)
    if plan.objective == "latency" and plan.hybrid is None:
        for number, (stage, block) in enumerate(zip(plan.stages, blocks, strict=True)):
            reasons = compute_of(units, stage, block)[1]
            found += [Violation("support", f"stage {number}", reason) for reason in reasons]
        case = make_case(graph, plan, tables, units, blocks, devices)
        wrong, latency, times = check_latency(case, graph)
        found += wrong + check_objective(plan, latency)
        found += check_excess(plan, [case.memory(number) for number in range(len(blocks))])
        return PlanReport(tuple(found), latency, validity, tuple(times))
    found += check_colors(graph, tables, units, plan, blocks)
    found += check_devices(plan) + check_shared(plan)
    if plan.hybrid is not None:
        from dnnp.core.check.hybrid import hybrid_costs

        stages, wrong = hybrid_costs(graph, tables, units, plan, blocks)
        return _report(plan, found + wrong, stages, validity)
    wires = Wires(plan, tables, blocks) if plan.links else None
    homes = clusters_of(plan, devices)
    members: dict[Home, set[int]] = {}
    for mine, block in zip(homes, blocks, strict=True):
        for home, _ in mine:
            members.setdefault(home, set()).update(block)
    costs = []
    for number, (stage, block) in enumerate(zip(plan.stages, blocks, strict=True)):
        device = devices.get(stage.device_class, DeviceClass(stage.device_class))
        subject = f"stage {number}"
        compute, unsupported = compute_of(units, stage, block)
        found += [Violation("support", subject, reason) for reason in unsupported]
        near = [(members[home], bandwidth) for home, bandwidth in homes[number]]
        cost = cost_of(
            tables,
            block,
            compute,
            device,
            plan.options,
            max(stage.replicas, 1),
            () if wires else near,
            None if wires is None else wires.of(number),
        )
        costs.append(cost)
        found += _load(stage, cost, subject)
        found += _peak(stage, cost, subject)
        found += _capacity(plan, cost, device, subject)
    value, undefined = _value(plan, costs, training=tables.training)
    found += undefined + check_objective(plan, value)
    found += check_excess(plan, [cost.memory_bytes for cost in costs])
    if plan.ways and not on_a_cycle({v: tables.producers(v) for v in range(tables.n)}):
        found += check_ways(plan, tables, units, graph.order.tolist())
    return PlanReport(tuple(found), value, validity, tuple(costs))


def _report(plan: Plan, found: list[Violation], costs: list[Cost], validity: str) -> PlanReport:
    """What is wrong with a parallel plan, whose stages cost so much."""
    devices = {device.name: device for device in plan.devices}
    pairs = list(zip(plan.stages, costs, strict=True))
    shared = math.fsum(cost.memory_bytes for stage, cost in pairs if stage.shared)
    for number, (stage, cost) in enumerate(pairs):
        device = devices.get(stage.device_class, DeviceClass(stage.device_class))
        found += _load(stage, cost, f"stage {number}") + _peak(stage, cost, f"stage {number}")
        together_bytes = shared + (0.0 if stage.shared else cost.memory_bytes)
        all_of_it = replace(cost, memory_bytes=together_bytes)
        found += _capacity(plan, all_of_it, device, f"stage {number}")
    value = fullest(plan, [cost.load_s for cost in costs])
    found += check_objective(plan, value)
    found += check_excess(plan, [cost.memory_bytes for cost in costs])
    return PlanReport(tuple(found), value, validity, tuple(costs))


def check_choices(
    graph: Graph, clustering: Clustering | None, plan: Plan, runs: Sequence[Mapping[str, Any]]
) -> list[Violation]:
    """Recompute what runs of a plan say was predicted of what is to be deployed."""
    if plan.objective == "latency" or not any("choice" in run for run in runs):
        return []
    tables = tables_of(graph)
    if on_a_cycle({v: tables.producers(v) for v in range(tables.n)}):
        return []
    units = units_of(graph, clustering, tables)
    return check_predicted(plan, tables, units, graph.order.tolist(), runs)


def _assignment(tables: Tables, plan: Plan, position: Mapping[int, int]) -> list[Violation]:
    """Every node of the graph is in exactly one stage."""
    found = []
    where: dict[int, list[int]] = {}
    for number, stage in enumerate(plan.stages):
        if not stage.nodes:
            found.append(Violation("stages", f"stage {number}", "the stage has no nodes"))
        for node in stage.nodes:
            if node not in position:
                message = f"node {node} is not in the graph"
                found.append(Violation("node", f"stage {number}", message))
            where.setdefault(node, []).append(number)
    for node in tables.ids:
        stages = where.get(node, [])
        if len(stages) != 1:
            place = f"stages {shown(stages)}" if stages else "no stage"
            message = f"the node is in {place}, not in one"
            found.append(Violation("node", f"node {node}", message, 1, len(stages)))
    return found


def _orders(tables: Tables, blocks: list[list[int]]) -> list[Violation]:
    """Inside a stage, producers run before their consumers."""
    found = []
    for number, block in enumerate(blocks):
        inside, done = set(block), set()
        for node in block:
            for producer in tables.producers(node):
                if producer in inside and producer not in done:
                    message = f"node {tables.ids[node]} runs before node {tables.ids[producer]}"
                    message += ", whose output it reads"
                    found.append(Violation("order", f"stage {number}", message))
            done.add(node)
    return found


def _groups(
    tables: Tables, clustering: Clustering | None, blocks: list[list[int]]
) -> list[Violation]:
    """Every group lies wholly in one stage."""
    if clustering is None:
        return []
    homes: dict[int, set[int]] = {}
    label = clustering.label.tolist()
    for number, block in enumerate(blocks):
        for node in block:
            homes.setdefault(label[node], set()).add(number)
    found = []
    for group, stages in sorted(homes.items()):
        if len(stages) > 1:
            message = f"the group is cut over stages {shown(sorted(stages))}"
            subject = f"group {int(clustering.group_ids[group])}"
            found.append(Violation("group", subject, message, 1, len(stages)))
    return found


def check_colors(
    graph: Graph, tables: Tables, units: Units, plan: Plan, blocks: list[list[int]]
) -> list[Violation]:
    """Nodes of one colour are in one stage, or apart in shared ones, as far as that may be."""
    stage_of = {v: number for number, block in enumerate(blocks) for v in block}
    classes: dict[int, list[int]] = {}
    homes: dict[int, set[int]] = {}
    colors = graph.color.tolist()
    for node, color in enumerate(colors):
        if color >= 0:
            classes.setdefault(color, []).append(node)
    for number, block in enumerate(blocks):
        for node in block:
            homes.setdefault(colors[node], set()).add(number)
    found = []
    for color, nodes in sorted(classes.items()):
        stages = sorted(homes.get(color, ())) if len(nodes) > 1 else []
        apart = len(stages) > 1
        if not together(plan, stages) or (
            apart and not _may_part(graph, tables, units, nodes, stage_of)
        ):
            message = f"nodes {shown([tables.ids[v] for v in nodes])} must share a device"
            message += f" but are in stages {shown(stages)}"
            found.append(Violation("color", f"color {color}", message, 1, len(stages)))
    return found


def _may_part(
    graph: Graph,
    tables: Tables,
    units: Units,
    nodes: Sequence[int],
    stage_of: Mapping[int, int],
) -> bool:
    """Whether nodes of a colour may be in several shared stages.

    On a path of the forward pass between their units there is another one, and each backward node
    is in the stage of the one that it is `of`.
    """
    twin = [-1] * tables.n if graph.twin is None else graph.twin.tolist()
    ahead = {v for v in nodes if not tables.backward[v]}
    late = set(nodes) - ahead
    if any(twin[v] not in ahead or stage_of.get(twin[v]) != stage_of.get(v) for v in late):
        return False
    before: dict[int, set[int]] = {unit: set() for unit in range(len(units.ids))}
    after: dict[int, set[int]] = {unit: set() for unit in before}
    for v in range(tables.n):
        for u in tables.producers(v):
            if not tables.backward[u] and not tables.backward[v]:
                before[units.of_node[v]].add(units.of_node[u])
                after[units.of_node[u]].add(units.of_node[v])
    mine = {units.of_node[v] for v in ahead}
    met = []
    for steps in (before, after):
        seen, waiting = set(mine), list(mine)
        while waiting:
            new = steps[waiting.pop()] - seen
            seen |= new
            waiting += new
        met.append(seen)
    return bool((met[0] & met[1]) - mine)


def _load(stage: Stage, cost: Cost, subject: str) -> list[Violation]:
    """The parts of the load that the stage states."""
    found = []
    for name in ("in_s", "compute_s", "overflow_s", "out_s", "memory_bytes", "load_s", "sync_s"):
        stated, expected = getattr(stage, name), getattr(cost, name)
        scale = cost.overflow_scale_s if name in ("overflow_s", "load_s") else 0.0
        if not same(stated, expected, scale):
            message = f"{name} is {stated!r}, recomputed {expected!r}"
            found.append(Violation("load", subject, message, expected, stated))
    for name in ("forward_s", "backward_s"):
        stated, expected = getattr(stage, name), getattr(cost, name)
        if stated is None and expected is None:
            continue
        if stated is None:
            message = f"{name} is missing, recomputed {expected!r}"
        elif expected is None:
            message = f"{name} is {stated!r}, but the graph has no backward pass"
        elif not same(stated, expected):
            message = f"{name} is {stated!r}, recomputed {expected!r}"
        else:
            continue
        found.append(Violation("load", subject, message, expected, stated))
    return found


def _peak(stage: Stage, cost: Cost, subject: str) -> list[Violation]:
    """The peak of live activations, and its bound; a stage need not state them."""
    found = []
    peak, bound = stage.peak_bytes, stage.peak_bound_bytes
    if cost.peak_bytes is None:
        for name, stated in (("peak_bytes", peak), ("peak_bound_bytes", bound)):
            if stated is not None:
                message = f"{name} is {stated!r}, but memory is summed"
                found.append(Violation("load", subject, message, None, stated))
        return found
    if peak is not None and not same(peak, cost.peak_bytes):
        message = f"peak_bytes is {peak!r}, recomputed {cost.peak_bytes!r}"
        found.append(Violation("load", subject, message, cost.peak_bytes, peak))
    if bound is not None and above(bound, cost.peak_bytes):
        message = f"the bound of the peak {bound!r} exceeds the peak {cost.peak_bytes!r}"
        found.append(Violation("bound", subject, message, cost.peak_bytes, bound))
    return found


def _capacity(plan: Plan, cost: Cost, device: DeviceClass, subject: str) -> list[Violation]:
    """Memory against the device's capacity, where nothing may overflow."""
    if device.is_cpu or plan.options.memory_mode != "hard":
        return []
    if fits(cost.memory_bytes, device.memory_bytes):
        return []
    needed, there = shown_bytes(cost.memory_bytes, 6), shown_bytes(device.memory_bytes, 6)
    message = f"needs {needed}, '{device.name}' has {there}"
    return [Violation("capacity", subject, message, device.memory_bytes, cost.memory_bytes)]


def _value(
    plan: Plan, costs: Sequence[Cost], *, training: bool
) -> tuple[float | None, list[Violation]]:
    """Recompute the objective; None, and why, if it is not defined."""
    if plan.objective == "throughput":
        return max((cost.load_s for cost in costs), default=0.0), []
    if plan.objective != "gpipe":
        return None, []
    if not training:
        message = "the objective 'gpipe' needs a graph with a backward pass"
        return None, [Violation("value", "plan", message, "throughput", plan.objective)]
    ahead = max((cost.forward_s for cost in costs if cost.forward_s is not None), default=0.0)
    back = max((cost.backward_s for cost in costs if cost.backward_s is not None), default=0.0)
    return ahead + back, []
