"""Parallel plans: the search finds what trying all of them finds, and its bounds hold."""

from __future__ import annotations

import pytest

from support.hybrid import disagreement

COUNT = 60


@pytest.mark.parametrize("seed", range(COUNT))
def test_equals_brute_force(seed: int) -> None:
    assert not disagreement(seed)
