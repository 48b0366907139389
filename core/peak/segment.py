"""One segment of a block: nodes whose order is open, from all that is known about them."""

from __future__ import annotations

import numpy as np

from dnnp.core.cost.combine import MARGIN
from dnnp.core.model.graph import Ints
from dnnp.core.model.run import Run
from dnnp.core.peak.bound import peak_bound
from dnnp.core.peak.greedy import evolved_order, greedy_orders
from dnnp.core.peak.steps import Steps, walk, walk_given

ROUNDS = 100
"""Orders that are varied for each node at most, from either end."""

IN_CACHE = 20_000
"""Nodes and tensors up to which making one order takes the time of as many visits."""


class Segment:
    """Nodes whose order is open."""

    def __init__(self, steps: Steps, start: float, floor: float, run: Run) -> None:
        self.steps, self.start, self.run = steps, start, run
        self.bound = max(floor, peak_bound(steps, start))
        self.order = np.arange(len(steps.made), dtype=np.int64)
        self.peak = float(walk_given(steps, start)[1].max(initial=start))

    def improve(self, work: float) -> float:
        """Make orders by each rule, then vary those made from each end; return the work done."""
        for order in greedy_orders(self.steps) if self._open else ():
            self._take(order)
            if not self._open:
                break
        size = len(self.steps.made) + len(self.steps.reads) + len(self.steps.makes)
        cost, done = size * (1 + size / IN_CACHE), 0.0
        rounds = min(int(work / cost) // 2, ROUNDS * len(self.steps.made))
        for back in (True, False):
            if self._open and rounds > 1:
                self._take(evolved_order(self.steps, self.start, self.bound, rounds, back=back))
                done += rounds * cost
        return done

    @property
    def _open(self) -> bool:
        return below(self.bound, self.peak) and not self.run.stop()

    def _take(self, order: Ints) -> None:
        """Keep an order if it is better."""
        peak = float(walk(self.steps, self.start, order)[1].max(initial=self.start))
        if below(peak, self.peak):
            self.order, self.peak = order, peak


def below(less: float, more: float) -> bool:
    """Whether one peak is truly below another."""
    return bool(less < more * (1 - MARGIN))
