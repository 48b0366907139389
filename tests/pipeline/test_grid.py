"""Repetends by dynamic programming over whole ticks."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from dnnp.core.cost.kernel import kernel
from dnnp.core.model.placement import PlacedBlock, Placement, Unit, Wait
from dnnp.core.model.run import Run
from dnnp.core.pipeline.bound import memory_bound, rate_bound
from dnnp.core.pipeline.grid.solve import GridAnswer, on_grid, ticks_of
from dnnp.core.pipeline.problem import ScheduleProblem, faults, limited, problem_of, steady_memory
from dnnp.core.pipeline.shapes import shape
from support.placements import random_placement

TRAINING = [
    ("V", 4, 4, 4, 16), ("X", 4, 8, 4, 20), ("M", 4, 6, 5, 36), ("NN", 4, 8, 6, 46),
    ("K", 4, 6, 3, 16), ("V", 8, 4, 8, 32), ("X", 8, 8, 6, 40), ("M", 8, 6, 11, 72),
    ("NN", 8, 8, 12, 94), ("K", 8, 6, 6, 34),
]  # fmt: skip
"""Shape, devices, period, largest memory, span."""

INFERENCE = {"V": 1, "X": 2, "M": 2, "NN": 3, "K": 2}
"""Periods."""

LIMITS = [
    ("V", {4: 4, 3: 8, 2: 8, 1: 16}), ("M", {5: 6, 4: 7, 3: 10, 2: 10, 1: 18}),
    ("NN", {6: 8, 5: 9, 4: 9, 3: 12, 2: 12, 1: 20}), ("K", {3: 6, 2: 8}),
    ("X", {4: 8, 3: 9, 2: 13}),
]  # fmt: skip
"""Least period for each memory limit."""


@kernel
def _exhaust(order, waits, on, time, memory, fixed, most, period, horizon, steps):  # type: ignore[no-untyped-def]
    """Smallest largest memory, and span, of all starts up to a horizon; -1: too many steps."""
    b, units = on.shape
    start = np.full(b, -1, dtype=np.int64)
    best = np.array([np.inf, np.inf])
    depth = 0
    while depth >= 0:
        steps -= 1
        if steps < 0:
            best[:] = -1.0
            break
        if depth == b:
            held, fits = 0.0, True
            for d in range(units):
                top = 0.0
                for t in range(period):
                    level = 0.0
                    for i in range(b):
                        if on[i, d]:
                            level += memory[i] * ((t - start[i]) // period)
                    top = max(top, level)
                fits = fits and top + fixed[d] <= most[d] + 1e-9
                held = max(held, top + fixed[d])
            span = (start + time).max() - start.min()
            if fits and (held < best[0] or (held == best[0] and span < best[1])):
                best[0], best[1] = held, span
            depth -= 1
            continue
        i = order[depth]
        at = start[i] + 1
        if start[i] < 0:
            for j in range(b):
                if waits[j, i] >= 0:
                    at = max(at, start[j] + time[j] + waits[j, i])
        while at <= horizon:
            free = True
            for q in order[:depth]:
                if time[i] and time[q] and (on[i] & on[q]).any():
                    ahead = (at - start[q]) % period
                    if ahead < time[q] or ahead + time[i] > period:
                        free = False
                        break
            if free:
                break
            at += 1
        start[i] = at if at <= horizon else -1
        depth += 1 if at <= horizon else -1
    return best


def _best(
    problem: ScheduleProblem, period: int, steps: int = 300_000
) -> tuple[float, float] | None:
    """Memory and span of the best repetend, inf if there is none; None: it takes too long."""
    waits = np.full((problem.b, problem.b), -1, dtype=np.int64)
    np.maximum.at(waits, (problem.tail, problem.head), problem.delay.astype(np.int64))
    order: list[int] = []
    while len(order) < problem.b:
        free = [i for i in range(problem.b) if set(np.flatnonzero(waits[:, i] >= 0)) <= set(order)]
        order.append(next(i for i in free if i not in order))
    on = np.zeros((problem.b, problem.units), dtype=np.bool_)
    on[np.repeat(np.arange(problem.b), np.diff(problem.ptr)), problem.unit] = True
    horizon = int(problem.time.sum() + problem.delay.sum()) + period
    held, span = _exhaust(
        np.array(order),
        waits,
        on,
        problem.time.astype(np.int64),
        problem.memory,
        problem.fixed,
        problem.capacity + problem.fixed,
        period,
        horizon,
        steps,
    )
    return None if held < 0 else (float(held), float(span))


def _case(seed: int) -> tuple[ScheduleProblem, int]:
    """A small problem of one of several kinds, and a period around the load of its units."""
    rng = np.random.default_rng([seed, 5])
    devices, pairs, kind = (int(rng.integers(2, n)) for n in (4, 4, 7))
    placement = random_placement(seed, devices=devices, pairs=pairs)
    problem = problem_of(placement, 2 if kind == 2 and pairs == 2 else 1)
    if kind == 3:
        problem = replace(problem, delay=rng.integers(0, 4, len(problem.delay)).astype(np.float64))
    if kind == 4:
        problem = replace(problem, fixed=rng.integers(0, 3, devices).astype(np.float64))
    if kind == 5:  # what one block holds is released by two
        home = [problem.unit[a:b].tolist() for a, b in pairwise(problem.ptr)]
        memory = problem.memory.copy()
        for i, j in zip(problem.tail, problem.head, strict=True):
            if home[i] == home[j] and memory[i] < -1 and memory[j] <= 0:
                memory[i] += 1
                memory[j] -= 1
        problem = replace(problem, memory=memory)
    period = int(max(problem.load().max(), 1)) + int(rng.integers(0, 3))
    if rng.random() < 0.4:
        problem = limited(problem, float(rng.integers(1, 7)))
    return problem, period


def _found(problem: ScheduleProblem, period: float, **options: float) -> GridAnswer:
    answer = on_grid(problem, period, **options)
    assert answer is not None
    if answer.start is not None:
        assert faults(problem, answer.start, period) == []
        assert answer.start.min() == 0.0
    return answer


@pytest.mark.parametrize("seed", range(100))
def test_agrees_with_exhaustion(seed: int) -> None:
    problem, period = _case(seed)
    tick = (1.0, 0.1)[seed % 2]
    scaled = replace(problem, time=problem.time * tick, delay=problem.delay * tick)
    answer = _found(scaled, period * tick)
    assert answer.complete
    if answer.start is not None:
        assert memory_bound(scaled, period * tick) <= answer.memory + 1e-9
        assert rate_bound(scaled) <= period * tick / scaled.unroll + 1e-9
    best = _best(problem, period)
    if best is not None:  # else there are too many starts to try
        assert (answer.memory, answer.span / tick) == pytest.approx(best)
        assert (answer.start is None) == (best[0] == np.inf)


@pytest.mark.parametrize("seed", range(12))
def test_larger_ones_are_valid(seed: int) -> None:
    problem = problem_of(random_placement(seed, pairs=4), 1)
    period = float(max(problem.load().max(), 1.0)) + 0.5
    answer = on_grid(problem, period, run=Run(effort=0.1))
    if answer is not None and answer.start is not None:
        assert faults(problem, answer.start, period) == []
        held = steady_memory(problem, answer.start, period).max()
        assert answer.memory == held >= answer.memory_bound - 1e-9


@pytest.mark.parametrize(("name", "devices", "period", "memory", "span"), TRAINING)
def test_shapes(name: str, devices: int, period: int, memory: int, span: int) -> None:
    answer = _found(problem_of(shape(name, devices), 1), period)
    assert (answer.memory, answer.span, answer.complete) == (memory, span, True)
    assert answer.memory_bound == memory


@pytest.mark.parametrize("devices", [4, 8])
@pytest.mark.parametrize(("name", "period"), INFERENCE.items())
def test_inference(name: str, devices: int, period: int) -> None:
    answer = _found(problem_of(shape(name, devices, inference=True), 1), period)
    assert answer.start is not None
    assert (answer.memory, answer.complete) == (0.0, True)


@pytest.mark.parametrize(("name", "periods"), LIMITS)
def test_least_period_within_a_limit(name: str, periods: dict[int, int]) -> None:
    problem = problem_of(shape(name, 4), 1)
    for limit, period in periods.items():
        answer = _found(limited(problem, limit), period)
        assert answer.start is not None
        assert answer.memory <= limit
        if period - 1 >= problem.load().max():
            assert _found(limited(problem, limit), period - 1) == _impossible()


def test_several_micro_batches_beat_one() -> None:
    problem = limited(problem_of(shape("V", 4), 3), 3)
    assert rate_bound(problem) == pytest.approx(16 / 3)
    answer = _found(problem, 16)
    assert (answer.memory, answer.complete) == (3.0, True)
    assert _found(limited(problem_of(shape("V", 4), 2), 3), 11) == _impossible()


def test_many_devices() -> None:
    answer = _found(problem_of(shape("V", 64), 1), 4)
    assert (answer.memory, answer.span, answer.complete) == (64.0, 256.0, True)


def test_real_memory() -> None:
    problem = problem_of(shape("M", 4), 1)
    scaled = replace(problem, memory=problem.memory * 0.3, fixed=np.array([0.1, 0.2, 0.0, 0.05]))
    answer = _found(scaled, 6)
    assert answer.complete
    # Device 0 holds most; a device may not hold less than what is always held on others allows.
    whole = _found(replace(problem, fixed=scaled.fixed / 0.3), 6)
    assert answer.memory == pytest.approx(whole.memory * 0.3)
    assert answer.span == pytest.approx(whole.span)


def test_load_above_the_period() -> None:
    assert on_grid(problem_of(shape("V", 4), 1), 3) == _impossible()


def test_no_common_tick() -> None:
    problem = problem_of(shape("V", 2), 1)
    uneven = replace(problem, time=problem.time * np.array([1.0, 0.3711, 1.0, 1.0]))
    assert ticks_of(uneven, 5.0) is None
    assert on_grid(uneven, 5.0) is None
    assert on_grid(problem, 65.0) is None
    ticks = ticks_of(replace(problem, time=problem.time * 0.1), 0.45)
    assert ticks is not None
    assert (ticks.period, ticks.time.tolist()) == (9, [2, 2, 6, 6])


def test_memory_left_behind() -> None:
    blocks = (
        PlacedBlock("F", "forward", ((0,),), 1.0, 2.0),
        PlacedBlock("B", "backward", ((0,),), 1.0, -1.0, (Wait(0),)),
    )
    endless = Placement("p", (Unit("d"),), blocks)
    answer = _found(problem_of(endless, 1), 2.0)
    assert (answer.memory, answer.span) == (0.0, 2.0)
    assert on_grid(problem_of(replace(endless, units=(Unit("d", 9.0),)), 1), 2.0) is None


def test_release_before_it_is_taken() -> None:
    blocks = (
        PlacedBlock("F", "forward", ((0,),), 1.0, 1.0),
        PlacedBlock("B", "backward", ((0,),), 1.0, -1.0),
    )
    assert on_grid(problem_of(Placement("p", (Unit("d"),), blocks), 1), 2.0) is None


def test_ends_when_told() -> None:
    problem = problem_of(shape("NN", 4), 1)
    assert on_grid(problem, 8, run=Run(interrupted=lambda: True)) is None
    assert on_grid(problem, 8, run=Run(effort=1e-5)) is None
    calls = iter([False] * 24)
    answer = on_grid(problem, 8, run=Run(interrupted=lambda: next(calls, True)))
    assert answer is None or not answer.complete or answer.memory == 6.0


def test_no_blocks() -> None:
    assert on_grid(problem_of(Placement("p", (Unit("d"),), ()), 1), 1.0) is None


def _impossible() -> GridAnswer:
    return GridAnswer(None, np.inf, np.inf, np.inf, True)
