"""Lower bounds of periods, memory and makespans."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from dnnp.core.model.schedule import PlacedBlock, Placement, Unit, Wait
from dnnp.core.schedule.bound import (
    load_bound,
    longest_paths,
    makespan_bound,
    matching,
    memory_bound,
    rate_bound,
    window,
)
from dnnp.core.schedule.problem import (
    ScheduleProblem,
    limited,
    peak_memory,
    problem_of,
    span_of,
    steady_memory,
)
from dnnp.core.schedule.shapes import shape
from dnnp.core.schedule.starts import left_shift
from support.placements import random_placement

MAKESPANS = {"V": (4, 12), "M": (6, 12), "NN": (8, 12), "K": (6, 4), "X": (8, 4)}
"""Of 4 devices and N micro-batches: a N + b."""


def _orders(problem: ScheduleProblem) -> Iterator[list[int]]:
    """Every sequence of the blocks that respects dependencies."""
    before = [set(problem.tail[problem.head == i].tolist()) for i in range(problem.b)]

    def extend(order: list[int]) -> Iterator[list[int]]:
        if len(order) == problem.b:
            yield order
        for i in set(range(problem.b)) - set(order):
            if before[i] <= set(order):
                yield from extend([*order, i])

    return extend([])


def _unit(name: str = "d", most: float = math.inf) -> Unit:
    return Unit(name, most)


@pytest.mark.parametrize(("name", "line"), MAKESPANS.items())
def test_makespans_of_shapes(name: str, line: tuple[int, int]) -> None:
    for n in (6, 8, 12, 16, 1000):
        assert makespan_bound(shape(name, 4), n) == line[0] * n + line[1]
    one = makespan_bound(shape(name, 4), 1)
    assert one >= longest_paths(problem_of(shape(name, 4), 1)).max()


@pytest.mark.parametrize("seed", range(25))
def test_makespan_is_a_bound(seed: int) -> None:
    rng = np.random.default_rng(seed)
    placement = random_placement(seed, devices=2, pairs=2)
    if rng.random() < 0.5:
        blocks = tuple(
            replace(b, after=tuple(replace(w, delay_s=float(rng.integers(0, 3))) for w in b.after))
            for b in placement.blocks
        )
        placement = replace(placement, blocks=blocks)
    problem = problem_of(placement, 2)
    found = []
    for order in _orders(problem):
        start = left_shift(problem, np.array(order))
        found.append((float(peak_memory(problem, start).max()), span_of(problem, start)))
    for most in sorted({held for held, _ in found}):
        units = tuple(replace(u, memory_bytes=most) for u in placement.units)
        best = min(span for held, span in found if held <= most)
        assert makespan_bound(replace(placement, units=units), 2) <= best + 1e-9
    assert makespan_bound(placement, 2) <= min(span for _, span in found) + 1e-9


@pytest.mark.parametrize("seed", range(25))
def test_memory_and_rate_are_bounds(seed: int) -> None:
    """Of any repetend: one with random starts in the order of any sequence, far apart."""
    rng = np.random.default_rng(seed)
    placement = random_placement(seed, whole=bool(seed % 2))
    problem = problem_of(placement, 1 + seed % 3)
    order = np.argsort(longest_paths(problem).max(axis=0) + rng.random(problem.b) * 1e-6)
    start = left_shift(problem, order)
    period = max(span_of(problem, start), 1.0)
    held = steady_memory(problem, start, period)
    assert memory_bound(problem, period) <= held.max() + 1e-9
    assert rate_bound(limited(problem, float(held.max()))) <= period / problem.unroll + 1e-9
    assert load_bound(problem) <= period + 1e-9


def test_rate_of_v() -> None:
    problem = problem_of(shape("V", 4), 1)
    assert load_bound(problem) == 4.0
    rates = [rate_bound(limited(problem, m)) for m in (5, 4, 3, 2, 1)]
    assert rates == pytest.approx([4, 4, 16 / 3, 8, 16])
    assert rate_bound(limited(problem, 0.5)) == math.inf
    assert rate_bound(limited(problem_of(shape("V", 4), 3), 3)) == pytest.approx(16 / 3)


def test_contraction() -> None:
    """Shared blocks take turns with the residence of all others."""
    for name, shared in (("M", 2), ("NN", 4)):
        problem = problem_of(shape(name, 4), 1)
        assert rate_bound(limited(problem, 2)) == pytest.approx(16 / 2 + shared)
        assert memory_bound(problem, problem.load().max()) == 4.0


def test_blocks_that_share_units_in_pairs() -> None:
    homes = ((0, 1), (1, 2), (0, 2))
    blocks = tuple(PlacedBlock(str(h), "forward", (h,), 1.0) for h in homes)
    placement = Placement("triangle", tuple(_unit(str(d)) for d in range(3)), blocks)
    problem = problem_of(placement, 1)
    assert problem.load().max() == 2.0
    assert load_bound(problem) == 3.0
    assert load_bound(problem_of(placement, 2)) == 6.0
    assert rate_bound(problem_of(placement, 2)) == 3.0


def test_longest_matching() -> None:
    gain = np.array([2.0, 1.0, -1.0, -2.0])
    between = np.full((4, 4), -np.inf)
    between[0, 2], between[0, 3], between[1, 2], between[1, 3] = 5, 2, 4, 9
    flow = matching(gain, between)
    assert flow is not None
    assert flow[0].tolist() == [0, 0, 1, 1]
    assert flow[1].tolist() == [0, 0, 0, 1]
    between[1, 3] = -np.inf
    flow = matching(gain, between)
    assert flow is not None
    assert flow[0].tolist() == [0, 0, 0, 2]
    between[1, 2] = -np.inf
    assert matching(gain, between) is None
    assert matching(gain[:3], between[:3, :3]) is None


@pytest.mark.parametrize("seed", range(20))
def test_matching_equals_assignment(seed: int) -> None:
    """With equal memories it is an assignment problem."""
    from scipy.optimize import linear_sum_assignment

    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 6))
    gain = rng.permutation(np.repeat([0.3, -0.3], n))
    between = np.where(
        rng.random((2 * n, 2 * n)) < 0.8, rng.integers(0, 9, (2 * n, 2 * n)), -np.inf
    )
    part = between[np.ix_(gain > 0, gain < 0)]
    flow = matching(gain, between)
    rows, columns = linear_sum_assignment(np.where(np.isinf(part), -1e6, part), maximize=True)
    if np.isinf(part[rows, columns]).any():
        assert flow is None
    else:
        assert flow is not None
        used = flow > 0
        assert (flow[used] * between[used]).sum() == pytest.approx(0.3 * part[rows, columns].sum())


def test_no_bound_where_memory_may_be_negative() -> None:
    blocks = (
        PlacedBlock("F", "forward", ((0,),), 1.0, 1.0),
        PlacedBlock("B", "backward", ((0,),), 1.0, -1.0),
    )
    placement = Placement("p", (_unit(most=0.0),), blocks)
    assert rate_bound(problem_of(placement, 1)) == 2.0
    assert makespan_bound(placement, 3) == 6.0
    assert memory_bound(problem_of(placement, 1), 2.0) == 0.0


def test_blocks_without_time() -> None:
    """One that takes memory may start while another one releases some."""
    blocks = (
        PlacedBlock("F", "forward", ((0,),), 0.0, 1.0),
        PlacedBlock("B", "backward", ((0,),), 2.0, -1.0, (Wait(0, 2.0),)),
    )
    placement = Placement("p", (_unit(most=1.0),), blocks)
    problem = problem_of(placement, 1)
    start = np.array([0.0, 2.0])
    assert steady_memory(problem, start, 2.0).tolist() == [1.0]
    assert rate_bound(problem) == 2.0
    assert memory_bound(problem, 2.0) == 1.0


def test_homes_that_turn() -> None:
    blocks = (PlacedBlock("F", "forward", ((0,), (1,)), 2.0),)
    placement = Placement("p", (_unit("a"), _unit("b")), blocks)
    assert [makespan_bound(placement, n) for n in (1, 2, 3, 7)] == [2, 2, 4, 8]
    assert rate_bound(problem_of(placement, 2)) == 1.0
    absurd = tuple(((0,),) * n for n in (97, 89, 83, 79, 73))
    many = Placement("p", (_unit(),), tuple(PlacedBlock("F", "forward", h, 1.0) for h in absurd))
    assert 5 * 64 <= makespan_bound(many, 2**53) <= 5 * 2**53


def test_links_do_not_stop_for_shared_blocks() -> None:
    blocks = (
        PlacedBlock("a", "forward", ((0,),), 1.0),
        PlacedBlock("t", "transfer", ((2,),), 5.0, after=(Wait(0),)),
        PlacedBlock("b", "forward", ((1,),), 1.0, after=(Wait(1),)),
        PlacedBlock("s", "forward", ((0, 1),), 5.0),
    )
    units = (_unit("a"), _unit("b"), Unit("a>b", link=True))
    assert makespan_bound(Placement("p", units, blocks), 1) == 7.0


def test_no_blocks() -> None:
    empty = Placement("p", (_unit(),), ())
    problem = problem_of(empty, 1)
    assert (load_bound(problem), rate_bound(problem), memory_bound(problem, 1.0)) == (0, 0, 0)
    assert makespan_bound(empty, 5) == 0.0


@pytest.mark.parametrize("seed", range(30))
def test_window_is_the_best_of_all_sets(seed: int) -> None:
    rng = np.random.default_rng(seed)
    head, load, tail = rng.integers(0, 6, (3, 5)).astype(np.float64)
    sets = [np.array(some) for n in range(1, 6) for some in combinations(range(5), n)]
    best = max(float(head[s].min() + load[s].sum() + tail[s].min()) for s in sets)
    assert window(head, load, tail) == best
    assert window(head, load, tail, 1) <= best
    nothing = np.zeros(0)
    assert window(nothing, nothing, nothing) == 0.0
