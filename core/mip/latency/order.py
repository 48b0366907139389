"""Things in an order that keeps to what must come before what, otherwise by when they happen."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping


def in_order(
    when: Mapping[int, float], edges: Iterable[tuple[int, int]]
) -> tuple[list[int], set[int]]:
    """Keys of `when` in order, and those that wait for each other.

    Among the keys whose predecessors are done, the one with the least value is next; ties go to
    the least key. The middle of an interval is a good value: of two that do not overlap it is in
    the right order even if their ends are rounded, unless both take no time. The second
    result has the members of cycles and what lies between these.
    """
    after: dict[int, list[int]] = {v: [] for v in when}
    before: dict[int, list[int]] = {v: [] for v in when}
    for a, b in set(edges):
        after[a].append(b)
        before[b].append(a)
    waiting = {v: len(before[v]) for v in when}
    ready = [(when[v], v) for v in when if not waiting[v]]
    heapq.heapify(ready)
    done = []
    while ready:
        v = heapq.heappop(ready)[1]
        done.append(v)
        for w in after[v]:
            waiting[w] -= 1
            if not waiting[w]:
                heapq.heappush(ready, (when[w], w))
    left = set(when) - set(done)
    # Take away what only waits, from its end.
    pending = [v for v in left if not left & set(after[v])]
    while pending:
        v = pending.pop()
        left.discard(v)
        pending += [u for u in before[v] if u in left and not left & set(after[u])]
    return done, left
