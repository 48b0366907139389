"""A biased random-key genetic algorithm over node priorities (MTPP Algorithm 2)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dnnp.core.model.errors import UsageError
from dnnp.core.model.graph import Floats

MOST_KEYS = 500_000_000
"""Priorities of a generation; 8 bytes each, a few times."""

Fitness = Callable[[Floats], Floats]
"""Values of the rows of f64[c, n], each row a chromosome; less is better."""


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


def brkga(
    fitness: Fitness,
    n: int,
    how: Evolution,
    *,
    seed: int = 0,
    stop: Callable[[], bool] = lambda: False,
    progress: Callable[[float], None] = lambda share: None,
) -> tuple[Floats, float]:
    """Evolve `n` keys in [0, 1): the best chromosome f64[n] and its value.

    The first generation is random; each further one keeps the elite, draws mutants, and mates
    the rest, one parent from the elite and one from the others. Once `stop` says so, the best so
    far is returned, after one generation at least.

    Raises
    ------
    UsageError
        See `Evolution.check`; or a population that would not fit in memory.
    """
    how.check()
    if how.population * n > MOST_KEYS:
        raise UsageError(
            f"a population of {how.population} with {n} priorities each takes too much memory"
        )
    rng = np.random.default_rng(seed)
    keys = rng.random((how.population, n))
    values = fitness(keys)
    for generation in range(1, how.generations):
        if stop():
            break
        progress(generation / how.generations)
        rank = np.argsort(values, kind="stable")
        keys, values = keys[rank], values[rank]
        children = how.population - how.kept - how.drawn
        good = keys[rng.integers(how.kept, size=children)]
        other = keys[rng.integers(how.kept, how.population, size=children)]
        mated = np.where(rng.random((children, n)) < how.bias, good, other)
        fresh = np.concatenate([mated, rng.random((how.drawn, n))])
        keys = np.concatenate([keys[: how.kept], fresh])
        values = np.concatenate([values[: how.kept], fitness(fresh)])
    best = int(values.argmin())
    return keys[best], float(values[best])
