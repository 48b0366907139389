"""Kernels of the search over partial schedules; see `core.schedule.optimal`.

A partial schedule has run the first `count[i]` blocks of every kind i. Blocks are added in the
order of their starts, so all missing ones start no earlier than the last added one, at `now`.

Arguments are plain tuples: numba takes some 30 us a call to find the type of a named one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dnnp.core.kernels.kernel import kernel, lean
from dnnp.core.model.graph import Bools, Floats, Ints
from dnnp.core.schedule.shop import Shop

CHAIN = 64
"""Partial schedules of the same blocks that a new one is compared with, at most."""


class Level(NamedTuple):
    """Partial schedules of equally many blocks."""

    ran: Ints
    """i64[rows, kinds], blocks of each kind that have run."""
    end: Floats
    """f64[rows, blocks of the shop], ends of blocks that others still wait for."""
    free: Floats
    """f64[rows, units], when each unit has ended its blocks."""
    now: Floats
    """f64[rows], start of the last block."""
    value: Floats
    """f64[rows], last end, `Shop.final` included."""
    least: Floats
    """f64[rows]; no schedule that begins like this one ends earlier."""
    risk: Bools
    """bool[rows], whether memory may allow no way to go on."""


class Children(NamedTuple):
    """Ways to go on: a partial schedule of a level, and one more block."""

    parent: Ints
    """i64, row of the level."""
    kind: Ints
    """i64, which kind starts."""
    at: Floats
    """Start of the block."""
    least: Floats
    """As `Level.least`."""
    tie: Floats
    """Small where units have idled little."""
    risk: Bools
    """As `Level.risk`."""


class Rivals(NamedTuple):
    """Index of partial schedules of the same blocks: lists of rows by a hash of their counts."""

    head: Ints
    """i64[slots], last row of each list; -1: it is empty."""
    link: Ints
    """i64[rows], the row before in its list, or -1."""
    key: Ints
    """i64[rows], hash."""


def scratch_of(kinds: int, units: int) -> tuple[Floats | Bools | Ints, ...]:
    """Scratch arrays of the kernels, by kind and by unit."""
    return (
        np.empty(kinds),
        np.empty(kinds, dtype=np.bool_),
        np.empty(units),
        np.empty(units),
        np.empty(units),
        np.empty(units),
        np.empty(kinds, dtype=np.int64),
    )


@lean
def expand(begin_row, end_row, shop, level, upper, children, blocked, scratch):  # type: ignore[no-untyped-def]
    """Append one block to partial schedules of a level; returns the number of `children`.

    Children that cannot end before `upper` are pruned; `Children.risk` is not set. `blocked` counts
    blocks without enough memory. `scratch`: see `scratch_of`.
    """
    shop, level, children = Shop(*shop), Level(*level), Children(*children)
    count, end, free = level.ran, level.end, level.free
    total, first, time, memory = shop.total, shop.first, shop.time, shop.memory
    unit_ptr, unit, cap, slack = shop.unit_ptr, shop.unit, shop.cap, shop.slack
    before_ptr, before, delay = shop.before_ptr, shop.before, shop.delay
    runs, tail, least_tail = shop.runs, shop.tail, shop.least_tail
    idle_ptr, idle_kind, idle = shop.idle_ptr, shop.idle_kind, shop.idle
    parent, kind, start = children.parent, children.kind, children.at
    child_least, tie = children.least, children.tie
    kinds, units = len(total), len(cap)
    earliest, ready, rest, held, soon, short, _ = scratch
    made = 0
    for s in range(begin_row, end_row):
        for u in range(units):
            rest[u] = 0.0
            held[u] = 0.0
            soon[u] = np.inf
            short[u] = np.inf
        t = level.now[s]
        least = level.value[s]
        for i in range(kinds):
            q = count[s, i]
            ready[i] = False
            for x in range(unit_ptr[i], unit_ptr[i + 1]):
                held[unit[x]] += q * memory[i]
            left = total[i] - q
            if left == 0:
                continue
            begin, waiting = 0.0, False
            for x in range(before_ptr[i], before_ptr[i + 1]):
                j = before[x]
                if count[s, j] > q:
                    begin = max(begin, end[s, first[j] + q] + delay[x])
                else:
                    waiting = True
                    begin = max(begin, earliest[j] + (q - count[s, j] + 1) * time[j] + delay[x])
            if time[i] > 0:
                for x in range(unit_ptr[i], unit_ptr[i + 1]):
                    begin = max(begin, free[s, unit[x]])
                # If it could have started before the last block it should have.
                ready[i] = not waiting and begin >= t
            else:
                ready[i] = not waiting
            begin = max(begin, t)
            earliest[i] = begin
            b = first[i] + q
            least = max(least, begin + time[i] + tail[b])
            least = max(least, begin + left * time[i] + tail[first[i] + total[i] - 1])
            for x in range(unit_ptr[i], unit_ptr[i + 1]):
                u = unit[x]
                rest[u] += left * time[i]
                soon[u] = min(soon[u], begin)
                short[u] = min(short[u], least_tail[b])
        over = False
        for u in range(units):
            over = over or held[u] > cap[u] + slack
            if rest[u] > 0:
                for x in range(idle_ptr[u], idle_ptr[u + 1]):
                    i = idle_kind[x]
                    if idle[x] > short[u] and count[s, i] < total[i]:
                        short[u] = idle[x]
                least = max(least, max(free[s, u], soon[u]) + rest[u] + short[u])
        if least >= upper:
            continue
        # A block that is done before others start, and holds no more memory, may come first.
        chosen, done = -1, np.inf
        for i in range(kinds):
            if not ready[i]:
                continue
            if over and earliest[i] > t + slack:
                ready[i] = False
                continue
            harmless = True
            for x in range(unit_ptr[i], unit_ptr[i + 1]):
                u = unit[x]
                if memory[i] > 0 and cap[u] < np.inf:
                    harmless = False
                    # At one time only a block without duration can be followed by a release.
                    if time[i] > 0 and held[u] + memory[i] > cap[u] + slack:
                        ready[i] = False
                        blocked[u] += 1
                        break
            if ready[i] and harmless and not over and earliest[i] + time[i] < done:
                chosen, done = i, earliest[i] + time[i]
        for i in range(kinds):
            if not ready[i] or (i != chosen and earliest[i] >= done):
                continue
            beyond = False
            if time[i] == 0 and not over:
                for x in range(unit_ptr[i], unit_ptr[i + 1]):
                    beyond = beyond or held[unit[x]] + max(memory[i], 0.0) > cap[unit[x]] + slack
            for j in range(-1, kinds if beyond else 0):
                at = earliest[i]
                if j >= 0:
                    # What it holds does not count if it starts together with a later release.
                    at = earliest[j]
                    fresh = count[s, j] < total[j] and earliest[i] < at < done
                    for x in range(j):
                        fresh = fresh and (count[s, x] == total[x] or earliest[x] != at)
                    if not fresh:
                        continue
                after = at + time[i]
                bound = max(least, after + tail[first[i] + count[s, i]])
                idled = 0.0
                for u in range(units):
                    begin, work = max(free[s, u], at), rest[u]
                    if work > 0:
                        if runs[i, u] and time[i] > 0:
                            begin = after
                            work -= time[i]
                        if work > 0:
                            bound = max(bound, max(begin, soon[u]) + work + short[u])
                        idled += begin + work
                if bound < upper:
                    parent[made], kind[made], start[made] = s, i, at
                    child_least[made], tie[made] = bound, idled
                    made += 1
    return made


@kernel
def find_risks(shop, level, children, made):  # type: ignore[no-untyped-def]
    """Mark children that memory may keep from completion, by `risk`, among the first `made`.

    A completion exists at least if the micro-batches that have begun can be completed one after the
    other (the banker's algorithm). Children of a risk are risks.
    """
    shop, level, children = Shop(*shop), Level(*level), Children(*children)
    parent, child, found = children.parent, children.kind, children.risk
    total, memory, group_ptr = shop.total, shop.memory, shop.group_ptr
    unit_ptr, unit, cap, slack = shop.unit_ptr, shop.unit, shop.cap, shop.slack
    kinds, groups = len(total), len(group_ptr) - 1
    held, trial = np.empty(len(cap)), np.empty(len(cap))
    at = np.empty(kinds, dtype=np.int64)
    open_, last = np.empty(groups, dtype=np.int64), np.empty(groups, dtype=np.int64)
    for c in range(made):
        found[c] = level.risk[parent[c]]
        if memory[child[c]] <= 0 and not found[c]:
            continue
        for u in range(len(cap)):
            held[u] = 0.0
        for i in range(kinds):
            at[i] = level.ran[parent[c], i]
        at[child[c]] += 1
        for i in range(kinds):
            for x in range(unit_ptr[i], unit_ptr[i + 1]):
                held[unit[x]] += at[i] * memory[i]
        # Of each group, micro-batches from the oldest one that is not complete to the newest one.
        left = 0
        for g in range(groups):
            open_[g], last[g] = total[group_ptr[g]], 0
            for i in range(group_ptr[g], group_ptr[g + 1]):
                if at[i] < total[i]:
                    open_[g] = min(open_[g], at[i])
                last[g] = max(last[g], at[i])
            left += max(last[g] - open_[g], 0)
        done = np.zeros(max(left, 1), dtype=np.bool_)
        moved = True
        while moved and left > 0:
            moved = False
            place = 0
            for g in range(groups):
                for q in range(open_[g], last[g]):
                    place += 1
                    if done[place - 1]:
                        continue
                    for u in range(len(cap)):
                        trial[u] = held[u]
                    fits = True
                    for i in range(group_ptr[g], group_ptr[g + 1]):
                        if at[i] > q or total[i] <= q:
                            continue
                        for x in range(unit_ptr[i], unit_ptr[i + 1]):
                            trial[unit[x]] += memory[i]
                            if memory[i] > 0 and trial[unit[x]] > cap[unit[x]] + slack:
                                fits = False
                        if not fits:
                            break
                    if fits:
                        for u in range(len(cap)):
                            held[u] = trial[u]
                        done[place - 1] = True
                        moved = True
                        left -= 1
        found[c] = left > 0


@lean
def keep(  # type: ignore[no-untyped-def]
    begin, until, kept, order, width, shop, level, children, fresh, rivals, chosen, scratch
):
    """The first `width` partial schedules of `order` that are not dominated.

    Continues at place `begin` of `order`, with `kept` of them, to `until`; returns their number and
    the place where it ended. They go to `fresh`, the next level, and `chosen` are their places in
    `children`. One dominates another with the same blocks if every continuation of the other could
    start no later after it. Ends are kept only of blocks for which others still wait.
    """
    shop, level, children = Shop(*shop), Level(*level), Children(*children)
    fresh, rivals = Level(*fresh), Rivals(*rivals)
    count, end = level.ran, level.end
    new_count, new_end, new_free = fresh.ran, fresh.end, fresh.free
    new_now, new_value, new_least = fresh.now, fresh.value, fresh.least
    first, time, memory = shop.first, shop.time, shop.memory
    unit_ptr, unit, cap, slack = shop.unit_ptr, shop.unit, shop.cap, shop.slack
    after_ptr, followers, wait = shop.after_ptr, shop.after, shop.wait
    head, link, key = rivals.head, rivals.link, rivals.key
    kinds, units = count.shape[1], new_free.shape[1]
    held, waited = scratch[3], scratch[6]
    size = len(head)
    for place in range(begin, until):
        if kept == width:
            return kept, place
        c = order[place]
        s, i, at = children.parent[c], children.kind[c], children.at[c]
        after = at + time[i]
        for j in range(kinds):
            new_count[kept, j] = count[s, j]
        for u in range(units):
            new_free[kept, u] = level.free[s, u]
        b = first[i] + count[s, i]
        new_count[kept, i] += 1
        for j in range(kinds):
            q = new_count[kept, j]
            for x in range(after_ptr[j], after_ptr[j + 1]):
                q = min(q, new_count[kept, followers[x]])
            waited[j] = q
            for e in range(first[j] + q, first[j] + count[s, j]):
                new_end[kept, e] = end[s, e]
        new_end[kept, b] = after
        new_now[kept] = at
        new_value[kept] = max(level.value[s], after + shop.final[b])
        new_least[kept] = children.least[c]
        fresh.risk[kept] = children.risk[c]
        # A block without duration does not wait for its units, but its memory keeps its place.
        for x in range(unit_ptr[i], unit_ptr[i + 1]):
            new_free[kept, unit[x]] = max(new_free[kept, unit[x]], after)
        code = 0
        for j in range(kinds):
            code = (code * 1_000_003 + new_count[kept, j]) % 2_147_483_647
        slot = code % size
        over = False
        if shop.loose:
            for u in range(units):
                held[u] = 0.0
            for j in range(kinds):
                for x in range(unit_ptr[j], unit_ptr[j + 1]):
                    held[unit[x]] += new_count[kept, j] * memory[j]
            for u in range(units):
                over = over or held[u] > cap[u] + slack
        beaten = False
        other = head[slot]
        steps = 0
        while other >= 0 and steps < CHAIN and not beaten:
            if key[other] == code:
                beaten = new_now[other] <= at and (not over or new_now[other] == at)
                beaten = beaten and new_value[other] <= new_least[kept]
                for j in range(kinds):
                    if not beaten or new_count[other, j] != new_count[kept, j]:
                        beaten = False
                        break
                u = 0
                while beaten and u < units:
                    beaten = new_free[other, u] <= max(new_free[kept, u], at)
                    u += 1
                j = 0
                while beaten and j < kinds:
                    for e in range(first[j] + waited[j], first[j] + new_count[kept, j]):
                        if new_end[other, e] > new_end[kept, e] and (
                            new_end[other, e] + wait[j] > at
                        ):
                            beaten = False
                            break
                    j += 1
            other = link[other]
            steps += 1
        if not beaten:
            key[kept] = code
            link[kept] = head[slot]
            head[slot] = kept
            chosen[kept] = c
            kept += 1
    return kept, until
