"""What the ideal search for latency walks: ideals, the tasks that live across them, devices.

A split whose blocks do not wait for each other is done in some order of its blocks and of the
items of its pool. What is done grows from ideal to ideal (2020 paper, Fact 5.2), by a block or by
an item in the pool. All that what is to come has to know of an ideal is

- its *way*: how many accelerators of each kind have run a block so far,
- when each of its *live* tasks, those that a task outside reads, is in the memory of the host,
- when the last of its tasks was.

Let `early` be a lower bound of the second and `done` one of the third, over all ways to do the
ideal; and let `late` of a live task and `rest` be lower bounds of the time from when that task is
ready, or from the begin, until all is done, over all ways to do what is left. Each is the least,
element by element, over the blocks and pool items that come next or came last, of what these make
of the values of the ideal on their other side. That is sound, since the end of a block and the way
on from it never fall where what they depend on rises; it may be too low, since the least values of
two tasks may be those of two different splits. A split of less than `target` passes only where

    early + late < target for each live task, done < target and rest < target

so whatever else comes next or came last is left out (`dnnp.core.latency.ideals.sweeps`). Where
nothing is left, no split takes less than `target`.

In place of one least value for each way, a few *labels* may be kept apart, those that none of the
others is below in all values. As long as there is room for all of them, what comes out at the end
is the least latency of all.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dnnp.core.kernels.kernel import plain
from dnnp.core.latency.blocks.items import BlockItems, kind_of_each
from dnnp.core.latency.blocks.state import Fixed
from dnnp.core.latency.ideals.live import live_tasks
from dnnp.core.model.graph import Bools, Floats, Ints
from dnnp.core.split.ideals.lattice import Lattice, make_lattice

MOST_IDEALS = 200_000

MOST_WAYS = 128
"""Mixes of accelerators in use; where there are more, all kinds are counted as one, up to so many
blocks, and beyond that not at all."""


class Net(NamedTuple):
    """`I` ideals as of `Lattice`, `w` ways, `k` kinds of accelerators."""

    child_ptr: Ints
    child_item: Ints
    child_ideal: Ints
    live_ptr: Ints
    live_idx: Ints
    """Live tasks of each ideal (CSR), `l` of them all together."""
    device: Ints
    """i64[k], an accelerator of each kind."""
    capacity: Floats
    """f64[k], bytes."""
    after: Ints
    """i64[w, k], way after a block on that kind; -1: there is none left."""
    under: Bools
    """bool[w, w]: the one way has no more blocks of any kind than the other."""
    slots: int
    """Labels of each way of an ideal, in columns of their own: way v has v * slots and on."""

    @property
    def ideals(self) -> int:
        """Number of ideals."""
        return len(self.child_ptr) - 1

    @property
    def ways(self) -> int:
        """Number of ways."""
        return len(self.after)


class Tables(NamedTuple):
    """Lower bounds, see above; seconds, inf: impossible below the target."""

    early: Floats
    """f64[l, w * slots]."""
    done: Floats
    """f64[I, w * slots]."""
    came: Ints
    """i64[I, w * slots], what came last: (ideal before, column there, 0 or 1 + kind) as a number
    of these digits."""
    late: Floats
    """f64[l, w]."""
    rest: Floats
    """f64[I, w]."""
    merged: Ints
    """i64[1], how many times two labels became one for want of room."""


class Scratch(NamedTuple):
    """What a sweep lays out on the way; `d` items of a block."""

    column: Ints
    """Columns of the ideal that are in use."""
    position: Ints
    """i64[n], where a task is among the live ones of the ideal, or -1."""
    beyond: Ints
    """i64[n], the same for the ideal after it, from its begin in `live_idx`."""
    time: Floats
    """f64[n], ends of the tasks of an item in the pool, then their times to the end of all."""
    value: Floats
    """Of each live task; forwards that of a new label, backwards the time to the end of all."""
    member: Bools
    """bool[c], items of the block."""
    readers: Ints
    """i64[f], items of the block that read a flow."""
    feeds: Ints
    """How many tasks of the block read each live task of the ideal."""
    ideal: Ints
    edge: Ints
    item: Ints
    """i64[d], ideal with the first items of the block, its next child, the item that came last."""
    held: Floats
    """f64[d], bytes."""
    work: Floats
    reads: Floats
    writes: Floats
    """f64[d, k], seconds."""
    start: Floats
    """f64[d, w * slots], when what is read is there, by the place of the column in `column`."""


class Devices(NamedTuple):
    """The accelerators of a net, and how they are counted."""

    kind: Ints
    """i64[a], kind of each accelerator."""
    after: Ints
    under: Bools
    """As in `Net`."""
    used: Ints
    """i64[w], blocks of each way, no more than there are."""


def count_devices(items: BlockItems, most: int) -> Devices:
    """Kinds of accelerators, each of which may run `most` blocks."""
    kind = kind_of_each(items)
    kinds = max(int(kind.max(initial=-1)) + 1, 1)
    counts = [min(most * int((kind == k).sum()), items.count) for k in range(kinds)]
    if np.prod([float(c + 1) for c in counts]) <= MOST_WAYS:
        ways = int(np.prod([c + 1 for c in counts]))
        after = np.full((ways, kinds), -1, dtype=np.int64)
        under = np.ones((ways, ways), dtype=np.bool_)
        total = np.zeros(ways, dtype=np.int64)
        stride = 1
        for k, c in enumerate(counts):
            used = np.arange(ways) // stride % (c + 1)
            under &= used[:, None] <= used
            total += used
            after[used < c, k] = np.flatnonzero(used < c) + stride
            stride *= c + 1
        return Devices(kind, after, under, total)
    most = min(sum(counts), items.count)
    ways = min(most + 1, MOST_WAYS)
    after = np.tile(np.arange(1, ways + 1)[:, None], (1, kinds))
    after[-1] = -1 if ways == most + 1 else ways - 1
    number = np.arange(ways)
    return Devices(kind, after, number[:, None] <= number, number)


def items_lattice(items: BlockItems) -> Lattice | None:
    """Ideals of the items; None: too many."""
    tail = np.repeat(np.arange(items.count), np.diff(items.after_ptr))
    return make_lattice(items.count, tail, items.after_idx, MOST_IDEALS)


def make_net(items: BlockItems, fixed: Fixed, lattice: Lattice, devices: Devices) -> Net:
    """Lay out a lattice with what lives across its ideals, one label for each way."""
    first = np.unique(devices.kind, return_index=True)[1]
    parent, last, *children = plain(*(x.astype(np.int64) for x in lattice))
    live_ptr, live_idx = live_tasks(parent, last, fixed)
    rest = plain(live_ptr, live_idx, first, items.capacity[first], devices.after, devices.under)
    return Net._make([*children, *rest, 1])


def new_tables(net: Net) -> Tables:
    """Tables that leave nothing out."""
    live, columns = len(net.live_idx), net.ways * net.slots
    return Tables(
        early=np.zeros((live, columns)),
        done=np.zeros((net.ideals, columns)),
        came=np.zeros((net.ideals, columns), np.int64),
        late=np.zeros((live, net.ways)),
        rest=np.zeros((net.ideals, net.ways)),
        merged=np.zeros(1, np.int64),
    )


def new_scratch(fixed: Fixed, net: Net) -> Scratch:
    """Room for a sweep."""
    tasks, items, columns = len(fixed.label), len(fixed.memory), net.ways * net.slots
    width = int(np.diff(net.live_ptr).max(initial=0)) + 1
    deep, kinds = items + 1, net.after.shape[1]
    return Scratch(
        column=np.zeros(columns, np.int64),
        position=np.full(tasks, -1, np.int64),
        beyond=np.full(tasks, -1, np.int64),
        time=np.zeros(tasks),
        value=np.zeros(width),
        member=np.zeros(items, np.bool_),
        readers=np.zeros(len(fixed.maker), np.int64),
        feeds=np.zeros(width, np.int64),
        ideal=np.zeros(deep, np.int64),
        edge=np.zeros(deep, np.int64),
        item=np.zeros(deep, np.int64),
        held=np.zeros(deep),
        work=np.zeros((deep, kinds)),
        reads=np.zeros((deep, kinds)),
        writes=np.zeros((deep, kinds)),
        start=np.zeros((deep, columns)),
    )
