"""Warm-up and cool-down of a repetend, and whole schedules from the three (Tessel, IV.C).

A repetend that gives block i the micro-batch index[i] is preceded by the blocks of micro-batches
before those (Eq. 5), and followed by those after them (Eq. 6). Both are finite problems of their
own; micro-batches follow each other in every block (Property 4.1).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dnnp.core.model.errors import InfeasibleError, LimitError
from dnnp.core.model.graph import Bools, Floats, Ints, csr_rows
from dnnp.core.model.run import Run
from dnnp.core.pipeline.finish.optimal import optimal
from dnnp.core.pipeline.problem import ScheduleProblem, faults, span_of
from dnnp.core.pipeline.shift import left_shift

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
