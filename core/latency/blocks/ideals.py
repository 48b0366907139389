"""The exact search for the latency of blocks, over order ideals.

A split whose blocks do not wait for each other runs its blocks and the items of its pool in some
order. The set of finished items grows from ideal to ideal (2020 paper, Fact 5.2), by a block or by
an item of the pool. The state of an ideal is

- its *way*: how many accelerators of each kind have run a block so far,
- when each of its *live* tasks, those with readers outside, is in the memory of the host,
- when the last of its tasks was.

Let `early` be a lower bound of the second and `done` one of the third, over all ways to run the
ideal; and let `late` of a live task and `rest` be lower bounds of the time from when that task is
ready, or from the begin, until all is done, over all ways to run the other items. Each is the
elementwise minimum over the next, or last, blocks and pool items, computed from the values of the
ideal on their other side. That is sound, since the end of a block and the time from it on are
monotone in these values; it may be too low, since the minima of two tasks may be those of two
different splits. A split of less than `target` exists only where

    early + late < target for each live task, done < target and rest < target

so all other transitions are pruned (`dnnp.core.latency.blocks.sweeps`). Where none is left, no
split takes less than `target`.

In place of one minimum for each way, a few *labels* may be kept, of which none is dominated. Unless
their number reaches the label limit, the result is the least latency of all.

Where there are many ideals, searches over chains of items (`dnnp.core.latency.blocks.chains`) come
first, from few ideals to many: they find good splits, and their `late` and `rest` hold for the
next search.

The 2020 paper has an integer program for this (Section 4, Fig. 3 and 4); its order ideals (Section
5.1.1) serve throughput there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from dnnp.core.cost.latency import POOL, Invocations, LatencyProblem, SearchProof
from dnnp.core.cost.load_formula import ROUNDING
from dnnp.core.kernels.kernel import plain
from dnnp.core.latency.blocks.bound import MOST_ITEMS, SolvedPaths, solve_paths, times_left
from dnnp.core.latency.blocks.chains import Chains, Tails, contract_chains, joins_of, no_tails
from dnnp.core.latency.blocks.items import BlockItems, block_items, kind_of_each
from dnnp.core.latency.blocks.sweeps import late_by_readers, live_tasks, sweep
from dnnp.core.latency.depth_first import valid_latency
from dnnp.core.model.graph import Bools, Floats, Ints
from dnnp.core.model.plan import CLOSED
from dnnp.core.model.search_context import PLAIN, SearchContext
from dnnp.core.split.ideals.lattice import Lattice, make_lattice

MOST_IDEALS = 200_000

MOST_WAYS = 128
"""Mixes of accelerators in use; where there are more, all kinds are counted as one, up to so many
blocks, and beyond that not at all."""

BOUND = "ideals of blocks"
"""Name of the bound in plans."""

MOST_VALUES = 30_000_000
"""Numbers in the tables of a search, 8 bytes each."""

LADDER, FINER = (1000, 3000, 10_000), 2
"""Most ideals of the searches over chains, where those of the items are so many times more."""

MOST_BLOCKS = 100_000_000
"""Blocks tried at effort 1, in all sweeps together; some 0.4 us each."""

CHUNK = 1_000_000
"""Blocks between looks at the clock."""

LABELS = (4, 16, 64)
"""Labels that a way gets, one after the other, where one does not suffice."""

FEWER = 0.9
"""Share of the ways of all ideals that are left, below which the same sweeps are worth again."""


class IdealNet(NamedTuple):
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
    kind: Ints
    """i64[a], kind of each accelerator."""
    used: Ints
    """i64[w], blocks of each way, no more than there are."""
    tail_time: Floats
    tail_memory: Floats
    """f64[k, c], seconds, and f64[c], bytes: more of an item in a block with a reader of it."""
    pool_only: Bools
    """bool[n]: readers in blocks do not wait for the task; see `chains.Tails`."""
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
    """i64[1], number of labels merged because the label limit was reached."""


class Scratch(NamedTuple):
    """Scratch arrays of a sweep; `d` items of a block."""

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
    """Tasks of the block that read each live task of the ideal."""
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


def count_devices(items: BlockItems) -> tuple[Ints, Bools, Ints, Ints]:
    """Kinds of accelerators and their mixes: `after`, `under`, `kind`, `used` of `IdealNet`."""
    kind = kind_of_each(items)
    kinds = max(int(kind.max(initial=-1)) + 1, 1)
    most = len(items.slot_late) // max(len(items.devices), 1)
    counts = [min(most * int((kind == k).sum()), items.size) for k in range(kinds)]
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
        return after, under, kind, total
    most = min(sum(counts), items.size)
    ways = min(most + 1, MOST_WAYS)
    after = np.tile(np.arange(1, ways + 1)[:, None], (1, kinds))
    after[-1] = -1 if ways == most + 1 else ways - 1
    number = np.arange(ways)
    return after, number[:, None] <= number, kind, number


def items_lattice(items: BlockItems) -> Lattice | None:
    """Ideals of the items; None: too many."""
    tail = np.repeat(np.arange(items.size), np.diff(items.after_ptr))
    return make_lattice(items.size, tail, items.after_idx, MOST_IDEALS)


def make_net(
    items: BlockItems,
    lattice: Lattice,
    tails: Tails | None = None,
    whole: BlockItems | None = None,
) -> IdealNet:
    """Lay out a lattice with what lives across its ideals, one label for each way.

    `whole`: items that `items` contract, which tell the accelerators apart.
    """
    tails = tails or no_tails(items)
    after, under, kind, used = count_devices(whole or items)
    first = np.unique(kind, return_index=True)[1]
    parent, last, *children = plain(*(x.astype(np.int64) for x in lattice))
    live_ptr, live_idx = live_tasks(parent, last, items)
    capacity = items.capacity[first]
    rest = plain(live_ptr, live_idx, first, capacity, after, under, kind, used)
    free = plain(tails.time[first], tails.memory, tails.pool_only)
    return IdealNet._make([*children, *rest, *free, 1])


def new_tables(net: IdealNet) -> Tables:
    """Tables that prune nothing."""
    live, columns = len(net.live_idx), net.ways * net.slots
    return Tables(
        early=np.zeros((live, columns)),
        done=np.zeros((net.ideals, columns)),
        came=np.zeros((net.ideals, columns), np.int64),
        late=np.zeros((live, net.ways)),
        rest=np.zeros((net.ideals, net.ways)),
        merged=np.zeros(1, np.int64),
    )


def new_scratch(items: BlockItems, net: IdealNet) -> Scratch:
    """Scratch arrays of a sweep."""
    tasks, count, columns = len(items.label), len(items.memory), net.ways * net.slots
    width = int(np.diff(net.live_ptr).max(initial=0)) + 1
    deep, kinds = count + 1, net.after.shape[1]
    return Scratch(
        column=np.zeros(columns, np.int64),
        position=np.full(tasks, -1, np.int64),
        beyond=np.full(tasks, -1, np.int64),
        time=np.zeros(tasks),
        value=np.zeros(width),
        member=np.zeros(count, np.bool_),
        readers=np.zeros(len(items.maker), np.int64),
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


def ideal_latency(
    problem: LatencyProblem,
    *,
    upper: float = np.inf,
    paths: SolvedPaths | None = None,
    run: SearchContext = PLAIN,
) -> SearchProof:
    """Prove that no split takes less than a known one, or find one that does.

    Exact where each accelerator runs one block, of one pass. Invocations again, and devices that
    tasks of both passes must share, are relaxed: their blocks may run anywhere, at any time, and
    each has the memory of a device for itself. So the bound holds for them, too.

    `upper`: latency of a known split, if any; `paths`: those of the problem, if they are known.
    A stop or a limit leaves a weaker bound.
    """
    items = block_items(problem)
    if not items.size or run.stop():
        return SearchProof(more=items.size > 0)
    ladder = _Ladder(problem, items, run, upper, paths)
    lattice = items_lattice(items)
    for most in LADDER:
        if items.size <= MOST_ITEMS and FINER * most <= (
            MOST_IDEALS if lattice is None else lattice.size
        ):
            ladder.search_chains(most)
    if lattice is None:
        ladder.reason = ladder.reason or "there are too many ideals"
    elif not ladder.ended:
        ladder.search(items, lattice)
    bound = min(ladder.bound * (1 - ROUNDING), ladder.value)
    return SearchProof(bound, ladder.best, ladder.reason, ladder.stopped)


@dataclass(eq=False)
class _Ladder:
    """Searches from few ideals to many, and their best split and bound."""

    problem: LatencyProblem
    items: BlockItems
    run: SearchContext
    value: float
    """Least latency known."""
    paths: SolvedPaths | None
    bound: float = 0.0
    best: Invocations | None = None
    reason: str = ""
    stopped: bool = False
    blocks: int = 0
    """Tried so far."""
    lower: _Search | None = None
    """The last search over relaxed splits."""

    @property
    def ended(self) -> bool:
        """True if the bound is met, or a limit was reached."""
        return self.stopped or self.bound >= self.value * (1 - CLOSED)

    def search_chains(self, most: int) -> None:
        """Search over chains with at most `most` ideals: restricted splits, then relaxed ones."""
        joined = None if self.ended else joins_of(self.items, most)
        if joined is None:
            return
        chains = contract_chains(self.problem, self.items, joined)
        lattice = items_lattice(chains.items)
        if lattice is not None:
            self.search(chains.items, lattice, chains)
            if not self.ended:
                self.search(chains.relaxed, lattice, chains)

    def search(self, items: BlockItems, lattice: Lattice, chains: Chains | None = None) -> None:
        """Search over one lattice, from the bounds of the last relaxed search."""
        restricted = chains is not None and items is chains.items
        tails = None if chains is None or restricted else chains.tails
        net = make_net(items, lattice, tails, self.items)
        if _values(net) > MOST_VALUES:
            self.reason = f"{lattice.size} ideals take too much memory"
            return
        run = self.run.without_bounds() if restricted else self.run
        search = _Search(self.problem, items, lattice, net, self.value, run, self.bound)
        search.blocks = self.blocks
        search.init_late_bounds(self.paths if chains is None else None)
        if self.lower is not None:
            search.lift(self.lower)
        search.refine()
        self.value, self.best = search.value, search.best or self.best
        self.blocks, self.stopped = search.blocks, search.stopped
        self.reason = search.reason if chains is None or search.stopped else ""
        if not restricted:
            self.bound = max(self.bound, min(search.bound, search.value))
            self.lower = search
            if chains is not None:
                search.head = chains.head


def _values(net: IdealNet) -> int:
    """Numbers in the tables of a net."""
    return (len(net.live_idx) + 2 * net.ideals) * len(net.after) * net.slots


@dataclass(eq=False)
class _Search:
    """State of a search."""

    problem: LatencyProblem
    items: BlockItems
    lattice: Lattice
    net: IdealNet
    value: float
    """Least latency known."""
    run: SearchContext
    bound: float = 0.0
    best: Invocations | None = None
    reason: str = ""
    stopped: bool = False
    """A limit was reached."""
    at: int = 0
    """The ideal at which it stopped."""
    head: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """First task of the chain of each task, if items are chains."""
    blocks: int = 0
    """Tried so far."""
    tables: Tables = field(init=False)
    """With one label for each way."""
    scratch: Scratch = field(init=False)

    def __post_init__(self) -> None:
        self.tables = new_tables(self.net)
        self.scratch = new_scratch(self.items, self.net)

    @property
    def target(self) -> float:
        """Only splits below it are of interest."""
        return self.value * (1 - CLOSED / 2)

    def init_late_bounds(self, paths: SolvedPaths | None = None) -> None:
        """Raise `late` by adversarial paths, so that the first sweep can prune."""
        if self.items.size > MOST_ITEMS:
            return
        if paths is None:
            pool = np.where(self.net.pool_only, 0.0, self.items.pool)
            paths = solve_paths(self.items._replace(pool=pool), self.run.alone())
        if paths.ended:
            parent, last = plain(
                *(x.astype(np.int64) for x in (self.lattice.parent, self.lattice.last))
            )
            used = np.minimum(self.net.used, 0 if paths.loose else paths.most)
            left = times_left(self.items, paths)
            left[np.repeat(self.net.pool_only, np.diff(self.items.task_after_ptr))] = 0.0
            late_by_readers(parent, last, self.items, self.net, left, used, self.tables.late)

    def lift(self, coarse: _Search) -> None:
        """Raise `late` and `rest` by those of a search over longer chains."""
        net, other = self.net, coarse.net
        at, count = _coarse_ideals(self, coarse), len(self.items.label)
        # Blocks of tails alone are no blocks there: there may be fewer.
        rest, late = (
            np.stack([x[:, other.under[:, way]].min(axis=1) for way in range(net.ways)], axis=1)
            for x in (coarse.tables.rest, coarse.tables.late)
        )
        np.maximum(self.tables.rest, rest[at], out=self.tables.rest)
        keys = np.repeat(np.arange(other.ideals), np.diff(other.live_ptr)) * count + other.live_idx
        rank = np.argsort(keys)
        first = at[np.repeat(np.arange(net.ideals), np.diff(net.live_ptr))] * count
        task, all_wait = net.live_idx, ~net.pool_only[net.live_idx]
        for key, holds in (
            (first + task, all_wait | other.pool_only[task]),
            (first + coarse.head[task], all_wait),
        ):
            place = rank[np.minimum(np.searchsorted(keys[rank], key), len(keys) - 1)]
            found = np.flatnonzero((keys[place] == key) & holds)
            self.tables.late[found] = np.maximum(self.tables.late[found], late[place[found]])

    def refine(self) -> None:
        """Sweep both ways as long as that prunes more, then allow more labels."""
        left = np.inf
        while True:
            known = self.value
            if self.sweep_forward(self.net, self.tables) or self.sweep_backward():
                return
            before, left = left, float((self.tables.rest < np.inf).sum())
            if left >= FEWER * before and self.value >= known:
                break
        for slots in LABELS:
            net = self.net._replace(slots=slots)
            if _values(net) > MOST_VALUES:
                break
            tables = new_tables(net)._replace(late=self.tables.late, rest=self.tables.rest)
            self.scratch = new_scratch(self.items, net)
            if self.sweep_forward(net, tables):
                return
        self.reason = "more labels are needed than there is room for"

    def sweep_forward(self, net: IdealNet, tables: Tables) -> bool:
        """Sweep forwards; True: solved, or a limit was reached."""
        for table in (tables.early, tables.done):
            table.fill(np.inf)
        tables.done[0, 0] = 0.0
        tables.came.fill(0)
        tables.merged[0] = 0
        if not self.sweep_all(net, tables, 0, forward=True):
            self.bound = max(self.bound, min(_least_on(net, tables, self.at), self.target))
            return True
        last = tables.done[-1]
        if not last.min() < self.target:
            self.bound = max(self.bound, self.target)
            return True
        self.bound = max(self.bound, float(last.min()))
        self.offer(_traced(self, net, tables))
        self.run.report_progress(value=self.value, bound=min(self.bound, self.value), by=BOUND)
        return not tables.merged[0] or self.bound >= self.target

    def sweep_backward(self) -> bool:
        """Sweep backwards; True: solved, or a limit was reached."""
        tables = self.tables
        late, rest = tables.late.copy(), tables.rest.copy()
        for table in (tables.late, tables.rest):
            table.fill(np.inf)
        tables.rest[-1] = 0.0
        if not self.sweep_all(self.net, tables, self.net.ideals - 2, forward=False):
            tables.late[:], tables.rest[:] = late, rest
            return True
        # What an earlier sweep proved holds where this one had to give less.
        np.maximum(tables.late, late, out=tables.late)
        np.maximum(tables.rest, rest, out=tables.rest)
        self.bound = max(self.bound, min(float(tables.rest[0, 0]), self.target))
        self.run.report_progress(bound=min(self.bound, self.value), by=BOUND)
        return self.bound >= self.target

    def sweep_all(self, net: IdealNet, tables: Tables, at: int, *, forward: bool) -> bool:
        """Sweep through all ideals; False: a limit was reached before."""
        while 0 <= at < net.ideals - forward:
            if self.blocks > MOST_BLOCKS * self.run.effort:
                self.reason = f"{self.blocks} blocks were tried, more than this effort is for"
            if self.reason or self.run.stop():
                self.stopped = True
                self.at = at
                return False
            at, tried = sweep(
                self.items, net, tables, self.scratch, self.target, at, forward, CHUNK
            )
            self.blocks += int(tried)
            self.run.report_progress(share=min(self.blocks / (MOST_BLOCKS * self.run.effort), 1.0))
        return True

    def offer(self, split: Invocations) -> None:
        """Keep a split that is valid and better than the incumbent."""
        value = valid_latency(self.problem, split)
        if value < self.target:
            self.value, self.best = value, split
            self.run.report_incumbent(split, value, "ideal")


def _coarse_ideals(fine: _Search, coarse: _Search) -> Ints:
    """Ideal of the chains whose first items are in each ideal; i64[I]."""
    items, net = coarse.items, coarse.net
    first = fine.items.member_idx[fine.items.member_ptr[:-1]]
    chain = np.where(coarse.head[first] == first, items.label[first], -1).tolist()
    child = [
        dict(zip(net.child_item[a:b].tolist(), net.child_ideal[a:b].tolist(), strict=True))
        for a, b in zip(net.child_ptr[:-1].tolist(), net.child_ptr[1:].tolist(), strict=True)
    ]
    at = [0] * fine.lattice.size
    lasts, parents = fine.lattice.last.tolist(), fine.lattice.parent.tolist()
    for ideal in range(1, len(at)):
        before, i = at[parents[ideal]], chain[lasts[ideal]]
        at[ideal] = before if i < 0 else child[before][i]
    return np.array(at, dtype=np.int64)


def _least_on(net: IdealNet, tables: Tables, at: int) -> float:
    """Least latency of the splits that a forward sweep up to ideal `at` did not prune.

    Each passes some ideal from `at` on that was reached from an earlier one.
    """
    least = np.maximum(tables.done[at:], np.repeat(tables.rest[at:], net.slots, axis=1))
    begin = net.live_ptr[at]
    on = tables.early[begin:] + np.repeat(tables.late[begin:], net.slots, axis=1)
    ideal = np.repeat(np.arange(len(least)), np.diff(net.live_ptr[at:]))
    np.maximum.at(least, ideal, on)
    return float(least.min())


def _traced(search: _Search, net: IdealNet, tables: Tables) -> Invocations:
    """The split that the best label of all items stands for, devices of a kind in turn."""
    items, columns, ways = search.items, tables.done.shape[1], len(net.device) + 1
    block = np.full(items.size, POOL, dtype=np.int64)
    kinds: list[int] = []
    at, column = net.ideals - 1, int(tables.done[-1].argmin())
    while at > 0:
        before, how = divmod(int(tables.came[at, column]), ways)
        before, column = divmod(before, columns)
        if how:
            mine = set(search.lattice.members(at)) - set(search.lattice.members(before))
            block[sorted(mine)] = len(kinds)
            kinds.append(how - 1)
        at = before
    last = len(kinds) - 1
    block[block != POOL] = last - block[block != POOL]
    used = [0] * (len(net.device) + 1)
    devices = []
    for k in reversed(kinds):
        these = items.devices[net.kind == k]
        devices.append(int(these[used[k] % len(these)]))
        used[k] += 1
    return Invocations(np.array(devices, dtype=np.int64), block[items.label])
