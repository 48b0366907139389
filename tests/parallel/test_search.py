"""Parallel plans: the search finds what trying all of them finds, and its bounds hold."""

from __future__ import annotations

import pytest

from support.hybrid import disagreement
from support.hybrid_plans import plan_disagreement

COUNT = 60


@pytest.mark.parametrize("seed", range(COUNT))
def test_equals_brute_force(seed: int) -> None:
    assert not disagreement(seed)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("first", range(0, 80, 20))
def test_equals_all_plans_that_the_checker_accepts(first: int, shared: bool) -> None:
    found = [plan_disagreement(seed, shared=shared) for seed in range(first, first + 20)]
    assert not [reason for _, reason in found if reason]
    assert sum(status == "optimal" for status, _ in found) > 8
