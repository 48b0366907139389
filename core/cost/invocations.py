"""Latency where accelerators are invoked for whole blocks (2020 paper, Section 4; `blocks`).

An invocation of an accelerator starts when everything that its block reads is in the memory of
the host and the device is free. It reads these flows, each once, runs its tasks, and writes the
flows that are read elsewhere back, one after the other:

    end = start + in + compute + out

Tasks on the CPU pool start when all they read is there; the pool is wide enough, so that none
waits for a core. Nothing stays on an accelerator between two invocations but parameters. An
accelerator may be invoked up to q times (Section 4.1), q times for each pass of a training
graph (Section 4.2), each time for tasks of one pass; all its blocks together must fit its memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dnnp.core.cost.load_formula import ROOM
from dnnp.core.cost.machine import Machine
from dnnp.core.cost.tasks import Tasks
from dnnp.core.model.errors import FormatError, InfeasibleError
from dnnp.core.model.graph import Floats, Ints, distinct
from dnnp.core.model.text import shown_bytes

POOL = -1
"""Block of a task that runs on the CPU pool."""


@dataclass(frozen=True, eq=False)
class Invocations:
    """Who runs what, in blocks."""

    device: Ints
    """i64[b], device (number in the machine) of each invocation. Those of one device run in
    this order."""
    block: Ints
    """i64[n], invocation that runs each task, or `POOL`."""


@dataclass(frozen=True, eq=False)
class BlockTimes:
    """When everything happens."""

    value: float
    """Latency: when the last task is done and what it made is in the memory of the host."""
    start_s: Floats
    in_s: Floats
    compute_s: Floats
    out_s: Floats
    """f64[b] each, of every invocation."""
    ready_s: Floats
    """f64[n], when the outputs of each task are in the memory of the host."""

    @property
    def end_s(self) -> Floats:
        """f64[b], end of each invocation."""
        return self.start_s + self.in_s + self.compute_s + self.out_s


def pool_times(tasks: Tasks, machine: Machine) -> Floats:
    """Time of each task on the CPU pool; f64[n], inf where there is no CPU that runs it."""
    if not machine.is_cpu.any():
        return np.full(tasks.n, np.inf)
    pool: Floats = tasks.time[int(np.argmax(machine.is_cpu))]
    return pool


def host_times(tasks: Tasks, machine: Machine, device: int) -> Floats:
    """Time to move each flow between a device and the memory of the host; f64[f]."""
    return tasks.size * machine.host_rate[device] + tasks.fixed


def time_invocations(tasks: Tasks, machine: Machine, split: Invocations) -> BlockTimes:
    """Compute the latency of a split; the limits are `check_invocations`' business.

    Raises
    ------
    FormatError
        Two blocks, or a block and a task of the pool, wait for each other.
    """
    count, n = len(split.device), tasks.n
    parts = _parts(tasks, machine, split)
    vertex = np.where(split.block >= 0, split.block, count + np.arange(n))
    previous = _previous(split.device)
    before: list[set[int]] = [set() for _ in range(count + n)]
    for maker, reader in zip(*(x.tolist() for x in tasks.edges), strict=True):
        if vertex[maker] != vertex[reader]:
            before[vertex[reader]].add(int(vertex[maker]))
    for b, earlier in enumerate(previous):
        if earlier >= 0:
            before[b].add(earlier)
    pool = pool_times(tasks, machine)
    end = np.zeros(count + n)
    start = np.zeros(count + n)
    length = np.concatenate([parts.sum(axis=0), pool])
    for v in _order(before, distinct(vertex).tolist(), count):
        start[v] = max((end[u] for u in before[v]), default=0.0)
        end[v] = start[v] + length[v]
    ready = end[vertex]
    return BlockTimes(
        value=float(max(ready.max(initial=0.0), end[:count].max(initial=0.0))),
        start_s=start[:count],
        in_s=parts[0],
        compute_s=parts[1],
        out_s=parts[2],
        ready_s=ready,
    )


def check_invocations(tasks: Tasks, machine: Machine, split: Invocations, most: int) -> None:
    """Check a split against the limits of its devices.

    Raises
    ------
    FormatError
        A block has tasks of both passes, or no task; a colour is on two devices.
    InfeasibleError
        An accelerator is invoked more than `most` times in a pass, has not enough memory, or
        does not support a task.
    """
    used: dict[tuple[int, bool], int] = {}
    for b, device in enumerate(split.device.tolist()):
        passes = distinct(tasks.backward[split.block == b])
        if len(passes) != 1:
            what = "holds tasks of both passes" if len(passes) else "has no tasks"
            raise FormatError(f"block {b} on {machine.names[device]} {what}")
        key = device, bool(passes[0])
        used[key] = used.get(key, 0) + 1
        if used[key] > most:
            raise InfeasibleError(
                f"infeasible: {machine.names[device]} is invoked {used[key]} times, "
                f"above the {most} that are allowed"
            )
    # Block POOL is the last one.
    home = np.append(split.device, POOL)[split.block]
    check_homes(tasks, machine, home)
    if np.isinf(pool_times(tasks, machine)[home == POOL]).any():
        raise InfeasibleError("infeasible: there is no CPU for what no block holds")


def check_homes(tasks: Tasks, machine: Machine, home: Ints) -> None:
    """Check colours, memory and support; `home` is i64[n], a device or `POOL`.

    Raises
    ------
    FormatError
        A colour is on two devices.
    InfeasibleError
        A device has not enough memory, or does not support a task.
    """
    first = np.full(int(tasks.together.max(initial=-1)) + 1, -2, dtype=np.int64)
    first[tasks.together] = home
    if (first[tasks.together] != home).any():
        raise FormatError("nodes of one colour are on two devices")
    for device in distinct(home[home >= 0]).tolist():
        mine = home == device
        if np.isinf(tasks.time[device, mine]).any():
            raise InfeasibleError(
                f"infeasible: {machine.names[device]} does not support all it is to run"
            )
        needed = float(tasks.memory[mine].sum())
        if needed > machine.capacity[device] * ROOM:
            raise InfeasibleError(
                f"infeasible: the part on {machine.names[device]} needs {shown_bytes(needed, 6)}, "
                f"its device has {shown_bytes(machine.capacity[device], 6)}"
            )


def _parts(tasks: Tasks, machine: Machine, split: Invocations) -> Floats:
    """In, compute and out of every invocation; f64[3, b]."""
    count = len(split.device)
    parts = np.zeros((3, count))
    flow = np.repeat(np.arange(tasks.flows), np.diff(tasks.use_ptr))
    reader = split.block[tasks.use_idx]
    maker = np.where(tasks.maker >= 0, split.block[tasks.maker], POOL - 1)
    crosses = reader != maker[flow]
    enters = crosses & (reader >= 0)
    pairs = distinct(reader[enters] * max(tasks.flows, 1) + flow[enters])
    away = tasks.leaves.copy()
    away[flow[crosses]] = True
    for b, device in enumerate(split.device.tolist()):
        moved = host_times(tasks, machine, device)
        read = pairs[pairs // max(tasks.flows, 1) == b] % max(tasks.flows, 1)
        parts[0, b] = moved[read].sum()
        parts[1, b] = tasks.time[device, split.block == b].sum()
        parts[2, b] = moved[away & (maker == b)].sum()
    return parts


def _previous(device: Ints) -> list[int]:
    """The invocation before each one on the same device, or -1."""
    last: dict[int, int] = {}
    previous = []
    for b, d in enumerate(device.tolist()):
        previous.append(last.get(d, -1))
        last[d] = b
    return previous


def _order(before: list[set[int]], vertices: list[int], count: int) -> list[int]:
    """Vertices after all they wait for."""
    vertices = sorted({*vertices, *range(count)})
    waiting = {v: len(before[v]) for v in vertices}
    after: dict[int, list[int]] = {v: [] for v in vertices}
    for v in vertices:
        for u in before[v]:
            after[u].append(v)
    done = [v for v in vertices if not waiting[v]]
    for v in done:
        for w in after[v]:
            waiting[w] -= 1
            if not waiting[w]:
                done.append(w)
    if len(done) < len(vertices):
        raise FormatError("the blocks of the split wait for each other")
    return done
