"""Which ideals the search goes on from: kernels, and what they are asked."""

from __future__ import annotations

from typing import NamedTuple

from dnnp.core.cost.combine import MARGIN, SUM
from dnnp.core.cost.kernel import inlined
from dnnp.core.dp.problem import NONE
from dnnp.core.model.graph import Floats


class Goal(NamedTuple):
    """What a pass decides, and what it says where the answer is no."""

    target: Floats
    """f64[P], the largest loads that are allowed; finite."""
    vary: int
    """The pass whose next larger load is wanted."""
    above: Floats
    """f64[2], in and out: the least load of pass `vary` above its target that was met; and a
    flag: a block was refused for its peak memory in this order of its nodes."""


@inlined
def is_covered(memo, ideal):  # type: ignore[no-untyped-def]
    """Whether some devices cover an ideal."""
    covered = False
    for s in range(memo.least.shape[1]):
        covered |= memo.least[ideal, s] != NONE
    return covered


@inlined
def room_of(p, s, a):  # type: ignore[no-untyped-def]
    """Share in lower bounds of the devices left in state s, with `a` of the last class used."""
    main = len(p.counts) - 1
    room = p.weights[main] * (p.counts[main] - a)
    for c in range(main):
        digit = (s // p.strides[c]) % (p.counts[c] + 1)
        room += p.weights[c] * (p.counts[c] - digit)
    return room


@inlined
def _free_of(p, s, a):  # type: ignore[no-untyped-def]
    """Devices left that pay for no transfers."""
    main = len(p.counts) - 1
    free = p.counts[main] - a if p.row_of[main, 0] < 0 else 0
    for c in range(main):
        if p.row_of[c, 0] < 0:
            free += p.counts[c] - (s // p.strides[c]) % (p.counts[c] + 1)
    return free


@inlined
def is_enough(p, goal, ideal, room, pays):  # type: ignore[no-untyped-def]
    """Whether devices of such a share may do the work behind an ideal, and pay for what crosses."""
    enough = True
    for q in range(len(p.rest)):
        owed = p.rest[q, ideal] + (p.crossing[q, ideal] if pays else 0.0)
        owed *= 1 - MARGIN
        if owed > goal.target[q] * room:
            enough = False
            if q == goal.vary and room > 0.0:
                goal.above[0] = min(goal.above[0], owed / room)
    return enough


@inlined
def note_crossing(p, walk, ideal):  # type: ignore[no-untyped-def]
    """Sum up the tensors that cross from a marked ideal: devices that pay still have to."""
    for q in range(len(p.crossing)):
        p.crossing[q, ideal] = 0.0
        for e in range(len(p.net_size)):
            if 0 < walk.before[e] < p.net_size[e]:
                p.crossing[q, ideal] += p.net_share[q, e]


@inlined
def is_open(p, lattice, goal, memo, walk, ideal):  # type: ignore[no-untyped-def]
    """Whether the devices left may do the rest behind an ideal in some state; then mark it.

    Forgets the states in which they may not.
    """
    if not is_covered(memo, ideal):
        return False
    known = p.crossing[0, ideal] >= 0.0
    if not known:
        mark(p, lattice, walk, ideal)
        note_crossing(p, walk, ideal)
    reached = False
    for s in range(memo.least.shape[1]):
        a = memo.least[ideal, s]
        if a == NONE:
            continue
        pays = p.comm == SUM and _free_of(p, s, a) == 0
        if is_enough(p, goal, ideal, room_of(p, s, a), pays):
            reached = True
        else:
            memo.least[ideal, s] = NONE
    if reached and known:
        mark(p, lattice, walk, ideal)
    return reached


@inlined
def mark(p, lattice, walk, ideal):  # type: ignore[no-untyped-def]
    """Count the pins of each net in an ideal, and say whether its source is there."""
    for e in range(len(walk.before)):
        walk.before[e] = 0
        walk.given[e] = False
    while lattice.last[ideal] >= 0:
        v = lattice.last[ideal]
        for i in range(p.item_ptr[v], p.item_ptr[v + 1]):
            e = p.item_net[i]
            walk.before[e] += 1
            walk.given[e] |= p.net_source[e] == v
        ideal = lattice.parent[ideal]
