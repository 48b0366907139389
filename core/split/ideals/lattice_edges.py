"""Blocks of a lattice with their cheapest load: the edges that the search for hierarchies walks.

An edge l -> r between ideals is a block of the items r - l. Its cheapest load has every transfer
between stages on the inner link; model inputs and outputs, where they cost something, stay on
the outer one. A load has one part for each pass with a target of its own: all of it for the
objective throughput, the forward and the backward pass for gpipe.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dnnp.core.cost.items import Line
from dnnp.core.cost.load_formula import COMM, ROOM, ROUNDING, load_of
from dnnp.core.kernels.kernel import kernel, plain
from dnnp.core.model.graph import Floats, Graph, Ints, csr
from dnnp.core.model.plan import CostOptions
from dnnp.core.split.ideals.decide import peak_of
from dnnp.core.split.ideals.lattice import Lattice
from dnnp.core.split.ideals.problem import memory_arrays

MAX_WALK = 4_000_000
"""Blocks that are looked at to list the edges; 72 bytes each that is listed."""


class Costs(NamedTuple):
    """Items 0..n-1 in a topological order, nets, and what a block needs."""

    comm: int
    copies: int
    """Most devices of a stage."""
    sync: Floats
    """f64[3], time per weight byte of an endless number of replicas: in a cluster, in several, and
    on CPUs."""
    factor: float
    """Time of a transfer inside a cluster over its time outside."""
    work: Floats
    """f64[2, P, n], compute time on an accelerator and on a CPU, by pass; inf: unsupported."""
    item_ptr: Ints
    """Nets of each item (CSR)."""
    item_net: Ints
    net_size: Ints
    """Pins of each net."""
    net_source: Ints
    """Item that makes the tensor; -1: a model input."""
    net_always: np.ndarray
    """A model output or input that costs its transfer over the outer link in any case."""
    net_pass: Ints
    """Pass that it belongs to."""
    net_cost: Floats
    """f64[p], time over the outer link."""
    capacity: float
    """Bytes of an accelerator."""
    stream: float
    """Time per byte above the capacity; inf: nothing may be above."""
    item_bytes: Floats
    """f64[n], memory that adds up."""
    param_ptr: Ints
    """Parameters of each item that others share (CSR), counted once a block."""
    param_idx: Ints
    param_bytes: Floats
    item_weight: Floats
    """f64[n], bytes that replicas synchronise, and of each parameter below."""
    param_weight: Floats
    item_touch: Floats
    """f64[n], activations that the item reads or makes; their sum bounds a block's peak."""
    peak: bool
    """Activations take their peak; the fields below say what lives when."""
    node_ptr: Ints
    nodes: Ints
    read_ptr: Ints
    read_idx: Ints
    made_ptr: Ints
    made_idx: Ints
    tensor_bytes: Floats
    tensor_uses: Ints
    tensor_kept: Ints
    producer: Ints


class Listed(NamedTuple):
    """Room for blocks by the ideal before them (CSR), on accelerators and on CPUs."""

    ptr: Ints
    head: Ints
    parts: Floats
    far: Floats
    weight: Floats
    """As of `Arcs`."""
    cpu_ptr: Ints
    cpu_head: Ints
    cpu_load: Floats
    cpu_weight: Floats


class Arcs(NamedTuple):
    """The lattice as kernels read it: ideals 0..I-1, and the blocks between them."""

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
    """Where those of each r begin (CSR)."""
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
    count = len(parent)
    inside = np.zeros(len(p.net_size), np.int64)
    ptr = np.zeros(count + 1, np.int64)
    nets = np.empty(1024, np.int64)
    for ideal in range(count):
        at = ideal
        while last[at] >= 0:
            for i in range(p.item_ptr[last[at]], p.item_ptr[last[at] + 1]):
                inside[p.item_net[i]] += 1
            at = parent[at]
        size = ptr[ideal]
        at = ideal
        while last[at] >= 0:
            for i in range(p.item_ptr[last[at]], p.item_ptr[last[at] + 1]):
                e = p.item_net[i]
                if 0 < inside[e] < p.net_size[e]:
                    if size == len(nets):
                        longer = np.empty(2 * size, np.int64)
                        longer[:size] = nets
                        nets = longer
                    nets[size] = e
                    size += 1
                inside[e] = 0
            at = parent[at]
        ptr[ideal + 1] = size
    return ptr, nets[: ptr[count]].copy()


@kernel
def _memory(p, held, touched, added, depth, live, mark, last_use):  # type: ignore[no-untyped-def]
    """Memory of the block of the items added[1..depth], or less where it fits anyway."""
    if not p.peak or held + touched <= p.capacity:
        return held
    return held + peak_of(p, added[1 : depth + 1], depth, live, mark, last_use)


@kernel
def walk(p, lattice, limit, listed):  # type: ignore[no-untyped-def]
    """List the blocks whose cheapest load is at most `limit`, on accelerators and on CPUs.

    Items are added in ascending order, so each block is met once; what can only grow prunes.
    Fills `listed`. Returns whether all blocks are there: not if more had to be walked than there
    is room for.
    """
    parent, last = lattice.parent, lattice.last
    child_ptr, child_item, child_ideal = lattice.child_ptr, lattice.child_item, lattice.child_ideal
    ptr, head, parts, far = listed.ptr, listed.head, listed.parts, listed.far
    cpu_ptr, cpu_head, cpu_load = listed.cpu_ptr, listed.cpu_head, listed.cpu_load
    count, passes, n = len(parent), p.work.shape[1], p.work.shape[2]
    # Replicas share what a block costs.
    limit = limit * p.copies
    most = len(head)
    before = np.zeros(len(p.net_size), np.int64)
    inside = np.zeros(len(p.net_size), np.int64)
    outside_source = np.zeros(n, np.bool_)
    member = np.zeros(n, np.bool_)
    touched = np.empty(len(p.net_size), np.int64)
    touched_at = np.zeros(n + 2, np.int64)
    used = np.zeros(len(p.param_bytes), np.int64)
    work, held, spread = np.zeros((n + 2, 2, 2)), np.zeros(n + 2), np.zeros(n + 2)
    weight, now = np.zeros(n + 2), np.zeros((2, 4))
    where, child = np.zeros(n + 2, np.int64), np.zeros(n + 2, np.int64)
    added = np.zeros(n + 2, np.int64)
    live, mark = np.zeros(len(p.nodes) + 2), np.zeros(len(p.nodes) + 1, np.int64)
    last_use = np.zeros(len(p.tensor_bytes) + 1, np.int64)
    hard = p.capacity * ROOM
    size, cpu_size, walked = 0, 0, 0
    complete = True
    for ideal in range(count):
        at = ideal
        while last[at] >= 0:
            outside_source[last[at]] = True
            for i in range(p.item_ptr[last[at]], p.item_ptr[last[at] + 1]):
                before[p.item_net[i]] += 1
            at = parent[at]
        depth = 0
        where[0] = ideal
        child[0] = child_ptr[ideal]
        while depth >= 0 and complete:
            if child[depth] == child_ptr[where[depth] + 1]:
                if depth > 0:
                    _drop(p, added[depth], inside, used, member)
                depth -= 1
                continue
            edge = child[depth]
            child[depth] += 1
            v, r = child_item[edge], child_ideal[edge]
            walked += 1
            if walked > most:
                complete = False
                break
            d = depth + 1
            added[d], where[d] = v, r
            for q in range(passes):
                work[d, :, q] = work[depth, :, q] + p.work[:, q, v]
            held[d] = held[depth] + p.item_bytes[v]
            weight[d] = weight[depth] + p.item_weight[v]
            spread[d] = spread[depth] + p.item_touch[v]
            touched_at[d] = touched_at[depth]
            member[v] = True
            for i in range(p.item_ptr[v], p.item_ptr[v + 1]):
                e = p.item_net[i]
                inside[e] += 1
                if inside[e] == 1:
                    touched[touched_at[d]] = e
                    touched_at[d] += 1
            for i in range(p.param_ptr[v], p.param_ptr[v + 1]):
                used[p.param_idx[i]] += 1
                if used[p.param_idx[i]] == 1:
                    held[d] += p.param_bytes[p.param_idx[i]]
                    weight[d] += p.param_weight[p.param_idx[i]]
            slow = work[d, 1, 0] + work[d, 1, 1]
            alive = slow <= limit and slow < np.inf
            if alive:
                cpu_head[cpu_size] = r
                cpu_load[cpu_size] = work[d, 1]
                listed.cpu_weight[cpu_size] = weight[d]
                cpu_size += 1
            fast = work[d, 0, 0] + work[d, 0, 1]
            if fast <= limit and fast < np.inf:
                # In and out, and how much of both no further item takes away.
                now[:] = 0.0
                if len(far):
                    far[size] = 0.0
                for i in range(touched_at[d]):
                    e = touched[i]
                    source, cost, q = p.net_source[e], p.net_cost[e], p.net_pass[e]
                    near, out = cost * p.factor, 0
                    if source < 0:
                        near = cost
                        now[q, 2] += cost
                    elif not member[source]:
                        if outside_source[source]:
                            now[q, 2] += near
                    elif p.net_always[e]:
                        near, out = cost, 1
                        now[q, 3] += cost
                    elif inside[e] < p.net_size[e]:
                        out = 1
                        if before[e] > 0:
                            now[q, 3] += near
                    else:
                        continue
                    now[q, out] += near
                    if len(far):
                        far[size, q, out] += cost
                memory = _memory(p, held[d], spread[d], added, d, live, mark, last_use)
                extra = 0.0
                fits = True
                if p.stream < np.inf:
                    # The passes of gpipe do not pay for it.
                    extra = max(0.0, memory - p.capacity) * p.stream if passes == 1 else 0.0
                elif memory > hard:
                    fits = False
                if fits:
                    now[0, 0] += extra
                    now[0, 2] += extra
                    value = sure = 0.0
                    for q in range(passes):
                        value += load_of(p.comm, now[q, 0], work[d, 0, q], 0.0, now[q, 1])
                        sure += load_of(p.comm, now[q, 2], work[d, 0, q], 0.0, now[q, 3])
                    if value <= limit:
                        head[size] = r
                        parts[size, :, 0] = work[d, 0]
                        parts[size, :, 1:] = now[:, :2]
                        listed.weight[size] = weight[d]
                        if len(far):
                            far[size, 0, 0] += extra
                        size += 1
                    alive = alive or sure * (1 - ROUNDING) <= limit
            if not alive:
                _drop(p, v, inside, used, member)
                continue
            depth = d
            e = child_ptr[r + 1]
            while e > child_ptr[r] and child_item[e - 1] > v:
                e -= 1
            child[d] = e
        ptr[ideal + 1], cpu_ptr[ideal + 1] = size, cpu_size
        if not complete:
            break
        at = ideal
        while last[at] >= 0:
            outside_source[last[at]] = False
            for i in range(p.item_ptr[last[at]], p.item_ptr[last[at] + 1]):
                before[p.item_net[i]] = 0
            at = parent[at]
    return complete


@kernel
def _drop(p, v, inside, used, member):  # type: ignore[no-untyped-def]
    """Take item v out of the block."""
    member[v] = False
    for i in range(p.item_ptr[v], p.item_ptr[v + 1]):
        inside[p.item_net[i]] -= 1
    for i in range(p.param_ptr[v], p.param_ptr[v + 1]):
        used[p.param_idx[i]] -= 1


def make_costs(graph: Graph, line: Line, options: CostOptions, level: int = 0) -> Costs:
    """What blocks of the line's items cost on its first class; a second one is a CPU.

    `level`: of the clusters that are searched.
    """
    device, n = line.devices[0], line.n
    net_size = np.diff(line.pin_ptr)
    net = np.repeat(np.arange(len(net_size), dtype=np.int64), net_size)
    item_ptr, item_net = csr(line.pins, net, n)
    limited = bool(np.isfinite(device.memory_bytes))
    hard = options.memory_mode == "hard"
    work = np.stack([line.work[0], line.work[1] if len(line.devices) > 1 else np.full(n, np.inf)])
    late = np.zeros(len(net_size), dtype=np.int64)
    passes = [work]
    if options.objective == "gpipe":
        behind = np.zeros_like(work)
        behind[: len(line.devices)] = line.backward_work
        passes = [work - behind, behind]
        late = line.backward_net.astype(np.int64)
    memory = memory_arrays(graph, line, options)
    names = [name for name in memory if name in Costs._fields]
    training = bool(graph.backward.any())
    slow = line.devices[-1].bandwidth_bytes_per_s
    bands = (device.levels[level].bandwidth_bytes_per_s, device.bandwidth_bytes_per_s, slow)
    work, sync = plain(np.stack(passes, axis=1), np.array([training / band for band in bands]))
    pin_count, source, always = plain(net_size.astype(np.int64), line.source, line.always)
    return Costs(
        comm=COMM[options.comm],
        copies=min(options.max_replicas, sum(d.count for d in line.devices)),
        sync=sync,
        factor=device.link_factors[level],
        work=work,
        item_ptr=item_ptr,
        item_net=item_net,
        net_size=pin_count,
        net_source=source,
        net_always=always,
        net_pass=late,
        net_cost=plain(line.cost[0])[0],
        capacity=float(device.memory_bytes),
        stream=np.inf if hard else 1 / device.bandwidth_bytes_per_s,
        peak=limited and options.memory_model == "peak",
        **dict(zip(names, plain(*(memory[name] for name in names)), strict=True)),
    )


def make_arcs(costs: Costs, lattice: Lattice, limit: float, *, spans: bool) -> Arcs | None:
    """Blocks of a lattice with a cheapest load of at most `limit`; None if there are too many.

    `spans`: stages may run in several clusters.
    """
    n, count = costs.work.shape[2], lattice.size
    # Room that is not used costs nothing.
    room = Listed(
        ptr=np.zeros(count + 1, dtype=np.int64),
        head=np.empty(MAX_WALK, dtype=np.int64),
        parts=np.empty((MAX_WALK, 2, 3)),
        far=np.empty((MAX_WALK if spans else 0, 2, 2)),
        weight=np.empty(MAX_WALK),
        cpu_ptr=np.zeros(count + 1, dtype=np.int64),
        cpu_head=np.empty(MAX_WALK, dtype=np.int64),
        cpu_load=np.empty((MAX_WALK, 2)),
        cpu_weight=np.empty(MAX_WALK),
    )
    if not walk(costs, lattice, limit, room):
        return None
    ptr, cpu_ptr = room.ptr, room.cpu_ptr
    cpu_head, cpu_load = room.cpu_head[: cpu_ptr[-1]], room.cpu_load[: cpu_ptr[-1]]
    words = n // 64 + 1
    item = np.arange(n)
    alone = np.zeros((n, words), dtype=np.uint64)
    alone[item, item // 64] = np.uint64(1) << (item % 64).astype(np.uint64)
    bits = np.zeros((count, words), dtype=np.uint64)
    for i in range(1, count):
        bits[i] = bits[lattice.parent[i]] | alone[lattice.last[i]]
    pins = np.zeros((len(costs.net_size), words), dtype=np.uint64)
    np.bitwise_or.at(pins, costs.item_net, alone[np.repeat(item, np.diff(costs.item_ptr))])
    low = (bits == bits[-1]).argmin(axis=1)
    high = words - 1 - (bits != 0)[:, ::-1].argmax(axis=1)
    tail, into_ptr, into = _ends(ptr, room.head[: ptr[-1]])
    cpu_tail, cpu_into_ptr, cpu_into = _ends(cpu_ptr, cpu_head)
    blocks = (room.head[into], room.parts[into], room.far[into] if spans else room.far)
    cpu_blocks = (cpu_tail, cpu_head, cpu_load, room.cpu_weight[: cpu_ptr[-1]])
    return Arcs(
        *plain(bits, low, high, pins, *cuts_of(costs, lattice.parent, lattice.last)),
        *plain(tail[into], *blocks, room.weight[into], into_ptr),
        *plain(cpu_ptr, *cpu_blocks, cpu_into_ptr, cpu_into),
    )


def _ends(ptr: Ints, head: Ints) -> tuple[Ints, Ints, Ints]:
    """Tails of the blocks, and the blocks by head (CSR)."""
    count = len(ptr) - 1
    tail = np.repeat(np.arange(count, dtype=np.int64), np.diff(ptr))
    return tail, *csr(head, np.arange(len(head)), count)
