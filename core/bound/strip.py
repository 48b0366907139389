"""What is left of a line once items have followed others for free, for the bound `zone-cut`."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from dnnp.core.cost.items import Items
from dnnp.core.cost.line import Line
from dnnp.core.dp.contract import contract_near
from dnnp.core.model.graph import Bools, Floats, Ints, distinct, offsets, totals
from dnnp.core.model.plan import CostOptions


class Strip(NamedTuple):
    """Items after contraction, n in a topological order, and the nets between them."""

    items: Items
    """Their precedence; `order` is 0..n - 1."""
    root: Ints
    """i64[n], the position in the line of what each item is named by."""
    work: Floats
    """f64[n], whole numbers, as costs are."""
    ptr: Ints
    pins: Ints
    """Items of each net (CSR), ascending: the first one writes it, if any does."""
    always: Bools
    written: Bools
    """Nets that an item writes; the others are inputs of the model."""
    cost: Floats


def strip_of(
    line: Line, work: Floats, cost: Floats, options: CostOptions
) -> tuple[Strip, list[tuple[int, int]]]:
    """Contract what may be, and lay out what is left; and the steps, as positions of the line.

    `work` f64[n] and `cost` f64[p] stand in for those of the line.
    """
    exact = replace(line, work=work[None, :], cost=cost[None, :])
    into, steps = contract_near(exact, options)
    kept, vertex = np.unique(into, return_inverse=True)
    n = len(kept)
    pairs = distinct(vertex[line.tail] * n + vertex[line.head])
    pairs = pairs[pairs // n != pairs % n]
    order = Items(np.arange(n), n, pairs // n, pairs % n).order
    place = np.empty(n, dtype=np.int64)
    place[order] = np.arange(n)
    where = place[vertex]
    net = np.repeat(np.arange(len(cost)), np.diff(line.pin_ptr))
    pins = distinct(net * n + where[line.pins])
    size = np.bincount(pins // n, minlength=len(cost))
    nets = np.flatnonzero(((size > 1) | line.always) & (cost > 0))
    strip = Strip(
        Items(np.arange(n), n, place[pairs // n], place[pairs % n]),
        kept[order],
        totals(where, work, n),
        offsets(size[nets]),
        pins[np.isin(pins // n, nets)] % n,
        line.always[nets],
        line.source[nets] >= 0,
        cost[nets],
    )
    return strip, steps


def near_zones(strip: Strip, after: Ints, until: Ints, span: int) -> tuple[Ints, Ints]:
    """Zones first..last - 1 that each net is near to; the same where it is near to none."""
    starts = strip.ptr[:-1]
    if not len(starts):
        return starts.copy(), starts.copy()
    begun = np.minimum.reduceat(after[strip.pins], starts)
    ended = np.maximum.reduceat(until[strip.pins], starts)
    first, last = np.maximum(ended - span, 0), begun + span
    last = np.where(strip.written, np.maximum(last, first), first)
    return first, last
