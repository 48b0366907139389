"""The best split so far, judged by the cost model."""

from __future__ import annotations

import numpy as np

from dnnp.core.cost.problem import SplitProblem
from dnnp.core.cost.validity import VALIDITIES
from dnnp.core.model.plan import Block
from dnnp.core.solver.search import Best


def best_split(problem: SplitProblem, validity: str) -> Best[list[Block]]:
    """The best split of a problem so far, of those with a validity; none yet."""

    def judge(blocks: list[Block]) -> float:
        plan = problem.plan(blocks)
        weak = VALIDITIES.index(plan.validity) < VALIDITIES.index(validity)
        return np.inf if weak else plan.value

    return Best(judge)
