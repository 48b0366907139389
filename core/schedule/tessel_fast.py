"""Tessel's reduced search, of its authors' later version (Lin et al. 2024, TPDS, "Tessel-fast").

Instead of trying index sets, a repetend is made at once. The blocks of one micro-batch are packed
on the units as if none waited for another, in the order of a micro-batch alone and, on every other
unit, in the opposite one. Then each block gets the smallest micro-batch index with which it ends
before those start that wait for it. Warm-up and cool-down are accepted once they waste no more than
a share of the time of many micro-batches; else the shortest ones are looked for.

There is one repetend for a placement: if it holds more than a limit allows, there is no answer. The
published search checks a unit of each block alone when it packs; here all of them are.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from dnnp.core.model.errors import InfeasibleError, LimitError
from dnnp.core.model.graph import Floats, Ints, csr
from dnnp.core.model.schedule import Placement
from dnnp.core.model.search_context import PLAIN, Run
from dnnp.core.model.text import shown_bytes
from dnnp.core.schedule.problem import (
    TOLERANCE,
    Answer,
    Batch,
    ScheduleProblem,
    Wanted,
    span_of,
    steady_memory,
)
from dnnp.core.schedule.starts import left_shift, topological
from dnnp.core.schedule.tessel.result import (
    LEAST_PERIOD,
    Chosen,
    Phase,
    TesselResult,
    answered,
    first,
    phases,
    repeatable,
    result_of,
    shortest,
)

NAME = "tessel-fast"

MOST_BLOCKS = 4096
"""Of a micro-batch; packing looks at all pairs that share a unit."""

MANY, WASTE = 64, 0.05
"""Warm-up, and cool-down, may waste this share of the time of so many micro-batches."""

SHORTEN = 0.1
"""Of the effort, to shorten a warm-up or a cool-down that wastes more."""


def tessel_fast(placement: Placement, run: Run = PLAIN) -> TesselResult:
    """Make a repetend of one micro-batch without a search, and complete it.

    Raises
    ------
    InfeasibleError
        The repetend exceeds a memory limit, which says nothing about others.
    LimitError
        It has no warm-up or cool-down within the limits, as far as the effort allows to see.
    UsageError
        There are no blocks, or too many, or replicas that take turns.
    """
    problem = repeatable(placement, NAME, MOST_BLOCKS)
    whole = float(problem.time.sum() + problem.delay.sum())
    step = packed(problem)
    period = float((step + problem.time).max()) or LEAST_PERIOD * whole or 1.0
    index = indices(problem, step, period)
    start = step - index * period
    start -= start.min()
    held = steady_memory(problem, start, period)
    limit = problem.capacity + problem.fixed
    over = np.flatnonzero(held > limit + TOLERANCE * np.abs(problem.memory).sum())
    if len(over):
        d = int(over[0])
        raise InfeasibleError(
            f"the repetend of {NAME} holds {shown_bytes(held[d], 6)} on {problem.names[d]}, its "
            f"limit is {shown_bytes(limit[d], 6)}; other searches may find one"
        )
    inside = index[problem.tail] == index[problem.head]
    order = topological(problem.b, problem.tail[inside], problem.head[inside], step)
    chosen = Chosen(period, start, index, order, phases(problem, index, order))
    run.stands("warm-up and cool-down", value=period, what="period")
    times = tuple(_accepted(part, period, run) for part in chosen.parts)
    status = "interrupted" if run.stop() else "feasible"
    return result_of(problem, replace(chosen, times=times), NAME, status)


def tessel_fast_schedule(batch: Batch, wanted: Wanted, run: Run) -> Answer:
    """Method `tessel-fast` for all micro-batches; errors as `tessel_fast` and `tessel_starts`."""
    return answered(tessel_fast(batch.placement, run), batch, wanted.micro_batches, run)


def packed(problem: ScheduleProblem) -> Floats:
    """Start of each block where units run their blocks without waiting; f64[b].

    Unit by unit each block that has no start yet gets the first that is free on all of its units.
    """
    whole = topological(problem.b, problem.tail, problem.head)
    alone = left_shift(problem, whole)
    place = np.empty(problem.b, dtype=np.int64)
    place[whole] = np.arange(problem.b)
    ptr, block = problem.on_unit()
    slack = TOLERANCE * float(problem.time.sum())
    busy: list[list[tuple[float, float]]] = [[] for _ in range(problem.units)]
    start = np.full(problem.b, np.nan)
    for d in range(problem.units):
        mine = block[ptr[d] : ptr[d + 1]]
        mine = mine[np.lexsort((place[mine], alone[mine]))]
        for i in (mine[::-1] if d % 2 else mine).tolist():
            if not math.isnan(start[i]):
                continue
            homes = problem.unit[problem.ptr[i] : problem.ptr[i + 1]].tolist()
            taken = sorted({span for home in homes for span in busy[home]})
            start[i] = _first_gap(taken, float(problem.time[i]), slack)
            for home in homes:
                busy[home].append((float(start[i]), float(start[i] + problem.time[i])))
    return start


def _first_gap(taken: list[tuple[float, float]], time: float, slack: float) -> float:
    """The least start of a block of this time beside spans by start, which may overlap."""
    start = 0.0
    for begin, end in taken:
        if start + time <= begin + slack:
            break
        start = max(start, end)
    return start


def indices(problem: ScheduleProblem, step: Floats, period: float) -> Ints:
    """Micro-batch of each block: the least with which it ends before blocks after it start; i64[b].

    Repetend r runs block i of micro-batch index[i] + r, from r * period + step[i] on.
    """
    index = np.zeros(problem.b, dtype=np.int64)
    ptr, after = csr(problem.tail, np.arange(len(problem.head)), problem.b)
    late = step[problem.tail] + problem.time[problem.tail] + problem.delay - step[problem.head]
    turns = np.maximum(np.ceil(late / period - TOLERANCE), 0).astype(np.int64)
    for i in topological(problem.b, problem.tail, problem.head)[::-1].tolist():
        waits = after[ptr[i] : ptr[i + 1]]
        index[i] = (index[problem.head[waits]] + turns[waits]).max(initial=0)
    return index


def _accepted(part: Phase, period: float, run: Run) -> Floats:
    """Start times of a phase that wastes little, or of the shortest that effort allows."""
    known = first(part, run.alone())
    if known is None:
        raise LimitError(f"{NAME} finds no warm-up or cool-down within the memory limits")
    busy = float(part.problem.load().mean()) if part.problem.b else 0.0
    if span_of(part.problem, known) <= busy + WASTE * MANY * period:
        return known
    return shortest(part, known, replace(run.alone(), effort=SHORTEN * run.effort))
