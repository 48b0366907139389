"""Where the second block of a pair may start after the first one, modulo the period."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from dnnp.core.model.graph import Floats, Ints, distinct, offsets
from dnnp.core.pipeline.orders.board import OrderField
from dnnp.core.pipeline.orders.gaps import OrderLimits
from dnnp.core.pipeline.problem import TOLERANCE

MOST_SUMS = 64
"""Sums of times of other blocks that are told apart."""

MOST_SUMMED = 32
"""Blocks of a unit beyond which no sums are made."""

MOST_INTERVALS = 8
"""Intervals of a pair; those with the smallest gaps between them are merged beyond."""


def limits_of(field: OrderField, period: float, cap: Floats) -> OrderLimits | None:
    """Intervals of all pairs at a period; None: some pair finds no place.

    `cap` f64[D]: what each unit may hold beyond what is fixed.
    """
    problem = field.problem
    if period not in field.known:
        field.known.clear()
        field.known[period] = _intervals(field, period)
    intervals = field.known[period]
    if intervals is None:
        return None
    slack = TOLERANCE * float(np.abs(problem.memory).sum())
    limit = np.where(field.tracked, cap + slack, np.inf)
    finite = np.isfinite(limit).tolist()
    active = field.shared.copy()
    for p in np.flatnonzero(~active).tolist():
        active[p] = any(finite[d] for d in field.units[p])
    return OrderLimits(period, field.eps(period), *intervals, limit, active)


def _intervals(field: OrderField, period: float) -> tuple[Ints, Floats, Floats] | None:
    """`OrderLimits.ptr`, `low` and `high`."""
    problem, eps = field.problem, field.eps(period)
    load = problem.load()
    ptr, block = problem.on_unit()
    times = [
        tuple(sorted(t for t in problem.time[block[ptr[d] : ptr[d + 1]]].tolist() if t > 0))
        for d in range(problem.units)
    ]
    # A second block without time starts before the first one starts again.
    loose = (np.zeros(1), np.array([period - 8 * eps]))
    known: dict[object, tuple[Floats, Floats]] = {}
    parts = []
    board = field.board
    for p, (i, j) in enumerate(zip(board.first.tolist(), board.second.tolist(), strict=True)):
        if not field.shared[p]:
            parts.append(loose)
            continue
        own = (float(problem.time[i]), float(problem.time[j]))
        key = (own, field.units[p])
        if key not in known:
            low, high = np.array([own[0]]), np.array([period - own[1]])
            for d in field.units[p]:
                if len(times[d]) > MOST_SUMMED:
                    continue
                sums = _sums_without(times[d], own)
                free = max(period - float(load[d]), 0.0)
                if len(sums) and len(low):
                    low, high = _meet(low, high, own[0] + sums, free, eps)
            known[key] = _few(low, high)
        parts.append(known[key])
        if not len(parts[-1][0]) or parts[-1][1][-1] < parts[-1][0][-1] - eps:
            return None
    if not parts:
        return np.zeros(1, dtype=np.int64), np.zeros(0), np.zeros(0)
    ends = offsets([len(low) for low, _ in parts])
    return ends, np.concatenate([x[0] for x in parts]), np.concatenate([x[1] for x in parts])


@lru_cache(maxsize=4096)
def _sums_without(times: tuple[float, ...], own: tuple[float, float]) -> Floats:
    """Ascending sums of all sets of `times` without `own`; empty: too many to tell apart."""
    rest = list(times)
    for t in own:
        rest.remove(t)
    sums = np.zeros(1)
    for t in rest:
        sums = distinct(np.concatenate([sums, sums + t]))
        if len(sums) > MOST_SUMS:
            return np.zeros(0)
    return sums


def _meet(
    low: Floats, high: Floats, begin: Floats, free: float, eps: float
) -> tuple[Floats, Floats]:
    """Intervals cut down to where a unit that is idle for `free` may start the second block.

    Between two starts a unit runs the first block and a set of others, `begin` in all, and idles
    for `free` at most.
    """
    new = np.flatnonzero(np.diff(begin) > free + 4 * eps) + 1
    first = begin[np.concatenate([[0], new])]
    last = begin[np.concatenate([new - 1, [len(begin) - 1]])] + free
    left = np.maximum(low[:, None], first[None, :])
    right = np.minimum(high[:, None], last[None, :])
    some = left <= right + eps
    return left[some], np.maximum(left, right)[some]


def _few(low: Floats, high: Floats) -> tuple[Floats, Floats]:
    """At most `MOST_INTERVALS`: those with the smallest gaps between them are merged."""
    if len(low) <= MOST_INTERVALS:
        return low, high
    gaps = low[1:] - high[:-1]
    kept = np.sort(np.argsort(-gaps, kind="stable")[: MOST_INTERVALS - 1])
    return np.concatenate([low[:1], low[kept + 1]]), np.concatenate([high[kept], high[-1:]])
