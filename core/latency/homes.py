"""Splits of other methods, made for throughput or by hand, as solutions of a latency problem."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dnnp.core.cost.latency import POOL, Invocations, LatencyProblem, Split
from dnnp.core.latency.lists.net import net_of
from dnnp.core.latency.lists.schedule import schedule_homes
from dnnp.core.model.device import device_numbers
from dnnp.core.model.errors import FormatError
from dnnp.core.model.graph import Ints, distinct
from dnnp.core.model.plan import Block


def blocks_of_homes(problem: LatencyProblem, home: Ints) -> Invocations:
    """Blocks that run every task on its device, few of them, in an order in which they can run.

    The split of an expert or of a graph partitioner need not be contiguous, so that a device
    may need several blocks, even more than the options allow; `check_invocations` says so.

    A block holds all ready tasks of one device and pass, and those that become ready by them; the
    device that can finish the largest share of its remaining tasks goes first. This is one block
    for each device and pass where that is possible.

    Parameters
    ----------
    home
        i64[n], device of each task, or `POOL`.
    """
    run = _BlockBuilder(problem, np.where(problem.machine.is_cpu[home] & (home >= 0), POOL, home))
    while run.left:
        run.do(run.closure((POOL, False)))
        if run.left:
            run.block()
    return Invocations(np.array(run.device, dtype=np.int64), run.number)


class _BlockBuilder:
    """Finished tasks, and the blocks that hold them."""

    def __init__(self, problem: LatencyProblem, home: Ints) -> None:
        tasks = problem.tasks
        late = tasks.backward.tolist()
        self.part = [(h, late[v]) if h >= 0 else (POOL, False) for v, h in enumerate(home.tolist())]
        """Device and pass of each task."""
        self.number = np.full(tasks.n, POOL, dtype=np.int64)
        self.device: list[int] = []
        self.after: list[list[int]] = [[] for _ in range(tasks.n)]
        self.waits = [0] * tasks.n
        for u, v in zip(*(ends.tolist() for ends in tasks.edges), strict=True):
            self.after[u].append(v)
            self.waits[v] += 1
        self.left = tasks.n
        self.todo: dict[tuple[int, bool], int] = {}
        """Number of unfinished tasks of each part."""
        self.ready: dict[tuple[int, bool], list[int]] = {}
        for v in tasks.order.tolist():
            self.todo[self.part[v]] = self.todo.get(self.part[v], 0) + 1
            if not self.waits[v]:
                self.ready.setdefault(self.part[v], []).append(v)
        self.parts = sorted(self.todo)
        self.reach: dict[tuple[int, bool], int] = {}
        """Number of tasks that each part could run now; absent where it changed."""

    def closure(self, part: tuple[int, bool]) -> list[int]:
        """Ready tasks of a part, and those that become ready by them alone."""
        found = list(self.ready.get(part, ()))
        less: dict[int, int] = {}
        for u in found:
            for v in self.after[u]:
                if self.part[v] == part:
                    less[v] = less.get(v, 0) + 1
                    if less[v] == self.waits[v]:
                        found.append(v)
        return found

    def do(self, some: list[int]) -> None:
        """Mark tasks of one part as done."""
        for u in some:
            part = self.part[u]
            self.todo[part] -= 1
            for v in self.after[u]:
                self.waits[v] -= 1
                self.reach.pop(self.part[v], None)
                if not self.waits[v]:
                    self.ready.setdefault(self.part[v], []).append(v)
        if some:
            self.ready[self.part[some[0]]] = []
            self.reach.pop(self.part[some[0]], None)
        self.left -= len(some)

    def block(self) -> None:
        """Append the next block."""
        ready = [part for part in self.parts if self.ready.get(part)]
        for part in ready:
            if part not in self.reach:
                self.reach[part] = len(self.closure(part))
        best = max(ready, key=lambda part: self.reach[part] / self.todo[part])
        some = self.closure(best)
        self.number[some] = len(self.device)
        self.device.append(best[0])
        self.do(some)


def homes_of_blocks(problem: LatencyProblem, label: Ints, blocks: Sequence[Block]) -> Ints:
    """Device of each task, i64[n], by the blocks of a split.

    Parameters
    ----------
    label
        i64[nodes], task of each node: the `label` of the units.
    blocks
        Nodes are positions. A block without a number takes the next free device of its class; one
        with replicas, its first device.

    Raises FormatError: there are more blocks than devices of a class, or a task is in no block,
    or in two.
    """
    home = np.full(problem.tasks.n, -1, dtype=np.int64)
    for block, d in zip(blocks, numbers_of_blocks(problem, blocks), strict=True):
        mine = distinct(label[block.nodes])
        if (home[mine] >= 0).any() or len(block.nodes) != np.isin(label, mine).sum():
            raise FormatError("a unit is in two blocks")
        home[mine] = d
    if (home < 0).any():
        raise FormatError(f"unit {int(np.argmax(home < 0))} is in no block")
    return home


def numbers_of_blocks(problem: LatencyProblem, blocks: Sequence[Block]) -> list[int]:
    """The device of each block, as a number in the machine; see `homes_of_blocks`."""
    stated = {(b.device.name, b.number) for b in blocks if b.number >= 0}
    free: dict[str, list[int]] = {}
    numbers = []
    for block in blocks:
        name = block.device.name
        mine = device_numbers(problem.machine, name).tolist()
        queue = free.setdefault(name, [i for i in range(len(mine)) if (name, i) not in stated])
        i = block.number if block.number >= 0 else queue.pop(0) if queue else len(mine)
        if i >= len(mine):
            raise FormatError(f"there are only {len(mine)} devices of class '{name}'")
        numbers.append(int(mine[i]))
    return numbers


def split_of_homes(problem: LatencyProblem, home: Ints) -> Split:
    """Turn a device for each task (i64[n], `POOL`: a CPU) into a split of the execution asked."""
    if problem.options.execution == "blocks":
        return blocks_of_homes(problem, home)
    return schedule_homes(net_of(problem), home)
