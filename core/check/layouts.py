"""What follows from the layouts of nodes on several devices: memory, weights, what is exchanged.

A tensor that is cut and read otherwise, or handed out by the model, is gathered by its maker. Each
device keeps the parts that it reads of what is stored, and what the node makes: all of it if it is
gathered. A weight counts for one of its readers. What leaves a stage in parts is put together.
Whether an operator computes what its layout says is not looked at here: dnnp-run and dnnp-export
do, by the attributes of the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dnnp.core.check.violation import Fact, Violation, above, same

Record = Mapping[str, Any]

State = tuple[int, int]
"""Axis that a tensor is cut along, and equal parts of it that are cut apart."""
ALL: State = (-1, 1)
"""Each device has all of a tensor."""


def check_layouts(nodes: Sequence[Record], tensors: Sequence[Record]) -> list[Violation]:
    """Return what contradicts the layouts that nodes state, at the degrees where all of them do."""
    table = {tensor["id"]: tensor for tensor in tensors}
    degrees = sorted({one["devices"] for node in nodes for one in node.get("shards", ())})
    found: list[Violation] = []
    for t in degrees:
        stated = [_at(node, t) for node in nodes]
        if all("layout" in one for one in stated):
            found += _Degree(t, nodes, stated, table).violations()
    return found


def _at(record: Record, t: int) -> Record:
    """What a record states of so many devices."""
    entries: Sequence[Record] = record.get("shards", ())
    return next((one for one in entries if one["devices"] == t), {})


def _states(layout: Record, side: str) -> list[State]:
    """States of the inputs or outputs of a node."""
    axes = layout[f"{side}s"]
    blocks = layout.get(f"{side}_blocks", [1] * len(axes))
    return [ALL if a < 0 else (a, b) for a, b in zip(axes, blocks, strict=True)]


@dataclass(frozen=True)
class _Degree:
    t: int
    nodes: Sequence[Record]
    stated: Sequence[Record]
    table: Mapping[int, Record]

    def violations(self) -> Iterator[Violation]:
        standing, gathered = self._standing()
        most: dict[int, float] = {}
        least: dict[int, float] = {}
        """Bytes of each weight on a device, for the reader that has most or least of it."""
        for node, one in zip(self.nodes, self.stated, strict=True):
            subject, layout = f"node {node['id']}", one["layout"]
            stored = {
                x: self._part(x, state)
                for x, state in zip(node["inputs"], _states(layout, "input"), strict=True)
                if self.table[x]["kind"] in ("parameter", "constant")
            }
            made = sum(
                self._part(x, ALL if x in gathered else state)
                for x, state in zip(node["outputs"], _states(layout, "output"), strict=True)
            )
            memory = sum(stored.values()) + made
            if "memory_bytes" in one and not same(one["memory_bytes"], memory):
                yield self._wrong(subject, "memory_bytes", one["memory_bytes"], memory)
            own = {x: b for x, b in stored.items() if self.table[x]["kind"] == "parameter"}
            weight = one.get("weight_bytes", 0.0)
            if above(weight, sum(own.values())):
                yield self._wrong(subject, "weight_bytes", weight, sum(own.values()))
            for x, part in own.items():
                most[x] = max(part, most.get(x, part))
                least[x] = min(part, least.get(x, part))
            yield from self._exchanged(subject, node, one, gathered)
        weights = sum(one.get("weight_bytes", 0.0) for one in self.stated)
        for low, high in ((weights, sum(most.values())), (sum(least.values()), weights)):
            if above(low, high):
                expected = high if low == weights else low
                yield self._wrong("graph", "weight_bytes of all nodes", weights, expected)
        for x, tensor in self.table.items():
            expected = 0.0
            if standing.get(x, ALL) != ALL and x not in gathered:
                expected = tensor["size_bytes"] * (self.t - 1) / self.t
            got = _at(tensor, self.t).get("out_bytes", 0.0)
            if not same(got, expected):
                yield self._wrong(f"tensor {x}", "out_bytes", got, expected)

    def _standing(self) -> tuple[dict[int, State], set[int]]:
        """How each tensor is cut that a node makes, and those that are gathered."""
        made: dict[int, State] = {}
        for node, one in zip(self.nodes, self.stated, strict=True):
            made.update(zip(node["outputs"], _states(one["layout"], "output"), strict=True))
        cut = {x for x, state in made.items() if state != ALL}
        gathered = {x for x in cut if self.table[x].get("output")}
        for node, one in zip(self.nodes, self.stated, strict=True):
            needs = zip(node["inputs"], _states(one["layout"], "input"), strict=True)
            gathered |= {x for x, state in needs if x in cut and state != made[x]}
        return made, gathered

    def _part(self, x: int, state: State) -> float:
        """Bytes that the first device has of a tensor; the first ones have most."""
        size = float(self.table[x]["size_bytes"])
        if state == ALL:
            return size
        axis, blocks = state
        length = self.table[x]["shape"][axis] if "shape" in self.table[x] else 0
        most = blocks * -(-(length // blocks) // self.t)
        return size * most / length if length else size / self.t

    def _exchanged(
        self, subject: str, node: Record, one: Record, gathered: set[int]
    ) -> Iterator[Violation]:
        """Sums over the devices, and tensors that are gathered."""
        size = {x: float(self.table[x]["size_bytes"]) for x in node["outputs"]}
        expected = []
        if one["layout"].get("reduced"):
            expected += [("all-reduce", size[x]) for x in node["outputs"]]
        expected += [("all-gather", size[x]) for x in node["outputs"] if x in gathered]
        got = [(c["kind"], float(c["bytes"])) for c in one.get("collectives", ())]
        if sorted(got) != sorted(expected):
            shown = [
                ", ".join(f"{k} of {b:.6g}" for k, b in pairs) or "none"
                for pairs in (got, expected)
            ]
            yield self._wrong(subject, "what is exchanged", *shown)

    def _wrong(self, subject: str, name: str, got: Fact, expected: Fact) -> Violation:
        message = f"{name} on {self.t} devices is {got!r}; its layout makes {expected!r}"
        return Violation("shards", subject, message, expected, got)
