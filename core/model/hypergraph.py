"""Items and the tensors between them as a hypergraph: the one form of a graph that kernels read.

A tensor is a net, its pins are the items that make or read it. Kernels take a `Hypergraph`, the
costs of device classes (`ClassCosts`) and scratch arrays of their own.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dnnp.core.model.graph import Bools, Floats, Ints, csr, csr_rows


class Hypergraph(NamedTuple):
    """`n` items and `p` nets."""

    item_ptr: Ints
    item_net: Ints
    """Nets of each item (CSR), ascending."""
    net_ptr: Ints
    pins: Ints
    """Items of each net (CSR), ascending."""
    source: Ints
    """i64[p], item that makes the tensor; -1: a model input."""
    always: Bools
    """bool[p]: paid by every set of items with a pin, cut or not (`--charge-io`)."""

    @property
    def net_count(self) -> int:
        """Number of nets."""
        return len(self.source)

    @property
    def sizes(self) -> Ints:
        """Number of pins of each net; i64[p]."""
        return self.net_ptr[1:] - self.net_ptr[:-1]

    @property
    def net_of_pin(self) -> Ints:
        """Net of each entry of `pins`; i64[pins]."""
        return np.repeat(np.arange(self.net_count, dtype=np.int64), self.sizes)

    def pins_in(self, inside: Bools) -> Ints:
        """Number of pins of each net in a set of items (bool[n]); i64[p]."""
        before = np.zeros(len(self.pins) + 1, dtype=np.int64)
        inside[self.pins].cumsum(out=before[1:])
        return before[self.net_ptr[1:]] - before[self.net_ptr[:-1]]

    def paid(self, inside: Bools) -> Bools:
        """Nets that a set of items (bool[n]) pays: cut by it, or always paid; bool[p]."""
        held = self.pins_in(inside)
        return (held > 0) & ((held < self.sizes) | self.always)

    def with_nets(self, chosen: Ints) -> Hypergraph:
        """The hypergraph of some of the nets, in this order."""
        ptr, pins = csr_rows(self.net_ptr, self.pins, chosen)
        items = len(self.item_ptr) - 1
        return hypergraph(items, ptr, pins, self.source[chosen], self.always[chosen])


def hypergraph(items: int, net_ptr: Ints, pins: Ints, source: Ints, always: Bools) -> Hypergraph:
    """Make a hypergraph of nets; all arrays are new, writable and in C order."""
    net = np.repeat(np.arange(len(net_ptr) - 1, dtype=np.int64), np.diff(net_ptr))
    item_ptr, item_net = csr(pins, net, items)
    return Hypergraph(
        item_ptr,
        item_net,
        np.array(net_ptr, dtype=np.int64),
        np.array(pins, dtype=np.int64),
        np.array(source, dtype=np.int64),
        np.array(always, dtype=np.bool_),
    )


class ClassCosts(NamedTuple):
    """Costs of `n` items and `p` nets on `C` device classes, for `P` passes with a target each."""

    work: Floats
    """f64[C, P, n], compute time."""
    net_cost: Floats
    """f64[C, p], time to move the tensor once; 0 on a CPU."""
    net_pass: Ints
    """i64[p], pass that pays for the net."""
    capacity: Floats
    """f64[C], bytes; inf on a CPU."""
    stream: Floats
    """f64[C], time for each byte above the capacity; 0 where none is streamed."""
