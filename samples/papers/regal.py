"""Random computation graphs like those of REGAL (Archer et al. 2024, Appendix B.1).

A random graph of one of four families gets its nodes ordered at random, and each edge leads from
the earlier node to the later one. Each node makes one tensor, of size max(1, N(50, 10)), which all
its successors read. A node costs the sizes of its inputs and output plus a share r ~ N(0, 0.1) of
the sizes of all tensors together. A tensor without readers is an output of the model.

That leaves open what becomes of negative r; `READINGS` says what else it may mean. The paper prints
neither the parameters of the families nor what becomes of sizes below 1: those here are ours. REGAL
also dropped graphs that leave a search little to improve; here all are kept.

Families are undirected and simple: i64[e, 2], one row an edge between two different nodes of
0..n-1. Time and memory are linear in nodes and edges. With more than `FULL_NODES` nodes the
probabilities of `erdos_renyi` and `stochastic_block` shrink, so that the mean degree stays what it
is there.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dnnp.core.model.errors import UsageError
from dnnp.core.model.graph import Floats, Ints

FULL_NODES = 200
"""Nodes up to which edge probabilities are as stated."""

EDGE_PROBABILITY = 0.05
"""Erdős-Rényi: of each pair of nodes."""

ATTACHMENTS = 2
"""Barabási-Albert: edges of each new node."""

NEIGHBOURS, REWIRED = 4, 0.3
"""Watts-Strogatz: nearest neighbours on the ring, an even number; share of edges moved."""

BLOCKS, WITHIN, ACROSS = 4, 0.3, 0.01
"""Stochastic block model: blocks of equal size; probability of a pair in one block, in two."""


def erdos_renyi(n: int, rng: np.random.Generator) -> Ints:
    """Every pair with the same probability."""
    picked = _sample(math.comb(n, 2), EDGE_PROBABILITY * _thinning(n), rng)
    return _pairs(picked)


def barabasi_albert(n: int, rng: np.random.Generator) -> Ints:
    """Each node after the first two is joined to two earlier ones, in proportion to degree.

    The first two nodes have no edge; the third is joined to both.
    """
    ends: list[int] = []
    targets = list(range(ATTACHMENTS))
    for node in range(ATTACHMENTS, n):
        for target in targets:
            ends += (node, target)
        chosen: dict[int, None] = {}
        while len(chosen) < ATTACHMENTS:
            chosen[ends[int(rng.random() * len(ends))]] = None
        targets = list(chosen)
    return np.array(ends, dtype=np.int64).reshape(-1, 2)


def watts_strogatz(n: int, rng: np.random.Generator) -> Ints:
    """A ring in which each node knows its nearest four, some edges moved to a random end."""
    edges = [(u, (u + step) % n) for step in range(1, NEIGHBOURS // 2 + 1) for u in range(n)]
    near: list[set[int]] = [set() for _ in range(n)]
    for u, v in edges:
        near[u].add(v)
        near[v].add(u)
    moved = rng.random(len(edges)) < REWIRED
    for i in np.flatnonzero(moved).tolist():
        u, v = edges[i]
        if len(near[u]) == n - 1:
            continue
        end = u
        while end == u or end in near[u]:
            end = int(rng.random() * n)
        near[u].remove(v)
        near[v].remove(u)
        near[u].add(end)
        near[end].add(u)
        edges[i] = u, end
    return np.array(edges, dtype=np.int64)


def stochastic_block(n: int, rng: np.random.Generator) -> Ints:
    """Four blocks of consecutive nodes, pairs inside one likelier than pairs across."""
    thinning = _thinning(n)
    border = [n * i // BLOCKS for i in range(BLOCKS + 1)]
    parts = []
    for a, b in itertools.combinations_with_replacement(range(BLOCKS), 2):
        size, other = border[a + 1] - border[a], border[b + 1] - border[b]
        if a == b:
            pairs = _pairs(_sample(math.comb(size, 2), WITHIN * thinning, rng))
        else:
            picked = _sample(size * other, ACROSS * thinning, rng)
            pairs = np.column_stack((picked // other, picked % other))
        parts.append(pairs + np.array([border[a], border[b]]))
    return np.concatenate(parts)


def _thinning(n: int) -> float:
    return min(1.0, FULL_NODES / n)


def _sample(count: int, probability: float, rng: np.random.Generator) -> Ints:
    """Numbers of 0..count-1, each taken with the same probability; ascending."""
    taken = int(rng.binomial(count, probability))
    return np.sort(rng.choice(count, taken, replace=False, shuffle=False))


def _pairs(number: Ints) -> Ints:
    """Pair of each number: 0 is (0, 1), 1 is (0, 2), 2 is (1, 2), 3 is (0, 3) and so on."""
    high = ((1 + np.sqrt(1 + 8 * number.astype(np.float64))) / 2).astype(np.int64)
    # The root is rounded: the pair may be that of a neighbour.
    high -= high * (high - 1) // 2 > number
    high += high * (high + 1) // 2 <= number
    return np.column_stack((number - high * (high - 1) // 2, high))


FAMILIES = {
    "erdos-renyi": erdos_renyi,
    "barabasi-albert": barabasi_albert,
    "watts-strogatz": watts_strogatz,
    "stochastic-block": stochastic_block,
}

LEAST_NODES = {
    "erdos-renyi": 2,
    "barabasi-albert": ATTACHMENTS + 1,
    "watts-strogatz": NEIGHBOURS + 1,
    "stochastic-block": BLOCKS,
}

MOST_NODES = 1_000_000

DRAWN_NODES = (50, 200)
"""Least and greatest number of nodes where none is asked for."""

MEAN_SIZE, SIZE_DEVIATION, LEAST_SIZE = 50.0, 10.0, 1.0
"""Sizes of tensors."""

PART_DEVIATION = 0.1
"""Of r, whose mean is 0."""


@dataclass(frozen=True)
class Reading:
    """A meaning that Appendix B.1 may have."""

    cost: Callable[[Floats, Floats, Floats], Floats]
    """Sizes read f64[n], sizes written f64[n], r f64[n] -> costs f64[n]; below 0 they become 0."""
    silent: float = 0.0
    """Part of the nodes whose tensor has size 0."""
    sink: bool = False
    """True if one node more, without costs, reads every unread tensor, and writes one of size 0."""


def _sum(sizes: Floats) -> float:
    # fsum: the same number whatever the width of the machine's vectors.
    return math.fsum(sizes.tolist())


READINGS = {
    "absolute": Reading(lambda read, written, r: read + written + np.abs(r) * _sum(written)),
    "cut-off": Reading(lambda read, written, r: read + written + r * _sum(written)),
    "own": Reading(lambda read, written, r: (read + written) * (1 + r)),
    "written": Reading(lambda _, written, r: written * (1 + r)),
    "normal": Reading(
        lambda read, written, r: MEAN_SIZE + r * (SIZE_DEVIATION / PART_DEVIATION),
        silent=0.8,
        sink=True,
    ),
}
"""`absolute`: |r|. `cut-off`: a cost below 0 becomes 0. `own`: r is a part of what the node itself
reads and writes. `written`: of what it writes, which is all that it costs. `normal`: costs are
N(50, 10) like sizes ("normally distributed", Section 5.1), four nodes of five make no tensor, and
all end in one. The last comes near table 4; its part of silent nodes was found by that."""


@dataclass(frozen=True, eq=False)
class Synthetic:
    """A generated graph of n nodes and e edges. Node v writes tensor v; numbers have no unit."""

    family: str
    n: int
    tail: Ints
    """i64[e], the nodes that make what is read; below `head`."""
    head: Ints
    """i64[e], the nodes that read it; ascending, and tails ascend for equal heads."""
    size: Floats
    """f64[n], size of each tensor, which is also the time to move it."""
    cost: Floats
    """f64[n], time of each node."""


def regal_graph(
    family: str | None = None, n: int | None = None, seed: int = 0, reading: str = "absolute"
) -> Synthetic:
    """Generate a graph; the same arguments give the same graph.

    Parameters
    ----------
    family
        A key of `FAMILIES`; None: one of them, by the seed.
    n
        Number of nodes; None: drawn uniformly from `DRAWN_NODES`. The rest does not depend on
        whether the number was given or drawn.
    seed
        Seed of PCG64.
    reading
        A key of `READINGS`. Edges, sizes other than 0, and r do not depend on it.

    Raises
    ------
    UsageError
        An unknown family or reading, more nodes than `MOST_NODES`, too few for the family, a
        negative seed.
    """
    if seed < 0:
        raise UsageError(f"the seed is {seed}; at least 0")
    if family is None:
        family = list(FAMILIES)[seed % len(FAMILIES)]
    if family not in FAMILIES:
        raise UsageError(f"no family of graphs '{family}'; known: {', '.join(FAMILIES)}")
    if reading not in READINGS:
        raise UsageError(f"no reading '{reading}'; known: {', '.join(READINGS)}")
    rng = np.random.Generator(np.random.PCG64(seed))
    drawn = int(rng.integers(*DRAWN_NODES, endpoint=True))
    if n is None:
        n = drawn
    if n < LEAST_NODES[family]:
        raise UsageError(f"a graph of {family} has at least {LEAST_NODES[family]} nodes, not {n}")
    if n > MOST_NODES:
        raise UsageError(f"a random graph has at most {MOST_NODES} nodes, not {n}")
    how = READINGS[reading]
    ends = np.sort(rng.permutation(n)[FAMILIES[family](n, rng)], axis=1)
    tail, head = ends[np.lexsort((ends[:, 0], ends[:, 1]))].T
    size = np.maximum(LEAST_SIZE, rng.normal(MEAN_SIZE, SIZE_DEVIATION, n))
    part = rng.normal(0.0, PART_DEVIATION, n)
    size[rng.random(n) < how.silent] = 0.0
    read = np.bincount(head, weights=size[tail], minlength=n).astype(np.float64, copy=False)
    made = Synthetic(family, n, tail, head, size, np.maximum(how.cost(read, size, part), 0.0))
    return _with_sink(made) if how.sink else made


def _with_sink(graph: Synthetic) -> Synthetic:
    """Add a last node, without costs, that reads every unread tensor."""
    unread = np.flatnonzero(np.bincount(graph.tail, minlength=graph.n) == 0)
    tail = np.concatenate((graph.tail, unread))
    head = np.concatenate((graph.head, np.full(len(unread), graph.n)))
    size, cost = np.append(graph.size, 0.0), np.append(graph.cost, 0.0)
    return Synthetic(graph.family, graph.n + 1, tail, head, size, cost)
