"""The search over ideals finds and proves the least latency of blocks."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from dnnp.core.cost.latency import LatencyProblem
from dnnp.core.latency.blocks import ideals as search
from dnnp.core.latency.blocks.ideals import ideal_latency
from dnnp.core.latency.blocks.items import block_items
from dnnp.core.latency.blocks.sweeps import live_tasks
from dnnp.core.model.search_context import PLAIN
from support.latency_brute import brute_blocks
from support.latency_cases import random_problem

CLOSE = 1e-8


@cache
def solved(seed: int) -> tuple[LatencyProblem, float]:
    """A random problem and its least latency."""
    problem = problem_of(seed)
    return problem, brute_blocks(problem)[0]


def problem_of(seed: int) -> LatencyProblem:
    """A random problem; some relaxed by the search, with invocations again or a backward pass."""
    rng = random.Random(f"ideals {seed}")
    training = rng.random() < 0.2
    return random_problem(
        rng,
        rng.randint(1, 7),
        execution="blocks",
        tight=rng.random() < 0.7,
        training=training,
        colors=rng.random() < 0.4,
        q=1 if training else rng.choice([1, 1, 1, 2]),
        transfers=rng.choice(["tensor", "tensor", "edge"]),
    )


def is_exact(problem: LatencyProblem) -> bool:
    """True if the search relaxes nothing."""
    return problem.options.invocations == 1 and not problem.tasks.backward.any()


def least_of(problem: LatencyProblem, upper: float) -> float:
    """The least latency that the search says there is; its bound and split agree."""
    proof = ideal_latency(problem, upper=upper)
    assert (proof.reason, proof.more) == ("", False)
    found = upper if proof.split is None else problem.value(proof.split)
    if np.isfinite(found):
        assert proof.bound <= found
        assert proof.bound >= found * (1 - CLOSE)
    return found


@pytest.mark.parametrize("seed", range(60))
def test_equals_brute_force(seed: int) -> None:
    problem, least = solved(seed)
    for upper in (np.inf, 1.5 * least, least):
        if is_exact(problem):
            assert least_of(problem, upper) == pytest.approx(least, rel=CLOSE)
            continue
        proof = ideal_latency(problem, upper=upper)
        assert proof.bound <= least * (1 + 1e-12)
        if proof.split is not None:
            assert problem.value(proof.split) >= least * (1 - 1e-12)


@pytest.mark.parametrize("seed", range(40))
def test_what_does_not_fit_is_proven_not_to(seed: int) -> None:
    problem = problem_of(seed)
    tasks = replace(problem.tasks, memory=problem.tasks.memory + 1e12)
    bare = replace(problem, tasks=tasks)
    least, _ = brute_blocks(bare)
    bound = ideal_latency(bare).bound
    assert bound == np.inf if np.isinf(least) and is_exact(problem) else bound <= least * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(40))
def test_a_split_that_is_too_good_to_beat(seed: int) -> None:
    """Below the optimum there is nothing, so that the claimed value itself is what is proven."""
    problem, least = solved(seed)
    if np.isfinite(least) and least > 0:
        proof = ideal_latency(problem, upper=0.9 * least)
        assert proof.split is None
        assert proof.bound <= 0.9 * least


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_labels_that_are_merged_still_bound(slots: int) -> None:
    """The first sweep is below the optimum for any limit of labels."""
    merged = 0
    for seed in range(40):
        problem, least = solved(seed)
        items = block_items(problem)
        lattice = search.items_lattice(items)
        assert lattice is not None
        net = search.make_net(items, lattice)._replace(slots=slots)
        state = search._Search(problem, items, lattice, net, np.inf, PLAIN)
        state.scratch = search.new_scratch(items, net)
        tables = search.new_tables(net)
        state.sweep_forward(net, tables)
        merged += int(tables.merged[0])
        assert float(tables.done[-1].min()) <= least * (1 + 1e-12)
    assert merged > 0 or slots > 1


def test_live_tasks_by_definition() -> None:
    for seed in range(20):
        problem = problem_of(seed)
        items = block_items(problem)
        lattice = search.items_lattice(items)
        assert lattice is not None
        parent, last = (x.astype(np.int64) for x in (lattice.parent, lattice.last))
        ptr, idx = live_tasks(parent, last, items)
        for ideal in range(lattice.size):
            held = set(lattice.members(ideal))
            inside = [int(items.label[t]) in held for t in range(problem.tasks.n)]
            maker, reader = (ends.tolist() for ends in problem.tasks.edges)
            want = {u for u, v in zip(maker, reader, strict=True) if inside[u] and not inside[v]}
            assert set(idx[ptr[ideal] : ptr[ideal + 1]].tolist()) == want


def test_many_kinds_are_counted_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound is weaker for too many mixes of kinds, and holds."""
    monkeypatch.setattr(search, "MOST_WAYS", 2)
    for seed in range(40):
        problem, least = solved(seed)
        proof = ideal_latency(problem)
        assert proof.bound <= least * (1 + 1e-12)
        assert proof.split is None or problem.value(proof.split) >= least * (1 - 1e-12)


@pytest.mark.parametrize("blocks", [1, 3, 10, 30, 100])
def test_wherever_it_is_stopped_the_bound_holds(
    blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "CHUNK", 1)
    monkeypatch.setattr(search, "MOST_BLOCKS", blocks)
    some = 0
    for seed in range(60):
        problem, least = solved(seed)
        for upper in (np.inf, 1.2 * least):
            proof = ideal_latency(problem, upper=upper)
            assert proof.bound <= least * (1 + 1e-12)
            some += 0 < proof.bound < least and proof.more
    assert some


def test_limits_leave_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = next(p for p in map(problem_of, range(100)) if p.tasks.n > 5 and is_exact(p))
    least, split = brute_blocks(problem)
    assert split is not None
    monkeypatch.setattr(search, "CHUNK", 1)
    proof = ideal_latency(problem, upper=least, run=replace(PLAIN, effort=1e-9))
    assert proof.more
    assert "effort" in proof.reason
    assert proof.bound <= least
    over = replace(PLAIN, end=0.0)
    assert ideal_latency(problem, upper=least, run=over).more
    monkeypatch.setattr(search, "MOST_VALUES", 1)
    assert "memory" in ideal_latency(problem).reason
    monkeypatch.setattr(search, "MOST_IDEALS", 1)
    assert "too many" in ideal_latency(problem).reason
