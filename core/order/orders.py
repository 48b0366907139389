"""Topological orders of items to slice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from dnnp.core.cost.items import Items
from dnnp.core.model.graph import Ints, csr


def kahn_order(items: Items) -> Ints:
    """Kahn order with the least item first (MTPP Algorithm 3 with node order as priority)."""
    return items.order


def dfs_order(items: Items) -> Ints:
    """Depth-first topological order: the item freed last comes next."""
    ptr, successors = csr(items.tail, items.head, items.count)
    starts, targets = ptr.tolist(), successors.tolist()
    indegree = np.bincount(items.head, minlength=items.count).tolist()
    ready: list[int] = []
    for v in reversed(range(items.count)):
        if indegree[v] == 0:
            ready.append(v)
    order: list[int] = []
    while ready:
        u = ready.pop()
        order.append(u)
        for v in reversed(targets[starts[u] : starts[u + 1]]):
            indegree[v] -= 1
            if indegree[v] == 0:
                ready.append(v)
    return np.array(order, dtype=np.int64)


def _reversed(order: Callable[[Items], Ints]) -> Callable[[Items], Ints]:
    """The order that goes backwards from the outputs."""

    def from_outputs(items: Items) -> Ints:
        mirrored = replace(items, tail=items.head, head=items.tail)
        return order(mirrored)[::-1].copy()

    return from_outputs


ORDERS = {
    "kahn": kahn_order,
    "dfs": dfs_order,
    "kahn-reverse": _reversed(kahn_order),
    "dfs-reverse": _reversed(dfs_order),
}
