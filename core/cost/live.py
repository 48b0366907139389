"""Live tensors of a plan for one sample, by its own times: what a device holds beside parameters.

`operators` (Moirai, Eq. 5): a tensor that other tasks read, or that the model gives out, is held

    where it is made    from the start of its maker to the end of the last that reads it there, and
                        of the last transfer of it; an output of the model to the end of all
    where it is sent    from the start of the transfer to the end of the last that reads it there
    inputs              from time 0 to the end of the last that reads them, on each device

and what a task makes for itself alone while it runs: the peak over its nodes in their order. What
a task reads and makes counts together even if it takes no time.

`blocks`: an invocation holds what a stage of a pipeline does (`stage_memory`), of those of one
device the largest counts; the pool holds what it likes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dnnp.core.cost.load import stage_memory
from dnnp.core.model.graph import (
    INPUT,
    PARAMETER,
    Clustering,
    Floats,
    Graph,
    Ints,
    contract,
    csr,
    place_of,
    totals,
)
from dnnp.core.model.plan import CostOptions

Csr = tuple[Ints, Ints]
"""Rows of numbers: where each begins, and the numbers."""


@dataclass(frozen=True, eq=False)
class Live:
    """Tensors that devices hold: `t` of them, made by tasks or (maker -1) inputs of the model."""

    graph: Graph
    units: Clustering
    options: CostOptions
    capacity: Floats
    """f64[D], bytes for parameters and live tensors together."""
    scratch: Floats
    """f64[n], bytes of what a task makes for itself alone."""
    floor: Floats
    """f64[n], bytes of all that a task reads and makes; of `blocks` the peak over its nodes."""
    maker: Ints
    size: Floats
    """i64[t] and f64[t], bytes."""
    lasts: np.ndarray
    """bool[t]: an output of the model."""
    use_ptr: Ints
    use_task: Ints
    use_flow: Ints
    """Tasks that read each tensor, its maker excluded, and the flow that brings it to each; -1 of
    inputs."""
    reader_ptr: Ints
    reader_idx: Ints
    """Tasks that read each flow."""
    flow_size: Floats
    """f64[f], bytes of a flow on the device that receives it."""
    binds: bool
    """False: any device holds all parameters and tensors at once."""


def live_of(
    graph: Graph,
    units: Clustering,
    options: CostOptions,
    capacity: Floats,
    memory: float,
    carried: Csr,
    readers: Csr,
) -> Live:
    """Lay out the tensors of a graph whose units are tasks.

    Parameters
    ----------
    memory
        Bytes of all parameters.
    carried
        Ids of the tensors in each flow.
    readers
        Tasks that read each flow.
    """
    carried_ptr, carried_id = carried
    reader_ptr, reader_idx = readers
    count = len(reader_ptr) - 1
    coarse = contract(graph.in_memory, units)
    made = coarse.producer >= 0
    tensor = np.repeat(np.arange(coarse.m), np.diff(coarse.use_ptr))
    reads = (coarse.tensor_kind[tensor] < PARAMETER) & (coarse.use_idx != coarse.producer[tensor])
    tensor, reader = tensor[reads], coarse.use_idx[reads]
    kept = (coarse.is_output & made) | (np.bincount(tensor, minlength=coarse.m) > 0)
    kept &= made | (coarse.tensor_kind == INPUT)
    number = np.cumsum(kept) - 1
    flows = {
        (i, r if options.transfers == "edge" else -1): f
        for f in range(count)
        for i in carried_id[carried_ptr[f] : carried_ptr[f + 1]].tolist()
        for r in reader_idx[reader_ptr[f] : reader_ptr[f + 1]].tolist()
    }
    ids = coarse.tensor_ids[tensor].tolist()
    keys = zip(ids, reader.tolist(), strict=True)
    single = options.transfers != "edge"
    flow = np.array([flows.get((i, -1 if single else r), -1) for i, r in keys], dtype=np.int64)
    use_ptr, order = csr(number[tensor], np.arange(len(tensor)), int(kept.sum()))
    # What is constant there is held whether it moves or not.
    moved = np.where(coarse.tensor_kind < PARAMETER, coarse.tensor_bytes, 0.0)
    sizes = dict(zip(coarse.tensor_ids.tolist(), moved.tolist(), strict=True))
    row = np.repeat(np.arange(count), np.diff(carried_ptr))
    flow_size = totals(row, np.array([sizes[i] for i in carried_id.tolist()]), count)
    scratch = _scratch(graph, units, set(coarse.tensor_ids[kept].tolist()))
    size, maker = coarse.tensor_bytes[kept], coarse.producer[kept]
    floor = scratch + totals(maker[maker >= 0], size[maker >= 0], units.g)
    floor += totals(reader, coarse.tensor_bytes[tensor], units.g)
    if options.execution == "blocks":
        floor = np.array([_peak_of(graph, units.members(u), options) for u in range(units.g)])
    most = memory + float(scratch.sum() + size.sum())
    most += float(flow_size.sum()) if options.transfers == "edge" else 0.0
    return Live(
        graph=graph,
        units=units,
        options=options,
        capacity=capacity,
        scratch=scratch,
        floor=floor,
        maker=maker,
        size=size,
        lasts=coarse.is_output[kept] & (maker >= 0),
        use_ptr=use_ptr,
        use_task=reader[order],
        use_flow=flow[order],
        reader_ptr=reader_ptr,
        reader_idx=reader_idx,
        flow_size=flow_size,
        binds=bool((capacity < most).any()),
    )


def _scratch(graph: Graph, units: Clustering, held: set[int]) -> Floats:
    """Peak of the tensors that only nodes of one unit know, over its nodes; f64[g], bytes.

    `held`: ids of the tensors that count by themselves.
    """
    graph = graph.in_memory
    peak = np.zeros(units.g)
    ids, size = graph.tensor_ids.tolist(), graph.tensor_bytes.tolist()
    for u in range(units.g):
        nodes = units.members(u).tolist()
        step = {v: i for i, v in enumerate(nodes)}
        change = np.zeros(len(nodes) + 1)
        for v in nodes:
            for t in graph.writes(v).tolist():
                if ids[t] not in held:
                    last = max((step[r] for r in graph.readers(t).tolist()), default=step[v])
                    change[step[v]] += size[t]
                    change[max(last, step[v]) + 1] -= size[t]
        peak[u] = np.cumsum(change)[:-1].max(initial=0.0)
    return peak


def placed_peaks(
    live: Live,
    device: Ints,
    span: tuple[Floats, Floats],
    moves: Ints,
    moved: tuple[Floats, Floats],
) -> Floats:
    """Peak of live tensors on each device; f64[D], bytes.

    Parameters
    ----------
    device
        i64[n], of each task.
    span
        Starts and ends of the tasks, f64[n] each.
    moves
        i64[m, 3], flow, sender and receiver of each transfer.
    moved
        Their starts and ends, f64[m] each.
    """
    (start, end), (sent_at, came_at) = span, moved
    count, flows = len(live.capacity), len(live.flow_size)
    arrives = np.zeros((flows, count))
    arrives[moves[:, 0], moves[:, 2]] = came_at
    last = np.zeros((flows, count))
    flow = np.repeat(np.arange(flows), np.diff(live.reader_ptr))
    np.maximum.at(last, (flow, device[live.reader_idx]), end[live.reader_idx])
    made = live.maker >= 0
    home = np.where(made, device[live.maker], -1)
    until = np.where(made, end[live.maker], 0.0)
    tensor = np.repeat(np.arange(len(live.size)), np.diff(live.use_ptr))
    there = device[live.use_task]
    done = end[live.use_task]
    sent = (there != home[tensor]) & (live.use_flow >= 0)
    done = np.where(sent, arrives[live.use_flow, there] if flows else 0.0, done)
    np.maximum.at(until, tensor, done)
    until[live.lasts] = end.max(initial=0.0)
    entered = ~made[tensor]
    pairs, at = np.unique(tensor[entered] * count + there[entered], return_inverse=True)
    fed = np.zeros(len(pairs))
    np.maximum.at(fed, at, done[entered])
    where = np.concatenate([home[made], moves[:, 2], pairs % count, device])
    begin = np.concatenate([start[live.maker[made]], sent_at, np.zeros(len(pairs)), start])
    received = last[moves[:, 0], moves[:, 2]]
    gone = np.concatenate([until[made], received, fed, end])
    arrived = live.flow_size[moves[:, 0]]
    size = np.concatenate([live.size[made], arrived, live.size[pairs // count], live.scratch])
    # What ends at a time is gone before anything begins then.
    when, on = np.concatenate([gone, begin]), np.concatenate([where, where])
    order = np.lexsort((np.arange(len(when)) >= len(gone), when, on))
    running = np.cumsum(np.concatenate([-size, size])[order])
    # A device begins with nothing, whatever rounding left of the one before it.
    first = np.searchsorted(on[order], np.arange(count))
    before = np.append(0.0, running)[first]
    peak = np.zeros(count)
    np.maximum.at(peak, on[order], running - before[on[order]])
    np.maximum.at(peak, device, live.floor)
    return peak


def block_peaks(live: Live, block: Ints, count: int, rank: Ints) -> Floats:
    """Peak of live tensors of each of `count` invocations, f64[b], bytes.

    Each task knows its invocation (i64[n]); those of one run by rank (i64[n]).
    """
    peaks, line = np.zeros(count), np.argsort(rank, kind="stable")
    for b in range(count):
        nodes = np.concatenate([live.units.members(u) for u in line[block[line] == b].tolist()])
        peaks[b] = _peak_of(live.graph, nodes, live.options)
    return peaks


def _peak_of(graph: Graph, nodes: Ints, options: CostOptions) -> float:
    """Peak of live tensors of nodes that run one after the other as a stage, bytes."""
    step = place_of(nodes, graph.n)
    return stage_memory(graph, nodes, step, options)[1] or 0.0
