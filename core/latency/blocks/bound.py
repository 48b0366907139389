"""Lower bounds on the latency of a split into blocks."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dnnp.core.cost.latency import LatencyProblem
from dnnp.core.latency.blocks.items import BlockItems, block_items, kind_of_each
from dnnp.core.latency.blocks.path import Game, path_game, reaches
from dnnp.core.latency.blocks.state import Fixed, fixed_of
from dnnp.core.latency.possible import first_bound
from dnnp.core.model.graph import Floats, Ints, csr, distinct, totals
from dnnp.core.model.search_context import PLAIN, Run

MOST_ITEMS = 4000
"""Items above which hulls are not looked at: they are squared."""

MOST_VALUES = 20_000_000
"""Numbers that may be kept; where there are too many blocks to count, they are not counted."""

CHUNK = 16
"""Items between looks at the clock."""


def blocks_bound(
    problem: LatencyProblem, *, upper: float = np.inf, run: Run = PLAIN
) -> tuple[float, str]:
    """A lower bound on the latency of every split into blocks, and the argument that proves it.

    inf: no split fits. `upper` is the latency of a known split, which no bound exceeds but by
    rounding. If `run` stops it the bound is weaker. The path game takes any memory, any
    number of invocations and both passes; where a pass is backward, blocks of both count as one
    kind.
    """
    bound, name = first_bound(problem)
    items = block_items(problem)
    if items.count > MOST_ITEMS or not items.count or run.stop():
        return bound, name
    fixed = fixed_of(items, problem.options.invocations)
    value = float(play(items, fixed, run).game.value.max(initial=0.0))
    if value > bound:
        bound, name = value, "path of blocks"
    return min(bound, upper), name


class Played(NamedTuple):
    """The path game, and how blocks were counted in it."""

    game: Game
    most: int
    """Blocks that were counted."""
    loose: bool
    """There may be more, which were not."""
    ended: bool
    """It was not stopped before."""


def play(items: BlockItems, fixed: Fixed, run: Run = PLAIN) -> Played:
    """Play the path game from each item on."""
    count, edges = items.count, len(items.before_idx)
    most = min(len(fixed.slot_late), count)
    loose = (edges + count + len(fixed.pool)) * (most + 1) > MOST_VALUES
    if loose:
        most = 1
    reach = reaches(fixed.after_ptr, fixed.after_idx, count)
    head = np.repeat(np.arange(count), np.diff(items.before_ptr))
    tail = np.repeat(np.arange(count), np.diff(items.after_ptr))
    numbers = items.before_idx * count + head
    rank = np.argsort(numbers)
    edge_of = rank[np.searchsorted(numbers[rank], tail * count + items.after_idx)]
    entry_ptr, entry_task = _entries(items, numbers, rank)
    groups = int(items.group.max()) + 1
    game = Game(
        reach,
        np.unique(kind_of_each(items), return_index=True)[1],
        edge_of,
        entry_ptr,
        entry_task,
        totals(items.group, items.memory, groups),
        pool=np.full((len(fixed.pool), most + 1), np.inf),
        rest=np.full((edges + count, most + 1), np.inf),
        value=np.zeros(count),
    )
    for last in range(count, 0, -CHUNK):
        run.stands(share=1 - last / count)
        path_game(fixed, game, most, loose, max(last - CHUNK, 0), last)
        if run.stop():
            return Played(game, most, loose, last <= CHUNK)
    return Played(game, most, loose, ended=True)


def times_left(items: BlockItems, played: Played) -> Floats:
    """Least time from when a task is ready, on through one that reads it, until all is done.

    f64[z, most + 1] by the entries of `task_after_idx` and by the blocks that were used before,
    where the reader is in none of these; 0 between tasks of one item.
    """
    game, count = played.game, items.count
    ends = np.repeat(np.arange(count), np.diff(items.after_ptr)) * count + items.after_idx
    rank = np.argsort(ends)
    maker = np.repeat(items.label, np.diff(items.task_after_ptr))
    reader = items.label[items.task_after_idx]
    apart = maker != reader
    left = np.zeros((len(reader), played.most + 1))
    entry = rank[np.searchsorted(ends[rank], (maker * count + reader)[apart])]
    entered = game.rest[game.edge_of[entry]]
    if not played.loose:
        entered = np.hstack([entered[:, 1:], np.full((len(entry), 1), np.inf)])
    left[apart] = np.minimum(game.pool[items.task_after_idx[apart]], entered)
    return left


def _entries(items: BlockItems, numbers: Ints, rank: Ints) -> tuple[Ints, Ints]:
    """Tasks of an item that read from the item before, per entry of `before_idx` (CSR)."""
    reader = np.repeat(np.arange(len(items.label)), np.diff(items.task_before_ptr))
    a, b = items.label[items.task_before_idx], items.label[reader]
    outer = a != b
    pairs = distinct((a * items.count + b)[outer] * len(items.label) + reader[outer])
    key, task = pairs // max(len(items.label), 1), pairs % max(len(items.label), 1)
    edge = rank[np.searchsorted(numbers[rank], key)]
    ptr, idx = csr(edge, task, len(numbers))
    return ptr, idx
