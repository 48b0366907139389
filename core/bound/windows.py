"""Blocks of a pipeline that an item may be in, where no block may exceed a load.

If item v is in block b or before, so is everything before v: the first b blocks together hold a
set S of items with v and its ancestors. Their loads add up to at least work(S), and under `sum`
to at least f(S) (`dnnp.core.bound.flows`): a tensor with pins on both sides of the border of S is
paid by at least one of them. So b is at least the least f(S) over the load allowed. From the
other end it is the same with descendants.
"""

from __future__ import annotations

import numpy as np

from dnnp.core.bound.between import closure
from dnnp.core.bound.flows import Nets, network_of, push
from dnnp.core.cost.combine import MARGIN
from dnnp.core.cost.line import Line
from dnnp.core.mip.program import SLACK
from dnnp.core.model.graph import Bools, Floats, Ints

MOST_ITEMS = 500
MOST_PINS = 20_000
"""Up to here minimum cuts are computed; beyond them work alone counts."""


def windows(line: Line, load: float, stages: int, *, cuts: bool) -> tuple[Ints, Ints]:
    """First and last block, from 1 to `stages`, of every item; i64[items] each.

    For ordered splits over devices of one class, the line's first, into blocks of at most `load`
    seconds. A first block after the last one: there is no such split. `cuts`: whether transfers
    and compute add up.
    """
    by = np.argsort(line.head, kind="stable")  # tails are before heads
    after = closure(line.n, np.arange(line.n), line.tail[by], line.head[by])
    before = np.ascontiguousarray(after.T)
    needs = [least_loads(line, sets, cuts=cuts) for sets in (before, before.T)]
    blocks = [
        np.maximum(np.ceil(need * (1 - MARGIN) / (load * (1 + SLACK))), 1).astype(np.int64)
        for need in needs
    ]
    return blocks[0], stages + 1 - blocks[1]


def least_loads(line: Line, sets: Bools, *, cuts: bool) -> Floats:
    """Least f(S) over the sets S that hold each of some sets (bool[sets, items])."""
    work = line.work[0]
    alone: Floats = sets @ work
    if not cuts or line.n > MOST_ITEMS or len(line.pins) > MOST_PINS:
        return alone
    network = network_of(work, Nets(line.pin_ptr, line.pins, line.always, line.cost[0]))
    flows = [push(network, network.capacity.copy(), np.flatnonzero(row)) for row in sets]
    return np.maximum(alone, np.array(flows))
