"""The best split of a tiny graph, found by trying all of them; judged by the checker alone.

Units that a group or a colour joins move as one atom. Every partition of the atoms into blocks
is tried, with every choice of device class, replicas and cluster for each block; nothing is left
out but what cannot beat the best so far, since no load is below its compute time. Nodes of a
block run in the order of `graph.order`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from dnnp.core.check.graph import Tables, tables_of, validity_of
from dnnp.core.check.load import Cost, Footprint, footprint_of, price
from dnnp.core.check.violation import STRENGTH, above
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.graph import Clustering, Graph
from dnnp.core.model.plan import Block, CostOptions

Part = tuple[int, int, int]
"""Atoms of a block (a bit mask), its device class, its replicas."""


Admits = Callable[[Sequence[tuple[DeviceClass, list[int]]]], bool]
"""True if stages, by their devices and nodes, are allowed."""


def brute_force(
    problem: SplitProblem, validity: str = "ordered", admits: Admits = lambda stages: True
) -> tuple[float, list[Block]]:
    """Least objective over all splits of at least this validity, and a split that has it.

    The value is inf, without blocks, if nothing fits. Meant for up to about 9 atoms.
    """
    graph, units, devices, options = problem.graph, problem.units, problem.devices, problem.options
    if options.objective == "gpipe" and not graph.backward.any():
        raise ValueError("gpipe needs a graph with a backward pass")
    search = _Search(graph, units, devices, options, validity)
    search.kept = admits
    search.cover(search.full, tuple(d.count for d in devices), 0.0, 0.0)
    blocks = [
        Block(np.array(search.nodes(mask), dtype=np.int64), search.devices[d], replicas, number)
        for (mask, d, replicas), number in zip(search.best, search.numbers, strict=True)
    ]
    if blocks:
        members = [b.nodes.tolist() for b in blocks]
        found = validity_of(search.tables, members)[0]
        if STRENGTH[found] < STRENGTH[validity]:
            raise AssertionError(f"brute force found a {found} split, not {validity}")
    return search.value, blocks


class _Search:
    """Branch over the block of the first atom that has none yet."""

    def __init__(
        self,
        graph: Graph,
        units: Clustering,
        devices: tuple[DeviceClass, ...],
        options: CostOptions,
        validity: str,
    ) -> None:
        self.tables: Tables = tables_of(graph)
        self.devices, self.options = devices, options
        self.ordered, self.any_block = validity == "ordered", validity == "free"
        self.rank: list[int] = graph.rank.tolist()
        self.atoms = _atoms(graph, units)
        self.full = (1 << len(self.atoms)) - 1
        self.bits = [sum(1 << v for v in atom) for atom in self.atoms]
        self.orders = [_ends(self.tables, along) for along in (False, True)]
        self.inner = [_reach(ends) for ends in _passes(self.tables)]
        self.compute = [_compute(self.tables, units, self.atoms, d.name) for d in devices]
        self.choices = [
            (d, replicas)
            for d, device in enumerate(devices)
            for replicas in range(1, min(options.max_replicas, device.count) + 1)
        ]
        self.least = [
            min((sum(compute[a]) for compute in self.compute), default=math.inf)
            for a in range(len(self.atoms))
        ]
        self.clusters = any(d.cluster_size for d in devices)
        self.value, self.best, self.numbers = math.inf, list[Part](), list[int]()
        self.parts: list[Part] = []
        self.kept: Admits = lambda stages: True
        self._nodes: dict[int, list[int]] = {}
        self._admitted: dict[int, bool] = {}
        self._work: dict[tuple[int, int], tuple[float, float]] = {}
        self._footprint: dict[int, Footprint] = {}
        self._cost: dict[tuple[object, ...], tuple[float, float]] = {}

    def cover(self, rest: int, left: tuple[int, ...], first: float, second: float) -> None:
        """Extend `parts` over the atoms `rest` with the devices left; keep what is better.

        `first` and `second` are the largest parts of the objective so far.
        """
        if not rest:
            stages = [(self.devices[d], self.nodes(atoms)) for atoms, d, _ in self.parts]
            if not self.kept(stages):
                return
            if not self.ordered or self.has_order([part[0] for part in self.parts]):
                self.finish(first, second)
            return
        if sum(t for a, t in enumerate(self.least) if rest >> a & 1) >= self.value * sum(left):
            return
        lowest = rest & -rest
        others = rest ^ lowest
        more = others
        while True:
            block = lowest | more
            if self.admits(block):
                for d, replicas in self.choices:
                    if left[d] < replicas or sum(self.work(block, d)) >= self.value * replicas:
                        continue
                    a, b = self.cost(block, d, replicas, self.hopeful(block, d))
                    a, b = max(a, first), max(b, second)
                    if a + b < self.value:
                        self.parts.append((block, d, replicas))
                        used = (*left[:d], left[d] - replicas, *left[d + 1 :])
                        self.cover(rest ^ block, used, a, b)
                        self.parts.pop()
            if not more:
                return
            more = (more - 1) & others

    def finish(self, first: float, second: float) -> None:
        """All atoms are placed: choose clusters, if there are any."""
        if not self.clusters:
            self.value, self.best = first + second, list(self.parts)
            self.numbers = [-1] * len(self.parts)
            return
        for numbers in placements(self.parts, self.devices):
            value = self.placed(numbers)
            if value < self.value:
                self.value, self.best, self.numbers = value, list(self.parts), numbers

    def placed(self, numbers: Sequence[int]) -> float:
        """The objective with the parts on these devices."""
        homes = [_homes(p, n, self.devices) for p, n in zip(self.parts, numbers, strict=True)]
        members: dict[Home, int] = {}
        for (block, _, _), mine in zip(self.parts, homes, strict=True):
            for home in mine:
                members[home] = members.get(home, 0) | block
        costs = [
            self.cost(block, d, replicas, tuple((members[home], home[-1]) for home in mine))
            for (block, d, replicas), mine in zip(self.parts, homes, strict=True)
        ]
        return max(a for a, _ in costs) + max(b for _, b in costs)

    def nodes(self, atoms: int) -> list[int]:
        """Nodes of some atoms in execution order."""
        if atoms not in self._nodes:
            members = [v for a, atom in enumerate(self.atoms) if atoms >> a & 1 for v in atom]
            self._nodes[atoms] = sorted(members, key=self.rank.__getitem__)
        return self._nodes[atoms]

    def work(self, block: int, d: int) -> tuple[float, float]:
        """Compute time of a block, forward and backward."""
        if (block, d) not in self._work:
            times = [t for a, t in enumerate(self.compute[d]) if block >> a & 1]
            pair = (math.fsum(t for t, _ in times), math.fsum(t for _, t in times))
            self._work[block, d] = pair
        return self._work[block, d]

    def hopeful(self, block: int, d: int) -> tuple[tuple[int, float], ...]:
        """The cluster to suppose where clusters are still open, so that the cost is least."""
        device = self.devices[d]
        if not device.cluster_size or not device.inner_factor < 1:
            return ()
        return ((self.full, device.inner_bandwidth_bytes_per_s),)

    def cost(
        self, block: int, d: int, replicas: int, near: tuple[tuple[int, float], ...]
    ) -> tuple[float, float]:
        """The two parts of the objective that a block has on a device; inf if it does not fit."""
        key = (block, d, replicas, near)
        if key not in self._cost:
            if block not in self._footprint:
                self._footprint[block] = footprint_of(self.tables, self.nodes(block), self.options)
            cost = price(
                self.tables,
                self._footprint[block],
                self.work(block, d),
                self.devices[d],
                self.options,
                replicas,
                [(frozenset(self.nodes(atoms)), bandwidth) for atoms, bandwidth in near],
            )
            self._cost[key] = self.parts_of(cost, self.devices[d])
        return self._cost[key]

    def parts_of(self, cost: Cost, device: DeviceClass) -> tuple[float, float]:
        """Parts of the objective: the load, or both passes."""
        full = not device.is_cpu and above(cost.memory_bytes, device.memory_bytes)
        if full and self.options.memory_mode == "hard":
            return math.inf, math.inf
        if self.options.objective == "gpipe":
            return cost.forward_s or 0.0, cost.backward_s or 0.0
        return cost.load_s, 0.0

    def admits(self, block: int) -> bool:
        """True if no path inside a pass leaves the block and comes back, unless that may be."""
        if self.any_block:
            return True
        if block not in self._admitted:
            members = sum(bits for a, bits in enumerate(self.bits) if block >> a & 1)
            self._admitted[block] = not any(
                _union(after, members) & _union(before, members) & ~members
                for before, after in self.inner
            )
        return self._admitted[block]

    def has_order(self, blocks: Sequence[int]) -> bool:
        """True if a pipeline order of the blocks exists for one direction of the backward pass."""
        members = [sum(bits for a, bits in enumerate(self.bits) if b >> a & 1) for b in blocks]
        for before, _ in self.orders:
            needs = [_union(before, m) & ~m for m in members]
            waiting, open_nodes = list(range(len(blocks))), sum(members)
            while waiting:
                ready = next((b for b in waiting if not needs[b] & open_nodes), None)
                if ready is None:
                    break
                waiting.remove(ready)
                open_nodes ^= members[ready]
            if not waiting:
                return True
        return False


def _atoms(graph: Graph, units: Clustering) -> list[list[int]]:
    """Nodes that must stay together, by group and by colour; least in the order first."""
    label = units.label.tolist()
    changed = True
    while changed:
        changed = False
        seen: dict[int, int] = {}
        for v, color in enumerate(graph.color.tolist()):
            if color >= 0 and label[v] != seen.setdefault(color, label[v]):
                old, new = label[v], seen[color]
                label = [new if x == old else x for x in label]
                changed = True
    atoms: dict[int, list[int]] = {}
    for v in graph.order.tolist():
        atoms.setdefault(label[v], []).append(v)
    return list(atoms.values())


def _compute(
    tables: Tables, units: Clustering, atoms: Sequence[Sequence[int]], name: str
) -> list[tuple[float, float]]:
    """Time of every atom on a class: its forward units, its backward units."""
    times = units.times.get(name)
    label = units.label.tolist()
    ahead = {label[v] for v in range(tables.n) if not tables.backward[v]}
    result = []
    for atom in atoms:
        pair = [0.0, 0.0]
        for unit in sorted({label[v] for v in atom}):
            pair[unit not in ahead] += math.inf if times is None else float(times[unit])
        result.append((pair[0], pair[1]))
    return result


Ends = tuple[list[int], list[int]]
"""Bit masks: nodes that come before each node, and after it."""


def _ends(tables: Tables, along: bool) -> Ends:
    """Edges that a pipeline order must respect: inside a pass; backward ones turned or not."""
    before, after = [0] * tables.n, [0] * tables.n
    for v in range(tables.n):
        for u in tables.producers(v):
            if tables.backward[u] == tables.backward[v]:
                a, b = (v, u) if tables.backward[v] and not along else (u, v)
                before[b] |= 1 << a
                after[a] |= 1 << b
    return before, after


def _passes(tables: Tables) -> Iterator[Ends]:
    """Edges of each pass that there is."""
    before, after = _ends(tables, along=True)
    for late in sorted(set(tables.backward)):
        own = sum(1 << v for v in range(tables.n) if tables.backward[v] == late)
        yield [mask & own for mask in before], [mask & own for mask in after]


def _reach(ends: Ends) -> Ends:
    """Ancestors and descendants instead of neighbours."""
    before, after = list(ends[0]), list(ends[1])
    for masks in (before, after):
        for _ in masks:
            for v, mask in enumerate(masks):
                masks[v] = mask | _union(masks, mask)
    return before, after


def _union(masks: Sequence[int], members: int) -> int:
    """Union of the masks of some members."""
    result = 0
    while members:
        lowest = members & -members
        result |= masks[lowest.bit_length() - 1]
        members ^= lowest
    return result


Home = tuple[int, int, int, float]
"""A cluster: its class, its size, its number among those of that size, its bandwidth."""


def _homes(part: Part, number: int, devices: Sequence[DeviceClass]) -> list[Home]:
    """The clusters that hold all devices of a part, the smallest first."""
    _, d, replicas = part
    return [
        (d, size, number // size, bandwidth)
        for size, bandwidth in devices[d].levels
        if number // size == (number + replicas - 1) // size
    ]


def placements(parts: Sequence[Part], devices: Sequence[DeviceClass]) -> Iterator[list[int]]:
    """First devices of every part: all ways but for devices of one cluster that are alike.

    A class without clusters gives every part the number -1.
    """
    numbers = [-1] * len(parts)
    taken: set[tuple[int, int]] = set()
    # What runs on one device comes last, and takes the first one that is free in a cluster.
    order = sorted(range(len(parts)), key=lambda i: -parts[i][2])

    def extend(at: int) -> Iterator[list[int]]:
        if at == len(parts):
            yield list(numbers)
            return
        _, d, replicas = parts[order[at]]
        size = devices[d].cluster_size
        if not size:
            yield from extend(at + 1)
            return
        tried = set()
        for number in range(devices[d].count - replicas + 1):
            mine = {(d, number + i) for i in range(replicas)}
            if mine & taken or (replicas == 1 and number // size in tried):
                continue
            tried.add(number // size)
            numbers[order[at]] = number
            taken.update(mine)
            yield from extend(at + 1)
            taken.difference_update(mine)

    yield from extend(0)
