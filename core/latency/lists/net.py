"""Tasks, flows and devices as the kernels of list scheduling read them, and ranks of tasks."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dnnp.core.cost.latency import LatencyProblem
from dnnp.core.cost.load_formula import ROOM
from dnnp.core.kernels.kernel import inlined, kernel, plain
from dnnp.core.model.graph import Bools, Floats, Ints, csr, totals


class TaskNet(NamedTuple):
    """A problem as kernels read it: `n` tasks, `f` flows, `D` devices, `c` colours."""

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
    """bool[1]: whether transfers wait for lanes at all."""
    pred_ptr: Ints
    pred_idx: Ints
    succ_ptr: Ints
    succ_idx: Ints
    """Tasks that each task waits for, and that wait for it."""
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


def net_of(problem: LatencyProblem, *, tails: bool = False) -> TaskNet:
    """Lay a problem out for the kernels; `tail` is 0 but where `tails` are asked for."""
    tasks, machine = problem.tasks, problem.machine
    n, count = tasks.n, machine.count
    tail, head = tasks.edges
    pred_ptr, pred_idx = csr(head, tail, n)
    succ_ptr, succ_idx = csr(tail, head, n)
    colors = int(tasks.together.max(initial=-1)) + 1
    member_ptr, member_idx = csr(tasks.together, np.arange(n), colors)
    memory = totals(tasks.together, tasks.memory, colors)
    unfit = np.zeros((colors, count), dtype=np.bool_)
    np.logical_or.at(unfit, tasks.together, np.isinf(tasks.time.T))
    unfit |= memory[:, None] > machine.capacity * ROOM
    here = np.arange(count)
    if problem.options.congestion == "device":
        send = np.repeat(count + here, count).reshape(count, count)
        receive = np.tile(2 * count + here, (count, 1))
    else:
        send = receive = count + count * here[:, None] + here
    net = TaskNet(
        time=np.ascontiguousarray(tasks.time.T),
        order=tasks.order,
        maker=tasks.maker,
        size=tasks.size,
        fixed=tasks.fixed,
        in_ptr=tasks.in_ptr,
        in_idx=tasks.in_idx,
        out_ptr=tasks.out_ptr,
        out_idx=tasks.out_idx,
        use_ptr=tasks.use_ptr,
        use_idx=tasks.use_idx,
        rate=machine.rate,
        latency=machine.latency,
        charged=machine.charged,
        send=np.ascontiguousarray(send, dtype=np.int64),
        receive=np.ascontiguousarray(receive, dtype=np.int64),
        waits=np.array([problem.options.congestion != "none"]),
        pred_ptr=pred_ptr,
        pred_idx=pred_idx,
        succ_ptr=succ_ptr,
        succ_idx=succ_idx,
        together=tasks.together,
        member_ptr=member_ptr,
        member_idx=member_idx,
        bytes=memory,
        allowed=~unfit,
        capacity=machine.capacity * ROOM,
        tail=np.zeros((n, count)),
    )
    net = TaskNet._make(plain(*net))
    if tails:
        _backward(net)
    return net


@inlined
def move_time(net, f, a, b):  # type: ignore[no-untyped-def]
    """Time of a transfer, as `core.cost.latency` adds it up."""
    return net.latency[a, b] + net.size[f] * net.rate[a, b] + net.fixed[f] * (net.charged[a, b])


@kernel
def _backward(net):  # type: ignore[no-untyped-def]
    """Fill `tail`: the best devices for what follows, every reader for itself."""
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


def mean_transfers(net: TaskNet) -> Floats:
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


def upward_rank(net: TaskNet, *, moves: bool = True) -> Floats:
    """Longest path from each task to the end in mean times (Topcuoglu et al. 2002, Eq. 8).

    Without `moves` transfers take no time: the static level of ETF. f64[n].
    """
    move = mean_transfers(net) if moves else np.zeros(len(net.maker))
    return np.asarray(_upward(net, mean_times(np.ascontiguousarray(net.time.T)), move))


def falling(net: TaskNet, rank: Floats) -> Ints:
    """Tasks by falling upward rank, ties in topological order: a topological order; i64[n]."""
    place = np.empty(len(rank), dtype=np.int64)
    place[net.order] = np.arange(len(rank))
    return np.lexsort((place, -rank)).astype(np.int64)


def edge_moves(net: TaskNet) -> tuple[Ints, Ints, Floats]:
    """Pairs of maker and reader, and the mean time of what goes between them; sorted.

    What goes in several flows adds up.
    """
    flow, size = np.repeat(np.arange(len(net.maker)), np.diff(net.use_ptr)), max(len(net.order), 1)
    made = net.maker[flow] >= 0
    flow, reader = flow[made], net.use_idx[made]
    pairs, number = np.unique(net.maker[flow] * size + reader, return_inverse=True)
    move = np.bincount(number, mean_transfers(net)[flow], len(pairs)).astype(np.float64)
    return pairs // size, pairs % size, move
