"""The shortest schedules of few micro-batches: against all orders of the blocks."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest

from dnnp.core.model.errors import InfeasibleError, LimitError
from dnnp.core.model.schedule import PlacedBlock, Placement, Unit, Wait
from dnnp.core.model.search_context import SearchContext
from dnnp.core.schedule.optimal import beam, optimal, sequential_schedule
from dnnp.core.schedule.problem import ScheduleProblem, problem_of, span_of, violations
from dnnp.core.schedule.shapes import SHAPES, shape
from dnnp.core.schedule.shop import root_bound, shop_of
from support.placements import random_placement

CLOSE = 1e-7


def brute_force(problem: ScheduleProblem) -> float:
    """Least last end over all orders in which blocks could start, inf if memory allows none.

    Every unit keeps the order for its memory. A block without duration waits for no unit.
    """
    b = problem.b
    units = [problem.unit[problem.ptr[i] : problem.ptr[i + 1]].tolist() for i in range(b)]
    before: list[list[tuple[int, float]]] = [[] for _ in range(b)]
    for a, c, w in zip(
        problem.tail.tolist(), problem.head.tolist(), problem.delay.tolist(), strict=True
    ):
        before[c].append((a, w))
    time, memory = problem.time.tolist(), problem.memory.tolist()
    capacity = (problem.capacity + 1e-9).tolist()
    best = math.inf
    seen = set()

    def run(
        ends: tuple[float, ...],
        begun: tuple[float, ...],
        free: tuple[float, ...],
        held: tuple[float, ...],
    ) -> None:
        nonlocal best
        if (ends, begun) in seen or max(ends) >= best:
            return
        seen.add((ends, begun))
        if min(ends) >= 0:
            best = max(ends)
            return
        for i in range(b):
            if ends[i] >= 0 or any(ends[a] < 0 for a, _ in before[i]):
                continue
            if any(held[u] + max(memory[i], 0.0) > capacity[u] for u in units[i]):
                continue
            at = max([begun[u] for u in units[i]] + [ends[a] + w for a, w in before[i]])
            if time[i] > 0:
                at = max([at] + [free[u] for u in units[i]])
            then, after, holds = list(begun), list(free), list(held)
            for u in units[i]:
                then[u] = at
                holds[u] += memory[i]
                if time[i] > 0:
                    after[u] = at + time[i]
            done = (*ends[:i], at + time[i], *ends[i + 1 :])
            run(done, tuple(then), tuple(after), tuple(holds))

    none = (0.0,) * problem.units
    run((-1.0,) * b, none, none, none)
    return best


def small(seed: int) -> tuple[ScheduleProblem, float]:
    """A small problem, every other one with tight limits, and its least last end."""
    rng = np.random.default_rng(seed)
    pairs, many = [(1, 3), (2, 2), (3, 1), (1, 4), (4, 1), (2, 2), (1, 2)][seed % 7]
    placement = random_placement(
        seed, devices=int(rng.integers(2, 4)), pairs=pairs, whole=seed % 3 != 0
    )
    if seed % 5 == 0:
        blocks = tuple(
            replace(b, after=tuple(Wait(w.block, float(rng.integers(0, 3))) for w in b.after))
            for b in placement.blocks
        )
        placement = replace(placement, blocks=blocks)
    if seed % 11 == 0 and len(placement.units) > 1:
        blocks = tuple(
            replace(b, homes=(*b.homes, (0,))) if seed % 2 else b for b in placement.blocks
        )
        placement = replace(placement, blocks=blocks)
    problem = problem_of(placement, many)
    if seed % 2:
        least = np.zeros(problem.units)
        owner = np.repeat(np.arange(problem.b), np.diff(problem.ptr))
        np.maximum.at(least, problem.unit, problem.memory[owner])
        problem = replace(problem, capacity=least + rng.integers(0, 3, problem.units))
    return problem, brute_force(problem)


@pytest.mark.parametrize("seed", range(150))
def test_as_short_as_the_best_order(seed: int) -> None:
    problem, least = small(seed)
    loose = shop_of(problem).loose
    if math.isinf(least) and not loose:
        with pytest.raises(InfeasibleError, match="device"):
            optimal(problem)
        return
    if math.isinf(least):
        # What a block holds that another one releases at the same time may not count.
        with suppress(InfeasibleError, LimitError):
            assert not violations(problem, optimal(problem).start)
        return
    found = optimal(problem)
    assert not violations(problem, found.start)
    assert found.start.min() == 0
    assert found.bound <= least + CLOSE
    if not loose:
        assert found.status == "optimal"
        assert span_of(problem, found.start) == pytest.approx(least, abs=CLOSE)
        assert found.bound == pytest.approx(least, abs=CLOSE)


@pytest.mark.parametrize("seed", range(50))
def test_narrow_beams_bound_what_they_drop(seed: int) -> None:
    problem, least = small(seed)
    shop = shop_of(problem)
    assert root_bound(shop) <= least + CLOSE
    if shop.loose:
        return
    for width in (1, 2, 5):
        found = beam(shop, width)
        assert min(found.bound, found.value) <= least + CLOSE
        if found.start is not None:
            assert not violations(problem, found.start)
            assert found.value >= least - CLOSE


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("devices", [2, 4])
def test_shapes_without_limits_are_proven(name: str, devices: int) -> None:
    for many in (1, 3, 5):
        problem = problem_of(shape(name, devices), many)
        found = optimal(problem, run=SearchContext(effort=0.05))
        assert not violations(problem, found.start)
        assert found.status == "optimal"
        assert found.bound == span_of(problem, found.start)


@pytest.mark.parametrize(
    ("name", "memory", "many", "least"),
    [
        ("V", 4, 6, 36),
        ("V", 1, 4, 64),
        ("M", 5, 6, 48),
        ("NN", 6, 6, 60),
        ("K", 3, 6, 40),
        ("X", 4, 6, 54),
    ],
)
def test_shapes_within_limits(name: str, memory: float, many: int, least: float) -> None:
    problem = problem_of(shape(name, 4, memory_bytes=memory), many)
    found = optimal(problem, run=SearchContext(effort=0.2))
    assert not violations(problem, found.start)
    assert (found.status, found.bound) == ("optimal", least)
    assert span_of(problem, found.start) == least


def hard() -> ScheduleProblem:
    """Too much for a small effort."""
    return problem_of(shape("X", 6, memory_bytes=5), 6)


def test_effort_and_stop_end_the_search() -> None:
    problem = hard()
    quick = optimal(problem, run=SearchContext(effort=0.01))
    assert quick.status == "feasible"
    assert quick.bound < span_of(problem, quick.start)
    assert not violations(problem, quick.start)
    asked = []

    def stop() -> bool:
        asked.append(True)
        return len(asked) > 20

    found = optimal(problem, run=SearchContext(interrupted=stop))
    assert found.status == "interrupted"
    assert len(asked) < 30
    assert not violations(problem, found.start)
    assert found.bound <= span_of(problem, found.start)
    none = optimal(problem, run=SearchContext(interrupted=lambda: True))
    assert none.status == "interrupted"
    assert not violations(problem, none.start)


def test_the_same_again() -> None:
    problem = hard()
    first, second = (
        optimal(problem, run=SearchContext(effort=0.01)),
        optimal(problem, run=SearchContext(effort=0.01)),
    )
    assert (first.start == second.start).all()
    assert first.bound == second.bound


def test_a_known_schedule_is_never_left_behind() -> None:
    problem = hard()
    known = optimal(problem, run=SearchContext(effort=0.02)).start
    found = optimal(problem, run=SearchContext(effort=0.0), upper=known + 3.0)
    assert span_of(problem, found.start) <= span_of(problem, known)
    assert found.start.min() == 0
    invalid = np.zeros(problem.b)
    assert not violations(
        problem, optimal(problem, run=SearchContext(effort=0.0), upper=invalid).start
    )


def test_blocks_that_wait_for_each_others_memory() -> None:
    units = (Unit("a", 1.0), Unit("b", 1.0))
    blocks = (
        PlacedBlock("F0", "forward", ((0,),), 1.0, 1.0),
        PlacedBlock("F1", "forward", ((0,),), 1.0, 1.0, (Wait(0),)),
        PlacedBlock("B1", "backward", ((0,),), 1.0, -1.0, (Wait(1),)),
        PlacedBlock("B0", "backward", ((0,),), 1.0, -1.0, (Wait(2),)),
    )
    problem = problem_of(Placement("locked", units, blocks), 2)
    with pytest.raises(InfeasibleError, match="memory of a is too small"):
        optimal(problem)
    with pytest.raises(LimitError):
        optimal(problem, run=SearchContext(effort=0.0))


def test_many_blocks_are_left_to_a_list_schedule() -> None:
    problem = problem_of(shape("V", 32), 200)
    found = optimal(problem, run=SearchContext(effort=0.01))
    assert found.status == "feasible"
    assert not violations(problem, found.start)
    assert span_of(problem, sequential_schedule(problem)) == span_of(problem, found.start)


def test_no_blocks() -> None:
    found = optimal(problem_of(Placement("none", (Unit("a"),), ()), 3))
    assert (found.status, len(found.start)) == ("optimal", 0)
