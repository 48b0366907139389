"""The shortest schedule of finitely many blocks, by beams: exact where they are wide enough.

Blocks of the same kind of different micro-batches with the same homes are interchangeable, so
they run in the order of their micro-batches (Tessel, property 4.1). A partial schedule then is
a number of blocks of every kind, with their times. Level by level one more block starts, no
earlier than the ones before; dominated partial schedules of the same blocks are dropped, and of the
others the most promising ones are kept. If the width of the beam was never reached, the best
schedule is optimal; else the most promising one dropped bounds it. `optimal` widens the beam until
that proves a schedule (Tessel's time-optimal search, III.A).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from dnnp.core.model.errors import InfeasibleError, LimitError
from dnnp.core.model.graph import Floats, Ints, totals
from dnnp.core.model.search_context import PLAIN, SearchContext
from dnnp.core.schedule.beam_kernel import (
    Children,
    Level,
    Rivals,
    expand,
    find_risks,
    keep,
    scratch_of,
)
from dnnp.core.schedule.problem import (
    TOLERANCE,
    Answer,
    Batch,
    ScheduleProblem,
    Wanted,
    span_of,
    violations,
)
from dnnp.core.schedule.shop import Shop, releases_early, root_bound, shop_of
from dnnp.core.schedule.starts import left_shift

MOST_WIDTH = 1 << 16
"""Partial schedules of one level, at most."""

MOST_BYTES = 400e6
"""Memory that the partial schedules of a beam may take."""

CHUNK = 2e6
"""Numbers that may be visited between two looks at `SearchContext.stop`."""


class Beamed(NamedTuple):
    """The answer of a beam."""

    start: Floats | None
    """f64[blocks of the problem], nan for blocks that are not in the shop."""
    value: float
    """Last end, `Shop.final` included; inf without a schedule."""
    bound: float
    """No schedule that ends before `upper` ends before this or `value`; inf: so does none."""
    work: float
    """Numbers that were copied and compared, about."""
    interrupted: bool
    stuck: int
    """Unit that most often lacked memory; -1: none did."""


class _Steps(NamedTuple):
    """The origin of the partial schedules of a level."""

    parent: Ints
    """i32, in the level before."""
    kind: Ints
    """i32, which kind started."""
    at: Floats
    """Start of the block."""


def work_of(shop: Shop, width: int) -> float:
    """`Beamed.work` of a beam that stays full, about."""
    each = 8 * len(shop.total) + len(shop.cap) + len(shop.unit)
    return float(len(shop.block)) * width * each


def widest_of(shop: Shop) -> int:
    """Partial schedules of one level for which there is memory."""
    each = 32 * (len(shop.block) + len(shop.total) + len(shop.cap) + 8)
    return min(MOST_WIDTH, int(MOST_BYTES / each))


def _empty(rows: int, shop: Shop) -> Level:
    """Partial schedules without any block."""
    return Level(
        ran=np.zeros((rows, len(shop.total)), dtype=np.int64),
        end=np.empty((rows, len(shop.block))),
        free=np.zeros((rows, len(shop.cap))),
        now=np.zeros(rows),
        value=np.zeros(rows),
        least=np.zeros(rows),
        risk=np.zeros(rows, dtype=np.bool_),
    )


def beam(
    shop: Shop,
    width: int,
    *,
    upper: float = np.inf,
    careful: bool = False,
    most: float = np.inf,
    run: SearchContext = PLAIN,
) -> Beamed:
    """Search with at most `width` partial schedules a level; see the module.

    Parameters
    ----------
    upper
        Only a schedule that ends earlier is of interest.
    careful
        Drop first partial schedules that memory may keep from completion.
    most
        Limit of work, as in `Beamed.work`.
    """
    b, units = len(shop.block), len(shop.cap)
    width = min(width, widest_of(shop))
    each = work_of(shop, 1) / max(b, 1)
    level = _empty(1, shop)
    blocked = np.zeros(units, dtype=np.int64)
    bound, work = np.inf, 0.0
    steps: list[_Steps] = []

    def asked() -> bool:
        return run.stop() or work > most

    for number in range(b):
        run.report_progress(share=number / b)
        children = _expanded(shop, level, upper, careful, blocked, asked)
        following = None
        if children is not None:
            work += each * (len(level.now) + len(children.at))
            following = _kept(shop, level, children, width, asked)
        if following is None:
            bound = min(bound, float(level.least.min()))
            return Beamed(None, np.inf, bound, work, True, _scarcest(blocked))
        level, made, dropped = following
        steps.append(made)
        bound = min(bound, dropped)
        if not len(level.now):
            return Beamed(None, np.inf, bound, work, False, _scarcest(blocked))
    if not _fits(shop):
        return Beamed(None, np.inf, bound, work, False, _scarcest(blocked))
    best = int(np.argmin(level.value))
    start = _start(shop, steps, best)
    return Beamed(start, float(level.value[best]), bound, work, False, _scarcest(blocked))


def _start(shop: Shop, steps: list[_Steps], place: int) -> Floats:
    """Start times of the blocks of the problem, from the last level back to the first."""
    start = np.full(shop.blocks, np.nan)
    left = shop.total.copy()
    for made in reversed(steps):
        kind = made.kind[place]
        left[kind] -= 1
        start[shop.block[shop.first[kind] + left[kind]]] = made.at[place]
        place = int(made.parent[place])
    return start


def _expanded(
    shop: Shop,
    level: Level,
    upper: float,
    careful: bool,
    blocked: Ints,
    asked: Callable[[], bool],
) -> Children | None:
    """All children of a level; None: stopped."""
    kinds = len(shop.total)
    scratch = scratch_of(kinds, len(shop.cap))
    rows = max(1, int(CHUNK / (kinds * ((kinds if shop.loose else 1) + len(shop.cap) + 8))))
    parts = []
    for begin in range(0, len(level.now), rows):
        if asked():
            return None
        until = min(begin + rows, len(level.now))
        room = (until - begin) * kinds * (kinds if shop.loose else 1)
        children = Children(
            parent=np.empty(room, dtype=np.int64),
            kind=np.empty(room, dtype=np.int64),
            at=np.empty(room),
            least=np.empty(room),
            tie=np.empty(room),
            risk=np.zeros(room, dtype=np.bool_),
        )
        made = expand(
            begin, until, tuple(shop), tuple(level), upper, tuple(children), blocked, scratch
        )
        if careful:
            find_risks(tuple(shop), tuple(level), tuple(children), made)
        parts.append([array[:made] for array in children])
    return Children(*(np.concatenate(list(part)) for part in zip(*parts, strict=True)))


def _kept(
    shop: Shop, level: Level, children: Children, width: int, asked: Callable[[], bool]
) -> tuple[Level, _Steps, float] | None:
    """The next level, its steps, and a bound of the children beyond the width.

    None: stopped.
    """
    order = np.lexsort((children.tie, children.least, children.risk))
    room = min(width, len(order))
    fresh = _empty(room + 1, shop)
    rivals = Rivals(
        head=np.full(2 * room + 1, -1, dtype=np.int64),
        link=np.empty(room + 1, dtype=np.int64),
        key=np.empty(room + 1, dtype=np.int64),
    )
    chosen = np.empty(room + 1, dtype=np.int64)
    scratch = scratch_of(len(shop.total), len(shop.cap))
    count, place = 0, 0
    chunk = max(1, int(CHUNK / (len(shop.total) + len(shop.cap))))
    while place < len(order):
        if asked():
            return None
        until = min(place + chunk, len(order))
        count, place = keep(
            place,
            until,
            count,
            order,
            room,
            tuple(shop),
            tuple(level),
            tuple(children),
            tuple(fresh),
            tuple(rivals),
            chosen,
            scratch,
        )
        if place < until:
            break
    fresh = Level._make(array[:count] for array in fresh)
    chosen = chosen[:count]
    made = _Steps(
        children.parent[chosen].astype(np.int32),
        children.kind[chosen].astype(np.int32),
        children.at[chosen],
    )
    return fresh, made, float(children.least[order[place:]].min(initial=np.inf))


def _fits(shop: Shop) -> bool:
    """True if the memory held after all blocks keeps the limits."""
    each = np.repeat(shop.total * shop.memory, np.diff(shop.unit_ptr))
    held = totals(shop.unit, each, len(shop.cap))
    return not (held > shop.cap + shop.slack).any()


def _scarcest(blocked: Ints) -> int:
    return int(np.argmax(blocked)) if blocked.any() else -1


WORK = 1e9
"""Work of all beams at effort 1 (`Beamed.work`)."""

WIDTH = 32
"""Of the first beam."""

WIDER = 4
"""Ratio of the width of the next one."""

MOST_FULL = 16
"""Beams are tried if a full one of width 1 took at most this many times the work that is left."""


IN_TURN = "in-turn"
"""Name of the method `sequential_schedule`, in records."""


def optimal(
    problem: ScheduleProblem, upper: Floats | None = None, run: SearchContext = PLAIN
) -> Answer:
    """Find start times with the least last end, the first at 0, by wider and wider beams.

    Its method is `optimal`, the beams; `in-turn`, `sequential_schedule`; or `known`.

    Parameters
    ----------
    upper
        f64[b], a known schedule; ignored if it is not valid.
    run
        Its effort scales the work; `stop` is called every 0.2 s or so.

    Raises
    ------
    InfeasibleError
        It is proven that blocks wait for each other's memory in every schedule.
    LimitError
        No schedule was found.
    """
    if not problem.b:
        return Answer(np.zeros(0), IN_TURN, 0.0, "optimal")
    best, value, method = _first(problem, upper)
    shop = shop_of(problem)
    bound = root_bound(shop)
    slack = TOLERANCE * float(problem.time.sum() + problem.delay.sum())
    run.report_progress(value=value, bound=bound, what="makespan")
    left, width, careful, lost = WORK * run.effort, WIDTH, False, True
    most, widest = widest_of(shop), 0
    while bound < value - slack and work_of(shop, 1) <= MOST_FULL * left and not run.stop():
        done, work = 1 - left / (WORK * run.effort), min(work_of(shop, width), left)
        part = run.phase("", done, min(done + work / (WORK * run.effort), 1.0))
        found = beam(shop, width, upper=value - slack, careful=careful, most=left, run=part)
        left -= found.work
        if found.start is not None:
            best, value, lost, method = found.start, found.value, False, "optimal"
            run.report_incumbent(best, value, method)
        # Nothing ends before the bound of the beam, unless it is what is known already.
        bound = max(bound, min(found.bound, value))
        if np.isfinite(bound):
            run.report_progress(value=value, bound=bound, what="makespan")
        if np.isinf(bound):
            raise InfeasibleError(_stuck(problem, found))
        if found.interrupted or found.bound >= value:
            break
        if width >= most:
            widest = most
            break
        # Before it gets wider a beam that found nothing yet is told to avoid dead ends.
        careful = lost and not careful
        width *= 1 if careful else WIDER
    if best is None:
        raise LimitError("no schedule was found within the memory limits")
    if bound >= value - slack:
        return Answer(best, method, span_of(problem, best), "optimal")
    status = "interrupted" if run.stop() else "feasible"
    return Answer(best, method, bound, status, widest=widest)


def shortest_schedule(batch: Batch, wanted: Wanted, run: SearchContext) -> Answer:
    """Method `optimal` for all micro-batches; errors as `optimal`."""
    found = optimal(batch.problem, run=run)
    if found.widest:
        run.warn(
            f"optimal: ended with {found.widest} partial schedules, for which there is memory; a "
            "larger --effort does not help"
        )
    return found._replace(bound=max(batch.bound, found.bound))


def sequential_schedule(problem: ScheduleProblem) -> Floats:
    """Start times, f64[b], where units run all blocks of a micro-batch before those of the next.

    Valid if a micro-batch alone is.
    """
    order = releases_early(problem)
    sequence = np.arange(problem.unroll)[:, None] * problem.k + order
    return left_shift(problem, sequence.ravel())


def _first(problem: ScheduleProblem, upper: Floats | None) -> tuple[Floats | None, float, str]:
    """The better one of two schedules, its last end, and its name."""
    best, value, method = None, np.inf, ""
    for start, name in ((upper, "known"), (sequential_schedule(problem), IN_TURN)):
        if start is not None and span_of(problem, start) < value and not violations(problem, start):
            best, value, method = start - start.min(), span_of(problem, start), name
    return best, value, method


def _stuck(problem: ScheduleProblem, found: Beamed) -> str:
    """Reason why there is no schedule."""
    where = f"the memory of {problem.names[found.stuck]}" if found.stuck >= 0 else "the memory"
    return f"infeasible: {where} is too small: whatever the order, blocks wait for each other"
