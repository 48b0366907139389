"""Orders of the nodes of a block for the least peak of live activations, with a lower bound."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dnnp.core.model.graph import Graph, Ints
from dnnp.core.model.plan import Block
from dnnp.core.model.search_context import PLAIN, Run
from dnnp.core.split.peak.steps import Steps, cuts, largest_step, part_of, steps_of, walk_given

WORK = 25_000_000
"""Visits of nodes and tensors that one block may cost at effort 1."""

KEPT_BLOCKS = 4
"""Blocks up to which each has the work of one to itself."""


class PeakOrder(NamedTuple):
    """An order of the nodes of a block."""

    nodes: Ints
    """Node positions in execution order."""
    peak_bytes: float
    """Peak of live activations, bytes; parameters are not in it."""
    bound_bytes: float
    """No order of these nodes has a smaller peak."""


def peak_order(graph: Graph, nodes: Ints, run: Run = PLAIN) -> PeakOrder:
    """Find an order of `nodes` with the least peak, or as small a one as the effort allows.

    Effort 0 finds nothing but a bound.

    `nodes` are positions in some execution order, which comes back if none found is better.
    Deterministic unless stopped.
    """
    nodes = np.asarray(nodes, dtype=np.int64)
    steps, start = steps_of(graph, nodes)
    search = _PeakSearch(steps, start, run)
    if run.effort > 0:
        search.improve()
    return PeakOrder(nodes[search.order], search.peak, search.bound)


def with_least_peak(
    graph: Graph, blocks: Sequence[Block], *, keep: bool = False, run: Run = PLAIN
) -> list[Block]:
    """Put the nodes of every block in an order of small peak, never a larger one than theirs.

    The blocks know the lower bound of their peak then; with `keep`, their orders stay.
    """
    part = run.scaled(min(1.0, KEPT_BLOCKS / max(len(blocks), 1)))
    best = []
    for block in blocks:
        found = peak_order(graph, block.nodes, part)
        nodes = block.nodes if keep else found.nodes
        best.append(block._replace(nodes=nodes, peak_bound_bytes=found.bound_bytes))
    return best


class _PeakSearch:
    """Segments between nodes that stand at one place in all orders, the worst one first."""

    def __init__(self, steps: Steps, start: float, run: Run) -> None:
        n = len(steps.made)
        self.steps, self.start, self.run = steps, start, run
        self.order = np.arange(n, dtype=np.int64)
        self.before, during = walk_given(steps, start)
        cut = cuts(steps)
        self.bound = float(max(largest_step(steps, start), during[cut].max(initial=0.0)))
        self.first = np.flatnonzero(np.append(True, cut[:-1])) if n else np.zeros(0, np.int64)
        self.end = np.append(self.first[1:], n)
        self.peaks = np.maximum.reduceat(during, self.first) if n else np.zeros(0)
        self.given = self.peak
        self.work = run.effort * WORK

    @property
    def peak(self) -> float:
        """Peak of the order."""
        return float(max(self.start, self.peaks.max(initial=0.0)))

    def improve(self) -> None:
        """Put one segment after the other in a better order, while that can help."""
        from dnnp.core.split.peak.segment import below

        seen = np.zeros(len(self.peaks), dtype=np.bool_)
        while len(self.peaks) and not self.run.stop():
            s = int(self.peaks.argmax())
            if seen[s] or not below(self.bound, self.peaks[s]):
                break
            seen[s] = True
            self._segment(s)
        self.bound = min(self.bound, self.peak)
        if not below(self.peak, self.given):
            self.order = np.arange(len(self.order), dtype=np.int64)
            self.peaks[:] = self.given
        if not below(self.bound, self.peak):
            self.bound = self.peak

    def _segment(self, s: int) -> None:
        from dnnp.core.split.peak.segment import Segment

        a, b = int(self.first[s]), int(self.end[s])
        part = self.steps
        if b - a < len(self.order):
            everything = np.arange(b, dtype=np.int64)
            part = part_of(self.steps, everything[a:], everything[:a])
        task = Segment(part, float(self.before[a]), self.bound, self.run)
        self.work -= task.improve(self.work)
        self.order[a:b] = a + task.order
        self.peaks[s] = task.peak
        self.bound = max(self.bound, task.bound)
