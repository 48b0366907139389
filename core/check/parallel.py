"""Parallel plans, recomputed: stages that several devices hold together, in several replicas.

The cost is that of `dnnp(7)`, "Parallel plans", written down a second time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from dnnp.core.check.claims import combined, number_of
from dnnp.core.check.graph import Tables
from dnnp.core.check.layouts import Layouts
from dnnp.core.check.load import Cost, PlanCase, Units, footprint_of, node_memory
from dnnp.core.check.violation import Violation, differs
from dnnp.core.model.device import DeviceClass, Level
from dnnp.core.model.plan import Plan, Stage

SERVERS, RING = 4.0, 2.0
"""Bytes moved by a device per byte of weights, without the factor (d - 1) / d."""


@dataclass(frozen=True)
class _Node:
    """A node on some devices at once; times without and with their exchange."""

    time: float
    exchanged: float
    memory: float
    held: float
    weight: float | None


class Sharded:
    """Stated costs of nodes and tensors at a degree, on one device class."""

    def __init__(self, case: PlanCase, device: DeviceClass) -> None:
        graph = case.graph
        self.graph, self.tables, self.device = graph, case.tables, device
        self.degrees = [1] if graph.shards is None else graph.shards.degrees.tolist()
        self.stated = graph.shards is not None and graph.shards.again is not None
        self.whole = graph.times[device.name].tolist() if device.name in graph.times else []
        self.factor = _factors(case.units, self.whole, device.name)
        self.layouts: dict[int, Layouts] = {}
        if graph.shards is not None and (graph.states is not None or graph.phases is not None):
            for i, t in enumerate(self.degrees):
                shares = [share for share in graph.shards.shares if share.degree == i]
                self.layouts[t] = Layouts(case.tables, shares, t)

    def node(self, v: int, degree: int, *, again: bool) -> _Node:
        """Node v at a degree; `again`: its forward pass is run twice, as far as shards state it."""
        shards, i = self.graph.shards, self.degrees.index(degree)
        own = node_memory(self.tables, v)
        held = float(self.graph.held_bytes[v])
        if shards is None:
            return _Node(self.whole[v] * self.factor[v], 0.0, own, held, None)
        costs = shards.again if again and shards.again is not None else shards.plain
        time = float(costs.times[self.device.name][i, v]) * self.factor[v]
        memory = float(costs.memory[i, v])
        if math.isnan(memory) and again:
            memory = float(shards.plain.memory[i, v])
        if degree in self.layouts:
            memory = self.layouts[degree].memory.get(v, math.nan)
            stated = self.layouts[degree].exchanged.get(v, [])
        else:
            stated = [c[2:] for c in shards.collectives if c[:2] == (i, v)]
        exchanged = math.fsum(self._exchange(kind, size, degree) for kind, size in stated)
        weight = float(shards.weight[i, v])
        return _Node(
            time,
            exchanged,
            own if math.isnan(memory) else memory,
            float(costs.held[i, v]),
            None if math.isnan(weight) else weight,
        )

    def weighed(self, degree: int) -> bool:
        """True if every node states its weights at a degree."""
        if self.graph.shards is None:
            return False
        stated = self.graph.shards.weight[self.degrees.index(degree)].tolist()
        return not any(map(math.isnan, stated))

    def moved(self, tensor: int, degree: int, *, enters: bool) -> float:
        """Time that a tensor takes to enter or leave a stage."""
        band, tables = self.device.bandwidth_bytes_per_s, self.tables
        time = tables.moving(tensor, band)
        shards = self.graph.shards
        if degree in self.layouts:
            time += self.layouts[degree].leaving.get(tensor, 0.0) * (not enters) / band
        elif shards is not None:
            extra = shards.in_bytes if enters else shards.out_bytes
            time += float(extra[self.degrees.index(degree), tensor]) / band
        return time

    def _exchange(self, kind: str, size: float, degree: int) -> float:
        """A collective around a ring."""
        if degree == 1:
            return 0.0
        level = self._cluster(degree)
        band = (level or self.device).bandwidth_bytes_per_s
        share = size * (degree - 1) / degree / band
        if kind == "all-reduce":
            return 2 * share
        return share / degree if kind == "all-to-all" else share

    def torn(self, stage: Stage) -> bool:
        """True if the shards of a replica are not in one cluster, but should be."""
        t, first, level = stage.shards, number_of(stage) or 0, self._cluster(stage.shards)
        starts = (first + j * t for j in range(max(stage.replicas, 1)))
        return level is not None and any(
            s // level.size != (s + t - 1) // level.size for s in starts
        )

    def _cluster(self, degree: int) -> Level | None:
        """The clusters that replicas sit in, where they can be filled so."""
        nested = all(b % a == 0 for a, b in zip(self.degrees, self.degrees[1:], strict=False))
        inside = [x for x in self.device.levels if nested and x.size % degree == 0]
        return inside[0] if inside else None


def _factors(units: Units, whole: list[float], name: str) -> list[float]:
    """Time of a group over that of its nodes, for each node; 1 where unknown."""
    stated, summed = units.times.get(name), [0.0] * len(units.ids)
    for v, time in enumerate(whole):
        summed[units.of_node[v]] += time
    factors = []
    for v in range(len(whole)):
        unit = units.of_node[v]
        usable = stated is not None and 0 < summed[unit] < math.inf
        factor = stated[unit] / summed[unit] if usable and stated is not None else 1.0
        factors.append(1.0 if abs(factor - 1) <= 1e-12 else factor)
    return factors


def hybrid_costs(case: PlanCase) -> tuple[list[Cost], list[Violation]]:
    """Recompute the stages of a parallel plan.

    Returns
    -------
    The cost of each stage, and what does not hold besides what follows from that.
    """
    graph, plan, tables, blocks = case.graph, case.plan, case.tables, case.blocks
    stated = graph.shards is not None and graph.shards.again is not None
    found = [*_unknown(plan, stated or tables.training), *_batch(plan), *_listed(tables, blocks)]
    costs = []
    later = sum(max(stage.replicas, 1) for stage in plan.stages)
    for number, (stage, block) in enumerate(zip(plan.stages, blocks, strict=True)):
        later -= max(stage.replicas, 1)
        subject = f"stage {number}"
        device = case.devices.get(stage.device_class, DeviceClass(stage.device_class))
        sharded = Sharded(case, device)
        priced = stage.device_class in graph.times
        if stage.shards not in sharded.degrees or not priced:
            message = f"nodes state nothing for {stage.shards} devices at once"
            found.append(Violation("support", subject, message, None, stage.shards))
            costs.append(Cost(0.0, math.inf, 0.0, 0.0, 0.0, math.inf, 0.0))
            continue
        found += _again(tables, plan, stage, block, subject, stated=stated)
        if sharded.torn(stage):
            message = "its shards are not in one cluster, whose links they are priced with"
            found.append(Violation("device", subject, message))
        cost, collective, in_flight = stage_cost(sharded, plan, stage, block, later)
        costs.append(cost)
        if not math.isfinite(cost.compute_s):
            message = f"a node cannot run on {stage.shards} devices of '{stage.device_class}'"
            found.append(Violation("support", subject, message))
        found += differs("load", subject, "collective_s", stage.collective_s, collective)
        if stage.in_flight != in_flight:
            message = f"in_flight is {stage.in_flight}, recomputed {in_flight}"
            found.append(Violation("load", subject, message, in_flight, stage.in_flight))
    return costs, found


def _batch(plan: Plan) -> Iterator[Violation]:
    """Check that replicas share a batch equally and are no more than micro-batches."""
    if plan.hybrid is None:
        return
    count = plan.hybrid.micro_batches
    for number, stage in enumerate(plan.stages):
        if stage.replicas < 1 or count % stage.replicas:
            message = f"{stage.replicas} replicas cannot share {count} micro-batches equally"
            yield Violation("replicas", f"stage {number}", message)
        if not stage.shared and not 1 <= stage.shards <= plan.hybrid.tensor_parallel:
            most = plan.hybrid.tensor_parallel
            message = f"has {stage.shards} shards, the plan allows {most}"
            yield Violation("replicas", f"stage {number}", message, most, stage.shards)
    total = sum(stage.replicas for stage in plan.stages)
    if total > count:
        message = f"{total} replicas for {count} micro-batches"
        yield Violation("replicas", "plan", message, count, total)


def _unknown(plan: Plan, again: bool) -> Iterator[Violation]:
    """Find what is not for parallel plans; `again`: there is a pass to repeat.

    `dnnp-partition` refuses the same.
    """
    options = plan.options
    repeats = plan.hybrid is not None and plan.hybrid.recompute != "none"
    slower = any(
        level.bandwidth_bytes_per_s < device.bandwidth_bytes_per_s
        for device in plan.devices
        for level in device.levels
    )
    wrong = {
        "devices": (
            len(plan.devices) != 1 or plan.devices[0].is_cpu,
            "they are of one class, without CPUs beside them",
        ),
        "links": (bool(plan.links), "they know the links of their class only"),
        "inner_bandwidth_bytes_per_s": (slower, "no cluster has slower links inside"),
        "objective": (options.objective != "throughput", "they are for throughput"),
        "validity": (plan.validity != "ordered", "their stages are in the order of a pipeline"),
        "memory_model": (options.memory_model != "sum", "they add memory up"),
        "memory_mode": (options.memory_mode == "overflow", "what they hold is within capacity"),
        "charge_io": (options.charge_io, "they do not charge inputs and outputs"),
        "max_replicas": (options.max_replicas != 1, "that is data_parallel"),
        "ways": (bool(plan.ways), "they are compared with no simpler ways"),
        "planned_by": (bool(plan.planned_by), "they know the links of their class only"),
        "parallel.recompute": (repeats and not again, "the graph has no backward pass"),
    }
    yield from (
        Violation("parallel", "plan", f"{name} is not for parallel plans: {why}")
        for name, (is_there, why) in wrong.items()
        if is_there
    )


def _listed(tables: Tables, blocks: Sequence[Sequence[int]]) -> Iterator[Violation]:
    """Check that stages are listed in the order of the pipeline, which sets `in_flight`.

    Forward edges go onward; backward edges go back, or all of them onward.
    """
    number = {v: s for s, block in enumerate(blocks) for v in block}
    steps: dict[bool, list[tuple[int, int]]] = {False: [], True: []}
    for v, s in number.items():
        for u in tables.producers(v):
            if tables.backward[u] == tables.backward[v] and number.get(u, s) != s:
                steps[tables.backward[v]].append((number[u], s))
    wrong = [(a, b) for a, b in steps[False] if a > b]
    back, onward = ([e for e in steps[True] if (e[0] < e[1]) == up] for up in (False, True))
    wrong += onward if len(onward) < len(back) else back
    for a, b in wrong[:1]:
        message = "stages are not listed in the order of the pipeline, where stage "
        yield Violation("order", "plan", f"{message}{a} comes before stage {b}")


def _again(
    tables: Tables, plan: Plan, stage: Stage, block: Sequence[int], subject: str, *, stated: bool
) -> Iterator[Violation]:
    """Check the forward passes that run again: some of the stage's, as the plan allows."""
    forward = {tables.ids[v] for v in block if stated or not tables.backward[v]}
    again = set(stage.recomputed)
    allowed = plan.hybrid.recompute if plan.hybrid is not None else "none"
    wrong = ""
    if not again <= forward or len(again) < len(stage.recomputed):
        wrong = "runs nodes again that are not in its forward pass, or twice"
    elif again and allowed == "none":
        wrong = "runs its forward pass again, which the plan does not allow"
    elif again != forward and allowed == "full":
        wrong = "does not run all of its forward pass again"
    elif again not in (set(), forward) and not (stated and not stage.shared):
        what = "a shared stage" if stage.shared else "this graph"
        wrong = f"runs a part of its forward pass again; it is all or nothing for {what}"
    if wrong:
        yield Violation("load", subject, wrong)


def stage_cost(
    sharded: Sharded, plan: Plan, stage: Stage, block: Sequence[int], later: int
) -> tuple[Cost, float, int]:
    """Cost of a stage, what of it its shards exchange, and micro-batches under way."""
    tables, t, d = sharded.tables, stage.shards, max(stage.replicas, 1)
    again = set(stage.recomputed)
    nodes = {v: sharded.node(v, t, again=tables.ids[v] in again) for v in block}
    twice = [] if sharded.stated else [v for v in block if tables.ids[v] in again]
    compute = math.fsum(n.time + n.exchanged for n in nodes.values())
    compute += math.fsum(nodes[v].time + nodes[v].exchanged for v in twice)
    collective = math.fsum(n.exchanged for n in nodes.values())
    collective += math.fsum(nodes[v].exchanged for v in twice)
    crossing = footprint_of(tables, block, replace(plan.options, charge_io=False))
    in_s = math.fsum(sharded.moved(x, t, enters=True) for x in crossing.arriving)
    out_s = math.fsum(sharded.moved(x, t, enters=False) for x in crossing.leaving)
    in_flight = math.ceil((d + later) / d)
    fixed = math.fsum(n.memory - n.held for n in nodes.values())
    held = math.fsum(n.held for n in nodes.values())
    if twice:
        forward = [x for x in crossing.arriving if not tables.backward[tables.writer[x]]]
        fixed, held = fixed + held, math.fsum(tables.size[x] for x in forward)
    stated = [n.weight for n in nodes.values() if n.weight is not None]
    weights = math.fsum(stated) if sharded.weighed(t) else crossing.weight_bytes
    load, sync = _load(sharded, plan, weights, (in_s, compute, out_s), d)
    memory = fixed + in_flight * held
    return Cost(in_s, compute, 0.0, out_s, memory, load, 0.0, sync), collective, in_flight


def _load(
    sharded: Sharded, plan: Plan, weights: float, parts: tuple[float, float, float], d: int
) -> tuple[float, float]:
    """Load of a stage, and the part that synchronises weights."""
    options = plan.hybrid
    in_s, compute, out_s = parts
    alone = combined(plan.options.comm, in_s, compute, 0.0, out_s) / d
    if options is None:
        return alone, 0.0
    factor = SERVERS if options.weight_sync == "server" else RING
    sync = factor * weights * (d - 1) / d
    sync /= options.micro_batches * sharded.device.bandwidth_bytes_per_s
    return (max(alone, sync) if options.overlap_sync else alone + sync), sync
