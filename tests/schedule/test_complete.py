"""Complete schedules: valid, never longer than what is left-shifted, and as short as known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dnnp.core.model.errors import LimitError
from dnnp.core.model.schedule import Placement, Repetend, Unit
from dnnp.core.model.search_context import SearchContext
from dnnp.core.schedule.complete import (
    anew,
    complete,
    cool_down,
    least_end,
    reversed_problem,
    shifted,
    unrolled,
    warm_up,
)
from dnnp.core.schedule.optimal import optimal, sequential_schedule
from dnnp.core.schedule.problem import (
    ScheduleProblem,
    peak_memory,
    problem_of,
    span_of,
    steady_memory,
    violations,
)
from dnnp.core.schedule.shapes import SHAPES, shape
from dnnp.core.schedule.shop import root_bound, shop_of
from support.placements import random_placement

TRAINING = {
    "V": (4, 4, [0, 1, 2, 3, 4, 7, 10, 13]),
    "M": (6, 5, [0, 4, 7, 10, 13, 14, 19, 26, 31, 35]),
    "K": (6, 3, [0, 3, 0, 3, 4, 5, 6, 13, 6, 13]),
    "NN": (8, 6, [0, 1, 4, 6, 9, 12, 17, 26, 31, 33, 42, 45]),
    "X": (8, 4, 2 * [0, 1, 2, 4, 5, 11, 14, 17]),
}
"""Period, memory and starts of a repetend on 4 devices."""

INFERENCE = {
    "V": (1, [0, 1, 2, 3]), "X": (2, 2 * [0, 1, 2, 3]), "M": (2, [0, 1, 3, 5, 7]),
    "NN": (3, [0, 1, 4, 5, 7, 10]), "K": (2, [0, 2, 0, 2, 3]),
}  # fmt: skip

OFFSET = {"V": 12, "M": 12, "NN": 12, "K": 4, "X": 6}
"""Least makespan of N > 1 micro-batches, less N periods."""


def made(problem: ScheduleProblem, starts: list[int], period: float) -> Repetend:
    start = np.array(starts, dtype=np.float64)
    assert not violations(problem, start, period)
    memory = steady_memory(problem, start, period)
    k = problem.k
    return Repetend(problem.unroll, float(period), start.reshape(-1, k), memory)


def training(name: str) -> tuple[Placement, Repetend]:
    period, memory, starts = TRAINING[name]
    placement = shape(name, 4, memory_bytes=memory)
    return placement, made(problem_of(placement, 1), starts, period)


def some_repetend(placement: Placement, unroll: int) -> Repetend:
    """Left-shifted micro-batches, repeated as soon as they can be."""
    problem = problem_of(placement, unroll)
    start = sequential_schedule(problem)
    period = max(float(problem.load().max()), 0.5)
    longest = max(span_of(problem, start), period)
    while period < longest and violations(problem, start, period):
        period = min(period * 1.02, longest)
    return made(problem, start.tolist(), period)


def with_limits(placement: Placement, memory: np.ndarray) -> Placement:
    units = zip(placement.units, memory.tolist(), strict=True)
    return replace(placement, units=tuple(Unit(u.name, m) for u, m in units))


@pytest.mark.parametrize("name", SHAPES)
def test_training_shapes_are_as_short_as_can_be(name: str) -> None:
    placement, repetend = training(name)
    for many in (1, 2, 3, 6, 8, 12, 16, 50):
        problem = problem_of(placement, many)
        found = complete(placement, repetend, many)
        assert found.start.shape == (many * problem.k,)
        assert not violations(problem, found.start.ravel())
        assert (peak_memory(problem, found.start.ravel()) <= TRAINING[name][1]).all()
        expected = many * repetend.period_s + OFFSET[name] + (2 if (name, many) == ("X", 1) else 0)
        assert span_of(problem, found.start.ravel()) == expected
        assert (found.status, found.bound) == ("optimal", expected)


@pytest.mark.parametrize("name", SHAPES)
def test_a_thousand_micro_batches(name: str) -> None:
    placement, repetend = training(name)
    problem = problem_of(placement, 1000)
    found = complete(placement, repetend, 1000)
    assert not violations(problem, found.start.ravel())
    assert span_of(problem, found.start.ravel()) == 1000 * repetend.period_s + OFFSET[name]
    assert found.status == "optimal"


@pytest.mark.parametrize("name", SHAPES)
def test_inference_shapes_are_as_short_as_can_be(name: str) -> None:
    period, starts = INFERENCE[name]
    placement = shape(name, 4, inference=True)
    repetend = made(problem_of(placement, 1), starts, period)
    for many in (1, 4, 16, 300):
        problem = problem_of(placement, many)
        found = complete(placement, repetend, many)
        assert not violations(problem, found.start.ravel())
        assert found.status == "optimal"
        assert span_of(problem, found.start.ravel()) <= many * period + 3


@pytest.mark.parametrize("seed", range(40))
def test_random_placements(seed: int) -> None:
    placement = random_placement(seed, whole=seed % 2 == 0)
    unroll = 1 + seed % 3
    if seed % 5 == 0:
        turned = [replace(b, homes=(*b.homes, (seed % 2,))) for b in placement.blocks[:1]]
        half = len(placement.blocks) - 1
        turned += [replace(b, homes=(*b.homes, b.homes[0])) for b in placement.blocks[1:half]]
        turned += [replace(b, homes=(*b.homes, (seed % 2,))) for b in placement.blocks[half:]]
        placement, unroll = replace(placement, blocks=tuple(turned)), 2
    repetend = some_repetend(placement, unroll)
    if seed % 4:
        placement = with_limits(placement, repetend.memory_bytes)
    for many in (1, 2, 7, 40):
        problem = problem_of(placement, many)
        found = complete(placement, repetend, many, run=SearchContext(effort=0.05))
        assert not violations(problem, found.start.ravel())
        length = span_of(problem, found.start.ravel())
        assert found.bound <= length * (1 + 1e-9)
        assert (found.status == "optimal") == (found.bound >= length * (1 - 1e-7))
        plain = shifted(problem, unrolled(repetend, many).ravel())
        if not violations(problem, plain):
            assert length <= span_of(problem, plain) * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(20))
def test_bounds_and_reversal(seed: int) -> None:
    placement = random_placement(seed, devices=3, pairs=3)
    # Of blocks without duration several may start at once, and what they hold counts together.
    blocks = tuple(replace(b, time_s=b.time_s + 1) for b in placement.blocks)
    problem = problem_of(replace(placement, blocks=blocks), 3)
    backwards = reversed_problem(problem)
    start = sequential_schedule(problem)
    turned = -(start + problem.time).reshape(3, -1)[::-1].ravel()
    turned -= turned.min()
    assert not violations(backwards, turned)
    assert (peak_memory(backwards, turned) <= peak_memory(problem, start) + 1e-9).all()
    twice = reversed_problem(backwards)
    assert (twice.time == problem.time).all()
    assert (twice.memory == problem.memory).all()
    assert (twice.unit == problem.unit).all()
    least = span_of(problem, optimal(problem).start)
    assert root_bound(shop_of(problem)) <= least
    assert root_bound(shop_of(backwards)) <= least


@pytest.mark.parametrize("name", SHAPES)
def test_bound_of_many_micro_batches(name: str) -> None:
    placement = shape(name, 4)
    for many in (1, 2, 7, 5000):
        assert least_end(placement, many) <= root_bound(shop_of(problem_of(placement, many)))
    load = float(problem_of(placement, 1).load().max())
    assert least_end(placement, 10**6) >= 10**6 * load


def test_ends_alone() -> None:
    placement, repetend = training("M")
    late = replace(repetend, start_s=repetend.start_s.copy())
    first, last = warm_up(placement, late, 20, 0), cool_down(placement, late, 20, 0)
    assert first is not None
    assert last is not None
    warm, cool = (anew(*part, 64, 1e8, SearchContext()) for part in (first, last))
    assert warm is not None
    assert cool is not None
    assert warm.shift + cool.shift == 20 * 6 + 12
    assert warm_up(placement, late, 2, 0) is None
    assert cool_down(placement, late, 2, 0) is None


def test_stop_and_determinism() -> None:
    placement, repetend = training("X")
    problem = problem_of(placement, 30)
    first = complete(placement, repetend, 30, run=SearchContext(effort=0.1))
    second = complete(placement, repetend, 30, run=SearchContext(effort=0.1))
    assert (first.start == second.start).all()
    found = complete(placement, repetend, 30, run=SearchContext(interrupted=lambda: True))
    assert found.status == "interrupted"
    assert not violations(problem, found.start.ravel())


def test_absurd_numbers_of_micro_batches_are_refused() -> None:
    placement, repetend = training("V")
    with pytest.raises(LimitError, match="too many"):
        complete(placement, repetend, 2**53)
