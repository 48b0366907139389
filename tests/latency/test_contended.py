"""The exact search for small placements: against brute force, its limits, what it leaves open."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest
from tools.agree_latency import auto_case, auto_disagreements

from dnnp.core.cost.latency import LatencyProblem
from dnnp.core.latency.operators import contended
from dnnp.core.latency.operators.contended import is_small, sequence_latency
from dnnp.core.model.search_context import SearchContext
from support.latency_brute import brute_operators
from support.latency_cases import random_problem

SMALL = 6


def small_cases(count: int) -> list[LatencyProblem]:
    """Problems that brute force solves in a moment."""
    return [auto_case(seed, "operators", SMALL).searched for seed in range(count)]


def test_auto_proves_small_placements() -> None:
    counts: Counter[str] = Counter()
    for seed in range(60):
        assert not auto_disagreements(auto_case(seed, "operators", SMALL), counts), seed
    assert counts["optimal"] > 40
    assert counts["infeasible"] > 3
    assert counts["live"] > 8


def test_the_search_alone_is_exact_without_a_start_and_with_the_best() -> None:
    """From the best that is known it finds nothing, and proves the same."""
    compared = 0
    for problem in small_cases(60):
        want, known = brute_operators(problem)
        proof = sequence_latency(problem)
        assert proof.ended
        assert (proof.placement is None) == (known is None)
        if proof.placement is None:
            assert proof.bound == np.inf
            continue
        assert problem.value(proof.placement) == pytest.approx(want, rel=1e-9)
        again = sequence_latency(problem, upper=want)
        assert again.placement is None
        for found in (proof, again):
            assert want * (1 - 1e-9) <= found.bound <= want
        compared += 1
    assert compared > 40


@pytest.mark.parametrize("steps", [1, 5, 30])
def test_what_is_left_open_bounds_from_below(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contended, "MOST_STEPS", steps)
    left = 0
    for problem in small_cases(40):
        want = brute_operators(problem)[0]
        for upper in (np.inf, 1.2 * want, want):
            proof = sequence_latency(problem, upper=upper)
            left += not proof.ended
            assert proof.bound <= want
            if proof.placement is not None:
                assert want * (1 - 1e-9) <= problem.value(proof.placement) < upper
    assert left > 5


def test_it_stops_when_it_is_told_to() -> None:
    asked = 0

    def interrupted() -> bool:
        nonlocal asked
        asked += 1
        return asked > 1

    problem = random_problem(random.Random(1), 20, devices=3)
    assert is_small(problem)
    proof = sequence_latency(problem, run=SearchContext(interrupted=interrupted))
    assert not proof.ended
    assert asked == 2


def test_it_counts_its_steps() -> None:
    problem = random_problem(random.Random(1), 20, devices=3)
    bounds = [sequence_latency(problem, run=SearchContext(effort=e)).bound for e in (0.01, 0.01)]
    assert bounds[0] == bounds[1]
