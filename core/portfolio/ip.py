"""The method `ip`: an integer program, from the best split known."""

from __future__ import annotations

from dnnp.core.bound.simple import simple_bound
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.mip.split.solve import solve_ip
from dnnp.core.model.asked import Asked, Solution
from dnnp.core.model.run import PLAIN, Run
from dnnp.core.portfolio.exact import nothing, start


def ip(problem: SplitProblem, asked: Asked, run: Run = PLAIN) -> Solution:
    """The best split by an integer program, and its bound.

    Raises
    ------
    InfeasibleError
        It is proven that no split fits.
    LimitError
        A limit was reached before there was any split.
    UnavailableError
        The solver is not installed.
    """
    run = run.without_shares()
    begun, made = start(problem, asked, run)
    run.stands("integer program")
    result = solve_ip(
        problem, asked.validity or "ordered", solver=asked.solver, incumbent=begun, run=run
    )
    if result.failure:
        run.warn(f"the solver {result.solver} failed ({result.failure}): the best split so far")
    if result.blocks is None:
        raise nothing(run)
    bound = max(simple_bound(problem), result.bound)
    ran = result.asked
    if result.failure and begun is not None:
        ran = problem.value(result.blocks) < problem.value(begun)
    return Solution(result.blocks, bound, "ip" if ran else made)
