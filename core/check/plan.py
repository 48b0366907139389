"""Validate a plan: recompute everything it says, and return everything that does not hold."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

from dnnp.core.check.claims import (
    check_devices,
    check_excess,
    check_objective,
    check_offer,
    check_shared,
    check_tried,
    fullest,
    together,
)
from dnnp.core.check.graph import Tables, check_validity, on_a_cycle, state_rows
from dnnp.core.check.latency import LatencyCase, check_latency
from dnnp.core.check.load import (
    Cost,
    Footprint,
    Home,
    LinkTimes,
    Mesh,
    PlanCase,
    StageLinks,
    check_parts,
    clusters_of,
    compute_of,
    footprint_of,
    price,
)
from dnnp.core.check.phases import as_planned, check_rates, check_workload
from dnnp.core.check.placing import check_rules, reached
from dnnp.core.check.violation import Violation, above, differs, fits, same, shown
from dnnp.core.model.device import DeviceClass, own_times
from dnnp.core.model.graph import Clustering, Graph, with_own_times
from dnnp.core.model.plan import CostOptions, Plan, Stage, Way
from dnnp.core.model.text import shown_bytes

INFEASIBLE = ("capacity",)
"""Kinds of violation of a consistent plan that exceeds its devices."""


@dataclass(frozen=True)
class PlanReport:
    """A plan recomputed, and what is wrong with it."""

    violations: tuple[Violation, ...]
    value: float | None
    """Recomputed objective; None where it is not defined: blocks that wait for each other, or no
    pass to speak of."""
    validity: str
    """The strongest one that holds."""
    costs: tuple[Cost, ...]
    """Recomputed load of every stage."""


def check_plan(graph: Graph, clustering: Clustering | None, plan: Plan) -> PlanReport:
    """Recompute a plan and compare; any values that its types allow are accepted."""
    latency = plan.objective == "latency" and plan.hybrid is None
    graph, clustering = with_own_times(graph, clustering, own_times(plan.devices))
    first, first_groups = graph, clustering
    graph, clustering = as_planned(graph, clustering, plan.options)
    case = (LatencyCase if latency else PlanCase).of(graph, clustering, plan)
    tables, units = case.tables, case.units
    found = [
        *_assignment(case),
        *_orders(case),
        *_groups(case, clustering),
        *check_offer(plan),
        *check_tried(plan),
        *_states(case),
        *check_rules(case),
        *check_workload(first, plan),
        *check_rates(first, first_groups, plan, partial(_loads, plan)),
    ]
    validity, weaker = check_validity(tables, case.blocks, plan.validity)
    found += weaker
    if isinstance(case, LatencyCase):
        for number, (stage, block) in enumerate(zip(plan.stages, case.blocks, strict=True)):
            reasons = compute_of(units, stage, block)[1]
            found += [Violation("support", f"stage {number}", reason) for reason in reasons]
        wrong, value, costs = check_latency(case)
        found += [*wrong, *check_objective(plan, value)]
        found += check_excess(plan, [case.memory(number) for number in range(len(case.blocks))])
        return PlanReport(tuple(found), value, validity, tuple(costs))
    found += check_colors(case)
    found += [*check_devices(plan), *check_shared(plan)]
    if plan.hybrid is not None:
        from dnnp.core.check.parallel import hybrid_costs

        costs, wrong = hybrid_costs(case)
    else:
        costs, wrong = _costs(case)
    found += wrong
    shared = math.fsum(c.memory_bytes for s, c in zip(plan.stages, costs, strict=True) if s.shared)
    for number, (stage, cost) in enumerate(zip(plan.stages, costs, strict=True)):
        device, subject = case.devices.get(stage.device_class, NO_DEVICE), f"stage {number}"
        found += [*_load(stage, cost, subject), *_peak(stage, cost, subject)]
        needed = shared + (0.0 if stage.shared else cost.memory_bytes)
        if plan.options.memory_mode == "hard" and not device.is_cpu:
            found += _capacity(needed, device, subject)
    value, undefined = _value(plan, costs, training=tables.training)
    found += [*undefined, *check_objective(plan, value)]
    found += check_excess(plan, [cost.memory_bytes for cost in costs])
    if plan.ways and plan.hybrid is None and not _is_cyclic(tables):
        found += _ways(case)
    return PlanReport(tuple(found), value, validity, tuple(costs))


def _loads(
    plan: Plan, graph: Graph, clustering: Clustering | None, options: CostOptions
) -> list[float]:
    """Loads of the stages of a plan over a graph, with other options."""
    from dnnp.core.check.parallel import hybrid_costs

    case = PlanCase.of(graph, clustering, replace(plan, options=options))
    costs, _ = _costs(case) if plan.hybrid is None else hybrid_costs(case)
    return [cost.load_s for cost in costs]


NO_DEVICE = DeviceClass("")
"""Class that is not among the devices of a plan."""


def _costs(case: PlanCase) -> tuple[list[Cost], list[Violation]]:
    """Recompute stages on their devices; and find operators that these do not support."""
    plan, tables, blocks = case.plan, case.tables, case.blocks
    wires = StageLinks(plan, tables, blocks) if plan.links else None
    homes = clusters_of(plan, case.devices)
    members: dict[Home, set[int]] = {}
    for mine, block in zip(homes, blocks, strict=True):
        for home, _ in mine:
            members.setdefault(home, set()).update(block)
    costs, found = [], []
    for number, (stage, block) in enumerate(zip(plan.stages, blocks, strict=True)):
        compute, unsupported = compute_of(case.units, stage, block)
        found += [Violation("support", f"stage {number}", reason) for reason in unsupported]
        near = [(members[home], bandwidth) for home, bandwidth in homes[number]]
        costs.append(
            price(
                tables,
                footprint_of(tables, block, plan.options),
                compute,
                case.devices.get(stage.device_class, NO_DEVICE),
                plan.options,
                max(stage.replicas, 1),
                () if wires else near,
                None if wires is None else wires.of(number),
            )
        )
    return costs, found


def _is_cyclic(tables: Tables) -> bool:
    return bool(on_a_cycle(range(tables.n), tables.producers))


def check_choices(
    graph: Graph, clustering: Clustering | None, plan: Plan, runs: Sequence[Mapping[str, Any]]
) -> list[Violation]:
    """Recompute what runs of a plan say was predicted of what is to be deployed."""
    if plan.objective == "latency" or not any("choice" in run for run in runs):
        return []
    graph, clustering = with_own_times(graph, clustering, own_times(plan.devices))
    case = PlanCase.of(graph, clustering, plan)
    return [] if _is_cyclic(case.tables) else list(_predicted(case, runs))


def _assignment(case: PlanCase) -> Iterator[Violation]:
    """Check that every node of the graph is in exactly one stage."""
    plan, known = case.plan, set(case.tables.ids)
    where: dict[int, int] = {}
    again: dict[int, list[int]] = {}
    for number, stage in enumerate(plan.stages):
        if not stage.nodes:
            yield Violation("stages", f"stage {number}", "the stage has no nodes")
        for node in stage.nodes:
            if node not in known:
                message = f"node {node} is not in the graph"
                yield Violation("node", f"stage {number}", message)
            if node in where:
                again.setdefault(node, [where[node]]).append(number)
            where.setdefault(node, number)
    for node in case.tables.ids:
        if node not in where or node in again:
            stages = again.get(node, [])
            place = f"stages {shown(stages)}" if stages else "no stage"
            message = f"the node is in {place}, not in one"
            yield Violation("node", f"node {node}", message, 1, len(stages))


def _orders(case: PlanCase) -> Iterator[Violation]:
    """Check that producers run before consumers inside a stage."""
    tables = case.tables
    for number, block in enumerate(case.blocks):
        inside, done = set(block), set()
        for node in block:
            for producer in tables.producers(node):
                if producer in inside and producer not in done:
                    message = f"node {tables.ids[node]} runs before node {tables.ids[producer]}"
                    message += ", whose output it reads"
                    yield Violation("order", f"stage {number}", message)
            done.add(node)


def _groups(case: PlanCase, clustering: Clustering | None) -> Iterator[Violation]:
    """Check that every group lies wholly in one stage."""
    if clustering is None:
        return
    homes: dict[int, set[int]] = {}
    label = clustering.label.tolist()
    for number, block in enumerate(case.blocks):
        for node in block:
            homes.setdefault(label[node], set()).add(number)
    for group, stages in sorted(homes.items()):
        if len(stages) > 1:
            message = f"the group is cut over stages {shown(sorted(stages))}"
            subject = f"group {int(clustering.group_ids[group])}"
            yield Violation("group", subject, message, 1, len(stages))


def _states(case: PlanCase) -> Iterator[Violation]:
    """Check that what reads and makes a state is on one device; a pool of CPUs counts as one."""
    home: dict[int, str] = {}
    for stage, block in zip(case.plan.stages, case.blocks, strict=True):
        device = case.devices.get(stage.device_class, NO_DEVICE)
        pooled = device.is_cpu and case.plan.options.execution == "blocks"
        home.update(dict.fromkeys(block, device.name if pooled else stage.device))
    tables, ids = case.tables, case.graph.tensor_ids.tolist()
    for row in state_rows(case.graph):
        ends = (row.before, row.after)
        nodes = {v for t in ends for v in tables.users.get(t, ())} | {tables.writer[row.after]}
        homes = sorted({home[v] for v in nodes if v in home})
        if len(homes) > 1:
            message = f"its tensors {ids[row.before]} and {ids[row.after]} are used on "
            message += f"{shown(homes)}, not on one device"
            yield Violation("state", f"state of tensor {ids[row.before]}", message, 1, len(homes))


def check_colors(case: PlanCase) -> Iterator[Violation]:
    """Check that nodes of one colour share a stage, or are in shared stages if allowed."""
    stage_of = {v: number for number, block in enumerate(case.blocks) for v in block}
    classes: dict[int, list[int]] = {}
    colors = case.graph.color.tolist()
    for node, color in enumerate(colors):
        if color >= 0:
            classes.setdefault(color, []).append(node)
    for color, nodes in sorted(classes.items()):
        stages = sorted({stage_of[v] for v in nodes if v in stage_of}) if len(nodes) > 1 else []
        apart = len(stages) > 1
        if not together(case.plan, stages) or (apart and not _may_part(case, nodes, stage_of)):
            message = f"nodes {shown([case.tables.ids[v] for v in nodes])} must share a device"
            message += f" but are in stages {shown(stages)}"
            yield Violation("color", f"color {color}", message, 1, len(stages))


def _may_part(case: PlanCase, nodes: Sequence[int], stage_of: Mapping[int, int]) -> bool:
    """True if nodes of a colour may be in several shared stages.

    On a path of the forward pass between their units there is another one, and each backward node
    is in the stage of the one that it is `of`.
    """
    graph, tables, units = case.graph, case.tables, case.units
    mirror = [-1] * tables.n if graph.twin is None else graph.twin.tolist()
    ahead = {v for v in nodes if not tables.backward[v]}
    late = set(nodes) - ahead
    if any(mirror[v] not in ahead or stage_of.get(mirror[v]) != stage_of.get(v) for v in late):
        return False
    before: dict[int, set[int]] = {unit: set() for unit in range(len(units.ids))}
    after: dict[int, set[int]] = {unit: set() for unit in before}
    for v in range(tables.n):
        for u in tables.producers(v):
            if not tables.backward[u] and not tables.backward[v]:
                before[units.of_node[v]].add(units.of_node[u])
                after[units.of_node[u]].add(units.of_node[v])
    mine = {units.of_node[v] for v in ahead}
    met = (reached(mine, steps.__getitem__, {*before}) for steps in (before, after))
    return bool(set.intersection(*met) - mine)


def _load(stage: Stage, cost: Cost, subject: str) -> Iterator[Violation]:
    """Check the stated parts of a stage's load."""
    yield from check_parts(stage, cost, subject)
    for name in ("forward_s", "backward_s"):
        stated, expected = getattr(stage, name), getattr(cost, name)
        if stated is None and expected is None:
            continue
        if stated is None:
            message = f"{name} is missing, recomputed {expected!r}"
        elif expected is None:
            message = f"{name} is {stated!r}, but the graph has no backward pass"
        else:
            yield from differs("load", subject, name, stated, expected)
            continue
        yield Violation("load", subject, message, expected, stated)


def _peak(stage: Stage, cost: Cost, subject: str) -> Iterator[Violation]:
    """Check the peak of live activations and its bound, where stated."""
    peak, bound = stage.peak_bytes, stage.peak_bound_bytes
    if cost.peak_bytes is None:
        for name, stated in (("peak_bytes", peak), ("peak_bound_bytes", bound)):
            if stated is not None:
                message = f"{name} is {stated!r}, but memory is summed"
                yield Violation("load", subject, message, None, stated)
        return
    if peak is not None:
        yield from differs("load", subject, "peak_bytes", peak, cost.peak_bytes)
    if bound is not None and above(bound, cost.peak_bytes):
        message = f"the bound of the peak {bound!r} exceeds the peak {cost.peak_bytes!r}"
        yield Violation("bound", subject, message, cost.peak_bytes, bound)


def _capacity(memory: float, device: DeviceClass, subject: str) -> Iterator[Violation]:
    """Check memory against the device's capacity, where nothing may overflow."""
    if not fits(memory, device.memory_bytes):
        needed, there = shown_bytes(memory, 6), shown_bytes(device.memory_bytes, 6)
        message = f"needs {needed}, '{device.name}' has {there}"
        yield Violation("capacity", subject, message, device.memory_bytes, memory)


def _value(
    plan: Plan, costs: Sequence[Cost], *, training: bool
) -> tuple[float | None, list[Violation]]:
    """Recompute the objective; None, and why, if it is not defined."""
    if plan.objective in ("throughput", "sequence") or plan.hybrid is not None:
        return fullest(plan, [cost.load_s for cost in costs]), []
    if plan.objective != "gpipe":
        return None, []
    if not training:
        message = "the objective 'gpipe' needs a graph with a backward pass"
        return None, [Violation("value", "plan", message, "throughput", plan.objective)]
    ahead = max((cost.forward_s for cost in costs if cost.forward_s is not None), default=0.0)
    back = max((cost.backward_s for cost in costs if cost.backward_s is not None), default=0.0)
    return ahead + back, []


def _ways(case: PlanCase) -> Iterator[Violation]:
    """Check the ways that a plan was compared with.

    The whole model on one device, and replicas of it, are priced again: they have no choice but
    that of the class and the number of devices. What searches found of the others cannot be
    recomputed, but it is not better than the plan, and fits the devices. One device may run all
    nodes in topological order.
    """
    plan, units, whole = case.plan, case.units, _Whole(case)
    yield from _chosen(plan)
    offered = sum(device.count for device in plan.devices)
    for way in plan.ways:
        if not way.stages <= way.devices <= offered or way.stages > len(units.ids):
            message = f"has {way.stages} stages on {way.devices} devices, of {offered} devices and "
            yield _wrong(way, f"{message}{len(units.ids)} {units.what}s")
        if way.value is None and not way.reason:
            yield _wrong(way, "has neither a value nor a reason")
        if way.value is not None and above(plan.value, way.value):
            message = f"has the value {way.value!r}, better than the plan's {plan.value!r}"
            yield _wrong(way, message, plan.value, way.value)
        if way.name in ("whole", "replicas"):
            yield from whole.check(way)


def _predicted(case: PlanCase, runs: Sequence[Mapping[str, Any]]) -> Iterator[Violation]:
    """Find runs whose predicted ratio differs from that of the cost model.

    Replicas of the whole model run on as many devices of the plan as they say, in its order, and
    share nothing; the rate is over that of the plan.
    """
    whole = _Whole(case)
    sessions = {run["mode"]: run.get("k") for run in runs}
    for number, run in enumerate(runs):
        choice = run.get("choice", {})
        stated, mode = choice.get("predicted_ratio"), choice.get("mode")
        if stated is None or mode not in sessions:
            continue
        low, high = (1.0, 1.0) if mode == "pipeline" else whole.ratios(sessions[mode] or 1)
        if above(low, stated) or above(stated, high):
            message = f"predicted_ratio of the choice is {stated!r}, recomputed {low!r}"
            yield Violation("value", f"run {number}", message, low, stated)


def _wrong(
    way: Way, message: str, expected: float | None = None, got: float | None = None
) -> Violation:
    return Violation("value", f"way {way.name}", message, expected, got)


def _chosen(plan: Plan) -> Iterator[Violation]:
    """Check that ways are distinct, fit their names, and include the plan."""
    names = [way.name for way in plan.ways]
    if len(set(names)) < len(names):
        yield Violation("value", "plan", "a way is listed twice")
        return
    for way in plan.ways:
        if way.value is not None and way.name != _name(way.stages, way.devices):
            message = f"is one of {way.stages} stages on {way.devices} devices"
            yield _wrong(way, message)
    devices = sum(stage.replicas for stage in plan.stages)
    name = _name(len(plan.stages), devices)
    mine = [way for way in plan.ways if way.name == name and way.value is not None]
    if not mine:
        message = f"the plan is a {name}, which is not among the ways that were compared"
        yield Violation("value", "plan", message)
        return
    (way,) = mine
    if not same(way.value or 0.0, plan.value):
        message = f"has the value {way.value!r}, but it is the plan, of {plan.value!r}"
        yield _wrong(way, message, plan.value, way.value)
    if (way.stages, way.devices) != (len(plan.stages), devices):
        message = f"has {way.stages} stages on {way.devices} devices, but it is the plan, with "
        message += f"{len(plan.stages)} on {devices}"
        yield _wrong(way, message)


def _name(stages: int, devices: int) -> str:
    """The way that so many stages on so many devices are."""
    if stages < 2:
        return "replicas" if devices > 1 else "whole"
    return "replicated-pipeline" if devices > stages else "pipeline"


class _Whole:
    """The whole model on devices of each class."""

    def __init__(self, case: PlanCase) -> None:
        self.plan, self.tables, self.units = case.plan, case.tables, case.units
        self.order = case.graph.order.tolist()
        self.free = case.plan.options.memory_model == "peak"
        """Memory depends on the order of the nodes: another one may need less."""
        self._widest: dict[str, list[float]] = {}

    def check(self, way: Way) -> list[Violation]:
        """Price the whole model, or replicas of it, again."""
        least = 1 if way.name == "whole" else 2
        offered = [d for d in self.plan.devices if d.count >= least]
        if way.value is None:
            holds = [d.name for d in offered if self.fits(d)]
            if holds:
                return [_wrong(way, f"cannot be, it says, but '{holds[0]}' holds the whole model")]
            return []
        devices = [d for d in offered if d.name == way.device_class]
        if not devices or not least <= way.devices <= devices[0].count:
            message = f"there are no {way.devices} devices of class '{way.device_class}'"
            return [_wrong(way, message)]
        value, memory = self.value(devices[0], way.devices)
        # Overflow is part of the value, and less in an order of smaller peak.
        exact = not self.free or self.plan.options.memory_mode == "hard"
        lower = above(value, way.value) and (exact or self.least(devices[0], way) > way.value)
        if above(way.value, value) or lower:
            message = f"the value is {way.value!r}, recomputed {value!r}"
            return [_wrong(way, message, value, way.value)]
        if not self.free and not self.holds(devices[0], memory):
            return [_wrong(way, f"class '{way.device_class}' cannot hold the whole model")]
        better = [
            d.name
            for d in offered
            for replicas in self.numbers(d, least)
            if self.fits(d) and above(way.value, self.value(d, replicas)[0])
        ]
        return [_wrong(way, f"is better on class '{better[0]}'")] if better else []

    def numbers(self, device: DeviceClass, least: int) -> Iterable[int]:
        """Numbers of devices of which one is best: the ends where all pairs are alike."""
        if least == 1:
            return (1,)
        if not self.joined:
            return {least, device.count}
        return range(least, len(self.widest(device)) + 1)

    def value(self, device: DeviceClass, replicas: int) -> tuple[float, float]:
        """The objective, and the memory of a device."""
        cost = self.cost(device, replicas)
        if self.plan.objective == "gpipe":
            return (cost.forward_s or 0.0) + (cost.backward_s or 0.0), cost.memory_bytes
        return cost.load_s, cost.memory_bytes

    def ratios(self, sessions: int) -> tuple[float, float]:
        """Smallest and largest rate of `sessions` copies of the model, over that of the plan.

        They differ where another order of the nodes may need less memory.
        """
        classes = {device.name: device for device in self.plan.devices}
        names = [stage.device_class for stage in self.plan.stages for _ in range(stage.replicas)]
        used = [classes[name] for name in names if name in classes]
        used = [device for device in used if math.isfinite(self.value(device, 1)[0])]
        holding = [device for device in used if self.fits(device)]
        if not self.free or (self.plan.options.memory_mode == "hard" and len(holding) == len(used)):
            rate = sum(self.rate(device) for device in holding[:sessions]) * self.plan.value
            return rate, rate
        best = [self.rate(replace(device, memory_bytes=math.inf)) for device in used]
        return 0.0, sum(sorted(best)[-sessions:]) * self.plan.value

    def rate(self, device: DeviceClass) -> float:
        """Samples a time unit of the whole model on a device; 0 where its value is."""
        value = self.value(device, 1)[0]
        return 1 / value if value else 0.0

    def least(self, device: DeviceClass, way: Way) -> float:
        """Lower bound of the value in any order of the nodes: that without overflow."""
        return self.value(replace(device, memory_bytes=math.inf), way.devices)[0]

    def cost(self, device: DeviceClass, replicas: int) -> Cost:
        times = self.units.times.get(device.name, [math.inf] * len(self.units.ids))
        late = self.units.backward
        ahead = math.fsum(t for t, back in zip(times, late, strict=True) if not back)
        back = math.fsum(t for t, back in zip(times, late, strict=True) if back)
        wires = None
        if self.joined and replicas > 1:
            widest = self.widest(device)
            narrowest = widest[replicas - 1] if replicas <= len(widest) else 0.0
            wires = LinkTimes(lambda: narrowest)
        options, compute = self.plan.options, (ahead, back)
        return price(self.tables, self.footprint, compute, device, options, replicas, wires=wires)

    @property
    def joined(self) -> bool:
        """True if the devices of replicas matter, as weights go over links."""
        return bool(self.plan.links) and self.footprint.weight_bytes > 0

    def widest(self, device: DeviceClass) -> list[float]:
        """The largest bandwidth between the worst pair of 1, 2, ... devices in a row.

        It ends with the devices that links name: others are not joined to any.
        """
        if device.name not in self._widest:
            ends = {end for link in self.plan.links for end in (link.source, link.target)}
            count = sum(end.rpartition("/")[0] == device.name for end in ends)
            names = [f"{device.name}/{i}" for i in range(min(device.count, count))]
            mesh, found = Mesh(self.plan), [math.inf] * len(names)
            for first in range(len(names)):
                worst = math.inf
                for size, name in enumerate(names[first + 1 :], 2):
                    for other in names[first : first + size - 1]:
                        for path in (mesh.path(name, other), mesh.path(other, name)):
                            worst = min(worst, 0.0 if path is None else path.bandwidth)
                    row = found[size - 1]
                    found[size - 1] = worst if math.isinf(row) else max(row, worst)
            self._widest[device.name] = found
        return self._widest[device.name]

    @cached_property
    def footprint(self) -> Footprint:
        """Transfers and memory of all nodes."""
        return footprint_of(self.tables, self.order, self.plan.options)

    def fits(self, device: DeviceClass) -> bool:
        """True if a device can hold and run the whole model."""
        value, memory = self.value(device, 1)
        return math.isfinite(value) and self.holds(device, memory)

    def holds(self, device: DeviceClass, memory: float) -> bool:
        """True if a device has `memory` bytes, or may stream the excess."""
        free = device.is_cpu or self.plan.options.memory_mode == "overflow"
        return free or fits(memory, device.memory_bytes)
