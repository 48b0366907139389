r"""Kernels of the ideal search: decide a target by walking every block that fits it.

With the last class of devices, of which the fewest are wanted, and a state s that counts the used
devices of the others,

    least[{}, 0] = 0
    least[J, t] = min of least[I, s] + (r where c is the last class)

over the ideals I in J, classes c and numbers of replicas r such that the block J - I meets the
targets on r devices of c, and t is s with r more of c. What is covered at the targets is
everything if some least[everything, t] is at most the number of devices of the last class.

From an ideal I that some devices have covered, blocks J - I are walked by adding items in
ascending order, so each block is met once, its load kept up to date from the nets of the item
that is added (`dnnp.core.split.ideals.walk`). Of the diamond 0 -> 1, 2 -> 3,

    lattice     {} - 0 - 01 ----- 012 - 0123        blocks from {}     0
                       \        /                                      0 1
                        02 ----                                        0 1 2
                                                                       0 1 2 3
                                                                       0 2

of which 0 2 is followed by no 1, which is below 2: that block was met as 0 1 2. What can only grow
(compute, transfers of tensors that are cut already, memory) prunes the walk: where 0 1 is too much
in that sense, so are 0 1 2 and 0 1 2 3. A block that an item may join without harm to others is
walked through, but not entered: the one with the item does as well.
"""

from __future__ import annotations

from typing import NamedTuple

from dnnp.core.cost.load_formula import MARGIN, SUM
from dnnp.core.kernels.kernel import inlined, lean
from dnnp.core.model.graph import Floats
from dnnp.core.split.ideals.problem import NONE
from dnnp.core.split.ideals.walk import add, drop, left_to_larger, may_grow, takes


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


@lean
def decide(p, lattice, goal, memo, walk, first, budget):  # type: ignore[no-untyped-def]
    """Cover ideals at loads of at most `goal.target`, from ideal `first` on.

    Parameters
    ----------
    p
        The problem, `IdealArrays`.
    lattice
        A `Lattice` of its items.
    goal
        A `Goal`; what is above the target is noted there.
    memo
        A `Memo`, filled with NONE but for the empty ideal before the first call.
    walk
        A new `Walk`.
    budget
        Blocks to walk before pausing.

    Returns
    -------
    (ideal to continue with; the number of ideals: all done, or everything is covered, blocks)
    """
    everything = len(lattice.parent) - 1
    least, counts, strides = memo.least, p.counts, p.strides
    n_classes = len(counts)
    main = n_classes - 1
    blocks = 0
    for ideal in range(first, everything):
        if blocks >= budget:
            return ideal, blocks
        if not is_open(p, lattice, goal, memo, walk, ideal):
            continue
        depth = 0
        walk.where[0] = ideal
        walk.child[0] = lattice.child_ptr[ideal]
        while depth >= 0:
            edge = walk.child[depth]
            if edge == lattice.child_ptr[walk.where[depth] + 1]:
                if depth > 0:
                    drop(p, walk, walk.added[depth])
                depth -= 1
                continue
            walk.child[depth] = edge + 1
            v, j = lattice.child_item[edge], lattice.child_ideal[edge]
            blocks += 1
            add(p, walk, depth + 1, v)
            if not may_grow(p, goal, walk, depth + 1):
                drop(p, walk, v)
                continue
            depth += 1
            walk.where[depth] = j
            e = lattice.child_ptr[j + 1]
            while e > lattice.child_ptr[j] and lattice.child_item[e - 1] > v:
                e -= 1
            walk.child[depth] = e
            if not _may_save(least, counts, strides, ideal, j):
                continue
            if not takes(p, goal, walk, depth):
                continue
            # Enter the block where it is the best way to its end so far. A kernel of its own would
            # call others, so that numba counted references to 60 arrays for every block.
            for c in range(n_classes):
                walk.fuller[c] = -1
            for s in range(least.shape[1]):
                a = least[ideal, s]
                if a == NONE:
                    continue
                for c in range(n_classes):
                    need = walk.need[c]
                    if need == 0:
                        continue
                    t, b = s, a
                    if c == main:
                        b = a + need
                    else:
                        if (s // strides[c]) % (counts[c] + 1) + need > counts[c]:
                            continue
                        t = s + need * strides[c]
                    if b > counts[main] or b >= least[j, t]:
                        continue
                    if not is_enough(p, goal, j, room_of(p, t, b), False):
                        continue
                    if walk.fuller[c] < 0 and p.peak == 0:
                        walk.fuller[c] = left_to_larger(p, lattice, goal, walk, c, depth)
                    if walk.fuller[c] <= 0:
                        least[j, t] = b
                        memo.came[j, t] = ideal
                        memo.how[j, t] = c + n_classes * (need - 1)
        if is_covered(memo, everything):
            break
    return everything + 1, blocks


@inlined
def _may_save(least, counts, strides, ideal, j):  # type: ignore[no-untyped-def]
    """Whether a block could save devices on the way from an ideal to its end."""
    for s in range(least.shape[1]):
        a = least[ideal, s]
        if a == NONE:
            continue
        if a + 1 < least[j, s]:
            return True
        for c in range(len(counts) - 1):
            left = (s // strides[c]) % (counts[c] + 1) < counts[c]
            if left and a < least[j, s + strides[c]]:
                return True
    return False
