"""Items of a split into blocks, the slots they may go to, and what moves between them.

Tasks of one colour and pass share a device, and what lies on a path between two of them comes
along: an item lies in one block, or runs on the pool, task by task.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dnnp.core.cost.invocations import host_times
from dnnp.core.cost.items import by_first, components
from dnnp.core.cost.latency import LatencyProblem
from dnnp.core.cost.tasks import Tasks
from dnnp.core.model.graph import Bools, Floats, Ints


class Slot(NamedTuple):
    """A block that a device may be invoked for."""

    device: int
    late: bool
    """Whether it is for the backward pass."""
    number: int
    """Among those of the same device and pass, in the order in which they run."""


@dataclass(frozen=True)
class Net:
    """What one item makes and the same others read."""

    maker: int
    """Item; -1: an input of the model."""
    readers: tuple[int, ...]
    """Other items."""
    leaves: bool
    """An output of the model, which costs a transfer in any case."""
    makers: tuple[int, ...]
    """Tasks of the item that make it."""
    cost: Floats
    """f64[D], time between each device and the memory of the host."""


@dataclass(frozen=True, eq=False)
class BlockGame:
    """A problem of `blocks` in terms of `m` items."""

    problem: LatencyProblem
    label: Ints
    """i64[n], item of each task; numbered by their first task in the order."""
    members: list[Ints]
    """Tasks of each item."""
    late: Bools
    """bool[m]"""
    time: Floats
    """f64[D, m], compute time of each item in a block."""
    memory: Floats
    """f64[m]"""
    slots: list[Slot]
    nets: list[Net]
    tied: list[tuple[int, int]]
    """Pairs of items that share a device, or both run on the pool."""


def items_of_tasks(tasks: Tasks) -> Ints:
    """Item of each task; i64[n].

    Unlike in `dnnp.core.latency.blocks.items`, edges between the passes count for nothing: that
    no blocks wait for each other is seen by the times of the model.
    """
    label = np.unique(2 * tasks.together + tasks.backward, return_inverse=True)[1]
    tail, head = tasks.edges
    same = tasks.backward[tail] == tasks.backward[head]
    item = components(label, tail[same], head[same])
    return by_first(item[tasks.order])[item]


def game_of(problem: LatencyProblem) -> BlockGame:
    """Lay out a problem of `blocks`."""
    tasks, machine = problem.tasks, problem.machine
    label = items_of_tasks(tasks)
    count = int(label.max(initial=-1)) + 1
    members = [np.flatnonzero(label == i) for i in range(count)]
    late = np.array([tasks.backward[own[0]] for own in members], dtype=np.bool_)
    time = np.array([tasks.time[:, own].sum(axis=1) for own in members]).reshape(count, -1).T
    slots = [
        Slot(d, backward, j)
        for d in np.flatnonzero(~machine.is_cpu).tolist()
        for backward in (False, True)
        for j in range(min(problem.options.invocations, int((late == backward).sum())))
    ]
    return BlockGame(
        problem,
        label,
        members,
        late,
        time,
        np.array([tasks.memory[own].sum() for own in members]),
        slots,
        _nets(problem, label),
        _tied(tasks, label),
    )


def _nets(problem: LatencyProblem, label: Ints) -> list[Net]:
    tasks, machine = problem.tasks, problem.machine
    cost = np.array([host_times(tasks, machine, d) for d in range(machine.count)])
    found: dict[tuple[int, tuple[int, ...], bool], list[int]] = {}
    for f, maker in enumerate(tasks.maker.tolist()):
        item = int(label[maker]) if maker >= 0 else -1
        readers = set(label[tasks.use_idx[tasks.use_ptr[f] : tasks.use_ptr[f + 1]]].tolist())
        key = item, tuple(sorted(readers - {item})), bool(tasks.leaves[f])
        if key[1] or key[2]:
            found.setdefault(key, []).append(f)
    return [
        Net(
            maker,
            readers,
            leaves,
            tuple(sorted(set(tasks.maker[flows].tolist()) - {-1})),
            cost[:, flows].sum(axis=1),
        )
        for (maker, readers, leaves), flows in sorted(found.items())
    ]


def _tied(tasks: Tasks, label: Ints) -> list[tuple[int, int]]:
    """Pairs of items of one colour, enough of them."""
    last: dict[int, int] = {}
    pairs = set()
    for v in tasks.order.tolist():
        color, item = int(tasks.together[v]), int(label[v])
        if last.setdefault(color, item) != item:
            pairs.add((min(last[color], item), max(last[color], item)))
    return sorted(pairs)
