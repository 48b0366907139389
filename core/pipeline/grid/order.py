"""What blocks have to do with each other, and an order to place them in, for `core.pipeline.grid`.

A placed block is kept in mind as long as one that is not placed yet has to do with it; the fewer,
the better. Finding the best order (a path decomposition of least width) is NP-hard: the best of
several greedy ones is taken. Sets of blocks are bits of whole numbers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dnnp.core.model.graph import distinct
from dnnp.core.pipeline.bound import by_depth
from dnnp.core.pipeline.problem import TOLERANCE, ScheduleProblem

MOST_STARTS = 12
"""Blocks to try as the first one."""

MOST_WIDTH = 40
"""Blocks in the state."""

MOST_COST = 1e12
"""Estimate of all states above which an order is of no use. Where units are busy there are far
fewer."""

WIDE, SPLIT = 1.5, 1.5
"""Price of placing a block where others make it matter how early and how late it is, so that many
places are tried; and of every component that is to be joined with others later."""


class Links(NamedTuple):
    """What blocks have to do with each other, as sets of bits."""

    before: list[int]
    after: list[int]
    conflict: list[int]
    """Blocks that cannot overlap."""
    memory: list[tuple[int, int]]
    """Units with memory, and their blocks that change it."""
    below: list[int]
    """All that comes after each block, at any distance."""
    ends: tuple[int, int]
    """Blocks without predecessors, and without successors."""

    def near(self) -> list[int]:
        """All that each block has to do with."""
        near = [b | a | c for b, a, c in zip(self.before, self.after, self.conflict, strict=True)]
        for group in [g for _, g in self.memory] + [self.ends[0] | self.ends[1]]:
            for i in members(group):
                near[i] |= group
        return [n & ~(1 << i) for i, n in enumerate(near)]


def members(bits: int) -> list[int]:
    """Positions of the bits that are set, ascending."""
    found = []
    while bits:
        low = bits & -bits
        found.append(low.bit_length() - 1)
        bits ^= low
    return found


def links_of(problem: ScheduleProblem) -> Links:
    """Links among blocks; memory of units where something is left behind does not count."""
    b = problem.b
    before, after, conflict = [0] * b, [0] * b, [0] * b
    for i, j in zip(problem.tail.tolist(), problem.head.tolist(), strict=True):
        after[i] |= 1 << j
        before[j] |= 1 << i
    ptr, block = problem.on_unit()
    balanced = np.isclose(problem.left_behind(), 0.0, atol=TOLERANCE * np.abs(problem.memory).sum())
    memory: dict[int, int] = {}
    for d in range(problem.units):
        mine = block[ptr[d] : ptr[d + 1]].tolist()
        busy = sum(1 << i for i in mine if problem.time[i] > 0)
        for i in members(busy):
            conflict[i] |= busy
        holds = sum(1 << i for i in mine if problem.memory[i])
        if holds and balanced[d]:
            memory[d] = holds
    first = sum(1 << i for i in range(b) if not before[i])
    last = sum(1 << i for i in range(b) if not after[i])
    below = [0] * b
    for e in reversed(by_depth(problem).tolist()):
        below[problem.tail[e]] |= 1 << int(problem.head[e]) | below[problem.head[e]]
    return Links(before, after, conflict, list(memory.items()), below, (first, last))


def best_order(
    links: Links, memory: list[float], width: list[int], time: list[int], period: int
) -> tuple[float, list[int]] | None:
    """An estimate of all states, and an order of the blocks that keeps few of them in the state.

    None: all orders that were tried have too many states.

    From each of several first blocks the next one is always one that leaves the fewest blocks in
    the state; of those, one on many units (`width`), which everything else has to avoid. Either
    any block may be next, or only one on a unit that was begun. `time` and `period` are in ticks.
    """
    b = len(memory)
    near = links.near()
    firsts = distinct(np.linspace(0, b - 1, min(b, MOST_STARTS)).round()).astype(int).tolist()
    late = [memory[i] > 0 or bool(links.ends[0] >> i & 1) for i in range(b)]
    early = [memory[i] < 0 or bool(links.ends[1] >> i & 1) for i in range(b)]

    mates = [0] * b
    for _, blocks in links.memory:
        for i in members(blocks):
            mates[i] |= blocks

    kin = [p | a for p, a in zip(links.before, links.after, strict=True)]

    def price(i: int, left: int, parts: list[tuple[int, int]]) -> float:
        before, after = links.before[i], links.after[i]
        wide = mates[i] & ~left & ~parts[-1][0]
        if kin[i] & ~left:
            wide = wide or ((late[i] or before & left) and (early[i] or after & left))
        apart = sum(1 for _, around in parts if around & left)
        return float(SPLIT**apart * (WIDE if wide else 1.0))

    def states(kept: list[int]) -> float:
        """Estimate: each block of a unit leaves less room for those that follow."""
        count = 1.0
        for n, j in enumerate(kept):
            others = [q for q in kept[:n] if links.conflict[j] >> q & 1]
            taken = sum(time[q] + time[j] - 1 for q in others)
            count *= max(period - taken, 1)
        return count

    def greedy(first: int, by_unit: bool, enough: float) -> tuple[float, list[int]]:
        left, fringe, begun, i = (1 << b) - 1, 0, 0, first
        order: list[int] = []
        kept: list[int] = []
        parts: list[tuple[int, int]] = []  # components, and what they have a dependency with
        cost = 0.0

        def with_block(i: int) -> list[tuple[int, int]]:
            others = [p for p in parts if not p[0] & kin[i]]
            mine = [p for p in parts if p[0] & kin[i]]
            joined = sum(p for p, _ in mine) | 1 << i
            around = kin[i]
            for _, a in mine:
                around |= a
            return [*others, (joined, around)]

        while True:
            left &= ~(1 << i)
            parts = with_block(i)
            cost += states(kept) * price(i, left, parts)
            order.append(i)
            kept = [j for j in [*kept, i] if near[j] & left]
            fringe = (fringe | near[i]) & left
            begun = begun & left if width[i] > 1 else (begun | links.conflict[i]) & left
            if len(kept) > MOST_WIDTH:
                return np.inf, order
            if not left or cost >= enough:
                return cost, order
            best: tuple[tuple[float, ...], int] | None = None
            for j in members((by_unit and begun) or fringe or left):
                rest = left & ~(1 << j)
                size = sum(1 for q in kept if near[q] & rest) + (1 if near[j] & rest else 0)
                if best is None or size <= best[0][0]:
                    dear = price(j, rest, with_block(j))
                    rank = (size, -width[j], dear, (near[j] & rest).bit_count())
                    if best is None or rank < best[0]:
                        best = rank, j
            i = best[1] if best else first

    found: tuple[float, list[int]] | None = None
    for first in firsts:
        for by_unit in (True, False):
            enough = found[0] if found else MOST_COST
            cost, order = greedy(first, by_unit, enough)
            if cost < enough:
                found = cost, order
    return found
