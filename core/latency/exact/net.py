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
from dnnp.core.latency.ip.formulation import identical_devices
from dnnp.core.latency.lists.net import net_of
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
    """`n` tasks in topological order, `e` edges by maker, `D` devices; all in whole numbers."""

    time: Ints
    """i64[n, D], `NEVER`: unsupported."""
    succ_ptr: Ints
    succ: Ints
    """Successors of each task (CSR): edges are entries of it."""
    pred_ptr: Ints
    pred: Ints
    pred_edge: Ints
    """Predecessors of each task (CSR), and the edges from them."""
    delay: Ints
    """i64[e, D, D], from the end of the maker on one device to the tensors on another."""
    near: Ints
    """i64[e, D], least delay from another device to this one."""
    head: Ints
    tail: Ints
    """i64[n, D], least start of a task, and least time from its end to the end of all."""
    alike: Ints
    """i64[D], the first device that each is interchangeable with."""
    color: Ints
    """i64[n], tasks of equal numbers share a device; -1: alone."""
    bytes: Ints
    """i64[n], memory of each task; all 0 where capacities do not bind."""
    capacity: Ints
    """i64[D]."""


class Grid(NamedTuple):
    """A problem in whole numbers."""

    net: TaskNet
    """Without heads and tails."""
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
    flows = net_of(problem, tails=True)
    time = np.where(flows.allowed[flows.together], flows.time, np.inf)
    values = np.concatenate([time.ravel(), delay.ravel()])
    unit = unit_of(values[values <= most], most) if most > 0 else 1.0

    def whole(values: Floats) -> Ints:
        steps = np.minimum(values, 2 * most) / unit
        near = np.rint(steps)
        exact = np.abs(steps - near) <= EXACT * near
        return np.where(values > most, NEVER, np.where(exact, near, steps)).astype(np.int64)

    # By falling least time from the start of a task to the end of all: a topological order.
    order = np.lexsort((place_of(tasks.order), -(time + flows.tail).min(axis=1))).astype(np.int64)
    place = place_of(order)
    members = np.bincount(tasks.together, minlength=1)
    held, capacity = _memory(problem, order)
    windows = np.zeros(time.shape, dtype=np.int64)
    net = _linked(
        place[edges[0]],
        place[edges[1]],
        time=whole(time)[order],
        delay=whole(delay),
        head=windows,
        tail=windows,
        alike=_alike(problem),
        color=np.where(members[tasks.together] > 1, tasks.together, -1)[order],
        bytes=held,
        capacity=capacity,
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


def _linked(make: Ints, read: Ints, **parts: Ints) -> TaskNet:
    """A net of its parts, with edges by maker and by reader."""
    n, order = len(parts["time"]), np.argsort(make, kind="stable")
    delay = parts["delay"] = parts["delay"][order]
    own = np.where(np.eye(delay.shape[1], dtype=np.bool_), NEVER, 0)
    parts["near"] = np.minimum((delay + own).min(axis=1, initial=NEVER), NEVER)
    parts["succ_ptr"], parts["succ"] = csr(make, read, n)
    parts["pred_ptr"], parts["pred_edge"] = csr(read[order], np.arange(len(make)), n)
    parts["pred"] = make[order][parts["pred_edge"]]
    return TaskNet(**{name: np.array(x, np.int64, order="C") for name, x in parts.items()})


def turned(net: TaskNet) -> TaskNet:
    """The net with all edges turned round; task i is n - 1 - i there."""
    last = len(net.time) - 1
    make, read = edges_of(net)
    return _linked(
        last - read,
        last - make,
        time=net.time[::-1],
        delay=net.delay.transpose(0, 2, 1),
        head=net.tail[::-1],
        tail=net.head[::-1],
        alike=net.alike,
        color=net.color[::-1],
        bytes=net.bytes[::-1],
        capacity=net.capacity,
    )


def part_of(net: TaskNet, chosen: Ints) -> TaskNet:
    """The net of some tasks (ascending) and the edges among them: a relaxation.

    Of interchangeable devices there are no more than tasks.
    """
    number = place_of(chosen, len(net.time))
    make, read = (number[ends] for ends in edges_of(net))
    kept = np.flatnonzero((make >= 0) & (read >= 0))
    rank = [int((net.alike[:d] == first).sum()) for d, first in enumerate(net.alike)]
    devices = np.flatnonzero(np.array(rank) < len(chosen))
    here = np.ix_(chosen, devices)
    return _linked(
        make[kept],
        read[kept],
        time=net.time[here],
        delay=net.delay[np.ix_(kept, devices, devices)],
        head=net.head[here],
        tail=net.tail[here],
        alike=np.searchsorted(devices, net.alike[devices]),
        color=net.color[chosen],
        bytes=net.bytes[chosen],
        capacity=net.capacity[devices],
    )


def edges_of(net: TaskNet) -> tuple[Ints, Ints]:
    """Maker and reader of each edge."""
    return np.repeat(np.arange(len(net.time)), np.diff(net.succ_ptr)), net.succ
