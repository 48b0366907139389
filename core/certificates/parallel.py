"""Verify the bound of a parallel plan: all pipelines of few items, from the last stage on.

Items are units that share a colour, or wait for each other in the order of the pipeline. For every
set of items that holds all that follows them, and every number of replicas in its stages, the
fewest devices are kept that run it in stages below the limit.
"""

from __future__ import annotations

from dataclasses import replace
from math import fsum, inf

from dnnp.core.certificates.exact import (
    Budget,
    UncheckedError,
    UnprovenError,
    bits,
    color_pairs,
    components,
    edges_of,
    ideals,
)
from dnnp.core.check.load import PlanCase
from dnnp.core.check.parallel import Sharded, stage_cost
from dnnp.core.check.violation import TOLERANCE, above, fits
from dnnp.core.model.plan import HybridOptions


def prove_parallel(case: PlanCase, claim: float, budget: Budget) -> str:
    """Prove that no parallel plan has a value below a claim; return the argument.

    Raises
    ------
    UnprovenError
        There is a plan with less.
    UncheckedError
        It takes too many steps, or the plan allows what is not covered here: shared stages,
        clusters, forward passes of which a part runs again, rules that others do not keep.
    """
    options, plan = case.plan.hybrid, case.plan
    if options is None or options.shared_stages or plan.links or len(plan.devices) != 1:
        raise UncheckedError("no search covers its devices and shared stages")
    search = _Pipelines(case, options, claim * (1 - TOLERANCE), budget)
    if plan.devices[0].levels or (search.stated and options.recompute == "auto") or not plan.stages:
        raise UncheckedError("no search covers its clusters, or stages that run in part again")
    if not above(claim, search.work() / search.devices):
        return "work"
    for turned in (False, True) if case.tables.training else (False,):
        found = search.below(*_items(case, turned=turned))
        if found is not None:
            error, free = (UncheckedError, " without rules") if plan.rules else (UnprovenError, "")
            raise error(f"there is a plan{free} with the value {found!r}")
    return "search"


def _items(case: PlanCase, *, turned: bool) -> tuple[list[list[int]], list[int]]:
    """Nodes of each item, and the items in stages not before its own, as bit masks.

    Forward edges lead on; backward edges too, or back if `turned`.
    """
    of_node = case.units.of_node
    edges = edges_of(case.tables, of_node, turned=turned)
    together = color_pairs(of_node, case.graph.color.tolist())
    owner = components(len(case.units.ids), edges | together)
    number = {x: i for i, x in enumerate(dict.fromkeys(owner))}
    nodes: list[list[int]] = [[] for _ in number]
    for v, unit in enumerate(of_node):
        nodes[number[owner[unit]]].append(v)
    after = [0] * len(number)
    for a, b in edges:
        if owner[a] != owner[b]:
            after[number[owner[a]]] |= 1 << number[owner[b]]
    return nodes, after


class _Pipelines:
    """A plan's graph, the ways to use devices, and the limit."""

    def __init__(
        self, case: PlanCase, options: HybridOptions, limit: float, budget: Budget
    ) -> None:
        self.case, self.limit, self.budget, self.options = case, limit, budget, options
        self.device = case.plan.devices[0]
        self.stated = case.graph.shards is not None and case.graph.shards.again is not None
        self.devices = max(min(self.device.count, case.plan.k), 1)
        self.sharded = Sharded(case, self.device)
        most = min(options.data_parallel, options.micro_batches, self.devices)
        self.teams = [
            (t, d)
            for t in self.sharded.degrees
            for d in range(1, most + 1)
            if t <= options.tensor_parallel and t * d <= self.devices
            if options.micro_batches % d == 0
        ]

    def work(self) -> float:
        """Least time of all nodes on all devices together."""
        degrees, nodes = {t for t, _ in self.teams}, range(self.case.graph.n)
        self.budget.spend(20 * len(degrees) * len(nodes))
        kinds = (False, True) if self.options.recompute != "none" else (False,)
        return fsum(
            min(t * self.sharded.node(v, t, again=a).time for t in degrees for a in kinds)
            for v in nodes
        )

    def below(self, nodes: list[list[int]], after: list[int]) -> float | None:
        """Value of a plan below the limit; None: there is none."""
        ends = ideals(after, self.budget)
        fewest: dict[int, dict[int, tuple[int, float]]] = {0: {0: (0, 0.0)}}
        for small in ends:
            self.budget.spend(len(ends))
            for large in ends if small in fewest else ():
                if small & large == small and small != large:
                    block = sorted(v for i in bits(large & ~small) for v in nodes[i])
                    self._extend(fewest[small], fewest.setdefault(large, {}), block)
        return min((value for _, value in fewest.get(ends[-1], {}).values()), default=None)

    def _extend(
        self,
        small: dict[int, tuple[int, float]],
        large: dict[int, tuple[int, float]],
        block: list[int],
    ) -> None:
        """Put a stage of some nodes before those of a set."""
        plan, tables = self.case.plan, self.case.tables
        room = inf if plan.options.memory_mode == "ignore" else self.device.memory_bytes
        ahead = tuple(tables.ids[v] for v in block if self.stated or not tables.backward[v])
        kinds = {"none": [False], "full": [True]}.get(self.options.recompute, [False, True])
        choices = {ahead if again else () for again in kinds}
        for t, d in self.teams:
            for later, (used, value) in sorted(small.items()):
                total, devices = later + d, used + t * d
                if devices > self.devices or total > self.options.micro_batches:
                    continue
                for again in sorted(choices):
                    self.budget.spend(20 * len(block))
                    stage = replace(plan.stages[0], shards=t, replicas=d, recomputed=again)
                    cost, *_ = stage_cost(self.sharded, plan, stage, block, later)
                    if cost.load_s < self.limit and fits(cost.memory_bytes, room):
                        most = devices, max(value, cost.load_s)
                        large[total] = min(large.get(total, most), most)
