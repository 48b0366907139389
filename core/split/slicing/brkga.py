"""A biased random-key genetic algorithm over node priorities (MTPP Algorithm 2)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dnnp.core.model.errors import UsageError
from dnnp.core.model.graph import Floats
from dnnp.core.model.request import Evolution
from dnnp.core.model.search_context import PLAIN, Run

MOST_KEYS = 500_000_000
"""Priorities of a generation; 8 bytes each, a few times."""

Fitness = Callable[[Floats], Floats]
"""Values of the rows of f64[c, n], each row a chromosome; less is better."""


def brkga(fitness: Fitness, n: int, how: Evolution, run: Run = PLAIN) -> tuple[Floats, float]:
    """Evolve `n` keys in [0, 1): the best chromosome f64[n] and its value.

    The first generation is random; each further one keeps the elite, draws mutants, and mates
    the rest, one parent from the elite and one from the others. Once the run is to stop, the best
    so far is returned, after one generation at least.

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
    rng = np.random.default_rng(run.seed)
    keys = rng.random((how.population, n))
    values = fitness(keys)
    for _ in range(1, how.generations):
        if run.stop():
            break
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
