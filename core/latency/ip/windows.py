"""What is known of single-sample latency before anything is solved.

Heads and tails: how early a task can end in a place and how long the rest takes at least, by
dynamic programming over the graph with a choice of place for every task; each predecessor is
taken by itself, so that these are lower bounds. And devices that can change places.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dnnp.core.cost.divisor import common_divisor
from dnnp.core.cost.latency import LatencyProblem, Tasks, host_times, pool_times
from dnnp.core.cost.load_formula import MARGIN
from dnnp.core.cost.machine import Machine
from dnnp.core.model.graph import Bools, Floats, Ints


class Windows(NamedTuple):
    """Bounds for each task in each place (a device; the pool is the last one of blocks)."""

    time: Floats
    """f64[n, P], time of each task; inf: it cannot be there."""
    end: Floats
    """f64[n, P], earliest end of its computation."""
    rest: Floats
    """f64[n, P], least time from there to the end of all."""

    @property
    def least(self) -> float:
        """No solution has a smaller latency."""
        through = (self.end + self.rest).min(axis=1, initial=np.inf)
        return float(through.max(initial=0.0))

    def hopeless(self, upper: float) -> Bools:
        """bool[n, P]: no solution up to this latency has the task in the place."""
        out: Bools = ~(self.end + self.rest <= upper * (1 + MARGIN))
        return out


def carried(tasks: Tasks) -> dict[tuple[int, int], list[int]]:
    """Flows from each task to each of its readers."""
    found: dict[tuple[int, int], list[int]] = {}
    for f, maker in enumerate(tasks.maker.tolist()):
        if maker >= 0:
            for v in tasks.use_idx[tasks.use_ptr[f] : tasks.use_ptr[f + 1]].tolist():
                found.setdefault((maker, v), []).append(f)
    return found


def block_windows(problem: LatencyProblem) -> Windows:
    """Windows of `blocks`; between places a flow goes through the memory of the host."""
    tasks, machine = problem.tasks, problem.machine
    devices = np.flatnonzero(~machine.is_cpu)
    time = np.column_stack([*tasks.time[devices], pool_times(tasks, machine)])
    moved = [*(host_times(tasks, machine, d) for d in devices.tolist()), np.zeros(tasks.flows)]
    host = np.array(moved).reshape(len(moved), tasks.flows)
    move = {}
    for (u, v), flows in carried(tasks).items():
        cost = host[:, flows].sum(axis=1)
        between = cost[:, None] + cost
        if tasks.backward[u] == tasks.backward[v]:
            np.fill_diagonal(between, 0.0)  # perhaps in one block
        move[u, v] = between
    return _windows(tasks, time, move)


def operator_windows(problem: LatencyProblem) -> Windows:
    """Windows of `operators`."""
    tasks, machine = problem.tasks, problem.machine
    # What goes from one task to one other shares a channel.
    joined = np.max if problem.options.congestion == "none" else np.sum
    move = {
        (u, v): joined([flow_times(tasks, machine, f) for f in flows], axis=0)
        for (u, v), flows in carried(tasks).items()
    }
    return _windows(tasks, tasks.time.T.copy(), move)


def flow_times(tasks: Tasks, machine: Machine, flow: int) -> Floats:
    """Time of a flow from every device to every other; f64[D, D]."""
    return machine.latency + tasks.size[flow] * machine.rate + tasks.fixed[flow] * machine.charged


def _windows(tasks: Tasks, time: Floats, move: dict[tuple[int, int], Floats]) -> Windows:
    end, rest = time.copy(), np.zeros_like(time)
    before: list[list[int]] = [[] for _ in range(tasks.n)]
    after: list[list[int]] = [[] for _ in range(tasks.n)]
    for u, v in move:
        before[v].append(u)
        after[u].append(v)
    for v in tasks.order.tolist():
        for u in before[v]:
            ready = (end[u][:, None] + move[u, v]).min(axis=0, initial=np.inf)
            end[v] = np.maximum(end[v], ready + time[v])
    for v in tasks.order[::-1].tolist():
        for w in after[v]:
            left = (move[v, w] + time[w] + rest[w]).min(axis=1, initial=np.inf)
            rest[v] = np.maximum(rest[v], left)
    return Windows(time, end, rest)


def twins(problem: LatencyProblem) -> Ints:
    """The device before each that it can change places with, or -1; i64[D]."""
    tasks, machine = problem.tasks, problem.machine
    found = np.full(machine.count, -1, dtype=np.int64)
    swap = np.arange(machine.count)
    for a in range(machine.count):
        for b in range(a):
            swap[a], swap[b] = b, a
            same = all(
                np.array_equal(x[np.ix_(swap, swap)], x)
                for x in (machine.rate, machine.latency, machine.charged)
            ) and all(x[a] == x[b] for x in (machine.capacity, machine.host_rate, machine.is_cpu))
            swap[a], swap[b] = a, b
            if same and np.array_equal(tasks.time[a], tasks.time[b]):
                found[a] = b
    return found


def serial(problem: LatencyProblem) -> float:
    """A latency that some solution does not exceed, if there is one: one thing at a time."""
    tasks, machine = problem.tasks, problem.machine
    work = np.where(np.isfinite(tasks.time), tasks.time, 0.0).max(axis=0, initial=0.0).sum()
    if problem.options.execution == "blocks":
        rate = float(machine.host_rate.max(initial=0.0))
        moves = 1 + np.diff(tasks.use_ptr)
        moved = ((tasks.size * rate + tasks.fixed) * moves).sum()
    else:
        rate, latency = (
            float(machine.rate.max(initial=0.0)),
            float(machine.latency.max(initial=0.0)),
        )
        moves = np.minimum(np.diff(tasks.use_ptr), machine.count - 1)
        moved = ((latency + tasks.size * rate + tasks.fixed) * moves).sum()
    return float(work + moved) * (1 + MARGIN)


def quantum_of_latency(problem: LatencyProblem) -> float:
    """A number of which all latencies are multiples; 0: none is known."""
    tasks, machine = problem.tasks, problem.machine
    if problem.options.execution == "blocks":
        moves = [host_times(tasks, machine, d) for d in range(machine.count)]
    else:
        moves = [flow_times(tasks, machine, f).ravel() for f in range(tasks.flows)]
    return common_divisor(np.concatenate([tasks.time[np.isfinite(tasks.time)], *moves]))
