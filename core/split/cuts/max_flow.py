"""Largest flows, and what the smallest cuts leave."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dnnp.core.kernels.kernel import kernel
from dnnp.core.model.graph import Floats, Ints, csr


def lay_out(
    parts: Sequence[tuple[Ints, Ints, Floats | float]], nodes: int
) -> tuple[Ints, Ints, Ints, Floats, list[Ints]]:
    """Lay out a residual network (CSR).

    Parameters
    ----------
    parts
        Arcs: their tails, heads and capacities.

    Returns
    -------
    (i64[nodes + 1], heads of the arcs and of their reverse ones, index of the reverse of each,
    capacities, where the arcs of each part are)
    """
    tail, head = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
    capacity = np.concatenate([np.broadcast_to(part[2], len(part[0])) for part in parts])
    arcs = len(tail)
    ptr, order = csr(np.concatenate([tail, head]), np.arange(2 * arcs), nodes)
    where = np.empty(2 * arcs, dtype=np.int64)
    where[order] = np.arange(2 * arcs)
    twin = where[np.where(order < arcs, order + arcs, order - arcs)]
    heads = np.concatenate([head, tail])[order]
    residual = np.concatenate([capacity, np.zeros(arcs)])[order]
    ends = np.cumsum([len(part[0]) for part in parts])
    return ptr, heads, twin, residual, np.split(where[:arcs], ends[:-1])


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


@kernel
def reached(ptr, heads, capacity, source):  # type: ignore[no-untyped-def]
    """Nodes that a flow leaves reachable from the source."""
    nodes = len(ptr) - 1
    seen = np.zeros(nodes, np.bool_)
    queue = np.empty(nodes, np.int64)
    seen[source] = True
    queue[0] = source
    last = 1
    for first in range(nodes):
        if first == last:
            break
        u = queue[first]
        for i in range(ptr[u], ptr[u + 1]):
            v = heads[i]
            if not seen[v] and capacity[i] > 0.0:
                seen[v] = True
                queue[last] = v
                last += 1
    return seen
