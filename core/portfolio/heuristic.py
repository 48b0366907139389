"""The method `heuristic`: the best split that can be found without a proof.

The start is the best slicing of the usual orders; all there is improves it
(`dnnp.core.portfolio.improve`). The bound is one that costs little.
"""

from __future__ import annotations

from dnnp.core.bound.simple import simple_bound
from dnnp.core.cost.combine import ROUNDING
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.asked import Asked, Solution
from dnnp.core.model.errors import InfeasibleError
from dnnp.core.model.run import PLAIN, Run
from dnnp.core.portfolio.exact import SLICED, quick_bound, start
from dnnp.core.portfolio.improve import improved
from dnnp.core.portfolio.slices import slice_order


def heuristic(problem: SplitProblem, asked: Asked, run: Run = PLAIN) -> Solution:
    """All heuristics, and a bound that costs little.

    Raises
    ------
    InfeasibleError
        No split that fits was found.
    """
    try:
        blocks = slice_order(problem, asked, run.begin("slicing", 0.0, SLICED)).blocks
    except InfeasibleError:
        begun = start(problem, asked, run.without_shares())[0]
        if begun is None:
            raise
        blocks = begun
    value = problem.value(blocks)
    run.keep(blocks, value, "slice")
    run.tell(f"start: {run.shown(value)}")
    if run.stop():
        return Solution(blocks, method="slice")
    run.stands("bounding")
    floor = quick_bound(problem, simple_bound(problem), value)
    run.stands(bound=floor)
    part = run.begin("evolving orders", SLICED, 1.0)
    return Solution(improved(problem, blocks, value, floor * (1 + ROUNDING), part)[0], floor)
