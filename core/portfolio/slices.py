"""Slicing topological orders: the methods `slice` and `dpl`, and the first guess of all others."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from dnnp.core.baselines.blocks import interval_blocks, unplaceable
from dnnp.core.cost.combine import WORTHWHILE
from dnnp.core.cost.items import Items
from dnnp.core.cost.line import Line, steps_of
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.dp.slice import Slicing, slice_line
from dnnp.core.model.asked import Asked, Solution
from dnnp.core.model.errors import InfeasibleError
from dnnp.core.model.graph import Ints
from dnnp.core.model.plan import Block
from dnnp.core.model.run import PLAIN, Run
from dnnp.core.order.orders import ORDERS, order_named


def slice_order(problem: SplitProblem, asked: Asked, run: Run = PLAIN) -> Solution:
    """The best slicing of some orders, or of the one that is given.

    Raises
    ------
    FormatError
        A given order is none of all units, or does not keep to the precedence among them.
    InfeasibleError
        No slicing of these orders meets the capacities.
    """
    order: str | Ints = asked.order
    if asked.sequence is not None:
        from dnnp.core.order.given import given_order

        order = given_order(problem, asked.sequence)
    elif asked.priorities is not None:
        from dnnp.core.order.given import prioritised_order

        order = prioritised_order(problem, asked.priorities)
    return Solution(best_slicing(problem, order, run), method="slice")


def dpl(problem: SplitProblem, asked: Asked, run: Run = PLAIN) -> Solution:
    """The linearisation heuristic of the 2020 paper: slice a depth-first order (section 5.1.2).

    Raises
    ------
    InfeasibleError
        No slicing of this order meets the capacities.
    """
    return Solution(best_slicing(problem, "dfs", run))


def best_slicing(
    problem: SplitProblem, order: str | Ints = "best", run: Run = PLAIN
) -> list[Block]:
    """Slice a topological order, at the least largest load, without replicas.

    `order` is a topological order of the items of `items_of`, a name of one, or `best`: the
    one whose slicing is best. The blocks come in pipeline order. Once the run is to
    stop, the best split so far is returned.

    Raises
    ------
    InfeasibleError
        No slicing of these orders meets the capacities.
    """
    if isinstance(order, str):
        orders = list(ORDERS.values()) if order == "best" else [order_named(order)]
    else:
        orders = [lambda items: order]
    line, _, best = sliced_orders(problem, problem.items, orders, run)
    return interval_blocks(problem.graph, line, best.bounds, best.classes, problem.devices)


def sliced_orders(
    problem: SplitProblem,
    items: Items,
    orders: Iterable[Callable[[Items], Ints]],
    run: Run,
    stopped: str = "",
) -> tuple[Line, Ints, Slicing]:
    """The order of some items whose slicing is best: its line, itself, and the slicing.

    `stopped` is what the run is warned of where not all orders are tried.

    Raises
    ------
    InfeasibleError
        No slicing of these orders meets the capacities.
    """
    options = problem.options
    limited = any(np.isfinite(d.memory_bytes) for d in problem.devices)
    streamed = options.memory_mode == "overflow" and limited
    found: tuple[Line, Ints, Slicing] | None = None
    failure: InfeasibleError | None = None
    for make_order in orders:
        if found is not None and run.stop():
            if stopped:
                run.warn(stopped)
            break
        order = make_order(items)
        line = problem.line(items, order)
        steps = steps_of(problem.graph, line, options) if streamed else None
        below = found[2].value * (1 - WORTHWHILE) if found else np.inf
        # The first slicing takes a moment, unless there are classes or streams to tell apart.
        hasty = found is not None or streamed or len(problem.devices) > 1
        try:
            better = slice_line(line, options.comm, steps, below, run if hasty else PLAIN)
        except InfeasibleError as error:
            failure = failure or unplaceable(problem, line) or error
        else:
            found = found if better is None else (line, order, better)
    if found is None:
        raise failure or InfeasibleError("infeasible")
    return found
