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
that is added (`dnnp.core.split.ideals.decide`). Of the diamond 0 -> 1, 2 -> 3,

    lattice     {} - 0 - 01 ----- 012 - 0123        blocks from {}     0
                       \        /                                      0 1
                        02 ----                                        0 1 2
                                                                       0 1 2 3
                                                                       0 2

of which 0 2 is followed by no 1, which is below 2: that block was met as 0 1 2. What can only grow
(compute, transfers of tensors that are cut already, memory) prunes the walk: where 0 1 is too much
in that sense, so are 0 1 2 and 0 1 2 3. A block that is dominated
by the one with an item more is walked through, but not entered.

What a block costs follows from the one with an item less, by the nets and the parameters of the
item that joins; items join and leave it last in, first out. Row d of an array by depth is of the
block of d items.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import numpy as np

from dnnp.core.cost.load_formula import DUPLEX, MARGIN, ROUNDING, SUM, load_of, share_of
from dnnp.core.kernels.kernel import callee, inlined, lean, scratch
from dnnp.core.model.graph import Bools, Floats, Ints
from dnnp.core.split.ideals.problem import NONE, PricedGraph


class Walk(NamedTuple):
    """The block at hand and those on the way to it: scratch of one call, by item, net or depth."""

    before: Annotated[Ints, "i32[nets]"]
    """Pins of each net in the ideal before the block."""
    given: Annotated[Bools, "bool[nets]"]
    """True if the source of the net is there."""
    inside: Annotated[Ints, "i32[nets]"]
    """Pins of each net in the block."""
    used: Annotated[Ints, "i32[params]"]
    """Items of the block that read each shared parameter."""
    work: Annotated[Floats, "f64[depths, classes, passes]"]
    arriving: Annotated[Floats, "f64[depths, rows]"]
    """Transfers that the block pays for: all, or those in with `duplex`."""
    leaving: Annotated[Floats, "f64[depths, rows]"]
    """Transfers out with `duplex`."""
    sure_in: Annotated[Floats, "f64[depths, rows]"]
    sure_out: Annotated[Floats, "f64[depths, rows]"]
    """The parts of both that every larger block pays."""
    held: Annotated[Floats, "f64[depths]"]
    """Memory that adds up, bytes."""
    weight: Annotated[Floats, "f64[depths]"]
    """Weight bytes."""
    touched: Annotated[Floats, "f64[depths]"]
    """Bytes of all activations read or made: no peak is above."""
    own: Annotated[Floats, "f64[depths]"]
    """Largest memory of one node alone: no peak is below."""
    added: Annotated[Ints, "u32[depths]"]
    """The item that joined."""
    where: Annotated[Ints, "u32[depths]"]
    """The ideal at the end of the block."""
    child: Annotated[Ints, "u32[depths]"]
    """The next edge of the lattice to try from there."""
    dead: Annotated[Ints, "i64[classes]"]
    """1: no device of the class takes the block or a larger one."""
    need: Annotated[Ints, "i64[classes]"]
    """Replicas that the block needs on the class; 0: it does not fit."""
    loads: Annotated[Floats, "f64[passes]"]
    dominated: Annotated[Ints, "i64[classes]"]
    """1: the block is dominated by one with an item more; -1: not known yet."""
    grown: Annotated[Ints, "i64[ideals]"]
    """The edge of the item that last dominated from an ideal; 0: none."""
    live: Annotated[Floats, "f64[steps]"]
    mark: Annotated[Ints, "i64[steps]"]
    last: Annotated[Ints, "i64[tensors]"]
    """Scratch of `peak_of`."""
    label: Annotated[Ints, "i64[depths, labels]"]
    """The label that the block has, a row; 0: none yet."""


def new_walk(p: PricedGraph, ideals: int) -> Walk:
    """An empty block before a lattice of so many ideals."""
    classes, passes, n = p.work.shape
    sizes = {
        "nets": len(p.net_size), "params": len(p.param_bytes), "depths": n + 2, "ideals": ideals,
        "classes": classes, "passes": passes, "rows": len(p.row_class), "steps": len(p.nodes) + 2,
        "tensors": len(p.tensor_bytes) + 1, "labels": len(p.labels),
    }  # fmt: skip
    return scratch(Walk, sizes)


@inlined
def add(p, walk, d, v):  # type: ignore[no-untyped-def]
    """Let item v join the block of d - 1 items."""
    n_classes, n_passes, _ = p.work.shape
    n_rows = len(p.row_class)
    for c in range(n_classes):
        for q in range(n_passes):
            walk.work[d, c, q] = walk.work[d - 1, c, q] + p.work[c, q, v]
    for r in range(n_rows):
        walk.arriving[d, r] = walk.arriving[d - 1, r]
        walk.leaving[d, r] = walk.leaving[d - 1, r]
        walk.sure_in[d, r] = walk.sure_in[d - 1, r]
        walk.sure_out[d, r] = walk.sure_out[d - 1, r]
    for i in range(p.nets.item_ptr[v], p.nets.item_ptr[v + 1]):
        e = p.nets.item_net[i]
        walk.inside[e] += 1
        if p.comm != DUPLEX:
            # In and out add up: what counts is that the net is cut.
            if walk.inside[e] == 1:
                for r in range(n_rows):
                    cost = p.net_cost[r, e]
                    walk.arriving[d, r] += cost
                    if walk.before[e] > 0 or p.nets.always[e]:
                        walk.sure_in[d, r] += cost
            if walk.inside[e] == p.net_size[e] and not p.nets.always[e]:
                for r in range(n_rows):
                    walk.arriving[d, r] -= p.net_cost[r, e]
            continue
        source = p.nets.source[e]
        if source == v:
            for r in range(n_rows):
                cost = p.net_cost[r, e]
                if walk.inside[e] > 1:
                    walk.arriving[d, r] -= cost
                walk.leaving[d, r] += cost
                if walk.before[e] > 0 or p.nets.always[e]:
                    walk.sure_out[d, r] += cost
        elif walk.inside[e] == 1:
            for r in range(n_rows):
                walk.arriving[d, r] += p.net_cost[r, e]
                if source < 0 or walk.given[e]:
                    walk.sure_in[d, r] += p.net_cost[r, e]
        if walk.inside[e] == p.net_size[e] and not p.nets.always[e]:
            for r in range(n_rows):
                walk.leaving[d, r] -= p.net_cost[r, e]
    walk.held[d] = walk.held[d - 1] + p.item_bytes[v]
    walk.weight[d] = walk.weight[d - 1] + p.item_weight[v]
    for i in range(p.param_ptr[v], p.param_ptr[v + 1]):
        t = p.param_idx[i]
        walk.used[t] += 1
        if walk.used[t] == 1:
            walk.held[d] += p.param_bytes[t]
            walk.weight[d] += p.param_weight[t]
    walk.touched[d] = walk.touched[d - 1] + p.item_touch[v]
    walk.own[d] = max(walk.own[d - 1], p.item_own[v])
    walk.added[d] = v


@inlined
def drop(p, walk, v):  # type: ignore[no-untyped-def]
    """Take item v out of the block's counts."""
    for i in range(p.nets.item_ptr[v], p.nets.item_ptr[v + 1]):
        walk.inside[p.nets.item_net[i]] -= 1
    for i in range(p.param_ptr[v], p.param_ptr[v + 1]):
        walk.used[p.param_idx[i]] -= 1


@inlined
def may_join(p, walk, d, v):  # type: ignore[no-untyped-def]
    """True if rules let item v join the block of d items; notes its labels."""
    joins = True
    for r in range(len(p.labels)):
        mine, label = walk.label[d, r], p.labels[r, v]
        joins &= mine == 0 or label == 0 or mine == label
        walk.label[d + 1, r] = label if mine == 0 else mine
    return joins


@inlined
def may_grow(p, goal, walk, d):  # type: ignore[no-untyped-def]
    """True if some class may take the block of d items or a larger one; fills `walk.dead`."""
    n_classes, n_passes, _ = p.work.shape
    alive = False
    for c in range(n_classes):
        walk.dead[c] = 0
        excess = walk.held[d] + walk.own[d] - p.capacity[c]
        extra = 0.0
        if excess > 0.0:
            if p.stream[c] == np.inf:
                walk.dead[c] = 1
                continue
            extra = excess * p.stream[c]
        fits = 0
        worst = 0.0
        for q in range(n_passes):
            low = walk.work[d, c, q]
            r = p.row_of[c, q]
            if r >= 0:
                sure = walk.sure_in[d, r] + extra
                low = load_of(p.comm, sure, low, 0.0, walk.sure_out[d, r])
            low = low / p.copies[c] * (1 - ROUNDING)
            if low > goal.target[q]:
                walk.dead[c] = 1
                if q == goal.vary:
                    worst = low
                    fits += 1
                else:
                    fits = -n_passes
        if walk.dead[c] == 0:
            alive = True
        elif fits > 0 and worst < np.inf:
            goal.above[0] = min(goal.above[0], worst)
    return alive


@inlined
def takes(p, goal, walk, d):  # type: ignore[no-untyped-def]
    """True if some class takes the block of d items; fills `walk.need`."""
    usable = False
    memory = walk.held[d] + walk.own[d]
    known = p.peak == 0 or p.relaxed == 1
    for c in range(len(p.copies)):
        walk.need[c] = 0
        if walk.dead[c]:
            continue
        extra = 0.0
        if not known and walk.held[d] + walk.touched[d] > p.capacity[c]:
            path = walk.added[1 : d + 1]
            memory = walk.held[d] + peak_of(p, path, d, walk.live, walk.mark, walk.last)
            known = True
        if memory > p.capacity[c]:
            if p.stream[c] == np.inf:
                goal.above[1] = 1.0
                continue
            extra = (memory - p.capacity[c]) * p.stream[c]
            if p.peak == 1:
                goal.above[1] = 1.0
        for q in range(p.work.shape[1]):
            load = walk.work[d, c, q]
            r = p.row_of[c, q]
            if r >= 0:
                moved = walk.arriving[d, r] + extra
                load = load_of(p.comm, moved, load, 0.0, walk.leaving[d, r])
            walk.loads[q] = load
        walk.need[c], after = _replicas(p, goal, walk.loads, c, walk.weight[d])
        goal.above[0] = min(goal.above[0], after)
        usable |= walk.need[c] > 0
    return usable


@inlined
def _replicas(p, goal, loads, c, weight):  # type: ignore[no-untyped-def]
    """(fewest replicas on class c that meet the targets, or 0; next larger load of pass `vary`).

    On r devices a load becomes load / r, and the last pass adds (1 - 1/r) * weight * sync, or
    overlaps it (Appendix C.2).
    """
    least = np.inf
    last = len(loads) - 1
    for r in range(1, p.copies[c] + 1):
        good = True
        mine = 0.0
        for q in range(len(loads)):
            extra = (r - 1) * weight * p.sync[c] / r if q == last and r > 1 else 0.0
            value = share_of(p.comm, loads[q], r, extra)
            if q == goal.vary:
                mine = value
            elif value > goal.target[q]:
                good = False
        if good:
            if mine <= goal.target[goal.vary]:
                return r, least
            least = min(least, mine)
    return 0, least


@inlined
def is_dominated(p, lattice, goal, walk, c, d):  # type: ignore[no-untyped-def]
    """1 if the block of d items on class c is dominated by the block with one more item, or 0.

    An item that dominated once often does again, so that one is tried first.
    """
    j = walk.where[d]
    start, count = lattice.child_ptr[j], lattice.child_ptr[j + 1] - lattice.child_ptr[j]
    likely = max(start, walk.grown[j])
    for k in range(likely, likely + count):
        edge = k if k < start + count else k - count
        x = lattice.child_item[edge]
        joins = may_join(p, walk, d, x)
        if joins and _is_free(p, walk, x) and _takes_with(p, goal, walk, c, d, x):
            walk.grown[j] = edge
            return 1
    walk.grown[j] = 0
    return 0


@inlined
def _is_free(p, walk, x):  # type: ignore[no-untyped-def]
    """True if a later block that holds x costs no more without it.

    It pays for x's nets that have other pins in it and none in front (`opened`), and no longer
    for x's work and for nets of which x was the last pin (`closed`): opened <= closed + work.
    """
    for r in range(len(p.row_class)):
        gain = p.work[p.row_class[r], p.row_pass[r], x] if p.comm == SUM else 0.0
        for i in range(p.nets.item_ptr[x], p.nets.item_ptr[x + 1]):
            e = p.nets.item_net[i]
            here = walk.before[e] + walk.inside[e]
            if here == 0:
                if p.net_size[e] > 1:
                    gain -= p.net_cost[r, e]
            elif here == p.net_size[e] - 1 and p.comm != DUPLEX:
                gain += p.net_cost[r, e]
        if gain < 0.0:
            return False
    return True


@inlined
def _takes_with(p, goal, walk, c, d, x):  # type: ignore[no-untyped-def]
    """True if the block of d items with x needs no more replicas on class c than without."""
    held = walk.held[d] + p.item_bytes[x]
    weight = walk.weight[d] + p.item_weight[x]
    for i in range(p.param_ptr[x], p.param_ptr[x + 1]):
        t = p.param_idx[i]
        if walk.used[t] == 0:
            held += p.param_bytes[t]
            weight += p.param_weight[t]
    extra = 0.0
    if held > p.capacity[c]:
        if p.stream[c] == np.inf:
            return False
        extra = (held - p.capacity[c]) * p.stream[c]
    for q in range(p.work.shape[1]):
        load = walk.work[d, c, q] + p.work[c, q, x]
        r = p.row_of[c, q]
        if r >= 0:
            moved, sent = walk.arriving[d, r], walk.leaving[d, r]
            for i in range(p.nets.item_ptr[x], p.nets.item_ptr[x + 1]):
                e = p.nets.item_net[i]
                cost = p.net_cost[r, e]
                whole = walk.inside[e] + 1 == p.net_size[e] and not p.nets.always[e]
                if p.comm != DUPLEX:
                    if walk.inside[e] == 0 and not whole:
                        moved += cost
                    elif walk.inside[e] > 0 and whole:
                        moved -= cost
                elif p.nets.source[e] == x:
                    if walk.inside[e] > 0:
                        moved -= cost
                    if not whole:
                        sent += cost
                elif walk.inside[e] == 0:
                    moved += cost
                elif whole:
                    sent -= cost
            load = load_of(p.comm, moved + extra, load, 0.0, sent)
        walk.loads[q] = load
    enough, _ = _replicas(p, goal, walk.loads, c, weight)
    return 0 < enough <= walk.need[c]


@callee
def peak_of(p, items, count, live, mark, last):  # type: ignore[no-untyped-def]
    """Peak of live activations when the block of items[:count] runs in that order; bytes."""
    steps = 0
    for i in range(count):
        for a in range(p.node_ptr[items[i]], p.node_ptr[items[i] + 1]):
            v = p.nodes[a]
            mark[v] = steps + 1
            steps += 1
            for b in range(p.read_ptr[v], p.read_ptr[v + 1]):
                last[p.read_idx[b]] += 1
    # `last` counts the uses inside; live[t] gets what begins at step t, less what ended before.
    for t in range(steps + 1):
        live[t] = 0.0
    step = 0
    for i in range(count):
        for a in range(p.node_ptr[items[i]], p.node_ptr[items[i] + 1]):
            v = p.nodes[a]
            for b in range(p.made_ptr[v], p.made_ptr[v + 1]):
                t = p.made_idx[b]
                live[step] += p.tensor_bytes[t]
                if last[t] == 0 and p.tensor_uses[t] == 0 and not p.tensor_kept[t]:
                    live[step + 1] -= p.tensor_bytes[t]
            step += 1
    step = steps - 1
    for i in range(count - 1, -1, -1):
        for a in range(p.node_ptr[items[i] + 1] - 1, p.node_ptr[items[i]] - 1, -1):
            v = p.nodes[a]
            for b in range(p.read_ptr[v], p.read_ptr[v + 1]):
                t = p.read_idx[b]
                uses = last[t]
                if uses > 0:
                    # From the end, this is the tensor's last use in the block.
                    last[t] = 0
                    inside = p.producer[t] >= 0 and mark[p.producer[t]] > 0
                    if not inside:
                        live[0] += p.tensor_bytes[t]
                        live[step + 1] -= p.tensor_bytes[t]
                    elif uses == p.tensor_uses[t] and not p.tensor_kept[t]:
                        live[step + 1] -= p.tensor_bytes[t]
            step -= 1
    best = 0.0
    total = 0.0
    for t in range(steps):
        total += live[t]
        best = max(best, total)
    for i in range(count):
        for a in range(p.node_ptr[items[i]], p.node_ptr[items[i] + 1]):
            mark[p.nodes[a]] = 0
    return best


class Goal(NamedTuple):
    """Target of a pass, and notes on what it refused."""

    target: Floats
    """f64[P], the largest loads that are allowed; finite."""
    vary: int
    """The pass whose next larger load is wanted."""
    above: Floats
    """f64[2], in and out: the least load of pass `vary` above its target that was met; and a
    flag: a block was refused for its peak memory in this order of its nodes."""
    behind: Ints = np.zeros(0, np.int16)
    """i16[I], devices of the last class that what is behind an ideal takes at least where no load
    is above `known`; 0: nothing is known."""
    known: float = np.inf


@inlined
def is_covered(table, ideal):  # type: ignore[no-untyped-def]
    """True if some devices cover an ideal."""
    covered = False
    for s in range(table.min_devices.shape[1]):
        covered |= table.min_devices[ideal, s] != NONE
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
    """True if devices of such a share may do and pay for what is behind an ideal."""
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
def is_open(p, lattice, goal, table, walk, ideal):  # type: ignore[no-untyped-def]
    """True if the devices left may do the rest behind an ideal in some state; mark it.

    Forgets the states in which they may not.
    """
    if not is_covered(table, ideal):
        return False
    known = p.crossing[0, ideal] >= 0.0
    if not known:
        mark(p, lattice, walk, ideal)
        note_crossing(p, walk, ideal)
    reached = False
    for s in range(table.min_devices.shape[1]):
        a = table.min_devices[ideal, s]
        if a == NONE:
            continue
        pays = p.comm == SUM and _free_of(p, s, a) == 0
        if goal.behind[ideal] > p.counts[len(p.counts) - 1] - a:
            table.min_devices[ideal, s] = NONE
            goal.above[0] = min(goal.above[0], goal.known)
        elif is_enough(p, goal, ideal, room_of(p, s, a), pays):
            reached = True
        else:
            table.min_devices[ideal, s] = NONE
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
        for i in range(p.nets.item_ptr[v], p.nets.item_ptr[v + 1]):
            e = p.nets.item_net[i]
            walk.before[e] += 1
            walk.given[e] |= p.nets.source[e] == v
        ideal = lattice.parent[ideal]


@lean
def decide(p, lattice, goal, table, walk, first, budget):  # type: ignore[no-untyped-def]
    """Cover ideals at loads of at most `goal.target`, from ideal `first` on.

    Parameters
    ----------
    p
        The problem, `PricedGraph`.
    lattice
        A `Lattice` of its items.
    goal
        A `Goal`; what is above the target is noted there.
    table
        A `DPTable`, filled with NONE but for the empty ideal before the first call.
    walk
        A new `Walk`.
    budget
        Blocks to walk before pausing.

    Returns
    -------
    (ideal to continue with; the number of ideals: all done, or everything is covered, blocks)
    """
    everything = len(lattice.parent) - 1
    least, counts, strides = table.min_devices, p.counts, p.strides
    n_classes = len(counts)
    main = n_classes - 1
    blocks = 0
    for ideal in range(first, everything):
        if blocks >= budget:
            return ideal, blocks
        if not is_open(p, lattice, goal, table, walk, ideal):
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
            if not may_join(p, walk, depth, v):
                continue
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
                walk.dominated[c] = -1
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
                    if b > counts[main] or b >= least[j, t] or (j == everything and not p.ends[t]):
                        continue
                    if not is_enough(p, goal, j, room_of(p, t, b), False):
                        continue
                    if walk.dominated[c] < 0 and p.peak == 0 and p.ends[0]:
                        walk.dominated[c] = is_dominated(p, lattice, goal, walk, c, depth)
                    if walk.dominated[c] <= 0:
                        least[j, t] = b
                        table.parent[j, t] = ideal
                        table.choice[j, t] = c + n_classes * (need - 1)
        if is_covered(table, everything):
            break
    return everything + 1, blocks


@inlined
def _may_save(least, counts, strides, ideal, j):  # type: ignore[no-untyped-def]
    """True if a block could save devices on the way from an ideal to its end."""
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
