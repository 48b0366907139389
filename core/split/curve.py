"""Splits for several numbers of like devices: what is known of one number holds for others.

Let opt(k) be the least objective of the splits of one validity over k like devices, all else being
equal. A split over k of them is one over k + 1, where one is idle: its blocks, their loads and its
validity are the same. So opt(k + 1) <= opt(k): a split for k is one for every larger number, with
the same objective, and a bound for k is one for every smaller number. Devices are like if they are
of one class, without links or clusters, in which their places differ.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf

from dnnp.core.cost.load_formula import ROUNDING
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.search_context import MethodOptions, Solution


@dataclass
class Curve:
    """Knowledge from searches for fewer devices, and a bound from one for more of them."""

    found: Solution = field(default_factory=lambda: Solution([]))
    """The answer of the last search."""
    count: int = 0
    """Accelerators that it was for."""
    value: float = inf
    first: tuple[int, float] = (0, 0.0)
    """Of the first search the accelerators, and its value times their number."""
    bound: float = 0.0
    """For all numbers that are still to come."""

    def asked(self, problem: SplitProblem, asked: MethodOptions) -> MethodOptions:
        """What is asked, with what is known of it.

        The optimum times the number of devices, which is the work where transfers cost nothing, is
        expected to rise with each device as it did so far.
        """
        found, count, near = self.found, max(_accelerators(problem), 1), 0.0
        known = Solution(problem.searched.own(found.blocks), self.bound, found.method)
        if found.bound >= self.value * (1 - ROUNDING) and problem.options.objective != "gpipe":
            total = self.value * self.count
            rise = (total - self.first[1]) / max(self.count - self.first[0], 1)
            near = (total + rise * (count - self.count)) / count
        return replace(asked, known=known, near=near)

    def take(self, problem: SplitProblem, found: Solution) -> None:
        """Take over what was found for the devices of `problem`."""
        self.found, self.count = found, _accelerators(problem)
        self.value = problem.searched.value(found.blocks)
        self.first = self.first if self.first[0] else (self.count, self.value * self.count)


def _accelerators(problem: SplitProblem) -> int:
    return sum(d.count for d in problem.devices if not d.is_cpu)
