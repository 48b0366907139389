"""Placements and schedules: the blocks of a micro-batch on devices, and when each of them starts.

Tessel, section III: block i of micro-batch n takes `time_s` on all of its devices at once, adds
`memory_bytes` to what each of them holds when it starts (less, if negative), and starts when
every block it comes after has ended. Blocks of different micro-batches do not wait for each other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

from dnnp.core.model.errors import FormatError, InfeasibleError
from dnnp.core.model.graph import Floats
from dnnp.core.model.text import shown_bytes

ROUNDING = 1e-9
"""Share of what is added up that counts as nothing."""

KINDS = ("forward", "backward", "weight", "transfer")
"""Pass of a block; `weight`: the part of a backward pass that only weights need."""


@dataclass(frozen=True)
class Unit:
    """Something that runs one block at a time."""

    name: str
    """`cpu-core/0`; of a link: `v100/0>v100/1`."""
    memory_bytes: float = math.inf
    """Most that it may hold."""
    fixed_bytes: float = 0.0
    """Memory that it always holds: parameters."""
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
        A time is negative or not finite, a block comes after itself, a number names nothing, or a
        micro-batch frees memory where it did not take it.
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
    _check_freed(placement, file)
    _check_alone(placement)


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


MOST_TURNS = 4096
"""Micro-batches whose memory is added up, and blocks that are compared."""


def _check_freed(placement: Placement, file: str | None) -> None:
    """Refuse a micro-batch that frees more on a unit than it takes there."""
    holding = [block for block in placement.blocks if block.memory_bytes]
    for batch in range(min(math.lcm(*(len(block.homes) for block in holding)), MOST_TURNS)):
        moved: dict[int, list[float]] = {}
        for block in holding:
            for d in block.homes[batch % len(block.homes)]:
                moved.setdefault(d, []).append(block.memory_bytes)
        for d, amounts in moved.items():
            if -math.fsum(amounts) > ROUNDING * math.fsum(map(abs, amounts)):
                unit, freed = placement.units[d].name, shown_bytes(-math.fsum(amounts), 6)
                reason = f"micro-batch {batch} frees {freed} more on {unit} than it takes there"
                raise FormatError(reason, file, None, "memory_bytes")


def _check_alone(placement: Placement) -> None:
    """Refuse a limit below what one block needs, whatever runs before it."""
    largest: dict[int, PlacedBlock] = {}
    for block in sorted(placement.blocks, key=lambda one: one.memory_bytes):
        largest |= dict.fromkeys((d for home in block.homes for d in home), block)
    for d in sorted(largest):
        block = largest[d]
        unit, needed = placement.units[d], placement.units[d].fixed_bytes
        needed += max(block.memory_bytes, 0.0)
        if needed > unit.memory_bytes and _takes_first(placement, d):
            raise InfeasibleError(
                f"{unit.name} may hold {shown_bytes(unit.memory_bytes, 6)}, but block "
                f"'{block.name}' alone needs {shown_bytes(needed, 6)}"
            )


def _takes_first(placement: Placement, d: int) -> bool:
    """True if all that is freed on a unit was surely taken there before; False: too many."""
    if len(placement.blocks) > MOST_TURNS:
        return False
    waits = {i: {w.block for w in block.after} for i, block in enumerate(placement.blocks)}
    before: dict[int, set[int]] = {}
    held: dict[int, float] = {}
    for i in TopologicalSorter(waits).static_order():
        before[i] = waits[i].union(*(before[j] for j in waits[i]))
        here = [d in home for home in placement.blocks[i].homes]
        moved = placement.blocks[i].memory_bytes if any(here) else 0.0
        if moved > 0 and all(here):
            held[i] = moved
        for j in before[i] & held.keys():
            taken = min(held[j], max(-moved, 0.0))
            held[j], moved = held[j] - taken, moved + taken
        if moved < 0:
            return False
    return True


@dataclass(frozen=True)
class Repetend:
    """A part of a schedule that repeats: the blocks of `unroll` consecutive micro-batches.

    Block i of micro-batch n starts at `start[n % unroll, i] + (n // unroll) * period_s`.
    """

    unroll: int
    period_s: float
    start_s: Floats
    """f64[unroll, blocks]; the least is 0."""
    memory_bytes: Floats
    """f64[units], peak while it repeats without end, what is always held included."""
    period_bound_s: float = 0.0
    """No repetend of `unroll` micro-batches has a shorter period within the memory limits."""
    memory_bound_bytes: float = 0.0
    """None of this period has a smaller largest `memory_bytes`."""
    span_bound_s: float = 0.0
    """None of this period and largest memory has a shorter span."""
    status: str = "feasible"
    """`optimal`: period, memory and span equal their bounds; `feasible` or `interrupted`."""
    span_s: float = 0.0
    """First start to last end of the blocks of `unroll` micro-batches."""
    method: str = "orders"
    """The method that found it: `orders`, the search over orders of blocks; `list`, list scheduling
    alone; `sequential`, one block after the other; `tessel`; `tessel-fast`."""

    @property
    def rate_s(self) -> float:
        """Time for each micro-batch."""
        return self.period_s / self.unroll

    def held(self, units: Sequence[Unit]) -> float:
        """Most that a unit holds; one that holds more and more counts with what it always holds."""
        rows = zip(self.memory_bytes.tolist(), units, strict=True)
        peaks = (peak if math.isfinite(peak) else unit.fixed_bytes for peak, unit in rows)
        return max(peaks, default=0.0)


@dataclass(frozen=True)
class Schedule:
    """Start times of the blocks of `len(start_s)` micro-batches."""

    placement: Placement
    start_s: Floats
    """f64[micro-batches, blocks]; the least is 0."""
    method: str
    """The method that made `start_s`."""
    bound_s: float
    """No schedule of as many micro-batches within the memory limits is shorter."""
    status: str = "feasible"
    """`optimal`, `feasible` or `interrupted`."""
    repetend: Repetend | None = None
    """The best one found, which repeats in schedules of more micro-batches; None: none was looked
    for."""
    rate_s: float | None = None
    """Time for each of many micro-batches; None: not known."""
    rate_bound_s: float = 0.0
    """No schedule within the memory limits takes less time for each of many micro-batches."""


@dataclass(frozen=True)
class Point:
    """One point of the trade-off between period and memory."""

    memory_bytes: float
    period_s: float
    """For each micro-batch."""
    period_bound_s: float
    start_s: Floats
    """f64[unroll, blocks] of a repetend that is an example."""
    method: str = "orders"
    """`Repetend.method` of it."""

    @property
    def unroll(self) -> int:
        """Micro-batches in a period."""
        return len(self.start_s)
