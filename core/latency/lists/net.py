"""The graph for kernels that place operators (`FlowNet`), and ranks of tasks."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dnnp.core.cost.latency import LatencyProblem
from dnnp.core.cost.load_formula import ROOM
from dnnp.core.kernels.kernel import inlined, kernel, plain
from dnnp.core.model.graph import Bools, Floats, Ints, csr, place_of, totals


class FlowNet(NamedTuple):
    """Graph and devices for kernels: `n` tasks, `f` flows, `D` devices, `c` colours."""

    time: Floats
    """f64[n, D], inf: unsupported."""
    order: Ints
    """i64[n], a topological order."""
    maker: Ints
    size: Floats
    fixed: Floats
    in_ptr: Ints
    in_idx: Ints
    out_ptr: Ints
    out_idx: Ints
    use_ptr: Ints
    use_idx: Ints
    """As in `Tasks`."""
    rate: Floats
    latency: Floats
    charged: Floats
    """As in `Machine`."""
    send: Ints
    receive: Ints
    """i64[D, D], lanes that a transfer from row to column takes, after the D devices."""
    waits: Bools
    """bool[1]: transfers wait for lanes."""
    pred_ptr: Ints
    pred_idx: Ints
    succ_ptr: Ints
    succ_idx: Ints
    """Predecessors and successors of each task (CSR)."""
    together: Ints
    """i64[n], colour of each task."""
    member_ptr: Ints
    member_idx: Ints
    """Tasks of each colour."""
    bytes: Floats
    """f64[c], memory of each colour."""
    allowed: Bools
    """bool[c, D]: the device supports all tasks of the colour, and holds them alone."""
    capacity: Floats
    """f64[D]."""
    tail: Floats
    """f64[n, D], least time from the end of a task on a device to the end of all; see `net_of`."""

    def without_waiting(self) -> FlowNet:
        """The same where transfers do not wait for each other."""
        return self._replace(waits=np.zeros(1, dtype=np.bool_))


def net_of(problem: LatencyProblem, *, tails: bool = False) -> FlowNet:
    """The net of a problem; `tail` is 0 unless `tails`."""
    tasks, machine = problem.tasks, problem.machine
    n, count = tasks.n, machine.count
    tail, head = tasks.edges
    colors = int(tasks.together.max(initial=-1)) + 1
    memory = totals(tasks.together, tasks.memory, colors)
    allowed = np.ones((colors, count), dtype=np.bool_)
    np.logical_and.at(allowed, tasks.together, np.isfinite(tasks.time.T))
    sender, receiver = np.indices((count, count))
    if problem.options.congestion == "device":
        send, receive = count + sender, 2 * count + receiver
    else:
        send = receive = count + count * sender + receiver
    net = FlowNet(
        *plain(
            tasks.time.T,
            tasks.order,
            tasks.maker,
            tasks.size,
            tasks.fixed,
            tasks.in_ptr,
            tasks.in_idx,
            tasks.out_ptr,
            tasks.out_idx,
            tasks.use_ptr,
            tasks.use_idx,
            machine.rate,
            machine.latency,
            machine.charged,
            send,
            receive,
            np.array([problem.options.congestion != "none"]),
            *csr(head, tail, n),
            *csr(tail, head, n),
            tasks.together,
            *csr(tasks.together, np.arange(n), colors),
            memory,
            allowed & (memory[:, None] <= machine.capacity * ROOM),
            machine.capacity * ROOM,
            np.zeros((n, count)),
        )
    )
    if tails:
        _backward(net)
    return net


@inlined
def move_time(net, f, a, b):  # type: ignore[no-untyped-def]
    """Time of a transfer, in the order of additions of `core.cost.latency`."""
    return net.latency[a, b] + net.size[f] * net.rate[a, b] + net.fixed[f] * (net.charged[a, b])


@kernel
def _backward(net):  # type: ignore[no-untyped-def]
    """Fill `tail`: every successor on its best device, each by itself."""
    n, count = net.time.shape
    after = np.empty(count)
    for i in range(n - 1, -1, -1):
        v = net.order[i]
        for k in range(net.out_ptr[v], net.out_ptr[v + 1]):
            f = net.out_idx[k]
            for j in range(net.use_ptr[f], net.use_ptr[f + 1]):
                w = net.use_idx[j]
                color = net.together[w]
                for b in range(count):
                    after[b] = np.inf
                    if net.allowed[color, b]:
                        after[b] = net.time[w, b] + net.tail[w, b]
                for a in range(count):
                    least = after[a]
                    for b in range(count):
                        if b != a and after[b] < least:
                            least = min(least, after[b] + move_time(net, f, a, b))
                    net.tail[v, a] = max(net.tail[v, a], least)


def mean_times(time: Floats) -> Floats:
    """Mean time of each task over the devices that run it; f64[n], 0 where none does."""
    able = np.isfinite(time)
    total: Floats = np.where(able, time, 0.0).sum(axis=0)
    mean: Floats = total / np.maximum(able.sum(axis=0), 1)
    return mean


def mean_transfers(net: FlowNet) -> Floats:
    """Mean time of a transfer of each flow over all pairs of two devices; f64[f]."""
    pairs = len(net.rate) * (len(net.rate) - 1)
    if not pairs:
        return np.zeros(len(net.maker))
    rate, latency, charged = (float(x.sum()) / pairs for x in (net.rate, net.latency, net.charged))
    mean: Floats = latency + net.size * rate + net.fixed * charged
    return mean


@kernel
def _upward(net, work, move):  # type: ignore[no-untyped-def]
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


def upward_rank(net: FlowNet, *, moves: bool = True) -> Floats:
    """Longest path from each task to the end in mean times (Topcuoglu et al. 2002, Eq. 8).

    Without `moves` transfers take no time: the static level of ETF. f64[n].
    """
    move = mean_transfers(net) if moves else np.zeros(len(net.maker))
    return np.asarray(_upward(net, mean_times(np.ascontiguousarray(net.time.T)), move))


def falling(net: FlowNet, rank: Floats) -> Ints:
    """Tasks by falling upward rank, ties in topological order: a topological order; i64[n]."""
    place = place_of(net.order)
    return np.lexsort((place, -rank)).astype(np.int64)


def edge_moves(net: FlowNet) -> tuple[Ints, Ints, Floats]:
    """Edges (maker, reader), sorted, and the mean transfer time of all their flows."""
    flow, size = np.repeat(np.arange(len(net.maker)), np.diff(net.use_ptr)), max(len(net.order), 1)
    pairs, number = np.unique(net.maker[flow] * size + net.use_idx, return_inverse=True)
    move = np.bincount(number, mean_transfers(net)[flow], len(pairs)).astype(np.float64)
    return pairs // size, pairs % size, move
