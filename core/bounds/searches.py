"""Bounds that searches prove: `halves` for two stages, and `links` over order ideals.

The certificate of `halves` (`dnnp.core.split.cuts`) is the tree of its search: the item where it
branches, and where it ends the weight of the first stage's load with which a minimum cut is large
enough. That of `links` (`dnnp.core.split.ideals.linked`) holds no more than the value: its
verifier walks the ideals again.
"""

from __future__ import annotations

from math import frexp

import numpy as np

from dnnp.core.bounds.lower_bound import (
    LIMIT,
    SMALLEST,
    SOLVED,
    BoundTask,
    LowerBound,
    Whole,
    one_class,
    refused,
)
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.graph import Bools
from dnnp.core.model.plan import Block
from dnnp.core.model.search_context import PLAIN, SearchContext
from dnnp.core.split.cuts import BITS, Bisection, TwoStages
from dnnp.core.split.ideals.linked import linked_search

MOST_ITEMS = 3_000
"""Items that are searched; what precedes what takes items^2 bytes, twice."""


def bisection_bound(
    problem: SplitProblem, known: BoundTask, run: SearchContext = PLAIN
) -> LowerBound:
    """The least largest load of two stages, or what is proven of it; a better split.

    For ordered splits over two devices of one class under `sum`. Memory, which may only forbid
    splits or add to loads, does not count.
    """
    if known.validity != "ordered" or problem.graph.backward.any():
        return refused("only for ordered splits without a backward pass")
    if sum(d.count for d in problem.devices) != 2:
        return refused("only for two devices")
    whole = one_class(problem, known.validity, most_items=MOST_ITEMS, bits=BITS)
    if isinstance(whole, LowerBound):
        return whole
    items = whole.items
    search = Bisection(
        TwoStages(
            items.order,
            items.tail,
            items.head,
            whole.nets,
            whole.work[0],
            whole.cost[0],
        ),
        run,
    )
    search.told = lambda units, share: run.report_progress(bound=units * whole.quantum, share=share)
    for block in known.blocks if known.blocks is not None and len(known.blocks) < 3 else ():
        inside = np.zeros(items.count, dtype=np.bool_)
        inside[items.label[block.nodes]] = True
        if not (inside[items.head] & ~inside[items.tail]).any():
            search.meet(inside)
    units = search.search()
    tree = [[int(whole.names[r[0]])] if len(r) == 1 else r for r in search.rows(units)]
    better = None if search.best is None else _blocks(problem, whole, search.best)
    status = LIMIT if search.why else SOLVED
    return whole.claim("halves", units, {"tree": tree}, status, reason=search.why, blocks=better)


def _blocks(problem: SplitProblem, whole: Whole, inside: Bools) -> list[Block]:
    """The stages of an ideal and of the rest, their nodes in the graph's order."""
    graph, device = problem.graph, whole.devices[0]
    ahead = inside[whole.items.label[graph.order]]
    parts = (graph.order[ahead], graph.order[~ahead])
    return [Block(part, device) for part in parts if len(part)]


LINKED_BITS = 52
"""Bits of a value in quanta: so many are exact in floating point."""


def linked_bound(problem: SplitProblem, known: BoundTask, run: SearchContext = PLAIN) -> LowerBound:
    """The bound for ordered splits, and the split that is charged least.

    The certificate holds no more than the value: its verifier walks the ideals again.
    """
    options = problem.options
    if not problem.links:
        return refused("there are no links")
    if known.validity != "ordered":
        return refused("holds for ordered splits only")
    if options.objective != "throughput":
        return refused(f"not for the objective {options.objective}")
    if problem.graph.backward.any():
        return refused("not for graphs with a backward pass")
    if options.max_replicas > 1:
        return refused("does not hold where stages are replicated")
    answer = linked_search(problem, known.value, run)
    if not answer.bound:
        why = "stopped" if run.stop() else "too many ideals and kinds of devices"
        return LowerBound(0.0, LIMIT, why)
    # Every part of a load is rounded down to quanta there, so that some are lost.
    quantum = 2.0 ** max(frexp(answer.bound)[1] - LINKED_BITS, SMALLEST)
    lost = 2 * problem.graph.m + problem.graph.n + 4
    units = max(int(answer.bound / quantum) - lost, 0)
    certificate = {"argument": "links", "quantum": quantum, "units": units}
    return LowerBound(units * quantum, SOLVED, "", certificate, answer.blocks)
