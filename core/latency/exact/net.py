"""Tasks and transfer delays in whole numbers, for the exact search: either direction, any part.

Times are whole multiples of a unit where there is one; else they are rounded down to a fine grid,
so that bounds hold as well. A graph may be turned round, and a part of its tasks may stand for all:
least starts and tails of the part are those of the whole graph, so that its optimum is a bound.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dnnp.core.cost.latency import LatencyProblem
from dnnp.core.cost.load_formula import ROOM, common_divisor
from dnnp.core.kernels.kernel import callee, lean
from dnnp.core.latency.ip.formulation import identical_devices
from dnnp.core.latency.operators.windows import SAFE
from dnnp.core.model.graph import Floats, Ints, csr, place_of

NEVER = 1 << 46
"""Time of what cannot be; a few of them may be added."""

FINE = 1 << 38
"""Latest whole time."""

EXACT = 1e-12
"""Relative distance from a whole multiple of a unit that is rounding alone; less than `SAFE`
allows for."""


class TaskNet(NamedTuple):
    """`n` tasks in topological order, `e` edges, `D` devices; all in whole numbers."""

    time: Ints
    """i64[n, D], `NEVER`: unsupported."""
    pred_ptr: Ints
    pred: Ints
    pred_edge: Ints
    """Predecessors of each task (CSR), and the edges from them."""
    succ_ptr: Ints
    succ: Ints
    succ_edge: Ints
    """The same of successors."""
    delay: Ints
    """i64[e, D, D], from the end of the maker on one device to the tensors on another."""
    near: Ints
    """i64[e, D], least delay from another device to this one."""
    head: Ints
    tail: Ints
    """i64[n, D], least start of a task, and least time from its end to the end of all."""
    weight: Ints
    """i64[n, D], positive: factors of starts in the sum that orders schedules; see `search`."""
    alike: Ints
    """i64[D], the first device that each is interchangeable with."""
    color: Ints
    """i64[n], tasks of equal numbers share a device; -1: alone."""
    bytes: Ints
    """i64[n], memory of each task; all 0 where capacities do not bind."""
    capacity: Ints
    """i64[D]."""


class Devices(NamedTuple):
    """`alike` and `capacity` of a net."""

    alike: Ints
    capacity: Ints


class Grid(NamedTuple):
    """A problem in whole numbers."""

    net: TaskNet
    task: Ints
    """i64[n], task of the problem of each of the net."""
    unit: float
    safe: float
    """Factor of bounds: 1 where all sums of times are exact."""


def unit_of(times: Floats, most: float) -> float:
    """The largest unit of which all times are whole multiples, or else a fine one."""
    unit = common_divisor(times)
    return unit if unit * FINE >= most and unit else most / FINE


def grid_of(problem: LatencyProblem, most: float) -> Grid:
    """Round times to a grid; what takes longer than `most`, a latency that is known, is `NEVER`."""
    tasks = problem.tasks
    edges, delay = _delays(problem)
    time = np.where(_allowed(problem), tasks.time.T, np.inf)
    values = np.concatenate([time.ravel(), delay.ravel()])
    unit = unit_of(values[values <= most], most) if most > 0 else 1.0

    def whole(values: Floats) -> Ints:
        steps = np.minimum(values, 2 * most) / unit
        near = np.rint(steps)
        exact = np.abs(steps - near) <= EXACT * near
        return np.where(values > most, NEVER, np.where(exact, near, steps)).astype(np.int64)

    order = _by_level(problem, whole(time))
    place = place_of(order)
    members = np.bincount(tasks.together, minlength=1)
    held, capacity = _memory(problem, order)
    net = _net(
        whole(time)[order],
        (place[edges[0]], place[edges[1]]),
        whole(delay),
        np.where(members[tasks.together] > 1, tasks.together, -1)[order],
        held,
        Devices(_alike(problem), capacity),
    )
    exact = unit == np.rint(unit) and (values[values <= most] % unit == 0).all()
    return Grid(net, order, unit, 1.0 if exact else SAFE)


def _delays(problem: LatencyProblem) -> tuple[tuple[Ints, Ints], Floats]:
    """Edges, sorted, and the longest transfer of their flows, f64[e, D, D]."""
    tasks, machine = problem.tasks, problem.machine
    flow = np.repeat(np.arange(tasks.flows), np.diff(tasks.use_ptr))
    made = tasks.maker[flow] >= 0
    ends = tasks.maker[flow[made]] * max(tasks.n, 1) + tasks.use_idx[made]
    pairs, number = np.unique(ends, return_inverse=True)
    flow = flow[made]
    move = (
        machine.latency
        + tasks.size[flow, None, None] * machine.rate
        + tasks.fixed[flow, None, None] * machine.charged
    )
    delay = np.zeros((len(pairs), machine.count, machine.count))
    np.maximum.at(delay, number, move)
    return (pairs // max(tasks.n, 1), pairs % max(tasks.n, 1)), delay


def _allowed(problem: LatencyProblem) -> np.ndarray:
    """bool[n, D]: the device supports all tasks of the colour."""
    tasks = problem.tasks
    allowed = np.ones((int(tasks.together.max(initial=-1)) + 1, problem.machine.count), np.bool_)
    np.logical_and.at(allowed, tasks.together, np.isfinite(tasks.time.T))
    return allowed[tasks.together]


def _by_level(problem: LatencyProblem, time: Ints) -> Ints:
    """Tasks by falling longest path to the end, without transfers: a topological order."""
    tasks = problem.tasks
    make, read = tasks.edges
    level, least = np.zeros(tasks.n, dtype=np.int64), time.min(axis=1)
    ptr, after = csr(make, read, tasks.n)
    for v in tasks.order[::-1].tolist():
        level[v] = least[v] + level[after[ptr[v] : ptr[v + 1]]].max(initial=0)
    return np.lexsort((place_of(tasks.order), -level)).astype(np.int64)


def _memory(problem: LatencyProblem, order: Ints) -> tuple[Ints, Ints]:
    """Memory of tasks, and capacities, rounded so that nothing that fits is refused."""
    tasks, capacity = problem.tasks, problem.machine.capacity
    total = float(tasks.memory.sum())
    if (total <= capacity).all():
        return np.zeros(tasks.n, dtype=np.int64), np.zeros(len(capacity), dtype=np.int64)
    held = np.floor(np.minimum(tasks.memory[order], NEVER)).astype(np.int64)
    return held, np.floor(np.minimum(capacity, NEVER) * ROOM).astype(np.int64)


def _alike(problem: LatencyProblem) -> Ints:
    """The first device that each could change places with, i64[D]."""
    first = np.arange(problem.machine.count)
    for d, before in enumerate(identical_devices(problem).tolist()):
        first[d] = d if before < 0 else first[before]
    return first


def _net(
    time: Ints, edges: tuple[Ints, Ints], delay: Ints, color: Ints, held: Ints, devices: Devices
) -> TaskNet:
    """The net of tasks in topological order, with the least starts and tails of all paths."""
    n, count = time.shape
    scale = max(int(time[time < NEVER].max(initial=1)) >> 16, 1)
    weight = np.where(time < NEVER, np.maximum(time // scale, 1), 1)
    zero = np.zeros((n, count), dtype=np.int64)
    net = _linked(time, edges, delay, (zero, zero.copy()), weight, color, held, devices)
    back = turned(net)
    for one in (net, back):
        fill_tails(one, np.zeros((3, n + 1), dtype=np.int64))
    return net._replace(head=back.tail[::-1].copy())


def _linked(
    time: Ints,
    edges: tuple[Ints, Ints],
    delay: Ints,
    windows: tuple[Ints, Ints],
    weight: Ints,
    color: Ints,
    held: Ints,
    devices: Devices,
) -> TaskNet:
    """A net of its arrays, with edges by maker and by reader."""
    n, (make, read) = len(time), edges
    succ_ptr, succ_edge = csr(make, np.arange(len(make)), n)
    pred_ptr, pred_edge = csr(read, np.arange(len(make)), n)
    delay, head, tail = (np.ascontiguousarray(x) for x in (delay, *windows))
    own = np.where(np.eye(time.shape[1], dtype=np.bool_), NEVER, 0)
    return TaskNet(
        time=np.ascontiguousarray(time),
        pred_ptr=pred_ptr,
        pred=make[pred_edge],
        pred_edge=pred_edge,
        succ_ptr=succ_ptr,
        succ=read[succ_edge],
        succ_edge=succ_edge,
        delay=delay,
        near=np.minimum((delay + own).min(axis=1, initial=NEVER), NEVER),
        head=head,
        tail=tail,
        weight=np.ascontiguousarray(weight),
        alike=devices.alike,
        color=np.ascontiguousarray(color),
        bytes=np.ascontiguousarray(held),
        capacity=devices.capacity,
    )


def turned(net: TaskNet) -> TaskNet:
    """The net with all edges turned round; task i is n - 1 - i there."""
    n, (make, read) = len(net.time), _edges(net)
    windows = (net.tail[::-1], net.head[::-1])
    return _linked(
        net.time[::-1],
        (n - 1 - read, n - 1 - make),
        net.delay.transpose(0, 2, 1),
        windows,
        net.weight[::-1],
        net.color[::-1],
        net.bytes[::-1],
        Devices(net.alike, net.capacity),
    )


def part_of(net: TaskNet, chosen: Ints) -> TaskNet:
    """The net of some tasks (ascending) and the edges among them: a relaxation.

    Of interchangeable devices there are no more than tasks.
    """
    number = place_of(chosen, len(net.time))
    make, read = (number[ends] for ends in _edges(net))
    kept = np.flatnonzero((make >= 0) & (read >= 0))
    rank = [int((net.alike[:d] == first).sum()) for d, first in enumerate(net.alike)]
    devices = np.flatnonzero(np.array(rank) < len(chosen))
    here = np.ix_(chosen, devices)
    return _linked(
        net.time[here],
        (make[kept], read[kept]),
        net.delay[np.ix_(kept, devices, devices)],
        (net.head[here], net.tail[here]),
        net.weight[here],
        net.color[chosen],
        net.bytes[chosen],
        Devices(np.searchsorted(devices, net.alike[devices]), net.capacity[devices]),
    )


def _edges(net: TaskNet) -> tuple[Ints, Ints]:
    """Maker and reader of each edge."""
    make = np.empty(len(net.pred), dtype=np.int64)
    read = np.empty(len(net.pred), dtype=np.int64)
    make[net.pred_edge] = net.pred
    read[net.succ_edge] = net.succ
    return make, read


@lean
def fill_tails(net, scratch):  # type: ignore[no-untyped-def]
    """Fill `tail`: successors elsewhere pay for their transfer, those here run one by one."""
    n, count = net.time.shape
    for v in range(n - 1, -1, -1):
        for d in range(count):
            many = 0
            for k in range(net.succ_ptr[v], net.succ_ptr[v + 1]):
                x, e, least = net.succ[k], net.succ_edge[k], NEVER
                for b in range(count):
                    if b != d:
                        away = net.delay[e, d, b] + net.time[x, b] + net.tail[x, b]
                        least = min(least, away)
                i = many
                while i > 0 and scratch[0, i - 1] < least:
                    scratch[0, i] = scratch[0, i - 1]
                    scratch[1, i] = scratch[1, i - 1]
                    i -= 1
                scratch[0, i] = least
                scratch[1, i] = x
                many += 1
            net.tail[v, d] = _least_tail(net, scratch, many, d)


@callee
def _least_tail(net, scratch, many, d):  # type: ignore[no-untyped-def]
    """Least time in which successors, by falling time elsewhere, can be done from device d."""
    least, here = NEVER, 0
    for i in range(many + 1):
        away = scratch[0, i] if i < many else 0
        least = min(least, max(away, here))
        if i == many or here >= away:
            break
        x = scratch[1, i]
        if net.time[x, d] >= NEVER or net.tail[x, d] >= NEVER:
            break
        j = i
        while j > 0 and net.tail[scratch[2, j - 1], d] < net.tail[x, d]:
            scratch[2, j] = scratch[2, j - 1]
            j -= 1
        scratch[2, j] = x
        spent = 0
        for j in range(i + 1):
            spent += net.time[scratch[2, j], d]
            here = max(here, spent + net.tail[scratch[2, j], d])
    return least
