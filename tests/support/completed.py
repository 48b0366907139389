"""Conditions on a repetend with warm-up and cool-down."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dnnp.core.model.schedule import Placement
from dnnp.core.model.search_context import PLAIN
from dnnp.core.schedule.bound import makespan_bound
from dnnp.core.schedule.problem import Batch, problem_of, span_of, steady_memory, violations
from dnnp.core.schedule.tessel import TesselResult, answered


def with_memory(placement: Placement, most: float) -> Placement:
    """The same where every unit may hold `most`."""
    units = tuple(replace(unit, memory_bytes=most) for unit in placement.units)
    return replace(placement, units=units)


def scheduled(placement: Placement, found: TesselResult, count: int) -> tuple[np.ndarray, str]:
    """Start times of so many micro-batches, and what made them."""
    problem = problem_of(placement, count)
    made = answered(found, Batch(placement, problem, makespan_bound(placement, count)), PLAIN)
    return made.start, made.method


def check(placement: Placement, found: TesselResult) -> None:
    """All that must hold of any result."""
    problem, repetend = problem_of(placement, 1), found.repetend
    assert violations(problem, repetend.start_s[0], repetend.period_s) == []
    assert repetend.start_s.min() == 0
    assert repetend.period_s >= repetend.period_bound_s
    assert repetend.span_s == span_of(problem, repetend.start_s[0])
    held = steady_memory(problem, repetend.start_s[0], repetend.period_s)
    np.testing.assert_array_equal(repetend.memory_bytes, held)
    assert found.index.min() == 0
    assert found.index.max() == found.micro_batches - 1
    assert np.all(found.index[problem.tail] >= found.index[problem.head])
    for count in (1, 2, found.micro_batches, found.micro_batches + 3):
        whole = problem_of(placement, count)
        start, method = scheduled(placement, found, count)
        assert method == repetend.method or count <= found.micro_batches
        assert start.shape == (whole.b,)
        assert start.min() == 0
        assert violations(whole, start) == []
