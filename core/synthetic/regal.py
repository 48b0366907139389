"""Random computation graphs like those of REGAL (Archer et al. 2024, Appendix B.1).

A random graph of one of four families gets its nodes ordered at random, and each edge leads from
the earlier node to the later one. Each node makes one tensor, of size max(1, N(50, 10)), which
all its successors read. A node costs what it reads and writes plus a part r = |N(0, 0.1)| of the
sizes of all tensors together. A tensor nobody reads is an output of the model.

The 2024 paper does not print the parameters of the families, nor does it say what becomes of
sizes below 1 and of negative r: those here are ours. REGAL also dropped graphs that are easy
to schedule in little memory; here all are kept.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dnnp.core.model.errors import UsageError
from dnnp.core.model.graph import Floats, Ints
from dnnp.core.synthetic import families

FAMILIES = {
    "erdos-renyi": families.erdos_renyi,
    "barabasi-albert": families.barabasi_albert,
    "watts-strogatz": families.watts_strogatz,
    "stochastic-block": families.stochastic_block,
}

LEAST_NODES = {
    "erdos-renyi": 2,
    "barabasi-albert": families.ATTACHMENTS + 1,
    "watts-strogatz": families.NEIGHBOURS + 1,
    "stochastic-block": families.BLOCKS,
}

MOST_NODES = 1_000_000

DRAWN_NODES = (50, 200)
"""Least and greatest number of nodes where none is asked for."""

MEAN_SIZE, SIZE_DEVIATION, LEAST_SIZE = 50.0, 10.0, 1.0
"""Sizes of tensors."""

PART_DEVIATION = 0.1
"""Of r, whose mean is 0 before the sign is dropped."""


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


def regal_graph(family: str | None = None, n: int | None = None, seed: int = 0) -> Synthetic:
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

    Raises
    ------
    UsageError
        An unknown family, more nodes than `MOST_NODES`, too few for the family, a negative seed.
    """
    if seed < 0:
        raise UsageError(f"the seed is {seed}; at least 0")
    if family is None:
        family = list(FAMILIES)[seed % len(FAMILIES)]
    if family not in FAMILIES:
        raise UsageError(f"no family of graphs '{family}'; known: {', '.join(FAMILIES)}")
    rng = np.random.Generator(np.random.PCG64(seed))
    drawn = int(rng.integers(*DRAWN_NODES, endpoint=True))
    if n is None:
        n = drawn
    if n < LEAST_NODES[family]:
        raise UsageError(f"a graph of {family} has at least {LEAST_NODES[family]} nodes, not {n}")
    if n > MOST_NODES:
        raise UsageError(f"a random graph has at most {MOST_NODES} nodes, not {n}")
    ends = rng.permutation(n)[FAMILIES[family](n, rng)]
    tail, head = ends.min(axis=1), ends.max(axis=1)
    order = np.lexsort((tail, head))
    tail, head = tail[order], head[order]
    size = np.maximum(LEAST_SIZE, rng.normal(MEAN_SIZE, SIZE_DEVIATION, n))
    part = np.abs(rng.normal(0.0, PART_DEVIATION, n))
    read = np.bincount(head, weights=size[tail], minlength=n)
    # fsum: the same number whatever the width of the machine's vectors.
    cost = read + size + part * math.fsum(size.tolist())
    return Synthetic(family, n, tail, head, size, cost)
