"""Pipelines over clusters of accelerators with faster links inside (2020 paper, Appendix C.3).

What is searched: pipelines that give every cluster one contiguous segment, the meaning of
PipeDream and of the paper. Stages on CPUs may stand anywhere, also between stages of one cluster;
transfers with them take the outer link. The search is exact for the pipelines along a lattice of
ideals, which may be that of a single order.

A target is decided by `dnnp.core.dp.segments`. The least target with every transfer between
stages on the inner link comes first: nothing is below it. A feasible target gives a better
split, one that is not gives the least load above it that was met.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dnnp.core.cost.combine import ROUNDING
from dnnp.core.cost.line import Line
from dnnp.core.cost.load import stage_load
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.dp import segments
from dnnp.core.dp.arcs import Arcs, Costs, make_arcs, make_costs
from dnnp.core.dp.boundary import NONE, look_back, make_scratch
from dnnp.core.dp.lattice import Lattice
from dnnp.core.dp.segments import Platform
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.graph import Floats, distinct
from dnnp.core.model.plan import Block
from dnnp.core.model.run import Run

CHUNK = 30_000_000
"""Blocks tried between two questions whether to stop; nanoseconds each."""


class ClusterSplit(NamedTuple):
    """A split and its value."""

    value: float
    blocks: list[Block]


class LatticeOutcome(NamedTuple):
    """What the search of one lattice proved, for splits along its ideals."""

    best: ClusterSplit | None
    """The best split known."""
    flat: float
    """No split is below, wherever its clusters are."""
    low: float
    """No split with contiguous clusters is below."""


@dataclass(frozen=True, eq=False)
class ClusterCase:
    """What is to be split, and on what."""

    problem: SplitProblem
    """Its devices: the accelerators in clusters, and the CPUs if there are any."""
    max_steps: float
    """Blocks tried in the segments of one lattice."""
    run: Run

    @property
    def accelerator(self) -> DeviceClass:
        """The class in clusters."""
        return self.problem.devices[0]

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
    case: ClusterCase, line: Line, parts: Sequence[tuple[Iterable[int], int, int]]
) -> ClusterSplit:
    """A split from the items, class and device number of each block."""
    problem, graph = case.problem, case.problem.graph
    blocks = []
    for items, c, number in parts:
        nodes = np.concatenate([line.nodes[line.node_ptr[i] : line.node_ptr[i + 1]] for i in items])
        if graph.backward.any():
            # An item holds nodes of both passes, which run far apart in time.
            nodes = nodes[np.argsort(graph.rank[nodes])]
        blocks.append(Block(nodes, problem.devices[c], 1, number))
    cluster = np.full(graph.n, -1, dtype=np.int64)
    for block in blocks:
        if not block.device.is_cpu:
            cluster[block.nodes] = block.number // block.device.cluster_size
    value = 0.0
    for block in blocks:
        near = None if block.device.is_cpu else cluster == cluster[block.nodes[0]]
        cost = stage_load(
            graph, problem.units, block.nodes, block.device, problem.options, near=near
        )
        value = max(value, cost.load_s)
    return ClusterSplit(value, blocks)


def search(
    case: ClusterCase, line: Line, lattice: Lattice, best: ClusterSplit | None
) -> LatticeOutcome | None:
    """Best split along a lattice of the line's positions; None if it has too many blocks."""
    costs = make_costs(case.problem.graph, line, case.problem.options)
    limit = np.inf if best is None else best.value
    arcs = make_arcs(costs, lattice, limit)
    if arcs is None:
        return None
    device, n = case.accelerator, line.n
    full, rest = divmod(device.count, device.cluster_size)
    platform = Platform(min(device.cluster_size, n), min(full, n), min(rest, n), min(case.cpus, n))
    pipelines = _Pipelines(costs, arcs, platform)
    values = distinct(np.concatenate([arcs.load, arcs.cpu_load]))
    flat = _least(values, lambda target: pipelines.fewest(target) <= device.count)
    if flat is None:
        return LatticeOutcome(best, limit, limit)
    low, high, target, steps = flat, limit, flat, 0
    while high - low > ROUNDING * high or best is None:
        limits = case.max_steps - steps
        feasible = pipelines.probe(target, lambda spent: spent > limits or case.run.stop())  # noqa: B023
        steps += pipelines.steps
        if feasible is None:
            break
        if feasible:
            numbered = _numbered(pipelines.trace(target), device.cluster_size, full)
            parts = [(_between(lattice, a, b), c, number) for a, b, c, number in numbered]
            found = priced(case, line, parts)
            best, high = better(best, found), min(target, found.value)
            case.run.stands(value=found.value)
        else:
            beyond = values[np.searchsorted(values, target, side="right") :]
            low = min(pipelines.above, float(beyond[0]) if len(beyond) else high)
            if low == np.inf:
                break
        target = low if high == np.inf else low + (high - low) / 2
    return LatticeOutcome(best, flat, min(low, high))


def _least(values: Floats, enough: Callable[[float], bool]) -> float | None:
    """Least of the ascending values that is enough; larger ones are too."""
    low, high = 0, len(values)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(float(values[middle])) else (middle + 1, high)
    return float(values[low]) if low < len(values) else None


class _Pipelines:
    """Pipelines over the ideals of one lattice."""

    def __init__(self, costs: Costs, arcs: Arcs, platform: Platform) -> None:
        self.costs, self.arcs, self.platform = costs, arcs, platform
        self.scratch = make_scratch(arcs, platform.cpus)
        count, width = len(arcs.bits), platform.cpus + 1
        self.after = np.empty((count, width), dtype=np.int64)
        self.clusters, self.came, self.how = np.empty((3, count, 2, width), dtype=np.int64)
        self.steps = 0

    def fewest(self, target: float) -> int:
        """Accelerators that `target` takes with every transfer on the inner link."""
        segments.fewest(self.arcs, target, self.after)
        return int(self.after[0, -1])

    def probe(self, target: float, enough: Callable[[int], bool]) -> bool | None:
        """Whether `target` can be met; None if `enough` steps were taken before that was clear."""
        self.fewest(target)
        self.clusters[:] = NONE
        self.scratch.above[0] = np.inf
        self.steps = first = 0
        while first < len(self.after):
            if self.steps and enough(self.steps):
                return None
            first, spent = segments.probe(
                self.costs,
                self.arcs,
                self.platform,
                target,
                self.after,
                self.clusters,
                self.came,
                self.how,
                first,
                CHUNK,
                self.scratch,
            )
            self.steps += spent
        return bool(self.clusters[-1, 1, -1] <= self.platform.full)

    @property
    def above(self) -> float:
        """Least load above the target that the last probe met with its transfers priced."""
        return float(self.scratch.above[0])

    def trace(self, target: float) -> list[_ClusterPart]:
        """The parts of the pipeline that met `target`."""
        parts = []
        at, used, cpus = len(self.after) - 1, 1, self.platform.cpus
        while at > 0:
            start, how = int(self.came[at, used, cpus]), int(self.how[at, used, cpus])
            if how == 0:
                parts.append(_ClusterPart([(start, at, 1)], clustered=False, odd=False))
                cpus -= 1
            else:
                inside, odd = (how - 1) // 2, (how - 1) % 2
                blocks = self._segment(start, at, target, inside, odd=odd > 0)
                parts.append(_ClusterPart(blocks, clustered=True, odd=odd > 0))
                cpus, used = cpus - inside, used - odd
            at = start
        return parts[::-1]

    def _segment(
        self, start: int, end: int, target: float, inside: int, *, odd: bool
    ) -> list[tuple[int, int, int]]:
        """The blocks of one cluster's segment."""
        s, arcs, platform = self.scratch, self.arcs, self.platform
        look_back(self.costs, arcs, end, target, platform.size, s)
        most = platform.rest if odd else platform.size
        segments.cover(self.costs, arcs, start, end, target, most, inside, s)
        blocks = []
        at = end
        while at != start:
            e = int(s.came[at])
            before = int(arcs.tail[e] if e >= 0 else arcs.cpu_tail[-2 - e])
            blocks.append((before, at, int(e < 0)))
            at = before
        return blocks[::-1]


class _ClusterPart(NamedTuple):
    """A cluster's segment, or a CPU block between segments."""

    blocks: list[tuple[int, int, int]]
    """Ideals before and after each block, and its class."""
    clustered: bool
    odd: bool
    """It is on the cluster that is not full."""


def _numbered(
    parts: Sequence[_ClusterPart], size: int, full: int
) -> list[tuple[int, int, int, int]]:
    """Blocks with device numbers: clusters in pipeline order, but the last is the odd one."""
    numbered = []
    cluster = cpus = 0
    for part in parts:
        device = size * (full if part.odd else cluster)
        for before, after, c in part.blocks:
            numbered.append((before, after, c, cpus if c else device))
            device, cpus = device + (not c), cpus + c
        cluster += part.clustered and not part.odd
    return numbered


def _between(lattice: Lattice, start: int, end: int) -> list[int]:
    """Items of the block between two ideals, ascending."""
    before = set(lattice.members(start))
    return [item for item in lattice.members(end) if item not in before]
