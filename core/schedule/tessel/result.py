"""What Tessel's searches find: a repetend with warm-up and cool-down, and whole schedules.

Warm-up and cool-down of a repetend, and whole schedules from the three (Tessel, IV.C). A repetend
that gives block i the micro-batch index[i] is preceded by the blocks of micro-batches before those
(Eq. 5), and followed by those after them (Eq. 6). Both are finite problems of their own;
micro-batches follow each other in every block (Property 4.1).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dnnp.core.model.errors import InfeasibleError, LimitError, UsageError
from dnnp.core.model.graph import Bools, Floats, Ints, csr_rows
from dnnp.core.model.schedule import Placement, Repetend
from dnnp.core.model.search_context import Run
from dnnp.core.schedule.optimal import IN_TURN, in_turn, optimal
from dnnp.core.schedule.problem import (
    TOLERANCE,
    Answer,
    Batch,
    ScheduleProblem,
    faults,
    problem_of,
    span_of,
    steady_memory,
)
from dnnp.core.schedule.starts import left_shift

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
    (`core.schedule.optimal.in_turn`). The text is the name of which it is: that of the
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


NO_BLOCK = np.inf
"""Start of what is not part of a phase."""


@dataclass(frozen=True)
class Phase:
    """Some blocks of some micro-batches, each of which runs once."""

    problem: ScheduleProblem
    """Its blocks are numbered by themselves; what was held before counts as `fixed`."""
    micro: Ints
    """i64[b], micro-batch of each."""
    block: Ints
    """i64[b], block of a micro-batch."""
    sequence: Ints
    """i64[b], the order in which the repetend would run them if it were repeated."""


def phases(problem: ScheduleProblem, index: Ints, order: Ints) -> tuple[Phase, Phase]:
    """Warm-up and cool-down of the blocks of one micro-batch, `problem`.

    `order` holds the blocks as a repetend runs them.
    """
    micro = np.arange(index.max(initial=-1) + 1)[:, None]
    warmup = micro < index[None, :]
    cooldown = micro > index[None, :]
    owner = np.repeat(np.arange(problem.b), np.diff(problem.ptr))
    left = (problem.memory * (index + 1))[owner]
    held = np.bincount(problem.unit, left, minlength=problem.units).astype(np.float64)
    nothing = np.zeros(problem.units)
    return (
        _phase(problem, warmup, index, order, nothing),
        _phase(problem, cooldown, index, order, held),
    )


def first(phase: Phase, run: Run) -> Floats | None:
    """Start times of a phase, f64[b]; None if none are known to keep within the limits.

    The order of the repetend almost always does.
    """
    start = left_shift(phase.problem, phase.sequence)
    if not faults(phase.problem, start):
        return start
    try:
        start = optimal(phase.problem, run=run).start
    except (InfeasibleError, LimitError):
        return None
    return None if faults(phase.problem, start) else start


def shortest(phase: Phase, known: Floats, run: Run) -> Floats:
    """Start times of a time-optimal schedule, or of the best that effort allows."""
    start = optimal(phase.problem, known, run).start
    better = span_of(phase.problem, start) < span_of(phase.problem, known)
    return start if better and not faults(phase.problem, start) else known


def table(phase: Phase, start: Floats, shape: tuple[int, int]) -> Floats:
    """Start times by micro-batch and block; `NO_BLOCK` where one is not of the phase."""
    out = np.full(shape, NO_BLOCK)
    out[phase.micro, phase.block] = start
    return out


def joined(
    problem: ScheduleProblem, index: Ints, order: Ints, warmup: Floats, cooldown: Floats, count: int
) -> Floats:
    """Warm-up, repetends and cool-down of `count` micro-batches one after the other, compacted.

    `problem` is that of `count` micro-batches, `warmup` and `cooldown` are tables of N_R of them.
    With count < N_R there is no repetend: the order that repeating it would give. f64[count * k].
    """
    k, top = len(index), len(warmup)
    place = np.empty(k, dtype=np.int64)
    place[order] = np.arange(k)
    turn = np.arange(count)[:, None] - index[None, :]
    within = turn * k + place
    phase = np.zeros((count, k), dtype=np.int64)
    when = turn.astype(np.float64)
    if count >= top:
        phase[turn < 0] = -1
        phase[turn > count - top] = 1
        early, late = phase[:top] == -1, phase[count - top :] == 1
        when[:top][early] = warmup[early]
        when[count - top :][late] = cooldown[late]
    sequence = np.lexsort((within.ravel(), when.ravel(), phase.ravel()))
    return left_shift(problem, sequence)


def _phase(problem: ScheduleProblem, some: Bools, index: Ints, order: Ints, held: Floats) -> Phase:
    """The blocks that `some` (bool[micro-batches, k]) says, after others that leave `held`."""
    k = problem.b
    place = np.empty(k, dtype=np.int64)
    place[order] = np.arange(k)
    micro, block = (part.astype(np.int64) for part in np.nonzero(some))
    number = np.full(some.shape, -1, dtype=np.int64)
    number[micro, block] = np.arange(len(micro))
    tail, head = number[:, problem.tail], number[:, problem.head]
    both = (tail >= 0) & (head >= 0)
    delay = np.broadcast_to(problem.delay, tail.shape)[both]
    following = (number[:-1] >= 0) & (number[1:] >= 0)
    ptr, unit = csr_rows(problem.ptr, problem.unit, block)
    part = replace(
        problem,
        unroll=1,
        time=problem.time[block],
        memory=problem.memory[block],
        ptr=ptr,
        unit=unit,
        tail=np.concatenate([tail[both], number[:-1][following]]),
        head=np.concatenate([head[both], number[1:][following]]),
        delay=np.concatenate([delay, np.zeros(int(following.sum()))]),
        capacity=problem.capacity - held,
        fixed=problem.fixed + held,
    )
    return Phase(part, micro, block, np.lexsort((place[block], micro - index[block])))
