"""Devices of tasks become blocks."""

from __future__ import annotations

import random

import numpy as np
import pytest

from dnnp.core.cost.latency import POOL, time_invocations
from dnnp.core.latency.auto import critical_path
from dnnp.core.latency.blocks.anneal import sliced_start, split_of
from dnnp.core.latency.blocks.items import block_items
from dnnp.core.latency.homes import blocks_of_homes
from support.latency_cases import random_problem


@pytest.mark.parametrize("seed", range(40))
def test_any_homes_become_blocks_that_can_run(seed: int) -> None:
    rng = random.Random(seed)
    problem = random_problem(
        rng, rng.randint(1, 20), execution="blocks", training=rng.random() < 0.5
    )
    machine, tasks = problem.machine, problem.tasks
    usable = [POOL, *range(machine.count)]
    home = np.array([rng.choice(usable) for _ in range(tasks.n)])
    split = blocks_of_homes(problem, home)
    pooled = (home == POOL) | machine.is_cpu[home]
    assert ((split.block == POOL) == pooled).all()
    assert (split.device[split.block[~pooled]] == home[~pooled]).all()
    for b in range(len(split.device)):
        assert len(np.unique(tasks.backward[split.block == b])) == 1
    assert time_invocations(tasks, machine, split).value >= critical_path(problem)


@pytest.mark.parametrize("seed", range(40))
def test_contiguous_homes_become_one_block_each(seed: int) -> None:
    rng = random.Random(seed)
    problem = random_problem(rng, rng.randint(2, 40), execution="blocks", devices=3, q=1)
    items = block_items(problem)
    split = split_of(items, sliced_start(items, np.random.default_rng(seed)))
    home = (
        np.where(split.block >= 0, split.device[split.block], POOL)
        if len(split.device)
        else split.block
    )
    again = blocks_of_homes(problem, home)
    assert sorted(again.device.tolist()) == sorted(split.device.tolist())
    before = time_invocations(problem.tasks, problem.machine, split).value
    if np.isfinite(before):
        after = time_invocations(problem.tasks, problem.machine, again).value
        assert after == pytest.approx(before, rel=1e-12)
