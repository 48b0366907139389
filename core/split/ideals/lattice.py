"""The lattice of order ideals of a small graph (2020 paper, Definition 5.1).

Items are numbered in a topological order. Adding to an ideal only items above its last one
makes every ideal exactly once, without hashing; ideals of one size come out in lexicographic
order, so the other children of an ideal are found among those already made.
"""

from __future__ import annotations

from collections import deque
from hashlib import sha256
from typing import NamedTuple

import numpy as np

from dnnp.core.kernels.kernel import kernel, plain
from dnnp.core.model.graph import Bools, Ints, csr, distinct

MOST_WORDS = 20_000_000
"""Words of bit sets of the ideals of one size; 8 bytes each, twice."""

MOST_CHILDREN = 60_000_000
"""Pairs of an ideal and one with an item more; 8 bytes each."""

_refused: deque[bytes] = deque(maxlen=8)
"""Graphs with too many ideals, the last ones: a search with a better split mostly asks again."""


class Lattice(NamedTuple):
    """`I` ideals by size; subsets come before supersets, 0 is empty, I - 1 is everything."""

    parent: Ints
    """i32[I], the ideal without its last item; -1 for the empty one."""
    last: Ints
    """i32[I], its greatest item."""
    child_ptr: Ints
    """i64[I + 1], CSR of the ideals with one item more."""
    child_item: Ints
    """u32[E], the item that is added; ascending within an ideal."""
    child_ideal: Ints
    """u32[E], the ideal it leads to."""

    @property
    def size(self) -> int:
        """Number of ideals, the empty one included."""
        return len(self.parent)

    def words(self, n: int) -> np.ndarray:
        """Items of each ideal, u64[I, n // 64 + 1]."""
        alone = words_of(np.arange(n), n)
        found = np.zeros((self.size, n // 64 + 1), dtype=np.uint64)
        for i in range(1, self.size):
            found[i] = found[self.parent[i]] | alone[self.last[i]]
        return found

    def sets(self, n: int) -> Bools:
        """The same, bool[I, n]."""
        found = np.unpackbits(self.words(n).view(np.uint8), axis=1, count=n, bitorder="little")
        return found.astype(np.bool_)

    def turned(self) -> Lattice:
        """The lattice of what is outside the ideals: I - 1 - i for i, and n - 1 - v for item v."""
        last, n = self.size - 1, int(self.child_item.max()) + 1
        item, ideal = n - 1 - self.child_item.astype(int), last - self.child_ideal.astype(int)
        start = last - np.repeat(np.arange(self.size), np.diff(self.child_ptr))
        # Of an ideal the greatest item is the least outside of what is outside of it.
        first = self.child_ptr[:-2][::-1]
        ptr, edge = csr(ideal, np.arange(len(item)), self.size)
        return Lattice(
            np.append(-1, ideal[first]).astype(np.int32),
            np.append(-1, item[first]).astype(np.int32),
            ptr,
            item[edge].astype(np.uint32),
            start[edge].astype(np.uint32),
        )

    def levels(self) -> list[int]:
        """The first ideal of each size, and the number of ideals."""
        starts = [0, 1]
        while starts[-1] < self.size:
            # The children of one size are the next ones.
            size = slice(*self.child_ptr[starts[-2:]])
            starts.append(int(self.child_ideal[size].max()) + 1)
        return starts

    def between(self, start: int, end: int) -> list[int]:
        """Items of the block between two ideals, ascending."""
        before = set(self.members(start))
        return [item for item in self.members(end) if item not in before]

    def members(self, ideal: int) -> list[int]:
        """Items of an ideal, ascending."""
        items = []
        while self.last[ideal] >= 0:
            items.append(int(self.last[ideal]))
            ideal = int(self.parent[ideal])
        return items[::-1]


def words_of(items: Ints, n: int) -> np.ndarray:
    """A bit set for each item alone, u64[len(items), n // 64 + 1]."""
    found = np.zeros((len(items), n // 64 + 1), dtype=np.uint64)
    found[np.arange(len(items)), items // 64] = np.uint64(1) << (items % 64).astype(np.uint64)
    return found


def packed(sets: Bools) -> np.ndarray:
    """Sets of items (bool[sets, n]) as bit sets, u64[sets, n // 64 + 1]."""
    bits = np.zeros((len(sets), (sets.shape[1] // 64 + 1) * 64), dtype=np.bool_)
    bits[:, : sets.shape[1]] = sets
    return np.packbits(bits, axis=1, bitorder="little").view(np.uint64)


def make_lattice(n: int, tail: Ints, head: Ints, most: int) -> Lattice | None:
    """Enumerate the ideals of items 0..n-1 with precedence pairs tail < head.

    Returns None if there are more than `most` of them, or they take too much memory.
    """
    asked = sha256(repr((n, most)).encode() + tail.tobytes() + head.tobytes()).digest()
    if asked in _refused:
        return None
    # A pair given twice would make an item ready twice, and its ideal too.
    tail, head = np.divmod(distinct(tail.astype(np.int64) * n + head), max(n, 1))
    succ_ptr, succ = csr(tail, head, n)
    pred_ptr, pred = csr(head, tail, n)
    succ_ptr, succ, pred_ptr, pred = plain(succ_ptr, succ, pred_ptr, pred)
    found = _enumerate(n, succ_ptr, succ, pred_ptr, pred, most)
    if len(found[0]):
        return Lattice(*found)
    _refused.append(asked)
    return None


@kernel
def _enumerate(n, succ_ptr, succ, pred_ptr, pred, most):  # type: ignore[no-untyped-def]
    """The arrays of a `Lattice`; empty ones where there are too many ideals."""
    words = n // 64 + 1
    far = _furthest(n, succ_ptr, succ)
    parent = np.empty(1024, np.int32)
    last = np.empty(1024, np.int32)
    child_ptr = np.zeros(1025, np.int64)
    child_item = np.empty(4096, np.uint32)
    child_ideal = np.empty(4096, np.uint32)
    parent[0], last[0] = -1, -1
    one = np.uint64(1)
    # Bit sets of the ideals of two sizes, one after the other: those being expanded, and theirs.
    # They hold the words low..high alone: all ideals of a size have all items of those before, and
    # none of those behind.
    low, high, items = 0, 0, 0
    here = np.zeros(1, np.uint64)
    there = np.zeros(1, np.uint64)
    ready = np.empty(n + 1, np.int32)
    count, edges = 1, 0
    first, stop = 0, 1
    while first < stop:
        width = high - low + 1
        next_low = _all_full(here, stop - first, width)
        next_high = far[items]
        next_width = next_high - low - next_low + 1
        kept = width - next_low
        for ideal in range(first, stop):
            row = (ideal - first) * width
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
                        w = (u >> 6) - low
                        if w >= width or (
                            w >= 0 and not (here[row + w] >> np.uint64(u & 63)) & one
                        ):
                            free = False
                            break
                    if free:
                        at = size
                        while at > 0 and ready[at - 1] > v:
                            ready[at] = ready[at - 1]
                            at -= 1
                        ready[at] = v
                        size += 1
            if edges + size > MOST_CHILDREN:
                return parent[:0], last[:0], child_ptr[:0], child_item[:0], child_ideal[:0]
            if edges + size > len(child_item):
                child_item = _longer(child_item, 2 * len(child_item) + size)
                child_ideal = _longer(child_ideal, len(child_item))
            for i in range(size):
                v = ready[i]
                if v > newest:
                    target = count
                    if count == most or (count - stop + 1) * words > MOST_WORDS:
                        return parent[:0], last[:0], child_ptr[:0], child_item[:0], child_ideal[:0]
                    if count == len(parent):
                        parent = _longer(parent, 2 * count)
                        last = _longer(last, 2 * count)
                        child_ptr = _longer(child_ptr, 2 * count + 1)
                    parent[count], last[count] = ideal, v
                    new = (count - stop) * next_width
                    if new + next_width > len(there):
                        there = _longer(there, 2 * new + next_width)
                    for w in range(kept):
                        there[new + w] = here[row + next_low + w]
                    for w in range(kept, next_width):
                        there[new + w] = 0
                    there[new + (v >> 6) - low - next_low] |= one << np.uint64(v & 63)
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
        here, there = there, here
        low, high, items = low + next_low, next_high, items + 1
    return (
        parent[:count],
        last[:count],
        child_ptr[: count + 1],
        child_item[:edges],
        child_ideal[:edges],
    )


@kernel
def _furthest(n, succ_ptr, succ):  # type: ignore[no-untyped-def]
    """i64[n + 1]: the last word that ideals of 1..n + 1 items have: no item without its chain."""
    depth = np.zeros(n, np.int64)
    far = np.zeros(n + 1, np.int64)
    for v in range(n):
        far[depth[v]] = v >> 6
        for i in range(succ_ptr[v], succ_ptr[v + 1]):
            depth[succ[i]] = max(depth[succ[i]], depth[v] + 1)
    for size in range(1, n + 1):
        far[size] = max(far[size], far[size - 1])
    return far


@kernel
def _all_full(sets, count, width):  # type: ignore[no-untyped-def]
    """Count the first words, but for the last one, that are full in all of so many bit sets."""
    full = width - 1
    for row in range(0, count * width, width):
        w = 0
        while w < full and sets[row + w] == ~np.uint64(0):
            w += 1
        full = w
    return full


@kernel
def _longer(array, size):  # type: ignore[no-untyped-def]
    """A copy with room for `size`."""
    longer = np.zeros(size, array.dtype)
    for i in range(len(array)):
        longer[i] = array[i]
    return longer


@kernel
def _child(child_ptr, child_item, child_ideal, ideal, item):  # type: ignore[no-untyped-def]
    e = child_ptr[ideal]
    while child_item[e] != item:
        e += 1
    return child_ideal[e]
