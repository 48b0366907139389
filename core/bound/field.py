"""Items, nets, and what lies between items, laid out for the search for the most valuable stage."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dnnp.core.bound.between import Between
from dnnp.core.bound.flows import Nets
from dnnp.core.model.graph import Floats, Ints, csr

WORD = 63
"""Items to a word of a set."""


class Field(NamedTuple):
    """What sets are made of; numbers are whole."""

    work: Floats
    """f64[n]."""
    size: Ints
    """i64[p], pins of each net; one more, which is out, if the net is always paid."""
    outside: Ints
    """i64[p], 1 if the net is always paid."""
    cost: Floats
    """f64[p]."""
    hook_ptr: Ints
    hooks: Ints
    """Nets of each item (CSR)."""
    held: Ints
    """i64[n, n, words], what lies between two items, as bits."""
    pairs: Floats
    """f64[n, n], least load of a set with two items."""


def field_of(work: Floats, nets: Nets, between: Between, pairs: Floats) -> Field:
    """Lay out items and nets for the search. O(n^3) bits."""
    n = len(work)
    net = np.repeat(np.arange(len(nets.cost), dtype=np.int64), np.diff(nets.ptr))
    hook_ptr, hooks = csr(nets.pins, net, n)
    bit = np.int64(1) << (np.arange(n, dtype=np.int64) % WORD)
    held = np.zeros((n, n, n // WORD + 1), dtype=np.int64)
    for u in range(n):
        for v in range(n):
            some = between.holds(u, v)
            np.bitwise_or.at(held[u, v], some // WORD, bit[some])
    outside = nets.always.astype(np.int64)
    return Field(
        work, np.diff(nets.ptr) + outside, outside, nets.cost, hook_ptr, hooks, held, pairs
    )
