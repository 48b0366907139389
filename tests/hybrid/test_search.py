"""Parallel plans: the search finds what trying all of them finds, and its bounds hold."""

from __future__ import annotations

import numpy as np
import pytest

from dnnp.core.hybrid.price import costs_of
from dnnp.core.hybrid.search import plan_hybrid
from dnnp.core.model.errors import InfeasibleError, LimitError
from support.hybrid import best_of_all, random_problem

COUNT = 60


def agree(seed: int, most: int = 5) -> str:
    """Compare a search with all plans; what is wrong."""
    problem = random_problem(seed, most=most)
    best = best_of_all(problem)
    try:
        found = plan_hybrid(problem, [np.arange(problem.n)])
    except (InfeasibleError, LimitError) as error:
        return "" if np.isinf(best) else f"{seed}: {best} is possible, but: {error}"
    costs = costs_of(problem, found.blocks)
    value = max(cost.load_s for cost in costs)
    if value != found.value or any(c.memory_bytes > problem.memory * (1 + 1e-12) for c in costs):
        return f"{seed}: it says {found.value}, and is {value}; {costs}"
    if sorted(np.concatenate([b.items for b in found.blocks]).tolist()) != list(range(problem.n)):
        return f"{seed}: no partition"
    if found.bound > best * (1 + 1e-9) or not np.isclose(found.value, best, rtol=1e-9):
        return f"{seed}: {found.value}, bound {found.bound}, and {best} is possible"
    if found.bound < found.value * (1 - 1e-8):
        return f"{seed}: bound {found.bound} for {found.value}"
    return ""


@pytest.mark.parametrize("seed", range(COUNT))
def test_equals_brute_force(seed: int) -> None:
    assert not agree(seed)
