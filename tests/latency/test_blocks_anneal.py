"""Annealing of splits into blocks finds what brute force finds."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from dnnp.core.latency.auto import auto_blocks, simple_bound
from dnnp.core.latency.blocks.anneal import anneal_blocks, valid_latency
from dnnp.core.model.errors import InfeasibleError, LimitError
from dnnp.core.model.search_context import MethodOptions, SearchContext
from support.latency_brute import brute_blocks
from support.latency_cases import random_blocks, random_problem


@pytest.mark.parametrize("seed", range(40))
def test_small_splits_are_optimal(seed: int) -> None:
    problem = random_blocks(seed)
    least, _ = brute_blocks(problem)
    if not np.isfinite(least):
        with pytest.raises((InfeasibleError, LimitError)):
            anneal_blocks(problem, run=SearchContext(effort=0.2))
        return
    split = anneal_blocks(problem, run=SearchContext(effort=0.5))
    assert valid_latency(problem, split) == pytest.approx(least, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_same_seed_same_split(seed: int) -> None:
    problem = random_blocks(seed)
    first, again = (anneal_blocks(problem, run=SearchContext(seed=5, effort=0.3)) for _ in range(2))
    assert first.device.tobytes() == again.device.tobytes()
    assert first.block.tobytes() == again.block.tobytes()


def test_a_start_is_never_lost() -> None:
    rng = random.Random(3)
    problem = random_problem(rng, 9, execution="blocks", devices=2)
    best = anneal_blocks(problem)
    kept = anneal_blocks(problem, start=best, run=SearchContext(interrupted=lambda: True))
    assert valid_latency(problem, kept) <= valid_latency(problem, best)


def test_stop_ends_an_endless_search() -> None:
    rng = random.Random(4)
    problem = random_problem(rng, 12, execution="blocks", devices=2)
    looks = [0]

    def stop() -> bool:
        looks[0] += 1
        return looks[0] > 500

    split = anneal_blocks(problem, endless=True, run=SearchContext(interrupted=stop))
    assert np.isfinite(valid_latency(problem, split))
    assert looks[0] < 520


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_larger_problems_get_valid_splits(seed: int, training: bool) -> None:
    rng = random.Random(seed)
    problem = random_problem(
        rng,
        30,
        execution="blocks",
        devices=3,
        training=training,
        colors=rng.random() < 0.5,
        q=rng.randint(1, 3),
    )
    try:
        split = anneal_blocks(problem, run=SearchContext(effort=0.1))
    except InfeasibleError:
        assert np.isinf(problem.tasks.time).any()
        return
    value = valid_latency(problem, split)
    bound, _ = simple_bound(problem)
    assert bound <= value * (1 + 1e-9)
    assert np.isfinite(value)


def test_what_fits_nowhere_is_infeasible() -> None:
    rng = random.Random(1)
    problem = random_problem(rng, 6, execution="blocks", devices=2)
    machine = problem.machine
    nothing = replace(
        machine, capacity=np.full(machine.count, 1e-3), is_cpu=np.zeros_like(machine.is_cpu)
    )
    with pytest.raises(InfeasibleError, match=r"\(27 B\)"):
        anneal_blocks(replace(problem, machine=nothing))


def test_without_accelerators_all_is_in_the_pool() -> None:
    rng = random.Random(2)
    problem = random_problem(rng, 6, execution="blocks", devices=1)
    machine = replace(problem.machine, is_cpu=np.ones_like(problem.machine.is_cpu))
    alone = replace(problem, machine=machine)
    split = anneal_blocks(alone)
    assert len(split.device) == 0
    bound, _ = simple_bound(alone)
    assert valid_latency(alone, split) == pytest.approx(bound, rel=1e-12)


@pytest.mark.parametrize("seed", [2, 7, 8])
def test_more_invocations_are_never_worse(seed: int) -> None:
    values = []
    for invocations in (1, 2, 3):
        rng = random.Random(seed)
        problem = random_problem(rng, 25, execution="blocks", devices=3, q=invocations)
        values.append(
            problem.value(auto_blocks(problem, MethodOptions(), SearchContext(effort=0.003)).split)
        )
    assert values == sorted(values, reverse=True)
    assert values[-1] < values[0]
