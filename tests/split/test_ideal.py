"""The ideal search: optimal, proven, and honest about its limits."""

from __future__ import annotations

import numpy as np
import pytest

from dnnp.core.check.plan import check_plan
from dnnp.core.cost.problem import make_plan
from dnnp.core.split.ideals.search import ideal_search
from support.brute import brute_force
from support.cases import random_case


def agrees(case) -> None:
    """The search finds the optimum that brute force finds, and proves no more."""
    expected, _ = brute_force(case.problem)
    found = ideal_search(case.problem)
    label = f"seed {case.seed}: {case.options} {case.devices}"
    if not np.isfinite(expected):
        assert found.blocks is None, label
        # In another order of its nodes a block might need less memory.
        assert found.bound == np.inf or case.options.memory_model == "peak", label
        return
    assert found.blocks is not None, label
    plan = make_plan(
        case.problem,
        found.blocks,
        method="exact",
        bound=found.bound,
        digest="0" * 64,
    )
    assert check_plan(case.graph, None, plan).violations == (), label
    assert plan.validity == "ordered", label
    assert plan.value == pytest.approx(expected, rel=1e-9, abs=1e-12), label
    assert found.bound <= expected * (1 + 1e-9), label
    if case.options.memory_model == "sum":
        assert found.bound == pytest.approx(expected, rel=1e-9, abs=1e-12), label

    # With an incumbent the graph may be contracted further.
    near = expected * 1.001 + 1e-3
    again = ideal_search(case.problem, incumbent=near)
    assert again.value == pytest.approx(expected, rel=1e-9, abs=1e-12), label
    proof = ideal_search(case.problem, incumbent=expected)
    assert proof.blocks is None, label
    assert proof.bound <= expected, label
    if case.options.memory_model == "sum":
        assert proof.bound == pytest.approx(expected, rel=1e-9), label


@pytest.mark.parametrize("start", range(0, 200, 100))
def test_equals_brute_force(start):
    for seed in range(start, start + 100):
        agrees(random_case(seed, 7))
