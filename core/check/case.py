"""What a plan places, as checks take it: units, which are groups or nodes, and what they cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dnnp.core.check.graph import Tables
from dnnp.core.check.load import node_memory
from dnnp.core.check.violation import Violation, same
from dnnp.core.model.cluster import Clustering
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.graph import CONSTANT, PARAMETER, Graph
from dnnp.core.model.plan import Plan, Stage


@dataclass(frozen=True)
class Units:
    """The units of a stream, in lists."""

    what: str
    of_node: list[int]
    ids: list[int]
    times: Mapping[str, list[float]]
    backward: list[bool]
    """Whether all members belong to the backward pass."""


def units_of(graph: Graph, clustering: Clustering | None, tables: Tables) -> Units:
    """Copy the groups, or the nodes, with their times."""
    if clustering is None:
        times = {name: array.tolist() for name, array in graph.times.items()}
        return Units("node", list(range(tables.n)), tables.ids, times, tables.backward)
    times = {name: array.tolist() for name, array in clustering.times.items()}
    of_node = clustering.label.tolist()
    backward = [True] * clustering.g
    for node, group in enumerate(of_node):
        backward[group] &= tables.backward[node]
    return Units("group", of_node, clustering.group_ids.tolist(), times, backward)


def compute_of(
    units: Units, stage: Stage, block: list[int]
) -> tuple[tuple[float, float], list[str]]:
    """Compute time of a stage, forward and backward, and why it is infinite, if it is.

    A group counts once in every stage that holds a member.
    """
    held = sorted({units.of_node[node] for node in block})
    times = units.times.get(stage.device_class)
    if times is None:
        times = [math.inf] * len(units.ids)
        unsupported = [f"nothing is priced for device class '{stage.device_class}'"]
    else:
        unsupported = [
            f"{units.what} {units.ids[unit]} cannot run on '{stage.device_class}'"
            for unit in held
            if math.isinf(times[unit])
        ]
    early = math.fsum(times[unit] for unit in held if not units.backward[unit])
    late = math.fsum(times[unit] for unit in held if units.backward[unit])
    return (early, late), unsupported


@dataclass(frozen=True)
class PlanCase:
    """A plan and what it places."""

    plan: Plan
    tables: Tables
    units: Units
    blocks: Sequence[Sequence[int]]
    """Node positions of every stage."""
    devices: Mapping[str, DeviceClass]
    tensor_ids: Sequence[int]
    """Ids of the tensors in the stream."""
    stage_of: dict[int, int] = field(default_factory=dict)
    """Unit -> stage that holds it."""
    members: dict[int, list[int]] = field(default_factory=dict)
    """Unit -> its nodes."""

    @property
    def edge(self) -> bool:
        """Whether all that goes from one unit to one other moves by itself."""
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
        if self.plan.options.memory_model != "weights":
            return sum(node_memory(self.tables, v) for v in self.blocks[stage])
        return sum(self._weights(unit) for unit in self.held(stage))

    def _weights(self, unit: int) -> float:
        """Stated memory of the nodes of a unit, and parameters that the others read, each once."""
        tables, total = self.tables, 0.0
        read: set[int] = set()
        for v in self.members[unit]:
            if tables.memory[v] == tables.memory[v]:
                total += tables.memory[v]
            else:
                read.update(t for t in tables.reads[v] if tables.kind[t] in (PARAMETER, CONSTANT))
        return total + sum(tables.size[t] for t in read)


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
    return case


def check_span(
    case: PlanCase, number: int, begin: float, end: float, whole: float, first: float = 0.0
) -> list[Violation]:
    """Whether a stage states its begin and end, which count from `first`.

    `whole` is the scale of such times.
    """
    stage, found = case.plan.stages[number], []
    for name, stated, expected in (("begin_s", stage.begin_s, begin), ("end_s", stage.end_s, end)):
        if stated is None or not same(stated - first, expected, whole):
            message = f"{name} is {stated!r}, recomputed {first + expected!r}"
            found.append(Violation("load", f"stage {number}", message, first + expected, stated))
    return found
