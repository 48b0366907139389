"""The blocks of a finite schedule by kind, for the search over partial schedules.

A *kind* is one block of all micro-batches with the same homes of all blocks. Each kind comes after
those for which it waits.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dnnp.core.model.graph import Bools, Floats, Ints, offsets
from dnnp.core.schedule.problem import TOLERANCE, ScheduleProblem
from dnnp.core.schedule.starts import topological_order

MOST_IDLE = 100_000
"""Steps that looking for idle time may take."""

Edge = tuple[int, int, float]
"""A kind, one that waits for it, and the delay."""


class Shop(NamedTuple):
    """Blocks by kind; block `first[i] + q` is the one of kind i of the q-th micro-batch."""

    blocks: int
    """Blocks of the problem; those of the shop may be fewer."""
    total: Ints
    """i64[kinds], blocks of each kind."""
    first: Ints
    """i64[kinds]."""
    block: Ints
    """i64[blocks of the shop], their numbers in the problem."""
    time: Floats
    """f64[kinds]."""
    memory: Floats
    """f64[kinds]."""
    group_ptr: Ints
    """i64[groups + 1], the kinds of micro-batches with the same homes."""
    unit_ptr: Ints
    """i64[kinds + 1] into `unit`."""
    unit: Ints
    runs: Bools
    """bool[kinds, units], whether the kind runs on the unit."""
    before_ptr: Ints
    """i64[kinds + 1] into `before`, kinds waited for, and `delay`."""
    before: Ints
    delay: Floats
    after_ptr: Ints
    """i64[kinds + 1] into `after`, kinds that wait."""
    after: Ints
    wait: Floats
    """f64[kinds], the longest delay behind each kind."""
    final: Floats
    """f64[blocks of the shop], time that must pass after the end of each; at least 0."""
    tail: Floats
    """f64[blocks of the shop], longest path from the end of each, `final` included."""
    least_tail: Floats
    """f64[blocks of the shop], least `tail` of this and later blocks of the kind."""
    idle_ptr: Ints
    """i64[units + 1] into `idle_kind` and `idle`."""
    idle_kind: Ints
    """Kinds on a unit."""
    idle: Floats
    """Time that the unit surely idles after the last block of the kind; see `_idle`."""
    cap: Floats
    """f64[units]; inf where the limit cannot be reached."""
    slack: float
    """Memory that is too little to count."""
    loose: bool
    """True if a block that takes no time may hold what another one releases at the same time,
    though that waits for it: shifting them to the left could then exceed a limit."""


def shop_of(
    problem: ScheduleProblem, included: Ints | None = None, final: Floats | None = None
) -> Shop:
    """Kinds of blocks of a problem.

    Parameters
    ----------
    included
        i64[b], not 0: the block is included. So must be all for which it waits, and those of the
        same kind of earlier micro-batches.
    final
        f64[b], `Shop.final`.
    """
    k = problem.k
    taken = np.ones(problem.b, dtype=np.int64) if included is None else included
    edges = _edges(problem)
    order = releases_early(problem).tolist()
    kinds: list[Ints] = []
    at: dict[tuple[int, int], int] = {}
    groups = _groups(problem)
    sizes = []
    for g, members in enumerate(groups):
        before_these = len(kinds)
        for i in order:
            blocks = members * k + i
            blocks = blocks[taken[blocks] != 0]
            if len(blocks):
                at[g, i] = len(kinds)
                kinds.append(blocks)
        sizes.append(len(kinds) - before_these)
    forth: list[Edge] = [
        (at[g, a], at[g, b], w) for g in range(len(groups)) for a, b, w in edges if (g, b) in at
    ]
    head = np.array([blocks[0] for blocks in kinds], dtype=np.int64)
    total = np.array([len(blocks) for blocks in kinds], dtype=np.int64)
    first = np.cumsum(total) - total
    block = np.concatenate(kinds).astype(np.int64)
    units = [problem.unit[problem.ptr[b] : problem.ptr[b + 1]] for b in head.tolist()]
    time, memory = problem.time[head], problem.memory[head]
    last = np.zeros(len(block)) if final is None else final[block]
    tail = _tails(total, first, time, forth, last)
    wait = np.zeros(len(kinds))
    for a, _, w in forth:
        wait[a] = max(wait[a], w)
    cap = problem.capacity.copy()
    most = np.zeros(problem.units)
    for i, mine in enumerate(units):
        most[mine] += total[i] * max(memory[i], 0.0)
    slack = TOLERANCE * float(np.abs(problem.memory).sum() + problem.fixed.sum())
    cap[most <= cap + slack] = np.inf
    idle = _idle(units, total, time, forth)
    by_unit = sorted((u, i, w) for (i, u), w in idle.items() if w > 0)
    tight = np.array([np.isfinite(cap[mine]).any() for mine in units])
    loose = _loose(time, np.where(tight, memory, 0.0), forth)
    runs = np.zeros((len(kinds), problem.units), dtype=np.bool_)
    for i, mine in enumerate(units):
        runs[i, mine] = True
    before_ptr, before, delay = _rows([(b, a, w) for a, b, w in forth], len(kinds))
    after_ptr, after, _ = _rows(forth, len(kinds))
    idle_ptr, idle_kind, idle_time = _rows(by_unit, problem.units)
    return Shop(
        problem.b,
        total,
        first,
        block,
        time,
        memory,
        offsets([n for n in sizes if n]),
        offsets([len(mine) for mine in units]),
        np.concatenate(units).astype(np.int64),
        runs,
        before_ptr,
        before,
        delay,
        after_ptr,
        after,
        wait,
        last,
        tail,
        _least(tail, first, total),
        idle_ptr,
        idle_kind,
        idle_time,
        cap,
        slack,
        loose,
    )


def root_bound(shop: Shop) -> float:
    """No schedule of the shop ends earlier: paths, and load with the idle time around it."""
    kinds, total, time = len(shop.total), shop.total, shop.time
    forth = [
        (int(shop.before[x]), i, float(shop.delay[x]))
        for i in range(kinds)
        for x in range(shop.before_ptr[i], shop.before_ptr[i + 1])
    ]
    units = [shop.unit[shop.unit_ptr[i] : shop.unit_ptr[i + 1]] for i in range(kinds)]
    # Backwards the kinds of a unit idle before their first block as they do after their last.
    turned = [(kinds - 1 - b, kinds - 1 - a, w) for a, b, w in forth]
    idle_head = {
        (kinds - 1 - i, u): w
        for (i, u), w in _idle(units[::-1], total[::-1], time[::-1], turned).items()
    }
    idle_tail = _idle(units, total, time, forth)
    below = _descendants(kinds, forth) if idle_tail else []
    earliest = np.zeros(kinds)
    for a, b, w in sorted(forth, key=lambda edge: edge[1]):
        earliest[b] = max(earliest[b], earliest[a] + time[a] + w)
    last = shop.first + total - 1
    bound = float((earliest + time + shop.tail[shop.first]).max())
    bound = max(bound, float((earliest + total * time + shop.tail[last]).max()))
    for u, mine in enumerate(_by_unit(units, time, len(shop.cap))):
        if not mine:
            continue
        load = float((total * time)[mine].sum())
        soon = float(earliest[mine].min())
        short = float(shop.least_tail[shop.first[mine]].min())
        bound = max(bound, soon + load + short)
        for i in mine if idle_tail else []:
            for j in below[i] | {i}:
                if (j, u) in idle_tail:
                    around = max(soon, idle_head[i, u]) + max(short, idle_tail[j, u])
                    bound = max(bound, load + around)
    return bound


def _groups(problem: ScheduleProblem) -> list[Ints]:
    """Micro-batches with the same homes of all blocks."""
    k = problem.k
    groups: dict[bytes, list[int]] = {}
    ptr = problem.ptr.tolist()
    for j in range(problem.unroll):
        own = problem.ptr[j * k : j * k + k + 1] - ptr[j * k]
        homes = problem.unit[ptr[j * k] : ptr[j * k + k]]
        groups.setdefault(own.tobytes() + homes.tobytes(), []).append(j)
    return [np.array(members, dtype=np.int64) for members in groups.values()]


def _edges(problem: ScheduleProblem) -> list[Edge]:
    """The waits within a micro-batch, the same in all."""
    first = problem.tail < problem.k
    columns = problem.tail[first].tolist(), problem.head[first].tolist()
    return list(zip(*columns, problem.delay[first].tolist(), strict=True))


def releases_early(problem: ScheduleProblem) -> Ints:
    """Blocks of a micro-batch, i64[k], each after those it waits for; releases come early."""
    first = problem.tail < problem.k
    tail, head = problem.tail[first], problem.head[first]
    return topological_order(problem.k, tail, head, problem.memory[: problem.k])


def _tails(total: Ints, first: Ints, time: Floats, forth: list[Edge], final: Floats) -> Floats:
    """`Shop.tail`; a kind may have more blocks than its successors, by `included`."""
    tail = final.copy()
    for a, b, w in sorted(forth, reverse=True):
        n = total[b]
        mine, theirs = tail[first[a] : first[a] + n], tail[first[b] : first[b] + n]
        np.maximum(mine, w + time[b] + theirs, out=mine)
    return tail


def _loose(time: Floats, memory: Floats, forth: list[Edge]) -> bool:
    """`Shop.loose`; `memory` is 0 for blocks that no limit concerns."""
    frees = memory < 0
    instantly = np.zeros(len(time), dtype=np.bool_)
    for a, b, w in sorted(forth, reverse=True):
        if w == 0 and time[a] == 0 and (frees[b] or instantly[b]):
            instantly[a] = True
    return bool((instantly & (memory > 0)).any())


def _least(tail: Floats, first: Ints, total: Ints) -> Floats:
    """`Shop.least_tail`."""
    least = tail.copy()
    for f, n in zip(first.tolist(), total.tolist(), strict=True):
        least[f : f + n] = np.minimum.accumulate(tail[f : f + n][::-1])[::-1]
    return least


def _descendants(kinds: int, forth: list[Edge]) -> list[set[int]]:
    """Kinds that wait for each kind, directly or not."""
    below: list[set[int]] = [set() for _ in range(kinds)]
    for a, b, _ in sorted(forth, reverse=True):
        below[a] |= {b} | below[b]
    return below


def _idle(
    units: list[Ints], total: Ints, time: Floats, forth: list[Edge]
) -> dict[tuple[int, int], float]:
    """Time that a unit surely idles after its last block of a kind, by kind and unit.

    From then on the unit only runs kinds other than this one and those before it, unless these
    have more blocks. While a block on the way to the end runs on other units, and shares one with
    each of the kinds that are left, it idles. Empty where finding out takes too long.
    """
    kinds = len(units)
    if sum(map(len, units)) * len(forth) > MOST_IDLE:
        return {}
    below = _descendants(kinds, forth)
    above: list[set[int]] = [set() for _ in range(kinds)]
    for i, mine in enumerate(below):
        for j in mine:
            above[j].add(i)
    sets = [frozenset(mine.tolist()) for mine in units]
    on = _by_unit(units, time, 1 + max(max(mine) for mine in sets))
    backwards = sorted(forth, reverse=True)
    idle = {}
    for i in range(kinds):
        for u in sets[i]:
            done = {a for a in above[i] if total[a] <= total[i]} | {i}
            others = {sets[j] for j in on[u] if j not in done}
            path = np.zeros(kinds)
            for a, b, _ in backwards:
                apart = u not in sets[b] and all(sets[b] & other for other in others)
                path[a] = max(path[a], path[b] + (time[b] if apart else 0.0))
            idle[i, u] = float(path[i])
    return idle


def _by_unit(units: list[Ints], time: Floats, count: int) -> list[list[int]]:
    """Kinds on each unit that take time."""
    on: list[list[int]] = [[] for _ in range(count)]
    for i in np.flatnonzero(time > 0).tolist():
        for u in units[i].tolist():
            on[u].append(i)
    return on


def _rows(entries: list[Edge], count: int) -> tuple[Ints, Ints, Floats]:
    """Row, column and value of entries as rows: where each begins, columns, values."""
    entries = sorted(entries)
    return (
        offsets(np.bincount([e[0] for e in entries], minlength=count)),
        np.array([e[1] for e in entries], dtype=np.int64),
        np.array([e[2] for e in entries], dtype=np.float64),
    )
