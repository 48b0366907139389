"""A better split from a given one, without a proof: evolved orders, annealing, slices, windows.

Small graphs get an evolved order beside the split, large ones are split by levels. What is best
then is annealed, sliced anew and searched through windows; as long as there is time, from other
seeds.

A level joins pairs of items of the level below. In a topological order, an item may join the
last one it reads from: with it moved there the order stays topological, because all else that
it reads comes earlier still. So any number of such pairs, each with an anchor that stays where
it is, leave the graph acyclic; likewise an item may join the first one that reads it. The two
kinds take turns; of the pairs that compete, those with the dearest tensors between them win.

Neighbouring stages of a pair hold an order ideal of their items and the rest, so the best way to
part them is found by `dnnp.core.split.cuts`. A tensor with an end outside of the pair is paid by
each of both with an end inside, whatever the other holds. No other stage changes its load. Pairs
take turns, those with the largest load first, until none gets better.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dnnp.core.cost.items import LinearizedItems
from dnnp.core.cost.load_formula import ROUNDING, WORTHWHILE
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.errors import InfeasibleError, LimitError
from dnnp.core.model.graph import (
    Bools,
    Clustering,
    Ints,
    clustering_of_labels,
    offsets,
    row_of,
    totals,
)
from dnnp.core.model.hypergraph import hypergraph
from dnnp.core.model.plan import Block
from dnnp.core.model.search_context import PLAIN, Evolution, SearchContext
from dnnp.core.split.annealing.anneal import anneal
from dnnp.core.split.cuts import BITS, Bisection, TwoStages
from dnnp.core.split.ideals.search import window_search
from dnnp.core.split.order_search import OrderSpace, evolved_order
from dnnp.core.split.slices import best_slicing
from dnnp.core.split.slicing.orders import dfs_order

MOST_ITEMS = 1_000
"""Items of a pair."""

PAIR_EFFORT = 0.01
"""Effort for one pair, of the effort asked for; where there is but one it has all."""

HALFWAY = 20
"""Pairs that got better at which half of that work seems to be done."""

LARGE = 10_000
"""Units from which a graph is split by levels, and not searched through windows."""

EVOLVED_ITEMS = 2_000_000
"""Items that are put in order by evolution at effort 1, over all its orders."""

LEAST_GENERATIONS = 5
"""Evolution is not worth its while for fewer."""

WINDOW_EFFORT = 0.02
"""Effort of one window search, of the effort asked for."""

WIDTHS = (6, 10)

EVOLVED, REFINED, PAIRED = 0.2, 0.9, 0.95
"""Shares of the whole work at the ends of evolution, annealing and pairs of stages; the rest are
windows."""

ANNEALED = 0.95
"""Share of annealing in what is done to refine a split."""

COARSEST = 1_000
"""Units at which coarsening ends."""

LEVEL_RATIO = 1.8
"""Levels that are less coarse than the one before by this factor are searched; others not."""

UNITS_PER_DEVICE = 8
"""A pair may have at most this part of a device's share of the work."""

LEVEL_EFFORT, LAST_EFFORT = 0.25, 0.5
"""Effort of a level and of the graph itself, of the effort asked for."""


def resplit(problem: SplitProblem, blocks: list[Block], run: SearchContext = PLAIN) -> list[Block]:
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
    at = row_of((place[items.label[one.nodes]] for one in blocks), line.n)
    if (at[line.tail] > at[line.head]).any():
        return blocks
    pairs = _Pairs(line, blocks, at)
    turn = 0
    while pairs.improve(run):
        turn += 1
        run.report_progress(share=turn / (turn + HALFWAY))
    rank = problem.graph.rank
    found = []
    for b, one in enumerate(blocks):
        nodes = np.flatnonzero(pairs.at[place[items.label]] == b)
        found.append(one._replace(nodes=nodes[np.argsort(rank[nodes])], peak_bound_bytes=0.0))
    return [one for one in found if len(one.nodes)]


class _Pairs:
    """Stages as numbers of the items of a line, and which pairs have been tried."""

    def __init__(self, line: LinearizedItems, blocks: list[Block], at: Ints) -> None:
        self.line, self.at = line, at
        """`at` is i64[n], the stage of each item."""
        names = [d.name for d in line.devices]
        self.row = [
            -1 if b.device.is_cpu or b.replicas > 1 else names.index(b.device.name) for b in blocks
        ]
        """Row of each stage's class; -1: it stays as it is."""
        self.loads = [self._load(b) for b in range(len(blocks))]
        self.tried: set[bytes] = set()
        """Pairs that are as good as can be, by their items."""

    def improve(self, run: SearchContext) -> bool:
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

    def _split(self, b: int, inside: Bools, run: SearchContext) -> Bools | None:
        """Items of a pair that its first stage should hold, bool[n]; None: it is best as it is."""
        line, row = self.line, self.row[b]
        items = np.flatnonzero(inside)
        number = np.cumsum(inside) - 1
        pin = inside[line.nets.pins]
        met = np.bincount(line.nets.net_of_pin[pin], minlength=line.nets.net_count)
        nets = np.flatnonzero(met)
        outside = met[nets] < line.nets.sizes[nets]
        edge = inside[line.tail] & inside[line.head]
        work, cost = line.work[row, items], line.cost[row, nets]
        scale = 2.0 ** (BITS - 1) / max(float(work.sum() + cost.sum()), 1e-290)
        stages = TwoStages(
            order=np.arange(len(items)),
            tail=number[line.tail[edge]],
            head=number[line.head[edge]],
            nets=hypergraph(
                len(items),
                offsets(met[nets]),
                number[line.nets.pins[pin]],
                np.full(len(nets), -1, dtype=np.int64),
                line.nets.always[nets] | outside,
            ),
            work=np.floor(work * scale),
            cost=np.floor(cost * scale),
        )
        part = replace(run, max_gap=0.0).scaled(PAIR_EFFORT if len(self.row) > 2 else 1.0)
        search = Bisection(stages, part)
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
        paid = line.nets.paid(inside)
        return float(line.work[row, inside].sum() + line.cost[row, paid].sum())


def refined(
    problem: SplitProblem,
    blocks: list[Block],
    value: float,
    run: SearchContext,
    *,
    by_levels: bool = True,
) -> tuple[list[Block], float]:
    """Anneal an ordered split, slice what comes out anew; never worse.

    `by_levels`: large graphs are annealed by levels.
    """
    part = run.phase("annealing", 0.0, ANNEALED)
    blocks, value = _annealed(problem, blocks, value, part, by_levels=by_levels)
    return _resliced(problem, blocks, value, run.phase("slicing", ANNEALED, 1.0))


def improved(
    problem: SplitProblem, blocks: list[Block], value: float, floor: float, run: SearchContext
) -> tuple[list[Block], float]:
    """Improve an ordered split by all there is, until it meets `floor` or the time is over.

    Without a time limit every part has its turn once.
    """
    found = _evolved(problem, run.phase("evolving orders", 0.0, EVOLVED))
    if found is not None and found[1] < value:
        blocks, value = found
        run.log(f"evolved order: {run.shown(value)}")
    if len(blocks) == 2:  # then it ends at the optimum
        blocks, value = paired(problem, blocks, value, run)
    rounds = 0
    while value > floor and not run.stop():
        run.report_progress(value=value)
        again = replace(run.phase("annealing", EVOLVED, REFINED), seed=run.seed + rounds)
        blocks, value = refined(problem, blocks, value, again, by_levels=rounds == 0)
        part = run.phase("pairs of stages", REFINED, PAIRED)
        blocks, value = paired(problem, blocks, value, part)
        last = run.phase("windows", PAIRED, 1.0)
        blocks, value = windows(problem, blocks, value, WIDTHS, last)
        rounds += 1
        if run.time_left() is None:
            break
    return blocks, value


def paired(
    problem: SplitProblem, blocks: list[Block], value: float, run: SearchContext
) -> tuple[list[Block], float]:
    """Split pairs of neighbouring stages anew."""
    run.report_progress("pairs of stages", value=value)
    try:
        found = resplit(problem, blocks, run)
        better = problem.value(found)
    except InfeasibleError:
        return blocks, value
    if better >= value:
        return blocks, value
    run.log(f"pairs of stages: {run.shown(better)}")
    return found, better


def windows(
    problem: SplitProblem,
    blocks: list[Block],
    value: float,
    widths: Sequence[int],
    run: SearchContext,
) -> tuple[list[Block], float]:
    """Search ever wider windows around the best split, until one takes too long in vain."""
    if problem.units.g > LARGE:
        return blocks, value
    for number, width in enumerate(widths):
        left = 1.0
        while not run.stop():
            # Each that finds something is followed by another one, of half of what is left.
            ends = ((number + 1 - left) / len(widths), (number + 1 - left / 2) / len(widths))
            part = run.phase(f"windows of {width}", *ends).scaled(WINDOW_EFFORT)
            left /= 2
            near = window_search(problem, blocks, incumbent=value, width=width, run=part)
            if near.blocks is None:
                if near.bound < value * (1 - ROUNDING):
                    return blocks, value
                break
            blocks, value = near.blocks, near.value
            run.log(f"windows of {width}: {run.shown(value)}")
    return blocks, value


def _evolved(problem: SplitProblem, run: SearchContext) -> tuple[list[Block], float] | None:
    """The best slicing of an evolved order, if there is one."""
    how = Evolution()
    generations = int(run.effort * EVOLVED_ITEMS / (how.population * max(problem.units.g, 1)))
    if generations < LEAST_GENERATIONS:
        return None
    how = Evolution(generations=min(generations, how.generations))
    space = OrderSpace(problem)
    if not space.compiled:
        return None  # it would be slow
    order = evolved_order(space, how, run=replace(run, warn=PLAIN.warn))
    if order is None:
        return None
    return _sliced(problem, order, run)


def _annealed(
    problem: SplitProblem, blocks: list[Block], value: float, run: SearchContext, *, by_levels: bool
) -> tuple[list[Block], float]:
    """Anneal, by levels where the graph is large."""
    try:
        if problem.units.g >= LARGE and by_levels:
            found = multilevel(problem, blocks, run)
        else:
            found = anneal(problem, ordered=True, start=blocks, run=run)
        better = problem.value(found)
    except (InfeasibleError, LimitError):
        return blocks, value
    if better < value:
        run.log(f"annealing: {run.shown(better)}")
        return found, better
    return blocks, value


def _resliced(
    problem: SplitProblem, blocks: list[Block], value: float, run: SearchContext
) -> tuple[list[Block], float]:
    """Slice the order of the split itself."""
    items = problem.items
    at = row_of((items.label[one.nodes] for one in blocks), items.count)
    if (at[items.tail] > at[items.head]).any():
        return blocks, value
    rank = np.argsort(items.order)
    found = _sliced(problem, np.lexsort((rank, at)), run)
    if found is None or found[1] >= value:
        return blocks, value
    run.log(f"sliced anew: {run.shown(found[1])}")
    return found


def _sliced(
    problem: SplitProblem, order: np.ndarray, run: SearchContext
) -> tuple[list[Block], float] | None:
    try:
        blocks = best_slicing(problem, order, run)
    except InfeasibleError:
        return None
    return blocks, problem.value(blocks)


def multilevel(
    problem: SplitProblem, blocks: Sequence[Block], run: SearchContext = PLAIN
) -> list[Block]:
    """Split by levels; never worse than the ordered split `blocks`.

    A graph with a backward pass has one level.
    """
    value = problem.value
    best = list(blocks)
    run.report_progress("joining units")
    levels = _levels(problem, run)
    # A round takes as long as there are units.
    work = np.array([level.units.g * LEVEL_EFFORT for level in reversed(levels)])
    work[-1] *= LAST_EFFORT / LEVEL_EFFORT
    shares = np.append(0.0, np.cumsum(work) / max(work.sum(), 1.0)).tolist()
    current: list[Block] | None = None
    for number, level in enumerate(reversed(levels)):
        if run.stop():
            break
        last = level is problem
        try:
            if last and (current is None or value(current) > value(best)):
                current = best
            start = current or best_slicing(level, run=run.without_shares())
            part = run.phase("annealing levels", *shares[number : number + 2])
            one = replace(part, seed=run.seed + number)
            one = one.scaled(LAST_EFFORT if last else LEVEL_EFFORT)
            found = anneal(level, ordered=True, start=start, warm=number > 0, run=one)
            current = found if value(found) < value(start) else start
        except (InfeasibleError, LimitError):
            continue
        if value(current) < value(best):
            best = current
    return best


def _levels(problem: SplitProblem, run: SearchContext) -> list[SplitProblem]:
    """The problem, and the same with ever fewer units."""
    levels, level, late = [problem], problem, True
    while not problem.graph.backward.any() and level.units.g > COARSEST and not run.stop():
        coarser = replace(problem, units=coarsened(level, late=late))
        if coarser.units.g > 0.95 * level.units.g:
            break
        level, late = coarser, not late
        if levels[-1].units.g > LEVEL_RATIO * level.units.g:
            levels.append(level)
    return levels


def coarsened(problem: SplitProblem, *, late: bool) -> Clustering:
    """Join units in pairs: with the last one they read from if `late`, else the first reader."""
    items, units = problem.items, problem.units
    order = dfs_order(items)
    of_item = np.empty(items.count, dtype=np.int64)
    of_item[order] = _pairs(problem.line(items, order), late=late)
    label = of_item[items.label[units.member_idx[units.member_ptr[:-1]]]]
    merged = clustering_of_labels(problem.graph, label[units.label])
    return replace(merged, times={c: totals(label, t, merged.g) for c, t in units.times.items()})


def _pairs(line: LinearizedItems, *, late: bool) -> Ints:
    """Label of every position, 0..; pairs share one."""
    n = line.n
    if late:
        anchor = np.full(n, -1, dtype=np.int64)
        np.maximum.at(anchor, line.head, line.tail)
        joining = np.flatnonzero(anchor >= 0)
    else:
        anchor = np.full(n, n, dtype=np.int64)
        np.minimum.at(anchor, line.tail, line.head)
        joining = np.flatnonzero(anchor < n)
    anchor = anchor[joining]
    tail, head = (anchor, joining) if late else (joining, anchor)
    work = np.where(np.isfinite(line.work), line.work, 0.0).max(axis=0)
    most = work.sum() / sum(d.count for d in line.devices) / UNITS_PER_DEVICE
    gain = _bond(line, tail, head)
    fits = np.flatnonzero(work[tail] + work[head] <= most)
    mate = np.arange(n)
    for i in fits[np.argsort(-gain[fits], kind="stable")].tolist():
        u, v = tail[i], head[i]
        if mate[u] == u and mate[v] == v:
            mate[u], mate[v] = v, u
    return np.unique(np.minimum(mate, np.arange(n)), return_inverse=True)[1]


def _bond(line: LinearizedItems, tail: Ints, head: Ints) -> np.ndarray:
    """Cost of the tensors from `tail` to `head`, shared among their readers; f64[pairs]."""
    sizes, net = line.nets.sizes, line.nets.net_of_pin
    key = line.nets.source[net] * line.n + line.nets.pins
    order = np.argsort(key, kind="stable")
    share = (line.cost.max(axis=0)[net] / np.maximum(sizes[net] - 1, 1))[order]
    before = np.append(0.0, np.cumsum(share))
    wanted = tail * line.n + head
    low = np.searchsorted(key[order], wanted)
    return before[np.searchsorted(key[order], wanted, side="right")] - before[low]
