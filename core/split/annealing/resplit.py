"""Neighbouring stages of an ordered split, each pair split anew as well as can be.

Two stages that stand one behind the other hold an order ideal of their items and the rest, so the
best way to part them is found by `dnnp.core.split.cuts`. A tensor with an end outside of
the pair is paid by each of both with an end inside, whatever the other holds. No other stage
changes its load. Pairs take turns, those with the largest load first, until none gets better.
"""

from __future__ import annotations

import numpy as np

from dnnp.core.cost.items import Line
from dnnp.core.cost.load_formula import WORTHWHILE
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.graph import Bools, Ints
from dnnp.core.model.plan import Block
from dnnp.core.model.search_context import PLAIN, Run
from dnnp.core.split.cuts import BITS, Halves, TwoStages

MOST_ITEMS = 1_000
"""Items of a pair."""

PAIR_EFFORT = 0.01
"""Effort for one pair, of the effort asked for; where there is but one it has all."""


def resplit(problem: SplitProblem, blocks: list[Block], run: Run = PLAIN) -> list[Block]:
    """Split pairs of stages anew; the largest load does not grow, memory aside.

    Only what stands on accelerators of one class, without replicas and a backward pass, and where
    transfers add to compute, is looked at; all else stays.
    """
    options, items = problem.options, problem.items
    if options.comm != "sum" or options.objective != "throughput" or len(blocks) < 2:
        return blocks
    if problem.graph.backward.any() or problem.clustered or problem.links:
        return blocks
    line = problem.line()
    place = np.argsort(items.order)
    at = np.empty(line.n, dtype=np.int64)
    for b, one in enumerate(blocks):
        at[place[items.label[one.nodes]]] = b
    if (at[line.tail] > at[line.head]).any():
        return blocks
    pairs = _Pairs(line, blocks, at)
    while pairs.improve(run):
        run.stands()
    rank = problem.graph.rank
    found = []
    for b, one in enumerate(blocks):
        nodes = np.flatnonzero(pairs.at[place[items.label]] == b)
        found.append(one._replace(nodes=nodes[np.argsort(rank[nodes])], peak_bound_bytes=0.0))
    return [one for one in found if len(one.nodes)]


class _Pairs:
    """Stages as numbers of the items of a line, and which pairs have been tried."""

    def __init__(self, line: Line, blocks: list[Block], at: Ints) -> None:
        self.line, self.at = line, at
        """`at` is i64[n], the stage of each item."""
        names = [d.name for d in line.devices]
        self.row = [
            -1 if b.device.is_cpu or b.replicas > 1 else names.index(b.device.name) for b in blocks
        ]
        """Row of each stage's class; -1: it stays as it is."""
        self.net = np.repeat(np.arange(len(line.source)), np.diff(line.pin_ptr))
        self.loads = [self._load(b) for b in range(len(blocks))]
        self.tried: set[bytes] = set()
        """Pairs that are as good as can be, by their items."""

    def improve(self, run: Run) -> bool:
        """Split one pair anew, the first that gets better; whether there was one."""
        order = sorted(
            range(len(self.row) - 1), key=lambda b: -max(self.loads[b], self.loads[b + 1])
        )
        for b in order:
            if run.stop():
                return False
            if self.row[b] < 0 or self.row[b] != self.row[b + 1]:
                continue
            inside = (self.at == b) | (self.at == b + 1)
            key = np.packbits(inside).tobytes()
            if key in self.tried or not 1 < inside.sum() <= MOST_ITEMS:
                continue
            ahead = self._split(b, inside, run)
            if ahead is not None and self._take(b, inside, ahead):
                return True
            self.tried.add(key)
        return False

    def _split(self, b: int, inside: Bools, run: Run) -> Bools | None:
        """What of a pair its first stage should hold; None: it is best as it is."""
        line, row = self.line, self.row[b]
        items = np.flatnonzero(inside)
        number = np.cumsum(inside) - 1
        pin = inside[line.pins]
        met = np.bincount(self.net[pin], minlength=len(line.source))
        nets = np.flatnonzero(met)
        outside = met[nets] < np.diff(line.pin_ptr)[nets]
        edge = inside[line.tail] & inside[line.head]
        work, cost = line.work[row, items], line.cost[row, nets]
        scale = 2.0 ** (BITS - 1) / max(float(work.sum() + cost.sum()), 1e-290)
        stages = TwoStages(
            order=np.arange(len(items)),
            tail=number[line.tail[edge]],
            head=number[line.head[edge]],
            work=np.floor(work * scale),
            ptr=np.append(0, np.cumsum(met[nets])),
            pins=number[line.pins[pin]],
            always=line.always[nets] | outside,
            cost=np.floor(cost * scale),
        )
        search = Halves(stages, run.scaled(PAIR_EFFORT if len(self.row) > 2 else 1.0))
        search.meet(self.at[items] == b)
        search.search()
        if search.best is None:
            return None
        ahead = np.zeros(line.n, dtype=np.bool_)
        ahead[items] = search.best
        return ahead

    def _take(self, b: int, inside: Bools, ahead: Bools) -> bool:
        """Part a pair like that, if it is worth it."""
        before, loads = self.at, (self.loads[b], self.loads[b + 1])
        self.at = np.where(inside, np.where(ahead, b, b + 1), before)
        found = self._load(b), self._load(b + 1)
        if max(found) < max(loads) * (1 - WORTHWHILE):
            self.loads[b : b + 2] = found
            return True
        self.at = before
        return False

    def _load(self, b: int) -> float:
        """Work and transfers of a stage; 0 where it stays as it is."""
        row, inside = self.row[b], self.at == b
        if row < 0:
            return 0.0
        line = self.line
        met = np.bincount(self.net[inside[line.pins]], minlength=len(line.source))
        paid = (met > 0) & ((met < np.diff(line.pin_ptr)) | line.always)
        return float(line.work[row, inside].sum() + line.cost[row, paid].sum())
