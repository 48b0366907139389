"""PipeDream's dynamic programs: a chain cut into stages, each replicated over some devices.

With A(j, s) the least largest load when the first j items use the devices s (numbers of devices
of each class),

    A(j, s) = min over i < j, class c, r <= max_replicas of
              max(A(i, s - r of c), load(i..j-1 on r devices of class c))

as in section 3.1 of the PipeDream paper and Appendix C.2 of the 2020 paper. Where devices form
clusters, a segment of the chain is cut so over the devices of one cluster, with transfers inside it
on the inner link; then the chain is cut into segments over the clusters, and stages over devices
that form none. That is the hierarchical optimiser of the PipeDream paper, and Appendix C.3 of the
2020 paper, except that no stage spans clusters.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dnnp.core.cost.items import Line, steps_of
from dnnp.core.cost.load import weights_stated
from dnnp.core.cost.load_formula import COMM, load_of, share_of
from dnnp.core.cost.memory import Steps, memory_row, no_steps, tree_size
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.kernels.kernel import kernel, plain
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.graph import PARAMETER, Bools, Floats, Graph, Ints, csr, distinct


class Chain(NamedTuple):
    """A line of `n` items as the program reads it; `C` classes, `o` ways to run a stage."""

    comm: int
    streamed: bool
    """Memory above capacity costs time."""
    steps: Steps
    work: Floats
    """f64[C, n]; inf: unsupported."""
    reach: Ints
    """i64[C, n]."""
    touch_ptr: Ints
    touch: Ints
    """Nets of each item (CSR)."""
    pins: Ints
    """i64[p], items of each net."""
    source: Ints
    always: Bools
    cost: Floats
    weight_ptr: Ints
    weight_bytes: Floats
    weight_before: Ints
    """What replicas of an item synchronise (CSR): bytes, and the last item before that holds
    the same weights (-1: none)."""
    way_class: Ints
    way_replicas: Ints
    """i64[o], the class and the replicas of each way."""
    sync: Floats
    """f64[o], time to synchronise a byte."""
    capacity: Floats
    stream_s: Floats
    """f64[C], time a byte above capacity costs."""


class Scratch(NamedTuple):
    """Room for the kernels."""

    held: Ints
    """i64[p], 0 between calls."""
    seen: Ints
    trees: Floats
    memory: Floats
    row: Floats
    """f64[o, n + 1]."""


class Stage(NamedTuple):
    """One stage: items first..end-1 on so many devices of a class."""

    first: int
    end: int
    device_class: int
    replicas: int
    number: int = -1
    """Of the first device; -1: the next that is free."""


def chain_of(problem: SplitProblem, line: Line) -> Chain:
    """Arrange a line of a problem."""
    graph, devices, options = problem.graph, problem.devices, problem.options
    ways = [
        (c, r)
        for c, d in enumerate(line.devices)
        for r in range(1, min(devices[c].count, options.max_replicas) + 1)
    ]
    way_class = np.array([c for c, _ in ways], dtype=np.int64)
    replicas = np.array([r for _, r in ways], dtype=np.int64)
    sync = np.zeros(len(ways))
    if graph.backward.any():
        band = np.array([d.bandwidth_bytes_per_s for d in devices])[way_class]
        sync = (replicas - 1) / (replicas * band)
    net = np.repeat(np.arange(len(line.source)), np.diff(line.pin_ptr))
    touch_ptr, touch = csr(line.pins, net, line.n)
    limited = [not d.is_cpu and np.isfinite(d.memory_bytes) for d in devices]
    streamed = options.memory_mode == "overflow" and any(limited)
    capacity = np.where(limited, [d.memory_bytes for d in devices], np.inf)
    return Chain(
        COMM[options.comm],
        streamed,
        steps_of(graph, line, options) if streamed else no_steps(),
        *plain(line.work, line.reach, touch_ptr, touch, np.diff(line.pin_ptr), line.source),
        *plain(line.always, line.cost, *_weights(graph, line), way_class, replicas, sync),
        *plain(capacity, 1 / np.array([d.bandwidth_bytes_per_s for d in devices])),
    )


def _weights(graph: Graph, line: Line) -> tuple[Ints, Floats, Ints]:
    """Weight bytes by item (CSR), each with the last earlier item that holds the same tensor."""
    item = np.empty(graph.n, dtype=np.int64)
    item[line.nodes] = np.repeat(np.arange(line.n), np.diff(line.node_ptr))
    own = weights_stated(graph)
    stated = np.flatnonzero(own)
    reader = np.repeat(np.arange(graph.n), np.diff(graph.in_ptr))
    read = ~own[reader] & (graph.tensor_kind[graph.in_idx] == PARAMETER)
    pairs = distinct(graph.in_idx[read] * max(line.n, 1) + item[reader[read]])
    tensor, at = pairs // max(line.n, 1), pairs % max(line.n, 1)
    before = np.full(len(pairs), -1, dtype=np.int64)
    again = np.flatnonzero(tensor[1:] == tensor[:-1]) + 1
    before[again] = at[again - 1]
    rows = np.concatenate([item[stated], at])
    ptr, index = csr(rows, np.arange(len(rows)), line.n)
    size = np.concatenate([graph.node_bytes[stated], graph.tensor_bytes[tensor]])
    last = np.concatenate([np.full(len(stated), -1, dtype=np.int64), before])
    return ptr, size[index], last[index]


def scratch_of(m: Chain) -> Scratch:
    """Room for a chain."""
    nets, n = len(m.pins), m.work.shape[1]
    return Scratch(
        np.zeros(nets, dtype=np.int64),
        np.zeros(nets, dtype=np.int64),
        np.zeros((2, tree_size(m.steps))),
        np.zeros(n),
        np.empty((len(m.way_class), n + 1)),
    )


@kernel
def loads_from(m, first, end, into_cost, out_cost, bound, scratch):  # type: ignore[no-untyped-def]
    """Loads of the stages first..j-1, j <= end, for every way, into scratch.row[way, j].

    Returns the largest j that is filled; beyond it no way has a load up to `bound`. The costs
    (f64[C, p]) are those of a net that enters and that leaves a stage.
    """
    classes = m.work.shape[0]
    held, seen, memory, row = scratch.held, scratch.seen, scratch.memory, scratch.row
    into, out, work = np.zeros(classes), np.zeros(classes), np.zeros(classes)
    if m.streamed:
        memory_row(m.steps, first, end - 1, scratch.trees[0], scratch.trees[1], memory)
    weight, touched, last = 0.0, 0, end
    for j in range(first, end):
        for t in range(m.touch_ptr[j], m.touch_ptr[j + 1]):
            e = m.touch[t]
            source = m.source[e]
            was_mine = source >= first and source < j
            is_mine = source >= first and source <= j
            was_out = was_mine and (held[e] < m.pins[e] or m.always[e])
            was_in = held[e] > 0 and not was_mine
            if held[e] == 0:
                seen[touched] = e
                touched += 1
            held[e] += 1
            is_out = is_mine and (held[e] < m.pins[e] or m.always[e])
            for c in range(classes):
                into[c] += into_cost[c, e] * (int(not is_mine) - int(was_in))
                out[c] += out_cost[c, e] * (int(is_out) - int(was_out))
        for t in range(m.weight_ptr[j], m.weight_ptr[j + 1]):
            if m.weight_before[t] < first:
                weight += m.weight_bytes[t]
        for c in range(classes):
            work[c] += m.work[c, j]
        hope = False
        for o in range(len(m.way_class)):
            c, r = m.way_class[o], m.way_replicas[o]
            row[o, j + 1] = np.inf
            if j > m.reach[c, first]:
                continue
            hope |= work[c] / r <= bound
            extra = 0.0
            if m.streamed and memory[j] > m.capacity[c]:
                extra = (memory[j] - m.capacity[c]) * m.stream_s[c]
            load = load_of(m.comm, into[c], work[c], extra, out[c])
            row[o, j + 1] = share_of(m.comm, load, r, weight * m.sync[o])
        if not hope:
            last = j + 1
            break
    for t in range(touched):
        held[seen[t]] = 0
    return last


@kernel
def fill(m, first, end, into_cost, out_cost, counts, bound, best, came, how, scratch):  # type: ignore[no-untyped-def]
    """Fill best[j, state] over the items first..end-1, with the start and way of the last stage.

    `counts` (i64[C]) are the devices there are; the states are their mixed-radix numbers.
    """
    stride = np.ones(len(counts) + 1, dtype=np.int64)
    for c in range(len(counts)):
        stride[c + 1] = stride[c] * (counts[c] + 1)
    best[first : end + 1] = np.inf
    best[first, 0] = 0.0
    for i in range(first, end):
        if best[i].min() == np.inf:
            continue
        last = loads_from(m, i, end, into_cost, out_cost, bound, scratch)
        for s in range(stride[-1]):
            if best[i, s] == np.inf:
                continue
            for o in range(len(m.way_class)):
                c, r = m.way_class[o], m.way_replicas[o]
                if (s // stride[c]) % (counts[c] + 1) + r > counts[c]:
                    continue
                to = s + r * stride[c]
                for j in range(i + 1, last + 1):
                    load = max(best[i, s], scratch.row[o, j])
                    if load <= bound and load < best[j, to]:
                        best[j, to], came[j, to], how[j, to] = load, i, o


def cut_chain(
    m: Chain, first: int, end: int, costs: tuple[Floats, Floats], counts: Ints, bound: float
) -> list[Stage] | None:
    """Best stages for the items first..end-1 with loads up to `bound`; None if there are none.

    O(n^2) loads, each tried for every way and state.
    """
    states = int((counts + 1).prod())
    best = np.empty((end + 1, states))
    came, how = (np.zeros((end + 1, states), dtype=np.int64) for _ in range(2))
    fill(m, first, end, *costs, counts, bound, best, came, how, scratch_of(m))
    state = int(best[end].argmin())
    if not np.isfinite(best[end, state]):
        return None
    stride = np.concatenate([[1], np.cumprod(counts + 1)])
    parts = _traced(came, how, state, first, end, m.way_replicas * stride[m.way_class])
    return [Stage(a, b, int(m.way_class[way]), int(m.way_replicas[way])) for a, b, way in parts]


def _traced(
    came: Ints, how: Ints, state: int, first: int, end: int, taken: Ints
) -> list[tuple[int, int, int]]:
    """First item, end and way of the parts of first..end-1; a way lowers the state by `taken`."""
    parts: list[tuple[int, int, int]] = []
    while end > first:
        way, start = int(how[end, state]), int(came[end, state])
        parts.append((start, end, way))
        state -= int(taken[way])
        end = start
    return parts[::-1]


@kernel
def _inside(m, pin_first, pin_last, c, factor, a, b, into_cost, out_cost):  # type: ignore[no-untyped-def]
    """Costs of the nets for stages on a cluster (class c) that holds the items a..b-1."""
    for e in range(len(m.source)):
        price = m.cost[c, e]
        near = m.source[e] >= a and m.source[e] < b
        into_cost[c, e] = price * factor if near else price
        near = pin_first[e] >= a and pin_last[e] < b and not m.always[e]
        out_cost[c, e] = price * factor if near else price


@kernel
def _segments(m, pin_first, pin_last, c, factor, sizes, bound, scratch, table):  # type: ignore[no-untyped-def]
    """Fill table[kind, a, b]: the least largest load of the items a..b-1 on one cluster.

    `sizes` (i64[kinds], descending) are the devices of a cluster of each kind.
    """
    n, classes = m.work.shape[1], len(m.work)
    counts = np.zeros(classes, dtype=np.int64)
    counts[c] = sizes[0]
    into_cost, out_cost = m.cost.copy(), m.cost.copy()
    best = np.empty((n + 1, sizes[0] + 1))
    came = np.zeros((n + 1, sizes[0] + 1), dtype=np.int64)
    how = np.zeros((n + 1, sizes[0] + 1), dtype=np.int64)
    table[:] = np.inf
    for a in range(n):
        work = 0.0
        for b in range(a + 1, n + 1):
            work += m.work[c, b - 1]
            if not work <= bound * sizes[0]:
                break
            _inside(m, pin_first, pin_last, c, factor, a, b, into_cost, out_cost)
            fill(m, a, b, into_cost, out_cost, counts, bound, best, came, how, scratch)
            for kind in range(len(sizes)):
                table[kind, a, b] = best[b, : sizes[kind] + 1].min()


def cut_levels(
    m: Chain,
    pins: tuple[Ints, Ints],
    devices: tuple[DeviceClass, ...],
    clustered: int,
    bound: float,
) -> list[Stage] | None:
    """Best stages with loads up to `bound`, with their device numbers; None if there are none.

    Parameters
    ----------
    pins
        First and last item of each net, i64[p].
    clustered
        The class whose devices form clusters.

    O(n^2) segments, each with the work of `cut_chain` on its items.
    """
    device, n = devices[clustered], m.work.shape[1]
    inner = np.where(m.way_class == clustered, device.inner_factor, 1.0)
    m = m._replace(sync=m.sync * inner)  # no stage is in two clusters
    full, rest = divmod(device.count, device.cluster_size)
    pairs = ((device.cluster_size, full), (rest, 1))
    kinds = [(size, count) for size, count in pairs if size and count]
    scratch = scratch_of(m)
    table = np.empty((len(kinds), n + 1, n + 1))
    sizes = np.array([size for size, _ in kinds], dtype=np.int64)
    factor = device.inner_factor
    _segments(m, *pins, clustered, factor, sizes, bound, scratch, table)
    # Ways of the outer level: a cluster of each kind, and the ways of all other classes.
    others = np.flatnonzero(m.way_class != clustered)
    digit = [*range(len(kinds)), *(len(kinds) + m.way_class[others]).tolist()]
    amount = [1] * len(kinds) + m.way_replicas[others].tolist()
    spare = [0 if c == clustered else d.count for c, d in enumerate(devices)]
    counts = np.array([*(count for _, count in kinds), *spare], dtype=np.int64)
    rows = np.full((n, len(digit), n + 1), np.inf)
    rows[:, : len(kinds)] = table[:, :n].transpose(1, 0, 2)
    for i in range(n if len(others) else 0):
        last = loads_from(m, i, n, m.cost, m.cost, bound, scratch)
        rows[i, len(kinds) :, i + 1 : last + 1] = scratch.row[others, i + 1 : last + 1]
    parts = _cover(rows, digit, amount, counts, bound)
    if parts is None:
        return None
    found: list[Stage] = []
    used = [0] * len(kinds)
    for first, end, way in parts:
        if way >= len(kinds):
            o = others[way - len(kinds)]
            found.append(Stage(first, end, int(m.way_class[o]), int(m.way_replicas[o])))
            continue
        into_cost, out_cost = m.cost.copy(), m.cost.copy()
        _inside(m, *pins, clustered, factor, first, end, into_cost, out_cost)
        inner = np.zeros(len(devices), dtype=np.int64)
        inner[clustered] = sizes[way]
        stages = cut_chain(m, first, end, (into_cost, out_cost), inner, bound) or []
        # The odd cluster is the last one.
        odd = sizes[way] < device.cluster_size
        number = device.cluster_size * (full if odd else used[way])
        used[way] += 1
        for stage in stages:
            found.append(stage._replace(number=number))
            number += stage.replicas
    return found


def _cover(
    rows: Floats, digit: list[int], amount: list[int], counts: Ints, bound: float
) -> list[tuple[int, int, int]] | None:
    """Parts (`_traced`) by the loads rows[first, way, end]; None if no value up to `bound`."""
    n = len(rows)
    stride = np.concatenate([[1], np.cumprod(counts + 1)]).astype(np.int64)
    best = np.full((int(stride[-1]), n + 1), np.inf)
    came = np.zeros((int(stride[-1]), n + 1), dtype=np.int64)
    how = np.zeros((int(stride[-1]), n + 1), dtype=np.int64)
    best[0, 0] = 0.0
    for i in range(n):
        for s in np.flatnonzero(best[:, i] < np.inf).tolist():
            for way, (d, r) in enumerate(zip(digit, amount, strict=True)):
                if (s // stride[d]) % (counts[d] + 1) + r > counts[d]:
                    continue
                to = s + r * stride[d]
                load = np.maximum(best[s, i], rows[i, way])
                better = (load < best[to]) & (load <= bound)
                best[to, better], came[to, better], how[to, better] = load[better], i, way
    state = int(best[:, n].argmin())
    if best[state, n] == np.inf:
        return None
    return _traced(came.T, how.T, state, 0, n, np.array(amount) * stride[digit])
