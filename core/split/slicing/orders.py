"""Topological orders of items to slice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from dnnp.core.cost.items import Items
from dnnp.core.model.graph import Ints, csr

PUBLISHED = "published"
"""Name of the order of the 2020 paper's programs."""


def kahn_order(items: Items) -> Ints:
    """Kahn order with the least item first (MTPP Algorithm 3 with node order as priority)."""
    return items.order


def dfs_order(items: Items) -> Ints:
    """Reverse postorder of a depth-first search: an item, then all that only follows from it.

    The linearisation of the 2020 paper (section 5.1.2).
    """
    ptr, successors = csr(items.tail, items.head, items.count)
    starts, targets = ptr.tolist(), successors.tolist()
    indegree = np.bincount(items.head, minlength=items.count).tolist()
    seen = [False] * items.count
    finished: list[int] = []
    for root in range(items.count):
        if indegree[root]:
            continue
        seen[root] = True
        path = [(root, starts[root])]
        while path:
            u, edge = path.pop()
            if edge == starts[u + 1]:
                finished.append(u)
                continue
            path.append((u, edge + 1))
            v = targets[edge]
            if not seen[v]:
                seen[v] = True
                path.append((v, starts[v]))
    return np.array(finished[::-1], dtype=np.int64)


def stack_order(items: Items) -> Ints:
    """Kahn's order that takes the last ready item, as the programs of the 2020 paper do.

    Its greedy algorithm and its linearisation go by it (sections 5.1.2 and 7). Of several that
    become ready at once, the one whose first node comes last in the stream goes first.
    """
    first = np.full(items.count, len(items.label), dtype=np.int64)
    np.minimum.at(first, items.label, np.arange(len(items.label)))
    ptr, successors = csr(items.tail, items.head, items.count)
    starts, targets, rank = ptr.tolist(), successors.tolist(), first.tolist()
    waits = np.bincount(items.head, minlength=items.count).tolist()
    ready = [v for v in np.argsort(first, kind="stable").tolist() if not waits[v]]
    order = []
    while ready:
        u = ready.pop()
        order.append(u)
        for v in sorted(targets[starts[u] : starts[u + 1]], key=rank.__getitem__):
            waits[v] -= 1
            if not waits[v]:
                ready.append(v)
    return np.array(order, dtype=np.int64)


def _reversed(order: Callable[[Items], Ints]) -> Callable[[Items], Ints]:
    """The order that goes backwards from the outputs."""

    def from_outputs(items: Items) -> Ints:
        mirrored = replace(items, tail=items.head, head=items.tail)
        return order(mirrored)[::-1].copy()

    return from_outputs


def order_named(name: str) -> Callable[[Items], Ints]:
    """The order of a name, for methods that cut one order: Kahn's for `best`."""
    return stack_order if name == PUBLISHED else ORDERS["kahn" if name == "best" else name]


ORDERS: dict[str, Callable[[Items], Ints]] = {
    "kahn": kahn_order,
    "dfs": dfs_order,
    "kahn-reverse": _reversed(kahn_order),
    "dfs-reverse": _reversed(dfs_order),
}
"""Orders by name."""
