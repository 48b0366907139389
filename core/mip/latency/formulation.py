"""What is to be known of a latency problem to make a scheduling model of it and to read answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar

import numpy as np

from dnnp.core.cost.latency import LatencyProblem, Split
from dnnp.core.mip.latency.model import Model
from dnnp.core.mip.latency.windows import Windows, quantum_of_latency, serial, twins
from dnnp.core.model.graph import Ints

S = TypeVar("S", bound=Split)


class Formulation(ABC, Generic[S]):
    """A kind of problem that has a scheduling model.

    Parameters
    ----------
    problem
        What is placed.
    windows
        Bounds for its tasks.
    """

    def __init__(self, problem: LatencyProblem, windows: Windows) -> None:
        self.problem, self.windows = problem, windows
        self.before = twins(problem)
        """i64[D], the device before each that it can change places with, or -1."""
        self.quantum = quantum_of_latency(problem)
        """A number of which all latencies are multiples; 0: none is known."""

    @property
    def crude(self) -> float:
        """A latency that some solution does not exceed, if there is one."""
        return serial(self.problem)

    @property
    def least(self) -> float:
        """No solution has a smaller latency."""
        return self.windows.least

    def value(self, solution: S) -> float:
        """Latency of a solution; FormatError or InfeasibleError if it is not valid."""
        return self.problem.value(solution)

    @abstractmethod
    def model(self, upper: float) -> Model:
        """The model of all solutions with a latency of at most `upper`."""

    @abstractmethod
    def known(self, solution: S) -> object | None:
        """A solution as the rules of the model take it; None if the model has no such one."""

    @abstractmethod
    def solution(self, model: Model, times: Sequence[float], flags: Sequence[float]) -> S | None:
        """What values of the model stand for; None if it has to be solved again without them."""

    def renamed(self, uses: Iterable[int]) -> Ints:
        """i64[D], the name of every device where twins are named in the order of their first use.

        `uses` are devices in the order in which the model's things are on them.
        """
        count = len(self.before)
        rank = {d: i for i, d in enumerate(dict.fromkeys(uses))}
        root = list(range(count))
        for d in range(count):
            if self.before[d] >= 0:
                root[d] = root[self.before[d]]
        names = np.arange(count)
        for r in set(root):
            group = [d for d in range(count) if root[d] == r]
            names[sorted(group, key=lambda d: (rank.get(d, count), d))] = group
        return names
