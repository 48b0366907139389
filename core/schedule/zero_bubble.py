"""Recipes for backward passes that are split: weight blocks fill what would be bubbles.

    zb-h1     1f1b that keeps its memory (Qi et al. 2023, section 2)
    zb-h2     no bubble in twice the memory of 1f1b (the same)
    zb-v      two stages a device, there and back: no bubble in the memory of 1f1b (Qi et al. 2023,
              section 6; Qi et al. 2024, V-ZB)
    v-half, v-min
              the same stages in half and in a third of that memory (Qi et al. 2024)
    dualpipe  two chains in opposite directions from both ends (DeepSeek-V3 2024, section 3.2.1)
    dualpipev
              the same folded on half as many devices, two stages a device ("cut in half", Sea AI
              Lab 2025)

See `core.schedule.recipes` for what a recipe is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dnnp.core.kernels.kernel import kernel
from dnnp.core.model.errors import UsageError
from dnnp.core.model.graph import Ints
from dnnp.core.model.schedule import Placement
from dnnp.core.schedule.justify import justified
from dnnp.core.schedule.problem import problem_of
from dnnp.core.schedule.recipes import Stage, fill, one_stage_each, only_chain, opposite_chains

FORWARD, BACKWARD, WEIGHT = range(3)
"""Passes of a stage."""

LATE = np.iinfo(np.int64).max
"""Slot of a pass that has not been given one."""


def zb_h1(placement: Placement, count: int) -> Ints:
    """1f1b where stage d does its weight blocks d micro-batches late.

    Every stage has as many micro-batches between forward and weight block as the first one.
    """
    return _handcrafted(placement, count, "zb-h1", 1)


def zb_h2(placement: Placement, count: int) -> Ints:
    """2 (D - d) - 1 forward blocks to warm up stage d, and weight blocks 2 d micro-batches late.

    Where every block takes the same time the first gradient comes back right after those, so no
    stage waits after its first block, from 2 D - 1 micro-batches on. Each holds 2 D - 1.
    """
    return _handcrafted(placement, count, "zb-h2", 2)


def _handcrafted(placement: Placement, count: int, name: str, times: int) -> Ints:
    """ZB-H1 and ZB-H2; `times` the way of a stage to the end and back is filled."""
    chain = _split_chain(placement, name)
    one_stage_each(placement, chain, name)
    rank = np.zeros((count, len(placement.blocks)), dtype=np.int64)
    for d, stage in enumerate(chain):
        warm = times * (len(chain) - 1 - d) + 1
        fill(rank, stage, np.arange(count), warm, times * d)
    return rank


def zb_v(placement: Placement, count: int) -> Ints:
    """Greedy order of every device, if every block took one slot of time.

    A device holds activations of two stages for each device at most, those that 1f1b holds on its
    first. In a slot it runs a forward block if there is room for one, the later stage first; for
    want of room a weight block, while there are forward blocks to come; a backward block, the
    earlier stage first; else a weight block. So D devices take 6 N + D - 1 slots for N >= 2 D - 2
    micro-batches, which is the least that there is.
    """
    chain = _v_chain(placement, "zb-v")
    slot = np.full((3, count, len(chain)), LATE, dtype=np.int64)
    _v_slots(slot, np.zeros((3, len(chain)), dtype=np.int64))
    return _by_slot(placement, chain, slot)


def v_half(placement: Placement, count: int) -> Ints:
    """Passes of one chunk two slots after each other, of the other chunk one; see `_v_block`.

    Holds (D + 2) // 2 micro-batches of both stages; idle for 3 D of 6 N slots, about.
    """
    return _v_block(placement, count, "v-half", 2)


def v_min(placement: Placement, count: int) -> Ints:
    """Passes one slot after each other; see `_v_block`.

    Holds (D + 4) // 3 micro-batches of both stages; idle for 4 D of 6 N slots, about.
    """
    return _v_block(placement, count, "v-min", 1)


def _v_block(placement: Placement, count: int, name: str, step: int) -> Ints:
    """Repeat a building block every six slots, if every block took one, and squeeze the result.

    `step`: slots from a pass of the near stage to that on the next device. Weights take what slots
    are left. Then passes move into idle slots of warm-up and cool-down where a device still holds
    no more than `most` micro-batches of both stages ("squeeze" and "reorder", Qi et al. 2024,
    section 3).
    """
    chain = _v_chain(placement, name)
    devices = len(chain) // 2
    most = (devices + 6 - 2 * step) // (4 - step)
    d = np.arange(devices)
    there = (1 + step) * devices - d - step
    back = (1 + step) * devices + (1 + step if devices % (4 - step) == 0 else 0)
    # First slots on each device: forward, of the near and of the far stage, then backward.
    begin = step * d, there, back + step * d + 1 - step, back + there
    slot = np.zeros((3, count, len(chain)), dtype=np.int64)
    turn = 6 * np.arange(count)
    for near, (f0, f1, b1, b0) in enumerate(zip(*begin, strict=True)):
        far = len(chain) - 1 - near
        for kind, s, first in zip(
            (0, 0, 1, 1), (near, far, far, near), (f0, f1, b1, b0), strict=True
        ):
            slot[kind, :, s] = turn + first
        used = set(slot[:2, :, [near, far]].ravel().tolist())
        done = sorted((int(slot[BACKWARD, n, s]), s, n) for s in (near, far) for n in range(count))
        now = 0
        for at, s, n in done:
            now = max(now, at) + 1
            while now in used:
                now += 1
            slot[WEIGHT, n, s] = now
    problem = problem_of(placement, count)
    gain = np.array([{"forward": 1.0, "weight": -1.0}.get(b.kind, 0.0) for b in placement.blocks])
    even = replace(
        problem,
        time=np.ones(problem.b),
        delay=np.zeros(len(problem.delay)),
        memory=np.tile(gain, count),
        capacity=np.full(problem.units, 2.0 * most),
        fixed=np.zeros(problem.units),
    )
    start = _by_slot(placement, chain, slot).ravel().astype(np.float64)
    return np.rint(justified(even, start)).astype(np.int64).reshape(count, -1)


def _by_slot(placement: Placement, chain: Sequence[Stage], slot: Ints) -> Ints:
    """Ranks from the slots of passes, i64[3, N, stages]."""
    rank = np.zeros((slot.shape[1], len(placement.blocks)), dtype=np.int64)
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
    # On the second half of the devices the other chain is the near one.
    ends = [(chains[0][d], chains[1][depth - 1 - d]) for d in range(depth // 2)]
    ends += [(chains[1][d], chains[0][depth - 1 - d]) for d in range(depth // 2)]
    return _both_ends(placement, count, ends, depth // 2)


def dualpipev(placement: Placement, count: int) -> Ints:
    """The first half of the devices of DualPipe; the far chain is the second half of the stages.

    Fewer than 2 D micro-batches run as the first ones of 2 D do.
    """
    chain = _v_chain(placement, "dualpipev")
    devices = len(chain) // 2
    ends = list(zip(chain[:devices], chain[: devices - 1 : -1], strict=True))
    return _both_ends(placement, count, ends, devices)


def _both_ends(
    placement: Placement, count: int, ends: Sequence[tuple[Stage, Stage]], half: int
) -> Ints:
    """Ranks by `_from_both_ends`; near and far stages of one half, or of both."""
    pairs = max(count, 2 * half)
    rank = np.zeros((pairs, len(placement.blocks)), dtype=np.int64)
    for d, (near, far) in enumerate(ends):
        for place, (kind, is_far, n) in enumerate(_from_both_ends(half, d % half, pairs)):
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


def _v_chain(placement: Placement, name: str) -> Sequence[Stage]:
    """The stages of a chain that visits devices in turn, then the other way round."""
    chain = _split_chain(placement, name)
    homes = [placement.blocks[stage.forward].homes for stage in chain]
    if len(chain) % 2 or homes != homes[::-1]:
        raise UsageError(
            f"{name} needs two stages on each device, which the chain of stages visits in turn "
            "and then the other way round"
        )
    one_stage_each(placement, chain[: len(chain) // 2], name)
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
