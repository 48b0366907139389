"""Splits for several numbers of like devices: what is known of one number holds for others.

Let opt(k) be the least objective of the splits of one validity over k like devices, all else being
equal. A split over k of them is one over k + 1, where one is idle: its blocks, their loads and its
validity are the same. So opt(k + 1) <= opt(k), and

- a split for k is one for every larger number, with the same objective;
- a bound for k is one for every smaller number.

Devices are like if they are of one class, without links or clusters, in which their places differ.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf

from dnnp.core.cost.load_formula import ROUNDING
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.plan import Block
from dnnp.core.model.request import Request, Solution


@dataclass
class Curve:
    """Knowledge from searches for fewer devices, and a bound from one for more of them."""

    blocks: list[Block] = field(default_factory=list)
    """The split of the last search; empty: there was none."""
    method: str = ""
    value: float = inf
    count: int = 0
    """Accelerators that it was for."""
    proven: float = 0.0
    """No split for as many has a smaller objective."""
    first: tuple[int, float] | None = None
    """Accelerators of the first search, and its value times their number."""
    rise: float = 0.0
    """Of that product with each accelerator more, in the mean."""
    bound: float = 0.0
    """For all numbers that are still to come."""

    def asked(self, problem: SplitProblem, asked: Request) -> Request:
        """What is asked, with what is known of it.

        The optimum times the number of devices, which is the work where transfers cost nothing, is
        expected to rise with each device as it did so far.
        """
        known = Solution(problem.searched.own(self.blocks), self.bound, self.method)
        best = self.proven >= self.value * (1 - ROUNDING)
        count = max(accelerators(problem), 1)
        total = self.value * self.count + self.rise * (count - self.count)
        near = total / count if best else 0.0
        return replace(asked, known=known, near=near)

    def take(self, problem: SplitProblem, found: Solution) -> None:
        """Take over what was found for the devices of `problem`."""
        self.blocks, self.method = found.blocks, found.method
        self.value = problem.searched.value(found.blocks)
        self.count = accelerators(problem)
        first, total = self.first or (self.count, self.value * self.count)
        self.rise = (self.value * self.count - total) / max(self.count - first, 1)
        self.first = first, total
        self.proven = found.bound


def accelerators(problem: SplitProblem) -> int:
    """Count the accelerators."""
    return sum(d.count for d in problem.devices if not d.is_cpu)
