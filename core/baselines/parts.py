"""The weighted graph that graph partitioners see, and splits from the parts they return.

Vertices are items (`dnnp.core.cost.items`), weighted by their time on an accelerator; an edge
weighs what the tensors between two items cost to move. Partitioners balance the vertices and
keep the cut small; they know nothing of directions, memory or device classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dnnp.core.baselines.blocks import part_blocks, slots_of
from dnnp.core.cost.items import Items
from dnnp.core.cost.line import Line
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.errors import InfeasibleError
from dnnp.core.model.graph import Floats, Graph, Ints, csr, distinct, totals
from dnnp.core.model.plan import Block
from dnnp.core.model.run import Run

TOTAL = 2**29
"""What integer weights add up to: twice that, for both ends of edges, fits 32 bits."""


@dataclass(frozen=True, eq=False)
class PartGraph:
    """An undirected graph with integer weights, and what its vertices are."""

    parts: int
    ptr: Ints
    neighbors: Ints
    """Neighbours of each vertex (CSR), ascending; every edge stands at both ends."""
    edge_weights: Ints
    """Weight of each entry of `neighbors`, positive."""
    weights: Ints
    """i64[vertices], not negative, some positive."""
    items: Items
    slots: Ints
    vertex: Ints
    """i64[items], vertex of each item; -1: it runs on no accelerator."""
    elsewhere: int
    """Slot of the items that have no vertex; -1: there are none."""

    @property
    def vertices(self) -> int:
        """Number of vertices."""
        return len(self.weights)


def part_graph(problem: SplitProblem) -> PartGraph:
    """Build the graph to cut into one part for every accelerator (CPU, if there are only CPUs).

    Items that no accelerator runs are left out; they go to the first CPU.

    Raises
    ------
    InfeasibleError
        An item that no accelerator runs, and no CPU to run it.
    """
    items = problem.items
    line = problem.line(items, np.arange(items.count))
    slots = slots_of(line.devices)
    classes = distinct(slots)
    runs = np.isfinite(line.work[classes])
    vertex = np.where(runs.any(axis=0), np.cumsum(runs.any(axis=0)) - 1, -1)
    elsewhere = -1
    if (vertex < 0).any():
        cpu = _cpu_for(problem.graph, items, line, vertex < 0)
        elsewhere, slots = len(slots), np.append(slots, cpu)
    kept = vertex >= 0
    mean = np.where(runs, line.work[classes], 0.0).sum(axis=0) / np.maximum(runs.sum(axis=0), 1)
    a, b, cost = _edges(line, line.cost[classes].mean(axis=0))
    both = kept[a] & kept[b]
    a, b, cost = vertex[a[both]], vertex[b[both]], cost[both]
    count = int(kept.sum())
    tail, head = np.concatenate([a, b]), np.concatenate([b, a])
    order = np.lexsort((head, tail))
    ptr, neighbors = csr(tail[order], head[order], count)
    weight = np.tile(np.maximum(_whole(cost), 1), 2)[order]
    loads = _whole(mean[kept])
    if not loads.any():
        loads = np.ones(count, dtype=np.int64)
    parts = len(slots) - (elsewhere >= 0)
    return PartGraph(parts, ptr, neighbors, weight, loads, items, slots, vertex, elsewhere)


def tell_what_is_left(weighted: PartGraph, method: str, run: Run) -> None:
    """Warn the run where the parts are not those of the partitioner alone."""
    left = int((weighted.vertex < 0).sum())
    if left:
        run.warn(f"{method}: a CPU has what no accelerator runs, {left} of {len(weighted.vertex)}")
    if weighted.parts < 2 or weighted.vertices < 2:
        run.warn(f"{method}: there is nothing to part, so that it was not run")


def split_of_parts(problem: SplitProblem, weighted: PartGraph, part: Ints) -> list[Block]:
    """Blocks of the parts (i64[vertices]) that a partitioner returned."""
    slot = np.append(part, weighted.elsewhere)[weighted.vertex]
    return part_blocks(problem.graph, weighted.items, slot, weighted.slots, problem.devices)


def _cpu_for(graph: Graph, items: Items, line: Line, left: np.ndarray) -> int:
    """Class of the CPU for what accelerators cannot run."""
    for c, d in enumerate(line.devices):
        if d.is_cpu and d.count and np.isfinite(line.work[c, left]).all():
            return c
    node = int(np.flatnonzero(left[items.label])[0])
    raise InfeasibleError(
        f"infeasible: node {graph.node_ids[node]} ('{graph.node_names[node]}') is not supported "
        "on the accelerators, and there is no CPU for it"
    )


def _edges(line: Line, cost: Floats) -> tuple[Ints, Ints, Floats]:
    """Pairs of items a < b between which a producer's tensors go, and their total cost."""
    counts = np.diff(line.pin_ptr)
    source = np.repeat(line.source, counts)
    price = np.repeat(cost, counts)
    apart = (source >= 0) & (source != line.pins)
    u, v = source[apart], line.pins[apart]
    key, edge = np.unique(np.minimum(u, v) * line.n + np.maximum(u, v), return_inverse=True)
    total = totals(edge.astype(np.int64), price[apart], len(key))
    return key // line.n, key % line.n, total


def _whole(weights: Floats) -> Ints:
    """Integers in proportion that add up to about TOTAL."""
    total = float(weights.sum())
    if not total > 0:
        return np.zeros(len(weights), dtype=np.int64)
    return np.rint(weights * (TOTAL / total)).astype(np.int64)
