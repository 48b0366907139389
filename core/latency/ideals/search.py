"""The exact search for the latency of blocks, over order ideals.

What is searched, and why it proves what it does, stands in `dnnp.core.latency.ideals.net`. The
2020 paper has an integer program for this (Section 4, Fig. 3 and 4); its order ideals (Section
5.1.1) serve throughput there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from dnnp.core.cost.latency import POOL, Invocations, LatencyProblem
from dnnp.core.cost.load_formula import ROUNDING
from dnnp.core.kernels.kernel import plain
from dnnp.core.latency.blocks.anneal import judge
from dnnp.core.latency.blocks.bound import MOST_ITEMS, play, times_left
from dnnp.core.latency.blocks.items import BlockItems, block_items
from dnnp.core.latency.blocks.state import Fixed, fixed_of
from dnnp.core.latency.ideals.live import late_by_readers
from dnnp.core.latency.ideals.net import (
    Devices,
    Net,
    Scratch,
    Tables,
    count_devices,
    items_lattice,
    make_net,
    new_scratch,
    new_tables,
)
from dnnp.core.latency.ideals.sweeps import sweep
from dnnp.core.model.plan import CLOSED
from dnnp.core.model.search_context import PLAIN, Run
from dnnp.core.split.ideals.lattice import Lattice

ARGUMENT = "ideals of blocks"
"""What plans call the bound."""

MOST_VALUES = 30_000_000
"""Numbers in the tables of a search, 8 bytes each."""

MOST_BLOCKS = 100_000_000
"""Blocks tried at effort 1, in all sweeps together; some 0.4 us each."""

CHUNK = 1_000_000
"""Blocks between looks at the clock."""

LABELS = (4, 16, 64)
"""Labels that a way gets, one after the other, where one does not suffice."""

FEWER = 0.9
"""Share of the ways of all ideals that are left, below which the same sweeps are worth again."""


class IdealProof(NamedTuple):
    """What the search found out."""

    bound: float = 0.0
    """No split takes less; inf: none fits."""
    split: Invocations | None = None
    """A split that takes less than the one that was known."""
    reason: str = ""
    """Why it ended before it was done, unless time was over; empty: it was done."""
    more: bool = False
    """Whether more effort or time would get further."""


def ideal_latency(
    problem: LatencyProblem, *, upper: float = np.inf, run: Run = PLAIN
) -> IdealProof:
    """Prove that no split takes less than a known one, or find one that does.

    Exact where each accelerator runs one block, of one pass. Invocations again, and devices that
    tasks of both passes must share, are relaxed: their blocks may run anywhere, at any time, and
    each has the memory of a device for itself. So the bound holds for them, too.

    `upper`: latency of a known split, if any. A stop or a limit leaves a weaker bound.
    """
    items = block_items(problem)
    if not items.count or run.stop():
        return IdealProof(more=items.count > 0)
    lattice = items_lattice(items)
    if lattice is None:
        return IdealProof(reason="there are too many ideals")
    fixed = fixed_of(items, problem.options.invocations)
    devices = count_devices(items, len(fixed.slot_late) // max(len(items.devices), 1))
    net = make_net(items, fixed, lattice, devices)
    if _values(net) > MOST_VALUES:
        return IdealProof(reason=f"{lattice.size} ideals take too much memory")
    search = _Search(problem, items, fixed, lattice, devices, net, upper, run)
    search.look_ahead()
    search.refine()
    bound = min(search.bound * (1 - ROUNDING), search.value)
    return IdealProof(bound, search.best, search.reason, search.stopped)


def _values(net: Net) -> int:
    """Numbers in the tables of a net."""
    return (len(net.live_idx) + 2 * net.ideals) * len(net.after) * net.slots


@dataclass(eq=False)
class _Search:
    """A search on its way."""

    problem: LatencyProblem
    items: BlockItems
    fixed: Fixed
    lattice: Lattice
    devices: Devices
    net: Net
    value: float
    """Least latency known."""
    run: Run
    bound: float = 0.0
    best: Invocations | None = None
    reason: str = ""
    stopped: bool = False
    """A limit came."""
    at: int = 0
    """The ideal from which it would have gone on then."""
    blocks: int = 0
    """Tried so far."""
    tables: Tables = field(init=False)
    """With one label for each way."""
    scratch: Scratch = field(init=False)

    def __post_init__(self) -> None:
        self.tables = new_tables(self.net)
        self.scratch = new_scratch(self.fixed, self.net)

    @property
    def target(self) -> float:
        """Splits below it are looked for."""
        return self.value * (1 - CLOSED / 2)

    def look_ahead(self) -> None:
        """Raise `late` by the path game, so that the first sweep has something to leave out."""
        if self.items.count > MOST_ITEMS:
            return
        played = play(self.items, self.fixed, self.run.alone())
        if played.ended:
            parent, last = plain(
                *(x.astype(np.int64) for x in (self.lattice.parent, self.lattice.last))
            )
            used = np.minimum(self.devices.used, 0 if played.loose else played.most)
            left = times_left(self.items, played)
            late_by_readers(parent, last, self.fixed, self.net, left, used, self.tables.late)

    def refine(self) -> None:
        """Sweep both ways as long as that leaves more and more out, then keep more labels."""
        left = np.inf
        while True:
            known = self.value
            if self.decided(self.net, self.tables) or self.swept_back():
                return
            before, left = left, float((self.tables.rest < np.inf).sum())
            if left >= FEWER * before and self.value >= known:
                break
        for slots in LABELS:
            net = self.net._replace(slots=slots)
            if _values(net) > MOST_VALUES:
                break
            tables = new_tables(net)._replace(late=self.tables.late, rest=self.tables.rest)
            self.scratch = new_scratch(self.fixed, net)
            if self.decided(net, tables):
                return
        self.reason = "more labels are needed than there is room for"

    def decided(self, net: Net, tables: Tables) -> bool:
        """Sweep forwards; whether all is known then, or a limit came."""
        for table in (tables.early, tables.done):
            table.fill(np.inf)
        tables.done[0, 0] = 0.0
        tables.came.fill(0)
        tables.merged[0] = 0
        if not self.swept(net, tables, 0, forward=True):
            self.bound = max(self.bound, min(_least_on(net, tables, self.at), self.target))
            return True
        last = tables.done[-1]
        if not last.min() < self.target:
            self.bound = max(self.bound, self.target)
            return True
        self.bound = max(self.bound, float(last.min()))
        self.offer(_traced(self, net, tables))
        self.run.stands(value=self.value, bound=min(self.bound, self.value), by=ARGUMENT)
        return not tables.merged[0] or self.bound >= self.target

    def swept_back(self) -> bool:
        """Sweep backwards; whether all is known then, or a limit came."""
        tables = self.tables
        late, rest = tables.late.copy(), tables.rest.copy()
        for table in (tables.late, tables.rest):
            table.fill(np.inf)
        tables.rest[-1] = 0.0
        if not self.swept(self.net, tables, self.net.ideals - 2, forward=False):
            tables.late[:], tables.rest[:] = late, rest
            return True
        self.bound = max(self.bound, min(float(tables.rest[0, 0]), self.target))
        self.run.stands(bound=min(self.bound, self.value), by=ARGUMENT)
        return self.bound >= self.target

    def swept(self, net: Net, tables: Tables, at: int, *, forward: bool) -> bool:
        """Sweep through all ideals; False: a limit came before."""
        while 0 <= at < net.ideals - forward:
            if self.blocks > MOST_BLOCKS * self.run.effort:
                self.reason = f"{self.blocks} blocks were tried, more than this effort is for"
            if self.reason or self.run.stop():
                self.stopped = True
                self.at = at
                return False
            at, tried = sweep(
                self.fixed, net, tables, self.scratch, self.target, at, forward, CHUNK
            )
            self.blocks += int(tried)
        return True

    def offer(self, split: Invocations) -> None:
        """Keep a split that is valid and better than what is known."""
        value = judge(self.problem, split)
        if value < self.target:
            self.value, self.best = value, split
            self.run.keep(split, value, "ideal")


def _least_on(net: Net, tables: Tables, at: int) -> float:
    """What a split takes at least that a sweep forwards up to ideal `at` did not leave out.

    Each goes through some ideal from there on to which it came from one before.
    """
    least = np.maximum(tables.done[at:], np.repeat(tables.rest[at:], net.slots, axis=1))
    begin = net.live_ptr[at]
    on = tables.early[begin:] + np.repeat(tables.late[begin:], net.slots, axis=1)
    ideal = np.repeat(np.arange(len(least)), np.diff(net.live_ptr[at:]))
    np.maximum.at(least, ideal, on)
    return float(least.min())


def _traced(search: _Search, net: Net, tables: Tables) -> Invocations:
    """The split that the best label of all items stands for, devices of a kind in turn."""
    items, columns, ways = search.items, tables.done.shape[1], len(net.device) + 1
    block = np.full(items.count, POOL, dtype=np.int64)
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
        these = items.devices[search.devices.kind == k]
        devices.append(int(these[used[k] % len(these)]))
        used[k] += 1
    return Invocations(np.array(devices, dtype=np.int64), block[items.label])
