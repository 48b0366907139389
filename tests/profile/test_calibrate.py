"""Factors that are learned from loads of stages."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dnnp.core.extras.calibrate import (
    COMMON,
    DEPTHWISE,
    FAMILY,
    LAUNCH,
    LAUNCH_S,
    NOISE,
    OWN,
    STRENGTHS,
    TRANSFER,
    calibrate,
    factor_of,
    family_of,
    fitted,
    load_of,
)
from dnnp.core.model.calibration import Calibration, RunSeen, StageSeen

TRUE = {"MatMul": 1.3, "Gemm": 1.25, "Conv": 0.8, "Add": 2.0, "Mul": 1.8, "Transpose": 3.0}
TRUE_TRANSFER = 0.2
TRUE_LAUNCH_S = 2e-6


def true_load(stage: StageSeen) -> float:
    compute = sum(TRUE[op] * x for op, x in stage.operators.items())
    return compute + TRUE_LAUNCH_S * stage.nodes + TRUE_TRANSFER * stage.transfer_s


def synthetic(models: int, seed: int, noise: float = 0.0) -> list[RunSeen]:
    """Runs of random models whose operators cost what `TRUE` says."""
    draw = np.random.default_rng(seed)
    runs = []
    for number in range(models):
        stages = []
        for _ in range(2):
            chosen = draw.choice(sorted(TRUE), size=4, replace=False)
            parts = {str(op): float(draw.uniform(0.1, 1.0)) * 1e-3 for op in chosen}
            stage = StageSeen(parts, int(draw.integers(10, 100)), float(draw.uniform(0, 1e-4)), 1.0)
            measured = true_load(stage) * math.exp(noise * draw.standard_normal())
            stages.append(stage._replace(measured_s=measured))
        runs.append(RunSeen(f"model {number}", tuple(stages)))
    return runs


def errors(factors: Calibration, runs: list[RunSeen]) -> list[float]:
    return [abs(load_of(factors, s) / true_load(s) - 1) for run in runs for s in run.stages]


def test_many_runs_give_the_true_factors() -> None:
    found = calibrate(synthetic(60, 0))
    for op, true in TRUE.items():
        assert factor_of(found, op) == pytest.approx(true, rel=0.05)
    assert max(errors(found, synthetic(20, 1))) < 0.02


def test_noise_is_averaged() -> None:
    found = calibrate(synthetic(60, 2, noise=0.03))
    assert np.median(errors(found, synthetic(20, 3))) < 0.02


def test_more_runs_are_sharper() -> None:
    held_out = synthetic(20, 5)
    few, many = (
        float(np.median(errors(calibrate(synthetic(count, 4, 0.01)), held_out)))
        for count in (2, 30)
    )
    none = float(np.median(errors(Calibration(), held_out)))
    assert many < 0.5 * few < few < none


def test_one_run_is_met_and_moves_factors_little_apart() -> None:
    run = synthetic(1, 6)
    found = calibrate(run)
    assert found.spread is None
    assert max(errors(found, run)) < 0.02
    assert all(0.5 < x < 2 for x in (*found.families.values(), *found.operators.values()))


def test_costs_that_are_right_stay() -> None:
    runs = [
        RunSeen(
            run.model,
            tuple(
                s._replace(measured_s=sum(s.operators.values()) + s.transfer_s) for s in run.stages
            ),
        )
        for run in synthetic(5, 7)
    ]
    found = calibrate(runs)
    assert factor_of(found, "MatMul") == pytest.approx(1)
    assert (found.transfer, found.spread) == (pytest.approx(1), pytest.approx(0, abs=1e-9))


def test_operators_that_did_not_run_follow_their_family() -> None:
    stage = StageSeen({"MatMul": 1e-3}, 1, 0.0, 2e-3)
    other = StageSeen({"Add": 1e-3}, 1, 0.0, 1e-3)
    found = fitted([RunSeen("m", (stage, other))], 1.0)
    assert family_of("Gemm") == family_of("MatMul") != family_of("LSTM")
    assert 1.5 < factor_of(found, "Gemm") < factor_of(found, "MatMul") < 2.1
    assert factor_of(found, "LSTM") == pytest.approx(found.common)
    assert family_of(DEPTHWISE) != family_of("Conv")


def test_what_runs_a_guessed_number_of_times_may_be_far_off() -> None:
    moved = []
    for op in ("Loop", "Resize"):
        slow = StageSeen({op: 1e-3}, 1, 0.0, 1e-2)
        found = fitted([RunSeen("m", (slow, StageSeen({"Conv": 1e-3}, 1, 0.0, 1e-3)))], 100.0)
        moved.append(abs(math.log(found.common)))
    assert moved[0] < 0.8 * moved[1]


def test_disturbed_stages_count_for_less() -> None:
    quiet = StageSeen({"MatMul": 1e-3}, 1, 0.0, 1e-3)
    loud = StageSeen({"MatMul": 1e-3}, 1, 0.0, 3e-3, taken=0.6)
    found = fitted([RunSeen("m", (quiet, loud))], 1.0)
    assert factor_of(found, "MatMul") == pytest.approx(1, rel=0.02)


def test_the_strength_is_one_that_was_tried() -> None:
    found = calibrate(synthetic(6, 8, noise=0.02))
    assert found.strength in STRENGTHS
    assert found.spread is not None
    assert 0 < found.spread < 0.3


def test_without_a_stage_there_is_nothing_to_learn() -> None:
    with pytest.raises(ValueError, match="no stage"):
        calibrate([RunSeen("m", ())])


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 6), st.sampled_from(STRENGTHS))
def test_nothing_near_the_fit_is_better(seed: int, models: int, strength: float) -> None:
    """The objective as the module states it, by loops, at the fit and at random points near it."""
    runs = synthetic(models, seed, noise=0.1)
    found = fitted(runs, strength)

    def objective(c: Calibration) -> float:
        weighed = [(COMMON, c.common), (TRANSFER, c.transfer)]
        weighed += [(FAMILY, x) for x in c.families.values()]
        weighed += [(OWN, x) for x in c.operators.values()]
        total = LAUNCH * (c.launch_s / LAUNCH_S) ** 2
        total += sum(w * math.log(x) ** 2 for w, x in weighed)
        for run in runs:
            for s in run.stages:
                total_error = math.log(load_of(c, s) / s.measured_s)
                total += total_error**2 / NOISE**2 / strength
        return total

    least = objective(found)
    draw = np.random.default_rng(seed)
    for size in (1e-3, 1e-2, 0.1):
        shaken = lambda x, size=size: x * math.exp(size * draw.standard_normal())  # noqa: E731
        near = replace(
            found,
            common=shaken(found.common),
            transfer=shaken(found.transfer),
            launch_s=found.launch_s + size * LAUNCH_S * draw.standard_normal(),
            families={f: shaken(x) for f, x in found.families.items()},
            operators={op: shaken(x) for op, x in found.operators.items()},
        )
        assert objective(near) >= least * (1 - 1e-6) - 1e-9
