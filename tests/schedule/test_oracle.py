"""The oracle of repetends against cases worked out by hand, and against simulation."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from dnnp.core.model.schedule import PlacedBlock, Placement, Unit, Wait
from dnnp.core.schedule.problem import (
    ScheduleProblem,
    limited,
    problem_of,
    steady_memory,
    violations,
)
from dnnp.core.schedule.shapes import shape
from support.placements import random_placement
from support.repetend_brute import (
    Best,
    TooMany,
    best_at,
    held_pairs,
    least_period,
    possible_at_all,
    run_for_long,
    scaled,
)


def chain(*parts: tuple[int, float, float]) -> Placement:
    """Blocks one after another: device, time, memory."""
    blocks = (
        PlacedBlock(f"X{i}", "forward", ((d,),), time, held, (Wait(i - 1),) if i else ())
        for i, (d, time, held) in enumerate(parts)
    )
    devices = 1 + max(d for d, _, _ in parts)
    return Placement("chain", tuple(Unit(f"d/{d}") for d in range(devices)), tuple(blocks))


@pytest.mark.parametrize(
    ("form", "devices", "want"),
    [
        ("V", 1, (4, 1, 4)),
        ("V", 2, (4, 2, 8)),
        ("V", 3, (4, 3, 12)),
        ("V", 4, (4, 4, 16)),
        ("X", 2, (8, 2, 8)),
        ("K", 2, (6, 2, 6)),
    ],
)
def test_shapes(form: str, devices: int, want: tuple[int, int, int]) -> None:
    """The critical path is the least span; that it fits the period is easy to see.

    On V each device runs its backward block as soon as it can, and d forward blocks are under
    way from stage D - d on; two devices of X and K have one stage and its mirror each.
    """
    found = least_period(problem_of(shape(form, devices), 1))
    assert found == (want[0], Best(want[1], want[2]))


@pytest.mark.parametrize(("most", "period"), [(2, 4), (1, 8)])
def test_limited_v(most: int, period: int) -> None:
    """With one micro-batch under way the period is its path: (1 + 3) for each stage."""
    found = least_period(limited(problem_of(shape("V", 2), 1), most), 2)
    assert found is not None
    assert found[0] == period
    assert found[1].memory == most


def test_inference() -> None:
    for form, period in (("V", 1), ("X", 2), ("M", 2), ("NN", 3), ("K", 2)):
        found = least_period(problem_of(shape(form, 2, inference=True), 1))
        assert found is not None
        assert found[0] == period
        assert found[1].memory == 0


def test_period_that_is_no_whole_number() -> None:
    """Two micro-batches under way: 5 from F to B, and B runs before the third F: 2 T >= 7."""
    placement = chain((0, 1, 1), (1, 2, 0), (2, 2, 0), (0, 2, -1))
    problem = limited(problem_of(placement, 1), 2)
    assert least_period(problem) == (4, Best(2, 7))
    assert least_period(problem, 2) == (Fraction(7, 2), Best(2, 7))
    assert least_period(problem, 3) == (Fraction(7, 2), Best(2, 7))
    assert least_period(limited(problem, 1)) == (7, Best(1, 7))


def test_two_micro_batches_in_a_period() -> None:
    """The same, unrolled: two micro-batches under way, two a period, gain nothing over 7 / 2."""
    placement = chain((0, 1, 1), (1, 2, 0), (2, 2, 0), (0, 2, -1))
    found = least_period(limited(problem_of(placement, 2), 2))
    assert found is not None
    assert found[0] == 7


def test_blocks_without_time_block_nobody() -> None:
    placement = chain((0, 2, 1), (0, 0, 1), (1, 3, 0), (0, 0, -1), (0, 1, -1))
    # First and last block: 5 apart, two at a time. In between, one is held from 2 on; as the next
    # one comes 3 later, it is released.
    assert least_period(problem_of(placement, 1)) == (3, Best(3, 6))


def test_starts_at_the_same_time_count_together() -> None:
    """Memory that one block of no time releases is taken at the same instant by the other."""
    blocks = (
        PlacedBlock("F", "forward", ((0,),), 0.0, 1.0),
        PlacedBlock("X", "forward", ((1,),), 2.0, 0.0, (Wait(0),)),
        PlacedBlock("B", "backward", ((0,),), 0.0, -1.0, (Wait(1),)),
    )
    placement = Placement("p", (Unit("a"), Unit("b")), blocks)
    assert least_period(problem_of(placement, 1)) == (2, Best(1, 2))
    at_once = limited(problem_of(chain((0, 0, 1), (0, 2, -1)), 1), 0)
    assert possible_at_all(at_once)
    assert least_period(at_once) == (2, Best(0, 2))
    assert not possible_at_all(limited(problem_of(chain((0, 1, 1), (0, 2, -1)), 1), 0))
    # Later than at once: two hold for a while.
    late = replace(blocks[2], after=(Wait(1, 1.0),))
    placement = replace(placement, blocks=(*blocks[:2], late))
    assert least_period(problem_of(placement, 1)) == (2, Best(2, 3))


def test_memory_of_a_join_is_shared_out() -> None:
    """Either branch can wait for the other, not both: the sum counts, and limits choose."""
    blocks = (
        PlacedBlock("A", "forward", ((0,),), 1.0, 2.0),
        PlacedBlock("C", "forward", ((1,),), 1.0, 0.0),
        PlacedBlock("D", "forward", ((2,),), 4.0, 0.0, (Wait(1),)),
        PlacedBlock("J", "backward", ((0,),), 1.0, -2.0, (Wait(0), Wait(2))),
    )
    placement = Placement("p", tuple(Unit(x) for x in "abc"), blocks)
    # A starts late enough: just before J.
    assert least_period(problem_of(placement, 1)) == (4, Best(2, 6))


def test_infeasible() -> None:
    problem = problem_of(chain((0, 1, 2), (0, 1, 1), (0, 1, -1), (0, 1, -2)), 1)
    assert not possible_at_all(limited(problem, 2))
    assert least_period(limited(problem, 2)) is None
    assert least_period(limited(problem, 3)) == (4, Best(3, 4))
    assert best_at(problem, 3) is None
    with pytest.raises(ValueError, match="pairs"):
        held_pairs(problem_of(chain((0, 1, 2), (0, 1, -1)), 1))


def test_too_many() -> None:
    with pytest.raises(TooMany):
        best_at(problem_of(shape("V", 8), 1), 16)


def all_starts(problem: ScheduleProblem, period: int, most: int) -> tuple[float, float] | None:
    """Least memory and span over all whole starts below a number, judged by `run_for_long`."""
    best: tuple[float, float] | None = None

    def place(start: list[int]) -> None:
        nonlocal best
        i = len(start)
        if i == problem.b:
            found = np.array(start, dtype=float)
            wrong, peaks = run_for_long(problem, found, period)
            span = float((found + problem.time).max() - found.min())
            value = float(peaks.max()), span
            if not wrong and (best is None or value < best):
                best = value
            return
        before = [
            start[t] + problem.time[t] + d
            for t, h, d in zip(problem.tail, problem.head, problem.delay, strict=True)
            if h == i
        ]
        for at in range(int(max(before, default=0)), most):
            place([*start, at])

    place([])
    return best


def tiny(seed: int) -> ScheduleProblem:
    """Two pairs at most, short times, small limits now and then."""
    rng = random.Random(seed)
    placement = random_placement(seed, devices=2, pairs=rng.randint(1, 2))
    blocks = tuple(replace(b, time_s=float(rng.randint(0, 2))) for b in placement.blocks)
    problem = problem_of(replace(placement, blocks=blocks), 1)
    return limited(problem, rng.randint(2, 5)) if seed % 3 == 0 else problem


@pytest.mark.parametrize("seed", range(24))
def test_against_all_starts(seed: int) -> None:
    problem = tiny(seed)
    period = max(int(problem.load().max()), 1) + seed % 2
    found = best_at(problem, period)
    want = all_starts(problem, period, 9)
    if want is None:
        assert found is None
    else:
        assert found == Best(*want)


@pytest.mark.parametrize("seed", range(60))
def test_simulation_is_what_the_definitions_say(seed: int) -> None:
    """`violations` and `steady_memory`, of starts right or wrong."""
    rng = random.Random(seed)
    problem = problem_of(random_placement(seed, whole=seed % 2 == 0, pairs=3), 1 + seed % 2)
    if seed % 3 == 0:
        problem = limited(problem, rng.randint(3, 12))
    period = float(problem.load().max()) * rng.choice([1, 1.5, 2]) or 1.0
    starts: list[np.ndarray] = []
    for _ in range(20):
        at = np.zeros(problem.b)
        for i in range(problem.b):
            before = problem.head == i
            ends = at[problem.tail] + problem.time[problem.tail] + problem.delay
            at[i] = ends[before].max(initial=0.0) + rng.choice([0, 0, 0, 1, 2, rng.random()])
        starts.append(at)
    for start in starts:
        wrong, peaks = run_for_long(problem, start, period)
        assert bool(wrong) == bool(violations(problem, start, period)), wrong
        assert peaks == pytest.approx(steady_memory(problem, start, period))


def test_scale_changes_nothing() -> None:
    for seed in range(6):
        problem = problem_of(random_placement(seed, pairs=2), 1)
        one = least_period(problem)
        assert one is not None
        period, best = one
        three = best_at(scaled(problem, 3), 3 * int(period))
        assert three is not None
        assert (three.memory, three.span) == (best.memory, 3 * best.span)
        assert math.isfinite(best.span)
