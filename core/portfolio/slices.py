"""Slicing several topological orders; the first guess of every other method."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from dnnp.core.baselines.blocks import unplaceable
from dnnp.core.cost.combine import WORTHWHILE
from dnnp.core.cost.line import Line, steps_of
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.dp.slice import Slicing, slice_line
from dnnp.core.model.errors import InfeasibleError
from dnnp.core.model.graph import Ints
from dnnp.core.model.plan import Block
from dnnp.core.order.orders import ORDERS


def _never() -> bool:
    return False


def best_slicing(
    problem: SplitProblem,
    order: str | Ints = "best",
    stop: Callable[[], bool] = lambda: False,
) -> list[Block]:
    """Slice a topological order, at the least largest load, without replicas.

    `order` is a topological order of the items of `items_of`, a name in `ORDERS`, or `best`: the
    one whose slicing is best. The blocks come in pipeline order. Once `stop` says so, the best
    split so far is returned.

    Raises
    ------
    InfeasibleError
        No slicing of these orders meets the capacities.
    """
    graph, options = problem.graph, problem.options
    items = problem.items
    found: tuple[Line, Slicing] | None = None
    failure: InfeasibleError | None = None
    if isinstance(order, str):
        orders = [ORDERS[name] for name in (ORDERS if order == "best" else [order])]
    else:
        orders = [lambda items: order]
    for ordered in orders:
        if found is not None and stop():
            break
        line = problem.line(items, ordered(items))
        streamed = options.memory_mode == "overflow" and any(
            np.isfinite(d.memory_bytes) for d in line.devices
        )
        steps = steps_of(graph, line, options) if streamed else None
        below = found[1].value * (1 - WORTHWHILE) if found else np.inf
        # The first slicing takes a moment, unless there are classes or streams to tell apart.
        hasty = found is not None or streamed or len(problem.devices) > 1
        try:
            better = slice_line(line, options.comm, steps, below, stop if hasty else _never)
        except InfeasibleError as error:
            failure = failure or unplaceable(problem, line) or error
        else:
            found = found if better is None else (line, better)
    if found is None:
        raise failure or InfeasibleError("infeasible")
    line, best = found
    blocks = [line.nodes[line.node_ptr[a] : line.node_ptr[b]] for a, b in pairwise(best.bounds)]
    if graph.backward.any():
        # An item holds nodes of both passes, which run far apart in time.
        blocks = [nodes[np.argsort(graph.rank[nodes])] for nodes in blocks]
    return [Block(nodes, problem.devices[c]) for nodes, c in zip(blocks, best.classes, strict=True)]
