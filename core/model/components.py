"""Components of a graph: loading a library for them takes longer than finding them."""

from __future__ import annotations

import numpy as np

from dnnp.core.model.graph import Ints, csr


def connected(count: int, tail: Ints, head: Ints) -> Ints:
    """Component of each of `count` vertices, edges taken both ways; i64[count].

    Components are numbered by their least vertices. A few rounds of O(count + e).
    """
    least = np.arange(count, dtype=np.int64)
    while True:
        a, b = least[tail], least[head]
        apart = a != b
        if not apart.any():
            return np.unique(least, return_inverse=True)[1].astype(np.int64)
        tail, head, a, b = tail[apart], head[apart], a[apart], b[apart]
        np.minimum.at(least, np.maximum(a, b), np.minimum(a, b))
        while (least[least] != least).any():
            least = least[least]


def strong(count: int, tail: Ints, head: Ints) -> Ints:
    """Strongly connected component of each of `count` vertices; i64[count].

    Components are numbered in the order in which a depth-first search is done with them, so that
    an edge leads to a number that is no greater; the search begins with the least vertex, and goes
    to the greatest successor first. Tarjan (1972) without recursion, O(count + e).
    """
    sorted_ = np.argsort(head, kind="stable")
    ptr, after = csr(tail[sorted_], head[sorted_], count)
    targets, first, left = after.tolist(), ptr[:-1].tolist(), ptr[1:].tolist()
    number = [-1] * count
    # When each vertex, or the earliest one in no component yet that it is known to lead to, was
    # reached: from 1. 0: not reached. Beyond all times: in a component.
    low = [0] * count
    beyond = count + 1
    clock = found = 0
    pending: list[int] = []  # done with, but in no component yet
    for root in range(count):
        if low[root]:
            continue
        path = [root]
        reached: list[int] = []
        while path:
            u = path[-1]
            if not low[u]:
                clock += 1
                low[u] = clock
                reached.append(clock)
            least = low[u]
            end, at = first[u], left[u]
            while at > end:
                v = targets[at - 1]
                if not low[v]:
                    break
                least = min(least, low[v])
                at -= 1
            low[u], left[u] = least, at
            if at > end:  # this edge is seen again after v
                path.append(v)
                continue
            path.pop()
            if least < reached.pop():
                pending.append(u)
                continue
            members = [u]
            while pending and low[pending[-1]] >= least:
                members.append(pending.pop())
            for v in members:
                low[v], number[v] = beyond, found
            found += 1
    return np.array(number, dtype=np.int64)
