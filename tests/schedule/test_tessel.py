"""Tessel's search: its repetends are valid, and the best of those that it looks at."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import linprog

from dnnp.core.model.errors import InfeasibleError, LimitError, UsageError
from dnnp.core.model.schedule import PlacedBlock, Placement, Unit, Wait
from dnnp.core.model.search_context import SearchContext
from dnnp.core.schedule.problem import (
    ScheduleProblem,
    problem_of,
    span_of,
    violations,
)
from dnnp.core.schedule.shapes import shape
from dnnp.core.schedule.tessel import tessel
from support.completed import check, scheduled, with_memory
from support.placements import random_placement

LEAST = [("V", 4, 4), ("X", 4, 8), ("M", 5, 6), ("NN", 6, 8), ("K", 3, 6)]
"""Shape, memory and period on 4 devices."""


def least_period(
    problem: ScheduleProblem, index: tuple[int, ...], before: list[tuple[int, int]]
) -> float:
    """Of an index set with an order on every unit, by a linear program; inf: there is none."""
    rows, right = [], []

    def add(i: int, j: int, length: float, lag: int) -> None:
        row = np.zeros(problem.b + 1)
        row[j] -= 1
        row[i] += 1
        row[-1] = -lag
        rows.append(row)
        right.append(-length)

    for u, v, delay in zip(problem.tail, problem.head, problem.delay, strict=True):
        add(u, v, problem.time[u] + delay, index[u] - index[v])
    for i, j in before:
        add(i, j, problem.time[i], 0)
        add(j, i, problem.time[j], 1)
    cost = np.eye(problem.b + 1)[-1]
    low = problem.load().max()
    bounds = [(None, None)] * problem.b + [(low, None)]
    done = linprog(cost, A_ub=np.array(rows), b_ub=right, bounds=bounds)
    return float(done.fun) if done.status == 0 else np.inf


def brute(problem: ScheduleProblem, most: int) -> list[tuple[float, float]]:
    """Period and memory of all index sets and orders with up to `most` micro-batches."""
    mine = [on.tolist() for on in problem.by_unit()]
    found = []
    for index in itertools.product(range(most), repeat=problem.b):
        if min(index) or any(
            index[u] < index[v] for u, v in zip(problem.tail, problem.head, strict=True)
        ):
            continue
        for orders in itertools.product(*map(itertools.permutations, mine)):
            before = [pair for order in orders for pair in itertools.combinations(order, 2)]
            held = 0.0
            for order in orders:
                entry = sum(problem.memory[i] * index[i] for i in order)
                levels = entry + np.cumsum(problem.memory[list(order)])
                held = max(held, levels.max(initial=0.0))
            found.append((least_period(problem, index, before), held))
    return found


CASES = [*((seed, 2) for seed in range(6)), (2, 3), (5, 3)]
"""Seeds and pairs of blocks; with three pairs those of few orders."""


@pytest.mark.parametrize(("seed", "pairs"), CASES)
def test_best_of_all_index_sets_and_orders(seed: int, pairs: int) -> None:
    drawn = random_placement(seed, devices=pairs, pairs=pairs, whole=seed % 3 != 0)
    blocks = tuple(replace(b, time_s=b.time_s or 1.0) for b in drawn.blocks)
    placement = replace(drawn, blocks=blocks)
    problem = problem_of(placement, 1)
    most = 2 if pairs > 2 else 3
    every = brute(problem, most)
    found = tessel(placement, most=most)
    check(placement, found)
    assert found.complete
    assert found.repetend.period_s == pytest.approx(min(period for period, _ in every))
    for less in (0, 1, 2, 3):
        limit = float(found.repetend.memory_bytes.max()) - less
        if limit < problem.memory.max():
            break
        small = with_memory(placement, limit)
        best = min((period for period, held in every if held <= limit), default=np.inf)
        if best < np.inf:
            again = tessel(small, most=most)
            check(small, again)
            assert again.repetend.period_s == pytest.approx(best)
        else:
            with pytest.raises(InfeasibleError, match="no repetend"):
                tessel(small, most=most)


@pytest.mark.parametrize("seed", range(24))
def test_random_placements(seed: int) -> None:
    placement = random_placement(seed, whole=seed % 2 == 0)
    found = tessel(placement, run=SearchContext(effort=0.02))
    check(placement, found)
    held = float(found.repetend.memory_bytes.max())
    for limit in (0.7 * held, 0.4 * held):
        small = with_memory(placement, limit)
        try:
            again = tessel(small, run=SearchContext(effort=0.02))
        except (InfeasibleError, LimitError):
            continue
        check(small, again)
        assert again.repetend.period_s >= found.repetend.period_s * (1 - 1e-6) or not found.complete


@pytest.mark.parametrize(("name", "memory", "period"), LEAST)
def test_shapes_in_training(name: str, memory: int, period: float) -> None:
    placement = shape(name, 4, memory_bytes=memory)
    found = tessel(placement)
    check(placement, found)
    assert found.complete
    assert found.repetend.period_s == found.repetend.period_bound_s == period
    assert found.repetend.memory_bytes.max() <= memory


@pytest.mark.parametrize(("name", "period"), [("V", 1), ("X", 2), ("M", 2), ("NN", 3), ("K", 2)])
def test_shapes_in_inference(name: str, period: float) -> None:
    placement = shape(name, 4, inference=True)
    found = tessel(placement)
    check(placement, found)
    assert found.repetend.period_s == period


@pytest.mark.parametrize(
    ("name", "periods"),
    [
        ("V", {3: 8, 2: 8, 1: 16}),
        ("M", {4: 7, 3: 10, 2: 10, 1: 18}),
        ("NN", {4: 9, 2: 12, 1: 20}),
        ("K", {2: 8}),
        ("X", {3: 9, 2: 13}),
    ],
)
def test_shapes_with_less_memory(name: str, periods: dict[int, float]) -> None:
    for memory, period in periods.items():
        placement = shape(name, 4, memory_bytes=memory)
        found = tessel(placement)
        check(placement, found)
        assert found.complete
        assert found.repetend.period_s == period


def test_fewer_micro_batches() -> None:
    periods = []
    for most in (1, 2, 3, 4, 5):
        found = tessel(shape("V", 4), most=most)
        assert found.micro_batches <= most
        assert len(found.tried) <= most
        periods.append(found.repetend.period_s)
    assert periods[0] == 16
    assert periods[3] == periods[4] == 4
    assert all(a >= b for a, b in itertools.pairwise(periods))
    assert tessel(shape("V", 4), most=2**53 - 1).repetend.period_s == 4


@pytest.mark.parametrize(("name", "memory"), [("V", 4), ("K", 2), ("M", 3)])
def test_lazy_and_not(name: str, memory: int) -> None:
    placement = shape(name, 4, memory_bytes=memory)
    lazy, other = tessel(placement), tessel(placement, lazy=False)
    check(placement, other)
    assert other.repetend.period_s == lazy.repetend.period_s
    assert other.tried == lazy.tried
    assert other.improved == lazy.improved
    np.testing.assert_array_equal(other.repetend.start_s, lazy.repetend.start_s)


def test_schedules_of_shapes() -> None:
    """Warm-up and cool-down of V, M and NN are as short as any."""
    for name, memory, period, offset in (("V", 4, 4, 12), ("M", 5, 6, 12), ("NN", 6, 8, 12)):
        placement = shape(name, 4, memory_bytes=memory)
        found = tessel(placement)
        for count in (6, 8, 12, 16, 200):
            problem = problem_of(placement, count)
            start = scheduled(placement, found, count)[0]
            assert violations(problem, start) == []
            assert span_of(problem, start) == period * count + offset


def blocks_on(homes: list[tuple[int, ...]], times: list[float], held: list[float]) -> Placement:
    """A chain of blocks."""
    blocks = tuple(
        PlacedBlock(f"b{i}", "forward", (home,), time, memory, (Wait(i - 1),) if i else ())
        for i, (home, time, memory) in enumerate(zip(homes, times, held, strict=True))
    )
    units = tuple(Unit(f"device/{d}") for d in range(1 + max(d for h in homes for d in h)))
    return Placement("chain", units, blocks)


def test_delays_and_fractions() -> None:
    """With little memory the period follows from the delay, and is no whole number."""
    placement = blocks_on([(0,), (1,), (0,)], [1.0, 1.0, 1.0], [1.0, 0.0, -1.0])
    waits = (Wait(1, delay_s=2.5),)
    late = (*placement.blocks[:2], replace(placement.blocks[2], after=waits))
    placement = replace(placement, blocks=late)
    found = tessel(placement)
    check(placement, found)
    assert found.repetend.period_s == 2
    tight = with_memory(placement, 1)
    found = tessel(tight)
    check(tight, found)
    assert found.repetend.period_s == 5.5
    two = with_memory(placement, 2)
    found = tessel(two)
    check(two, found)
    assert found.repetend.period_s == 2.75


def test_blocks_of_no_time() -> None:
    placement = blocks_on([(0,), (1,), (0,)], [0.0, 0.0, 0.0], [1.0, 0.0, -1.0])
    found = tessel(placement)
    check(placement, found)
    assert found.repetend.period_s > 0
    half = blocks_on([(0, 1), (0,), (1,), (0, 1)], [0.0, 3.0, 0.0, 0.0], [1.0, 1.0, -1.0, -1.0])
    half = replace(half, blocks=(*half.blocks[:3], replace(half.blocks[3], homes=((0,),))))
    with pytest.raises(InfeasibleError, match="device/0"):
        tessel(with_memory(half, 9))
    check(half, tessel(half))


def test_stops() -> None:
    placement = shape("X", 8, memory_bytes=6)
    with pytest.raises(LimitError):
        tessel(placement, run=SearchContext(interrupted=lambda: True))
    with pytest.raises(LimitError):
        tessel(placement, run=SearchContext(effort=0))
    asked = 0

    def after_some() -> bool:
        nonlocal asked
        asked += 1
        return asked > 20

    found = tessel(placement, run=SearchContext(interrupted=after_some))
    check(placement, found)
    assert not found.complete
    assert found.repetend.status == "interrupted"
    short, again = (
        tessel(placement, run=SearchContext(effort=0.01)),
        tessel(placement, run=SearchContext(effort=0.01)),
    )
    assert not short.complete
    assert short.repetend.status == "feasible"
    assert short.tried == again.tried
    np.testing.assert_array_equal(short.repetend.start_s, again.repetend.start_s)


def test_what_it_refuses() -> None:
    with pytest.raises(UsageError, match="256 blocks, not 400"):
        tessel(shape("V", 200))
    placement = shape("V", 2)
    turns = replace(placement.blocks[0], homes=((0,), (1,)))
    with pytest.raises(UsageError, match="take turns"):
        tessel(replace(placement, blocks=(turns, *placement.blocks[1:])))
    with pytest.raises(InfeasibleError, match="no repetend"):
        tessel(with_memory(blocks_on([(0,), (0,), (0,)], [1, 1, 1], [1, 1, -2]), 1))
    with pytest.raises(UsageError, match="not 0"):
        tessel(replace(placement, blocks=()))
