"""Pairs of spans that may meet in a lane: all of them, how many there are, which ones overlap.

Moirai has rows for all (Eq. 6 and 8). Spans whose windows are apart never meet. Of what is left
there may be more than a program can hold; then rows for pairs are lazy: a program begins without
any, and takes up those that overlap in its solutions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from dnnp.core.mip.latency.model import Model, Turn

Pair = tuple[int, int]
"""Two spans, the smaller number first."""


def count_meetings(model: Model) -> int:
    """Pairs of spans in lanes with windows that overlap, roughly; O(turns log turns)."""
    count = 0
    for lane in model.lanes:
        spans = sorted({turn.span for turn in lane})
        low = np.array([model.low[model.spans[s][0]] for s in spans])
        high = np.array([model.high[model.spans[s][1]] for s in spans])
        apart = int(np.searchsorted(np.sort(high), low, side="right").sum())
        count += max(len(spans) * (len(spans) - 1) // 2 - apart, 0)
    return count


def meetings(model: Model, lane: Sequence[Turn]) -> Iterator[Pair]:
    """Pairs of spans in a lane with windows that overlap, and that no path orders; sorted."""
    windows = {
        turn.span: (model.low[model.spans[turn.span][0]], model.high[model.spans[turn.span][1]])
        for turn in lane
    }
    by_start = sorted((low, span) for span, (low, _) in windows.items())
    found = []
    for i, (_, first) in enumerate(by_start):
        end = windows[first][1]
        for j in range(i + 1, len(by_start)):
            low, second = by_start[j]
            if low > end:
                break
            a, b = min(first, second), max(first, second)
            if not model.ordered(a, b) and not model.ordered(b, a):
                found.append((a, b))
    yield from sorted(found)


def overlaps(
    model: Model, times: Sequence[float], flags: Sequence[float], tolerance: float
) -> set[Pair]:
    """Pairs that share a lane at the same time in a solution, by more than `tolerance` seconds.

    In every lane each turn is compared with the one before it that ends last: where any overlap,
    some of these do.
    """
    found: set[Pair] = set()
    for lane in model.lanes:
        there = [turn for turn in lane if flags[turn.flag] > 0.5]
        starts = [(times[model.spans[t.span][0]], t.span, t.seconds) for t in there]
        last, end = -1, -np.inf
        for start, span, seconds in sorted(starts):
            if last >= 0 and start < end - tolerance and span != last:
                found.add((min(span, last), max(span, last)))
            if start + seconds > end:
                last, end = span, start + seconds
    return {(a, b) for a, b in found if not model.ordered(a, b) and not model.ordered(b, a)}
