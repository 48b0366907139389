"""A bound from single items: the device that runs an item pays at least the cheapest set with it.

The load of a set S of items on an accelerator under `sum` is

    f(S) = work(S) + cost of the nets with pins both inside and outside of S,

so an item v costs its device at least min f(S) over all sets S that hold v, whether or not they
could be stages. That is a minimum cut between v and a sink: an edge from each item to the sink
carries its work, and a net of cost c with the pins u is

    u -> a (unlimited)     a -> b (c)     b -> u (unlimited).

No other split is better than the largest of these costs. For many devices, which leave little
but transfers around large items, it is often the optimum.
"""

from __future__ import annotations

import numpy as np

from dnnp.core.cost.items import Items, item_choices
from dnnp.core.cost.kernel import kernel
from dnnp.core.cost.line import Line, make_line
from dnnp.core.model.cluster import Clustering
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.graph import Floats, Graph, Ints, csr, totals
from dnnp.core.model.plan import CostOptions, without_memory

MOST_PINS = 20_000
"""Pins of nets up to which the bound is computed."""

MOST_CUTS = 200
"""Items whose cut is computed, the most expensive ones first."""

SLACK = 1e-12
"""Relative, against rounding in the sums."""


def node_cut_bound(
    graph: Graph,
    units: Clustering,
    devices: tuple[DeviceClass, ...],
    options: CostOptions,
    *,
    above: float = 0.0,
) -> float:
    """Lower bound of the largest load of any ordered split; 0 where it is no use.

    Looks only for bounds `above` what is known. For one class of accelerators under `sum`
    without clusters and replicas.
    """
    offered = [d for d in devices if d.count > 0]
    plain = options.comm == "sum" and options.max_replicas == 1
    if len(offered) != 1 or not plain or options.objective != "throughput" or not graph.n:
        return 0.0
    if offered[0].is_cpu or offered[0].cluster_size:
        return 0.0
    return min(
        _bound(graph, units, items, offered[0], options, above)
        for items in item_choices(graph, units)
    )


def _bound(
    graph: Graph,
    units: Clustering,
    items: Items,
    device: DeviceClass,
    options: CostOptions,
    above: float,
) -> float:
    line = make_line(graph, units, items, items.order, (device,), without_memory(options))
    if len(line.pins) > MOST_PINS or not np.isfinite(line.work).all():
        return 0.0
    net = np.repeat(np.arange(len(line.source), dtype=np.int64), np.diff(line.pin_ptr))
    alone = line.work[0] + totals(line.pins, line.cost[0, net], line.n)
    network = _network(line, net)
    best = above
    for v in np.argsort(-alone, kind="stable")[:MOST_CUTS].tolist():
        if alone[v] * (1 - SLACK) <= best:
            break
        flow = max_flow(*network[:3], network[3].copy(), v)
        best = max(best, min(float(flow), float(alone[v])) * (1 - SLACK))
    return best if best > above else 0.0


def _network(line: Line, net: Ints) -> tuple[Ints, Ints, Ints, Floats]:
    """Residual network (CSR): (ptr, heads, index of the reverse arc, capacities).

    Nodes: the items, two for each net, the sink.
    """
    n, p = line.n, len(line.source)
    sink = n + 2 * p
    enter, leave = n + 2 * np.arange(p), n + 2 * np.arange(p) + 1
    open_net = ~line.always[net]
    tail = np.concatenate([np.arange(n), line.pins, enter, leave[net][open_net]])
    head = np.concatenate([
        np.full(n, sink), enter[net], np.where(line.always, sink, leave), line.pins[open_net]
    ])  # fmt: skip
    capacity = np.concatenate([
        line.work[0], np.full(len(net), np.inf), line.cost[0], np.full(int(open_net.sum()), np.inf)
    ])  # fmt: skip
    arcs = len(tail)
    tails, heads = np.concatenate([tail, head]), np.concatenate([head, tail])
    ptr, order = csr(tails, np.arange(2 * arcs), sink + 1)
    place = np.empty(2 * arcs, dtype=np.int64)
    place[order] = np.arange(2 * arcs)
    twin = place[np.where(order < arcs, order + arcs, order - arcs)]
    return ptr, heads[order], twin, np.concatenate([capacity, np.zeros(arcs)])[order]


@kernel
def max_flow(ptr, heads, twin, capacity, source):  # type: ignore[no-untyped-def]
    """Flow from `source` to the last node (Dinic); uses up `capacity`."""
    nodes = len(ptr) - 1
    sink = nodes - 1
    level = np.empty(nodes, np.int64)
    queue = np.empty(nodes, np.int64)
    arc = np.empty(nodes, np.int64)
    path = np.empty(nodes, np.int64)
    total = 0.0
    while True:
        level[:] = -1
        level[source] = 0
        queue[0] = source
        first, last = 0, 1
        while first < last and level[sink] < 0:
            u = queue[first]
            first += 1
            for i in range(ptr[u], ptr[u + 1]):
                v = heads[i]
                if level[v] < 0 and capacity[i] > 0.0:
                    level[v] = level[u] + 1
                    queue[last] = v
                    last += 1
        if level[sink] < 0:
            return total
        arc[:] = ptr[:nodes]
        depth = 0
        u = source
        while True:
            if u == sink:
                least = np.inf
                for d in range(depth):
                    least = min(least, capacity[path[d]])
                total += least
                back = depth
                for d in range(depth - 1, -1, -1):
                    i = path[d]
                    if capacity[i] <= least:
                        capacity[i] = 0.0
                        back = d
                    else:
                        capacity[i] -= least
                    capacity[twin[i]] += least
                depth = back
                u = heads[twin[path[depth]]]
                continue
            moved = False
            while arc[u] < ptr[u + 1]:
                i = arc[u]
                if capacity[i] > 0.0 and level[heads[i]] == level[u] + 1:
                    path[depth] = i
                    depth += 1
                    u = heads[i]
                    moved = True
                    break
                arc[u] += 1
            if moved:
                continue
            if u == source:
                break
            level[u] = -1
            depth -= 1
            u = heads[twin[path[depth]]]
            arc[u] += 1
