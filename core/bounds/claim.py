"""What an argument for a lower bound starts from, and what it says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

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


SOLVED, LIMIT, REFUSED, FAILED = "solved", "limit", "refused", "failed"


@dataclass(frozen=True)
class Claim:
    """A lower bound of the objective of all splits of a validity, and what proves it."""

    value: float
    """No such split has a smaller objective; 0: nothing is proven."""
    status: str = SOLVED
    """`solved`: the argument gave all it can; `limit`: it was stopped before, and the value still
    holds; `refused`: it does not hold for this cost model; `failed`: the solver did."""
    reason: str = ""
    """Why it was refused, or failed."""
    certificate: Mapping[str, Any] | None = None
    """With what another program verifies it (`dnnp-graph(5)`)."""
    blocks: list[Block] | None = None
    """A split better than the one known, if one was found on the way."""
    long: bool = False
    """Whether verifying it may take more steps than `dnnp-check` takes."""

    @property
    def checkable(self) -> bool:
        """Whether another program is likely to verify it."""
        return bool(self.certificate and self.certificate.get("checkable", True)) and not self.long
