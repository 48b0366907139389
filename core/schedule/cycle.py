"""The shortest period that difference constraints with lags allow: a maximum cycle ratio.

Constraints s_v - s_u >= w + k T hold for some starts s unless a circle of them gains something.
The least T is the largest ratio of w to -k over all circles; it is found from below, circle by
circle (Newton's method), and is exact up to the rounding of one division.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dnnp.core.kernels.kernel import inlined, lean
from dnnp.core.model.graph import Floats, Ints


class Arcs(NamedTuple):
    """Block `head` starts at least `weight` + `lag` periods after block `tail`."""

    tail: Ints
    head: Ints
    weight: Floats
    lag: Ints


@inlined
def _earliest(arcs, start, period, eps, via, seen):  # type: ignore[no-untyped-def]
    """Longest paths from everywhere, in place; the last arc of a circle with a gain, or -1.

    `via` i64[n] are the arcs that set the starts, or -1; `seen` is scratch.
    """
    n, m = len(start), len(arcs.tail)
    for v in range(n):
        start[v] = 0.0
        via[v] = -1
    for _ in range(2 * n + 2):
        changed = -1
        for a in range(m):
            v = arcs.head[a]
            new = start[arcs.tail[a]] + arcs.weight[a] + arcs.lag[a] * period
            if new > start[v] + eps:
                start[v] = new
                via[v] = a
                changed = a
        if changed < 0:
            return -1
        # A circle among the arcs that set the starts gains something.
        for v in range(n):
            seen[v] = 0
        for v in range(n):
            at = v
            while via[at] >= 0 and seen[at] == 0:
                seen[at] = v + 1
                at = arcs.tail[via[at]]
            if via[at] >= 0 and seen[at] == v + 1:
                return via[at]
    return changed


@lean
def _tighten(arcs, start, period, eps, via, seen):  # type: ignore[no-untyped-def]
    """Least period of at least `period`, inf if there is none; starts are set."""
    while True:
        last = _earliest(arcs, start, period, eps, via, seen)
        if last < 0:
            return period
        weight, lag = 0.0, 0
        a = last
        while True:
            weight += arcs.weight[a]
            lag += arcs.lag[a]
            a = via[arcs.tail[a]]
            if a == last or a < 0:
                break
        if lag >= 0 or a < 0 or weight / -lag <= period:
            return np.inf
        period = weight / -lag


def least_period(arcs: Arcs, count: int, least: float, eps: float) -> tuple[float, Floats]:
    """The shortest period of at least `least`, and the earliest starts from 0, f64[count].

    Times `eps` apart count as equal. The period is inf if the arcs contradict each other whatever
    it is, or would be shorter than `least`.
    """
    start = np.zeros(count)
    via, seen = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    period: float = _tighten(arcs, start, least, eps, via, seen)
    return period, start
