"""The ways to use the devices of a throughput problem, compared by the one cost model.

The whole model on one device; replicas of it, which share the samples; a pipeline of stages on a
device each; and a pipeline of which stages are replicated. A problem that allows as many replicas
as there are devices holds them all, so that a bound of it holds for each.

Let opt(k) be the least objective of the splits of one validity over k like devices, all else being
equal. A split over k of them is one over k + 1, where one is idle: its blocks, their loads and its
validity are the same. So opt(k + 1) <= opt(k): a split for k is one for every larger number, with
the same objective, and a bound for k is one for every smaller number. Devices are like if they are
of one class, without links or clusters, in which their places differ.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import inf
from typing import NamedTuple

import numpy as np

from dnnp.core.bounds.simple import simple_bound
from dnnp.core.cost.load_formula import ROUNDING
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.methods.splits import SPLITS
from dnnp.core.model.device import DeviceClass, device_numbers
from dnnp.core.model.errors import InfeasibleError, LimitError
from dnnp.core.model.plan import CLOSED, Block, Way
from dnnp.core.model.search_context import PLAIN, MethodOptions, SearchContext, Solution
from dnnp.core.split.auto import LINKS, resolved, solve, validity_asked, with_small_peak

SPOKEN = {
    "whole": "whole model", "replicas": "replicas", "pipeline": "pipeline",
    "replicated-pipeline": "replicated pipeline",
}  # fmt: skip
"""Ways, the simplest first (at ties that is the better one), and what people call them."""

WHOLE, REPLICAS, PIPELINE, REPLICATED = WAYS = tuple(SPOKEN)


class _Found(NamedTuple):
    """The best that is known of a way."""

    value: float
    solution: Solution


def way_of(blocks: Iterable[Block]) -> str:
    """The way that a split uses its devices."""
    replicas = [block.replicas for block in blocks if len(block.nodes)]
    if len(replicas) < 2:
        return REPLICAS if sum(replicas) > 1 else WHOLE
    return REPLICATED if sum(replicas) > len(replicas) else PIPELINE


def all_replicas(devices: Iterable[DeviceClass]) -> int:
    """The most devices that a stage can run on: those of one class."""
    return max((device.count for device in devices), default=1)


def whole_blocks(
    problem: SplitProblem, asked: MethodOptions, run: SearchContext = PLAIN
) -> tuple[list[Block], list[str]]:
    """The whole model on one device, for each class that can hold and run it; why others cannot.

    With peak memory the nodes run in an order of small peak, where that matters.
    """
    blocks, reasons = [], []
    nodes = problem.graph.order
    for device in problem.devices:
        block = Block(nodes, device)
        times = problem.units.times.get(device.name)
        runs = times is not None and bool(np.isfinite(times).all())
        if runs and problem.options.memory_model == "peak":
            block = with_small_peak(problem, asked, [block], run)[0]
        try:
            problem.value([block])
        except InfeasibleError as error:
            reasons.append(str(error).removeprefix("infeasible: "))
        else:
            blocks.append(block)
    return blocks, reasons


def with_best_replicas(problem: SplitProblem, block: Block) -> Block:
    """The same block on the number of devices, from 2 to all of its class, at which it is fastest.

    Samples are shared, so that only weights, which training synchronises, speak against the most.
    Without links the objective is a convex function of 1/r (see `dnnp.core.cost.load`), and what is
    not least tells on which side of it the least one is. With links each number of devices is
    tried, on those that are joined best. At ties the fewest devices.
    """

    def at(replicas: int) -> float:
        return problem.value([block._replace(replicas=replicas)])

    low = high = block.device.count
    if problem.graph.backward.any():
        low = 2
        if problem.links:
            tried = [_best_joined(problem, block, r) for r in range(low, high + 1)]
            return min(tried, key=lambda b: problem.value([b]))
    while low < high:
        middle = (low + high) // 2
        if at(middle) <= at(middle + 1):
            high = middle
        else:
            low = middle + 1
    return block._replace(replicas=low)


def _best_joined(problem: SplitProblem, block: Block, replicas: int) -> Block:
    """The block on so many devices in a row whose slowest path is the fastest."""
    rate, mine = problem.machine.rate, device_numbers(problem.machine, block.device.name)
    rows = [mine[i : i + replicas] for i in range(len(mine) - replicas + 1)]
    slowest = [float(rate[np.ix_(row, row)].max()) for row in rows]
    return block._replace(replicas=replicas, number=int(np.argmin(slowest)))


def faster_replicas(problem: SplitProblem, below: float) -> tuple[float, int] | None:
    """Value and number of plain replicas of the whole model, if that is less than `below`."""
    found = None
    for block in whole_blocks(problem, MethodOptions(), PLAIN.scaled(0.0))[0]:
        if block.device.count > 1:
            block = with_best_replicas(problem, block)
            value = problem.value([block])
            if value < below:
                below, found = value, (value, block.replicas)
    return found


def compare_ways(
    problem: SplitProblem, asked: MethodOptions, run: SearchContext = PLAIN
) -> tuple[Solution, tuple[Way, ...]]:
    """The fastest of all ways, at ties the simplest, with a bound that holds for all of them.

    `problem` allows as many replicas as there are devices of a class (`all_replicas`).

    Raises
    ------
    InfeasibleError
        No way fits.
    LimitError
        A limit was reached before there was any split.
    UnavailableError, UsageError
        See `solve`.
    """
    if not problem.graph.n:
        return solve(problem, asked, run), ()
    search = _Search(problem, asked, run)
    search.plain()
    search.searched()
    return search.compared()


class _Search:
    """The best split of each way so far."""

    def __init__(self, problem: SplitProblem, asked: MethodOptions, run: SearchContext) -> None:
        self.problem, self.asked, self.run = problem, asked, run
        self.found: dict[str, _Found] = {}
        self.reasons: dict[str, str] = {}
        self.bound = simple_bound(problem.unlinked)
        self.failure: Exception | None = None

    @property
    def best(self) -> str:
        """The fastest way so far, at ties the simplest."""
        least = min(found.value for found in self.found.values())
        near = (way for way in WAYS if way in self.found)
        return next(way for way in near if self.found[way].value <= least * (1 + CLOSED))

    def plain(self) -> None:
        """The whole model, and replicas of it: they need no search."""
        blocks, reasons = whole_blocks(self.problem, self.asked, self.run)
        for block in blocks:
            self.take(Solution([block], method=WHOLE))
            if block.device.count > 1:
                replicas = with_best_replicas(self.problem, block)
                self.take(Solution([replicas], method=REPLICAS))
        if not blocks:
            self.reasons = dict.fromkeys((WHOLE, REPLICAS), "; ".join(reasons))
        elif REPLICAS not in self.found:
            self.reasons[REPLICAS] = "no class that holds the model has two devices"

    def searched(self) -> None:
        """Stages on a device each; then stages that may be replicated."""
        problem, asked = self.problem, self.asked
        method = resolved(asked.method, validity_asked(asked.method, asked.validity))
        several = problem.options.max_replicas > 1
        single = problem.with_options(replace(problem.options, max_replicas=1))
        self.search(single, PIPELINE, self.run.part(0.5) if several else self.run)
        if not several:
            self.reasons[REPLICATED] = "no class has two devices"
        elif "max-replicas" not in SPLITS[method].heeds:
            self.reasons[REPLICATED] = f"method {asked.method} makes no replicas"
        elif self.found and self.found[self.best].value <= self.bound * (1 + ROUNDING):
            self.reasons[REPLICATED] = self.slower(proven=True)
        else:
            self.search(problem, REPLICATED, self.run)
            if problem.links and asked.method == "auto" and PIPELINE in self.found:
                from dnnp.core.split.annealing.linked import heed_links

                better = heed_links(problem, self.found[PIPELINE].solution.blocks, self.run)
                self.take(Solution(better, method=LINKS))

    def search(self, problem: SplitProblem, way: str, run: SearchContext) -> None:
        """Find the best split of a problem, which may turn out to be one of a simpler way."""
        try:
            solution = solve(problem, self.asked, run)
        except (InfeasibleError, LimitError) as error:
            self.reasons[way] = str(error).removeprefix("infeasible: ")
            self.failure = error
            return
        if problem.options.max_replicas == self.problem.options.max_replicas:
            self.bound = max(self.bound, solution.bound)
        made = self.take(solution)
        if way not in self.found:
            value = self.found[made].value
            self.reasons[way] = self.slower(proven=solution.bound >= value * (1 - CLOSED))

    def slower(self, *, proven: bool) -> str:
        """The reason why there is no split of a way that was searched."""
        return f"none {'is' if proven else 'was found that is'} faster than the {SPOKEN[self.best]}"

    def take(self, solution: Solution) -> str:
        """Keep a split if it is the best of its way; returns the way."""
        way, value = way_of(solution.blocks), self.problem.value(solution.blocks)
        if way not in self.found or value < self.found[way].value:
            self.found[way] = _Found(value, solution)
        return way

    def compared(self) -> tuple[Solution, tuple[Way, ...]]:
        """The best of all."""
        if not self.found:
            raise self.failure or InfeasibleError("infeasible: no split fits")
        value, solution = self.found[self.best]
        solution = replace(solution, bound=min(self.bound, value))
        return solution, tuple(map(self.shown, WAYS))

    def shown(self, name: str) -> Way:
        """The record of a way."""
        if name not in self.found:
            return Way(name, reason=self.reasons[name])
        value, solution = self.found[name]
        used = [block for block in solution.blocks if len(block.nodes)]
        devices = sum(block.replicas for block in used)
        held_by = used[0].device.name if len(used) == 1 else ""
        return Way(name, value, len(used), devices, held_by)


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
        """The options of the search, with the expected optimum.

        The optimum times the number of devices, which is the work where transfers cost nothing, is
        expected to rise with each device as it did so far.
        """
        found, count, near = self.found, max(_accelerators(problem), 1), 0.0
        known = replace(found, blocks=problem.searched.own(found.blocks), bound=self.bound)
        if found.bound >= self.value * (1 - ROUNDING) and problem.options.objective != "gpipe":
            total = self.value * self.count
            rise = (total - self.first[1]) / max(self.count - self.first[0], 1)
            near = (total + rise * (count - self.count)) / count
        return replace(asked, known=known, near=near)

    def take(self, problem: SplitProblem, found: Solution) -> None:
        """Take over what was found for the devices of `problem`."""
        widest = min(found.widest, self.found.widest)
        self.found, self.count = replace(found, widest=widest), _accelerators(problem)
        self.value = problem.searched.value(found.blocks)
        self.first = self.first if self.first[0] else (self.count, self.value * self.count)


def _accelerators(problem: SplitProblem) -> int:
    return sum(d.count for d in problem.devices if not d.is_cpu)
