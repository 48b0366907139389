"""Warm-up and cool-down around a repetend that keeps its times.

The blocks before some time are scheduled anew, such that what repeats behind them may start as
early as possible; how early is all that matters (Tessel, section IV.C). The cool-down is the
warm-up of the reversed schedule: a block that adds m there releases m.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from dnnp.core.model.graph import Bools, Floats, csr_rows
from dnnp.core.model.placement import Placement
from dnnp.core.model.run import PLAIN, Run
from dnnp.core.model.schedule import Repetend
from dnnp.core.pipeline.finish.beam import beam, work_of
from dnnp.core.pipeline.finish.shop import shop_of
from dnnp.core.pipeline.problem import ScheduleProblem, problem_of


class End(NamedTuple):
    """How a schedule begins, or how it ends: time and micro-batches then count backwards."""

    start: Floats
    """f64[m, k], of the first micro-batches; nan for blocks that keep their place."""
    shift: float
    """The start of a block that keeps its place is this much later than in the repetend."""


def unrolled(repetend: Repetend, micro_batches: int) -> Floats:
    """Start times of consecutive micro-batches; f64[N, k]."""
    n = np.arange(micro_batches)
    period = (n // repetend.unroll) * repetend.period_s
    return repetend.start_s[n % repetend.unroll] + period[:, None]


def warm_up(
    placement: Placement,
    repetend: Repetend,
    micro_batches: int,
    spare: int,
    width: int,
    most: float,
    run: Run = PLAIN,
) -> End | None:
    """Schedule the blocks anew that start before all kinds have, and `spare` periods later.

    `width` is that of the beam, less if its work would exceed `most`. None: there are too few
    micro-batches for that, or nothing was found.
    """
    cut = float(repetend.start_s.max()) + spare * repetend.period_s
    count = repetend.unroll * (int(np.ceil(cut / repetend.period_s)) + 1)
    if count > micro_batches:
        return None
    problem = problem_of(placement, count)
    return _end(problem, unrolled(repetend, count), cut, width, most, run)


def cool_down(
    placement: Placement,
    repetend: Repetend,
    micro_batches: int,
    spare: int,
    width: int,
    most: float,
    run: Run = PLAIN,
) -> End | None:
    """The same at the end of the schedule of so many micro-batches, all backwards."""
    u, period = repetend.unroll, repetend.period_s
    time = np.array([block.time_s for block in placement.blocks])
    ends = unrolled(repetend, micro_batches)[max(micro_batches - u, 0) :] + time
    cut = -float(ends.min()) + spare * period
    count = u * (int(np.ceil((cut + float(ends.max())) / period)) + 1)
    if count > micro_batches:
        return None
    before = (micro_batches - count) % placement.turns
    problem = reversed_problem(problem_of(placement, before + count))
    start = -(unrolled(repetend, micro_batches)[: -count - 1 : -1] + time)
    extra = np.zeros((before, start.shape[1]))
    return _end(problem, np.concatenate([start, extra + np.inf]), cut, width, most, run)


def reversed_problem(problem: ScheduleProblem) -> ScheduleProblem:
    """The problem whose schedules are those of `problem` backwards; the last micro-batch first.

    Between two blocks a unit holds the same as in the schedule itself if nothing is left behind
    after all blocks.
    """
    k = problem.k
    old = (np.arange(problem.unroll)[::-1, None] * k + np.arange(k)).ravel()
    new = np.empty_like(old)
    new[old] = np.arange(problem.b)
    ptr, unit = csr_rows(problem.ptr, problem.unit, old)
    return replace(
        problem,
        time=problem.time[old],
        memory=-problem.memory[old],
        ptr=ptr,
        unit=unit,
        tail=new[problem.head],
        head=new[problem.tail],
    )


def _end(
    problem: ScheduleProblem,
    start: Floats,
    cut: float,
    width: int,
    most: float,
    run: Run,
) -> End | None:
    """Schedule the blocks that start before `cut` anew; the others keep their places."""
    flat = start.ravel()
    fixed = flat >= cut
    by = _deadlines(problem, flat, fixed)
    latest = float(by[~fixed].max())
    shop = shop_of(problem, (~fixed).astype(np.int64), np.where(fixed, 0.0, latest - by))
    width = min(width, int(most / max(work_of(shop, 1), 1.0)))
    if not width:
        return None
    found = beam(shop, width, run=run)
    if found.start is None and not run.stop():
        found = beam(shop, width, careful=True, run=run)
    if found.start is None:
        return None
    return End(found.start.reshape(start.shape), found.value - latest)


def _deadlines(problem: ScheduleProblem, start: Floats, fixed: Bools) -> Floats:
    """When each block that is not fixed has to end for the sake of the fixed ones; f64[b]."""
    size = np.diff(problem.ptr)
    owner = np.repeat(np.arange(problem.b), size)
    first = np.full(problem.units, np.inf)
    kept = fixed[owner]
    np.minimum.at(first, problem.unit[kept], start[owner[kept]])
    by = np.full(problem.b, np.inf)
    np.minimum.at(by, owner, first[problem.unit])
    kept = fixed[problem.head]
    tail, head = problem.tail[kept], problem.head[kept]
    np.minimum.at(by, tail, start[head] - problem.delay[kept])
    return by
