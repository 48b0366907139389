"""Slicing topological orders: the methods `slice` and `dpl`, and the first guess of all others."""

from __future__ import annotations

import numpy as np

from dnnp.core.baselines.blocks import interval_blocks, sliced_orders
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.errors import InfeasibleError
from dnnp.core.model.graph import Ints
from dnnp.core.model.plan import Block
from dnnp.core.model.search_context import PLAIN, MethodOptions, SearchContext, Solution
from dnnp.core.split.slicing.orders import ORDERS, order_named

SLICED = 0.05
"""Share of the whole work that slicing is taken for, where another search follows."""


def slice_order(
    problem: SplitProblem, asked: MethodOptions, run: SearchContext = PLAIN
) -> Solution:
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
        from dnnp.core.split.slicing.decoder import given_order

        order = given_order(problem, asked.sequence)
    elif asked.priorities is not None:
        from dnnp.core.split.slicing.decoder import prioritised_order

        order = prioritised_order(problem, asked.priorities)
    return Solution(best_slicing(problem, order, run), method="slice")


def dpl(problem: SplitProblem, asked: MethodOptions, run: SearchContext = PLAIN) -> Solution:
    """The linearisation heuristic of the 2020 paper: slice a depth-first order (section 5.1.2).

    Raises InfeasibleError: no slicing of this order meets the capacities.
    """
    return Solution(best_slicing(problem, "dfs", run))


def incumbent(
    problem: SplitProblem, asked: MethodOptions, run: SearchContext
) -> tuple[list[Block] | None, float]:
    """The best slicing and its value, if there is one; and why not, otherwise."""
    try:
        blocks = slice_order(problem, asked, run).blocks
    except InfeasibleError as error:
        # Slicing knows no replicas and keeps an order; an item that fits nowhere is the end.
        run.log(str(error))
        return None, np.inf
    value = problem.value(blocks)
    run.report_incumbent(blocks, value, "slice")
    run.log(f"slicing: {run.shown(value)}")
    return blocks, value


def best_slicing(
    problem: SplitProblem, order: str | Ints = "best", run: SearchContext = PLAIN
) -> list[Block]:
    """Slice a topological order, at the least largest load, without replicas.

    `order` is a topological order of the items of `items_of`, a name of one, or `best`: the
    one whose slicing is best. The blocks come in pipeline order. Once the run is to
    stop, the best split so far is returned.

    Raises InfeasibleError: no slicing of these orders meets the capacities.
    """
    if isinstance(order, str):
        orders = list(ORDERS.values()) if order == "best" else [order_named(order)]
    else:
        orders = [lambda items: order]
    line, _, best = sliced_orders(problem, problem.items, orders, run)
    return interval_blocks(problem, line, best.bounds, best.classes)
