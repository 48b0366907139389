"""Pipelines over clusters of accelerators with faster links inside (2020 paper, Appendix C.3).

What is searched: pipelines that give every cluster one contiguous segment, the meaning of
PipeDream and of the paper. Stages on CPUs may stand anywhere, also between stages of one cluster;
transfers with them take the outer link. The search is exact for the pipelines along a lattice of
ideals, which may be that of a single order.

A stage may run on several devices of its cluster, or on those of several clusters, which it then
has to itself. A target, or one for each pass (gpipe), is decided by
`dnnp.core.split.clusters.segments`. The least target with every transfer between stages on the
inner link comes first: nothing is below it. A feasible target gives a better split, one that is not
gives the least load above it that was met; between both the interval is halved. The objective gpipe
has a target for each pass, and the front of what both can be is walked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np

from dnnp.core.cost.items import LinearizedItems
from dnnp.core.cost.load import stage_load
from dnnp.core.cost.load_formula import LARGEST, ROUNDING
from dnnp.core.cost.problem import SplitProblem, link_levels
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.graph import Floats
from dnnp.core.model.plan import Block
from dnnp.core.model.search_context import SearchContext
from dnnp.core.split.clusters import segments
from dnnp.core.split.clusters.edges import Arcs, make_arcs
from dnnp.core.split.clusters.segment import NONE, cover, look_back, make_scratch
from dnnp.core.split.clusters.segments import IN_CLUSTER, IN_CLUSTERS, ON_CPUS, Platform, least_load
from dnnp.core.split.ideals.decide import Goal
from dnnp.core.split.ideals.lattice import Lattice
from dnnp.core.split.ideals.problem import PricedGraph

ENDS_STEPS = 1_000_000_000
"""Steps of a bound by ends of clusters, about a second without a look at the deadline."""

SETTLED = 0.05
"""Share of the blocks that are tried at most, after which a small gap need not be closed."""

CHUNK = 30_000_000
"""Blocks tried between two questions whether to stop; nanoseconds each."""


class Part(NamedTuple):
    """One stage: items of a line, and where they run."""

    items: Sequence[int]
    device_class: int
    number: int
    """Number of the first device."""
    replicas: int = 1


class ClusterSplit(NamedTuple):
    """A split and its value."""

    value: float
    blocks: list[Block]


class LatticeOutcome(NamedTuple):
    """Best split along the ideals of a lattice, and bounds for links of its level."""

    best: ClusterSplit | None
    """The best split known."""
    flat: float
    """No split is below, wherever its clusters are."""
    low: float
    """No split with contiguous clusters is below."""


@dataclass(frozen=True, eq=False)
class ClusterCase:
    """Problem and budget of a search over clusters."""

    problem: SplitProblem
    """Its devices: the accelerators in clusters, and the CPUs if there are any."""
    max_steps: float
    """Blocks tried in the segments of one lattice."""
    run: SearchContext
    level: int = 0
    """Level of the clusters with contiguous segments; all links within them are taken to be
    alike, and so are those beyond."""

    @property
    def accelerator(self) -> DeviceClass:
        """The class in clusters."""
        return self.problem.devices[0]

    @property
    def size(self) -> int:
        """Devices of a cluster; links that are all alike make one of all."""
        device = self.accelerator
        alike = device.link_factors[self.level] == 1
        return device.count if alike else device.levels[self.level].size

    @property
    def passes(self) -> int:
        """Numbers that add up to the objective."""
        return 2 if self.problem.options.objective == "gpipe" else 1

    @property
    def cpus(self) -> int:
        """Number of CPUs."""
        return sum(d.count for d in self.problem.devices[1:])


def better(best: ClusterSplit | None, other: ClusterSplit | None) -> ClusterSplit | None:
    """The better of two splits, the first if they are equal."""
    if best is None or other is None:
        return best or other
    return other if other.value < best.value else best


def priced(
    case: ClusterCase, line: LinearizedItems, parts: Sequence[Part]
) -> tuple[ClusterSplit, Floats]:
    """A split from its parts, and the largest load of each pass, f64[P]."""
    problem, graph = case.problem, case.problem.graph
    blocks = []
    for part in parts:
        nodes, device = line.nodes_of(graph, part.items), problem.devices[part.device_class]
        blocks.append(Block(nodes, device, part.replicas, part.number))
    loads = []
    for block, near in zip(blocks, link_levels(graph, blocks), strict=True):
        cost = stage_load(
            graph, problem.units, block.nodes, block.device, problem.options, block.replicas, near
        )
        passes = (cost.forward_s or 0.0, cost.backward_s or 0.0)
        loads.append(passes if case.passes == 2 else (cost.load_s,))
    largest = np.array(loads).max(axis=0)
    return ClusterSplit(float(largest.sum()), blocks), largest


def search(
    case: ClusterCase, line: LinearizedItems, lattice: Lattice, best: ClusterSplit | None
) -> LatticeOutcome | None:
    """Best split along a lattice of the line's positions; None if it has too many blocks."""
    size, copies = case.size, case.problem.options.max_replicas
    limit = np.inf if best is None else best.value
    if not np.isfinite(line.work).any(axis=0).all():
        return LatticeOutcome(best, limit, limit)
    found = make_arcs(
        case.problem.graph,
        line,
        case.problem.options,
        lattice,
        limit,
        level=case.level,
        spans=copies > size,
    )
    if found is None:
        return None
    full, rest = divmod(case.accelerator.count, size)
    most = line.n * copies
    platform = Platform(min(size, most), min(full, most), min(rest, most), min(case.cpus, most))
    pipelines = _Pipelines(case, line, lattice, *found, platform)
    flat = _Flat(pipelines, limit)
    low = least(flat, 0.0)
    if low == np.inf:
        return LatticeOutcome(best, limit, limit)
    apart = together = low
    if copies == 1 and case.passes == 1 and len(case.accelerator.levels) == 1:
        steps = min(case.max_steps, ENDS_STEPS)
        apart = max(low, pipelines.with_ends(limit, full + 1, steps))
        together = max(apart, pipelines.with_ends(limit, 1, steps))
    clustered = _Clustered(pipelines, best)
    try:
        bound = least(clustered, together)
    except OutError:
        bound = max(together, clustered.low)
    return LatticeOutcome(clustered.best, min(apart, clustered.value), min(bound, clustered.value))


class _Flat:
    """Decides as if all devices were in one cluster."""

    def __init__(self, pipelines: _Pipelines, value: float) -> None:
        self.pipelines, self.value, self.low = pipelines, value, 0.0
        self.passes = pipelines.case.passes

    def decide(self, target: Floats, vary: int) -> tuple[float | None, float]:
        """See `Decider`."""
        goal = Goal(target, vary, np.array([np.inf, 0.0]))
        if self.pipelines.fewest(goal) <= self.pipelines.case.accelerator.count:
            return float(target[vary]), np.inf
        return None, float(goal.above[0])


class _Clustered:
    """Decides over splits with contiguous clusters, and keeps the best."""

    def __init__(self, pipelines: _Pipelines, best: ClusterSplit | None) -> None:
        self.pipelines, self.best, self.low = pipelines, best, 0.0
        self.value = np.inf if best is None else best.value
        self.passes, self.steps = pipelines.case.passes, 0

    def decide(self, target: Floats, vary: int) -> tuple[float | None, float]:
        """See `Decider`."""
        case, pipelines = self.pipelines.case, self.pipelines
        goal = Goal(target, vary, np.array([np.inf, 0.0]))
        limit = case.max_steps - self.steps
        if self.steps > SETTLED * case.max_steps and case.run.gap_reached(self.value, self.low):
            raise OutError
        feasible = pipelines.probe(goal, lambda spent: spent > limit or case.run.stop())
        self.steps += pipelines.steps
        case.run.report_progress(share=min(self.steps / max(case.max_steps, 1), 1.0))
        if feasible is None:
            raise OutError
        if not feasible:
            return None, float(goal.above[0])
        parts = pipelines.trace(goal)
        found, largest = priced(case, pipelines.line, parts)
        if len(case.accelerator.levels) > 1:
            # What the target is about: of all links, only those of one level are faster.
            largest = priced(_one_level(case), pipelines.line, parts)[1]
        self.best = better(self.best, found)
        self.value = min(self.value, found.value)
        case.run.report_incumbent(found.blocks, found.value, "exact")
        case.run.report_progress(value=found.value)
        return float(largest[vary]), np.inf


def _one_level(case: ClusterCase) -> ClusterCase:
    """The same case on devices that have no clusters but those of its level."""
    device, level = case.accelerator, case.accelerator.levels[case.level]
    only = replace(
        device,
        cluster_size=level.size,
        inner_bandwidth_bytes_per_s=level.bandwidth_bytes_per_s,
        larger_clusters=(),
    )
    return replace(case, problem=case.problem.with_devices(only, *case.problem.devices[1:]))


class _Pipelines:
    """Pipelines over the ideals of one lattice."""

    def __init__(
        self,
        case: ClusterCase,
        line: LinearizedItems,
        lattice: Lattice,
        costs: PricedGraph,
        arcs: Arcs,
        platform: Platform,
    ) -> None:
        self.case, self.line, self.lattice = case, line, lattice
        self.costs, self.arcs, self.platform = costs, arcs, platform
        self.scratch = make_scratch(arcs, platform.cpus)
        count, width = len(arcs.bits), platform.cpus + 1
        self.after = np.empty((count, width), dtype=np.int64)
        self.clusters, self.came, self.how = np.empty((3, count, 2, width), dtype=np.int64)
        self.steps = 0

    def fewest(self, goal: Goal) -> int:
        """Accelerators that a target takes with every transfer on the inner link."""
        segments.fewest(self.costs, self.arcs, goal, self.after, self.scratch)
        return int(self.after[0, -1])

    def with_ends(self, limit: float, most_open: int, steps: float) -> float:
        """Least load where the ends of a cluster pay; see `least_load`."""
        return least_load(
            self.costs, self.arcs, self.platform, self.scratch, limit, most_open, steps
        )

    def probe(self, goal: Goal, enough: Callable[[int], bool]) -> bool | None:
        """True if a target can be met; None: not clear after `enough` steps."""
        self.fewest(goal)
        self.clusters[:] = NONE
        self.steps = first = 0
        while first < len(self.after):
            if self.steps and enough(self.steps):
                return None
            first, spent = segments.probe(
                self.costs,
                self.arcs,
                self.platform,
                goal,
                self.after,
                self.clusters,
                self.came,
                self.how,
                first,
                CHUNK,
                self.scratch,
            )
            self.steps += spent
        return bool(self.clusters[-1, :, -1].min() <= self.platform.full)

    def trace(self, goal: Goal) -> list[Part]:
        """The parts of the pipeline that met the target, in order.

        Full clusters are used in that order, and the one that is not full is the last; a stage
        that runs in it and in others takes the last ones of these.
        """
        stretches, at = [], len(self.after) - 1
        used, cpus = 1, self.platform.cpus
        while at > 0:
            start, how = int(self.came[at, used, cpus]), int(self.how[at, used, cpus])
            kind, more = how % 4, how // 4
            if kind == ON_CPUS:
                stretches.append(_Stretch([_Stage(start, at, more, on_cpu=True)]))
                cpus -= more
            elif kind == IN_CLUSTER:
                inside, odd = divmod(more, 2)
                stages = self._segment(start, at, goal, inside, odd=odd > 0)
                stretches.append(_Stretch(stages, 1 - odd, odd > 0))
                cpus, used = cpus - inside, used - odd
            else:
                odd = kind - IN_CLUSTERS
                full = -(-(more - odd * self.platform.rest) // self.case.size)
                stretches.append(_Stretch([_Stage(start, at, more)], full, odd > 0))
                used -= odd
            at = start
        return self._numbered(stretches[::-1])

    def _numbered(self, stretches: Sequence[_Stretch]) -> list[Part]:
        size, parts = self.case.size, list[Part]()
        full = self.case.accelerator.count // size
        cluster = cpus = 0
        for stretch in stretches:
            device = size * (full - stretch.full if stretch.odd else cluster)
            for stage in stretch.stages:
                number, device_class = (cpus, 1) if stage.on_cpu else (device, 0)
                items = self.lattice.between(stage.start, stage.end)
                parts.append(Part(items, device_class, number, stage.replicas))
                if stage.on_cpu:
                    cpus += stage.replicas
                else:
                    device += stage.replicas
            cluster += 0 if stretch.odd else stretch.full
        return parts

    def _segment(self, start: int, end: int, goal: Goal, inside: int, *, odd: bool) -> list[_Stage]:
        """The stages of one cluster's segment."""
        s, arcs, platform = self.scratch, self.arcs, self.platform
        look_back(self.costs, arcs, end, goal, platform.size, s)
        most = platform.rest if odd else platform.size
        cover(self.costs, arcs, start, end, goal, most, inside, s)
        stages, at = list[_Stage](), end
        while at != start:
            e = int(s.came[at])
            before = int(arcs.tail[e] if e >= 0 else arcs.cpu_tail[-2 - e])
            stages.append(_Stage(before, at, int(s.spent[at]) if e >= 0 else 1, on_cpu=e < 0))
            at = before
        return stages[::-1]


class _Stage(NamedTuple):
    """A block between two ideals, and its devices."""

    start: int
    end: int
    replicas: int
    on_cpu: bool = False


class _Stretch(NamedTuple):
    """Stages of a cluster, on CPUs between clusters, or, one stage, in several clusters."""

    stages: list[_Stage]
    full: int = 0
    """Full clusters."""
    odd: bool = False
    """The one that is not full is among them."""


class OutError(Exception):
    """The budget is spent, or the run is to stop."""


class Decider(Protocol):
    """Decides whether a target can be met."""

    value: float
    """The least objective known."""
    low: float
    """No objective is below."""
    passes: int

    def decide(self, target: Floats, vary: int) -> tuple[float | None, float]:
        """The largest load of pass `vary` in what meets the target (f64[P]), or None; and the
        least load of it above the target that was met.

        Raises OutError: the budget is spent.
        """


def least(decider: Decider, low: float) -> float:
    """The least objective, of which `low` is a bound; inf: there is no split.

    Nothing is looked for above `decider.value`. On `OutError`, `decider.low` is proven.
    """
    decider.low = low
    if decider.passes == 1:
        found, _ = _least(decider, np.array([np.inf]), 0, low, decider.value)
        return min(found, decider.value)
    # Along the Pareto front: the least backward load for each limit of the forward load.
    ahead_s, _ = _least(decider, np.full(2, np.inf), 0, 0.0, np.inf)
    limit, behind_s = np.inf, 0.0
    while ahead_s < np.inf:
        decider.low = max(low, min(decider.value, ahead_s + behind_s))
        cutoff = (decider.value - ahead_s) * (1 - ROUNDING)
        if behind_s >= cutoff:
            break
        reached, _ = decider.decide(np.array([limit, cutoff]), 1)
        if reached is None:
            break
        _, behind_s = _least(decider, np.array([limit, np.inf]), 1, behind_s, reached)
        most = np.array([np.inf, behind_s * (1 + ROUNDING)])
        _, reached = _least(decider, most, 0, ahead_s, limit)
        decider.value = min(decider.value, reached + behind_s)
        if not reached * (1 - ROUNDING) < limit:
            return decider.low  # the front goes on, but rounding hides where
        limit = reached * (1 - ROUNDING)
        if limit < ahead_s * (1 - ROUNDING):
            break
    return max(decider.value, low)


def _least(
    decider: Decider, target: Floats, vary: int, low: float, high: float
) -> tuple[float, float]:
    """Least target of a pass between a bound and what is reached, the others as given.

    Returns (bound, what is reached). Each step doubles the target, halves the interval or ends.
    """
    target, goal = target.copy(), low
    while high - low > ROUNDING * high or (high == np.inf and low < np.inf):
        target[vary] = goal
        reached, above = decider.decide(target, vary)
        if reached is not None:
            high = min(goal, reached, LARGEST)
        else:
            low = max(above, float(np.nextafter(goal, np.inf)))
            if decider.passes == 1:
                decider.low = min(low, high)
        if high < np.inf:
            goal = low + (high - low) / 2
        else:
            goal = 2 * low if low > 0 and goal < np.inf else np.inf
    return low, high
