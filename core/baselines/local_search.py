"""Local search over splits that need not be contiguous (2020 paper, section 6; MKA07)."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from dnnp.core.baselines.blocks import checked, part_blocks, slots_of
from dnnp.core.cost.items import Items, LinearizedItems, class_costs
from dnnp.core.cost.load import stage_load
from dnnp.core.cost.load_formula import COMM, ROOM, ROUNDING, WORTHWHILE, load_of
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.kernels.kernel import kernel, part, plain
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.errors import InfeasibleError
from dnnp.core.model.graph import Bools, Floats, Graph, Ints
from dnnp.core.model.hypergraph import ClassCosts, Hypergraph
from dnnp.core.model.plan import Block, CostOptions
from dnnp.core.model.search_context import PLAIN, MethodOptions, SearchContext, Solution

RESTARTS = 10
"""The paper's number."""

MAX_TRIALS = 200_000_000
"""Reassignments that a call may try at effort 1, about two minutes; each restart has its share."""

CHUNK = 300_000
"""Reassignments between two questions whether to stop."""


class Moves(NamedTuple):
    """Problem of reassigning items among `K` slots; stream 0: no memory above the capacity."""

    comm: int
    clustered: bool
    """Some devices form clusters."""
    nets: Hypergraph
    costs: ClassCosts
    slots: Ints
    """i64[K], class of each device."""
    cluster: Ints
    """i64[K]; devices of one cluster share a number."""
    inner: Floats
    """f64[C], time of a transfer inside a cluster over that between clusters."""
    memory: Floats
    """f64[n], bytes; 0 everywhere where memory does not matter."""


def moves_of(
    line: LinearizedItems, devices: tuple[DeviceClass, ...], options: CostOptions, memory: Floats
) -> Moves:
    """Arrange items without order, and their memory (f64[n]), for `descend`."""
    slots = slots_of(line.devices, all_kinds=True)
    cluster = np.empty(len(slots), dtype=np.int64)
    for k, c in enumerate(slots.tolist()):
        number, size = k - int(np.searchsorted(slots, c)), devices[c].cluster_size
        cluster[k] = c + len(devices) * (number // size) if size else -1 - k
    inner = np.array([d.inner_factor if d.cluster_size else 1.0 for d in devices])
    return Moves(
        COMM[options.comm],
        any(d.cluster_size for d in devices),
        line.nets,
        class_costs(line, options),
        *plain(slots, cluster, inner, memory),
    )


@part
def _net(m, e, sign, part, into, out, stamp, token):  # type: ignore[no-untyped-def]
    """Add `sign` times the transfers of net `e` to what every slot pays."""
    nets, cost = m.nets, m.costs.net_cost
    home = -1
    if nets.source[e] >= 0:
        home = part[nets.source[e]]
    pass_ = m.costs.net_pass[e]
    others, far = 0, nets.always[e]
    for q in range(nets.net_ptr[e], nets.net_ptr[e + 1]):
        k = part[nets.pins[q]]
        if k == home or stamp[k] == token:
            continue
        stamp[k] = token
        others += 1
        price = cost[m.slots[k], e]
        if home >= 0 and m.cluster[home] == m.cluster[k]:
            price *= m.inner[m.slots[k]]
        else:
            far = True
        into[pass_, k] += sign * price
    if home >= 0 and (others > 0 or nets.always[e]):
        price = cost[m.slots[home], e]
        if not far:
            price *= m.inner[m.slots[home]]
        out[pass_, home] += sign * price


@part
def _judge(m, into, work, out, held, loads):  # type: ignore[no-untyped-def]
    """Fill the loads f64[P, K]; return bytes above forbidden capacities, and the objective."""
    excess, total = 0.0, 0.0
    capacity, stream = m.costs.capacity, m.costs.stream
    for p in range(loads.shape[0]):
        largest = 0.0
        for k in range(loads.shape[1]):
            extra = 0.0
            c = m.slots[k]
            over = held[k] - capacity[c]
            if over > ROUNDING * capacity[c] and p == 0:
                if stream[c] > 0:
                    if loads.shape[0] == 1:
                        extra = over * stream[c]
                else:
                    excess += over
            load = load_of(m.comm, into[p, k], work[p, k], extra, out[p, k])
            loads[p, k] = load
            largest = max(largest, load)
        total += largest
    return excess, total


@kernel
def _weigh(m, part, into, work, out, held, stamp, token):  # type: ignore[no-untyped-def]
    """Fill what every slot pays and holds; return the last token used."""
    into[:], out[:], work[:], held[:] = 0.0, 0.0, 0.0, 0.0
    for i in range(len(part)):
        for p in range(len(work)):
            work[p, part[i]] += m.costs.work[m.slots[part[i]], p, i]
        held[part[i]] += m.memory[i]
    for e in range(len(m.nets.source)):
        token += 1
        _net(m, e, 1.0, part, into, out, stamp, token)
    return token


@kernel
def _mark(m, part, loads, held, excess, hot, warm):  # type: ignore[no-untyped-def]
    """Mark the slots that an improvement must relieve, and the nets with a pin there."""
    nets, capacity, stream = m.nets, m.costs.capacity, m.costs.stream
    for k in range(len(hot)):
        c = m.slots[k]
        over = held[k] - capacity[c]
        hot[k] = excess > 0 and over > ROUNDING * capacity[c] and stream[c] == 0
        for p in range(len(loads)):
            hot[k] |= excess == 0 and loads[p, k] >= loads[p].max()
    for e in range(len(warm)):
        warm[e] = False
        for q in range(nets.net_ptr[e], nets.net_ptr[e + 1]):
            warm[e] |= hot[part[nets.pins[q]]]


@kernel
def descend(m, part, limit):  # type: ignore[no-untyped-def]
    """Improve `part` (i64[n], slot of each item; changed in place) to a local optimum.

    Every step makes the one reassignment after which the objective is least; the least item and
    slot win ties. Only items that leave or enter a device with the largest load (or too little
    memory) can improve, or, with clusters, those that exchange tensors with it; others are not
    tried. A split that exceeds a capacity is worse than any that exceeds it by less.

    Returns the excess in bytes, the objective, and the trials made; once these pass `limit` the
    search ends where it is.
    """
    item_ptr, item_net, work_on = m.nets.item_ptr, m.nets.item_net, m.costs.work
    passes, n, slots = work_on.shape[1], len(part), len(m.slots)
    into, out = np.zeros((passes, slots)), np.zeros((passes, slots))
    work, held = np.zeros((passes, slots)), np.zeros(slots)
    into0, out0, into1, out1 = into.copy(), out.copy(), into.copy(), out.copy()
    work1, held1, loads, spare = work.copy(), held.copy(), work.copy(), work.copy()
    stamp, token = np.zeros(slots, dtype=np.int64), 0
    hot, warm = np.zeros(slots, dtype=np.bool_), np.zeros(len(m.nets.source), dtype=np.bool_)
    trials = 0
    while True:
        token = _weigh(m, part, into, work, out, held, stamp, token)
        excess, value = _judge(m, into, work, out, held, loads)
        if trials > limit:
            return excess, value, trials
        _mark(m, part, loads, held, excess, hot, warm)
        best_item, best_slot = -1, -1
        least_excess, least = excess * (1 - WORTHWHILE), np.inf
        if excess == 0:
            least = value * (1 - WORTHWHILE)
        for i in range(n):
            a = part[i]
            near = False
            for t in range(item_ptr[i], item_ptr[i + 1]):
                near |= warm[item_net[t]]
            if not hot[a] and (not near or excess > 0):
                continue
            into0[:], out0[:] = into, out
            for t in range(item_ptr[i], item_ptr[i + 1]):
                token += 1
                _net(m, item_net[t], -1.0, part, into0, out0, stamp, token)
            for b in range(slots):
                if b == a or not np.isfinite(work_on[m.slots[b], 0, i]):
                    continue
                if not (hot[a] or hot[b] or m.clustered):
                    continue
                into1[:], out1[:], work1[:], held1[:] = into0, out0, work, held
                for p in range(passes):
                    work1[p, a] -= work_on[m.slots[a], p, i]
                    work1[p, b] += work_on[m.slots[b], p, i]
                held1[a] -= m.memory[i]
                held1[b] += m.memory[i]
                part[i] = b
                for t in range(item_ptr[i], item_ptr[i + 1]):
                    token += 1
                    _net(m, item_net[t], 1.0, part, into1, out1, stamp, token)
                part[i] = a
                trials += 1
                excess1, value1 = _judge(m, into1, work1, out1, held1, spare)
                if excess1 < least_excess or (excess1 <= least_excess and value1 < least):
                    best_item, best_slot, least_excess, least = i, b, excess1, value1
        if best_item < 0:
            return excess, value, trials
        part[best_item] = best_slot


def local_search(
    problem: SplitProblem,
    asked: MethodOptions,
    run: SearchContext = PLAIN,
    *,
    restarts: int = RESTARTS,
) -> Solution:
    """Start from random splits, make the best single reassignment until none helps; keep the best.

    As published, nodes of a colour move together and only accelerators are used; a CPU is where
    nothing else runs an item (or where there are only CPUs). A split above a capacity is worse
    than any below it. The `peak` memory model enters in the end only: the best local optimum
    that fits is taken, and if none does, a second round keeps the sum of the nodes' memory
    within the capacities. The run is warned of restarts that ran out of trials.

    Raises InfeasibleError: a node runs nowhere, or no local optimum fits the memory.
    """
    graph, options = problem.graph, problem.options
    items = problem.free_items
    line = problem.line(items, np.arange(items.count))
    allowed = _allowed(graph, items, line)
    line = replace(line, work=np.where(allowed, line.work, np.inf))
    slots = slots_of(line.devices, all_kinds=True)
    choices = [np.flatnonzero(allowed[slots, i]) for i in range(items.count)]
    limit = int(MAX_TRIALS * run.effort) // max(restarts, 1)
    summed = options.memory_model == "sum"
    for memory in [line.memory] if summed else [0 * line.memory, line.memory]:
        if not summed and memory.any():
            run.warn("local-search: no local optimum fits; again, with memory summed up")
        moves = moves_of(line, problem.devices, options, memory)
        rng = np.random.default_rng(run.seed)
        optima: list[tuple[float, float, int, Ints]] = []
        cut = 0
        for restart in range(max(restarts, 1)):
            if optima and run.stop():
                break
            run.report_progress("descending", share=restart / max(restarts, 1))
            draw = rng.random(items.count)
            part = np.array([c[int(x * len(c))] for c, x in zip(choices, draw, strict=True)])
            excess, value, spent = _to_optimum(moves, part, limit, run)
            cut += spent
            optima.append((excess, value, restart, part))
        optima.sort(key=lambda optimum: optimum[:3])
        for *_, part in optima:
            blocks = part_blocks(problem, items, part, slots)
            if all(_fits(problem, block) for block in blocks):
                if len(optima) < restarts:
                    run.warn(f"local-search: stopped after {len(optima)} of {restarts} restarts")
                if cut:
                    run.warn(
                        f"local-search: {cut} of {len(optima)} restarts ran out of trials, perhaps "
                        "before a local optimum; a larger --effort may help"
                    )
                return checked(problem, blocks)
    raise InfeasibleError(
        f"infeasible: none of {len(optima)} local optima keeps within the memory of the devices"
    )


def _allowed(graph: Graph, items: Items, line: LinearizedItems) -> Bools:
    """bool[C, n]: classes an item may be on; CPUs only where no accelerator runs it."""
    runs = np.isfinite(line.work)
    fast = runs & np.array([not d.is_cpu for d in line.devices])[:, None]
    stuck = np.flatnonzero(~runs.any(axis=0))
    if len(stuck):
        node = int(np.flatnonzero(items.label == stuck[0])[0])
        raise InfeasibleError(
            f"infeasible: node {graph.node_ids[node]} ('{graph.node_names[node]}'), with what "
            "belongs to it, cannot run on any device offered"
        )
    allowed: Bools = np.where(fast.any(axis=0), fast, runs)
    return allowed


def _to_optimum(
    moves: Moves, part: Ints, limit: int, run: SearchContext
) -> tuple[float, float, bool]:
    """Improve `part` in place until no reassignment helps, trials run out, or it is to stop.

    Returns the excess in bytes, the objective, and whether trials ran out.
    """
    spent = 0
    while True:
        most = min(CHUNK, limit - spent)
        excess, value, trials = descend(moves, part, most)
        spent += trials
        if trials <= most or spent >= limit or run.stop():
            return float(excess), float(value), trials > most and spent >= limit


def _fits(problem: SplitProblem, block: Block) -> bool:
    """True if a block keeps within its device's memory, where it must."""
    device, options = block.device, problem.options
    if options.memory_mode != "hard" or device.is_cpu or np.isinf(device.memory_bytes):
        return True
    need = stage_load(problem.graph, problem.units, block.nodes, device, options).memory_bytes
    return need <= device.memory_bytes * ROOM
