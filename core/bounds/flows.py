"""Minimum cuts over sets of items: the least load of a set that holds given items.

The load of a set S of items on an accelerator under `sum` is

    f(S) = work(S) + cost of the nets with pins both inside and outside of S
                   + cost of the nets with pins inside that are always paid.

The least f(S) over the sets S that hold some sources is the largest flow from them to a sink: an
edge from each item to the sink carries its work, and a net of cost c with the pins u is

    u -> a (unlimited)     a -> b (c)     b -> u (unlimited),

or u -> a (unlimited) and a -> sink (c) where it is always paid. Capacities that are whole numbers
below 2^53 give flows that are exact.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dnnp.core.kernels.kernel import plain
from dnnp.core.model.graph import Floats, Ints
from dnnp.core.split.cuts.max_flow import lay_out, max_flow


class Nets(NamedTuple):
    """Tensors that may cost a transfer."""

    ptr: Ints
    pins: Ints
    """Items of each net (CSR)."""
    always: np.ndarray
    """bool[p]: paid by every set with a pin."""
    cost: Floats
    """f64[p]."""


class Network(NamedTuple):
    """Residual network (CSR). Nodes: the items, two for each net, the sink."""

    ptr: Ints
    heads: Ints
    twin: Ints
    """Index of the reverse arc."""
    capacity: Floats
    enter: Ints
    """Arc from each pin into its net."""
    leave: Ints
    """Arc from each pin's net to it; -1: always paid."""


def network_of(work: Floats, nets: Nets) -> Network:
    """The network of items with this work, f64[n]."""
    n, p = len(work), len(nets.cost)
    net = np.repeat(np.arange(p, dtype=np.int64), np.diff(nets.ptr))
    sink = n + 2 * p
    first, second = n + 2 * np.arange(p), n + 2 * np.arange(p) + 1
    is_open = ~nets.always[net]
    parts = (
        (np.arange(n), np.full(n, sink), work),
        (nets.pins, first[net], np.inf),
        (first, np.where(nets.always, sink, second), nets.cost),
        (second[net][is_open], nets.pins[is_open], np.inf),
    )
    *network, places = lay_out(parts, sink + 1)
    leave = np.full(len(net), -1, dtype=np.int64)
    leave[is_open] = places[3]
    return Network(*plain(*network, places[1], leave))


def push(network: Network, capacity: Floats, sources: Ints, enough: float = np.inf) -> float:
    """Flow from the items `sources`, of `enough` or more if there is as much; see `max_flow`."""
    ptr, heads, twin = network.ptr, network.heads, network.twin
    return float(max_flow(ptr, heads, twin, capacity, sources, enough))


def pushed(network: Network, capacity: Floats) -> Floats:
    """What each pin pushes into its net, less what it takes out; f64[pins].

    `capacity` is what the flow left.
    """
    flow = capacity[network.twin[network.enter]].copy()
    some = network.leave >= 0
    flow[some] -= capacity[network.twin[network.leave[some]]]
    return flow
