"""Splits of other methods, made for throughput or by hand, as answers to a latency problem."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dnnp.core.cost.latency import LatencyProblem, Split
from dnnp.core.cost.machine import device_numbers
from dnnp.core.latency.blocks.homes import blocks_of_homes
from dnnp.core.latency.lists.schedule import schedule_homes
from dnnp.core.model.errors import FormatError
from dnnp.core.model.graph import Ints, distinct
from dnnp.core.model.plan import Block


def homes_of_blocks(problem: LatencyProblem, label: Ints, blocks: Sequence[Block]) -> Ints:
    """Device of each task, i64[n], where the blocks of a split are.

    Parameters
    ----------
    label
        i64[nodes], task of each node: the `label` of the units.
    blocks
        Their nodes are positions. A block without a number takes the next device of its class
        that none states; one with replicas, its first device.

    Raises
    ------
    FormatError
        There are more blocks than devices of a class, or a task is in no block, or in two.
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
    return schedule_homes(problem, home)
