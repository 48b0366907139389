"""A plan of the objective latency and what it places, as its checks read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dnnp.core.check.graph import Tables
from dnnp.core.check.load import Units, node_memory
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.graph import CONSTANT, PARAMETER
from dnnp.core.model.plan import Plan


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
    peaks: list[float | None] = field(default_factory=list)
    """Peak of live tensors of each stage, bytes; None where they do not count."""

    @property
    def edge(self) -> bool:
        """Test whether all that goes from one unit to one other moves by itself."""
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
        return sum(self._weights(unit) for unit in self.held(stage))

    def _weights(self, unit: int) -> float:
        """Stated memory of the nodes of a unit, and parameters that the others read, each once."""
        tables, total = self.tables.in_memory, 0.0
        read: set[int] = set()
        for v in self.members[unit]:
            stated = self.plan.options.memory_model == "weights"
            if stated and tables.memory[v] == tables.memory[v]:
                total += tables.memory[v]
            else:
                read.update(t for t in tables.reads[v] if tables.kind[t] in (PARAMETER, CONSTANT))
        return total + sum(tables.size[t] for t in read)
