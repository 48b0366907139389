"""Complete schedules of N micro-batches from a repetend (Tessel, section IV.C).

The repetend is unrolled, truncated and left-shifted. Where that is not optimal its ends are
scheduled anew around the part that repeats, or, if there are few blocks, all of them at once.

Warm-up and cool-down around a repetend that keeps its times. The blocks before some time are
scheduled anew, such that the repeating blocks after them may start as early as possible (Tessel,
section IV.C). The cool-down is the warm-up of the reversed schedule: a block
that adds m there releases m.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from dnnp.core.model.errors import LimitError
from dnnp.core.model.graph import Bools, Floats
from dnnp.core.model.schedule import Placement, Repetend
from dnnp.core.model.search_context import PLAIN, SearchContext
from dnnp.core.schedule.justify import justified, reversed_problem, shifted
from dnnp.core.schedule.optimal import WORK as WORK_OF_OPTIMAL
from dnnp.core.schedule.optimal import beam, optimal, work_of
from dnnp.core.schedule.problem import (
    TOLERANCE,
    Answer,
    ScheduleProblem,
    problem_of,
    span_of,
    violations,
)
from dnnp.core.schedule.shop import root_bound, shop_of

MOST_BLOCKS = 5_000_000
"""Of all micro-batches together."""

TRIES = ((64, 0), (64, 1), (256, 0), (256, 1), (256, 2))
"""Widths of beams for the ends, and periods that they schedule anew besides those they must."""

NARROW, HOPELESS = 2, 1.02
"""Tries after which ends are dropped, if their schedule is so many times as long as a known one."""

END_WORK = 1e7
"""Work of one beam for one end at effort 1 (`Beamed.work`)."""

MOST_COUNTED = 20_000
"""Blocks that a lower bound looks at."""

WORK = 7e7
"""Work of the search for all blocks at once at effort 1."""

MOST_AT_ONCE = 2000
"""Blocks that are scheduled all at once, at most, at effort 1."""

PROOF_WORK = 2e7
"""Work of the search for something shorter among more blocks at effort 1."""

AT_ONCE, ENDED = 0.4, 0.8
"""Shares of the whole work at the ends of the search for all blocks at once, and of warm-up and
cool-down; the search for something shorter is the rest."""

MOST_PROVEN = 20_000
"""Blocks among which it is looked for, at most, at effort 1."""


def complete(
    placement: Placement,
    repetend: Repetend,
    micro_batches: int,
    bound: float = 0.0,
    run: SearchContext = PLAIN,
    starts: Iterable[tuple[str, Floats]] = (),
) -> Answer:
    """Schedule N micro-batches; never longer than the repetend, unrolled and left-shifted.

    Nor longer than any of `starts` that keeps the limits. The method is `auto`, from the repetend,
    or, without it, `optimal`, `in-turn` or that of one of `starts`.

    Parameters
    ----------
    repetend
        Its unrolling is a multiple of `placement.turns`.
    bound
        A lower bound of the makespan, if one is known; the search ends at it, or near it.
    run
        Its effort scales the work of the searches; `stop` is asked every 0.2 s or so.
    starts
        Other schedules, f64[b], and their methods; not needed where the repetend is optimal.

    Raises
    ------
    LimitError
        There are too many blocks, or no schedule was found.
    InfeasibleError
        It is proven that blocks wait for each other's memory in every schedule.
    """
    count = len(placement.blocks)
    if micro_batches * count > MOST_BLOCKS:
        raise LimitError(
            f"{micro_batches} micro-batches of {count} blocks are too many to schedule"
        )
    if not count:
        return Answer(np.zeros(0), "auto", 0.0, "optimal")
    problem = problem_of(placement, micro_batches)
    slack = TOLERANCE * float(problem.time.sum() + problem.delay.sum())
    bound = max(bound, least_end(placement, micro_batches))
    run.report_progress("filling idle time")
    best = _valid(problem, unrolled(repetend, micro_batches))
    status, method = "feasible", "auto"
    if best is not None:
        best = justified(problem, best, bound + slack, run)
    if best is None or span_of(problem, best) > bound + slack:
        best, method = _started(problem, best, starts, bound + slack, run)
    few = problem.b <= MOST_AT_ONCE * run.effort
    if best is None or (few and _open(span_of(problem, best), bound, slack, run)):
        part = run.phase("all blocks at once", 0.0, AT_ONCE).scaled(WORK / WORK_OF_OPTIMAL)
        finite = optimal(problem, best, part)
        best, bound, status = finite.start, max(bound, finite.bound), finite.status
        method = finite.named(method)
    if _open(span_of(problem, best), bound, slack, run) and not run.stop():
        run.report_incumbent(best, span_of(problem, best), method)
        run.report_progress(value=span_of(problem, best), bound=bound, what="makespan")
        part = run.phase("warm-up and cool-down", AT_ONCE, ENDED)
        value = span_of(problem, best)
        other = around(placement, repetend, micro_batches, bound + slack, part, value)
        if other is not None and span_of(problem, other) < value:
            best, method = other, "auto"
        if not few and problem.b <= MOST_PROVEN * run.effort:
            # Whatever idles too much at once is dropped at once, however many blocks there are.
            part = run.phase("all blocks at once", ENDED, 1.0)
            finite = optimal(problem, best, part.scaled(PROOF_WORK / WORK_OF_OPTIMAL))
            best, bound = finite.start, max(bound, finite.bound)
            method = finite.named(method)
    if span_of(problem, best) <= bound + slack:
        bound, status = min(bound, span_of(problem, best)), "optimal"
    elif run.stop():
        status = "interrupted"
    return Answer(best, method, bound, status)


def _open(value: float, bound: float, slack: float, run: SearchContext) -> bool:
    """True if the gap is to be closed."""
    return value > bound + slack and not run.gap_reached(value, bound)


def _started(
    problem: ScheduleProblem,
    best: Floats | None,
    starts: Iterable[tuple[str, Floats]],
    enough: float,
    run: SearchContext,
) -> tuple[Floats | None, str]:
    """The shortest of a schedule that is known, f64[b], and others, justified; and its maker."""
    value, method = np.inf if best is None else span_of(problem, best), "auto"
    for name, start in starts:
        if run.stop() or value <= enough:
            break
        if violations(problem, start):
            continue
        other = justified(problem, start, enough, run)
        if span_of(problem, other) < value:
            best, value = other, span_of(problem, other)
            method = name if value == span_of(problem, start) else "auto"
    return best, method


def around(
    placement: Placement,
    repetend: Repetend,
    micro_batches: int,
    enough: float,
    run: SearchContext,
    known: float = np.inf,
) -> Floats | None:
    """The repetend with the best warm-up and cool-down found; f64[b], None if none is valid.

    Looking for them ends with a schedule no longer than `enough`, or where those found first are
    far behind a `known` length.
    """
    problem = problem_of(placement, micro_batches)
    made = _valid(problem, _with_ends(placement, repetend, micro_batches, enough, run, known))
    return _valid(problem, unrolled(repetend, micro_batches)) if made is None else made


def _valid(problem: ScheduleProblem, made: Floats) -> Floats | None:
    """Start times left-shifted, or as they are; f64[b], None if neither is valid.

    Shifting may part blocks that only fit the memory because they start at the same time.
    """
    for start in (shifted(problem, made.ravel()), made.ravel()):
        if not violations(problem, start):
            return start - start.min()
    return None


def least_end(placement: Placement, micro_batches: int) -> float:
    """Lower bound of the makespan of so many micro-batches, for any memory."""
    turns = placement.turns
    known = max(MOST_COUNTED // (turns * len(placement.blocks)), 2)
    few = (micro_batches - 1) % turns + 1
    steps = (micro_batches - few) // turns
    if steps <= known:
        return root_bound(shop_of(problem_of(placement, micro_batches)))
    # A maximum of linear functions of the number is no smaller than a line through two values.
    lower, upper = (
        root_bound(shop_of(problem_of(placement, few + i * turns))) for i in (known - 1, known)
    )
    return lower + (upper - lower) * (steps - known + 1)


def _with_ends(
    placement: Placement,
    repetend: Repetend,
    micro_batches: int,
    enough: float,
    run: SearchContext,
    known: float,
) -> Floats:
    """The repetend, unrolled, with a warm-up and a cool-down of its own, f64[N, k].

    Tries end as in `around`.
    """
    plain = unrolled(repetend, micro_batches)
    time = np.array([block.time_s for block in placement.blocks])
    nothing = np.full((0, plain.shape[1]), np.nan)
    warm, cool = End(nothing, 0.0), End(nothing, float((plain + time).max()))
    joined = plain
    for number, (width, spare) in enumerate(TRIES):
        length = warm.shift + cool.shift
        if run.stop() or length <= enough or (number == NARROW and length > known * HOPELESS):
            break
        work = END_WORK * run.effort
        part = run.phase("warm-up and cool-down", number / len(TRIES), (number + 1) / len(TRIES))
        begin = warm_up(placement, repetend, micro_batches, spare)
        first = begin and anew(*begin, width, work, part.phase("", 0.0, 0.5))
        finish = cool_down(placement, repetend, micro_batches, spare)
        last = finish and anew(*finish, width, work, part.phase("", 0.5, 1.0))
        pairs = (warm, first or warm), (cool, last or cool)
        tried = [min(pair, key=lambda end: end.shift) for pair in pairs]
        whole = _joined(plain, time, *tried)
        if whole is not None:
            (warm, cool), joined = tried, whole
    return joined


def _joined(plain: Floats, time: Floats, warm: End, cool: End) -> Floats | None:
    """A schedule with these ends; None if they overlap."""
    start = plain + warm.shift
    begins, ends = np.zeros(plain.shape, dtype=np.bool_), np.zeros(plain.shape, dtype=np.bool_)
    first, last = ~np.isnan(warm.start), ~np.isnan(cool.start[::-1])
    m, n = (int(rows.any(axis=1).sum()) for rows in (first, last))
    if max(m, n) > len(plain):
        return None
    begins[:m] = first[:m]
    ends[len(plain) - n :] = last[len(last) - n :]
    if (begins & ends).any():
        return None
    start[begins] = warm.start[first]
    start[ends] = (warm.shift + cool.shift - cool.start[::-1] - time)[last]
    return start


class End(NamedTuple):
    """The begin of a schedule, or its end: time and micro-batches then count backwards."""

    start: Floats
    """f64[m, k], of the first micro-batches; nan for blocks that keep their place."""
    shift: float
    """The start of a block that keeps its place is this much later than in the repetend."""


def unrolled(repetend: Repetend, micro_batches: int) -> Floats:
    """Start times of consecutive micro-batches; f64[N, k]."""
    n = np.arange(micro_batches)
    period = (n // repetend.unroll) * repetend.period_s
    return repetend.start_s[n % repetend.unroll] + period[:, None]


Part = tuple[ScheduleProblem, Floats, float]
"""Micro-batches, their start times (f64[m, k]), and the time before which blocks may move."""


def warm_up(
    placement: Placement, repetend: Repetend, micro_batches: int, spare: int
) -> Part | None:
    """The blocks that start before all kinds have, and `spare` periods later.

    None: there are too few micro-batches for that.
    """
    cut = float(repetend.start_s.max()) + spare * repetend.period_s
    count = repetend.unroll * (int(np.ceil(cut / repetend.period_s)) + 1)
    if count > micro_batches:
        return None
    problem = problem_of(placement, count)
    return problem, unrolled(repetend, count), cut


def cool_down(
    placement: Placement, repetend: Repetend, micro_batches: int, spare: int
) -> Part | None:
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
    return problem, np.concatenate([start, extra + np.inf]), cut


def anew(
    problem: ScheduleProblem,
    start: Floats,
    cut: float,
    width: int,
    most: float,
    run: SearchContext,
) -> End | None:
    """Schedule the blocks that start before `cut` anew; the others keep their places.

    `width` is that of the beam, less if its work would exceed `most`. None: nothing was found.
    """
    flat = start.ravel()
    fixed = flat >= cut
    if fixed.all():
        return None
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
    """Latest end of each block that is not fixed, for the sake of the fixed ones; f64[b]."""
    owner = problem.owner()
    first = np.full(problem.units, np.inf)
    kept = fixed[owner]
    np.minimum.at(first, problem.unit[kept], start[owner[kept]])
    by = np.full(problem.b, np.inf)
    np.minimum.at(by, owner, first[problem.unit])
    kept = fixed[problem.head]
    tail, head = problem.tail[kept], problem.head[kept]
    np.minimum.at(by, tail, start[head] - problem.delay[kept])
    return by
