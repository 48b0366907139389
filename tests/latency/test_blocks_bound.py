"""No split into blocks is faster than the bounds say."""

from __future__ import annotations

import numpy as np
import pytest

from dnnp.core.latency.auto import critical_path, simple_bound
from support.latency_brute import brute_blocks
from support.latency_cases import random_blocks

SLACK = 1 + 1e-9


@pytest.mark.parametrize("seed", range(100))
def test_bounds_hold(seed: int) -> None:
    problem = random_blocks(seed)
    least, _ = brute_blocks(problem)
    assert critical_path(problem) <= least * SLACK
    bound, name = simple_bound(problem)
    assert name
    assert bound <= least * SLACK
    assert bound >= critical_path(problem)
    if np.isfinite(least):
        upper, _ = simple_bound(problem, upper=least)
        assert upper <= least * SLACK
