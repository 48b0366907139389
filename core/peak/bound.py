"""Lower bounds of the peak over all orders."""

from __future__ import annotations

import numpy as np

from dnnp.core.cost.kernel import kernel
from dnnp.core.peak.steps import Steps, largest_step

MAX_CLOSURE = 5_000
"""Nodes up to which all paths are looked at."""


def peak_bound(steps: Steps, start: float) -> float:
    """Bytes that some step takes in every order.

    While a node runs, these tensors are live whatever the order: those it makes; those made by
    it or an ancestor, and read by it or a descendant, or staying; and those live from the start,
    and read by it or a descendant, or staying. Of large graphs only `largest_step` is known.
    """
    least = largest_step(steps, start)
    if not 0 < len(steps.made) <= MAX_CLOSURE:
        return least
    entered = (steps.maker < 0) & ~steps.stays
    held = start - float(steps.size[entered].sum())
    return max(least, float(_must(steps, held).max()))


@kernel
def _must(steps, held):  # type: ignore[no-untyped-def]
    """f64[n], bytes that are live in any case while a node runs; `held` are always."""
    n = len(steps.made)
    words = (n + 63) >> 6
    one = np.uint64(1)
    need = np.full(n, held)
    above = np.zeros((n, words), np.uint64)
    below = np.zeros((n, words), np.uint64)
    for v in range(n):
        above[v, v >> 6] |= one << np.uint64(v & 63)
        for i in range(steps.read_ptr[v], steps.read_ptr[v + 1]):
            u = steps.maker[steps.reads[i]]
            if u >= 0:
                for w in range((u >> 6) + 1):
                    above[v, w] |= above[u, w]
    for v in range(n - 1, -1, -1):
        below[v, v >> 6] |= one << np.uint64(v & 63)
        for i in range(steps.read_ptr[v], steps.read_ptr[v + 1]):
            u = steps.maker[steps.reads[i]]
            if u >= 0:
                for w in range(v >> 6, words):
                    below[u, w] |= below[v, w]
    row = np.zeros(words, np.uint64)
    for t in range(len(steps.size)):
        maker = steps.maker[t]
        if maker < 0 and steps.stays[t]:
            continue
        for w in range(words):
            row[w] = 0
        for i in range(steps.use_ptr[t], steps.use_ptr[t + 1]):
            v = steps.uses[i]
            for w in range((v >> 6) + 1):
                row[w] |= above[v, w]
        if maker >= 0:
            for w in range(words):
                row[w] = below[maker, w] if steps.stays[t] else row[w] & below[maker, w]
            row[maker >> 6] |= one << np.uint64(maker & 63)
        for w in range(words):
            b = 64 * w
            rest = row[w]
            while rest != 0:
                if rest & one:
                    need[b] += steps.size[t]
                rest >>= one
                b += 1
    return need
