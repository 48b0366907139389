"""No split into blocks is faster than the bounds say."""

from __future__ import annotations

import random

import numpy as np
import pytest

from dnnp.core.cost.latency import LatencyProblem
from dnnp.core.latency.auto import critical_path, simple_bound
from support.latency_brute import brute_blocks
from support.latency_cases import random_problem

SLACK = 1 + 1e-9


def _case(seed: int) -> LatencyProblem:
    rng = random.Random(seed)
    training = rng.random() < 0.3
    return random_problem(
        rng,
        rng.randint(2, 6),
        execution="blocks",
        tight=rng.random() < 0.7,
        training=training,
        colors=rng.random() < 0.4,
        q=1 if training else rng.choice([1, 1, 2]),
        transfers=rng.choice(["tensor", "tensor", "edge"]),
    )


@pytest.mark.parametrize("seed", range(100))
def test_bounds_hold(seed: int) -> None:
    problem = _case(seed)
    least, _ = brute_blocks(problem)
    assert critical_path(problem) <= least * SLACK
    bound, name = simple_bound(problem)
    assert name
    assert bound <= least * SLACK
    assert bound >= critical_path(problem)
    if np.isfinite(least):
        upper, _ = simple_bound(problem, upper=least)
        assert upper <= least * SLACK
