"""Random layered graphs on devices of unequal speed, for latency of operator-level placement.

Nodes come in layers of 1 to 8. A node reads the tensors of 1 to 3 nodes of the last three layers,
the first layer reads nothing. Work is lognormal; a device of speed s takes work / s times a factor
between 0.8 and 1.2, drawn for every node and device. Each node makes one tensor, of lognormal
size, which all its readers read. A link moves one byte per unit of time between any two devices,
so that a size is a transfer time. Sizes are scaled so that the mean transfer time is `ratio` times
the mean compute time, over all nodes and devices (HEFT's communication-to-computation ratio on
the mean device; Topcuoglu et al. 2002, Section 5.2). Work has mean 1. Numbers have no unit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dnnp.core.model.errors import UsageError
from dnnp.core.model.graph import Floats, Ints

SPEEDS = (1.0, 1.0, 0.5, 0.25)
"""Of the devices."""

WIDEST, MOST_READ, REACH = 8, 3, 3
"""Nodes of a layer, tensors that a node reads, and layers that it looks back, at most."""

SPREAD = 0.2
"""Times of one device are within this part of what its speed says."""

SIGMA = 2.0
"""Standard deviation of the logarithms of work and of sizes; operators of real networks have 1
to 3."""

MOST_NODES = 1_000_000


@dataclass(frozen=True, eq=False)
class Layered:
    """A generated graph of n nodes and e edges. Node v writes tensor v."""

    n: int
    tail: Ints
    """i64[e], the nodes that make what is read; below `head`."""
    head: Ints
    """i64[e], the nodes that read it; ascending, and tails ascend for equal heads."""
    size: Floats
    """f64[n], size of each tensor, which is also the time to move it."""
    times: dict[str, Floats]
    """Device class -> f64[n]."""


def layered_graph(n: int, ratio: float = 1.0, seed: int = 0) -> Layered:
    """Generate a graph; the same arguments give the same graph.

    Structure, work and sizes up to scale depend on `n` and `seed` alone.

    Parameters
    ----------
    n
        Number of nodes.
    ratio
        Mean transfer time over mean compute time.
    seed
        Seed of PCG64.

    Raises UsageError: no nodes or more than `MOST_NODES`, a negative ratio, a negative seed.
    """
    if seed < 0:
        raise UsageError(f"the seed is {seed}; at least 0")
    if not 1 <= n <= MOST_NODES:
        raise UsageError(f"a random graph has 1 to {MOST_NODES} nodes, not {n}")
    if not 0 <= ratio < np.inf:
        raise UsageError(f"communication to computation is {ratio}; at least 0")
    rng = np.random.Generator(np.random.PCG64(seed))
    tail, head = _edges(n, rng)
    work = rng.lognormal(-(SIGMA**2) / 2, SIGMA, n)
    size = rng.lognormal(-(SIGMA**2) / 2, SIGMA, n)
    factor = rng.uniform(1 - SPREAD, 1 + SPREAD, (len(SPEEDS), n))
    time = work * factor / np.array(SPEEDS)[:, None]
    # fsum: the same number whatever the width of the machine's vectors.
    compute = math.fsum(time.ravel().tolist()) / time.size
    move = math.fsum(size.tolist()) / n
    names = [f"speed{i}" for i in range(len(SPEEDS))]
    size *= ratio * compute / move
    return Layered(n, tail, head, size, dict(zip(names, time, strict=True)))


def _edges(n: int, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Tails and heads i64[e] of the edges, sorted by head, then tail."""
    starts = [0]
    while starts[-1] < n:
        starts.append(min(starts[-1] + int(rng.integers(1, WIDEST, endpoint=True)), n))
    tail: list[int] = []
    head: list[int] = []
    for layer in range(1, len(starts) - 1):
        first = starts[max(layer - REACH, 0)]
        for v in range(starts[layer], starts[layer + 1]):
            count = min(int(rng.integers(1, MOST_READ, endpoint=True)), starts[layer] - first)
            read = rng.choice(starts[layer] - first, count, replace=False) + first
            tail += sorted(read.tolist())
            head += [v] * count
    return np.array(tail, dtype=np.int64), np.array(head, dtype=np.int64)
