"""The methods that try many orders: `random`, `brkga`, `mla`, `mla-weighted` (MTPP section 3.3)."""

from __future__ import annotations

from dataclasses import replace

from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.asked import Asked, Solution
from dnnp.core.model.errors import InfeasibleError
from dnnp.core.model.run import PLAIN, Run
from dnnp.core.order.appraise import LENGTH, SLICING
from dnnp.core.portfolio.orders import OrderSpace, evolved_order, random_order
from dnnp.core.portfolio.slices import best_slicing, slice_order


def search_orders(problem: SplitProblem, asked: Asked, run: Run = PLAIN) -> Solution:
    """The best slicing of many orders: drawn at random, or evolved for what the method minimises.

    Raises
    ------
    UsageError
        Too few samples, or no evolution (`Evolution.check`).
    InfeasibleError
        No slicing of any order that was tried meets the capacities.
    """
    space = OrderSpace(problem, weighted=asked.method != "mla")
    if asked.method == "random":
        order = random_order(space, max(round(asked.samples * run.effort), 1), run)
    else:
        generations = max(round(asked.evolution.generations * run.effort), 1)
        how = replace(asked.evolution, generations=generations)
        order = evolved_order(space, how, SLICING if asked.method == "brkga" else LENGTH, run)
    if order is None:
        run.warn(f"{asked.method}: none of its orders can be sliced; this split is by slice")
        try:
            return slice_order(problem, replace(asked, order="kahn"), run)
        except InfeasibleError as error:
            if "no slicing" not in str(error):
                raise
            tried = "infeasible: no slicing of any order that was tried fits"
            raise InfeasibleError(tried) from None
    return Solution(best_slicing(problem, order))
