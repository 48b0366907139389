"""Large graphs by levels: coarsen, split the coarsest graph, refine while expanding.

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

from dnnp.core.cost.line import Line
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.local.anneal import anneal
from dnnp.core.model.cluster import Clustering, clustering_of_labels
from dnnp.core.model.errors import InfeasibleError, LimitError
from dnnp.core.model.graph import Graph, Ints, totals
from dnnp.core.model.plan import Block
from dnnp.core.model.run import PLAIN, Run
from dnnp.core.order.orders import dfs_order
from dnnp.core.portfolio.slices import best_slicing

COARSEST = 1_000
"""Units at which coarsening ends."""

LEVEL_RATIO = 1.8
"""Levels that are less coarse than the one before by this factor are searched; others not."""

UNITS_PER_DEVICE = 8
"""A pair may have at most this part of a device's share of the work."""

LEVEL_EFFORT, LAST_EFFORT = 0.25, 0.5
"""Effort of a level and of the graph itself, of the effort asked for."""


def multilevel(problem: SplitProblem, blocks: Sequence[Block], run: Run = PLAIN) -> list[Block]:
    """Split by levels; never worse than the ordered split `blocks`.

    A graph with a backward pass has one level.
    """
    value = problem.value
    best = list(blocks)
    run.stands("joining units")
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
            start = current or best_slicing(level, run=run)
            part = run.begin("annealing levels", *shares[number : number + 2])
            one = replace(part, seed=run.seed + number)
            one = one.scaled(LAST_EFFORT if last else LEVEL_EFFORT)
            found = anneal(level, ordered=True, start=start, warm=number > 0, run=one)
            current = found if value(found) < value(start) else start
        except (InfeasibleError, LimitError):
            continue
        if value(current) < value(best):
            best = current
    return best


def _levels(problem: SplitProblem, run: Run) -> list[SplitProblem]:
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
    of_unit = items.label[units.member_idx[units.member_ptr[:-1]]]
    return _merged(problem.graph, units, of_item[of_unit])


def _pairs(line: Line, *, late: bool) -> Ints:
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


def _bond(line: Line, tail: Ints, head: Ints) -> np.ndarray:
    """Cost of the tensors from `tail` to `head`, shared among their readers; f64[pairs]."""
    sizes = np.diff(line.pin_ptr)
    net = np.repeat(np.arange(len(sizes)), sizes)
    key = line.source[net] * line.n + line.pins
    order = np.argsort(key, kind="stable")
    share = (line.cost.max(axis=0)[net] / np.maximum(sizes[net] - 1, 1))[order]
    before = np.append(0.0, np.cumsum(share))
    wanted = tail * line.n + head
    low = np.searchsorted(key[order], wanted)
    return before[np.searchsorted(key[order], wanted, side="right")] - before[low]


def _merged(graph: Graph, units: Clustering, label: Ints) -> Clustering:
    """Units of units; times are sums."""
    merged = clustering_of_labels(graph, label[units.label])
    return replace(merged, times={c: totals(label, t, merged.g) for c, t in units.times.items()})
