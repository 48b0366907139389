"""Tasks and flows: what the latency of one sample is computed from.

A task is a unit of the graph (a group, or a node where there are none) and runs as one. A flow
is what one task makes and others read, and has to move if they are elsewhere: a tensor with all
its readers, or (Moirai) everything that goes from one task to one other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dnnp.core.cost.load import node_memory
from dnnp.core.cost.machine import Machine
from dnnp.core.model.cluster import Clustering, contract
from dnnp.core.model.graph import (
    INPUT,
    PARAMETER,
    Bools,
    Floats,
    Graph,
    Ints,
    csr,
    distinct,
    totals,
)
from dnnp.core.model.plan import CostOptions


@dataclass(frozen=True, eq=False)
class Tasks:
    """`n` tasks and `f` flows, in flat arrays; CSR as in `Graph`."""

    time: Floats
    """f64[D, n], time of each task on each device of the machine; inf: unsupported."""
    memory: Floats
    """f64[n], bytes."""
    together: Ints
    """i64[n]: tasks with equal numbers, 0..c-1, must share a device (colours)."""
    backward: Bools
    """bool[n]: the task belongs to the backward pass."""
    order: Ints
    """i64[n], a topological order."""
    maker: Ints
    """i64[f], task that makes the flow; -1: an input of the model (with `charge_io` only)."""
    leaves: Bools
    """bool[f]: an output of the model that costs a transfer (with `charge_io` only)."""
    size: Floats
    """f64[f], bytes whose time is theirs over the bandwidth."""
    fixed: Floats
    """f64[f], time of a transfer that the source states, on top."""
    carried_ptr: Ints
    carried_id: Ints
    """Ids of the tensors in each flow, ascending."""
    use_ptr: Ints
    use_idx: Ints
    """Tasks that read each flow, ascending, its maker excluded."""
    in_ptr: Ints
    in_idx: Ints
    """Flows that each task reads, ascending."""
    out_ptr: Ints
    out_idx: Ints
    """Flows that each task makes, ascending."""

    @property
    def n(self) -> int:
        """Number of tasks."""
        return len(self.memory)

    @property
    def flows(self) -> int:
        """Number of flows."""
        return len(self.maker)

    @property
    def edges(self) -> tuple[Ints, Ints]:
        """Distinct pairs (maker i64[e], reader i64[e]), sorted."""
        maker = np.repeat(self.maker, np.diff(self.use_ptr))
        made = maker >= 0
        pairs = distinct(maker[made] * self.n + self.use_idx[made])
        return pairs // max(self.n, 1), pairs % max(self.n, 1)


def tasks_of(graph: Graph, units: Clustering, machine: Machine, options: CostOptions) -> Tasks:
    """Lay out the units of a graph as tasks on the devices of a machine."""
    coarse = contract(graph, units)
    n = coarse.n
    absent = np.full(n, np.inf)
    tensor, flow, count = _flows(coarse, options)
    stated = ~np.isnan(coarse.transfer_s[tensor])
    maker = np.empty(count, dtype=np.int64)
    maker[flow] = coarse.producer[tensor]
    leaves = np.zeros(count, dtype=np.bool_)
    leaves[flow] = coarse.is_output[tensor] & (maker[flow] >= 0) & options.charge_io
    carried_ptr, carried = csr(flow, tensor, count)
    flow_of_use, reader = _uses(coarse, options, tensor, flow)
    use_ptr, use_idx = csr(flow_of_use, reader, len(maker))
    in_ptr, in_idx = csr(reader, flow_of_use, n)
    made = np.flatnonzero(maker >= 0)
    out_ptr, out_idx = csr(maker[made], made, n)
    alone = np.where(coarse.color >= 0, coarse.color, -1 - np.arange(n))
    together = np.unique(alone, return_inverse=True)[1].astype(np.int64)
    return Tasks(
        time=np.array([units.times.get(c, absent) for c in machine.classes]).reshape(-1, n),
        memory=unit_memory(graph, units, options),
        together=together,
        backward=coarse.backward,
        order=coarse.order,
        maker=maker,
        leaves=leaves,
        size=totals(flow, np.where(stated, 0.0, coarse.tensor_bytes[tensor]), count),
        fixed=totals(flow, np.where(stated, coarse.transfer_s[tensor], 0.0), count),
        carried_ptr=carried_ptr,
        carried_id=coarse.tensor_ids[carried],
        use_ptr=use_ptr,
        use_idx=use_idx,
        in_ptr=in_ptr,
        in_idx=in_idx,
        out_ptr=out_ptr,
        out_idx=out_idx,
    )


def unit_memory(graph: Graph, units: Clustering, options: CostOptions) -> Floats:
    """Memory of each unit; f64[g], bytes.

    `weights`: what the source states of a node, else the parameters and constants that the nodes
    of the unit read, each once. `sum`: the memory of the nodes added up.
    """
    if options.memory_model != "weights":
        return totals(units.label, node_memory(graph), units.g)
    stated = ~np.isnan(graph.node_bytes)
    reader = np.repeat(np.arange(graph.n), np.diff(graph.in_ptr))
    static = (graph.tensor_kind[graph.in_idx] >= PARAMETER) & ~stated[reader]
    pairs = distinct(units.label[reader[static]] * graph.m + graph.in_idx[static])
    own = totals(units.label[stated], graph.node_bytes[stated], units.g)
    return own + totals(pairs // graph.m, graph.tensor_bytes[pairs % graph.m], units.g)


def _flows(coarse: Graph, options: CostOptions) -> tuple[Ints, Ints, int]:
    """Tensors that move, the flow each is part of (i64 both, a tensor may be in several); count."""
    tensor, reader = _reads(coarse, options)
    if options.transfers == "edge":
        ends = (coarse.producer[tensor] + 1) * coarse.n + reader
        pairs, flow = np.unique(ends, return_inverse=True)
        return tensor, flow.astype(np.int64), len(pairs)
    moves = coarse.is_output & (coarse.producer >= 0) & options.charge_io
    moves[tensor] = True
    kept = np.flatnonzero(moves)
    return kept, np.arange(len(kept)), len(kept)


def _uses(coarse: Graph, options: CostOptions, tensor: Ints, flow: Ints) -> tuple[Ints, Ints]:
    """Flow and reader of every use; `tensor` and `flow` are what `_flows` gives."""
    read, reader = _reads(coarse, options)
    if options.transfers == "edge":
        pairs = distinct(flow * coarse.n + reader)
        return pairs // coarse.n, pairs % coarse.n
    number = np.full(coarse.m, -1, dtype=np.int64)
    number[tensor] = flow
    return number[read], reader


def _reads(coarse: Graph, options: CostOptions) -> tuple[Ints, Ints]:
    """Tensor and reader of every read that may need a transfer."""
    tensor = np.repeat(np.arange(coarse.m), np.diff(coarse.use_ptr))
    moves = coarse.producer >= 0
    if options.charge_io:
        moves |= coarse.tensor_kind == INPUT
    chosen = moves[tensor] & (coarse.use_idx != coarse.producer[tensor])
    return tensor[chosen], coarse.use_idx[chosen]
