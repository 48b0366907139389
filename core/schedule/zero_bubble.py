"""Recipes for backward passes that are split: weight blocks fill what would be bubbles.

    zb-h1     1f1b that keeps its memory (Qi et al. 2023, section 2)
    zb-v      two stages a device, there and back: no bubble in the memory of 1f1b (Qi et al. 2023,
              section 6; Qi et al. 2024, V-ZB)
    dualpipe  two chains in opposite directions from both ends (DeepSeek-V3 2024, section 3.2.1)

See `core.schedule.recipes` for what a recipe is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from dnnp.core.kernels.kernel import kernel
from dnnp.core.model.errors import UsageError
from dnnp.core.model.graph import Ints
from dnnp.core.model.schedule import Placement
from dnnp.core.schedule.recipes import (
    Stage,
    fill,
    one_stage_each,
    only_chain,
    opposite_chains,
)

FORWARD, BACKWARD, WEIGHT = range(3)
"""Passes of a stage."""

LATE = np.iinfo(np.int64).max
"""Slot of a pass that has not been given one."""


def zb_h1(placement: Placement, count: int) -> Ints:
    """1f1b where stage d does its weight blocks d micro-batches late.

    Every stage has as many micro-batches between forward and weight block as the first one.
    """
    chain = _split_chain(placement, "zb-h1")
    one_stage_each(placement, chain, "zb-h1")
    rank = np.zeros((count, len(placement.blocks)), dtype=np.int64)
    for d, stage in enumerate(chain):
        fill(rank, stage, np.arange(count), len(chain) - d, d)
    return rank


def zb_v(placement: Placement, count: int) -> Ints:
    """Greedy order of every device, if every block took one slot of time.

    A device holds activations of two stages for each device at most, those that 1f1b holds on its
    first. In a slot it runs a forward block if there is room for one, the later stage first; for
    want of room a weight block, while there are forward blocks to come; a backward block, the
    earlier stage first; else a weight block. So D devices take 6 N + D - 1 slots for N >= 2 D - 2
    micro-batches, which is the least that there is.
    """
    chain = _split_chain(placement, "zb-v")
    homes = [placement.blocks[stage.forward].homes for stage in chain]
    devices = len(chain) // 2
    if len(chain) % 2 or homes != homes[::-1]:
        raise UsageError(
            "zb-v needs two stages on each device, which the chain of stages visits in turn and "
            "then the other way round"
        )
    one_stage_each(placement, chain[:devices], "zb-v")
    slot = np.full((3, count, len(chain)), LATE, dtype=np.int64)
    _v_slots(slot, np.zeros((3, len(chain)), dtype=np.int64))
    rank = np.zeros((count, len(placement.blocks)), dtype=np.int64)
    for s, stage in enumerate(chain):
        rank[:, [stage.forward, stage.backward, stage.weight]] = slot[:, :, s].T
    return rank


@kernel
def _v_slots(slot, done):  # type: ignore[no-untyped-def]
    """Give every pass a slot; slot i64[3, N, 2 D], all `LATE`; done i64[3, 2 D], all 0.

    `done` counts the passes of each stage that have one.
    """
    count, stages = slot.shape[1], slot.shape[2]
    devices = stages // 2
    left = 3 * count * stages
    now = 0
    while left > 0:
        for d in range(devices):
            kind, s = _v_choice(slot, done, d, now)
            if kind >= 0:
                slot[kind, done[kind, s], s] = now
                done[kind, s] += 1
                left -= 1
        now += 1


@kernel
def _v_choice(slot, done, d, now):  # type: ignore[no-untyped-def]
    """Pass and stage that device d runs in slot `now`; pass -1: none."""
    count, stages = slot.shape[1], slot.shape[2]
    near, far = d, stages - 1 - d
    held = done[FORWARD, near] + done[FORWARD, far] - done[WEIGHT, near] - done[WEIGHT, far]
    if held < stages:
        for s in (far, near):
            n = done[FORWARD, s]
            if n < count and (s == 0 or slot[FORWARD, n, s - 1] < now):
                return FORWARD, s
    # What has waited longest; of one micro-batch, that of the later stage.
    weight = near if done[WEIGHT, near] < done[WEIGHT, far] else far
    if done[WEIGHT, weight] >= done[BACKWARD, weight]:
        weight = stages - 1 - weight
    ready = done[WEIGHT, weight] < done[BACKWARD, weight]
    if ready and min(done[FORWARD, near], done[FORWARD, far]) < count:
        return WEIGHT, weight
    for s in (near, far):
        n = done[BACKWARD, s]
        last = s == stages - 1
        if n < count and slot[FORWARD, n, s] < now and (last or slot[BACKWARD, n, s + 1] < now):
            return BACKWARD, s
    return (WEIGHT, weight) if ready else (-1, -1)


def dualpipe(placement: Placement, count: int) -> Ints:
    """Both chains at once on every device; see `_from_both_ends` for its order.

    Fewer than D pairs of micro-batches run as the first ones of D do.
    """
    _needs_split(placement, "dualpipe")
    chains = opposite_chains(placement, "dualpipe")
    for chain in chains:
        _check_split(placement, chain, "dualpipe")
    depth = len(chains[0])
    pairs = max(count, depth)
    rank = np.zeros((pairs, len(placement.blocks)), dtype=np.int64)
    for d in range(depth):
        stages = (chains[0][d], chains[1][depth - 1 - d])
        # On the second half of the devices the other chain is the near one.
        near, far = stages if d < depth // 2 else stages[::-1]
        order = _from_both_ends(depth // 2, min(d, depth - 1 - d), pairs)
        for place, (kind, is_far, n) in enumerate(order):
            stage = far if is_far else near
            rank[n, (stage.forward, stage.backward, stage.weight)[kind]] = place
    return rank[:count]


class _Sequence:
    """Passes of a device in order: (pass, whether of the far chain, micro-batch)."""

    def __init__(self) -> None:
        self.order: list[tuple[int, bool, int]] = []
        self.late: deque[tuple[bool, int]] = deque()
        self.counts = [[0, 0], [0, 0]]

    def forward(self, far: bool) -> None:
        """The next forward pass of a chain."""
        self.order.append((FORWARD, far, self._next(FORWARD, far)))

    def backward(self, far: bool, late: bool = False) -> None:
        """The next backward pass, with its weights at once or late."""
        n = self._next(BACKWARD, far)
        self.order.append((BACKWARD, far, n))
        if late:
            self.late.append((far, n))
        else:
            self.order.append((WEIGHT, far, n))

    def weight(self) -> None:
        """The weights that have waited longest."""
        self.order.append((WEIGHT, *self.late.popleft()))

    def _next(self, kind: int, far: bool) -> int:
        self.counts[kind][far] += 1
        return self.counts[kind][far] - 1


def _from_both_ends(half: int, d: int, pairs: int) -> Sequence[tuple[int, bool, int]]:
    """The eight phases of DualPipe on device d of one `half`, counted from the end of the chains.

    The near chain begins on that end. Forward passes of the near chain; of both in turn; backward,
    weight and forward passes of the far chain; forward and backward passes of both, which the
    published schedule overlaps; the same without forward passes of the near chain; backward passes
    of both, the later half with late weights; weights and backward passes of the near chain; what
    weights are left.
    """
    near, far = False, True
    inner = half - 1 - d
    run = _Sequence()
    for _ in range(2 * inner):
        run.forward(near)
    for _ in range(d + 1):
        run.forward(near)
        run.forward(far)
    for _ in range(inner):
        run.backward(far, late=True)
        run.weight()
        run.forward(far)
    for _ in range(pairs - 2 * half + d + 1):
        run.forward(near)
        run.backward(far)
        run.forward(far)
        run.backward(near)
    for _ in range(inner):
        run.backward(far)
        run.forward(far)
        run.backward(near)
    for i in range(2 * (d + 1)):
        run.backward(far if i % 2 == 0 else near, late=i > d)
    for _ in range(inner):
        run.weight()
        run.backward(near, late=True)
    for _ in range(d + 1):
        run.weight()
    return run.order


def _split_chain(placement: Placement, name: str) -> Sequence[Stage]:
    """The stages of a placement that is one chain of split passes."""
    _needs_split(placement, name)
    chain = only_chain(placement, name)
    _check_split(placement, chain, name)
    return chain


def _needs_split(placement: Placement, name: str) -> None:
    """Refuse what has not been split."""
    if all(block.kind != "weight" for block in placement.blocks):
        raise UsageError(f"{name} needs weight blocks: split the backward blocks")


def _check_split(placement: Placement, chain: Sequence[Stage], name: str) -> None:
    """Refuse stages without weight blocks, and devices that take turns."""
    if any(stage.weight < 0 for stage in chain):
        raise UsageError(f"{name} needs a weight block for each backward block")
    if any(len(placement.blocks[stage.forward].homes) > 1 for stage in chain):
        raise UsageError(f"{name} knows no stages whose devices take turns")
