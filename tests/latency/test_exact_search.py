"""The exact searches for small problems of latency: against brute force, and where they stop."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from tools.agree_latency import EXECUTIONS, auto_case, auto_disagreements

from dnnp.core.cost.latency import LatencyProblem, SearchProof
from dnnp.core.latency.blocks import orders
from dnnp.core.latency.blocks.orders import order_latency
from dnnp.core.latency.operators import contended
from dnnp.core.latency.operators.contended import sequence_latency
from dnnp.core.model.search_context import SearchContext
from support.latency_brute import brute_blocks, brute_operators
from support.latency_cases import random_problem

SMALL = 6

SEARCH: dict[str, Callable[..., SearchProof]] = {
    "blocks": order_latency,
    "operators": sequence_latency,
}


def small_cases(execution: str, count: int) -> list[tuple[LatencyProblem, float]]:
    """Problems that brute force solves in a moment, and their optima."""
    problems = [auto_case(seed, execution, SMALL).searched for seed in range(count)]
    brute = brute_blocks if execution == "blocks" else brute_operators
    return [(problem, brute(problem)[0]) for problem in problems]


def large(execution: str) -> LatencyProblem:
    """More than either search proves with little effort."""
    n = 12 if execution == "blocks" else 20
    return random_problem(random.Random(1), n, execution=execution, devices=3, q=2)


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_auto_proves_small_problems(execution: str) -> None:
    counts: Counter[str] = Counter()
    for seed in range(60):
        assert not auto_disagreements(auto_case(seed, execution, SMALL), counts), seed
    assert counts["optimal"] > 40
    assert counts["infeasible"] > 3
    assert counts["live"] > 8


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_the_search_alone_is_exact_without_a_start_and_with_the_best(execution: str) -> None:
    """From the best that is known it finds nothing, and proves the same."""
    compared = 0
    for problem, want in small_cases(execution, 60):
        proof = SEARCH[execution](problem)
        assert not proof.more
        assert (proof.split is None) == (want == np.inf)
        if proof.split is None:
            assert proof.bound == np.inf
            continue
        assert problem.value(proof.split) == pytest.approx(want, rel=1e-9)
        again = SEARCH[execution](problem, upper=want)
        assert again.split is None
        for found in (proof, again):
            assert want * (1 - 1e-9) <= found.bound <= want
        compared += 1
    assert compared > 40


@pytest.mark.parametrize("steps", [1, 5, 30])
@pytest.mark.parametrize("execution", EXECUTIONS)
def test_what_is_left_open_bounds_from_below(
    execution: str, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contended, "MOST_STEPS", steps)
    monkeypatch.setattr(orders, "MOST_STEPS", steps)
    left = 0
    for problem, want in small_cases(execution, 40):
        for upper in (np.inf, 1.2 * want, want):
            proof = SEARCH[execution](problem, upper=upper)
            left += proof.more
            assert proof.bound <= want
            if proof.split is not None:
                assert want * (1 - 1e-9) <= problem.value(proof.split) < upper
    assert left > 5


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_it_stops_when_it_is_told_to(execution: str) -> None:
    asked = 0

    def interrupted() -> bool:
        nonlocal asked
        asked += 1
        return asked > 2

    proof = SEARCH[execution](large(execution), run=SearchContext(interrupted=interrupted))
    assert proof.more
    assert asked == 3


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_its_effort_is_counted(execution: str) -> None:
    found = [SEARCH[execution](large(execution), run=SearchContext(effort=0.002)) for _ in "ab"]
    assert all(proof.more for proof in found)
    assert found[0].bound == found[1].bound
    more = SEARCH[execution](large(execution), run=SearchContext(effort=0.01))
    assert more.bound >= found[0].bound


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_what_is_not_small_is_left_alone(execution: str) -> None:
    problem = random_problem(random.Random(2), 40, execution=execution, devices=3)
    assert SEARCH[execution](problem) == SearchProof()
