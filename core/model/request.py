"""Options of a method besides the problem, its answer, and policies that are learned."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from dnnp.core.model.errors import UsageError
from dnnp.core.model.graph import Floats, Ints
from dnnp.core.model.plan import Block, PolicyUsed


@dataclass(frozen=True, eq=False)
class Policy:
    """Weights of a network that places groups of operators, for a number of devices."""

    devices: int
    hops: int
    """Rounds of message passing."""
    width: int
    """Numbers by which a message describes a group."""
    weights: Floats
    """f64[p], all in one."""
    episodes: int = 0
    """With which they were trained."""
    graphs: int = 0
    """On which they were trained."""

    @cached_property
    def digest(self) -> str:
        """SHA-256 of devices, hops, width and weights."""
        sizes = np.array([self.devices, self.hops, self.width], dtype="<i8")
        plain = np.ascontiguousarray(self.weights, dtype="<f8")
        return hashlib.sha256(sizes.tobytes() + plain.tobytes()).hexdigest()


@dataclass(frozen=True)
class Training:
    """Options of a method that learns."""

    policy: Policy | None = None
    """Where to start from; None: weights are drawn."""
    family: tuple[Any, ...] = ()
    """Latency problems to train on; empty: the one that is to be solved."""
    episodes: int | None = None
    """Of training; None: by effort, and none for a given policy that no family comes with."""


class Learned(NamedTuple):
    """Origin of the policy that made a split, and how it was applied."""

    policy: Policy
    episodes: int
    """Of training in this run."""
    asked: int
    """Episodes that were to be; more than `episodes`: it was stopped."""
    graphs: int
    """On which they were."""
    groups: int
    """Groups that were placed."""
    colors: int
    """Operators, or operators that must be together: if more than `groups`, they were merged."""
    rounds: int
    """In each of which all groups were visited by the policy that was then learned."""

    def told(self) -> PolicyUsed:
        """The part of it that a plan tells."""
        policy = self.policy
        return PolicyUsed(
            policy.digest,
            policy.episodes,
            self.episodes,
            self.asked,
            self.graphs,
            policy.hops,
            self.groups,
            self.colors,
            self.rounds,
        )


@dataclass(frozen=True)
class Evolution:
    """Options of a population that evolves (Goncalves and Resende, 2011)."""

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
class Solution:
    """A split, and what was proven about it."""

    blocks: list[Block]
    bound: float = 0.0
    """No split of the validity asked for has a smaller objective."""
    method: str = ""
    """What made it; empty: the method that was asked."""
    planned_by: str = ""
    """As in `Plan`: `classes` where it knew the best link of each class only."""
    contiguous_bound: float = 0.0
    """As in `Plan`."""


@dataclass(frozen=True)
class Request:
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
    known: Solution = Solution([])
    """A split that fits, perhaps on some of the devices, and a bound; no blocks: no split."""
    near: float = 0.0
    """Where the optimum is expected; 0: nobody knows."""
