"""Placements that recur in the literature (Tessel, Fig. 1 and 8), on D devices.

Stages run on one device each, a forward and a backward block; *shared* blocks, such as an
embedding spread over all devices, run on all of them.

    V    one stage a device
    X    V and its mirror image: two chains that do not wait for each other (Chimera)
    M    V between a shared first block and its shared backward block
    NN   M with another shared block in the middle of the stages, and its backward block
    K    two branches on the two halves of the devices, joined by a shared block

Others are cases that the authors of Tessel published beside their program, and what recipes need.

    NN-eager     NN whose second shared block comes as soon as it can, after the first stage
    multi-modal  M with another shared block between the last stage and its backward block
    fine-tuning  M whose first block has no backward block: it is not trained
    AlphaFold    three times over all devices, backward blocks for the last (recycling)
    VV           two stages a device: once over the devices and back (Qi et al. 2024, V-shape)
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from dnnp.core.model.errors import UsageError
from dnnp.core.model.placement import PlacedBlock, Placement, Unit, Wait

SHAPES = ("V", "X", "M", "NN", "K")
OTHERS = ("NN-eager", "multi-modal", "fine-tuning", "AlphaFold", "VV")
ALL = SHAPES + OTHERS
EVEN = ("NN", "K")
"""Shapes that need an even number of devices."""

SHARED = ("s", "t")
"""Names of blocks that run on all devices."""

BACKWARD_S = {"fine-tuning": 2.0, "AlphaFold": 1.0}
"""Time of a backward block, where it is not three times as long as a forward block."""

Part = tuple[str, tuple[int, ...], float]
"""Name, devices, memory of a forward block."""


class _ShapeBuilder:
    """Collects blocks; the times of a stage's blocks are given by kind, others are left out."""

    def __init__(self, stage_s: dict[str, float], shared_s: float) -> None:
        self.blocks: list[PlacedBlock] = []
        self.stage_s, self.shared_s = stage_s, shared_s

    def chain(self, kind: str, parts: list[Part], after: list[int]) -> list[int]:
        """Add blocks after one another; returns the position of the last one, or `after`."""
        if kind not in self.stage_s:
            return after
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
    backward_s: float | None = None,
    shared_s: float = 1.0,
    memory_bytes: float = math.inf,
) -> Placement:
    """A placement of one of `ALL`; each device may hold `memory_bytes`.

    A forward block of a stage holds 1 until its backward block starts; with `inference` there
    are no backward blocks and nothing is held. `backward_s` None: 3, or as `BACKWARD_S` says.

    Raises
    ------
    UsageError
        Fewer than one device, or an odd number where the shape needs an even one.
    """
    if devices < 1:
        raise UsageError(f"a shape needs at least 1 device, not {devices}")
    if name in EVEN and devices % 2:
        raise UsageError(f"shape {name} needs an even number of devices, not {devices}")
    if backward_s is None:
        backward_s = BACKWARD_S.get(name, 3.0)
    times = {"forward": forward_s} if inference else {"forward": forward_s, "backward": backward_s}
    builder = _ShapeBuilder(times, shared_s)
    held = 0.0 if inference else 1.0
    if name == "K":
        _two_branches(builder, devices, held)
    else:
        for forward, backward in _chains(name, devices, held):
            builder.chain("backward", _mirrored(backward), builder.chain("forward", forward, []))
    units = tuple(Unit(f"device/{d}", memory_bytes) for d in range(devices))
    return Placement(f"{name}-{devices}", units, tuple(builder.blocks))


def _two_branches(builder: _ShapeBuilder, devices: int, held: float) -> None:
    """Shape K; its backward blocks come last."""
    half = devices // 2
    branches = [_stages("a", range(half), held), _stages("b", range(half, devices), held)]
    joint = [_on_all("s", devices, held)]
    ends = [builder.chain("forward", part, [])[0] for part in branches]
    last = builder.chain("backward", _mirrored(joint), builder.chain("forward", joint, ends))
    for part in branches:
        builder.chain("backward", _mirrored(part), last)


def _chains(name: str, devices: int, held: float) -> list[tuple[list[Part], list[Part]]]:
    """Chains that do not wait for each other: all blocks, and those that have backward blocks."""
    ranks = range(devices)
    one = _stages("", ranks, held)
    there, back = _stages("a", ranks, held), _stages("b", ranks[::-1], held)
    if name == "V":
        return [(one, one)]
    if name == "X":
        return [(there, there), (back, back)]
    if name == "VV":
        return [(there + back, there + back)]
    if name == "AlphaFold":
        first = _stages("a", ranks, 0.0) + _stages("b", ranks, 0.0)
        last = _stages("c", ranks, held)
        return [(first + last, last)]
    again = {"NN": devices // 2, "NN-eager": 1, "multi-modal": devices}
    if name in again:
        one.insert(again[name], _on_all("t", devices, 0.0))
    whole = [_on_all("s", devices, 0.0), *one]
    return [(whole, one if name == "fine-tuning" else whole)]


def _stages(label: str, homes: Sequence[int], held: float) -> list[Part]:
    """Stages on one device each."""
    return [(f"{label}{i}", (d,), held) for i, d in enumerate(homes)]


def _on_all(name: str, devices: int, held: float) -> Part:
    """A shared block."""
    return name, tuple(range(devices)), held


def _mirrored(parts: list[Part]) -> list[Part]:
    """The backward blocks of forward blocks: the other way round, releasing what they hold."""
    return [(name, home, -memory) for name, home, memory in reversed(parts)]
