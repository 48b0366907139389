"""Searches over chains of items find and bound the least latency of blocks."""

from __future__ import annotations

import random
from functools import cache

import numpy as np
import pytest

from dnnp.core.cost.latency import LatencyProblem
from dnnp.core.latency.blocks import ideals as search
from dnnp.core.latency.blocks.chains import (
    _few_ideals,
    _heads,
    contract_chains,
    join_losses,
    joins_of,
)
from dnnp.core.latency.blocks.ideals import ideal_latency
from dnnp.core.latency.blocks.items import block_items
from dnnp.core.model.search_context import PLAIN
from support.latency_brute import brute_blocks
from support.latency_cases import random_problem

SEEDS = range(60)


def problem_of(seed: int) -> LatencyProblem:
    """A random problem with many chains."""
    rng = random.Random(f"chains {seed}")
    return random_problem(
        rng,
        rng.randint(4, 6),
        execution="blocks",
        chains=True,
        tight=rng.random() < 0.7,
        q=rng.choice([1, 1, 1, 2]),
        transfers=rng.choice(["tensor", "tensor", "edge"]),
        colors=rng.random() < 0.2,
    )


@cache
def least_of(seed: int) -> float:
    """The least latency of a problem."""
    return brute_blocks(problem_of(seed))[0]


def test_a_search_by_way_of_chains_equals_brute_force(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither bounds of chains nor what they prune is above the optimum."""
    monkeypatch.setattr(search, "LADDER", tuple(range(2, 13)))
    monkeypatch.setattr(search, "FINER", 1)
    contracted = []
    monkeypatch.setattr(
        search, "contract_chains", lambda *given: contracted.append(1) or contract_chains(*given)
    )
    some = 0
    for seed in SEEDS:
        problem, least, before = problem_of(seed), least_of(seed), len(contracted)
        for upper in (np.inf, 1.5 * least, least):
            proof = ideal_latency(problem, upper=upper)
            found = upper if proof.split is None else problem.value(proof.split)
            assert proof.bound <= least * (1 + 1e-9)
            assert found >= least * (1 - 1e-9)
            if problem.options.invocations == 1:
                assert found == pytest.approx(least, rel=1e-8)
                assert proof.bound == pytest.approx(least, rel=1e-7)
        some += len(contracted) > before
    assert some > 20


def test_each_relaxed_search_bounds_alone() -> None:
    """With all joins, with some, and for any limit of labels."""
    strict = 0
    for seed in SEEDS:
        problem, least = problem_of(seed), least_of(seed)
        items = block_items(problem)
        loss = join_losses(items)
        for limit in np.unique(loss[np.isfinite(loss)]).tolist():
            chains = contract_chains(problem, items, loss <= limit)
            lattice = search.items_lattice(chains.items)
            assert lattice is not None
            net = search.make_net(chains.relaxed, lattice, chains.tails, items)
            state = search._Search(problem, chains.relaxed, lattice, net, np.inf, PLAIN)
            state.init_late_bounds()
            state.refine()
            assert state.bound <= least * (1 + 1e-9)
            strict += np.isfinite(least) and 0.5 * least < state.bound < least * (1 - 1e-9)
    assert strict > 10


def test_joins_of_fewer_ideals_hold_those_of_more() -> None:
    """Joins are nested, leave as many ideals as asked for, and members of a chain are alone."""
    some = 0
    for seed in SEEDS:
        items = block_items(problem_of(seed))
        known = None
        for most in range(2, 14):
            joined = joins_of(items, most)
            if joined is None:
                continue
            some += int(joined.sum())
            assert known is None or not (joined & ~known).any()
            assert _few_ideals(items, joined, most)
            head = _heads(items, joined)
            assert (head[joined] < np.flatnonzero(joined)).all()
            for v in np.flatnonzero(joined).tolist():
                (u,) = items.before_idx[items.before_ptr[v] : items.before_ptr[v + 1]].tolist()
                assert items.after_ptr[u + 1] - items.after_ptr[u] == 1
                assert head[u] == head[v]
            known = joined
    assert some > 100


def test_a_limit_on_the_way_leaves_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "LADDER", tuple(range(2, 13)))
    monkeypatch.setattr(search, "FINER", 1)
    monkeypatch.setattr(search, "CHUNK", 1)
    stopped = 0
    for blocks in (1, 5, 20, 80):
        monkeypatch.setattr(search, "MOST_BLOCKS", blocks)
        for seed in SEEDS:
            proof = ideal_latency(problem_of(seed), upper=1.2 * least_of(seed))
            assert proof.bound <= least_of(seed) * (1 + 1e-9)
            stopped += proof.more and proof.bound > 0
    assert stopped > 20


def test_chains_bound_what_has_too_many_ideals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "LADDER", tuple(range(2, 9)))
    monkeypatch.setattr(search, "FINER", 1)
    monkeypatch.setattr(search, "MOST_IDEALS", 8)
    some = 0
    for seed in SEEDS:
        proof = ideal_latency(problem_of(seed))
        if "too many" in proof.reason and np.isfinite(least_of(seed)):
            assert proof.bound <= least_of(seed) * (1 + 1e-9)
            some += proof.bound > 0 and proof.split is not None
    assert some > 2
