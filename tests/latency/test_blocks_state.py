"""The latency of labels is that of the split they stand for; moves keep it up to date."""

from __future__ import annotations

import random

import numpy as np
import pytest

from dnnp.core.cost.latency import LatencyProblem, time_invocations
from dnnp.core.latency.blocks.anneal import Labels, labels_of, sliced_start, split_of, valid_latency
from dnnp.core.latency.blocks.items import BlockItems, block_items
from dnnp.core.latency.blocks.search import anneal_step, new_annealing
from dnnp.core.latency.blocks.state import (
    BlockState,
    fits,
    latency,
    new_state,
    rebuild,
)
from support.latency_brute import items as plain_items
from support.latency_cases import random_problem

MIX = (0, 200, 100, 150, 60, 60, 60, 300)


def _case(seed: int) -> LatencyProblem:
    rng = random.Random(seed)
    return random_problem(
        rng,
        rng.randint(1, 14),
        execution="blocks",
        tight=rng.random() < 0.5,
        training=rng.random() < 0.4,
        colors=rng.random() < 0.5,
        q=rng.randint(1, 3),
        transfers=rng.choice(["tensor", "edge"]),
    )


def _ordered(items: BlockItems, state: BlockState) -> bool:
    """True if labels never fall along an edge, and odd ones keep to the pass of their slot."""
    tail = np.repeat(np.arange(items.size), np.diff(items.after_ptr))
    return bool((state.at[tail] <= state.at[items.after_idx]).all())


def _supported(items: BlockItems, state: BlockState) -> bool:
    return not state.wrong[0] and all(
        items.slot_late[s] == late for s, late in zip(state.home, items.late, strict=True) if s >= 0
    )


@pytest.mark.parametrize("seed", range(60))
def test_latency_of_labels_is_that_of_their_split(seed: int) -> None:
    problem = _case(seed)
    items = block_items(problem)
    start = sliced_start(items, np.random.default_rng(seed))
    state = new_state(items, start.at, start.slot, start.device)
    search = new_annealing(items, seed, MIX)
    search.price[:] = (50.0, 1.0, 100.0)
    for _ in range(25):
        anneal_step(items, state, search, 30.0, 40)
        assert _ordered(items, state)
        kept = [np.copy(x) for x in state[:10]]
        before = [np.copy(state.wrong), sorted(state.pool[: state.counts[0]])]
        rebuild(items, state)
        for now, then in zip(state[:10], kept, strict=True):
            np.testing.assert_allclose(now, then, rtol=1e-9, atol=1e-7)
        assert (state.wrong == before[0]).all()
        assert sorted(state.pool[: state.counts[0]]) == before[1]
        split = split_of(items, Labels(state.at, state.slot, state.device))
        if _supported(items, state):
            value = time_invocations(problem.tasks, problem.machine, split).value
            assert latency(items, state) == pytest.approx(value, rel=1e-9, abs=1e-9)
        assert bool(fits(items, state)) == np.isfinite(valid_latency(problem, split))


@pytest.mark.parametrize("seed", range(60))
def test_labels_of_a_split_stand_for_it(seed: int) -> None:
    problem = _case(seed)
    items = block_items(problem)
    start = sliced_start(items, np.random.default_rng(seed))
    split = split_of(items, start)
    again = labels_of(items, split)
    assert again is not None
    state = new_state(items, again.at, again.slot, again.device)
    assert _ordered(items, state)
    twin = split_of(items, again)
    if np.isfinite(valid_latency(problem, split)):
        assert valid_latency(problem, twin) == pytest.approx(
            valid_latency(problem, split), rel=1e-12
        )


@pytest.mark.parametrize("seed", range(60))
def test_items_are_what_a_split_cannot_part(seed: int) -> None:
    problem = _case(seed)
    items = block_items(problem)
    parts = plain_items(problem)
    label = items.label.tolist()
    for part in parts:
        assert len({label[v] for v in part}) == 1
    if problem.options.invocations > 1:  # else what is tied is joined too
        assert len(parts) == items.size
    tail = np.repeat(np.arange(items.size), np.diff(items.after_ptr))
    assert (tail < items.after_idx).all()
