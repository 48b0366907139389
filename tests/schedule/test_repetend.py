"""Repetends: exhaustive search on small placements, known values of shapes, limits and errors."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from dnnp.core.kernels.kernel import kernel
from dnnp.core.model.errors import InfeasibleError, LimitError
from dnnp.core.model.graph import Floats
from dnnp.core.model.schedule import PlacedBlock, Placement, Repetend, Unit, Wait
from dnnp.core.model.search_context import SearchContext
from dnnp.core.schedule import order_search as orders_intervals
from dnnp.core.schedule import repetend
from dnnp.core.schedule.list_schedules import list_schedules
from dnnp.core.schedule.order_search import Demand, Meter, search_orders
from dnnp.core.schedule.order_tables import order_tables
from dnnp.core.schedule.problem import (
    ScheduleProblem,
    limited,
    problem_of,
    span_of,
    steady_memory,
    violations,
)
from dnnp.core.schedule.repetend import WORK, find_repetend, least_memory, least_span
from dnnp.core.schedule.shapes import shape
from dnnp.core.schedule.starts import merged, tightened
from support.placements import random_placement

NONE = (math.inf, math.inf)


@kernel
def _exhaust(order, period, time, memory, on, wait, cap):  # type: ignore[no-untyped-def]
    """Smallest (largest memory, span) over all whole starts that are at most two periods late.

    `on` bool[b, D]; `wait` i64[b, b], time from start to start or -1.
    """
    b, units = on.shape
    start = np.full(b, -1)
    least, short = np.inf, np.inf
    level = 0
    while level >= 0:
        i = order[level]
        early = 0
        for j in range(b):
            if wait[j, i] >= 0:
                early = max(early, start[j] + wait[j, i])
        start[i] = max(start[i] + 1, early)
        if start[i] >= early + (period if level == 0 else 2 * period):
            start[i] = -1
            level -= 1
            continue
        fits = True
        for before in range(level):
            j = order[before]
            for d in range(units):
                if on[i, d] and on[j, d] and time[i] > 0 and time[j] > 0:
                    apart = (start[j] - start[i]) % period
                    if apart < time[i] or apart + time[j] > period:
                        fits = False
        if not fits:
            continue
        if level < b - 1:
            level += 1
            continue
        most = 0.0
        for d in range(units):
            peak = 0.0
            for t in range(period):
                held = 0.0
                for j in range(b):
                    if on[j, d]:
                        held += memory[j] * ((t - start[j]) // period + 1)
                peak = max(peak, held)
            most = np.inf if peak > cap[d] else max(most, peak)
        span = (start + time).max() - start.min()
        if most < np.inf and (most, span) < (least, short):
            least, short = most, span
    return least, short


def exhaust(problem: ScheduleProblem, period: int, scale: int = 1) -> tuple[float, float]:
    """Least memory and span where times are multiplied by `scale`; NONE: no schedule."""
    on = np.zeros((problem.b, problem.units), dtype=np.bool_)
    on[np.repeat(np.arange(problem.b), np.diff(problem.ptr)), problem.unit] = True
    wait = np.full((problem.b, problem.b), -1)
    length = (problem.time[problem.tail] + problem.delay) * scale
    wait[problem.tail, problem.head] = np.rint(length).astype(np.int64)
    time = np.rint(problem.time * scale).astype(np.int64)
    if period < (problem.load() * scale).max():
        return NONE
    found: tuple[float, float] = _exhaust(
        merged(problem, []), period, time, problem.memory, on, wait, problem.capacity
    )
    return found


def least_whole(problem: ScheduleProblem) -> int:
    """The least whole period; 0: there is none."""
    whole = int(problem.time.sum() + problem.delay.sum())
    for period in range(max(int(problem.load().max()), 1), whole + 1):
        if exhaust(problem, period) != NONE:
            return period
    return 0


def check(problem: ScheduleProblem, found: Repetend) -> None:
    start = found.start_s.ravel()
    assert violations(problem, start, found.period_s) == []
    assert start.min() == 0
    assert found.span_s == pytest.approx(span_of(problem, start))
    np.testing.assert_allclose(found.memory_bytes, steady_memory(problem, start, found.period_s))
    assert found.period_bound_s <= found.period_s
    assert found.memory_bound_bytes <= found.memory_bytes.max()
    assert found.span_bound_s <= found.span_s * (1 + 1e-9)
    if found.status == "optimal":
        assert found.period_bound_s == found.period_s
        assert found.memory_bound_bytes == found.memory_bytes.max()
        assert found.span_bound_s == pytest.approx(found.span_s)


def compare(problem: ScheduleProblem) -> Repetend | None:
    """Find a repetend and compare it with an exhaustive search; None: there is none."""
    whole = least_whole(problem)
    if whole == 0:
        with pytest.raises(InfeasibleError, match="device"):
            find_repetend(problem)
        return None
    found = find_repetend(problem)
    check(problem, found)
    assert found.status == "optimal"
    assert found.period_s <= whole
    for scale in (1, 2) if problem.b <= 4 else (1,):
        for period in range(1, math.ceil(found.period_s * scale - 1e-9)):
            assert exhaust(problem, period, scale) == NONE
    if found.period_s == whole:
        memory, span = exhaust(problem, whole)
        assert found.memory_bytes.max() <= memory
        if found.memory_bytes.max() == memory:
            assert found.span_s <= span
    return found


def limit_below(problem: ScheduleProblem, seed: int) -> ScheduleProblem:
    """A limit somewhere below what is needed without one."""
    held = find_repetend(problem).memory_bytes.max()
    most = float(np.random.default_rng(seed).integers(0, max(int(held), 1)))
    below = limited(problem, most)
    assert (below.capacity <= most).all()
    return below


def compare_both(problem: ScheduleProblem, seed: int) -> None:
    """Compare without a limit, and with one below what that needs."""
    if problem.time.any():
        compare(problem)
        compare(limit_below(problem, seed))


def quick(made: Placement, most: float) -> Placement:
    """The placement with no block longer than `most`."""
    return replace(made, blocks=tuple(replace(b, time_s=min(b.time_s, most)) for b in made.blocks))


@pytest.mark.parametrize("seed", range(25))
def test_small_placements_agree_with_an_exhaustive_search(seed: int) -> None:
    compare_both(problem_of(random_placement(seed, devices=2, pairs=2), 1), seed)


@pytest.mark.parametrize("seed", range(10))
def test_three_pairs_agree_with_an_exhaustive_search(seed: int) -> None:
    made = random_placement(seed, devices=2, pairs=3)
    compare_both(problem_of(quick(made, 1.0), 1), seed)


@pytest.mark.parametrize("seed", range(12))
def test_unrolled_placements_agree_with_an_exhaustive_search(seed: int) -> None:
    made = random_placement(seed, devices=2, pairs=1)
    compare_both(problem_of(quick(made, 2.0), 2), seed)


@pytest.mark.parametrize("seed", range(12))
def test_homes_in_turn_agree_with_an_exhaustive_search(seed: int) -> None:
    made = random_placement(seed, devices=2, pairs=1)
    homes = ((0,), (1,)) if seed % 2 else ((0,), (0, 1))
    turned = tuple(replace(b, homes=homes, time_s=min(b.time_s, 2.0)) for b in made.blocks)
    problem = problem_of(replace(made, blocks=turned), 2)
    if problem.time.any():
        compare(problem)


@pytest.mark.parametrize("seed", range(12))
def test_delays_agree_with_an_exhaustive_search(seed: int) -> None:
    made = random_placement(seed, devices=2, pairs=2)
    late = tuple(
        replace(
            b,
            time_s=min(b.time_s, 2.0),
            after=tuple(Wait(w.block, float(w.block % 3)) for w in b.after),
        )
        for b in made.blocks
    )
    compare_both(problem_of(replace(made, blocks=late), 1), seed)


@pytest.mark.parametrize("seed", range(24))
def test_shortcuts_lose_nothing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    unroll = 1 + seed % 3
    made = random_placement(seed, devices=3, pairs=4 if unroll == 1 else 2, whole=seed % 2 == 0)
    problem = problem_of(made, unroll)
    if seed % 4 == 0:
        problem = limit_below(problem, seed)

    def values() -> tuple[object, ...]:
        try:
            found = find_repetend(problem)
        except InfeasibleError:
            return ("infeasible",)
        span = round(found.span_s, 6)
        return found.status, found.period_s, found.memory_bytes.max(), span

    short = values()
    monkeypatch.setattr(
        repetend,
        "order_tables",
        lambda given: order_tables(given)._replace(bridges=(), short_bridges=(), extra=()),
    )
    monkeypatch.setattr(orders_intervals, "MOST_SUMMED", 0)
    assert values() == short


@pytest.mark.parametrize("unroll", [1, 2])
@pytest.mark.parametrize("seed", range(6))
def test_real_times_scale(seed: int, unroll: int) -> None:
    problem = problem_of(random_placement(seed, devices=3, pairs=3), unroll)
    if seed % 2:
        problem = limit_below(problem, seed)
    scaled = replace(
        problem,
        time=problem.time * math.pi,
        delay=problem.delay * math.pi,
        memory=problem.memory * math.e,
        capacity=problem.capacity * math.e,
    )
    try:
        whole = find_repetend(problem)
    except InfeasibleError:
        with pytest.raises(InfeasibleError):
            find_repetend(scaled)
        return
    real = find_repetend(scaled)
    check(scaled, real)
    assert real.status == whole.status == "optimal"
    assert real.period_s == pytest.approx(whole.period_s * math.pi, rel=1e-9)
    assert real.memory_bytes.max() == pytest.approx(whole.memory_bytes.max() * math.e)
    assert real.span_s == pytest.approx(whole.span_s * math.pi, rel=1e-8)


@pytest.mark.parametrize("seed", range(30))
def test_random_placements_are_solved(seed: int) -> None:
    problem = problem_of(random_placement(seed, whole=seed % 2 == 0), 1)
    found = find_repetend(problem, run=SearchContext(effort=0.05))
    check(problem, found)
    again = find_repetend(problem, run=SearchContext(effort=0.05))
    np.testing.assert_array_equal(found.start_s, again.start_s)
    limits = limited(problem, float(np.ceil(0.8 * found.memory_bytes.max())))
    try:
        tight = find_repetend(limits, run=SearchContext(effort=0.05))
    except (InfeasibleError, LimitError):
        return
    check(limits, tight)
    assert tight.period_s >= found.period_bound_s * (1 - 1e-9)


SHAPES = {
    ("V", 4): (4, 4, 16), ("X", 4): (8, 4, 20), ("M", 4): (6, 5, 36), ("NN", 4): (8, 6, 46),
    ("K", 4): (6, 3, 16), ("V", 8): (4, 8, 32), ("X", 8): (8, 6, 40), ("M", 8): (6, 11, 72),
    ("K", 8): (6, 6, 34),
}  # fmt: skip


@pytest.mark.parametrize("key", SHAPES, ids=str)
def test_shapes(key: tuple[str, int]) -> None:
    problem = problem_of(shape(*key), 1)
    found = find_repetend(problem)
    check(problem, found)
    assert found.status == "optimal"
    assert (found.period_s, found.memory_bytes.max(), found.span_s) == SHAPES[key]


@pytest.mark.parametrize(("name", "period"), [("V", 1), ("X", 2), ("M", 2), ("NN", 3), ("K", 2)])
def test_inference_shapes(name: str, period: int) -> None:
    problem = problem_of(shape(name, 4, inference=True), 1)
    found = find_repetend(problem)
    check(problem, found)
    assert (found.status, found.period_s) == ("optimal", period)


@pytest.mark.parametrize(
    ("name", "periods"),
    [
        ("V", {4: 4, 3: 8, 2: 8, 1: 16}),
        ("M", {5: 6, 4: 7, 3: 10, 2: 10, 1: 18}),
        ("NN", {6: 8, 5: 9, 4: 9, 3: 12, 2: 12, 1: 20}),
        ("K", {3: 6, 2: 8}),
        ("X", {4: 8, 3: 9, 2: 13}),
    ],
)
def test_periods_by_limit(name: str, periods: dict[int, int]) -> None:
    for most, period in periods.items():
        problem = limited(problem_of(shape(name, 4), 1), most)
        found = find_repetend(problem)
        check(problem, found)
        assert (found.status, found.period_s) == ("optimal", period)


def test_three_micro_batches_in_one_period_beat_one() -> None:
    problem = limited(problem_of(shape("V", 4), 3), 3)
    found = find_repetend(problem)
    check(problem, found)
    assert (found.status, found.period_s, found.rate_s) == ("optimal", 16, 16 / 3)


def chain_with_memory(last_s: float) -> ScheduleProblem:
    """Blocks f, g, b on devices 0, 1, 0; room for two micro-batches from the start of f to b's."""
    blocks = (
        PlacedBlock("f", "forward", ((0,),), 1.0, 1.0),
        PlacedBlock("g", "forward", ((1,),), 2.0, 0.0, (Wait(0, 0.5),)),
        PlacedBlock("b", "backward", ((0,),), last_s, -1.0, (Wait(1, 1.5),)),
    )
    return problem_of(Placement("chain", (Unit("a", 2.0), Unit("b")), blocks), 1)


@pytest.mark.parametrize(("last_s", "period"), [(1.0, 3.0), (0.75, 2.875), (0.5, 2.75)])
def test_a_period_may_be_a_fraction(last_s: float, period: float) -> None:
    # f starts for the third time only after b has run: 2 T >= 1 + 0.5 + 2 + 1.5 + last_s.
    problem = chain_with_memory(last_s)
    found = find_repetend(problem)
    check(problem, found)
    assert found.status == "optimal"
    assert found.period_s == pytest.approx(period, rel=1e-12)


def test_the_phases_alone() -> None:
    problem = problem_of(shape("M", 4), 1)
    tables, meter = order_tables(problem), Meter(WORK)
    some, proven = search_orders(tables, Demand(7.0, problem.capacity), meter)
    assert proven
    assert some is not None
    assert violations(problem, some, 7.0) == []
    assert search_orders(tables, Demand(5.9, problem.capacity), meter) == (None, True)
    memory = least_memory(tables, 7.0, meter, some)
    assert (memory.value, memory.bound, memory.complete) == (4.0, 4.0, True)
    tight = limited(problem, 4.0)
    span = least_span(order_tables(tight), 7.0, tight.capacity, meter)
    assert span.complete
    assert span.start is not None
    assert violations(tight, span.start, 7.0) == []
    assert span.value == 35.0


def test_what_is_left_behind() -> None:
    blocks = (
        PlacedBlock("f", "forward", ((0,),), 1.0, 2.0),
        PlacedBlock("b", "backward", ((0,),), 1.0, -1.0, (Wait(0),)),
    )
    placement = Placement("leak", (Unit("a"), Unit("b", 5.0)), blocks)
    found = find_repetend(problem_of(placement, 1))
    assert found.status == "optimal"
    assert found.memory_bytes[0] == math.inf
    assert found.memory_bound_bytes == 0
    full = replace(placement, units=(Unit("a", 9.0), Unit("b")))
    with pytest.raises(InfeasibleError, match="leave memory behind on a,"):
        find_repetend(problem_of(full, 1))


def test_what_is_always_held_counts() -> None:
    made = shape("V", 2)
    units = (replace(made.units[0], fixed_bytes=3.0), made.units[1])
    problem = problem_of(replace(made, units=units), 1)
    found = find_repetend(problem)
    check(problem, found)
    assert found.memory_bytes.max() == 5.0
    with pytest.raises(InfeasibleError, match="device/0"):
        find_repetend(limited(problem, 2.5))


def test_blocks_without_time() -> None:
    made = shape("V", 3)
    blocks = tuple(replace(b, time_s=0.0) for b in made.blocks)
    found = find_repetend(problem_of(replace(made, blocks=blocks), 2))
    assert (found.status, found.period_s, found.span_s) == ("optimal", 0.0, 0.0)


def test_a_stop_ends_with_what_is_known() -> None:
    problem = problem_of(shape("NN", 6), 1)
    found = find_repetend(problem, run=SearchContext(interrupted=lambda: True))
    check(problem, found)
    assert found.status == "interrupted"
    found = find_repetend(problem, run=SearchContext(effort=1e-6))
    check(problem, found)
    assert found.status == "feasible"


@pytest.mark.parametrize(("name", "devices"), [("V", 256), ("M", 210), ("X", 102)])
def test_many_blocks_get_a_good_schedule(name: str, devices: int) -> None:
    problem = problem_of(shape(name, devices), 1)
    found = find_repetend(problem, run=SearchContext(effort=0.01))
    check(problem, found)
    assert found.period_s <= 1.5 * problem.load().max()
    if name == "V":
        assert (found.period_s, found.memory_bytes.max(), found.span_s) == (4, 256, 1024)
        assert found.status == "optimal"


@pytest.mark.parametrize("seed", range(10))
def test_list_schedules_keep_limits(seed: int) -> None:
    problem = problem_of(random_placement(seed, whole=seed % 2 == 0), 1)
    if seed % 3 == 0:
        problem = limited(
            problem, 0.7 * find_repetend(problem, run=SearchContext(effort=0.01)).memory_bytes.max()
        )
    last = math.inf
    for period, start in list_schedules(problem, float(problem.load().max())):
        assert violations(problem, start, period) == []
        assert period <= last
        last = period


def test_tightening_keeps_orders_and_finds_the_least_period() -> None:
    problem = problem_of(shape("V", 4), 1)
    start: Floats = np.array([0, 1, 2, 3, 4, 7, 10, 13], dtype=np.float64)
    for scale in (1, 2):
        found = tightened(problem, scale * start, scale * 16.0)
        assert found is not None
        assert found[0] == 16.0
        np.testing.assert_array_equal(found[1], start)


@pytest.mark.parametrize("seed", range(10))
def test_releases_before_what_they_release(seed: int) -> None:
    made = random_placement(seed, devices=2, pairs=2)
    turned = tuple(
        replace(b, memory_bytes=-b.memory_bytes, time_s=min(b.time_s, 2.0)) for b in made.blocks
    )
    problem = problem_of(replace(made, blocks=turned), 1)
    if not problem.time.any():
        return
    found = find_repetend(problem)
    check(problem, found)
    period = math.ceil(found.period_s)
    if found.period_s == period:
        memory, _ = exhaust(problem, period)
        assert found.memory_bound_bytes <= memory
    assert found.period_s <= least_whole(problem)


def test_huge_limits_and_amounts() -> None:
    problem = problem_of(shape("V", 4), 1)
    huge = replace(problem, memory=problem.memory * 1e-3, capacity=np.full(4, 1e200))
    found = find_repetend(huge)
    check(huge, found)
    assert (found.status, found.period_s, found.span_s) == ("optimal", 4, 16)
    huge = replace(problem, memory=problem.memory * 1e200, time=problem.time * 1e-9)
    found = find_repetend(huge)
    assert found.status == "optimal"
    assert found.period_s == pytest.approx(4e-9)
    assert found.memory_bytes.max() == pytest.approx(4e200)


def test_very_many_blocks_run_in_turn() -> None:
    problem = problem_of(shape("V", 2), 12_000)
    found = find_repetend(problem)
    check(problem, found)
