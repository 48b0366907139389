"""Arrays of Tessel's repetend search, and what an order of blocks means for a repetend."""

from __future__ import annotations

import numpy as np

from dnnp.core.model.components import connected
from dnnp.core.model.graph import Bools, Floats, Ints, csr
from dnnp.core.pipeline.cycle import Arcs, least_period
from dnnp.core.pipeline.problem import ScheduleProblem
from dnnp.core.pipeline.shift import topological
from dnnp.core.pipeline.tessel.kernel import Scan, TesselBlocks

FINE = 1e-4
"""Part of the slack of a search that rounding may take."""

MOST_NUMBERS = 4_000_000
"""In all matrices of longest ways."""


def blocks_of(problem: ScheduleProblem) -> TesselBlocks:
    """Arrays of the kernels."""
    on_ptr, on = problem.on_unit()
    before_ptr, by_head = csr(problem.head, np.arange(len(problem.head)), problem.b)
    gap = problem.time[problem.tail] + problem.delay
    shared = {
        (int(i), int(j))
        for d in range(problem.units)
        for n, i in enumerate(on[on_ptr[d] : on_ptr[d + 1]])
        for j in on[on_ptr[d] + n + 1 : on_ptr[d + 1]]
    }
    return TesselBlocks(
        time=problem.time,
        memory=problem.memory,
        ptr=problem.ptr,
        unit=problem.unit,
        on_ptr=on_ptr,
        on=on,
        before_ptr=before_ptr,
        before=problem.tail[by_head],
        gap=gap[by_head],
        topo=topological(problem.b, problem.tail, problem.head),
        pairs=np.array(sorted(shared), dtype=np.int64).reshape(-1, 2),
        room=problem.capacity,
        part=connected(problem.b, problem.tail, problem.head),
    )


def search_of(problem: ScheduleProblem, blocks: TesselBlocks) -> Scan:
    """A search that has not begun."""
    b = problem.b
    levels = max(min(len(blocks.pairs) + 1, MOST_NUMBERS // b**2), 1)
    return Scan(
        state=np.zeros(7, dtype=np.int64),
        numbers=np.zeros(3),
        micro=np.zeros(b, dtype=np.int64),
        most=np.zeros(b, dtype=np.int64),
        held=np.zeros(problem.units),
        least=np.zeros(int(blocks.part.max()) + 1, dtype=np.int64),
        level=np.zeros((levels, b, b)),
        choice=np.zeros((levels, 3), dtype=np.int64),
    )


def before_of(blocks: TesselBlocks, ways: Floats, slack: float) -> Bools:
    """bool[b, b]: whether one block is to run before another one on a common unit."""
    before = np.zeros(ways.shape, dtype=np.bool_)
    i, j = blocks.pairs.T
    before[i, j] = ways[i, j] >= blocks.time[i] - slack
    before[j, i] = ways[j, i] >= blocks.time[j] - slack
    return before


def period_of(
    problem: ScheduleProblem, index: Ints, before: Bools, low: float, slack: float
) -> tuple[float, Floats]:
    """Least period of an index set with an order on every unit, and starts in the repetend."""
    i, j = np.nonzero(before)
    time, none = problem.time, np.zeros(len(i), dtype=np.int64)
    arcs = Arcs(
        np.concatenate([problem.tail, i, j]),
        np.concatenate([problem.head, j, i]),
        np.concatenate([time[problem.tail] + problem.delay, time[i], time[j]]),
        np.concatenate([index[problem.head] - index[problem.tail], none, none - 1]),
    )
    return least_period(arcs, problem.b, low, slack * FINE)


def sequence_of(problem: ScheduleProblem, index: Ints, before: Bools, begin: Floats) -> Ints:
    """All blocks by start; where starts are equal, as the order and dependencies say."""
    inside = index[problem.tail] == index[problem.head]
    # Blocks of no time that start together may be before each other.
    i, j = np.nonzero(before & ~(before.T & np.tri(problem.b, dtype=np.bool_)))
    tail = np.concatenate([problem.tail[inside], i])
    return topological(problem.b, tail, np.concatenate([problem.head[inside], j]), begin)
