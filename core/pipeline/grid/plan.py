"""The order in which `core.pipeline.grid` goes through the blocks, and what each step has to do.

Blocks are placed one after the other. A placed block is kept in the state as long as one that is
not placed yet shares a unit or a dependency with it, or memory of a unit (or the span) that is
not complete. Kept blocks fall into *components*: the distances of starts within one are known;
those between two only up to whole periods. A block where nothing but the phase of its start
matters any more is a component of its own.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dnnp.core.cost.combine import ROUNDING
from dnnp.core.model.graph import Ints
from dnnp.core.pipeline.grid.order import Links, members

EARLY, LATE, EITHER, FIXED = -1, 1, 2, 0
"""What later steps want of a start: earlier, later, do not mind, or both."""


class Step(NamedTuple):
    """Place a block, join two components, or both. Slots are positions in `names`."""

    block: int
    """-1: only join."""
    names: list[int]
    """Blocks in the state; the new one comes last."""
    conflict: Ints
    """Slots that share a unit with the new block."""
    anchor: Ints
    """Slots of the component that another one is joined with; may be empty."""
    moved: Ints
    """Slots of that other one, which is moved by whole periods; may be the new block alone."""
    pick: int
    """`EARLY`: only the earliest place of `moved` is worth a try; `LATE`; `EITHER`: any one;
    `FIXED`: all are."""
    level: bool
    """Nothing relates the two but the span: their first starts are less than a period apart."""
    units: list[tuple[int, Ints]]
    """Units whose memory is complete now, and the slots of their blocks."""
    span: Ints
    """Slots of first and last blocks if all are there now, else empty."""
    keep: Ints
    """Slots of the next state, by component."""
    component: Ints
    """Of each of them, ascending."""
    wish: Ints
    """Of each of them: `EARLY`, `LATE`, `EITHER` or `FIXED`."""


def steps_of(links: Links, memory: list[float], order: list[int]) -> list[Step]:
    """Steps that place the blocks in an order. `memory` of each block."""
    near = links.near()
    left = (1 << len(near)) - 1
    state = _KeptBlocks(links, memory, dict(links.memory), links.ends)
    steps: list[Step] = []
    for i in order:
        left &= ~(1 << i)
        conflict = links.conflict[i]
        state.place(i, left)
        joins, done, span_done = state.due()
        for part in range(max(len(joins), 1)):
            joins[part:] = state.ranked(joins[part:])
            names = state.names
            at = {j: s for s, j in enumerate(names)}
            anchor = moved = 0
            pick = EITHER
            level = False
            if joins:
                a, c, level = joins[part]
                anchor, moved = state.group[a], state.group[c]
                pick = state.pick(anchor, moved)
                state.join(anchor, moved)
            units, span = [], 0
            if part + 1 >= len(joins):
                units = [(d, _at(at, state.units.pop(d))) for d in done]
                if span_done:
                    span, state.ends = state.ends[0] | state.ends[1], (0, 0)
                state.forget(near)
            parts = state.arrange()
            steps.append(
                Step(
                    block=i if part == 0 else -1,
                    names=names,
                    conflict=_at(at, conflict & ~(1 << i) if part == 0 else 0),
                    anchor=_at(at, anchor),
                    moved=_at(at, moved),
                    pick=pick,
                    level=level,
                    units=units,
                    span=_at(at, span),
                    keep=np.array([at[j] for j in state.names], dtype=np.int64),
                    component=np.repeat(np.arange(len(parts)), parts).astype(np.int64),
                    wish=np.array([state.wish(j) for j in state.names], dtype=np.int64),
                )
            )
    return steps


def _at(at: dict[int, int], blocks: int) -> Ints:
    return np.array([at[j] for j in members(blocks) if j in at], dtype=np.int64)


class _KeptBlocks:
    """What is kept while blocks are placed in turn."""

    def __init__(
        self, links: Links, memory: list[float], units: dict[int, int], ends: tuple[int, int]
    ) -> None:
        self.links, self.memory = links, memory
        self.units = units
        """Blocks of units whose memory is not known yet."""
        self.ends = ends
        """First and last blocks while the span is not known."""
        self.names: list[int] = []
        self.group: dict[int, int] = {}
        """The component of each block that is kept."""
        self.left, self.new = 0, -1

    def place(self, i: int, left: int) -> None:
        """Add block i."""
        self.left, self.new = left, i
        self.group[i] = 1 << i
        self.names = [*self.names, i]

    def due(self) -> tuple[list[tuple[int, int, bool]], list[int], bool]:
        """Components to join now, the units whose memory is known then, and whether the span is.

        Components are given by a block of each, and whether only the span joins them. Those that
        the new block has a dependency with are joined. So are those that hold memory of a unit
        beyond themselves, and first and last blocks, once no dependency is left to join them.
        """
        joined = dict(self.group)
        pairs: list[tuple[int, int, bool]] = []

        def join(a: int, c: int, level: bool) -> None:
            if joined[a] != joined[c]:
                pairs.append((a, c, level))
                union = joined[a] | joined[c]
                for j in members(union):
                    joined[j] = union

        def separate(blocks: list[int]) -> list[int]:
            """One block of each component; none if a dependency may still join some of them."""
            ones = list({joined[j]: j for j in blocks}.values())
            waiting = [j for j in ones if any(self._waits(q) for q in members(joined[j]))]
            return ones if len(waiting) <= 1 else []

        for j in members((self.links.before[self.new] | self.links.after[self.new]) & ~self.left):
            join(j, self.new, False)
        done = []
        for d, blocks in self.units.items():
            if blocks & self.left:
                continue
            mine = members(blocks)
            owing = [j for j in mine if self._owes(joined[j] & blocks)]
            # A limit of memory bounds the distance of what takes and what releases it.
            for a in owing:
                for c in owing:
                    if self.memory[a] > 0 > self.memory[c] and self.links.below[a] >> c & 1:
                        join(a, c, False)
            owing = [j for j in owing if self._owes(joined[j] & blocks)]
            ones = separate(owing)
            if ones or not owing:
                for j in ones[1:]:
                    join(ones[0], j, False)
                done.append(d)
        ends = self.ends[0] | self.ends[1]
        ones = [] if ends & self.left else separate(members(ends))
        for j in ones[1:]:
            join(ones[0], j, True)
        return pairs, done, bool(ones)

    def _waits(self, j: int) -> bool:
        return bool((self.links.before[j] | self.links.after[j]) & self.left)

    def _owes(self, blocks: int) -> bool:
        gains = [self.memory[q] for q in members(blocks)]
        return abs(sum(gains)) > ROUNDING * sum(map(abs, gains))

    def ranked(self, joins: list[tuple[int, int, bool]]) -> list[tuple[int, int, bool]]:
        """The same joins, first one where few places are worth a try; spans alone come last."""

        def rank(join: tuple[int, int, bool]) -> tuple[bool, bool]:
            a, c, level = join
            return level, self.pick(self.group[a], self.group[c]) == FIXED

        return sorted(joins, key=rank)

    def pick(self, anchor: int, moved: int) -> int:
        """`Step.pick` of a join of two components."""
        pick = FIXED
        for blocks, sign in ((anchor, -1), (moved, 1)):
            firm = {self.wish(j, anchor | moved) for j in members(blocks)} - {EITHER}
            if not firm:
                return EITHER
            if len(firm) == 1 and FIXED not in firm:
                pick = sign * firm.pop()
        return pick

    def join(self, anchor: int, moved: int) -> None:
        """Make one component of two."""
        for j in members(anchor | moved):
            self.group[j] = anchor | moved

    def forget(self, near: list[int]) -> None:
        """Keep what later steps look at only; of some blocks only the phase."""
        live = self.ends[0] | self.ends[1]
        for blocks in self.units.values():
            live |= blocks
        for j in self.names:
            if self._waits(j):
                live |= 1 << j
        self.names = [j for j in self.names if near[j] & self.left or live >> j & 1]
        live &= sum(1 << j for j in self.names)
        self.group = {j: self.group[j] & live if live >> j & 1 else 1 << j for j in self.names}

    def arrange(self) -> list[int]:
        """Bring `names` into the order of components, large ones first; their sizes."""
        parts: dict[int, list[int]] = {}
        for j in self.names:
            parts.setdefault(self.group[j], []).append(j)
        ranked = sorted(parts.values(), key=lambda part: -len(part))
        self.names = [j for part in ranked for j in part]
        return [len(part) for part in ranked]

    def wish(self, j: int, group: int = 0) -> int:
        """What all that was not looked at yet wants of the start of block j.

        `group` is the component of the block; that which it has now, by default.
        """
        group, new = group or self.group[j], 1 << self.new
        # Dependencies among blocks that are placed are respected unless one is new.
        apart = self.left
        if j == self.new:
            apart |= sum(1 << q for q in self.names) & ~group
        elif not group & new:
            apart |= new
        late, early = bool(self.links.before[j] & apart), bool(self.links.after[j] & apart)
        if any(blocks >> j & 1 for blocks in self.units.values()):
            late, early = late or self.memory[j] > 0, early or self.memory[j] < 0
        late |= bool(self.ends[0] >> j & 1)
        early |= bool(self.ends[1] >> j & 1)
        if late and early:
            return FIXED
        return LATE if late else EARLY if early else EITHER
