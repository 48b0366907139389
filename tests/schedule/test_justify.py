"""Idle time filled within limits of memory, and `auto` beside recipes that keep the same limits."""

from __future__ import annotations

import numpy as np
import pytest

from dnnp.core.methods.schedules import RECIPES
from dnnp.core.model.errors import InfeasibleError, UsageError
from dnnp.core.model.schedule import Placement
from dnnp.core.model.search_context import SearchContext
from dnnp.core.schedule.auto import solve
from dnnp.core.schedule.justify import filled, justified, reversed_problem
from dnnp.core.schedule.optimal import sequential_schedule
from dnnp.core.schedule.problem import (
    Wanted,
    peak_memory,
    problem_of,
    span_of,
    violations,
    with_limit,
)
from dnnp.core.schedule.recipes import classic
from dnnp.core.schedule.shapes import shape
from dnnp.core.schedule.transfers import split_backward
from support.placements import random_placement
from support.run import dnnp


def split(name: str, devices: int, memory: float) -> Placement:
    """A shape whose blocks all take 1."""
    return split_backward(shape(name, devices, backward_s=2.0, memory_bytes=memory), 0.5)


@pytest.mark.parametrize("seed", range(40))
def test_no_longer_and_within_the_limits(seed: int) -> None:
    """From one micro-batch after the other, whose peak, or twice that, is the limit."""
    placement = random_placement(seed)
    count = 5
    plain = problem_of(placement, count)
    start = sequential_schedule(plain)
    most = float(peak_memory(plain, start).max())
    assert violations(problem_of(with_limit(placement, most - 1.0), count), start)
    for limit in (most, 2 * most):
        problem = problem_of(with_limit(placement, limit), count)
        assert not violations(problem, start)
        assert not violations(problem, filled(problem, start))
        made = justified(problem, start)
        assert not violations(problem, made)
        assert span_of(problem, made) <= span_of(problem, start) * (1 + 1e-12)


def test_by_hand() -> None:
    """Two stages, memory for two micro-batches: the second starts while the first is away."""
    problem = problem_of(shape("V", 2, memory_bytes=2.0), 2)
    # F0, F1, B1, B0 of each take 1, 1, 3, 3.
    start = np.array([0.0, 1, 2, 5, 8, 9, 10, 13])
    assert filled(problem, start).tolist() == [0, 1, 2, 5, 1, 5, 6, 9]
    one = problem_of(shape("V", 2, memory_bytes=1.0), 2)
    assert filled(one, start).tolist() == [0, 1, 2, 5, 8, 9, 10, 13]
    # What frees memory at a block's start lets another one start with it.
    assert violations(one, filled(one, start)) == []
    assert reversed_problem(one).memory.tolist() == (-one.memory).tolist()


@pytest.mark.parametrize(
    ("name", "devices", "count", "memory", "makespan"),
    [
        ("VV", 4, 12, 8, 75),
        ("VV", 8, 24, 16, 151),
        ("VV", 4, 32, 8, 195),
        ("X", 8, 24, 9, 147),
    ],
)
def test_memory_that_is_left_shortens_warm_up_and_cool_down(
    name: str, devices: int, count: int, memory: int, makespan: float
) -> None:
    """The published makespans of `zb-v` and `dualpipe`, by the command and its checker."""
    result = dnnp(
        *("schedule", "--shape", name, "--devices", str(devices), "-n", str(count)),
        *("--memory", str(memory), "--backward-time", "2", "--split-backward"),
    )
    assert result.status == 0, result.err
    record = result.one("schedule")
    assert (record["makespan_s"], record["status"]) == (makespan, "optimal")
    agreed = dnnp("check", stdin=result.out)
    assert agreed.status == 0, agreed.err


def test_without_a_limit_memory_is_that_of_the_repetend() -> None:
    found = solve(split("VV", 4, np.inf), Wanted(12))
    assert found.repetend is not None
    problem = problem_of(found.placement, 12)
    held = peak_memory(problem, found.start_s.ravel()).max()
    assert held <= found.repetend.memory_bytes.max() == 4
    assert span_of(problem, found.start_s.ravel()) == 83


@pytest.mark.parametrize("name", ["V", "X", "M", "NN", "K", "VV", "AlphaFold"])
@pytest.mark.parametrize("devices", [2, 4])
@pytest.mark.parametrize("whole", [True, False])
def test_never_behind_a_recipe(name: str, devices: int, whole: bool) -> None:
    """Even with little effort."""
    compared = 0
    for memory in (devices // 2 + 1, devices, devices + 1, 2 * devices, 3 * devices):
        limit = float(memory)
        form = shape(name, devices, memory_bytes=limit) if whole else split(name, devices, limit)
        for count in (3, 8):
            problem = problem_of(form, count)
            spans = {}
            for recipe in RECIPES:
                try:
                    made = classic(form, recipe, count).start
                except UsageError:
                    continue
                if not violations(problem, made):
                    spans[recipe] = span_of(problem, made)
            try:
                found = solve(form, Wanted(count), SearchContext(effort=0.02)).start_s.ravel()
            except InfeasibleError:
                assert not spans
                continue
            assert not violations(problem, found)
            assert all(span_of(problem, found) <= span + 1e-9 for span in spans.values()), spans
            compared += len(spans)
    assert compared
