"""Orders in which ONNX Runtime runs the nodes of a file, and the file order with the least peak.

With `ExecutionOrder.PRIORITY_BASED` it runs a file as it is listed. By default it walks back from
the nodes that none reads, depth first, later nodes of the file first (`ReverseDFSFrom` of its
graph, measured on 1.32): nodes that wait for nothing but weights run before all others.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import NamedTuple

from dnnp.core.cost.load import stage_memory
from dnnp.core.model.graph import Graph, Ints, distinct, place_of
from dnnp.core.model.plan import CostOptions


class FileOrder(NamedTuple):
    """Nodes of a stage as its file lists them, and peaks of its live activations, bytes."""

    nodes: Ints
    listed: float
    """Peak in this order."""
    default: float
    """Peak in ONNX Runtime's default order of this file."""


def default_order(graph: Graph, nodes: Ints) -> Ints:
    """Nodes in the order in which ONNX Runtime runs a file that lists them so by default."""
    makers = _makers(graph, nodes)
    unread = {*range(len(nodes))}.difference(*makers)
    waiting = [(v, False) for v in sorted(unread)]
    seen, order = set[int](), list[int]()
    while waiting:
        v, done = waiting.pop()
        if done:
            order.append(v)
        elif v not in seen:
            seen.add(v)
            waiting.append((v, True))
            waiting += [(u, False) for u in makers[v] if u not in seen]
    ordered: Ints = nodes[order]
    return ordered


def file_order(graph: Graph, nodes: Ints, options: CostOptions) -> FileOrder:
    """Choose the order of a stage's file by the peak of the default order; O((n + m) log n).

    Tried are the order given, and the topological order that lists the latest of its nodes first:
    of what a node reads the default order then makes first what comes first in the order given.
    Of equals the order given stays.
    """
    makers = _makers(graph, nodes)
    readers: list[list[int]] = [[] for _ in makers]
    for v, row in enumerate(makers):
        for u in row:
            readers[u].append(v)
    missing = [len(row) for row in makers]
    ready = [-v for v, count in enumerate(missing) if not count]
    heapify(ready)
    late = []
    while ready:
        v = -heappop(ready)
        late.append(v)
        for w in readers[v]:
            missing[w] -= 1
            if not missing[w]:
                heappush(ready, -w)
    tried = [FileOrder(order, *_peaks(graph, order, options)) for order in (nodes, nodes[late])]
    return min(tried, key=lambda found: found.default)


def _makers(graph: Graph, nodes: Ints) -> list[list[int]]:
    """For each of some nodes those, by position, that make what it reads; ascending."""
    step = place_of(nodes, graph.n + 1)
    rows = (distinct(step[graph.producer[graph.reads(v)]]) for v in nodes.tolist())
    return [row[row >= 0].tolist() for row in rows]


def _peaks(graph: Graph, nodes: Ints, options: CostOptions) -> tuple[float, float]:
    """Peak of live activations in this order, and in the default order of a file that has it."""
    peaks = []
    for order in (nodes, default_order(graph, nodes)):
        step = place_of(order, graph.n)
        peaks.append(stage_memory(graph, order, step, options)[1] or 0.0)
    return peaks[0], peaks[1]
