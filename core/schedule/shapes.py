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
from collections import Counter
from collections.abc import Sequence

from dnnp.core.methods.schedules import ALL_SHAPES
from dnnp.core.model.errors import UsageError
from dnnp.core.model.schedule import PlacedBlock, Placement, Unit, Wait

ALL = ALL_SHAPES
SHAPES = ALL[:5]
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

    Raises UsageError: fewer than one device, or an odd number where the shape needs an even
    one.
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


MOST_GROUPS = 64
"""Groups of devices up to which shapes are looked for."""


Form = tuple[str, tuple[int, ...], tuple[int, ...]]
"""Kind of a block, its groups of devices, and the forms of blocks that it waits for, by number."""


def shape_of(placement: Placement) -> tuple[str, int] | None:
    """A shape with the same blocks on the same devices, and its devices; None: there is none.

    Devices that run the same blocks count as one. Of waits only those matter that do not follow
    from others.
    """
    groups = _groups(placement)
    count = len(set(groups))
    if any(len(block.homes) > 1 for block in placement.blocks) or not 1 < count <= MOST_GROUPS:
        return None
    number: dict[Form, int] = {}
    mine = _forms(placement, groups, number)
    kinds = {block.kind for block in placement.blocks}
    inference = "backward" not in kinds
    for name in ALL:
        if name in EVEN and count % 2:
            continue
        other = shape(name, count, inference=inference)
        if len(other.blocks) != len(placement.blocks):
            continue
        if _forms(other, _groups(other), number) == mine:
            return name, count
    return None


def _groups(placement: Placement) -> list[int]:
    """Number of each device, those with the same blocks have one; by their first block."""
    blocks: dict[int, list[int]] = {d: [] for d in range(len(placement.units))}
    for i, block in enumerate(placement.blocks):
        for d in block.homes[0]:
            blocks[d].append(i)
    number: dict[tuple[int, ...], int] = {}
    return [number.setdefault(tuple(blocks[d]), len(number)) for d in sorted(blocks)]


def _forms(placement: Placement, groups: list[int], number: dict[Form, int]) -> Counter[Form]:
    """Forms of blocks, without their names and times; `number` those of all placements."""
    forms: dict[int, Form] = {}
    direct = [{wait.block for wait in block.after} for block in placement.blocks]
    all_of: dict[int, set[int]] = {}

    def ancestors(i: int) -> set[int]:
        if i not in all_of:
            all_of[i] = set().union(*({j} | ancestors(j) for j in direct[i]))
        return all_of[i]

    def form(i: int) -> Form:
        if i not in forms:
            needed = {j for j in direct[i] if not any(j in ancestors(o) for o in direct[i] - {j})}
            waits = tuple(sorted(number.setdefault(form(j), len(number)) for j in needed))
            block = placement.blocks[i]
            homes = tuple(sorted({groups[d] for d in block.homes[0]}))
            forms[i] = (block.kind, homes, waits)
        return forms[i]

    return Counter(form(i) for i in range(len(placement.blocks)))
