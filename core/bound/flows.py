"""Minimum cuts over sets of items: the least load of a set that holds given items.

The load of a set S of items on an accelerator under `sum` is

    f(S) = work(S) + cost of the nets with pins both inside and outside of S
                   + cost of the nets with pins inside that are always paid.

The least f(S) over the sets S that hold some sources is the largest flow from them to a sink: an
edge from each item to the sink carries its work, and a net of cost c with the pins u is

    u -> a (unlimited)     a -> b (c)     b -> u (unlimited),

or u -> a (unlimited) and a -> sink (c) where it is always paid. Capacities that are whole numbers
below 2^53 give flows that are exact.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dnnp.core.cost.kernel import kernel, plain
from dnnp.core.model.graph import Floats, Ints, csr


class Nets(NamedTuple):
    """Tensors that may cost a transfer."""

    ptr: Ints
    pins: Ints
    """Items of each net (CSR)."""
    always: np.ndarray
    """bool[p]: paid by every set with a pin."""
    cost: Floats
    """f64[p]."""


class Network(NamedTuple):
    """Residual network (CSR). Nodes: the items, two for each net, the sink."""

    ptr: Ints
    heads: Ints
    twin: Ints
    """Index of the reverse arc."""
    capacity: Floats
    enter: Ints
    """Arc from each pin into its net."""
    leave: Ints
    """Arc from each pin's net to it; -1: always paid."""


def network_of(work: Floats, nets: Nets) -> Network:
    """The network of items with this work, f64[n]."""
    n, p = len(work), len(nets.cost)
    net = np.repeat(np.arange(p, dtype=np.int64), np.diff(nets.ptr))
    sink = n + 2 * p
    first, second = n + 2 * np.arange(p), n + 2 * np.arange(p) + 1
    is_open = ~nets.always[net]
    tail = np.concatenate([np.arange(n), nets.pins, first, second[net][is_open]])
    head = np.concatenate(
        [np.full(n, sink), first[net], np.where(nets.always, sink, second), nets.pins[is_open]]
    )
    capacity = np.concatenate(
        [work, np.full(len(net), np.inf), nets.cost, np.full(int(is_open.sum()), np.inf)]
    )
    arcs = len(tail)
    tails, heads = np.concatenate([tail, head]), np.concatenate([head, tail])
    ptr, order = csr(tails, np.arange(2 * arcs), sink + 1)
    place = np.empty(2 * arcs, dtype=np.int64)
    place[order] = np.arange(2 * arcs)
    twin = place[np.where(order < arcs, order + arcs, order - arcs)]
    leave = np.full(len(net), -1, dtype=np.int64)
    leave[is_open] = place[n + len(net) + p : arcs]
    residual = np.concatenate([capacity, np.zeros(arcs)])[order]
    return Network(*plain(ptr, heads[order], twin, residual, place[n : n + len(net)], leave))


def push(network: Network, capacity: Floats, sources: Ints, enough: float = np.inf) -> float:
    """Flow from the items `sources`, of `enough` or more if there is as much; see `max_flow`."""
    ptr, heads, twin = network.ptr, network.heads, network.twin
    return float(max_flow(ptr, heads, twin, capacity, sources, enough))


def pushed(network: Network, capacity: Floats) -> Floats:
    """What each pin pushes into its net, less what it takes out; f64[pins].

    `capacity` is what the flow left.
    """
    flow = capacity[network.twin[network.enter]].copy()
    some = network.leave >= 0
    flow[some] -= capacity[network.twin[network.leave[some]]]
    return flow


@kernel
def max_flow(ptr, heads, twin, capacity, sources, enough):  # type: ignore[no-untyped-def]
    """Further flow from the items `sources` to the last node (Dinic); uses up `capacity`.

    Stops where it is `enough`. An earlier flow from some of the sources may be in `capacity`.
    """
    nodes = len(ptr) - 1
    sink = nodes - 1
    level = np.empty(nodes, np.int64)
    queue = np.empty(nodes, np.int64)
    arc = np.empty(nodes, np.int64)
    path = np.empty(nodes, np.int64)
    total = 0.0
    while total < enough:
        level[:] = -1
        first, last = 0, 0
        for s in sources:
            level[s] = 0
            queue[last] = s
            last += 1
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
        for s in sources:
            depth = 0
            u = s
            while True:
                if u == sink:
                    least = np.inf
                    for d in range(depth):
                        least = min(least, capacity[path[d]])
                    total += least
                    if total >= enough:
                        for d in range(depth):
                            capacity[path[d]] -= least
                            capacity[twin[path[d]]] += least
                        return total
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
                if u == s:
                    break
                level[u] = -1
                depth -= 1
                u = heads[twin[path[depth]]]
                arc[u] += 1
    return total
