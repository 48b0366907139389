"""The method `anneal`: annealing from the best ordered split, with or without order."""

from __future__ import annotations

from dnnp.core.cost.problem import SplitProblem
from dnnp.core.local.anneal import anneal
from dnnp.core.model.asked import Asked, Solution
from dnnp.core.model.errors import InfeasibleError, LimitError
from dnnp.core.model.run import PLAIN, Run
from dnnp.core.portfolio.exact import incumbent, start

STARTED = 0.2
"""Share of the whole work that the search for a split to start from is taken for."""


def annealed(problem: SplitProblem, asked: Asked, run: Run = PLAIN) -> Solution:
    """The better of the best ordered split and what annealing makes of it.

    Raises
    ------
    InfeasibleError
        No split that fits was found.
    LimitError
        Too many devices for so many tensors, and no ordered split was found.
    """
    ordered = asked.validity == "ordered"
    begun = run.begin("looking for a start", 0.0, STARTED)
    if ordered:
        first, made = incumbent(problem, asked, begun)[0], "slice"
    else:
        first, made = start(problem, asked, begun)
    try:
        part = run.begin("annealing", STARTED, 1.0)
        blocks = anneal(problem, ordered=ordered, start=first, run=part)
    except (InfeasibleError, LimitError) as error:
        if first is None:
            raise
        if isinstance(error, LimitError):
            run.warn(f"{error}; this is the best ordered split")
        return Solution(first, method=made)
    if first is not None and problem.value(first) < problem.value(blocks):
        # It may have replicas, or need the order of a stage's nodes to fit.
        return Solution(first, method=made)
    return Solution(blocks, method="anneal")
