"""Tessel's reduced search: valid repetends of full units, with the least indices."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dnnp.core.model.errors import InfeasibleError, LimitError, UsageError
from dnnp.core.model.schedule import PlacedBlock, Placement, Unit, Wait
from dnnp.core.model.search_context import SearchContext
from dnnp.core.schedule import tessel as fast
from dnnp.core.schedule.problem import ScheduleProblem, problem_of, span_of, violations
from dnnp.core.schedule.shapes import ALL, SHAPES, shape
from dnnp.core.schedule.tessel import indices, packed, tessel, tessel_fast
from support.completed import check, scheduled, with_memory
from support.placements import random_placement
from support.run import dnnp


@pytest.mark.parametrize("devices", [2, 4, 6, 8])
@pytest.mark.parametrize("name", ALL)
def test_shapes_keep_the_busiest_device_busy(name: str, devices: int) -> None:
    for inference in (False, True):
        placement = shape(name, devices, inference=inference)
        found = tessel_fast(placement)
        check(placement, found)
        assert found.repetend.period_s == problem_of(placement, 1).load().max()
        assert found.repetend.method == "tessel-fast"


@pytest.mark.parametrize("name", SHAPES)
def test_the_full_search_needs_no_more_memory(name: str) -> None:
    """The result fits, and suffices for the search over index sets, too."""
    held = float(tessel_fast(shape(name, 4)).repetend.memory_bytes.max())
    limited = with_memory(shape(name, 4), held)
    found = tessel_fast(limited)
    check(limited, found)
    assert tessel(limited).repetend.period_s <= found.repetend.period_s
    with pytest.raises(InfeasibleError, match=f"holds {held:g} B on device"):
        tessel_fast(with_memory(shape(name, 4), held - 1))


def test_v_by_hand() -> None:
    """Device 0 runs F0 B0, device 1 B1 F1: both B wait for the period before."""
    problem = problem_of(shape("V", 2), 1)
    step = packed(problem)
    assert step.tolist() == [0.0, 3.0, 0.0, 1.0]
    assert indices(problem, step, 4.0).tolist() == [2, 2, 1, 0]


def starts_in_time(problem: ScheduleProblem, start: np.ndarray) -> bool:
    end = start[problem.tail] + problem.time[problem.tail] + problem.delay
    return bool((end <= start[problem.head] + 1e-9).all())


@pytest.mark.parametrize("seed", range(60))
def test_random_placements(seed: int) -> None:
    placement = random_placement(seed, whole=seed % 2 == 0)
    if seed % 3 == 0:
        blocks = tuple(
            replace(b, after=tuple(replace(w, delay_s=0.5 * (seed % 5)) for w in b.after))
            for b in placement.blocks
        )
        placement = replace(placement, blocks=blocks)
    found = tessel_fast(placement)
    check(placement, found)
    held = float(found.repetend.memory_bytes.max())
    limited = with_memory(placement, held)
    again = tessel_fast(limited)
    assert again.repetend.start_s.tolist() == found.repetend.start_s.tolist()
    # Blocks of no time may release only after others that start with them have taken: in turn then.
    for count in (1, 5, 12):
        start, method = scheduled(limited, again, count)
        assert violations(problem_of(limited, count), start) == []
        few = count <= again.micro_batches
        assert method == "tessel-fast" or few or (problem_of(limited, 1).time == 0).any()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 3))
def test_indices_are_the_least(seed: int, pairs: int) -> None:
    """Of all assignments for the same steps, by brute force."""
    placement = random_placement(seed, devices=2, pairs=pairs)
    problem = problem_of(placement, 1)
    step = packed(problem)
    period = float((step + problem.time).max()) or 1.0
    index = indices(problem, step, period)
    assert starts_in_time(problem, step - index * period)
    least = np.full(problem.b, 99)
    top = int(index.max())
    for other in itertools.product(range(top + 1), repeat=problem.b):
        if starts_in_time(problem, step - np.array(other) * period):
            least = np.minimum(least, other)
    assert index.tolist() == least.tolist()


def test_blocks_on_several_devices_get_no_time_twice() -> None:
    """The second device's first block is on the third, too, which has one already."""
    units = tuple(Unit(f"d/{i}") for i in range(3))
    homes = [(0, 2), (1, 2), (1,), (2,)]
    blocks = tuple(
        PlacedBlock(f"F{i}", "forward", (home,), 2.0, 0.0, (Wait(i - 1),) if i else ())
        for i, home in enumerate(homes)
    )
    placement = Placement("shared", units, blocks)
    check(placement, tessel_fast(placement))
    assert tessel_fast(placement).repetend.period_s == 6.0


def test_warm_up_and_cool_down_are_the_shortest() -> None:
    """No micro-batches more or less make a schedule longer than the first and last ones do."""
    placement = shape("NN", 4)
    found = tessel_fast(placement)
    spans = [span_of(problem_of(placement, n), scheduled(placement, found, n)[0]) for n in (12, 16)]
    assert spans == [12 * 8 + 12, 16 * 8 + 12]


def test_what_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="method tessel-fast takes 1 to 4096 blocks, not 6000"):
        tessel_fast(shape("V", 3000))
    placement = shape("V", 2)
    turns = replace(placement.blocks[0], homes=((0,), (1,)))
    with pytest.raises(UsageError, match="tessel-fast takes no blocks whose replicas take turns"):
        tessel_fast(replace(placement, blocks=(turns, *placement.blocks[1:])))
    monkeypatch.setattr(fast, "around", lambda *_: None)
    with pytest.raises(LimitError, match="no warm-up or cool-down"):
        tessel_fast(placement)


def test_no_time_at_all() -> None:
    placement = shape("M", 4, forward_s=0.0, backward_s=0.0, shared_s=0.0)
    check(placement, tessel_fast(placement))


def test_from_the_outside() -> None:
    result = dnnp("schedule", "--shape", "multi-modal", "--method", "tessel-fast", "-n", "12")
    assert result.status == 0, result.err
    assert dnnp("check", stdin=result.out).status == 0
    record = result.one("schedule")
    assert (record["method"], record["repetend"]["method"]) == ("tessel-fast", "tessel-fast")
    refused = dnnp("schedule", "--shape", "M", "--method", "tessel-fast", "--memory", "3")
    assert (refused.status, refused.out) == (4, b"")
    assert "the repetend of tessel-fast holds 6 B on device/0, its limit is 3 B" in refused.err
    idle = dnnp("schedule", "--shape", "M", "--method", "tessel-fast", "--eager")
    assert (idle.status, "--eager is for --method tessel" in idle.err) == (2, True)


def test_stopped_at_once() -> None:
    found = tessel_fast(shape("NN", 4), SearchContext(interrupted=lambda: True))
    assert found.repetend.status == "interrupted"
    check(shape("NN", 4), found)
