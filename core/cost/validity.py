"""The validity of a split: ordered, convex or free."""

from __future__ import annotations

import numpy as np

from dnnp.core.model.graph import Graph, Ints, csr, distinct, kahn

VALIDITIES = ("free", "convex", "ordered")
"""What a split can promise, weakest first."""


def quotient_order(graph: Graph, block: Ints, n_blocks: int) -> Ints | None:
    """Pipeline order of the blocks; None if there is none.

    The forward pass runs along it. A backward pass runs against it, or, in graphs whose backward
    edges copy the forward ones, along it. Ties go to the block with the least number.
    """
    for along in (False, True) if graph.backward.any() else (False,):
        tail, head = ordered_edges(graph, along)
        order = _kahn(block[tail], block[head], n_blocks)
        if order is not None:
            return order
    return None


def ordered_edges(graph: Graph, along: bool) -> tuple[Ints, Ints]:
    """Edges inside a pass (tail, head); backward ones are reversed unless `along`."""
    tail, head = graph.edges
    same = graph.backward[tail] == graph.backward[head]
    tail, head = tail[same], head[same]
    turned = graph.backward[tail] & (not along)
    return np.where(turned, head, tail), np.where(turned, tail, head)


def _kahn(tail: Ints, head: Ints, n_blocks: int) -> Ints | None:
    """Kahn order of blocks over edges between them; None if cyclic."""
    apart = tail != head
    pairs = distinct(tail[apart] * n_blocks + head[apart])
    order, _ = kahn(pairs // n_blocks, pairs % n_blocks, n_blocks)
    return order if len(order) == n_blocks else None


def validity_of(graph: Graph, block: Ints, n_blocks: int) -> str:
    """Strongest promise that a split keeps; `block` is i64[n].

    `ordered`: the blocks have a pipeline order (MTPP, section 2.2; `quotient_order`). `convex`: no
    path leaves a block and returns to it (2020 paper, Definition 3.1), each pass judged alone.
    """
    if quotient_order(graph, block, n_blocks) is not None:
        return "ordered"
    passes = [~graph.backward, graph.backward] if graph.backward.any() else [~graph.backward]
    if all(_convex(graph, block == b, part) for part in passes for b in range(n_blocks)):
        return "convex"
    return "free"


def _convex(graph: Graph, members: np.ndarray, part: np.ndarray) -> bool:
    """No path inside `part` leaves `members` and comes back."""
    tail, head = graph.edges
    ptr, successors = csr(tail, head, graph.n)
    left = np.zeros(graph.n, dtype=np.bool_)
    for u in graph.order.tolist():
        if not part[u] or not (members[u] or left[u]):
            continue
        for v in successors[ptr[u] : ptr[u + 1]].tolist():
            if not part[v]:
                continue
            if members[v] and left[u]:
                return False
            if not members[v]:
                left[v] = True
    return True
