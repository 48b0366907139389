"""Beam search for schedules of finitely many blocks, exact where the beam is wide enough.

Blocks of the same kind of different micro-batches with the same homes are interchangeable, so
they run in the order of their micro-batches (Tessel, property 4.1). A partial schedule then is
a number of blocks of every kind, with their times. Level by level one more block starts, no
earlier than the ones before; of partial schedules of the same blocks those are dropped that
another one beats, and of what is left the most promising ones are kept. If none had to be dropped
for lack of room, the best schedule is optimal; else the most promising one dropped bounds it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from dnnp.core.model.graph import Floats, Ints
from dnnp.core.model.search_context import PLAIN, Run
from dnnp.core.schedule.finish.kernel import (
    Children,
    Level,
    Rivals,
    expand,
    find_risks,
    keep,
    scratch_of,
)
from dnnp.core.schedule.finish.shop import Shop

MOST_WIDTH = 1 << 16
"""Partial schedules of one level, at most."""

MOST_BYTES = 400e6
"""Memory that the partial schedules of a beam may take."""

CHUNK = 2e6
"""Numbers that may be looked at between two looks at `Run.stop`, if every kind can be next."""


class Beamed(NamedTuple):
    """What a beam found."""

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
    """How the partial schedules of a level came about."""

    parent: Ints
    """i32, in the level before."""
    kind: Ints
    """i32, which kind started."""
    at: Floats
    """When."""


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
    run: Run = PLAIN,
) -> Beamed:
    """Search with at most `width` partial schedules a level; see the module.

    Parameters
    ----------
    upper
        Only a schedule that ends earlier is of interest.
    careful
        Drop partial schedules first from which memory may allow no way to go on.
    most
        Work, as in `Beamed.work`, after which to give up.
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
        run.stands(share=number / b)
        children = _expanded(shop, level, upper, careful, blocked, asked)
        following = None
        if children is not None:
            work += each * (len(level.now) + len(children.at))
            following = _kept(shop, level, children, width, asked)
        if following is None:
            bound = min(bound, float(level.least.min()))
            return Beamed(None, np.inf, bound, work, True, _stuck(blocked))
        level, made, dropped = following
        steps.append(made)
        bound = min(bound, dropped)
        if not len(level.now):
            return Beamed(None, np.inf, bound, work, False, _stuck(blocked))
    if not _fits(shop):
        return Beamed(None, np.inf, bound, work, False, _stuck(blocked))
    best = int(np.argmin(level.value))
    start = _start(shop, steps, best)
    return Beamed(start, float(level.value[best]), bound, work, False, _stuck(blocked))


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
    """All ways to go on; None if `asked` says so."""
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
    """The next level, how it came about, and a bound of what there was no room for.

    None if `asked` says so.
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
    """Whether what is held after all blocks keeps the limits."""
    held = np.bincount(
        shop.unit,
        np.repeat(shop.total * shop.memory, np.diff(shop.unit_ptr)),
        minlength=len(shop.cap),
    )
    return not (held > shop.cap + shop.slack).any()


def _stuck(blocked: Ints) -> int:
    return int(np.argmax(blocked)) if blocked.any() else -1
