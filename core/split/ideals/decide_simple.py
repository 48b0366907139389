"""The kernel of `dnnp.core.split.ideals.decide` for the commonest problem, several times as fast.

One class of accelerators, perhaps one of CPUs, `sum` transfers, no replicas, one target, and
memory that does not bind. What it decides is the same; see `decide` for the method.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import numpy as np

from dnnp.core.cost.load_formula import MARGIN, ROUNDING, SUM
from dnnp.core.kernels.kernel import callee, inlined, lean, part, scratch
from dnnp.core.model.graph import Bools, Floats, Ints
from dnnp.core.model.hypergraph import Hypergraph
from dnnp.core.split.ideals.decide import is_open
from dnnp.core.split.ideals.problem import NONE, PricedGraph


class Plain(NamedTuple):
    """Part of a `PricedGraph` that such a problem needs."""

    payer: int
    """The class of the accelerators."""
    work: Floats
    """f64[n], time on one of them."""
    cpu_work: Floats
    """f64[n], time on a CPU."""
    cost: Floats
    """f64[1, p], of each net."""
    nets: Hypergraph
    net_size: Ints


class PlainWalk(NamedTuple):
    """The block at hand and those on the way to it: scratch of one call."""

    before: Annotated[Ints, "i64[nets]"]
    """Pins of each net in the ideal before the block."""
    given: Annotated[Bools, "bool[nets]"]
    """True if the source of the net is there; for `mark` alone."""
    inside: Annotated[Ints, "i64[nets]"]
    """Pins of each net in the block."""
    load: Annotated[Floats, "f64[depths]"]
    """On an accelerator."""
    sure: Annotated[Floats, "f64[depths]"]
    """The part of it that every larger block pays."""
    alone: Annotated[Floats, "f64[depths]"]
    """On a CPU; inf: there is none."""
    added: Annotated[Ints, "u32[depths]"]
    """The item that joined."""
    where: Annotated[Ints, "u32[depths]"]
    """The ideal at the end of the block."""
    child: Annotated[Ints, "u32[depths]"]
    """The next edge of the lattice to try from there."""
    grown: Annotated[Ints, "i64[ideals]"]
    """The edge of the item that last dominated from an ideal; 0: none."""


def is_plain(p: PricedGraph) -> bool:
    """True if this kernel may stand in for the general one."""
    classes, passes, _ = p.work.shape
    return bool(
        p.comm == SUM
        and passes == 1
        and classes <= 2
        and len(p.row_class) == 1
        and (p.copies == 1).all()
        and np.isinf(p.capacity).all()
        and p.ends[0]
        and not len(p.labels)
    )


@lean
def decide_plain(p, lattice, goal, table, walk, first, budget):  # type: ignore[no-untyped-def]
    """Cover ideals at loads of at most goal.target[0]; arguments and result as of `decide`.

    Once everything is covered it goes on below the largest load of that split: `goal.target` is
    lowered.
    """
    everything = len(lattice.parent) - 1
    plain = _plain_of(p)
    child_ptr, child_item, child_ideal = lattice.child_ptr, lattice.child_item, lattice.child_ideal
    where, child, load, sure, alone = walk.where, walk.child, walk.load, walk.sure, walk.alone
    least, parent, choice, max_load = (
        table.min_devices,
        table.parent,
        table.choice,
        table.max_load,
    )
    rest, weights, cpu_work = p.rest, p.weights, plain.cpu_work
    target, above = goal.target[0], goal.above
    main = len(p.counts) - 1
    payer, spare, most = plain.payer, p.counts[0] if main > 0 else 0, p.counts[main]
    blocks = 0
    for ideal in range(first, everything):
        if blocks >= budget:
            return ideal, blocks
        for s in range(spare + 1):
            if least[everything, s] != NONE and max_load[everything, s] <= target:
                target = goal.target[0] = max_load[everything, s] * (1 - ROUNDING)
        if not is_open(p, lattice, goal, table, walk, ideal):
            continue
        depth = 0
        where[0] = ideal
        child[0] = child_ptr[ideal]
        while depth >= 0:
            edge = child[depth]
            if edge == child_ptr[where[depth] + 1]:
                if depth > 0:
                    _drop(plain, walk, walk.added[depth])
                depth -= 1
                continue
            child[depth] = edge + 1
            v, j = child_item[edge], child_ideal[edge]
            blocks += 1
            _add(plain, walk, depth + 1, v)
            by_cpu = alone[depth] + cpu_work[v] if main > 0 else np.inf
            low, low_cpu = sure[depth + 1] * (1 - ROUNDING), by_cpu * (1 - ROUNDING)
            if low > target and low_cpu > target:
                above[0] = min(above[0], low, low_cpu)
                _drop(plain, walk, v)
                continue
            depth += 1
            where[depth], alone[depth] = j, by_cpu
            e = child_ptr[j + 1]
            while e > child_ptr[j] and child_item[e - 1] > v:
                e -= 1
            child[depth] = e
            # 1: the block is dominated by one with an item more; below 0: not known yet.
            left, left_cpu = -1, -1
            for s in range(spare + 1):
                a = least[ideal, s]
                if a == NONE:
                    continue
                for c in range(main + 1):
                    t, b = s, a + 1
                    if c != main:
                        t, b = s + 1, a
                        if t > spare:
                            continue
                    if b > most or b > least[j, t]:
                        continue
                    amount = load[depth] if c == payer else by_cpu
                    if amount > target:
                        above[0] = min(above[0], amount)
                        continue
                    largest = max(max_load[ideal, s], amount)
                    tie = b == least[j, t] and largest >= max_load[j, t]
                    if tie or largest > target:
                        continue
                    room = weights[main] * (most - b)
                    if main > 0:
                        room += weights[0] * (spare - t)
                    owed = rest[0, j] * (1 - MARGIN)
                    if owed > target * room:
                        if room > 0.0:
                            above[0] = min(above[0], owed / room)
                        continue
                    if c == payer:
                        if left < 0:
                            left = _is_dominated(plain, lattice, goal, walk, depth)
                        if left == 1:
                            continue
                    else:
                        if left_cpu < 0:
                            left_cpu = _is_dominated_on_cpu(plain, lattice, goal, walk, depth)
                        if left_cpu == 1:
                            continue
                    least[j, t] = b
                    parent[j, t] = ideal
                    choice[j, t] = c
                    max_load[j, t] = largest
    return everything + 1, blocks


@inlined
def _plain_of(p):  # type: ignore[no-untyped-def]
    """Select that part."""
    payer = p.row_class[0]
    other = 1 - payer if len(p.counts) == 2 else payer
    return Plain(
        payer,
        p.work[payer, 0],
        p.work[other, 0],
        p.net_cost,
        p.nets,
        p.net_size,
    )


def new_plain_walk(p: PricedGraph, ideals: int) -> PlainWalk:
    """An empty block before a lattice of so many ideals."""
    sizes = {"nets": len(p.net_size), "depths": p.work.shape[2] + 2, "ideals": ideals}
    return scratch(PlainWalk, sizes)


@inlined
def _add(plain, walk, d, v):  # type: ignore[no-untyped-def]
    """Let item v join the block of d - 1 items."""
    paid = walk.load[d - 1] + plain.work[v]
    certain = walk.sure[d - 1] + plain.work[v]
    for i in range(plain.nets.item_ptr[v], plain.nets.item_ptr[v + 1]):
        e = plain.nets.item_net[i]
        count = walk.inside[e] + 1
        walk.inside[e] = count
        if count == 1:
            paid += plain.cost[0, e]
            if walk.before[e] > 0 or plain.nets.always[e]:
                certain += plain.cost[0, e]
        if count == plain.net_size[e] and not plain.nets.always[e]:
            paid -= plain.cost[0, e]
    walk.load[d], walk.sure[d] = paid, certain
    walk.added[d] = v


@part
def _drop(plain, walk, v):  # type: ignore[no-untyped-def]
    """Take item v out of the block's counts."""
    for i in range(plain.nets.item_ptr[v], plain.nets.item_ptr[v + 1]):
        walk.inside[plain.nets.item_net[i]] -= 1


@inlined
def _is_dominated(plain, lattice, goal, walk, d):  # type: ignore[no-untyped-def]
    """1 if the block of d items on an accelerator is dominated by one with an item more, or 0."""
    j = walk.where[d]
    start, count = lattice.child_ptr[j], lattice.child_ptr[j + 1] - lattice.child_ptr[j]
    likely = max(start, walk.grown[j])
    for k in range(likely, likely + count):
        edge = k if k < start + count else k - count
        x = lattice.child_item[edge]
        if _load_with(plain, walk, d, x) <= goal.target[0] and _gain(plain, walk, x) >= 0.0:
            walk.grown[j] = edge
            return 1
    walk.grown[j] = 0
    return 0


@inlined
def _load_with(plain, walk, d, x):  # type: ignore[no-untyped-def]
    """Load of the block of d items and x on an accelerator."""
    load = walk.load[d] + plain.work[x]
    for i in range(plain.nets.item_ptr[x], plain.nets.item_ptr[x + 1]):
        e = plain.nets.item_net[i]
        whole = walk.inside[e] + 1 == plain.net_size[e] and not plain.nets.always[e]
        if walk.inside[e] == 0:
            if not whole:
                load += plain.cost[0, e]
        elif whole:
            load -= plain.cost[0, e]
    return load


@inlined
def _is_dominated_on_cpu(plain, lattice, goal, walk, d):  # type: ignore[no-untyped-def]
    """1 if the block of d items on a CPU is dominated by one with an item more, or 0."""
    j = walk.where[d]
    for edge in range(lattice.child_ptr[j], lattice.child_ptr[j + 1]):
        x = lattice.child_item[edge]
        fits = walk.alone[d] + plain.cpu_work[x] <= goal.target[0]
        if fits and _gain(plain, walk, x) >= 0.0:
            return 1
    return 0


@callee
def _gain(plain, walk, x):  # type: ignore[no-untyped-def]
    """Bound the saving of the block that holds x later, when x moves to the front."""
    gain = plain.work[x]
    for i in range(plain.nets.item_ptr[x], plain.nets.item_ptr[x + 1]):
        e = plain.nets.item_net[i]
        here = walk.before[e] + walk.inside[e]
        if here == 0:
            if plain.net_size[e] > 1:
                gain -= plain.cost[0, e]
        elif here == plain.net_size[e] - 1:
            gain += plain.cost[0, e]
    return gain
