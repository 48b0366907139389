"""Blocks of a lattice with their cheapest load: the edges that the search for hierarchies walks.

An edge l -> r between ideals is a block of the items r - l. Its cheapest load has every transfer
between stages on the inner link; model inputs and outputs, where they cost something, stay on
the outer one. A load has one part for each pass with a target of its own: all of it for the
objective throughput, the forward and the backward pass for gpipe.

Blocks are met as the ideal search meets them (`dnnp.core.split.ideals.decide`), on its arrays. Rows
of costs there are of the first class: the passes with the inner link, and, where stages may run in
several clusters, the passes with the outer one.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import numpy as np

from dnnp.core.cost.items import LinearizedItems
from dnnp.core.cost.load_formula import ROUNDING, load_of
from dnnp.core.kernels.kernel import kernel, lean, plain, scratch
from dnnp.core.model.graph import Floats, Graph, Ints, csr, totals
from dnnp.core.model.plan import CostOptions
from dnnp.core.split.ideals.decide import add, drop, mark, new_walk, peak_of
from dnnp.core.split.ideals.lattice import Lattice, words_of
from dnnp.core.split.ideals.problem import PricedGraph, priced_graph

MAX_WALK = 4_000_000
"""Blocks that are looked at to list the edges; 72 bytes each that is listed."""


class Listed(NamedTuple):
    """Blocks by the ideal before them (CSR), on accelerators and on CPUs, as in `Arcs`."""

    ptr: Annotated[Ints, "i64[ends]"]
    head: Annotated[Ints, "unset i64[most]"]
    parts: Annotated[Floats, "f64[most, 2, 3]"]
    far: Annotated[Floats, "f64[spans, 2, 2]"]
    weight: Annotated[Floats, "unset f64[most]"]
    cpu_ptr: Annotated[Ints, "i64[ends]"]
    cpu_head: Annotated[Ints, "unset i64[most]"]
    cpu_load: Annotated[Floats, "f64[most, 2]"]
    cpu_weight: Annotated[Floats, "unset f64[most]"]


class Arcs(NamedTuple):
    """The lattice as kernels read it: ideals 0..I-1, and the blocks between them."""

    sync: Floats
    """f64[3], time per weight byte of an endless number of replicas: in a cluster, in several, and
    on CPUs."""
    over: Floats
    """f64[P, p], what a net costs more on the outer link than on the inner one; f64[P, 0]: none
    does."""
    bits: np.ndarray
    """u64[I, W], items of each ideal."""
    low_word: Ints
    """i64[I], first word of `bits` that is not full."""
    high_word: Ints
    """i64[I], last word of `bits` that is not 0."""
    pins: np.ndarray
    """u64[p, W], items of each net."""
    cut_ptr: Ints
    """Nets with pins inside and outside of each ideal (CSR)."""
    cut_net: Ints
    tail: Ints
    head: Ints
    """i64[E], the ideals l and r of each accelerator block, by rising r."""
    parts: Floats
    """f64[E, 2, 3], compute, in (with overflow) and out of the cheapest load of each pass."""
    far: Floats
    """f64[E, 2, 2], in and out with all transfers on the outer link; f64[0, 2, 2] where no stage
    may run in several clusters."""
    weight: Floats
    """f64[E], bytes that replicas synchronise."""
    into_ptr: Ints
    """First block of each r (CSR)."""
    cpu_ptr: Ints
    """CPU blocks by the ideal before them (CSR)."""
    cpu_tail: Ints
    cpu_head: Ints
    cpu_load: Floats
    """f64[C, 2]."""
    cpu_weight: Floats
    cpu_into_ptr: Ints
    """The same blocks by the ideal after them (CSR)."""
    cpu_into: Ints


@kernel
def cuts_of(p, parent, last):  # type: ignore[no-untyped-def]
    """Nets that each ideal cuts, CSR."""
    item_ptr, item_net = p.nets.item_ptr, p.nets.item_net
    count = len(parent)
    inside = np.zeros(len(p.net_size), np.int64)
    ptr = np.zeros(count + 1, np.int64)
    nets = np.empty(1024, np.uint32)
    for ideal in range(count):
        at = ideal
        while last[at] >= 0:
            for i in range(item_ptr[last[at]], item_ptr[last[at] + 1]):
                inside[item_net[i]] += 1
            at = parent[at]
        size = ptr[ideal]
        at = ideal
        while last[at] >= 0:
            for i in range(item_ptr[last[at]], item_ptr[last[at] + 1]):
                e = item_net[i]
                if 0 < inside[e] < p.net_size[e]:
                    if size == len(nets):
                        longer = np.empty(2 * size, np.uint32)
                        longer[:size] = nets
                        nets = longer
                    nets[size] = e
                    size += 1
                inside[e] = 0
            at = parent[at]
        ptr[ideal + 1] = size
    return ptr, nets[: ptr[count]].copy()


@lean
def list_blocks(p, lattice, limit, outputs, walk, listed):  # type: ignore[no-untyped-def]
    """List the blocks whose cheapest load is at most `limit`, on accelerators and on CPUs.

    Parameters
    ----------
    outputs
        f64[R, n], what each item's model outputs cost more than `p.net_cost`.
    walk
        A new `Walk`.
    listed
        Is filled.

    Returns
    -------
    bool
        Whether all blocks are there: not if more had to be walked than there is room for.
    """
    child_ptr, child_item, child_ideal = lattice.child_ptr, lattice.child_item, lattice.child_ideal
    passes, main = p.work.shape[1], len(p.copies) - 1
    rows, spans = len(p.row_class), len(listed.far) > 0
    # Replicas share what a block costs.
    limit = limit * max(p.copies[0], p.copies[main])
    size, cpu_size, walked = 0, 0, 0
    for ideal in range(len(lattice.parent)):
        mark(p, lattice, walk, ideal)
        depth = 0
        walk.where[0] = ideal
        walk.child[0] = child_ptr[ideal]
        while depth >= 0:
            edge = walk.child[depth]
            if edge == child_ptr[walk.where[depth] + 1]:
                if depth > 0:
                    drop(p, walk, walk.added[depth])
                depth -= 1
                continue
            walk.child[depth] = edge + 1
            v, r = child_item[edge], child_ideal[edge]
            walked += 1
            if walked > len(listed.head):
                return False
            d = depth + 1
            add(p, walk, d, v)
            for row in range(rows):
                walk.leaving[d, row] += outputs[row, v]
                walk.sure_out[d, row] += outputs[row, v]
            alive, slow, fast = False, 0.0, 0.0
            for q in range(passes):
                fast += walk.work[d, 0, q]
                slow += walk.work[d, main, q]
            if main > 0 and slow <= limit and slow < np.inf:
                listed.cpu_head[cpu_size] = r
                for q in range(passes):
                    listed.cpu_load[cpu_size, q] = walk.work[d, main, q]
                listed.cpu_weight[cpu_size] = walk.weight[d]
                cpu_size += 1
                alive = True
            if fast <= limit and fast < np.inf:
                memory = walk.held[d]
                if p.peak and memory + walk.touched[d] > p.capacity[0]:
                    path = walk.added[1 : d + 1]
                    memory += peak_of(p, path, d, walk.live, walk.mark, walk.last)
                extra = 0.0
                if memory > p.capacity[0] and p.stream[0] < np.inf and passes == 1:
                    # The passes of gpipe do not pay for it.
                    extra = (memory - p.capacity[0]) * p.stream[0]
                if memory <= p.capacity[0] or p.stream[0] < np.inf:
                    value = sure = 0.0
                    for q in range(passes):
                        load, moved = walk.work[d, 0, q], walk.arriving[d, q] + extra
                        value += load_of(p.comm, moved, load, 0.0, walk.leaving[d, q])
                        moved = walk.sure_in[d, q] + extra
                        sure += load_of(p.comm, moved, load, 0.0, walk.sure_out[d, q])
                        listed.parts[size, q, 0] = load
                        listed.parts[size, q, 1] = walk.arriving[d, q] + extra
                        listed.parts[size, q, 2] = walk.leaving[d, q]
                        if spans:
                            listed.far[size, q, 0] = walk.arriving[d, passes + q] + extra
                            listed.far[size, q, 1] = walk.leaving[d, passes + q]
                    if value <= limit:
                        listed.head[size] = r
                        listed.weight[size] = walk.weight[d]
                        size += 1
                    alive = alive or sure * (1 - ROUNDING) <= limit
            if not alive:
                drop(p, walk, v)
                continue
            depth = d
            walk.where[d] = r
            e = child_ptr[r + 1]
            while e > child_ptr[r] and child_item[e - 1] > v:
                e -= 1
            walk.child[d] = e
        listed.ptr[ideal + 1], listed.cpu_ptr[ideal + 1] = size, cpu_size
    return True


def make_arcs(
    graph: Graph,
    line: LinearizedItems,
    options: CostOptions,
    lattice: Lattice,
    limit: float,
    *,
    level: int = 0,
    spans: bool,
) -> tuple[PricedGraph, Arcs] | None:
    """Blocks of a lattice with a cheapest load of at most `limit`; None if there are too many.

    Parameters
    ----------
    level
        Of the clusters that are searched.
    spans
        Whether stages may run in several clusters.
    """
    n, count, device = line.n, lattice.size, line.devices[0]
    p = priced_graph(graph, line, range(len(line.devices)), options)
    passes = p.work.shape[1]
    # Model inputs come over the outer link, and so do outputs leave.
    inner = np.where(p.nets.source < 0, 1.0, device.link_factors[level])
    over = p.net_cost * (1 - inner)
    made = np.flatnonzero((p.nets.source >= 0) & p.nets.always)
    outputs = np.stack([totals(p.nets.source[made], row[made], n) for row in over])
    nearest = [p.net_cost * inner, p.net_cost] if spans else [p.net_cost * inner]
    outer = [outputs, np.zeros_like(outputs)] if spans else [outputs]
    rows = passes * len(nearest)
    near = p._replace(
        row_class=np.zeros(rows, dtype=np.int64),
        row_pass=np.arange(rows, dtype=np.int64) % passes,
        net_cost=plain(np.concatenate(nearest))[0],
    )
    # Memory that is not written costs nothing.
    sizes = {"ends": count + 1, "most": MAX_WALK, "spans": MAX_WALK if spans else 0}
    room = scratch(Listed, sizes)
    (outer_cost,) = plain(np.concatenate(outer))
    if not list_blocks(near, lattice, limit, outer_cost, new_walk(near, count), room):
        return None
    ptr, cpu_ptr = room.ptr, room.cpu_ptr
    cpu_head, cpu_load = room.cpu_head[: cpu_ptr[-1]], room.cpu_load[: cpu_ptr[-1]]
    bits, alone = lattice.words(n), words_of(np.arange(n), n)
    pins = np.zeros((len(p.net_size), bits.shape[1]), dtype=np.uint64)
    np.bitwise_or.at(pins, p.nets.item_net, np.repeat(alone, np.diff(p.nets.item_ptr), axis=0))
    low = (bits == bits[-1]).argmin(axis=1)
    high = bits.shape[1] - 1 - (bits != 0)[:, ::-1].argmax(axis=1)
    tail, into_ptr, into = _ends(ptr, room.head[: ptr[-1]])
    cpu_tail, cpu_into_ptr, cpu_into = _ends(cpu_ptr, cpu_head)
    blocks = (room.head[into], room.parts[into], room.far[into] if spans else room.far)
    cpu_blocks = (cpu_tail, cpu_head, cpu_load, room.cpu_weight[: cpu_ptr[-1]])
    slow = line.devices[-1].bandwidth_bytes_per_s
    bands = (device.levels[level].bandwidth_bytes_per_s, device.bandwidth_bytes_per_s, slow)
    sync = np.array([graph.backward.any() / band for band in bands])
    cuts = cuts_of(p, lattice.parent, lattice.last)
    over = over[:, : over.shape[1] * (device.link_factors[level] != 1)]
    return p, Arcs(
        *plain(sync, over, bits, low, high, pins, *cuts),
        *plain(tail[into], *blocks, room.weight[into], into_ptr),
        *plain(cpu_ptr, *cpu_blocks, cpu_into_ptr, cpu_into),
    )


def _ends(ptr: Ints, head: Ints) -> tuple[Ints, Ints, Ints]:
    """Tails of the blocks, and the blocks by head (CSR)."""
    count = len(ptr) - 1
    tail = np.repeat(np.arange(count, dtype=np.int64), np.diff(ptr))
    return tail, *csr(head, np.arange(len(head)), count)
