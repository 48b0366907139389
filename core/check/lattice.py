"""Vertices, nets and what both cost: what order ideals are made of."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from dnnp.core.check.exact import bits

ENDLESS = math.inf


@dataclass(frozen=True)
class Class:
    """What vertices and nets cost on a class of devices, in quanta."""

    count: int
    is_cpu: bool
    work: Sequence[int | None]
    """Of each vertex; None: it cannot run there."""
    cost: Sequence[int]
    """Of each net; 0 on a CPU."""
    room: Fraction | float
    """Memory that a stage may hold, in parts of a byte."""
    capacity: Fraction | float
    """Memory above which a stage overflows."""
    memory_per_quantum: Fraction | float
    """What moves in a quantum of time where it overflows."""

    def total(self, nets: int) -> int:
        """Cost of some nets, a bit mask."""
        return sum(self.cost[e] for e in bits(nets)) if nets else 0

    def overflow(self, memory: int) -> int:
        """What a stage of so much memory pays for its overflow."""
        if memory <= self.capacity:
            return 0
        return int((memory - Fraction(self.capacity)) / self.memory_per_quantum)


@dataclass(frozen=True)
class Lattice:
    """Vertices in a topological order, and nets."""

    comm: str
    most_replicas: int
    classes: Sequence[Class]
    before: Sequence[int]
    """Predecessors of each vertex, as a bit mask."""
    after: Sequence[Sequence[int]]
    nets: Sequence[int]
    """Nets of each vertex, as a bit mask."""
    always: int
    """Nets that every stage with a pin pays."""
    writer: Sequence[int]
    """Vertex that makes the tensor of each net, as a bit mask; 0: none does."""
    reaching: Sequence[int]
    """Nets with a pin behind each vertex, in the order, as a bit mask."""
    least: Sequence[int]
    """Work of each vertex on the class where it takes the least."""
    memory: Sequence[int]
    never: int
    """More than any load that matters."""

    @property
    def n(self) -> int:
        """Number of vertices."""
        return len(self.nets)

    def nets_of(self, vertices: Iterable[int]) -> int:
        """Nets with a pin among some vertices."""
        found = 0
        for v in vertices:
            found |= self.nets[v]
        return found

    def addable(self, ideal: int, vertices: Iterable[int]) -> int:
        """Those of some vertices outside of an ideal whose predecessors it holds; a bit mask."""
        found = 0
        for v in vertices:
            if not self.before[v] & ~ideal:
                found |= 1 << v
        return found
