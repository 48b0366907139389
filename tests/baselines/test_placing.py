"""Every placing method: valid, never below brute force, deterministic, and it stops."""

from __future__ import annotations

import random

import numpy as np
import pytest

from dnnp.core.cost.latency import LatencyProblem
from dnnp.core.latency.lists.schedule import (
    MemoryLimits,
    first_fit,
    memory_limits,
    packed,
    repaired,
)
from dnnp.core.model.errors import InfeasibleError, LimitError
from support.latency_brute import brute_operators
from support.latency_cases import random_problem
from support.placing import PLACERS, layered, place, problem_of

QUICK = {"placeto": 0.002, "getf": 1.0}
"""Effort in tests, where it is not 0.1."""


def effort_of(name: str) -> float:
    return QUICK.get(name, 0.1)


def case(seed: int, n: int) -> LatencyProblem:
    """A small problem; all that there is comes up."""
    return random_problem(
        random.Random(seed),
        n,
        tight=seed % 2 == 0,
        training=seed % 3 == 0,
        colors=seed % 5 < 2,
        congestion=("device", "channel", "none")[seed % 3],
        links=seed % 4 == 0,
        transfers=("tensor", "edge")[seed % 2],
    )


@pytest.mark.parametrize("seed", range(40))
def test_no_method_beats_brute_force(seed: int) -> None:
    problem = case(seed, 1 + seed % 5)
    least, _ = brute_operators(problem)
    for name in PLACERS:
        if np.isinf(least):
            with pytest.raises(InfeasibleError):
                place(name, problem, effort=effort_of(name))
            continue
        try:
            value = problem.value(place(name, problem, effort=effort_of(name)))
        except InfeasibleError:
            assert name == "single"
            continue
        assert value >= least * (1 - 1e-12), name


@pytest.mark.parametrize("seed", range(12))
def test_larger_problems_are_placed_within_all_limits(seed: int) -> None:
    problem = case(seed + 100, 40)
    for name in PLACERS:
        if name == "getf-milp":
            continue
        try:
            placement = place(name, problem, effort=effort_of(name))
        except InfeasibleError:
            if name == "single":
                continue
            with pytest.raises(InfeasibleError):
                packed(memory_limits(problem))
            continue
        assert np.isfinite(problem.value(placement))


@pytest.mark.parametrize("name", sorted(set(PLACERS) - {"getf-milp"}))
def test_same_seed_same_bytes(name: str) -> None:
    problem = layered(60, 1.0)
    first, second = (place(name, problem, seed=3, effort=effort_of(name)) for _ in range(2))
    assert first.device.tobytes() == second.device.tobytes()
    assert first.events.tobytes() == second.events.tobytes()


@pytest.mark.parametrize("name", sorted(set(PLACERS) - {"getf-milp"}))
def test_stopped_at_once_there_is_still_an_answer(name: str) -> None:
    problem = layered(60, 1.0)
    assert np.isfinite(problem.value(place(name, problem, interrupted=lambda: True)))


@pytest.mark.parametrize("name", sorted(PLACERS))
def test_one_task_and_no_edges(name: str) -> None:
    alone = problem_of([[3.0], [2.0]], [], [])
    assert alone.tasks.flows == 0
    assert place(name, alone).device.shape == (1,)
    apart = problem_of([[3.0, 1.0], [2.0, 5.0]], [], [])
    assert apart.value(place(name, apart)) >= 2.0


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", sorted(PLACERS))
def test_no_tasks_no_times_and_tasks_for_one_device(name: str) -> None:
    effort = effort_of(name)
    empty = problem_of(np.zeros((2, 0)), [], [])
    assert empty.value(place(name, empty, effort=effort)) == 0
    chain = [(0, 1), (1, 2)]
    nothing = problem_of(np.zeros((2, 3)), chain, [0, 0], memory=[0] * 3, capacity=[0, 0])
    assert nothing.value(place(name, nothing, effort=effort)) == 0
    alone = problem_of([[1, 2, 3]], chain, [9, 9])
    assert alone.value(place(name, alone, effort=effort)) == 6
    if name != "single":
        picky = problem_of([[1, np.inf, 2], [np.inf, 2, np.inf]], chain, [1, 1])
        assert picky.value(place(name, picky, effort=effort)) == 7


def test_a_task_that_nothing_runs_is_named() -> None:
    problem = problem_of([[1.0, np.inf], [1.0, np.inf]], [(0, 1)], [1.0])
    for name in set(PLACERS) - {"single"}:
        with pytest.raises(InfeasibleError, match="no device runs task 1"):
            place(name, problem)
    with pytest.raises(InfeasibleError, match="no single device runs every task"):
        place("single", problem)


def test_a_shortfall_is_named() -> None:
    problem = problem_of(
        [[1.0] * 3] * 2, [(0, 1)], [1.0], memory=[4.0, 4.0, 4.0], capacity=[5.0, 5.0]
    )
    with pytest.raises(InfeasibleError, match=r"need 12 B.* have 10 B, 2 B short"):
        place("heft", problem)
    with pytest.raises(InfeasibleError, match="at most 5"):
        place("single", problem)
    large = problem_of([[1.0]] * 2, [], [], memory=[6.0], capacity=[5.0, 5.0])
    with pytest.raises(InfeasibleError, match="need 6 B"):
        place("m-etf", large)


MEMORY, CAPACITY = [float(x) for x in (7, 8, 2, 6, 4, 5)], 16.0
"""First fit decreasing and its kin fail; 8 + 2 + 6 and 7 + 4 + 5 fit."""


@pytest.mark.parametrize("name", sorted(set(PLACERS) - {"single"}))
def test_where_first_fit_fails_a_program_packs(name: str) -> None:
    n = len(MEMORY)
    problem = problem_of(
        [[1.0] * n] * 2,
        [(i, i + 1) for i in range(n - 1)],
        [1.0] * (n - 1),
        memory=MEMORY,
        capacity=[CAPACITY] * 2,
    )
    assert first_fit(memory_limits(problem)) is None
    assert np.isfinite(problem.value(place(name, problem, effort=effort_of(name))))


def test_packing_says_that_nothing_fits() -> None:
    room = MemoryLimits(np.full(3, 4.0), np.full(2, 6.0), np.ones((2, 3), bool), np.ones((2, 3)))
    with pytest.raises(InfeasibleError):
        packed(room)


def test_packing_too_large_for_a_program_is_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dnnp.core.latency.lists.schedule.MOST_CHOICES", 0)
    count = len(MEMORY)
    room = MemoryLimits(
        np.array(MEMORY), np.full(2, CAPACITY), np.ones((2, count), bool), np.ones((2, count))
    )
    with pytest.raises(LimitError, match="full"):
        packed(room)


def test_repair_keeps_what_fits() -> None:
    room = MemoryLimits(
        np.array([3.0, 2.0, 2.0]), np.array([5.0, 5.0]), np.ones((2, 3), bool), np.ones((2, 3))
    )
    assert repaired(room, np.array([0, 0, 1])).tolist() == [0, 0, 1]
    assert repaired(room, np.array([0, 0, 0])).tolist() == [0, 0, 1]
    assert repaired(room, np.array([-1, 0, -1])).tolist() == [0, 0, 1]


def test_colours_share_a_device_and_their_memory() -> None:
    """Colour {0, 3} needs 6 of 6 bytes, so nothing else is beside it."""
    problem = problem_of(
        [[1.0] * 4] * 2,
        [(0, 1), (1, 2), (2, 3)],
        [0.1] * 3,
        memory=[3.0] * 4,
        capacity=[6.0, 6.0],
        colors=[0, 1, 2, 0],
    )
    for name in set(PLACERS) - {"single"}:
        device = place(name, problem, effort=effort_of(name)).device
        assert device[0] == device[3] != device[1] == device[2], name
