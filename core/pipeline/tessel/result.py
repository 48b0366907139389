"""What Tessel's searches find: a repetend with warm-up and cool-down, and whole schedules of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dnnp.core.model.errors import InfeasibleError, LimitError, UsageError
from dnnp.core.model.graph import Floats, Ints
from dnnp.core.model.placement import Placement
from dnnp.core.model.run import Run
from dnnp.core.model.schedule import Repetend
from dnnp.core.pipeline.finish.optimal import IN_TURN, in_turn
from dnnp.core.pipeline.problem import (
    TOLERANCE,
    ScheduleProblem,
    faults,
    problem_of,
    span_of,
    steady_memory,
)
from dnnp.core.pipeline.tessel.finish import Phase, joined, table
from dnnp.core.pipeline.wanted import Answer, Batch

LEAST_PERIOD = 1e-6
"""Over all times and delays: the period where units have nothing to do."""


@dataclass(frozen=True)
class TesselResult:
    """The best repetend, completed."""

    repetend: Repetend
    index: Ints
    """i64[k], micro-batch of each block of the repetend."""
    order: Ints
    """i64[k], the blocks as the repetend runs them."""
    warmup: Floats
    """f64[N_R, k], starts of the blocks before the repetend; inf for others."""
    cooldown: Floats
    """f64[N_R, k], starts of those after it, from 0; inf for others."""
    tried: tuple[int, ...] = ()
    """Index sets, for N_R = 1, 2, ..."""
    improved: int = 1
    """How often a better repetend was found."""
    complete: bool = True
    """Whether the search ended by itself: all was tried, or the largest load was reached."""
    repetend_s: float = 0.0
    """Wall time of the search for repetends, checks of warm-up and cool-down included."""
    warmup_s: float = 0.0
    """Of time-optimal searches for the warm-up."""
    cooldown_s: float = 0.0
    """Of those for the cool-down."""

    @property
    def micro_batches(self) -> int:
        """N_R of the repetend."""
        return len(self.warmup)


@dataclass(frozen=True)
class Chosen:
    """A repetend with its phases."""

    period: float
    start: Floats
    index: Ints
    order: Ints
    parts: tuple[Phase, Phase]
    times: tuple[Floats, ...] = ()
    """Start times of both, if they are known."""


def result_of(problem: ScheduleProblem, best: Chosen, name: str, status: str) -> TesselResult:
    """A completed repetend, as search `name` reports it; nothing is said about the search."""
    shape = int(best.index.max()) + 1, problem.b
    warmup, cooldown = (table(p, t, shape) for p, t in zip(best.parts, best.times, strict=True))
    repetend = Repetend(
        unroll=1,
        period_s=best.period,
        start_s=best.start[None, :],
        memory_bytes=steady_memory(problem, best.start, best.period),
        period_bound_s=min(float(problem.load().max()), best.period),
        status=status,
        span_s=span_of(problem, best.start),
        method=name,
    )
    return TesselResult(repetend, best.index, best.order, warmup, cooldown)


def repeatable(placement: Placement, name: str, most: int) -> ScheduleProblem:
    """The blocks of one micro-batch, at most `most`; refuses what search `name` is not for."""
    count = len(placement.blocks)
    if not 0 < count <= most:
        raise UsageError(f"method {name} takes 1 to {most} blocks, not {count}")
    if placement.turns > 1:
        raise UsageError(f"method {name} takes no blocks whose replicas take turns")
    problem = problem_of(placement, 1)
    grows = problem.left_behind() > TOLERANCE * np.abs(problem.memory).sum()
    for d in np.flatnonzero(grows & np.isfinite(problem.capacity)).tolist():
        raise InfeasibleError(
            f"every micro-batch leaves memory behind on {placement.units[d].name}, which is limited"
        )
    return problem


def answered(found: TesselResult, batch: Batch, count: int, run: Run) -> Answer:
    """A schedule of `count` micro-batches; says so where it does not follow the repetend."""
    start, method = tessel_starts(batch.placement, found, count)
    repetend = found.repetend
    if method != repetend.method:
        run.warn(
            f"{repetend.method}: {count} micro-batches in the order of the repetend hold too much; "
            "they run in turn"
        )
    return Answer(start.ravel(), method, batch.bound, repetend=repetend, rate_s=repetend.rate_s)


def tessel_starts(
    placement: Placement, found: TesselResult, micro_batches: int
) -> tuple[Floats, str]:
    """Start times of warm-up, repetends and cool-down; f64[micro_batches, k], the least is 0.

    Fewer than N_R micro-batches run in the order of the repetend; if that holds too much, in turn
    (`core.pipeline.finish.optimal.in_turn`). The text is the name of which it is: that of the
    search or `in-turn`.

    Raises
    ------
    LimitError
        Neither keeps within the memory limits.
    """
    problem = problem_of(placement, micro_batches)
    start = joined(problem, found.index, found.order, found.warmup, found.cooldown, micro_batches)
    method = found.repetend.method
    if faults(problem, start):
        start, method = in_turn(problem), IN_TURN
        if faults(problem, start):
            raise LimitError(f"no schedule of {micro_batches} micro-batches was found")
    return (start - start.min()).reshape(micro_batches, -1), method
