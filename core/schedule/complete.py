"""Complete schedules of N micro-batches from a repetend (Tessel, section IV.C).

The repetend is unrolled, truncated and left-shifted. Where that is not optimal its ends are
scheduled anew around the part that repeats, or, if there are few blocks, all of them at once.

Warm-up and cool-down around a repetend that keeps its times. The blocks before some time are
scheduled anew, such that what repeats behind them may start as early as possible; how early is all
that matters (Tessel, section IV.C). The cool-down is the warm-up of the reversed schedule: a block
that adds m there releases m.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from dnnp.core.cost.load_formula import ROUNDING
from dnnp.core.model.errors import FormatError, LimitError
from dnnp.core.model.graph import Bools, Floats, Ints, csr_rows
from dnnp.core.model.schedule import Placement, Repetend
from dnnp.core.model.search_context import PLAIN, Run
from dnnp.core.schedule.optimal import WORK as WORK_OF_OPTIMAL
from dnnp.core.schedule.optimal import beam, optimal, work_of
from dnnp.core.schedule.problem import TOLERANCE, ScheduleProblem, faults, problem_of, span_of
from dnnp.core.schedule.shop import releases_early, root_bound, shop_of
from dnnp.core.schedule.starts import left_shift, merged

MOST_BLOCKS = 5_000_000
"""Of all micro-batches together."""

TRIES = ((64, 0), (64, 1), (256, 0), (256, 1), (256, 2))
"""Widths of beams for the ends, and periods that they schedule anew besides those they must."""

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


class Completed(NamedTuple):
    """A schedule of N micro-batches."""

    start: Floats
    """f64[N, k]; the least is 0."""
    bound: float
    """No schedule of N micro-batches within the memory limits is shorter."""
    status: str
    """`optimal`, `feasible` (the effort was spent) or `interrupted`."""
    method: str = "auto"
    """Maker of `start`: `auto`, from the repetend; `optimal` or `in-turn`, without it."""


def complete(
    placement: Placement,
    repetend: Repetend,
    micro_batches: int,
    bound: float = 0.0,
    run: Run = PLAIN,
) -> Completed:
    """Schedule N micro-batches; never longer than the repetend, unrolled and left-shifted.

    Parameters
    ----------
    repetend
        Its unrolling is a multiple of `placement.turns`.
    bound
        A makespan that none is below, if one is known: there the search ends.
    run
        Its effort scales the work of the searches; `stop` is asked every 0.2 s or so.

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
        return Completed(np.zeros((micro_batches, 0)), 0.0, "optimal")
    problem = problem_of(placement, micro_batches)
    slack = TOLERANCE * float(problem.time.sum() + problem.delay.sum())
    bound = max(bound, least_end(placement, micro_batches))
    best = _valid(problem, unrolled(repetend, micro_batches))
    status, method = "feasible", "auto"
    few = problem.b <= MOST_AT_ONCE * run.effort
    if best is None or (few and span_of(problem, best) > bound + slack):
        part = run.begin("all blocks at once", 0.0, AT_ONCE).scaled(WORK / WORK_OF_OPTIMAL)
        finite = optimal(problem, best, part)
        best, bound, status = finite.start, max(bound, finite.bound), finite.status
        method = finite.named(method)
    if span_of(problem, best) > bound + slack and not run.stop():
        run.keep(best, span_of(problem, best), method)
        run.stands(value=span_of(problem, best), bound=bound, what="makespan")
        part = run.begin("warm-up and cool-down", AT_ONCE, ENDED)
        other = around(placement, repetend, micro_batches, bound + slack, part)
        if other is not None and span_of(problem, other) < span_of(problem, best):
            best, method = other, "auto"
        if not few and problem.b <= MOST_PROVEN * run.effort:
            # Whatever idles too much at once is dropped at once, however many blocks there are.
            part = run.begin("all blocks at once", ENDED, 1.0)
            finite = optimal(problem, best, part.scaled(PROOF_WORK / WORK_OF_OPTIMAL))
            best, bound = finite.start, max(bound, finite.bound)
            method = finite.named(method)
    if span_of(problem, best) <= bound + slack:
        bound, status = min(bound, span_of(problem, best)), "optimal"
    elif run.stop():
        status = "interrupted"
    return Completed(best.reshape(micro_batches, count), bound, status, method)


def around(
    placement: Placement, repetend: Repetend, micro_batches: int, enough: float, run: Run
) -> Floats | None:
    """The repetend with the best warm-up and cool-down found; f64[b], None if none is valid.

    Looking for them ends with a schedule no longer than `enough`.
    """
    problem = problem_of(placement, micro_batches)
    made = _valid(problem, _with_ends(placement, repetend, micro_batches, enough, run))
    return _valid(problem, unrolled(repetend, micro_batches)) if made is None else made


def _valid(problem: ScheduleProblem, made: Floats) -> Floats | None:
    """Start times left-shifted, or as they are; f64[b], None if neither is valid.

    Shifting may part blocks that only fit the memory because they start at the same time.
    """
    for start in (shifted(problem, made.ravel()), made.ravel()):
        if not faults(problem, start):
            return start - start.min()
    return None


def shifted(problem: ScheduleProblem, start: Floats) -> Floats:
    """Earliest start times in the order of the given ones, f64[b]; that order keeps all waits."""
    rank = np.empty(problem.k)
    rank[_at_once(problem)] = np.arange(problem.k)
    grain = ROUNDING * max(float(np.ptp(start)), 1e-300)
    sequence = np.lexsort((np.tile(rank, problem.unroll), np.round(start / grain)))
    place = np.empty(problem.b, dtype=np.int64)
    place[sequence] = np.arange(problem.b)
    if (place[problem.tail] > place[problem.head]).any():
        # Rounding put a block that takes no time behind one that waits for it.
        try:
            rows = [row[np.argsort(place[row])] for row in problem.by_unit()]
            sequence = merged(problem, rows)
        except FormatError:
            return start
    return left_shift(problem, sequence)


def _at_once(problem: ScheduleProblem) -> Ints:
    """Order, i64[k], of blocks that start at the same time: memory is released before it is held.

    Blocks that come after one that takes no time and holds memory come after it all the same.
    """
    k = problem.k
    time, memory = problem.time[:k], problem.memory[:k]
    holds = np.where(memory > 0, np.where(time > 0, 2, 1), 0)
    order = releases_early(problem)
    first = problem.tail < k
    for i in order[time[order] == 0].tolist():
        after = problem.head[first & (problem.tail == i)]
        holds[after] = np.maximum(holds[after], holds[i])
    place = np.empty(k, dtype=np.int64)
    place[order] = np.arange(k)
    return np.lexsort((place, holds))


def least_end(placement: Placement, micro_batches: int) -> float:
    """No schedule of so many micro-batches is shorter, whatever the memory."""
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
    run: Run,
) -> Floats:
    """The repetend, unrolled, with a warm-up and a cool-down of its own, f64[N, k].

    Tries end with a schedule no longer than `enough`.
    """
    plain = unrolled(repetend, micro_batches)
    time = np.array([block.time_s for block in placement.blocks])
    nothing = np.full((0, plain.shape[1]), np.nan)
    warm, cool = End(nothing, 0.0), End(nothing, float((plain + time).max()))
    joined = plain
    for number, (width, spare) in enumerate(TRIES):
        if run.stop() or warm.shift + cool.shift <= enough:
            break
        work = END_WORK * run.effort
        part = run.begin("warm-up and cool-down", number / len(TRIES), (number + 1) / len(TRIES))
        first = warm_up(
            placement, repetend, micro_batches, spare, width, work, part.begin("", 0.0, 0.5)
        )
        part = part.begin("", 0.5, 1.0)
        last = cool_down(placement, repetend, micro_batches, spare, width, work, part)
        tried = min(warm, first or warm, key=_shift), min(cool, last or cool, key=_shift)
        whole = _joined(plain, time, *tried)
        if whole is not None:
            (warm, cool), joined = tried, whole
    return joined


def _shift(end: End) -> float:
    """The makespan without the other end."""
    return end.shift


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
