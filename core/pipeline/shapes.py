"""Placements that recur in the literature (Tessel, Fig. 1 and 8), on D devices.

Stages run on one device each, a forward and a backward block; *shared* blocks, such as an
embedding spread over all devices, run on all of them.

    V    one stage a device
    X    V and its mirror image: two chains that do not wait for each other (Chimera)
    M    V between a shared first block and its shared backward block
    NN   M with another shared block in the middle of the stages, and its backward block
    K    two branches on the two halves of the devices, joined by a shared block
"""

from __future__ import annotations

import math

from dnnp.core.model.errors import UsageError
from dnnp.core.model.placement import PlacedBlock, Placement, Unit, Wait

SHAPES = ("V", "X", "M", "NN", "K")
EVEN = ("NN", "K")
"""Shapes that need an even number of devices."""

SHARED = ("s", "t")
"""Names of blocks that run on all devices."""


Part = tuple[str, tuple[int, ...], float]
"""Name, devices, memory of a forward block."""


class _ShapeBuilder:
    """Collects blocks; the times of a stage's and of a shared block are given by kind."""

    def __init__(self, stage_s: dict[str, float], shared_s: float) -> None:
        self.blocks: list[PlacedBlock] = []
        self.stage_s, self.shared_s = stage_s, shared_s

    def chain(self, kind: str, parts: list[Part], after: list[int]) -> list[int]:
        """Add blocks after one another; returns the position of the last one, or `after`."""
        for name, home, memory in parts:
            shared = name in SHARED
            time = self.shared_s if shared else self.stage_s[kind]
            waits = tuple(Wait(i) for i in after)
            label = f"{kind[0].upper()}{name}"
            self.blocks.append(PlacedBlock(label, kind, (home,), time, memory, waits))
            after = [len(self.blocks) - 1]
        return after


def shape(
    name: str,
    devices: int,
    *,
    inference: bool = False,
    forward_s: float = 1.0,
    backward_s: float = 3.0,
    shared_s: float = 1.0,
    memory_bytes: float = math.inf,
) -> Placement:
    """A placement of one of `SHAPES`; each device may hold `memory_bytes`.

    A forward block of a stage holds 1 until its backward block starts; with `inference` there
    are no backward blocks and nothing is held.

    Raises
    ------
    UsageError
        Fewer than one device, or an odd number where the shape needs an even one.
    """
    if devices < 1:
        raise UsageError(f"a shape needs at least 1 device, not {devices}")
    if name in EVEN and devices % 2:
        raise UsageError(f"shape {name} needs an even number of devices, not {devices}")
    held = 0.0 if inference else 1.0
    builder = _ShapeBuilder({"forward": forward_s, "backward": backward_s}, shared_s)
    ranks, half = list(range(devices)), devices // 2
    everywhere = tuple(ranks)

    def stages(label: str, homes: list[int]) -> list[Part]:
        return [(f"{label}{i}", (d,), held) for i, d in enumerate(homes)]

    if name == "K":
        branches = [stages("a", ranks[:half]), stages("b", ranks[half:])]
        joint: list[Part] = [("s", everywhere, held)]
        ends = [builder.chain("forward", part, [])[0] for part in branches]
        last = builder.chain("forward", joint, ends)
        if not inference:
            last = builder.chain("backward", _mirrored(joint), last)
            for part in branches:
                builder.chain("backward", _mirrored(part), last)
    else:
        chains = [stages("", ranks)]
        if name == "X":
            chains = [stages("a", ranks), stages("b", ranks[::-1])]
        if name == "NN":
            chains[0].insert(half, ("t", everywhere, 0.0))
        if name in ("M", "NN"):
            chains[0].insert(0, ("s", everywhere, 0.0))
        for part in chains:
            last = builder.chain("forward", part, [])
            if not inference:
                builder.chain("backward", _mirrored(part), last)
    units = tuple(Unit(f"device/{d}", memory_bytes) for d in ranks)
    return Placement(f"{name}-{devices}", units, tuple(builder.blocks))


def _mirrored(parts: list[Part]) -> list[Part]:
    """The backward blocks of forward blocks: the other way round, releasing what they hold."""
    return [(name, home, -memory) for name, home, memory in reversed(parts)]
