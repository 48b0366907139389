"""What is asked of a method besides the problem, and what it answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dnnp.core.model.errors import UsageError
from dnnp.core.model.graph import Floats, Ints
from dnnp.core.model.learned import Training
from dnnp.core.model.plan import Block


@dataclass(frozen=True)
class Evolution:
    """How a population evolves (Goncalves and Resende, 2011)."""

    population: int = 100
    generations: int = 100
    elite: float = 0.2
    """Share of the population that is kept."""
    mutants: float = 0.15
    """Share of the population that is drawn anew."""
    bias: float = 0.7
    """Probability that a child takes a key from its elite parent."""

    def check(self) -> None:
        """Refuse what is no evolution.

        Raises
        ------
        UsageError
            Too few individuals or generations, or shares that do not add up.
        """
        if self.population < 2:
            raise UsageError(f"a population of {self.population} is too small: at least 2")
        if self.generations < 1:
            raise UsageError(f"{self.generations} generations are too few: at least 1")
        if not 0 < self.elite < 1:
            raise UsageError(f"an elite share of {self.elite:g} is not between 0 and 1")
        if not 0 <= self.mutants < 1:
            raise UsageError(f"a share of mutants of {self.mutants:g} is not below 1")
        if not 0 <= self.bias <= 1:
            raise UsageError(f"a bias of {self.bias:g} is no probability")
        if self.kept + self.drawn > self.population:
            raise UsageError(
                f"an elite of {self.kept} and {self.drawn} mutants are more than a population of "
                f"{self.population}"
            )

    @property
    def kept(self) -> int:
        """Individuals that are kept; at least 1, and not all."""
        return min(max(round(self.elite * self.population), 1), self.population - 1)

    @property
    def drawn(self) -> int:
        """Mutants of a generation."""
        return round(self.mutants * self.population)


@dataclass(frozen=True)
class Asked:
    """Options of methods; each heeds what concerns it."""

    method: str = "auto"
    validity: str | None = None
    """What is asked of the split: `ordered`, `convex` or `free`; None: the method's own."""
    order: str = "best"
    sequence: Ints | None = None
    """i64[g], units in the order to slice, instead of a named one."""
    ties: Callable[..., Any] | None = None
    """Of `max-load` in the order `published`: finds the one of the splits of least load that some
    program returns, as a line of items, i64[b + 1] bounds of blocks, and i64[b] their classes, from
    a problem, the load that is reached, and the run."""
    priorities: Floats | None = None
    """f64[g], priorities of the units for the order to slice, instead of a named one."""
    samples: int = 100
    """Orders that method `random` tries."""
    evolution: Evolution = field(default_factory=Evolution)
    """How `brkga`, `mla` and `mla-weighted` evolve an order."""
    solver: str = "cbc"
    """Of integer programs: `cbc` or `highs`."""
    training: Training = field(default_factory=Training)
    """Of `placeto`: the policy that it starts from, and what that learns from."""
    least_peak: bool = False
    """Order the nodes of a stage for a small peak even where memory does not bind."""


@dataclass(frozen=True)
class Solution:
    """A split, and what was proven about it."""

    blocks: list[Block]
    bound: float = 0.0
    """No split of the validity asked for has a smaller objective."""
    method: str = ""
    """What made it; empty: the method that was asked."""
    planned_by: str = ""
    """As in `Plan`: `classes` where it knew the best link of each class only."""
