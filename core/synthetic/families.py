"""Undirected random graphs, simple and sparse, from four classic models.

Every function returns i64[e, 2], one row an edge between two different nodes of 0..n-1, no edge
twice. Time and memory are linear in nodes and edges. With more than `FULL_NODES` nodes the
probabilities of `erdos_renyi` and `stochastic_block` shrink, so that the mean degree stays what
it is there.
"""

from __future__ import annotations

import itertools
import math

import numpy as np

from dnnp.core.model.graph import Ints

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
