"""Tasks, flows and devices as the kernels of list scheduling read them, and ranks of tasks."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dnnp.core.cost.latency import LatencyProblem
from dnnp.core.kernels.kernel import kernel, plain
from dnnp.core.model.graph import Floats, Ints, csr

NONE, CHANNEL, DEVICE = range(3)
"""Codes of the congestion rules."""

CODES = {"none": NONE, "channel": CHANNEL, "device": DEVICE}


class Net(NamedTuple):
    """`n` tasks, `f` flows, `D` devices, `c` colours; CSR as in `Tasks`."""

    rule: int
    """Code of the congestion rule."""
    time: Floats
    """f64[D, n]; inf: unsupported."""
    order: Ints
    """i64[n], a topological order."""
    color: Ints
    """i64[n], colour of each task."""
    maker: Ints
    size: Floats
    fixed: Floats
    """Of each flow."""
    use_ptr: Ints
    use_idx: Ints
    """Tasks that read each flow."""
    in_ptr: Ints
    in_idx: Ints
    """Flows that each task reads."""
    out_ptr: Ints
    out_idx: Ints
    """Flows that each task makes."""
    rate: Floats
    latency: Floats
    charged: Floats
    """f64[D, D] each, as in `Machine`."""


def net_of(problem: LatencyProblem) -> Net:
    """Lay out a problem for the kernels."""
    tasks, machine = problem.tasks, problem.machine
    return Net(
        CODES[problem.options.congestion],
        *plain(
            tasks.time,
            tasks.order,
            tasks.together,
            tasks.maker,
            tasks.size,
            tasks.fixed,
            tasks.use_ptr,
            tasks.use_idx,
            tasks.in_ptr,
            tasks.in_idx,
            tasks.out_ptr,
            tasks.out_idx,
            machine.rate,
            machine.latency,
            machine.charged,
        ),
    )


def mean_times(time: Floats) -> Floats:
    """Mean time of each task over the devices that run it; f64[n], 0 where none does."""
    able = np.isfinite(time)
    total: Floats = np.where(able, time, 0.0).sum(axis=0)
    mean: Floats = total / np.maximum(able.sum(axis=0), 1)
    return mean


def mean_transfers(problem: LatencyProblem) -> Floats:
    """Mean time of a transfer of each flow over all pairs of two devices; f64[f]."""
    machine, tasks = problem.machine, problem.tasks
    pairs = machine.count * (machine.count - 1)
    if not pairs:
        return np.zeros(tasks.flows)
    rate, latency, charged = (
        float(x.sum()) / pairs for x in (machine.rate, machine.latency, machine.charged)
    )
    mean: Floats = latency + tasks.size * rate + tasks.fixed * charged
    return mean


@kernel
def _upward(net: Net, work: Floats, move: Floats) -> Floats:
    """Longest path from each task on, its own work included; f64[n]."""
    rank = work.copy()
    for k in range(len(net.order) - 1, -1, -1):
        v = net.order[k]
        longest = 0.0
        for a in range(net.out_ptr[v], net.out_ptr[v + 1]):
            f = net.out_idx[a]
            for b in range(net.use_ptr[f], net.use_ptr[f + 1]):
                longest = max(longest, move[f] + rank[net.use_idx[b]])
        rank[v] = work[v] + longest
    return rank


def upward_rank(problem: LatencyProblem, net: Net, *, moves: bool = True) -> Floats:
    """Longest path from each task to the end in mean times (Topcuoglu et al. 2002, Eq. 8).

    Without `moves` transfers take no time: the static level of ETF. f64[n].
    """
    move = mean_transfers(problem) if moves else np.zeros(problem.tasks.flows)
    return np.asarray(_upward(net, mean_times(net.time), move))


def falling(net: Net, rank: Floats) -> Ints:
    """Tasks by falling upward rank, ties in topological order: a topological order; i64[n]."""
    place = np.empty(len(rank), dtype=np.int64)
    place[net.order] = np.arange(len(rank))
    return np.lexsort((place, -rank)).astype(np.int64)


def edge_moves(problem: LatencyProblem) -> tuple[Ints, Ints, Floats]:
    """Pairs of maker and reader, and the mean time of what goes between them; sorted.

    What goes in several flows adds up.
    """
    tasks = problem.tasks
    flow = np.repeat(np.arange(tasks.flows), np.diff(tasks.use_ptr))
    made = tasks.maker[flow] >= 0
    flow, reader = flow[made], tasks.use_idx[made]
    pairs, number = np.unique(tasks.maker[flow] * max(tasks.n, 1) + reader, return_inverse=True)
    move = np.bincount(number, mean_transfers(problem)[flow], len(pairs)).astype(np.float64)
    return pairs // max(tasks.n, 1), pairs % max(tasks.n, 1), move


def successors(tail: Ints, head: Ints, count: int) -> tuple[Ints, Ints, Ints]:
    """CSR of what follows each vertex, and how many edges enter each; `ptr`, `idx`, `waits`."""
    ptr, idx = csr(tail, head, count)
    return ptr, idx, np.bincount(head, minlength=count).astype(np.int64)
