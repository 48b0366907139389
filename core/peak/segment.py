"""One segment of a block: nodes whose order is open, from all that is known about them."""

from __future__ import annotations

import numpy as np

from dnnp.core.cost.combine import MARGIN
from dnnp.core.model.graph import Ints
from dnnp.core.model.run import Run
from dnnp.core.peak.bound import peak_bound
from dnnp.core.peak.greedy import evolved_order, greedy_orders
from dnnp.core.peak.search import search
from dnnp.core.peak.steps import Steps, part_of, walk, walk_given

FIRST_SHARE = 0.1
"""Share of the work for a first exact search, before there is a good order."""

MIN_LEVELS = 0.1
"""Exact search needs work for setting up this many sets for every node."""

EVOLVE_SHARE = 0.35
WINDOW_SHARE = 0.1
"""Shares for varying orders, and for windows each time; what is left is for the exact search."""

IN_CACHE = 20_000
"""Nodes and tensors up to which making one order takes the time of as many visits."""

WINDOWS = (10, 20, 40, 80)
"""Steps that are put in order anew around the most expensive one."""

WINDOW_WORK = 200_000
"""Visits that one of them may cost."""


class Segment:
    """Nodes whose order is open."""

    def __init__(self, steps: Steps, start: float, floor: float, run: Run) -> None:
        self.steps, self.start, self.run = steps, start, run
        self.size = len(steps.made) + len(steps.reads) + len(steps.makes)
        self.bound = max(floor, peak_bound(steps, start))
        self.done = 0.0
        self.order = np.arange(len(steps.made), dtype=np.int64)
        self.before, self.during = walk_given(steps, start)
        self.peak = float(self.during.max(initial=start))

    def improve(self, work: float) -> float:
        """Search; return the work done."""
        for order in greedy_orders(self.steps) if self._open else ():
            self._take(order)
            if not self._open:
                break
        self._exact(FIRST_SHARE * work)
        self._evolve(EVOLVE_SHARE * work)
        self._windows(WINDOW_SHARE * work)
        self._exact(work - self.done)
        self._windows(WINDOW_SHARE * work)
        return self.done

    @property
    def _open(self) -> bool:
        return below(self.bound, self.peak) and not self.run.stop()

    @property
    def _goal(self) -> float:
        """What a truly better peak is below."""
        return self.peak * (1 - MARGIN)

    def _take(self, order: Ints) -> bool:
        """Keep an order if it is better."""
        before, during = walk(self.steps, self.start, order)
        peak = float(during.max(initial=self.start))
        if not below(peak, self.peak):
            return False
        self.order, self.before, self.during, self.peak = order, before, during, peak
        return True

    def _exact(self, work: float) -> None:
        """Search all orders, within some work."""
        if not self._open or work < MIN_LEVELS * self.size**2:
            return
        found = search(self.steps, self.start, self.bound, self._goal, work)
        self.done += found.work
        self.bound = max(self.bound, found.bound)
        if len(found.order):
            self._take(found.order)

    def _evolve(self, work: float) -> None:
        """Vary the orders made from each end."""
        cost = self.size * (1 + self.size / IN_CACHE)
        rounds = int(work / cost) // 2
        for back in (True, False):
            if not self._open or rounds < 2:
                return
            order = evolved_order(self.steps, self.start, self.bound, rounds, back=back)
            self._take(order)
            self.done += rounds * cost

    def _windows(self, work: float) -> None:
        """Search around the most expensive step; go on while that gets cheaper."""
        end = self.done + work
        better = True
        while better and self._open:
            better = False
            for width in WINDOWS:
                if self.done >= end or self._window(width):
                    better = self.done < end
                    break

    def _window(self, width: int) -> bool:
        """Whether a better order of the `width` steps around the most expensive one was found."""
        middle = int(self.during.argmax())
        for ahead in (width // 2, 3 * width // 4, width // 4):
            a = max(middle - ahead, 0)
            b = min(a + width, len(self.order))
            inside = self.order[a:b]
            part = part_of(self.steps, inside, self.order[:a])
            found = search(part, float(self.before[a]), self.bound, self._goal, WINDOW_WORK)
            self.done += found.work + self.size
            if len(found.order):
                order = self.order.copy()
                order[a:b] = inside[found.order]
                self.order = order
                self.before, self.during = walk(self.steps, self.start, order)
                self.peak = float(self.during.max(initial=self.start))
                return True
        return False


def below(less: float, more: float) -> bool:
    """Whether one peak is truly below another."""
    return bool(less < more * (1 - MARGIN))
