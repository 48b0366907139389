"""What is known when an argument for a lower bound starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from dnnp.core.model.plan import Block


@dataclass(frozen=True)
class Known:
    """What an argument starts from, besides the problem."""

    validity: str
    """`ordered`, `convex` or `free`: the splits that the bound must hold for."""
    blocks: Sequence[Block] | None = None
    """The best split known; None: none is."""
    value: float = inf
    """Its objective, seconds: the bound is at most that."""
    floor: float = 0.0
    """The best bound so far, seconds: no smaller one is of use."""
    solver: str = "cbc"
    """Of linear and integer programs: `cbc` or `highs`."""
