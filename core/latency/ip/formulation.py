"""Formulations: from a latency problem to a scheduling model, and from its values to a split.

Windows bound when a task ends in a place and how long the rest takes (heads and tails): dynamic
programming over the graph with a choice of place for every task, each predecessor by itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from dnnp.core.cost.latency import LatencyProblem, Split, Tasks, host_times, pool_times
from dnnp.core.cost.load_formula import MARGIN, common_divisor
from dnnp.core.model.device import Machine
from dnnp.core.model.graph import Bools, Floats, Ints, distinct, kahn
from dnnp.core.solver.scheduling_model import NEVER, Model, Rule

FLOORS = 16
"""Number of sizes of live tensors that a program distinguishes."""


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


def identical_devices(problem: LatencyProblem) -> Ints:
    """For each device the last one before it that is identical, or -1; i64[D]."""
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


def serial_latency(problem: LatencyProblem) -> float:
    """Upper bound of the least latency: tasks and transfers one after the other."""
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


S = TypeVar("S", bound=Split)


class Formulation(ABC, Generic[S]):
    """A kind of problem that has a scheduling model.

    Parameters
    ----------
    problem
        What is placed.
    windows
        Bounds for its tasks.
    """

    def __init__(self, problem: LatencyProblem, windows: Windows) -> None:
        self.problem, self.windows = problem, windows
        self.before = identical_devices(problem)
        """i64[D], for each device the last one before it that is identical, or -1."""
        self.quantum = quantum_of_latency(problem)
        """A number of which all latencies are multiples; 0: none is known."""
        self.memory = problem.tasks.memory
        """f64[m], bytes of each thing that is placed: a task, or an item."""
        live = problem.live
        self.floor = np.zeros(problem.tasks.n) if live is None else live.floor
        """f64[m], bytes of live tensors, at least, on a device that runs it."""

    @abstractmethod
    def model(self, upper: float) -> Model:
        """The model of all solutions with a latency of at most `upper`."""

    @abstractmethod
    def known(self, solution: S) -> object | None:
        """A solution in terms of the model's rules; None if the model has no such one."""

    @abstractmethod
    def solution(self, model: Model, times: Sequence[float], flags: Sequence[float]) -> S | None:
        """Read a solution from values; None: the model has to be solved again without them."""

    def room(
        self,
        model: Model,
        device: int,
        there: Sequence[Sequence[int]],
        used: Callable[[list[int]], Rule],
    ) -> None:
        """Constraint: memory and the largest floor of the things on a device fit its capacity.

        Floors are rounded down to one of `FLOORS`.

        Parameters
        ----------
        there
            For each thing, the flags of its places on the device.
        used
            The rule for a flag: 1 if some of these things are there.
        """
        limit = float(self.problem.machine.capacity[device])
        if np.isinf(limit) or self.memory.sum() + self.floor.max(initial=0.0) <= limit:
            return
        held = [(c, m) for row, m in zip(there, self.memory.tolist(), strict=True) for c in row]
        steps = np.quantile(self.floor, np.linspace(0.0, 1.0, FLOORS), method="lower")
        steps = distinct(np.append(0.0, steps))
        step, above = np.searchsorted(steps, self.floor, side="right") - 1, NEVER
        for k in range(len(steps) - 1, 0, -1):
            flag = model.flag(used(np.flatnonzero(step >= k).tolist()))
            for row in [[above], *(there[i] for i in np.flatnonzero(step == k).tolist())]:
                model.row([(flag, 1.0), *((c, -1.0) for c in row)], ">", 0.0)
            held.append((flag, float(steps[k] - steps[k - 1])))
            above = flag
        model.room(held, limit)

    def renamed(self, uses: Iterable[int]) -> Ints:
        """i64[D], new name of every device: identical ones in the order of their first use.

        `uses` are devices in the order in which the model's things are on them.
        """
        count = len(self.before)
        rank = {d: i for i, d in enumerate(dict.fromkeys(uses))}
        root = list(range(count))
        for d in range(count):
            if self.before[d] >= 0:
                root[d] = root[self.before[d]]
        names = np.arange(count)
        for r in set(root):
            group = [d for d in range(count) if root[d] == r]
            names[sorted(group, key=lambda d: (rank.get(d, count), d))] = group
        return names


def in_order(
    when: Mapping[int, float], edges: Iterable[tuple[int, int]]
) -> tuple[list[int], set[int]]:
    """Topological order of the keys of `when`, and the keys on or between cycles.

    Of the ready keys the one with the least value is next; ties go to the least key. The middle of
    an interval is a good value: of two that do not overlap it is in the right order even if their
    ends are rounded, unless both take no time.
    """
    keys = sorted(when, key=lambda v: (when[v], v))
    rank = {v: i for i, v in enumerate(keys)}
    ends = sorted({(rank[a], rank[b]) for a, b in edges})
    tail, head = np.array(ends, dtype=np.int64).reshape(-1, 2).T
    done = kahn(tail, head, len(keys))[0]
    left = set(range(len(keys))) - set(done.tolist())
    # Take away what only waits, from its end.
    while pending := left - {a for a, b in ends if b in left}:
        left -= pending
    return [keys[i] for i in done.tolist()], {keys[i] for i in left}


def descendants(edges: Sequence[tuple[int, int]], count: int) -> list[int]:
    """Transitive closure, as bit masks; one pass if edges of the last tails come first."""
    masks = [0] * count
    changed = True
    while changed:
        changed = False
        for u, v in edges:
            mask = masks[u] | masks[v] | 1 << v
            changed |= mask != masks[u]
            masks[u] = mask
    return masks
