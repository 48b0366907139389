"""The lattice of order ideals of a small graph (2020 paper, Definition 5.1).

Items are numbered in a topological order. Adding to an ideal only items above its last one
makes every ideal exactly once, without hashing; ideals of one size come out in lexicographic
order, so the other children of an ideal are found among those already made.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dnnp.core.cost.kernel import kernel, plain
from dnnp.core.model.graph import Ints, csr


class Lattice(NamedTuple):
    """`I` ideals by size; subsets come before supersets, 0 is empty, I - 1 is everything."""

    parent: Ints
    """i32[I], the ideal without its last item; -1 for the empty one."""
    last: Ints
    """i32[I], its greatest item."""
    child_ptr: Ints
    """i64[I + 1], CSR of the ideals with one item more."""
    child_item: Ints
    """i32[E], the item that is added; ascending within an ideal."""
    child_ideal: Ints
    """i32[E], the ideal it leads to."""

    @property
    def count(self) -> int:
        """Number of ideals, the empty one included."""
        return len(self.parent)

    def members(self, ideal: int) -> list[int]:
        """Items of an ideal, ascending."""
        items = []
        while self.last[ideal] >= 0:
            items.append(int(self.last[ideal]))
            ideal = int(self.parent[ideal])
        return items[::-1]


def make_lattice(n: int, tail: Ints, head: Ints, most: int) -> Lattice | None:
    """Enumerate the ideals of items 0..n-1 with precedence pairs tail < head.

    Returns None if there are more than `most` of them.
    """
    succ_ptr, succ = csr(tail, head, n)
    pred_ptr, pred = csr(head, tail, n)
    found = _enumerate(n, *plain(succ_ptr, succ, pred_ptr, pred), most)
    return Lattice(*found) if len(found[0]) else None


@kernel
def _enumerate(n, succ_ptr, succ, pred_ptr, pred, most):  # type: ignore[no-untyped-def]
    words = n // 64 + 1
    room, child_room = 1024, 4096
    parent = np.empty(room, np.int32)
    last = np.empty(room, np.int32)
    child_ptr = np.zeros(room + 1, np.int64)
    child_item = np.empty(child_room, np.int32)
    child_ideal = np.empty(child_room, np.int32)
    parent[0], last[0] = -1, -1
    # Bit sets of the ideals of two sizes: those being expanded, and their children.
    here = np.zeros((1, words), np.uint64)
    there = np.zeros((16, words), np.uint64)
    one = np.uint64(1)
    ready = np.empty(n + 1, np.int32)
    count, edges = 1, 0
    first, stop = 0, 1
    while first < stop:
        for ideal in range(first, stop):
            bits = here[ideal - first]
            newest = last[ideal]
            # Items that may be added: those of the parent, and what the last item made ready.
            size = 0
            if ideal == 0:
                for v in range(n):
                    if pred_ptr[v] == pred_ptr[v + 1]:
                        ready[size] = v
                        size += 1
            else:
                before = parent[ideal]
                for e in range(child_ptr[before], child_ptr[before + 1]):
                    if child_item[e] != newest:
                        ready[size] = child_item[e]
                        size += 1
                for i in range(succ_ptr[newest], succ_ptr[newest + 1]):
                    v = succ[i]
                    free = True
                    for j in range(pred_ptr[v], pred_ptr[v + 1]):
                        u = pred[j]
                        if not (bits[u >> 6] >> np.uint64(u & 63)) & one:
                            free = False
                            break
                    if free:
                        at = size
                        while at > 0 and ready[at - 1] > v:
                            ready[at] = ready[at - 1]
                            at -= 1
                        ready[at] = v
                        size += 1
            if edges + size > child_room:
                child_room = 2 * child_room + size
                longer = np.empty(child_room, np.int32)
                longer[:edges] = child_item[:edges]
                child_item = longer
                longer = np.empty(child_room, np.int32)
                longer[:edges] = child_ideal[:edges]
                child_ideal = longer
            for i in range(size):
                v = ready[i]
                if v > newest:
                    target = count
                    if count == most:
                        return (
                            parent[:0], last[:0], child_ptr[:0], child_item[:0], child_ideal[:0]
                        )  # fmt: skip
                    if count == room:
                        room *= 2
                        longer = np.empty(room, np.int32)
                        longer[:count] = parent[:count]
                        parent = longer
                        longer = np.empty(room, np.int32)
                        longer[:count] = last[:count]
                        last = longer
                        pointers = np.zeros(room + 1, np.int64)
                        pointers[: count + 1] = child_ptr[: count + 1]
                        child_ptr = pointers
                    parent[count], last[count] = ideal, v
                    if count - stop == len(there):
                        wider = np.zeros((2 * len(there), words), np.uint64)
                        wider[: len(there)] = there
                        there = wider
                    there[count - stop] = bits
                    there[count - stop, v >> 6] |= one << np.uint64(v & 63)
                    count += 1
                else:
                    # ideal + v = (parent + v) + last, and parent + v stands before this ideal.
                    sibling = _child(child_ptr, child_item, child_ideal, parent[ideal], v)
                    target = _child(child_ptr, child_item, child_ideal, sibling, newest)
                child_item[edges] = v
                child_ideal[edges] = target
                edges += 1
            child_ptr[ideal + 1] = edges
        first, stop = stop, count
        here = there[: stop - first].copy()
        there = np.zeros((2 * (stop - first) + 16, words), np.uint64)
    return (
        parent[:count].copy(), last[:count].copy(), child_ptr[: count + 1].copy(),
        child_item[:edges].copy(), child_ideal[:edges].copy(),
    )  # fmt: skip


@kernel
def _child(child_ptr, child_item, child_ideal, ideal, item):  # type: ignore[no-untyped-def]
    e = child_ptr[ideal]
    while child_item[e] != item:
        e += 1
    return child_ideal[e]
