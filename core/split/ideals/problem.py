"""A priced graph for the kernels of the search over order ideals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Annotated, Any, NamedTuple

import numpy as np

from dnnp.core.cost.items import LinearizedItems, same_nets
from dnnp.core.cost.load import weights_stated
from dnnp.core.cost.load_formula import COMM, ROOM, ROUNDING
from dnnp.core.cost.problem import spread
from dnnp.core.kernels.kernel import plain, scratch
from dnnp.core.model.graph import (
    PARAMETER,
    Bools,
    Floats,
    Graph,
    Ints,
    csr,
    csr_rows,
    distinct,
    totals,
)
from dnnp.core.model.hypergraph import Hypergraph
from dnnp.core.model.plan import CostOptions
from dnnp.core.split.ideals.lattice import Lattice

NONE = 32767
"""More devices than there can be."""

MOST_COMPARED = 5_000
"""Items up to which those that may be exchanged are looked for."""


class PricedGraph(NamedTuple):
    """Items 0..n-1 in a topological order, nets, and devices.

    `C` classes; the last one is minimised, the others are budgets in the state. `P` passes, each
    with a target of its own: 1, or forward and backward. `R` rows: pairs of a class that pays
    for transfers and a pass.
    """

    comm: int
    work: Floats
    """f64[C, P, n]; inf: unsupported."""
    row_class: Ints
    row_pass: Ints
    row_of: Ints
    """i64[C, P], row of a class and a pass; -1: it pays for no transfers."""
    nets: Hypergraph
    """Rows of items in u32: compiled code tests each signed index for being below 0."""
    net_size: Ints
    """i64[p], pins of each net."""
    net_cost: Floats
    """f64[R, p]."""
    weights: Floats
    """f64[C], a device's share in a lower bound; with the counts they add up to 1."""
    net_share: Floats
    """f64[P, p], least weighted cost of a net that some device still has to pay."""
    crossing: Floats
    """f64[P, I], the sum of these over the nets that leave an ideal; below 0: not known yet.
    Scratch of the search, as the next one (`with_rest`)."""
    rest: Floats
    """f64[P, I], weighted work outside each ideal."""
    counts: Ints
    """i64[C]."""
    strides: Ints
    """i64[C], mixed-radix strides of the budgets; last: number of states."""
    copies: Ints
    """i64[C], most replicas of a block."""
    sync: Floats
    """f64[C], time per weight byte of an endless number of replicas."""
    item_weight: Floats
    """f64[n], weight bytes of each item."""
    capacity: Floats
    """f64[C], bytes."""
    stream: Floats
    """f64[C], time per byte above capacity; inf: nothing may be above."""
    item_bytes: Floats
    """f64[n], memory that blocks add up."""
    param_ptr: Ints
    """Shared parameters of each item (CSR)."""
    param_idx: Ints
    param_bytes: Floats
    param_weight: Floats
    """f64[t], the bytes of it that replicas synchronise."""
    peak: int
    """1: the memory of a block is not a sum, but depends on its steps."""
    relaxed: int
    """1: take a lower bound for that memory, whatever the order of a block's nodes."""
    item_touch: Floats
    """f64[n], bytes of all activations that the item reads or makes."""
    item_own: Floats
    """f64[n], largest memory of one of its nodes alone."""
    node_ptr: Ints
    """Nodes of each item (CSR), in execution order."""
    nodes: Ints
    read_ptr: Ints
    """Activations that each node reads (CSR)."""
    read_idx: Ints
    made_ptr: Ints
    made_idx: Ints
    tensor_bytes: Floats
    tensor_uses: Ints
    """Nodes that read each tensor."""
    tensor_kept: Ints
    """1: a model output, which lives until the end of its block."""
    producer: Ints
    labels: Ints
    """i64[L, n], labels of the items: a block has at most one a row, besides 0."""
    ends: Bools
    """bool[states]: states in which everything may be covered. False in the first one if the number
    of blocks is fixed, so that none is dominated."""


class DPTable(NamedTuple):
    """Best way into each (ideal, state), filled by a pass."""

    min_devices: Annotated[Ints, "i16[ideals, states]"]
    """Fewest devices of the last class; NONE: not reached."""
    parent: Annotated[Ints, "i32[ideals, states]"]
    """The ideal before the last block."""
    choice: Annotated[Ints, "i32[ideals, states]"]
    """Class of the last block + C * (replicas - 1)."""
    max_load: Annotated[Floats, "f64[ideals, states]"]
    """The largest load on that way: of ways with as many devices the plain kernel keeps the one
    with the least. Dominated ways may have been cut off: it proves nothing."""


def new_table(ideals: int, states: int) -> DPTable:
    """A table in which the empty ideal alone is reached."""
    table = scratch(DPTable, {"ideals": ideals, "states": states})
    table.min_devices[:] = NONE
    table.min_devices[0, 0] = 0
    return table


def may_bind(graph: Graph, line: LinearizedItems, options: CostOptions) -> bool:
    """True if some block could need more memory than some accelerator has."""
    capacity = min((d.memory_bytes for d in line.devices if not d.is_cpu), default=np.inf)
    if not np.isfinite(capacity):
        return False
    if options.memory_model == "sum":
        return bool(line.memory.sum() > capacity * (1 - ROUNDING))
    return bool(graph.tensor_memory.sum() > capacity * (1 - ROUNDING))


def is_weighty(graph: Graph, line: LinearizedItems, options: CostOptions) -> Bools:
    """Tell which items have weights that replicas synchronise; bool[n]."""
    memory = memory_arrays(graph, line, options)
    item = np.repeat(np.arange(line.n), np.diff(memory["param_ptr"]))
    shared = item[memory["param_weight"][memory["param_idx"]] > 0]
    return (memory["item_weight"] > 0) | np.isin(np.arange(line.n), shared)


def priced_graph(
    graph: Graph, line: LinearizedItems, classes: Sequence[int], options: CostOptions
) -> PricedGraph:
    """Arrange items, nets and devices for the kernels, with nothing known of what is left."""
    devices = [line.devices[c] for c in classes]
    passes = line.passes(options)
    work = np.stack([w[[*classes]] for w, _ in passes], axis=1)
    rows = [(c, q) for c, d in enumerate(devices) if not d.is_cpu for q in range(len(passes))]
    nets, kept, cost = _merged_nets(line)
    net_cost = np.array([np.where(passes[q][1][kept], cost[classes[c]], 0.0) for c, q in rows])
    net_cost = net_cost.reshape(len(rows), len(kept))
    counts = np.array([d.count for d in devices], dtype=np.int64)
    weights, real = np.zeros(len(counts)), np.flatnonzero(counts)
    weights[real] = spread(line.work[[*classes]][real], counts[real].astype(np.float64))[1]
    strides = np.cumprod(np.append(1, counts[:-1] + 1)).astype(np.int64)
    memory = memory_arrays(graph, line, options)
    training = bool(graph.backward.any())
    copies = [max(min(options.max_replicas, d.count), 1) for d in devices]
    binding = may_bind(graph, line, options)
    streamed = options.memory_mode == "overflow"
    free = [d.is_cpu or not binding for d in devices]
    arrays = {
        "work": work,
        "row_class": np.array([c for c, _ in rows], dtype=np.int64),
        "row_pass": np.array([q for _, q in rows], dtype=np.int64),
        "row_of": np.array(
            [
                [rows.index((c, q)) if (c, q) in rows else -1 for q in range(len(passes))]
                for c in range(len(devices))
            ]
        ),
        "net_size": nets.sizes,
        "net_cost": net_cost,
        "weights": weights,
        "net_share": _shares(rows, weights, net_cost, len(passes)),
        "crossing": np.zeros((len(passes), 0)),
        "rest": np.zeros((len(passes), 0)),
        "counts": counts,
        "strides": strides,
        "copies": np.array(copies, dtype=np.int64),
        "sync": np.array([1 / d.bandwidth_bytes_per_s if training else 0.0 for d in devices]),
        "capacity": np.array(
            [np.inf if f else d.memory_bytes * ROOM for f, d in zip(free, devices, strict=True)]
        ),
        "stream": np.array([1 / d.bandwidth_bytes_per_s if streamed else np.inf for d in devices]),
        **memory,
        "labels": line.labels,
    }
    ends = line.ends(strides) if line.exactly else np.ones(int(strides[-1]), dtype=np.bool_)
    arrays = dict(zip(arrays, plain(*arrays.values()), strict=True))
    peak = int(binding and options.memory_model == "peak")
    return PricedGraph(
        comm=COMM[options.comm], nets=_unsigned(nets), peak=peak, relaxed=0, ends=ends, **arrays
    )


def _unsigned(nets: Hypergraph) -> Hypergraph:
    """The same hypergraph with rows of items in u32."""
    ptr: Any = nets.item_ptr.astype(np.uint32)
    net: Any = nets.item_net.astype(np.uint32)
    return nets._replace(item_ptr=ptr, item_net=net)


def _merged_nets(line: LinearizedItems) -> tuple[Hypergraph, Ints, Floats]:
    """Nets with the same pins, source and pass as one: nets, the first of each, cost f64[C, p]."""
    nets = line.nets
    number, kept = same_nets(nets, nets.source, nets.always, line.backward_net)
    cost = np.stack([totals(number, row, len(kept)) for row in line.cost])
    return nets.with_nets(kept), kept, cost


def with_rest(p: PricedGraph, lattice: Lattice) -> PricedGraph:
    """Add what is left outside each ideal of a lattice."""
    real = p.counts > 0
    share = (p.weights[real, None, None] * p.work[real]).min(axis=0)
    inside = _sums(lattice, share)
    # Less a little, so that rounding leaves nothing outside the last ideal.
    rest = np.maximum(share.sum(axis=1)[:, None] * (1 - 1e-11) - inside, 0.0)
    return p._replace(rest=rest, crossing=np.full(rest.shape, -1.0))


def symmetry_chains(graph: Graph, line: LinearizedItems, options: CostOptions) -> LinearizedItems:
    """Add precedence among interchangeable items; some optimum respects it.

    Two items are interchangeable if they have the same costs, the same items before and after them,
    and tensors of the same cost, which all go to and come from the same items: exchanging them in a
    split changes no load, and so one of the optimal splits has each kind in the order of the line.
    """
    if line.n > MOST_COMPARED or (
        options.memory_model == "peak" and may_bind(graph, line, options)
    ):
        return line  # with peak memory the order within a block counts, too
    n = line.n
    around = [
        np.bincount(one, weights, minlength=n)
        for one, other in ((line.tail, line.head), (line.head, line.tail))
        for weights in (None, other + 1.0)
    ]
    costs = np.vstack([line.work, line.backward_work, line.memory, *around])
    if len(np.unique(costs, axis=1, return_index=True)[1]) == n:  # without it: numpy.ma is loaded
        return line  # at once: no two items are alike in what is quickly compared
    held = memory_arrays(graph, line, options)
    kinds: list[list[object]] = [[] for _ in range(n)]
    for rows in (line.work, line.backward_work, line.memory[None], held["item_weight"][None]):
        for kind, column in zip(kinds, rows.T.tolist(), strict=True):
            kind.append(column)
    for one, other in ((line.tail, line.head), (line.head, line.tail)):
        ptr, near = csr(one, other, n)
        for item, kind in enumerate(kinds):
            kind.append(sorted({*near[ptr[item] : ptr[item + 1]].tolist()}))
    ptr, shared = held["param_ptr"], held["param_idx"]
    ends: list[list[tuple[object, ...]]] = [
        [("shared", p) for p in sorted(shared[ptr[item] : ptr[item + 1]].tolist())]
        for item in range(n)
    ]
    nets, kept, cost = _merged_nets(line)
    starts, pins = nets.net_ptr, nets.pins
    for e, (first, maker) in enumerate(zip(kept.tolist(), nets.source.tolist(), strict=True)):
        pays = (bool(nets.always[e]), bool(line.backward_net[first]), *cost[:, e].tolist())
        readers = [i for i in pins[starts[e] : starts[e + 1]].tolist() if i != maker]
        if maker >= 0:
            ends[maker].append(("made", tuple(readers), *pays))
        for item in readers:
            ends[item].append(("read", maker, *pays) if len(readers) == 1 else ("shares", e))
    last: dict[object, int] = {}
    pairs = []
    for item, kind in enumerate(kinds):
        key = (repr(kind), *sorted(map(repr, ends[item])))
        if key in last:
            pairs.append((last[key], item))
        last[key] = item
    extra = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    tail, head = (np.append(a, b) for a, b in zip((line.tail, line.head), extra.T, strict=True))
    return replace(line, tail=tail, head=head) if pairs else line


def _shares(rows: list[tuple[int, int]], weights: Floats, net_cost: Floats, passes: int) -> Floats:
    """Least weighted cost of each net over the classes that pay; f64[P, p]."""
    share = np.zeros((passes, net_cost.shape[1]))
    for q in range(passes):
        paying = [weights[c] * net_cost[r] for r, (c, p) in enumerate(rows) if p == q]
        if paying:
            share[q] = np.min(paying, axis=0)
    return share


def _sums(lattice: Lattice, share: Floats) -> Floats:
    """Sum of `share` (f64[P, n]) over the items of each ideal; f64[P, I].

    Ideals of one size stand together, so every size is one step.
    """
    inside = np.zeros((len(share), lattice.size))
    for first, end in pairwise(lattice.levels()[1:]):
        rows = slice(first, end)
        inside[:, rows] = inside[:, lattice.parent[rows]] + share[:, lattice.last[rows]]
    return inside


def turned(p: PricedGraph, lattice: Lattice) -> PricedGraph:
    """The problem with item n - 1 - v for v, for the plain kernel on the turned lattice."""
    rows = np.arange(p.work.shape[2])[::-1]
    ptr, item_net = csr_rows(p.nets.item_ptr.astype(np.int64), p.nets.item_net, rows)
    nets = _unsigned(p.nets._replace(item_ptr=ptr, item_net=item_net))
    return with_rest(p._replace(work=p.work[:, :, ::-1].copy(), nets=nets), lattice)


def least_devices(lattice: Lattice, table: DPTable) -> Ints:
    """Devices of the last class that cover an ideal, at least, by what a pass found; i16[I].

    A block may have been left to one with an item more, so that no way ends at the ideal itself:
    then one ends at an ideal that holds it.
    """
    found = table.min_devices.min(axis=1)
    for first, end in [*pairwise(lattice.levels())][-2::-1]:
        starts = lattice.child_ptr[first : end + 1]
        children = found[lattice.child_ideal[starts[0] : starts[-1]]]
        larger = np.minimum.reduceat(children, starts[:-1] - starts[0])
        found[first:end] = np.minimum(found[first:end], larger)
    return found


def memory_arrays(
    graph: Graph, line: LinearizedItems, options: CostOptions
) -> dict[str, np.ndarray]:
    """Arrays that give the memory and the weights of a block, by their names in `PricedGraph`."""
    graph, n = graph.in_memory, line.n
    where = line.item_of_node
    node, tensor = graph.reader, graph.in_idx
    static = graph.tensor_kind[tensor] >= PARAMETER
    stated = weights_stated(graph)
    peak = options.memory_model == "peak"
    held = np.zeros(n) if peak else line.memory.copy()
    weight = totals(where[stated], graph.node_bytes[stated], n)
    # Parameters by item; one that a single item reads is that item's own.
    width = max(graph.m, 1)
    pairs = distinct(where[node[static]] * width + tensor[static])
    item, param = pairs // width, pairs % width
    counted = np.zeros(len(pairs), dtype=np.bool_)
    synced = distinct((where[node] * width + tensor)[static & ~stated[node]])
    counted[np.searchsorted(pairs, synced)] = graph.tensor_kind[synced % width] == PARAMETER
    size = graph.tensor_bytes[param]
    own = np.bincount(param, minlength=width)[param] == 1
    if peak:
        held += totals(item[own], size[own], n)
    weight += totals(item[own & counted], size[own & counted], n)
    names, index = np.unique(param[~own], return_inverse=True)
    param_ptr, param_idx = csr(item[~own], index, n)
    syncs = np.zeros(len(names))
    syncs[index[counted[~own]]] = 1.0
    read_ptr, read_idx = csr(node[~static], tensor[~static], graph.n)
    made = np.flatnonzero(graph.producer >= 0)
    made_ptr, made_idx = csr(graph.producer[made], made, graph.n)
    each = totals(node[~static], graph.tensor_bytes[tensor[~static]], graph.n)
    each += totals(graph.producer[made], graph.tensor_bytes[made], graph.n)
    largest = np.zeros(n)
    np.maximum.at(largest, where, each)
    return {
        "item_weight": weight,
        "item_bytes": held,
        "param_ptr": param_ptr,
        "param_idx": param_idx,
        "param_bytes": graph.tensor_bytes[names] * (1.0 if peak else 0.0),
        "param_weight": graph.tensor_bytes[names] * syncs,
        "item_touch": totals(where, each, n) if peak else np.zeros(n),
        "item_own": largest if peak else np.zeros(n),
        "node_ptr": line.node_ptr,
        "nodes": line.nodes,
        "read_ptr": read_ptr,
        "read_idx": read_idx,
        "made_ptr": made_ptr,
        "made_idx": made_idx,
        "tensor_bytes": graph.tensor_bytes,
        "tensor_uses": np.diff(graph.use_ptr),
        "tensor_kept": graph.is_output.astype(np.int64),
        "producer": graph.producer,
    }
