"""Minimum cuts: largest flows, least loads of sets of items, and the exact search for two stages.

The load of a set S of items on an accelerator under `sum` is

    f(S) = work(S) + cost of the nets with pins both inside and outside of S
                   + cost of the nets with pins inside that are always paid.

The least f(S) over the sets S that hold some sources is the largest flow from them to a sink: an
edge from each item to the sink carries its work, and a net of cost c with the pins u is

    u -> a (unlimited)     a -> b (c)     b -> u (unlimited),

or u -> a (unlimited) and a -> sink (c) where it is always paid. Capacities that are whole numbers
below 2^53 give flows that are exact.

*Two stages* of an ordered split are found by branch and bound over such cuts. Over devices of one
class they are an order ideal S of items and the rest; either may be empty. For any q in [0, 1] the
larger load is at least

    q * load(S) + (1 - q) * load(rest),

which is the work of each side times its weight, plus the cost of the nets across, plus that of the
nets that each side always pays times its weight. Over all ideals with some items in, and others
out, the least of that is a minimum cut, and the best q makes it the Lagrangian dual, concave in q.
What the two ideals at its maximum, one with too much and one with too little, do not share is
branched on: an item comes in with all before it, or stays out with all after it.

Loads are whole numbers below 2^BITS, so that weighed flows are exact in floating point.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

import numpy as np

from dnnp.core.kernels.kernel import kernel, plain
from dnnp.core.model.graph import Bools, Floats, Ints, csr, place_of
from dnnp.core.model.hypergraph import Hypergraph
from dnnp.core.model.search_context import PLAIN, SearchContext


class Residual(NamedTuple):
    """Arcs of a residual network and their reverse ones (CSR)."""

    ptr: Ints
    heads: Ints
    reverse: Ints
    """Index of the reverse of each."""


def lay_out(
    parts: Sequence[tuple[Ints, Ints, Floats | float]], nodes: int
) -> tuple[Residual, Floats, list[Ints]]:
    """Lay out arcs by their tails, heads and capacities: (arcs, capacities, those of each part)."""
    tail, head = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
    capacity = np.concatenate([np.broadcast_to(part[2], len(part[0])) for part in parts])
    arcs = len(tail)
    ptr, order = csr(np.concatenate([tail, head]), np.arange(2 * arcs), nodes)
    where = place_of(order)
    reverse = where[np.where(order < arcs, order + arcs, order - arcs)]
    heads = np.concatenate([head, tail])[order]
    ends = np.cumsum([len(part[0]) for part in parts])
    *laid, residual = plain(ptr, heads, reverse, np.concatenate([capacity, np.zeros(arcs)])[order])
    return Residual(*laid), residual, np.split(where[:arcs], ends[:-1])


@kernel
def max_flow(arcs, capacity, sources, enough):  # type: ignore[no-untyped-def]
    """Further flow from the items `sources` to the last node (Dinic); uses up `capacity`.

    Stops where it is `enough`. An earlier flow from some of the sources may be in `capacity`.
    """
    ptr, heads, reverse = arcs.ptr, arcs.heads, arcs.reverse
    nodes = len(ptr) - 1
    sink = nodes - 1
    level = np.empty(nodes, np.int64)
    queue = np.empty(nodes, np.int64)
    arc = np.empty(nodes, np.int64)
    path = np.empty(nodes, np.int64)
    total = 0.0
    while total < enough:
        level[:] = -1
        first, last = 0, 0
        for s in sources:
            level[s] = 0
            queue[last] = s
            last += 1
        while first < last and level[sink] < 0:
            u = queue[first]
            first += 1
            for i in range(ptr[u], ptr[u + 1]):
                v = heads[i]
                if level[v] < 0 and capacity[i] > 0.0:
                    level[v] = level[u] + 1
                    queue[last] = v
                    last += 1
        if level[sink] < 0:
            return total
        arc[:] = ptr[:nodes]
        for s in sources:
            depth = 0
            u = s
            while True:
                if u == sink:
                    least = np.inf
                    for d in range(depth):
                        least = min(least, capacity[path[d]])
                    total += least
                    if total >= enough:
                        for d in range(depth):
                            capacity[path[d]] -= least
                            capacity[reverse[path[d]]] += least
                        return total
                    back = depth
                    for d in range(depth - 1, -1, -1):
                        i = path[d]
                        if capacity[i] <= least:
                            capacity[i] = 0.0
                            back = d
                        else:
                            capacity[i] -= least
                        capacity[reverse[i]] += least
                    depth = back
                    u = heads[reverse[path[depth]]]
                    continue
                moved = False
                while arc[u] < ptr[u + 1]:
                    i = arc[u]
                    if capacity[i] > 0.0 and level[heads[i]] == level[u] + 1:
                        path[depth] = i
                        depth += 1
                        u = heads[i]
                        moved = True
                        break
                    arc[u] += 1
                if moved:
                    continue
                if u == s:
                    break
                level[u] = -1
                depth -= 1
                u = heads[reverse[path[depth]]]
                arc[u] += 1
    return total


@kernel
def reached(arcs, capacity, source):  # type: ignore[no-untyped-def]
    """Nodes that a flow leaves reachable from the source."""
    ptr, heads = arcs.ptr, arcs.heads
    nodes = len(ptr) - 1
    seen = np.zeros(nodes, np.bool_)
    queue = np.empty(nodes, np.int64)
    seen[source] = True
    queue[0] = source
    last = 1
    for first in range(nodes):
        if first == last:
            break
        u = queue[first]
        for i in range(ptr[u], ptr[u + 1]):
            v = heads[i]
            if not seen[v] and capacity[i] > 0.0:
                seen[v] = True
                queue[last] = v
                last += 1
    return seen


class Network(NamedTuple):
    """Network of items. Nodes: the items, two for each net, the sink."""

    arcs: Residual
    capacity: Floats
    enter: Ints
    """Arc from each pin into its net."""
    leave: Ints
    """Arc from each pin's net to it; -1: always paid."""


def network_of(work: Floats, nets: Hypergraph, cost: Floats) -> Network:
    """The network of items with this work, f64[n], and nets with this cost, f64[p]."""
    n, p, net = len(work), len(cost), nets.net_of_pin
    sink = n + 2 * p
    first, second = n + 2 * np.arange(p), n + 2 * np.arange(p) + 1
    is_open = ~nets.always[net]
    parts = (
        (np.arange(n), np.full(n, sink), work),
        (nets.pins, first[net], np.inf),
        (first, np.where(nets.always, sink, second), cost),
        (second[net][is_open], nets.pins[is_open], np.inf),
    )
    arcs, capacity, places = lay_out(parts, sink + 1)
    leave = np.full(len(net), -1, dtype=np.int64)
    leave[is_open] = places[3]
    return Network(arcs, capacity, *plain(places[1], leave))


def flow_from(network: Network, capacity: Floats, sources: Ints, enough: float = np.inf) -> float:
    """Flow from the items `sources`, of `enough` or more if there is as much; see `max_flow`."""
    return float(max_flow(network.arcs, capacity, sources, float(enough)))


def pin_flows(network: Network, capacity: Floats) -> Floats:
    """Flow from each pin into its net, less that out of it; f64[pins].

    `capacity` is what the flow left.
    """
    flow = capacity[network.arcs.reverse[network.enter]].copy()
    some = network.leave >= 0
    flow[some] -= capacity[network.arcs.reverse[network.leave[some]]]
    return flow


BITS = 44

PARTS = 256
"""Weights are multiples of 1 / PARTS; PARTS * 2^BITS is exact in floating point."""

MOST_WEIGHTS = 12
"""Weights that are tried at a node of the tree."""

MOST_WORK, MOST_NODES = 50_000_000, 50_000
"""Nodes of the tree times items and pins, at effort 1; and most nodes, at that or less."""

OPEN, IN, OUT = 0, 1, 2


class TwoStages(NamedTuple):
    """Problem of two stages: n items and the nets between them, in whole numbers."""

    order: Ints
    """i64[n], the items in a topological order."""
    tail: Ints
    head: Ints
    """Precedence pairs."""
    nets: Hypergraph
    """All pins of a net depend on the first one in the order."""
    work: Floats
    """f64[n]; with all costs it adds up to less than 2^BITS."""
    cost: Floats
    """f64[p]."""


class _Network(NamedTuple):
    """Network for every weight. Nodes: items, two for each net, source, sink.

    What the cut leaves with the source is the ideal. Arcs that depend on the weight, or on what is
    fixed, are filled in for each flow.
    """

    arcs: Residual
    capacity: Floats
    """Without those arcs."""
    ahead: Ints
    """i64[n], from each item to the sink: paid if it is in the ideal."""
    behind: Ints
    """i64[n], from the source to each item: paid if it is not."""
    ahead_net: Ints
    behind_net: Ints
    """The same of nets that are always paid, for a pin in the ideal and one that is not."""


def _network(of: TwoStages) -> _Network:
    """The network of the items, and of nets by what they cost on the only class."""
    n, p = len(of.order), len(of.cost)
    place = np.argsort(of.order)
    net, pins = of.nets.net_of_pin, of.nets.pins
    first, second, source, sink = n + np.arange(p), n + p + np.arange(p), n + 2 * p, n + 2 * p + 1
    # The item that writes a tensor comes before all that read it.
    writer = pins[np.lexsort((place[pins], net))][of.nets.net_ptr[:-1]]
    always, cut = np.flatnonzero(of.nets.always), np.flatnonzero(~of.nets.always)
    of_cut, of_always = ~of.nets.always[net], of.nets.always[net]
    parts = (
        (of.head, of.tail, np.inf),  # an ideal holds all before what it holds
        (writer[cut], first[cut], of.cost[cut] * PARTS),
        (first[net][of_cut], pins[of_cut], np.inf),
        (pins[of_always], first[net][of_always], np.inf),
        (second[net][of_always], pins[of_always], np.inf),
        (np.arange(n), np.full(n, sink), 0.0),
        (np.full(n, source), np.arange(n), 0.0),
        (first[always], np.full(len(always), sink), 0.0),
        (np.full(len(always), source), second[always], 0.0),
    )
    arcs, capacity, places = lay_out(parts, sink + 1)
    return _Network(arcs, capacity, *plain(*places[5:]))


@dataclass
class _Node:
    """A node of the tree."""

    item: int = -1
    """Item to branch on; -1: none yet."""
    children: tuple[int, int] = (-1, -1)
    """Nodes in which the item is in, and out."""
    weight: int = PARTS // 2
    """Weight of the ideal's load, in parts, that proves most."""
    proven: int = 0
    """No ideal of this node has a smaller larger load."""


class _Side(NamedTuple):
    """An ideal that is cheapest for some weight, and what both sides cost."""

    inside: Bools
    ahead: float
    behind: float


class Bisection:
    """The tree, best bound first."""

    def __init__(self, of: TwoStages, run: SearchContext = PLAIN) -> None:
        self.of, self.run = of, run
        self.n = len(of.order)
        self.work, self.cost = of.work, of.cost
        self.network = _network(of)
        self.before, self.after = _closures(of)
        self.nodes = [_Node()]
        self.least = float(self.work.sum() + self.cost[of.nets.always].sum()) + 1
        """The least larger load that is known."""
        self.best: Bools | None = None
        """Its ideal, if it was found here."""
        self.why = ""
        """The reason why it ended before everything was proven."""
        self.told: Callable[[float, float], None] = lambda proven, share: None
        """Called with what is proven so far, and the share of the nodes that are used up."""

    def meet(self, inside: Bools) -> None:
        """Look only for what is better than this ideal, bool[n]."""
        self._offer(self._side(inside))
        self.best = None

    def search(self) -> int:
        """Branch until nothing is open; what is proven."""
        effort, each = self.run.effort, self.n + len(self.of.nets.pins)
        most = max(int(min(MOST_WORK * effort / each, MOST_NODES * max(effort, 1.0))), 1)
        waiting: list[tuple[int, int, Ints]] = []
        self._open(0, np.zeros(self.n, dtype=np.int8), waiting)
        while waiting and waiting[0][0] < self.least:
            if self.run.stop() or len(self.nodes) > most:
                self.why = "stopped" if self.run.stop() else f"more than {most} nodes"
                break
            if waiting[0][0] >= self.least * (1 - self.run.wide_gap):
                self.why = "the gap is small enough"
                break
            _, number, state = heapq.heappop(waiting)
            node = self.nodes[number]
            node.children = len(self.nodes), len(self.nodes) + 1
            for child, (value, closed) in enumerate(((IN, self.before), (OUT, self.after))):
                self.nodes.append(_Node(weight=node.weight, proven=node.proven))
                fixed = state.copy()
                fixed[closed[node.item]] = value
                self._open(node.children[child], fixed, waiting)
            lowest = waiting[0][0] if waiting else self.least
            self.told(min(lowest, self.least), min(len(self.nodes) / most, 1.0))
        lowest = waiting[0][0] if waiting else self.least
        return int(min(lowest, self.least))

    def rows(self, units: int) -> list[list[int]]:
        """The tree that proves so much, from its root on.

        A row is [item], followed by the trees of it in and out, or [weight, PARTS] where that is
        enough.
        """
        found, waiting = [], [0]
        while waiting:
            node = self.nodes[waiting.pop()]
            if node.proven >= units:
                found.append([node.weight, PARTS])
            else:
                found.append([node.item])
                waiting += node.children[::-1]
        return found

    def _open(self, number: int, state: Ints, waiting: list[tuple[int, int, Ints]]) -> None:
        """Bound a node, and let it wait if it may hold something better."""
        node = self.nodes[number]
        low, high = self._dual(node, state)
        if node.proven >= self.least:
            return
        node.item = self._choice(state, low, high)
        heapq.heappush(waiting, (node.proven, number, state))

    def _dual(self, node: _Node, state: Ints) -> tuple[_Side | None, _Side | None]:
        """Raise the bound of a node over weights; ideals with too little work, and too much."""
        low = high = None
        least, most, weight = -1, PARTS + 1, node.weight
        if (state != OPEN).all():
            side = self._side(state == IN)
            self._offer(side)
            node.weight = PARTS if side.ahead >= side.behind else 0
            node.proven = int(max(side.ahead, side.behind))
            return None, None
        for _ in range(MOST_WEIGHTS):
            flow, inside = self._cut(weight, state)
            proven = ceil(flow / PARTS) if flow < np.inf else int(self.least)
            if proven > node.proven or not node.proven:
                node.weight, node.proven = weight, proven
            if proven >= self.least:
                break
            side = self._side(inside)
            self._offer(side)
            if side.ahead >= side.behind:
                high, least = side, weight
            else:
                low, most = side, weight
            if most - least < 2 or side.ahead == side.behind:
                break
            weight = _next_weight(low, high, least, most)
        return low, high

    def _cut(self, weight: int, state: Ints) -> tuple[float, Bools]:
        """The least weighed load of all ideals of a node, and one that has it."""
        network, other = self.network, PARTS - weight
        capacity = network.capacity.copy()
        capacity[network.ahead] = np.where(state == OUT, np.inf, weight * self.work)
        capacity[network.behind] = np.where(state == IN, np.inf, other * self.work)
        paid = self.cost[self.of.nets.always]
        capacity[network.ahead_net] = weight * paid
        capacity[network.behind_net] = other * paid
        source = np.array([len(network.arcs.ptr) - 3])
        flow = max_flow(network.arcs, capacity, source, (self.least - 1) * PARTS + 1)
        return float(flow), reached(network.arcs, capacity, source[0])[: self.n]

    def _side(self, inside: Bools) -> _Side:
        """Price an ideal and the rest."""
        nets, held = self.of.nets, self.of.nets.pins_in(inside)
        has, lacks = held > 0, held < nets.sizes
        loads = (
            float(self.work[part].sum() + self.cost[mine & (theirs | nets.always)].sum())
            for mine, theirs, part in ((has, lacks, inside), (lacks, has, ~inside))
        )
        return _Side(inside, *loads)

    def _offer(self, side: _Side) -> None:
        value = max(side.ahead, side.behind)
        if value < self.least:
            self.least, self.best = value, side.inside

    def _choice(self, state: Ints, low: _Side | None, high: _Side | None) -> int:
        """The item to branch on: that which moves most work, whether it is in or out."""
        free = state == OPEN
        choice = free
        if low is not None and high is not None and (free & (low.inside != high.inside)).any():
            choice = free & (low.inside != high.inside)
        items = np.flatnonzero(choice)
        open_work = np.where(free, self.work, 0.0)
        moved = np.minimum(self.before[items] @ open_work, self.after[items] @ open_work)
        return int(items[moved.argmax()])


def _next_weight(low: _Side | None, high: _Side | None, least: int, most: int) -> int:
    """Weight at which the lines of both ideals meet; half of the way on, where there is one."""
    if low is None or high is None:
        weight = (least + most) // 2
    else:
        excess, lack = high.ahead - high.behind, low.behind - low.ahead
        weight = round(PARTS * (low.behind - high.behind) / (excess + lack))
    return min(max(weight, least + 1), most - 1)


def _closures(of: TwoStages) -> tuple[Bools, Bools]:
    """bool[n, n]: what comes before each item, itself included, and what after."""
    n = len(of.order)
    before = np.eye(n, dtype=np.bool_)
    place = np.argsort(of.order)
    for edge in np.argsort(place[of.head], kind="stable").tolist():
        before[of.head[edge]] |= before[of.tail[edge]]
    return before, before.T.copy()
