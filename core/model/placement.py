"""A placement: the blocks that one micro-batch consists of, and the devices they run on.

Tessel, section III: block i of micro-batch n takes `time_s` on all of its devices at once, adds
`memory_bytes` to what each of them holds when it starts (less, if negative), and starts when
every block it comes after has ended. Blocks of different micro-batches do not wait for each other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

from dnnp.core.model.errors import FormatError, InfeasibleError
from dnnp.core.model.text import shown_bytes

KINDS = ("forward", "backward", "weight", "transfer")
"""What a block does; `weight`: the part of a backward pass that only weights need."""


@dataclass(frozen=True)
class Unit:
    """Something that runs one block at a time."""

    name: str
    """`cpu-core/0`; of a link: `v100/0>v100/1`."""
    memory_bytes: float = math.inf
    """Most that it may hold."""
    fixed_bytes: float = 0.0
    """What it always holds: parameters."""
    link: bool = False
    """A link carries transfers; it is not a device that could be kept busy."""


@dataclass(frozen=True)
class Wait:
    """A block starts after another one of the same micro-batch."""

    block: int
    """Position of the other block."""
    delay_s: float = 0.0
    """Time from its end to the earliest start."""
    transfer_s: float = 0.0
    """Time that moving the result to another device takes; see `core.schedule.transfers`."""


@dataclass(frozen=True)
class PlacedBlock:
    """One block of every micro-batch."""

    name: str
    kind: str
    homes: tuple[tuple[int, ...], ...]
    """Positions of its units; micro-batch n runs on all of `homes[n % len(homes)]`."""
    time_s: float
    memory_bytes: float = 0.0
    """Added to each of its units when it starts."""
    after: tuple[Wait, ...] = ()
    stage: int = -1
    """Stage of the plan that it is a pass of; -1: none."""
    nodes: tuple[int, ...] = ()
    """Ids of its nodes in execution order; empty: all of its stage."""


@dataclass(frozen=True)
class Placement:
    """The blocks of one micro-batch on their devices."""

    name: str
    units: tuple[Unit, ...]
    blocks: tuple[PlacedBlock, ...]

    @property
    def devices(self) -> tuple[int, ...]:
        """Positions of the units that are devices."""
        return tuple(i for i, unit in enumerate(self.units) if not unit.link)

    @property
    def turns(self) -> int:
        """Micro-batches after which the homes of all blocks repeat."""
        return math.lcm(*(len(block.homes) for block in self.blocks))


def check_placement(placement: Placement, file: str | None = None) -> None:
    """Refuse a placement that no schedule could be made for.

    Raises
    ------
    FormatError
        A time is negative or not finite, a block comes after itself, or a number names nothing.
    InfeasibleError
        A unit's limit is below what one block needs.
    """
    count = len(placement.blocks)
    waits: dict[int, set[int]] = {}
    for i, block in enumerate(placement.blocks):
        _check_block(placement, block, file)
        waits[i] = {wait.block for wait in block.after}
        if not all(0 <= b < count for b in waits[i]):
            raise FormatError(f"block '{block.name}' comes after a block that is not there", file)
    try:
        TopologicalSorter(waits).prepare()
    except CycleError as error:
        circle = " -> ".join(placement.blocks[i].name for i in reversed(error.args[1]))
        raise FormatError(f"blocks wait for each other in a circle: {circle}", file) from None


def _check_block(placement: Placement, block: PlacedBlock, file: str | None) -> None:
    numbers = [("time_s", block.time_s)]
    numbers += [("delay_s", w.delay_s) for w in block.after]
    numbers += [("transfer_s", w.transfer_s) for w in block.after]
    for field, value in numbers:
        if not (math.isfinite(value) and value >= 0):
            reason = f"block '{block.name}': {value} is not a finite number of at least 0"
            raise FormatError(reason, file, None, field)
    if not math.isfinite(block.memory_bytes):
        raise FormatError(
            f"block '{block.name}': {block.memory_bytes} is not finite", file, None, "memory_bytes"
        )
    if not block.homes or not all(block.homes):
        raise FormatError(f"block '{block.name}' has no device", file, None, "devices")
    for home in block.homes:
        if len(set(home)) < len(home) or not all(0 <= d < len(placement.units) for d in home):
            reason = f"block '{block.name}' names a device twice, or one that is not there"
            raise FormatError(reason, file, None, "devices")
        for unit in (placement.units[d] for d in home):
            needed = unit.fixed_bytes + max(block.memory_bytes, 0.0)
            if needed > unit.memory_bytes:
                raise InfeasibleError(
                    f"{unit.name} may hold {shown_bytes(unit.memory_bytes, 6)}, but block "
                    f"'{block.name}' alone needs {shown_bytes(needed, 6)}"
                )
