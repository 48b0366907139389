"""Splits for clusters of accelerators with faster links inside (2020 paper, Appendix C.3).

What is searched: ordered splits whose pipeline gives every cluster one contiguous segment, the
meaning of PipeDream and of the paper. Stages on CPUs may stand anywhere, also between stages of
one cluster; transfers with them take the outer link. Over all ideals the search is exact for
these splits; beyond `MAX_IDEALS` it is exact for each of several topological orders.

A cluster that comes back to the pipeline after another one can do better than any such split,
so the bound is one of all ordered splits: the optimum with every transfer between stages on the
inner link. It is the optimum itself where every split is of this kind, or as good as one that
is: there is only one cluster, clusters of one device, or no difference between the links.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from dnnp.core.bound.simple import simple_bound
from dnnp.core.cost.items import Items, item_choices
from dnnp.core.cost.line import Line, make_line, steps_of
from dnnp.core.cost.load import stage_load, transfer_times
from dnnp.core.dp import segments
from dnnp.core.dp.arcs import Arcs, Costs, make_arcs, make_costs
from dnnp.core.dp.ideal import ideal_search
from dnnp.core.dp.lattice import Lattice, make_lattice
from dnnp.core.dp.problem import may_bind
from dnnp.core.dp.segments import NONE, Platform, make_scratch
from dnnp.core.dp.slice import ROUNDING, slice_line
from dnnp.core.model.cluster import Clustering
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.errors import InfeasibleError, UsageError
from dnnp.core.model.graph import Floats, Graph
from dnnp.core.model.plan import Block, CostOptions
from dnnp.core.order.orders import ORDERS

MAX_IDEALS = 20_000
"""Ideals up to which all of them are searched."""

MAX_ITEMS = 10_000
"""Items up to which an order is searched; longer ones are only sliced."""

MAX_STEPS = 2_000_000_000
"""Blocks tried in the segments of one lattice or order, at effort 1; nanoseconds each."""

CHUNK = 30_000_000
"""Blocks tried between two questions whether to stop."""

BOUND_EFFORT = 0.1
"""Effort of the ideal search that finds the bound of larger lattices."""


class Found(NamedTuple):
    """A split and its value."""

    value: float
    blocks: list[Block]


class Outcome(NamedTuple):
    """What the search of one lattice proved, for splits along its ideals."""

    best: Found | None
    """The best split known."""
    flat: float
    """No split is below, wherever its clusters are."""
    low: float
    """No split with contiguous clusters is below."""


@dataclass(frozen=True, eq=False)
class _Case:
    """What is to be split, and on what."""

    graph: Graph
    units: Clustering
    accelerator: DeviceClass
    cpu: DeviceClass | None
    options: CostOptions
    stop: Callable[[], bool]
    max_steps: float

    @property
    def devices(self) -> tuple[DeviceClass, ...]:
        """The classes, accelerator first."""
        return (self.accelerator,) if self.cpu is None else (self.accelerator, self.cpu)

    @property
    def every_split(self) -> bool:
        """Whether no split does better than those with contiguous clusters."""
        device = self.accelerator
        return device.count <= device.cluster_size or 1 in (
            device.cluster_size,
            device.inner_factor,
        )


def hierarchy_split(
    graph: Graph,
    units: Clustering,
    devices: tuple[DeviceClass, ...],
    options: CostOptions,
    *,
    stop: Callable[[], bool] = lambda: False,
    effort: float = 1.0,
) -> tuple[list[Block], float]:
    """Split for one class of accelerators in clusters, and CPUs if there are any.

    Parameters
    ----------
    stop
        Asked now and then: whether to end with the best split so far.
    effort
        Scales the work after which a search ends with the best split so far.

    Returns
    -------
    Blocks in pipeline order with their device numbers, and a lower bound of all ordered splits.

    Raises
    ------
    UsageError
        Other device classes, replicas, an objective other than `throughput`, or links without
        bandwidths.
    InfeasibleError
        No split that was looked at meets the capacities.
    """
    accelerator, cpu = _checked(devices, options)
    case = _Case(graph, units, accelerator, cpu, options, stop, MAX_STEPS * effort)
    if graph.n == 0:
        return [], 0.0
    best: Found | None = None
    failure: InfeasibleError | None = None
    bound = np.inf
    for items in item_choices(graph, units):
        lines = _lines(case, items)
        for line in lines:
            if best is not None and stop():
                break
            try:
                best = _better(best, _sliced(case, line, best))
            except InfeasibleError as error:
                failure = failure or error
        best = _over_orders(case, lines, best)
        outcome = _over_ideals(case, lines[0], best)
        best = outcome.best
        bound = min(bound, outcome.low if case.every_split else outcome.flat)
    if best is None:
        raise failure or InfeasibleError("infeasible: no split that was tried meets the capacities")
    floor = simple_bound(graph, units, devices, options)
    bound = max(floor, bound * (1 - ROUNDING))
    if bound == floor < best.value * (1 - ROUNDING) and not stop():
        bound = _flat_bound(case, best.value, floor, effort * BOUND_EFFORT)
    return best.blocks, min(bound, best.value)


def _checked(
    devices: tuple[DeviceClass, ...], options: CostOptions
) -> tuple[DeviceClass, DeviceClass | None]:
    """The accelerator class and the CPU class."""
    accelerators = [d for d in devices if not d.is_cpu and d.count > 0]
    cpus = [d for d in devices if d.is_cpu and d.count > 0]
    if len(accelerators) != 1 or not accelerators[0].cluster_size or len(cpus) > 1:
        names = ", ".join(d.name for d in (*accelerators, *cpus))
        raise UsageError(
            "clusters are for one class of accelerators, with at most one class of CPUs beside "
            f"it; offered: {names}"
        )
    if not 0 <= accelerators[0].inner_factor <= 1:
        raise UsageError(
            f"the clusters of '{accelerators[0].name}' need an outer bandwidth, and an inner one "
            "that is not below it"
        )
    if options.objective != "throughput":
        raise UsageError(f"the objective {options.objective} cannot be combined with clusters")
    if options.max_replicas != 1:
        raise UsageError("replicas cannot be combined with clusters")
    return accelerators[0], cpus[0] if cpus else None


def _lines(case: _Case, items: Items) -> list[Line]:
    """The items in several topological orders, each once."""
    orders = {order.tobytes(): order for order in (make(items) for make in ORDERS.values())}
    return [
        make_line(case.graph, case.units, items, order, case.devices, case.options)
        for order in orders.values()
    ]


def _better(best: Found | None, other: Found | None) -> Found | None:
    """The better of two splits, the first if they are equal."""
    if best is None or other is None:
        return best or other
    return other if other.value < best.value else best


def _sliced(case: _Case, line: Line, best: Found | None) -> Found | None:
    """Slicing with every transfer on the outer link; the clusters only make it cheaper."""
    streamed = case.options.memory_mode == "overflow" and np.isfinite(case.accelerator.memory_bytes)
    steps = steps_of(case.graph, line, case.options) if streamed else None
    below = np.inf if best is None else best.value * (1 - 1e-9)
    slicing = slice_line(line, case.options.comm, steps, below, case.stop)
    if slicing is None:
        return None
    numbers = [0, 0]
    parts = []
    for c, (a, b) in zip(slicing.classes.tolist(), pairwise(slicing.bounds.tolist()), strict=True):
        parts.append((range(a, b), c, numbers[c]))
        numbers[c] += 1
    return _priced(case, line, parts)


def _priced(case: _Case, line: Line, parts: Sequence[tuple[Iterable[int], int, int]]) -> Found:
    """A split from the items, class and device number of each block."""
    blocks = []
    for items, c, number in parts:
        nodes = np.concatenate([line.nodes[line.node_ptr[i] : line.node_ptr[i + 1]] for i in items])
        if case.graph.backward.any():
            # An item holds nodes of both passes, which run far apart in time.
            nodes = nodes[np.argsort(case.graph.rank[nodes])]
        blocks.append(Block(nodes, case.devices[c], 1, number))
    cluster = np.full(case.graph.n, -1, dtype=np.int64)
    for block in blocks:
        if not block.device.is_cpu:
            cluster[block.nodes] = block.number // block.device.cluster_size
    value = 0.0
    for block in blocks:
        near = None if block.device.is_cpu else cluster == cluster[block.nodes[0]]
        cost = stage_load(
            case.graph, case.units, block.nodes, block.device, case.options, near=near
        )
        value = max(value, cost.load_s)
    return Found(value, blocks)


def _over_ideals(case: _Case, line: Line, best: Found | None) -> Outcome:
    """Search all ideals; the bounds are 0 where there are too many."""
    nothing = Outcome(best, 0.0, 0.0)
    lattice = make_lattice(line.n, line.tail, line.head, MAX_IDEALS)
    outcome = None if lattice is None else _search(case, line, lattice, best)
    if outcome is None:
        return nothing
    if case.options.memory_model == "peak" and may_bind(case.graph, line, case.options):
        # Another order of a block's nodes may take less memory.
        return nothing._replace(best=outcome.best)
    return outcome


def _over_orders(case: _Case, lines: Sequence[Line], best: Found | None) -> Found | None:
    """Search the intervals of each order."""
    for line in lines:
        if line.n > MAX_ITEMS or (best is not None and case.stop()):
            break
        position = np.arange(line.n, dtype=np.int64)
        chain = make_lattice(line.n, position[:-1], position[1:], line.n + 1)
        outcome = None if chain is None else _search(case, line, chain, best)
        best = best if outcome is None else outcome.best
    return best


def _flat_bound(case: _Case, value: float, floor: float, effort: float) -> float:
    """Bound of all ordered splits from the ideal search, every transfer on the inner link."""
    device = case.accelerator
    times = device.inner_factor * transfer_times(case.graph, device)
    flat = replace(device, cluster_size=0, inner_bandwidth_bytes_per_s=np.inf)
    search = ideal_search(
        replace(case.graph, transfer_s=times), case.units, (flat, *case.devices[1:]),
        case.options, incumbent=value, floor=floor, effort=effort, stop=case.stop,
    )  # fmt: skip
    return max(floor, search.bound * (1 - ROUNDING))


def _search(case: _Case, line: Line, lattice: Lattice, best: Found | None) -> Outcome | None:
    """Best split along a lattice of the line's positions; None if it has too many blocks."""
    costs = make_costs(case.graph, line, case.options)
    limit = np.inf if best is None else best.value
    arcs = make_arcs(costs, lattice, limit)
    if arcs is None:
        return None
    device, n = case.accelerator, line.n
    full, rest = divmod(device.count, device.cluster_size)
    cpus = 0 if case.cpu is None else min(case.cpu.count, n)
    platform = Platform(min(device.cluster_size, n), min(full, n), min(rest, n), cpus)
    pipelines = _Pipelines(costs, arcs, platform)
    values = np.unique(np.concatenate([arcs.load, arcs.cpu_load]))
    flat = _least(values, lambda target: pipelines.fewest(target) <= device.count)
    if flat is None:
        return Outcome(best, limit, limit)
    low, high, target, steps = flat, limit, flat, 0
    while high - low > ROUNDING * high or best is None:
        limits = case.max_steps - steps
        feasible = pipelines.probe(target, lambda spent: spent > limits or case.stop())  # noqa: B023
        steps += pipelines.steps
        if feasible is None:
            break
        if feasible:
            numbered = _numbered(pipelines.trace(target), device.cluster_size, full)
            parts = [(_between(lattice, a, b), c, number) for a, b, c, number in numbered]
            found = _priced(case, line, parts)
            best, high = _better(best, found), min(target, found.value)
        else:
            beyond = values[np.searchsorted(values, target, side="right") :]
            low = min(pipelines.above, float(beyond[0]) if len(beyond) else high)
            if low == np.inf:
                break
        target = low if high == np.inf else low + (high - low) / 2
    return Outcome(best, flat, min(low, high))


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
                self.costs, self.arcs, self.platform, target, self.after,
                self.clusters, self.came, self.how, first, CHUNK, self.scratch,
            )  # fmt: skip
            self.steps += spent
        return bool(self.clusters[-1, 1, -1] <= self.platform.full)

    @property
    def above(self) -> float:
        """Least load above the target that the last probe met with its transfers priced."""
        return float(self.scratch.above[0])

    def trace(self, target: float) -> list[_Part]:
        """The parts of the pipeline that met `target`."""
        parts = []
        at, used, cpus = len(self.after) - 1, 1, self.platform.cpus
        while at > 0:
            start, how = int(self.came[at, used, cpus]), int(self.how[at, used, cpus])
            if how == 0:
                parts.append(_Part([(start, at, 1)], clustered=False, odd=False))
                cpus -= 1
            else:
                inside, odd = (how - 1) // 2, (how - 1) % 2
                blocks = self._segment(start, at, target, inside, odd=odd > 0)
                parts.append(_Part(blocks, clustered=True, odd=odd > 0))
                cpus, used = cpus - inside, used - odd
            at = start
        return parts[::-1]

    def _segment(
        self, start: int, end: int, target: float, inside: int, *, odd: bool
    ) -> list[tuple[int, int, int]]:
        """The blocks of one cluster's segment."""
        s, arcs, platform = self.scratch, self.arcs, self.platform
        segments.look_back(self.costs, arcs, end, target, platform.size, s)
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


class _Part(NamedTuple):
    """A cluster's segment, or a CPU block between segments."""

    blocks: list[tuple[int, int, int]]
    """Ideals before and after each block, and its class."""
    clustered: bool
    odd: bool
    """It is on the cluster that is not full."""


def _numbered(parts: Sequence[_Part], size: int, full: int) -> list[tuple[int, int, int, int]]:
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
