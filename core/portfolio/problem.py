"""What is asked of a solver, and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, Generic, TypeVar

from dnnp.core.baselines.table import Settings
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.asked import Evolution
from dnnp.core.model.graph import Floats, Ints
from dnnp.core.model.plan import Block

S = TypeVar("S")


@dataclass(frozen=True)
class Request(Settings):
    """What a solver is told besides the problem; each heeds what concerns it."""

    method: str = "auto"
    order: str = "best"
    sequence: Ints | None = None
    """i64[g], units in the order to slice, instead of a named one."""
    priorities: Floats | None = None
    """f64[g], priorities of the units for the order to slice, instead of a named one."""
    samples: int = 100
    """Orders that method `random` tries."""
    evolution: Evolution = field(default_factory=Evolution)
    """How `brkga`, `mla` and `mla-weighted` evolve an order."""
    validity: str | None = None
    """What is asked of the split: `ordered`, `convex` or `free`; None: the method's own."""
    solver: str = "cbc"
    least_peak: bool = False
    """Order the nodes of a stage for a small peak even where memory does not bind."""
    time_left: Callable[[], float | None] = lambda: None
    """Seconds that are left; None: no limit."""
    progress: Callable[[float], None] = lambda share: None
    """Told the share of a long step that is done."""
    tell: Callable[[str], None] = lambda message: None
    """Told what was found on the way."""
    runs: Callable[[Sequence[Callable[..., Any]]], None] = lambda kernels: None
    """Told the kernels that run next, which may have to be compiled."""
    keep: Callable[[Any, float, str], None] = lambda split, value, method: None
    """Told a split that fits, its objective, and what made it: it is the answer where the search
    does not come to its end. Set by `solve` and `solve_latency`."""
    programs: Mapping[str, Callable[[SplitProblem, Request], list[Block]]] = field(
        default_factory=dict
    )
    """Methods that are programs of their own, which the caller runs."""


class Kept(Generic[S]):
    """The best of what a search has found so far."""

    def __init__(self) -> None:
        self.split: S | None = None
        self.value = inf
        self.method = ""

    def keep(self, split: S, value: float, method: str) -> None:
        """Take over a split, if it is better."""
        if value < self.value:
            self.split, self.value, self.method = split, value, method
