"""Nodes on several devices at once, by their layouts; written apart from what states them.

A tensor that is cut and read otherwise, or handed out by the model, is gathered by its maker. Each
device keeps the parts that it reads of what is stored, and what the node makes: all of it if it is
gathered. A weight counts for one of its readers. What leaves a stage in parts is put together.
Whether an operator computes what its layout says is not looked at here: dnnp-run and dnnp-export
do, by the attributes of the model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from dnnp.core.check.graph import Tables, tables_of
from dnnp.core.check.violation import Fact, Violation, above, same
from dnnp.core.model.graph import PARAMETER, Graph
from dnnp.core.model.shards import Shards, Share, axis_of, blocks_of

Shapes = Sequence[tuple[int, ...] | None]


class Layouts:
    """Memory and exchanges of nodes at a degree.

    Without `shapes` parts are equal; else the first device has most.
    """

    def __init__(
        self, tables: Tables, shares: Sequence[Share], t: int, shapes: Shapes | None = None
    ) -> None:
        self.t, self.shapes = t, shapes
        held, size, whole = tables.in_memory, tables.size, -1
        made = {x: c for s in shares for x, c in zip(tables.writes[s.node], s.outputs, strict=True)}
        needs = {s.node: list(zip(tables.reads[s.node], s.inputs, strict=True)) for s in shares}
        cut = {x for x, state in made.items() if state != whole}
        gathered = {x for x in cut if tables.output[x]}
        gathered |= {x for row in needs.values() for x, c in row if x in cut and c != made[x]}
        self.leaving = {x: size[x] * (t - 1) / t for x in cut - gathered}
        self.stored: dict[int, dict[int, float]] = {}
        """Node -> bytes of each stored tensor that it reads."""
        self.memory: dict[int, float] = {}
        self.exchanged: dict[int, list[tuple[str, float]]] = {}
        for share in shares:
            v, writes = share.node, tables.writes[share.node]
            kept = {x: c for x, c in needs[v] if held.kind[x] >= PARAMETER}
            self.stored[v] = {x: held.size[x] * self._part(x, c) for x, c in kept.items()}
            new = {x: whole if x in gathered else made[x] for x in writes}
            parts = [*self.stored[v].values(), *(held.size[x] * self._part(x, new[x]) for x in new)]
            self.memory[v] = 0.0 if tables.folded[v] else math.fsum(parts)
            self.exchanged[v] = [("all-reduce", size[x]) for x in writes if share.reduced]
            self.exchanged[v] += [("all-gather", size[x]) for x in writes if x in gathered]

    def _part(self, x: int, state: int) -> float:
        """Largest part of a tensor on a device."""
        shape = None if self.shapes is None or state < 0 else self.shapes[x]
        length, blocks = 0 if shape is None else shape[axis_of(state)], blocks_of(state)
        if state < 0:
            return 1.0
        return blocks * -(-(length // blocks) // self.t) / length if length else 1 / self.t


def check_layouts(graph: Graph, shapes: Shapes) -> Iterator[Violation]:
    """Return contradictions to the layouts, at each degree that all nodes state one for."""
    shards, tables = graph.shards, tables_of(graph)
    tables = replace(tables, folded=[False] * tables.n, resident=tables.size)
    for i, t in enumerate(() if shards is None else shards.degrees.tolist()):
        shares = [] if shards is None else [share for share in shards.shares if share.degree == i]
        if shards is not None and len(shares) == tables.n:
            yield from _at_degree(tables, shards, i, Layouts(tables, shares, t, shapes))


def _at_degree(tables: Tables, shards: Shards, i: int, layouts: Layouts) -> Iterator[Violation]:
    """Compare what nodes and tensors state at a degree with what their layouts make."""
    got: dict[int, list[tuple[str, float]]] = {v: [] for v in range(tables.n)}
    for one in shards.collectives:
        got[one.node] += [(one.kind, one.size)] if one.degree == i else []
    weight, parts = shards.weight[i].tolist(), dict[int, list[float]]()
    found: list[tuple[str, str, Fact, Fact]] = []
    for v, memory in enumerate(shards.plain.memory[i].tolist()):
        subject, makes = f"node {tables.ids[v]}", layouts.memory[v]
        if not math.isnan(memory) and not same(memory, makes):
            found.append((subject, "memory_bytes", memory, makes))
        own = {x: b for x, b in layouts.stored[v].items() if tables.kind[x] == PARAMETER}
        if above(weight[v], sum(own.values())):
            found.append((subject, "weight_bytes", weight[v], sum(own.values())))
        for x, part in own.items():
            parts.setdefault(x, []).append(part)
        if sorted(got[v]) != sorted(layouts.exchanged[v]):
            both = (map("{0[0]} of {0[1]:.6g}".format, x) for x in (got[v], layouts.exchanged[v]))
            stated, made = (", ".join(x) or "none" for x in both)
            found.append((subject, "what is exchanged", stated, made))
    total, most = sum(weight), sum(map(max, parts.values()))
    if above(total, most) or above(sum(map(min, parts.values())), total):
        found.append(("graph", "weight_bytes of all nodes", total, most))
    for x, moved in enumerate(shards.out_bytes[i].tolist()):
        if not same(moved, layouts.leaving.get(x, 0.0)):
            found.append((f"tensor {x}", "out_bytes", moved, layouts.leaving.get(x, 0.0)))
    for subject, name, value, right in found:
        message = f"{name} on {layouts.t} devices is {value!r}; its layout makes {right!r}"
        yield Violation("shards", subject, message, right, value)
