"""The placement of a plan: its stages as blocks of a micro-batch.

A stage becomes one block, in training a forward and a backward block. The stages of a split that
is not ordered wait for each other; they are cut into *virtual devices*, parts with a pipeline
order that share a device (2020 paper, section 5.2), and each part is a block. The parts of a
stage together cost what the stage costs, so the least period is still the largest load.

How transfers are scheduled follows the plan's cost model: with `sum` they are part of the blocks;
with `overlap` the device's link is a unit of its own, with `duplex` one for each direction (2020
paper, Appendix C.1). Explicit transfers go from block to block instead
(`core.schedule.transfers`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

import numpy as np

from dnnp.core.cost.load import crossing_times, linked_stages, transfer_times
from dnnp.core.cost.problem import SplitProblem, planned_blocks, surroundings
from dnnp.core.cost.runnable import cut_into_parts
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.errors import UsageError
from dnnp.core.model.graph import (
    CONSTANT,
    PARAMETER,
    Clustering,
    Graph,
    Ints,
    distinct,
    place_of,
    row_of,
)
from dnnp.core.model.plan import Block, Plan
from dnnp.core.model.schedule import PlacedBlock, Placement, Unit, Wait

MOST_BLOCKS = 20_000
"""Blocks of the micro-batches after which the devices of replicas repeat."""


@dataclass
class _StagePart:
    """A part of a stage that its device runs in one go."""

    stage: int
    backward: bool
    nodes: Ints
    """Positions, in execution order."""
    compute_s: float
    in_s: float = 0.0
    out_s: float = 0.0
    overflow_s: float = 0.0
    sync_s: float = 0.0
    held_bytes: float = 0.0
    """Added when it starts: tensors for later parts of its stage, less those read last."""


def placement_of_plan(
    graph: Graph, units: Clustering, plan: Plan, *, explicit: bool = False
) -> Placement:
    """The blocks of one sample (or, in training, micro-batch) of a plan.

    With `explicit`, transfers are `Wait.transfer_s` from block to block, else as the plan's cost
    model has them. A device always holds the memory of its stages less the tensors of one
    micro-batch between the parts of each.

    Raises UsageError: a plan of the objective latency, or replicas that take turns for too
    long.
    """
    if plan.objective == "latency":
        raise UsageError(
            "the plan is for latency: it has one sample at a time; schedules of many are for "
            "plans of the objectives throughput and gpipe"
        )
    if plan.options.workload is not None:
        raise UsageError(
            "the plan is for sequences of prompts and tokens (--workload); schedules are of samples"
        )
    classes = {d.name: d for d in plan.devices}
    graph = graph.with_sequences(plan.options.in_flight, plan.options.max_length)
    given = SplitProblem(graph, units, plan.devices, plan.options, plan.links)
    blocks = planned_blocks(plan, graph)
    parts, waits = _parts(graph, units, plan, blocks)
    _price(given, plan, blocks, parts)
    _hold(graph, parts)
    names, homes = _homes(plan)
    devices = _devices(plan, classes, parts, names, homes)
    carried = _carried(given, blocks, parts, waits) if explicit else {}
    builder = _PlacementBuilder(devices, [], plan, parts, homes, explicit)
    for i in TopologicalSorter(waits).static_order():
        part, stage = parts[i], plan.stages[parts[i].stage]
        whole = len(part.nodes) == len(stage.nodes)
        own = () if whole else tuple(graph.node_ids[part.nodes].tolist())
        apart = plan.options.comm != "sum" and not explicit
        apart = apart and not classes[stage.device_class].is_cpu
        builder.add(i, own, {j: carried.get((j, i), 0.0) for j in sorted(waits[i])}, apart)
    placement = Placement("plan", tuple(builder.units), tuple(builder.blocks))
    if placement.turns * len(placement.blocks) > MOST_BLOCKS:
        raise UsageError(
            f"the replicas of the stages take turns for {placement.turns} micro-batches before "
            f"they repeat; a schedule covers at most {MOST_BLOCKS // len(placement.blocks)}"
        )
    return placement


def _parts(
    graph: Graph, units: Clustering, plan: Plan, blocks: Sequence[Block]
) -> tuple[list[_StagePart], dict[int, set[int]]]:
    """Parts of all stages, and for each of them those that it waits for."""
    rows = [block.nodes for block in blocks]
    ahead = np.zeros(units.g, dtype=np.bool_)
    ahead[units.label[~graph.backward]] = True
    label, place = np.empty(units.g, dtype=np.int64), np.empty(units.g, dtype=np.int64)
    for s, row in enumerate(rows):
        label[units.label[row]] = 2 * s
        place[units.label[row[::-1]]] = np.arange(len(row))[::-1]
    label[~ahead] += 1
    _, dense = np.unique(label, return_inverse=True)
    part_of = cut_into_parts(graph, units, dense.ravel(), place)
    count = int(part_of.max(initial=-1)) + 1
    found: list[_StagePart] = []
    for p in range(count):
        mine = np.flatnonzero(part_of == p)
        s, late = divmod(int(label[mine[0]]), 2)
        row = rows[s]
        time = units.times[plan.stages[s].device_class][mine]
        found.append(
            _StagePart(s, bool(late), row[part_of[units.label[row]] == p], float(time.sum()))
        )
    tail, head = graph.edges
    pairs = distinct(part_of[units.label[tail]] * count + part_of[units.label[head]])
    waits: dict[int, set[int]] = {p: set() for p in range(count)}
    for a, b in zip(
        (pairs // max(count, 1)).tolist(), (pairs % max(count, 1)).tolist(), strict=True
    ):
        if a != b:
            waits[b].add(a)
    last: dict[tuple[int, bool], int] = {}
    for p, part in enumerate(found):  # parts of one stage and pass are numbered in their order
        key = (part.stage, part.backward)
        if key in last:
            waits[p].add(last[key])
        last[key] = p
    # Published graphs need not join the passes: what a stage did forward comes first.
    joined = {
        p: waits[p] | {last[key] for key in [(part.stage, False)] if part.backward and key in last}
        for p, part in enumerate(found)
    }
    try:
        TopologicalSorter(joined).prepare()
    except CycleError:
        return found, waits
    return found, joined


def _price(
    given: SplitProblem, plan: Plan, blocks: Sequence[Block], parts: Sequence[_StagePart]
) -> None:
    """Give each part its share of the transfers of its stage.

    A tensor that comes in belongs to the first part that reads it, one that goes out to the part
    that makes it.
    """
    graph = given.graph
    for s, (stage, near) in enumerate(zip(plan.stages, surroundings(given, blocks), strict=True)):
        block = blocks[s]
        step = place_of(block.nodes, graph.n)
        coming, going = crossing_times(graph, block.nodes, step, block.device, plan.options, near)
        mine = [part for part in parts if part.stage == s]
        for part in mine:
            read = distinct(np.concatenate([graph.reads(n) for n in part.nodes.tolist()]))
            part.in_s = float(coming[read].sum())
            coming[read] = 0.0
            part.out_s = float(sum(going[graph.writes(n)].sum() for n in part.nodes.tolist()))
        mine[0].overflow_s = stage.overflow_s
        # Each of r replicas sees one sample in r.
        mine[-1].sync_s = stage.sync_s * stage.replicas


def _hold(graph: Graph, parts: Sequence[_StagePart]) -> None:
    """Set the memory that each part adds: tensors stay from their first part to their last."""
    graph = graph.in_memory
    for s in {part.stage for part in parts}:
        mine = [part for part in parts if part.stage == s]
        if len(mine) == 1:
            continue
        first = np.full(graph.m, -1, dtype=np.int64)
        last = np.full(graph.m, -1, dtype=np.int64)
        for i, part in enumerate(mine):
            for n in part.nodes.tolist():
                for row in (graph.reads(n), graph.writes(n)):
                    last[row] = i
                    first[row] = np.where(first[row] < 0, i, first[row])
        kept = np.flatnonzero((first < last) & (graph.tensor_kind < min(PARAMETER, CONSTANT)))
        for t in kept.tolist():
            mine[first[t]].held_bytes += float(graph.tensor_bytes[t])
            mine[last[t]].held_bytes -= float(graph.tensor_bytes[t])


def _homes(plan: Plan) -> tuple[list[str], list[tuple[tuple[int, ...], ...]]]:
    """Names of the devices in use, and the devices that each stage takes in turn."""
    names: dict[str, int] = {}
    homes: list[tuple[tuple[int, ...], ...]] = []
    for stage in plan.stages:
        homes.append(tuple((names.setdefault(name, len(names)),) for name in stage.homes))
    return list(names), homes


def _devices(
    plan: Plan,
    classes: dict[str, DeviceClass],
    parts: Sequence[_StagePart],
    names: Sequence[str],
    homes: Sequence[tuple[tuple[int, ...], ...]],
) -> list[Unit]:
    """The devices with their limits."""
    fixed = [0.0] * len(names)
    for s, stage in enumerate(plan.stages):
        between = sum(max(p.held_bytes, 0.0) for p in parts if p.stage == s)
        for (unit,) in homes[s]:
            fixed[unit] += max(stage.memory_bytes - between, 0.0)
    devices = []
    owner = {name: classes[stage.device_class] for stage in plan.stages for name in stage.homes}
    for name, always in zip(names, fixed, strict=True):
        device = owner[name]
        free = device.is_cpu or plan.options.memory_mode != "hard"
        devices.append(Unit(name, float("inf") if free else device.memory_bytes, always))
    return devices


def _carried(
    given: SplitProblem,
    blocks: Sequence[Block],
    parts: Sequence[_StagePart],
    waits: dict[int, set[int]],
) -> dict[tuple[int, int], float]:
    """Time of what moves from one part to another: over the link between their stages, or, where
    no links are stated, that of the device that sends."""
    graph = given.graph
    part_of = row_of((part.nodes for part in parts), graph.n)
    linked = linked_stages(graph.n, given.machine, blocks) if given.links else None
    times = {
        d.name: np.zeros(graph.m) if d.is_cpu else transfer_times(graph, d) for d in given.devices
    }

    def time(t: int, source: int, target: int) -> float:
        """Time of a tensor from one stage to another."""
        if linked is None:
            return float(times[blocks[source].device.name][t])
        if blocks[source].device.is_cpu and blocks[target].device.is_cpu:
            return 0.0
        return float(linked[source].between(graph, np.array([t]), source, target)[0])

    carried: dict[tuple[int, int], float] = {}
    for p, part in enumerate(parts):
        read: Ints = distinct(np.concatenate([graph.reads(n) for n in part.nodes.tolist()]))
        made = read[graph.producer[read] >= 0]
        for t, q in zip(made.tolist(), part_of[graph.producer[made]].tolist(), strict=True):
            if q in waits[p] and parts[q].stage != part.stage:
                carried[q, p] = carried.get((q, p), 0.0) + time(t, parts[q].stage, part.stage)
    return carried


@dataclass
class _PlacementBuilder:
    """Turns parts into blocks."""

    units: list[Unit]
    blocks: list[PlacedBlock]
    plan: Plan
    parts: Sequence[_StagePart]
    homes: Sequence[tuple[tuple[int, ...], ...]]
    explicit: bool

    def __post_init__(self) -> None:
        self._done: dict[int, int] = {}
        """Part -> block after which others of its stage may start."""
        self._sent: dict[int, int] = {}
        """Part -> block after which those of other stages may start."""
        self._seen: dict[tuple[int, bool], int] = {}
        """Stage and pass -> number of its last part."""
        self._links: dict[str, int] = {}

    def add(self, i: int, own: tuple[int, ...], before: dict[int, float], apart: bool) -> None:
        """Add the blocks of part i, which holds the nodes `own` of its stage.

        It comes after the parts `before`, from where moving takes so long; with `apart` its
        transfers are blocks of their own.
        """
        part = self.parts[i]
        key = (part.stage, part.backward)
        number = self._seen[key] = self._seen.get(key, -1) + 1
        name = f"{'B' if part.backward else 'F'}{part.stage}" + (f".{number}" if number else "")
        inside, outside = [], []
        for j, carried in before.items():
            if self.parts[j].stage == part.stage:
                inside.append(Wait(self._done[j]))
            else:
                outside.append(Wait(self._sent[j], 0.0, carried))
        time, arriving = part.compute_s, part.in_s + part.overflow_s
        if self.explicit:
            time += part.overflow_s + part.sync_s
        elif not apart:
            time += arriving + part.out_s + part.sync_s
        elif arriving > 0:
            outside = [Wait(self._aside("in", name, part, arriving, outside))]
        kind = "backward" if part.backward else "forward"
        self._done[i] = self._sent[i] = len(self.blocks)
        self.blocks.append(
            PlacedBlock(
                name,
                kind,
                self.homes[part.stage],
                time,
                part.held_bytes,
                (*inside, *outside),
                part.stage,
                own,
            )
        )
        if apart and part.out_s > 0:
            self._sent[i] = self._aside("out", name, part, part.out_s, [Wait(self._done[i])])
        if apart and part.sync_s > 0:
            self._aside("sync", name, part, part.sync_s, [Wait(self._done[i])])

    def _aside(
        self, what: str, name: str, part: _StagePart, time: float, after: Sequence[Wait]
    ) -> int:
        """Add a block on the link of the part's device; returns its position."""
        label = "link" if self.plan.options.comm == "overlap" and what != "sync" else what
        homes = []
        for (device,) in self.homes[part.stage]:
            unit = f"{self.units[device].name} {label}"
            if unit not in self._links:
                self._links[unit] = len(self.units)
                self.units.append(Unit(unit, link=True))
            homes.append((self._links[unit],))
        self.blocks.append(
            PlacedBlock(
                f"{what} {name}", "transfer", tuple(homes), time, 0.0, tuple(after), part.stage
            )
        )
        return len(self.blocks) - 1
