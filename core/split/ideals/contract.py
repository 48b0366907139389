"""Contractions that lose no optimum: smaller graphs for the exact search.

Item x is contracted into y when, from any ordered split, moving x into the block of y raises no
load and keeps the order. That holds when

- y is the only immediate successor of x (all others are reachable from y), or the only
  immediate predecessor: then no block order changes, because x's other neighbours stand on
  x's side of y;
- y runs nowhere that x cannot;
- work(x) + rest <= bind on every accelerator class, where `bind` is the cost of the nets with
  the pins {x, y} and `rest` that of x's nets without y. The block that gains x pays at most
  work + rest - bind more, the one that loses it at most rest - work - bind more; a net with
  both x and y among its pins was cut before, so it can only get cheaper;
- a CPU that might hold y pays nothing for x;
- memory does not bind, or x needs none, and x has no weights that replicas would synchronise.

With transfers that overlap compute, x must have no work; with duplex transfers no `rest` either,
because the two directions are not exchangeable.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from dnnp.core.cost.items import Items, LinearizedItems, ordered_items
from dnnp.core.model.graph import Ints, strong
from dnnp.core.model.plan import CostOptions

MOST_ITEMS = 20_000
"""Items up to which contraction is tried; reachability takes items^2 / 8 bytes."""


def contract_items(
    line: LinearizedItems,
    items: Items,
    order: Ints,
    options: CostOptions,
    *,
    below: float,
    binding: bool,
    weighty: np.ndarray,
) -> Items:
    """Contract the items of `line` (laid out in `order`) as long as it is safe.

    Parameters
    ----------
    below
        Only stages with a smaller load, before replicas share it, matter: what takes that long
        on a CPU never runs there.
    binding
        Whether some block could need more memory than a device has.
    weighty
        bool[n], positions whose weights replicas synchronise.
    """
    if line.n > MOST_ITEMS or line.n < 2:
        return items
    into = _Contraction(line, options, below, binding, weighty).run()
    return _relabelled(line, items, order, into)


def chained(line: LinearizedItems, items: Items, order: Ints, share: float) -> Items:
    """Contract chains, each link the only way on, to at most `share` of the work of a class.

    Not safe: a split that cuts a chain is lost.
    """
    work = np.where(np.isfinite(line.work), line.work, 0.0)
    work = (work / np.maximum(work.sum(axis=1, keepdims=True), 1e-300)).max(axis=0)
    outs, ins = np.bincount(line.tail, minlength=line.n), np.bincount(line.head, minlength=line.n)
    into = np.arange(line.n)
    held = work.copy()
    for u, v in sorted(zip(line.tail.tolist(), line.head.tolist(), strict=True)):
        first = into[u]
        if outs[u] == 1 and ins[v] == 1 and held[first] + work[v] <= share:
            into[v] = first
            held[first] += work[v]
    return _relabelled(line, items, order, into)


def _relabelled(line: LinearizedItems, items: Items, order: Ints, into: Ints) -> Items:
    """Items where position v of the line has become part of `into[v]`."""
    place = np.argsort(order)
    kept, compact = np.unique(into, return_inverse=True)
    tail, head = compact[line.tail], compact[line.head]
    return ordered_items(compact[place[items.label]], len(kept), tail, head)


def contract_near(
    line: LinearizedItems, options: CostOptions
) -> tuple[Ints, list[tuple[int, int]]]:
    """Contract items into the only one right behind them, or the only one right before.

    For accelerators without capacities and replicas. Linear, but for the nets that are moved:
    neighbours that stand behind one another are not looked for. Returns what each item has become
    part of, i64[n], and the steps on the way: (x, y), x into y.
    """
    never = np.zeros(line.n, dtype=np.bool_)
    contraction = _Contraction(line, options, np.inf, False, never, far=False)
    return contraction.run(), contraction.steps


class _Contraction:
    """Worklist over the items of a line; `into[v]` is the item that v has become part of."""

    def __init__(
        self,
        line: LinearizedItems,
        options: CostOptions,
        below: float,
        binding: bool,
        weighty: np.ndarray,
        *,
        far: bool = True,
    ) -> None:
        n = line.n
        self.comm = options.comm
        self.below = below
        # Rows: pairs of an accelerator class and a pass. Only `gpipe` tells the passes apart.
        passes = line.passes(options)
        accelerators = [c for c, d in enumerate(line.devices) if not d.is_cpu]
        cpus = [c for c, d in enumerate(line.devices) if d.is_cpu]
        # Lists: to index an array takes longer than what is done with most of these numbers.
        work = [work[c] for work, _ in passes for c in accelerators]
        self.work = [np.where(np.isfinite(w), w, 0.0).tolist() for w in work]
        cost = [np.where(nets, line.cost[c], 0.0) for _, nets in passes for c in accelerators]
        self.cost = [row.tolist() for row in cost]
        self.cpu_work = line.work[cpus].tolist()
        absent = np.packbits(~np.isfinite(line.work), axis=0).T
        self.unsupported = [int.from_bytes(classes) for classes in absent.tolist()]
        heavy = weighty.copy()
        if binding:
            heavy |= line.memory > 0 if options.memory_model == "sum" else True
        self.fixed = heavy.tolist()
        ptr, pins = line.nets.net_ptr.tolist(), line.nets.pins.tolist()
        self.pins = [set(pins[a:b]) for a, b in pairwise(ptr)]
        self.always = line.nets.always.tolist()
        self.nets: list[set[int]] = [set() for _ in range(n)]
        for e, ends in enumerate(self.pins):
            for v in ends:
                self.nets[v].add(e)
        self.succ: list[set[int]] = [set() for _ in range(n)]
        self.pred: list[set[int]] = [set() for _ in range(n)]
        for u, v in zip(line.tail.tolist(), line.head.tolist(), strict=True):
            self.succ[u].add(v)
            self.pred[v].add(u)
        # Contraction leaves what is reachable from the items that remain as it was.
        self.reach = [0] * n
        for u in range(n - 1, -1, -1) if far else ():
            bits = 0
            for v in self.succ[u]:
                bits |= self.reach[v] | 1 << v
            self.reach[u] = bits
        self.into = [*range(n)]
        self.steps: list[tuple[int, int]] = []

    def run(self) -> Ints:
        """Contract to a fixpoint; i64[n]."""
        waiting = list(range(len(self.into) - 1, -1, -1))
        queued = [True] * len(waiting)
        while waiting:
            x = waiting.pop()
            queued[x] = False
            if self.into[x] != x or self.fixed[x]:
                continue
            y = next((y for y in self._anchors(x) if self._safe(x, y)), -1)
            if y < 0:
                continue
            around = self.succ[x] | self.pred[x] | self.succ[y] | self.pred[y] | {y}
            self._merge(x, y)
            for v in sorted(around - {x}):
                if not queued[v]:
                    queued[v] = True
                    waiting.append(v)
        for v in range(len(self.into)):
            root = v
            while self.into[root] != root:
                root = self.into[root]
            self.into[v] = root
        return np.array(self.into, dtype=np.int64)

    def _anchors(self, x: int) -> Iterator[int]:
        """The only immediate successor and the only immediate predecessor, where they exist."""
        after, before, reach = self.succ[x], self.pred[x], self.reach
        if after:
            y = min(after)
            if len(after) == 1 or all(w == y or reach[y] >> w & 1 for w in after):
                yield y
        if before:
            y = max(before)
            if len(before) == 1 or all(w == y or reach[w] >> y & 1 for w in before):
                yield y

    def _safe(self, x: int, y: int) -> bool:
        """True if x may follow y wherever y goes; see the module's conditions."""
        if self.unsupported[x] & ~self.unsupported[y]:
            return False
        for work in self.cpu_work:
            if work[x] > 0 and work[y] < self.below:
                return False
        for work, cost in zip(self.work, self.cost, strict=True):
            bind = rest = 0.0
            for e in self.nets[x]:
                if y not in self.pins[e]:
                    rest += cost[e]
                elif len(self.pins[e]) == 2 and not self.always[e]:
                    bind += cost[e]
            if self.comm != "sum" and work[x] > 0:
                return False
            if self.comm == "duplex" and rest > 0:
                return False
            if work[x] + rest > bind:
                return False
        return True

    def _merge(self, x: int, y: int) -> None:
        self.into[x] = y
        self.steps.append((x, y))
        for rows in (self.work, self.cpu_work):
            for work in rows:
                work[y] += work[x]
        for e in self.nets[x]:
            self.pins[e].discard(x)
            self.pins[e].add(y)
            self.nets[y].add(e)
            if len(self.pins[e]) == 1 and not self.always[e]:
                self.nets[y].discard(e)
        for mine, theirs in ((self.succ, self.pred), (self.pred, self.succ)):
            for v in mine[x]:
                theirs[v].discard(x)
                if v != y:
                    theirs[v].add(y)
                    mine[y].add(v)
            mine[x] = set()
            mine[y].discard(x)
            mine[y].discard(y)


def joined(line: LinearizedItems, items: Items, order: Ints, below: float) -> Items:
    """Join what stages below that load cannot part: the ends of very dear tensors.

    A tensor that is cut costs some accelerator its transfer, unless all its ends are on
    different CPUs; so this needs at most one CPU.
    """
    accelerators = [c for c, d in enumerate(line.devices) if not d.is_cpu]
    cpus = sum(d.count for d in line.devices if d.is_cpu)
    if cpus > 1 or not accelerators or not np.isfinite(below):
        return items
    dear = (line.cost[accelerators] >= below).all(axis=0) & ~line.nets.always
    if not dear.any():
        return items
    net = line.nets.net_of_pin
    chosen = dear[net]
    first = line.nets.pins[line.nets.net_ptr[:-1]][net[chosen]]
    there = line.nets.pins[chosen]
    # Joined both ways, with the precedence between: what lies on a cycle is one item.
    tails = np.concatenate([line.tail, first, there])
    heads = np.concatenate([line.head, there, first])
    return _relabelled(line, items, order, strong(line.n, tails, heads))
