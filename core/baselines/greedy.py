"""Greedy filling in topological order (2020 paper, section 7)."""

from __future__ import annotations

import numpy as np

from dnnp.core.baselines.blocks import checked, interval_blocks, unplaceable
from dnnp.core.cost.line import Line
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.asked import Asked, Solution
from dnnp.core.model.errors import InfeasibleError
from dnnp.core.model.graph import Floats
from dnnp.core.model.run import PLAIN, Run
from dnnp.core.order.given import given_order
from dnnp.core.order.orders import PUBLISHED, order_named

Stages = list[tuple[int, int]]
"""End and class of every stage, in order."""


def greedy(problem: SplitProblem, asked: Asked, run: Run = PLAIN) -> Solution:
    """Contract colours and cycles, fix an order, fill accelerator after accelerator.

    As published, an accelerator takes as many items as its memory holds, and CPUs take what is
    left. That balances nothing where memory is ample, so but for the order `published` an
    accelerator also stops at its share of the work that is left; only if memory then runs out is
    it filled up, of which the run is warned. A CPU also takes items that the next accelerator
    cannot run or hold.

    Raises
    ------
    InfeasibleError
        An item fits nowhere, or no device is left for one.
    """
    items = problem.items
    given = asked.sequence
    order = order_named(asked.order)(items) if given is None else given_order(problem, given)
    line = problem.line(items, order)
    stages = None if asked.order == PUBLISHED else _fill(line, shared=True)
    if stages is None:
        stages = _fill(line, shared=False)
        if stages is not None and asked.order != PUBLISHED:
            run.warn("greedy: equal shares of the work do not fit; devices are filled up instead")
    if stages is None:
        raise unplaceable(problem, line) or InfeasibleError(
            "infeasible: the devices are full before every node has a place"
        )
    bounds = np.array([0, *(end for end, _ in stages)], dtype=np.int64)
    classes = np.array([c for _, c in stages], dtype=np.int64)
    blocks = interval_blocks(problem.graph, line, bounds, classes, problem.devices)
    return checked(problem, blocks)


def _fill(line: Line, *, shared: bool) -> Stages | None:
    """Fill the devices in the order offered, CPUs last; None if items are left.

    `shared`: a device stops at its share of the work that is left.
    """
    fast = [c for c, d in enumerate(line.devices) if not d.is_cpu for _ in range(d.count)]
    slow = [c for c, d in enumerate(line.devices) if d.is_cpu for _ in range(d.count)]
    # Running sums of the work where an accelerator does it, and where a CPU does.
    fast_work, slow_work = (
        np.append(0.0, np.cumsum(np.where(np.isfinite(line.work[c]), line.work[c], 0.0)))
        if (c := next(iter(kind), None)) is not None
        else np.zeros(line.n + 1)
        for kind in (fast, slow)
    )
    stages: Stages = []
    at = 0
    while at < line.n:
        if fast and line.reach[fast[0], at] >= at:
            c = fast.pop(0)
            end = int(line.reach[c, at]) + 1
            if shared:
                end = min(end, _share(fast_work, at, len(fast) + 1))
        elif slow and line.reach[slow[0], at] >= at:
            c = slow.pop(0)
            end = int(line.reach[c, at]) + 1
            if fast:
                # Only what the next accelerator cannot take.
                takes = np.flatnonzero(line.reach[fast[0], at:end] >= np.arange(at, end))
                end = at + int(takes[0]) if len(takes) else end
            else:
                end = min(end, _share(slow_work, at, len(slow) + 1))
        elif fast:
            # Another class may take what this one cannot.
            fast.pop(0)
            continue
        else:
            return None
        stages.append((end, c))
        at = end
    return stages


def _share(running: Floats, at: int, parts: int) -> int:
    """End of the first of `parts` equal shares of the work from `at` on; one item at least.

    An item belongs to the share in which its middle lies.
    """
    if parts == 1:
        return len(running) - 1
    goal = running[at] + (running[-1] - running[at]) / parts
    middle = (running[at:-1] + running[at + 1 :]) / 2
    return at + max(1, int(np.searchsorted(middle, goal)))
