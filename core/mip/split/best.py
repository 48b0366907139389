"""The best split so far, judged by the cost model."""

from __future__ import annotations

import numpy as np

from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.errors import FormatError, InfeasibleError
from dnnp.core.model.plan import Block

VALIDITIES = ("free", "convex", "ordered")
"""What a split can promise, weakest first."""


class Best:
    """The best split of a problem so far, of those with a validity."""

    def __init__(self, problem: SplitProblem, validity: str) -> None:
        self.problem, self.validity = problem, validity
        self.blocks: list[Block] | None = None
        self.value = np.inf

    def offer(self, blocks: list[Block]) -> float:
        """Take a split if it is valid and better; return its objective, inf if it is invalid."""
        try:
            plan = self.problem.plan(blocks)
        except (InfeasibleError, FormatError):
            return np.inf
        if VALIDITIES.index(plan.validity) < VALIDITIES.index(self.validity):
            return np.inf
        if plan.value < self.value:
            self.blocks, self.value = blocks, plan.value
        return plan.value
