"""What is to be known of a latency problem to make a scheduling model of it and to read answers."""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Generic, TypeVar

import numpy as np

from dnnp.core.cost.latency import LatencyProblem, Split
from dnnp.core.latency.ip.windows import Windows, quantum_of_latency, serial, twins
from dnnp.core.model.graph import Ints
from dnnp.core.solver.scheduling_model import Model

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


def in_order(
    when: Mapping[int, float], edges: Iterable[tuple[int, int]]
) -> tuple[list[int], set[int]]:
    """Keys of `when` in order, and those that wait for each other.

    Among the keys whose predecessors are done, the one with the least value is next; ties go to
    the least key. The middle of an interval is a good value: of two that do not overlap it is in
    the right order even if their ends are rounded, unless both take no time. The second
    result has the members of cycles and what lies between these.
    """
    after: dict[int, list[int]] = {v: [] for v in when}
    before: dict[int, list[int]] = {v: [] for v in when}
    for a, b in set(edges):
        after[a].append(b)
        before[b].append(a)
    waiting = {v: len(before[v]) for v in when}
    ready = [(when[v], v) for v in when if not waiting[v]]
    heapq.heapify(ready)
    done = []
    while ready:
        v = heapq.heappop(ready)[1]
        done.append(v)
        for w in after[v]:
            waiting[w] -= 1
            if not waiting[w]:
                heapq.heappush(ready, (when[w], w))
    left = set(when) - set(done)
    # Take away what only waits, from its end.
    pending = [v for v in left if not left & set(after[v])]
    while pending:
        v = pending.pop()
        left.discard(v)
        pending += [u for u in before[v] if u in left and not left & set(after[u])]
    return done, left
