"""Time that a named schedule takes for each of very many micro-batches."""

from __future__ import annotations

import math

import numpy as np

from dnnp.core.cost.combine import ROUNDING
from dnnp.core.model.placement import Placement
from dnnp.core.pipeline.cycle import Arcs, least_period
from dnnp.core.pipeline.problem import span_of
from dnnp.core.pipeline.recipes.chains import levels, opposite_chains
from dnnp.core.pipeline.recipes.classics import (
    Classic,
    classic,
    interleaved_devices,
)
from dnnp.core.pipeline.transfers import without_transfers

GROUPS = 4
"""Groups of micro-batches whose orders are compared to see that they repeat."""

MOST_TURNS = 12
"""Groups after which orders with transfers, which depend on times, may repeat."""


def classic_rate(placement: Placement, name: str) -> float:
    """Time for each micro-batch in the limit; errors as `core.pipeline.recipes.classics.classic`.

    Where the orders of the units repeat, that is the largest ratio of time to micro-batches over
    all cycles of blocks that wait for each other (Reiter 1968; maximum cycle ratio). `gpipe`,
    whose orders do not, and schedules where transfers fall differently each time are run twice,
    with N and 2 N micro-batches; the rate is their difference.
    """
    group = group_of(placement, name)
    if name == "sequential":
        made = classic(placement, name, group)
        return span_of(made.problem, made.start) / group
    kinds = {block.kind for block in placement.blocks}
    depth = int(levels(placement).max(initial=0))
    # No recipe works on micro-batches further apart than this: two for each device that a chain
    # visits, or one for each turn (`inference`).
    ahead = sum(len(b.homes) for b in placement.blocks) + 1
    if name == "gpipe" or "backward" not in kinds:
        ahead = depth + 1
    ahead = -(-ahead // group) * group
    if name != "gpipe" or "backward" not in kinds:
        most = MOST_TURNS if "transfer" in kinds else 1
        made = classic(placement, name, 2 * ahead + GROUPS * most * group)
        for turns in range(1, most + 1):
            steady = _steady(made, turns * group, ahead)
            if steady is not None:
                least = float(made.problem.load().max()) / made.problem.unroll
                size = turns * group
                eps = ROUNDING * max(float(steady.weight.sum()), least * size)
                period, _ = least_period(steady, size * made.problem.k, least * size, eps)
                return period / size
    spans = []
    for count in (2 * ahead, 4 * ahead):
        made = classic(placement, name, count)
        spans.append(span_of(made.problem, made.start))
    return (spans[1] - spans[0]) / (2 * ahead)


def group_of(placement: Placement, name: str) -> int:
    """Micro-batches after which the orders of a recipe repeat; errors as `classic`."""
    turns = placement.turns
    core, _ = without_transfers(placement)
    if all(block.kind != "backward" for block in core.blocks):
        return turns
    if name == "chimera":
        return math.lcm(turns, len(opposite_chains(core, "chimera")[0]) // 2)
    if name == "interleaved-1f1b":
        return math.lcm(turns, interleaved_devices(core)[0])
    return turns


def _steady(made: Classic, group: int, ahead: int) -> Arcs | None:
    """Waits between the blocks of groups in the middle; a lag is a group later.

    None if they differ from one group to the next.
    """
    problem = made.problem
    size = group * problem.k
    tail = np.concatenate([problem.tail, *(order[:-1] for order in made.orders)])
    head = np.concatenate([problem.head, *(order[1:] for order in made.orders)])
    time = problem.time[tail]
    time[: len(problem.delay)] += problem.delay
    found = []
    for first in range(ahead * problem.k, ahead * problem.k + GROUPS * size, size):
        mine = (tail >= first) & (tail < first + size)
        between = (head[mine] - first) // size
        rows = np.stack([(tail[mine] - first) % size, (head[mine] - first) % size, between])
        order = np.lexsort((time[mine], *rows))
        found.append((rows[:, order], time[mine][order]))
    rows, length = found[0]
    for other, times in found[1:]:
        if other.shape != rows.shape or (other != rows).any() or (times != length).any():
            return None
    return Arcs(rows[0], rows[1], length, -rows[2])
