"""A better split from a given one, without a proof: evolved orders, annealing, windows.

Small graphs get an evolved order beside the split, large ones are annealed by levels. As long as
there is time, all but that is done again from other seeds.

A level joins pairs of items of the level below. In a topological order, an item may join the
last one it reads from: with it moved there the order stays topological, because all else that
it reads comes earlier still. So any number of such pairs, each with an anchor that stays where
it is, leave the graph acyclic; likewise an item may join the first one that reads it. The two
kinds take turns; of the pairs that compete, those with the dearest tensors between them win.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dnnp.core.cost.items import LinearizedItems
from dnnp.core.cost.load_formula import ROUNDING
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.errors import InfeasibleError, LimitError
from dnnp.core.model.graph import Clustering, Ints, clustering_of_labels, totals
from dnnp.core.model.plan import Block
from dnnp.core.model.search_context import PLAIN, Evolution, SearchContext
from dnnp.core.split.annealing.anneal import anneal
from dnnp.core.split.ideals.search import window_search
from dnnp.core.split.order_search import OrderSpace, evolved_order
from dnnp.core.split.slices import best_slicing
from dnnp.core.split.slicing.orders import dfs_order

LARGE = 10_000
"""Units from which a graph is split by levels, and not searched through windows."""

EVOLVED_ITEMS = 2_000_000
"""Items that are put in order by evolution at effort 1, over all its orders."""

LEAST_GENERATIONS = 5
"""Evolution is not worth its while for fewer."""

WINDOW_EFFORT = 0.02
"""Effort of one window search, of the effort asked for."""

WIDTHS = (6, 10)

EVOLVED, REFINED = 0.2, 0.9
"""Shares of the whole work at the ends of evolution and annealing; the rest are windows."""

COARSEST = 1_000
"""Units at which coarsening ends."""

LEVEL_RATIO = 1.8
"""Levels that are less coarse than the one before by this factor are searched; others not."""

UNITS_PER_DEVICE = 8
"""A pair may have at most this part of a device's share of the work."""

LEVEL_EFFORT, LAST_EFFORT = 0.25, 0.5
"""Effort of a level and of the graph itself, of the effort asked for."""


def refined(
    problem: SplitProblem,
    blocks: list[Block],
    value: float,
    run: SearchContext,
    *,
    by_levels: bool = True,
) -> tuple[list[Block], float]:
    """Anneal an ordered split, by levels where the graph is large and `by_levels`; never worse."""
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
    rounds = 0
    while value > floor and not run.stop():
        run.report_progress(value=value)
        again = replace(run.phase("annealing", EVOLVED, REFINED), seed=run.seed + rounds)
        blocks, value = refined(problem, blocks, value, again, by_levels=rounds == 0)
        last = run.phase("windows", REFINED, 1.0)
        blocks, value, _ = windows(problem, blocks, value, WIDTHS, last)
        rounds += 1
        if run.time_left() is None:
            break
    return blocks, value


def windows(
    problem: SplitProblem,
    blocks: list[Block],
    value: float,
    widths: Sequence[int],
    run: SearchContext,
) -> tuple[list[Block], float, float]:
    """Search ever wider windows around the best split, and the width that takes too long in vain.

    Wider ones would, too.
    """
    if problem.units.g > LARGE:
        return blocks, value, np.inf
    for number, width in enumerate(widths):
        left = 1.0
        while not run.stop():
            # Each that finds something is followed by another one, of half of what is left.
            ends = ((number + 1 - left) / len(widths), (number + 1 - left / 2) / len(widths))
            part = run.phase(f"windows of {width}", *ends).scaled(WINDOW_EFFORT)
            left /= 2
            near = window_search(problem, blocks, incumbent=value, width=width, run=part)
            if near.blocks is None:
                if near.bound < value * (1 - ROUNDING) and not run.stop():
                    return blocks, value, width
                break
            blocks, value = near.blocks, near.value
            run.log(f"windows of {width}: {run.shown(value)}")
    return blocks, value, np.inf


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
    one, other = line.labels[:, tail], line.labels[:, head]
    apart = ((one != other) & (one != 0) & (other != 0)).any(axis=0)
    fits = np.flatnonzero((work[tail] + work[head] <= most) & ~apart)
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
